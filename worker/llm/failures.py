"""What a provider's failure means for us: ask again, give up, or the conversation is too long.

Providers agree on nothing but the status code, so the wording is read too. The shapes are those of the
OpenAI, Anthropic, Google, DeepSeek, Zhipu, vLLM and llama.cpp endpoints.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from service.errors import ContextOverflow, ModelError

MAX_WAIT_S = 120.0
"""A provider that asks for a longer pause has run out for this task: it fails rather than hold a worker."""
_DETAIL = 500

_OVERFLOW = re.compile(
    r"context_length_exceeded|exceed_context_size|maximum context length|context (?:length|window|size)[^.]{0,40}"
    r"(?:exceed|is only|limit)|exceeds? (?:the |this |model'?s? |available |maximum )*context|prompt is too long"
    r"|prompt exceeds max length|input token count exceeds|input is too long|too many input tokens"
    r"|reduce the length of the (?:messages|prompt)",
    re.IGNORECASE,
)
_QUOTA = re.compile(
    r"insufficient[_ ](?:quota|balance|credits?|funds)|exceeded your current quota|billing|payment required"
    r"|quota exhausted|out of credits",
    re.IGNORECASE,
)
_UNSUPPORTED = re.compile(
    r"unsupported|not supported|not permitted|unknown|unrecogni[sz]ed|unexpected|not allowed|extra inputs|instead",
    re.IGNORECASE,
)


class Transient(ModelError):
    """Worth asking again, after `retry_after_s` where the provider named a pause."""

    def __init__(self, detail: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(detail)
        self.retry_after_s = retry_after_s


class UnsupportedTokenField(ModelError):
    """The provider wants the reply's length limit under its other name."""


def message_of(body: Any) -> str:
    """The provider's own sentence, at most 500 characters, from any of the shapes error bodies have."""
    if isinstance(body, str):
        text = body.strip()
        text = "a web page, not an API answer" if text.startswith("<") else text
    else:
        text = _sentence(body) or json.dumps(body)
    return text[:_DETAIL] if text else "no explanation"


def _sentence(body: Any) -> str:
    """Depth is bounded by the shapes known: {"error": {"message"}}, {"error": "…"}, {"message"}, {"detail"}, [ … ]."""
    for _ in range(3):
        if isinstance(body, list) and body:
            body = body[0]
        elif isinstance(body, dict):
            body = next((body[key] for key in ("error", "message", "detail", "msg") if body.get(key)), "")
    return body if isinstance(body, str) else ""


def classify(status: int | None, body: Any, headers: Mapping[str, str] | None = None) -> ModelError:
    """The error to raise for an answer that is none. `status` is None for an error inside a stream.

    `body` is the decoded JSON, or the text where it is none; `headers` have lower-case names.
    """
    text = message_of(body)
    whole = body[:20_000] if isinstance(body, str) else json.dumps(body)[:20_000]
    said = f"the model's provider answered{'' if status is None else f' {status}'}: {text}"
    if status in (None, 400, 413, 422) and _OVERFLOW.search(whole):
        return ContextOverflow(said)
    if status in (None, 402, 403, 429) and (_QUOTA.search(whole) or status == 402):
        return ModelError(f"{said} (quota or credit used up)", retryable=False)
    if status in (400, 422) and re.search(r"max_(?:completion_)?tokens", text) and _UNSUPPORTED.search(text):
        return UnsupportedTokenField(said, retryable=False)
    if status is None or status in (408, 409, 425, 429) or status >= 500:
        return _transient(said, headers or {})
    return ModelError(said, retryable=False)


def _transient(said: str, headers: Mapping[str, str]) -> ModelError:
    pause = retry_after_s(headers)
    if pause is not None and pause > MAX_WAIT_S:
        return ModelError(f"{said} (it asks to wait {pause:.0f} s; at most {MAX_WAIT_S:.0f} s are waited)")
    return Transient(said, retry_after_s=pause)


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """The pause a provider asks for, in seconds from now; None without a readable header."""
    value = headers.get("retry-after", "").strip()
    try:
        seconds = float(value)
    except ValueError:
        try:
            date = parsedate_to_datetime(value)
        except ValueError:
            return None
        seconds = ((date if date.tzinfo else date.replace(tzinfo=UTC)) - datetime.now(UTC)).total_seconds()
    return max(0.0, seconds) if seconds == seconds else None  # NaN is a float too


def in_stream(error: Any) -> ModelError:
    """An error object where a chunk was expected: as its own code says, otherwise worth asking again."""
    code = error.get("code") if isinstance(error, dict) else None
    status = code if isinstance(code, int) and not isinstance(code, bool) and 400 <= code <= 599 else None
    return classify(status, error)
