from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from service.contracts import ExitReason
from service.errors import ContextOverflow, ModelError
from worker.llm.failures import Transient, UnsupportedTokenField, classify, in_stream, message_of, retry_after_s

OVERFLOWS: list[tuple[int, Any]] = [
    (400, {"error": {"message": "This model's maximum context length is 8192 tokens.", "code": "x"}}),
    (400, {"error": {"message": "too long", "code": "context_length_exceeded"}}),
    (400, {"error": {"message": "request exceeds the available context size (8192)", "type": "y"}}),
    (400, {"error": {"message": "?", "type": "exceed_context_size_error"}}),
    (413, {"type": "error", "error": {"message": "prompt is too long: 210000 tokens > 200000 maximum"}}),
    (400, {"object": "error", "message": "You passed 9100 tokens, but the model's context length is only 8192."}),
    (400, {"error": {"code": "1261", "message": "Prompt exceeds max length"}}),
    (400, {"error": {"message": "Input token count exceeds the maximum number of tokens allowed"}}),
    (422, "Please reduce the length of the messages."),
]


@pytest.mark.parametrize(("status", "body"), OVERFLOWS)
def test_an_overflow_in_any_wording(status: int, body: Any) -> None:
    error = classify(status, body)
    assert isinstance(error, ContextOverflow)
    assert (error.exit_reason, error.retryable) == (ExitReason.CONTEXT_OVERFLOW, False)


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 529])
def test_what_may_pass_is_transient(status: int) -> None:
    error = classify(status, {"error": {"message": "slow down"}})
    assert isinstance(error, Transient)
    assert error.detail == f"the model's provider answered {status}: slow down"


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, {"error": {"message": "Invalid token in header"}}),
        (401, {"error": {"message": "Incorrect API key"}}),
        (403, {"error": {"message": "no access"}}),
        (404, {"error": {"message": "no such model"}}),
        (402, {"error": {"message": "Insufficient Balance"}}),
        (429, {"error": {"message": "?", "code": "insufficient_quota"}}),
        (429, {"error": {"message": "You exceeded your current quota, please check your plan"}}),
        (307, ""),
    ],
)
def test_what_will_not_pass_fails_at_once(status: int, body: Any) -> None:
    error = classify(status, body)
    assert type(error) is ModelError
    assert error.retryable is False


@pytest.mark.parametrize(
    "message",
    [
        "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.",
        "Extra inputs are not permitted: max_completion_tokens",
    ],
)
def test_a_refused_token_field(message: str) -> None:
    assert isinstance(classify(400, {"error": {"message": message}}), UnsupportedTokenField)


def test_too_large_a_token_limit_is_not_a_refused_field() -> None:
    assert type(classify(400, {"error": {"message": "max_tokens is too large: 64000 > 8192"}})) is ModelError


def test_the_pause_asked_for_is_kept_up_to_two_minutes() -> None:
    error = classify(429, "", {"retry-after": "2"})
    assert isinstance(error, Transient)
    assert error.retry_after_s == 2.0
    longer = classify(429, {"error": {"message": "weekly limit"}}, {"retry-after": "86400"})
    assert type(longer) is ModelError
    assert "weekly limit (it asks to wait 86400 s; at most 120 s are waited)" in longer.detail
    assert longer.retryable is True


def test_the_pause_as_a_date() -> None:
    soon = datetime.now(UTC) + timedelta(seconds=30)
    pause = retry_after_s({"retry-after": format_datetime(soon, usegmt=True)})
    assert pause is not None
    assert 27 <= pause <= 30
    assert retry_after_s({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}) == 0.0


@pytest.mark.parametrize("value", ["", "soon", "nan", "Wed, 99 Nil 2015"])
def test_an_unreadable_pause_is_none(value: str) -> None:
    assert retry_after_s({"retry-after": value}) is None


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"error": {"message": "a"}}, "a"),
        ({"error": "b"}, "b"),
        ([{"error": {"message": "c"}}], "c"),
        ({"detail": [{"msg": "d"}]}, "d"),
        ({"message": "e", "code": 7}, "e"),
        ({"code": 7}, '{"code": 7}'),
        ("<html>", "a web page, not an API answer"),
        ("plain", "plain"),
        ("", "no explanation"),
        ("x" * 900, "x" * 500),
    ],
)
def test_the_provider_s_own_words(body: Any, message: str) -> None:
    assert message_of(body) == message


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"message": "overloaded", "code": 502}, Transient),
        ({"message": "overloaded"}, Transient),
        ("overloaded", Transient),
        ({"message": "bad key", "code": 401}, ModelError),
        ({"message": "no", "code": "insufficient_quota"}, ModelError),
        ({"message": "no", "code": True}, Transient),
    ],
)
def test_errors_inside_a_stream(error: Any, kind: type[ModelError]) -> None:
    assert type(in_stream(error)) is kind
