"""A task's JSON: what is refused, with which code, pointing where."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fastapi import Request

from service.api.schema import Closed, parse_task
from service.contracts import TaskSpec
from service.errors import InvalidRequest, NotAvailable


def refusal(body: bytes | dict[str, Any]) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parse_task(body if isinstance(body, bytes) else json.dumps(body).encode())
    return caught.value


def pointers(error: InvalidRequest) -> list[str]:
    return [item["pointer"] for item in error.errors or []]


def test_a_small_task_gets_the_contract_s_defaults() -> None:
    assert parse_task(b'{"prompt": "fix it"}') == TaskSpec(prompt="fix it")


def test_available_fields_are_all_accepted() -> None:
    task = {
        "prompt": "p",
        "title": "t",
        "labels": {"team-x": "1"},
        "workspace": {"id": "ws_01ARZ3NDEKTSV4RRFFQ69G5FAV"},
        "model": "demo",
        "env": {"A": "1", "B": {"value": "2", "phases": ["agent"]}},
        "limits": {"max_turns": 5, "max_cost_usd": 1, "max_tokens": 9, "wall_time_s": 60, "command_timeout_s": 9},
        "resources": {"cpus": 0.5, "memory_mb": 512, "disk_mb": 128, "pids": 64},
    }
    spec = parse_task(json.dumps(task).encode())
    assert spec.env_for("setup") == {"A": "1"}
    assert spec.env_for("agent") == {"A": "1", "B": "2"}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"nonsense",
        b'{"prompt": "x"} trailing',
        b'{"prompt": "\xff"}',
        b'\xff\xfe{"prompt": "x"}',
        b'{"prompt": "a", "prompt": "b"}',
        b'{"prompt": "a", "limits": {"max_turns": 1, "max_turns": 2}}',
        b'{"prompt": "a", "limits": {"max_cost_usd": NaN}}',
        b'{"prompt": "a", "limits": {"max_cost_usd": Infinity}}',
        b'{"prompt": "a", "limits": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"prompt": "a", "limits": {"max_turns": ' + b"9" * 5_000 + b"}}",
    ],
    ids=lambda body: repr(body[:30]),
)
def test_what_is_not_one_clear_json_document_is_invalid_json(body: bytes) -> None:
    assert refusal(body).code == "invalid_json"


@pytest.mark.parametrize("body", [b"null", b"[]", b'"text"', b"5", b"{}"])
def test_json_that_is_no_task_is_an_invalid_request(body: bytes) -> None:
    error = refusal(body)
    assert (error.status, error.code) == (422, "invalid_request")


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        (rb'{"prompt": "a \ud83d b"}', "/prompt"),
        (rb'{"prompt": "a \u0000 b"}', "/prompt"),
        (rb'{"prompt": "a", "labels": {"k": "\udc00"}}', "/labels/k"),
        (rb'{"prompt": "a", "setup": ["ok", "\u0000"]}', "/setup/1"),
        (rb'{"prompt": "a", "env": {"N": {"value": "\ud800"}}}', "/env/N/value"),
        (rb'{"prompt": "a", "a/b~\ud800": 1}', "/a~1b~0\\ud800"),
    ],
)
def test_a_lone_surrogate_or_nul_is_pointed_at_and_never_repeated(body: bytes, pointer: str) -> None:
    error = refusal(body)
    assert error.code == "invalid_request"
    assert pointers(error) == [pointer]
    json.dumps(error.errors, ensure_ascii=False).encode("utf-8")


def test_a_surrogate_pair_is_a_character() -> None:
    assert parse_task(rb'{"prompt": "\ud83d\ude00"}').prompt == "😀"


@pytest.mark.parametrize(
    "field", ["volumes", "privileged", "team", "team_id", "state", "owner", "mounts", "submitter", "id", "run"]
)
def test_an_unknown_or_answer_only_field_is_refused_by_name(field: str) -> None:
    error = refusal({"prompt": "a", field: True})
    assert error.code == "invalid_request"
    assert pointers(error) == [f"/{field}"]


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"prompt": ""}, "/prompt"),
        ({"prompt": "x" * 100_001}, "/prompt"),
        ({"prompt": 5}, "/prompt"),
        ({"limits": {"max_turns": "5"}}, "/limits/max_turns"),
        ({"limits": {"max_turns": 0}}, "/limits/max_turns"),
        ({"limits": {"max_turns": True}}, "/limits/max_turns"),
        ({"limits": {"command_timeout_s": 601}}, "/limits/command_timeout_s"),
        ({"limits": {"other": 1}}, "/limits/other"),
        ({"resources": {"cpus": 1e999}}, "/resources/cpus"),
        ({"model": "../x"}, "/model"),
        ({"env": {"BAD NAME": "1"}}, "/env/BAD NAME/[key]"),
    ],
)
def test_a_value_out_of_its_domain_is_pointed_at(change: dict[str, Any], pointer: str) -> None:
    body = json.dumps({"prompt": "a", **change}).replace("Infinity", "1e999").encode()
    assert pointers(refusal(body)) == [pointer]


def test_values_are_not_repeated_in_a_refusal() -> None:
    error = refusal({"prompt": "a", "env": {"TOKEN": {"value": 12345678}}})
    assert "12345678" not in json.dumps([error.detail, error.errors])


LATER: list[tuple[dict[str, Any], str]] = [
    ({"workspace": {"git": {"url": "https://example.org/x.git"}}}, "/workspace/git"),
    ({"workspace": {"task": "task_01ARZ3NDEKTSV4RRFFQ69G5FAV"}}, "/workspace/task"),
    ({"priority": "high"}, "/priority"),
    ({"setup": ["make"]}, "/setup"),
    ({"verify": [{"command": "make test"}]}, "/verify"),
    ({"network": {"setup": "allowlist"}}, "/network/setup"),
    ({"network": {"agent": "allowlist"}}, "/network/agent"),
    ({"network": {"verify": "allowlist"}}, "/network/verify"),
    ({"limits": {"verify_rounds": 3}}, "/limits/verify_rounds"),
    ({"limits": {"wait_timeout_s": 60}}, "/limits/wait_timeout_s"),
    ({"permissions": {"default": "ask"}}, "/permissions"),
    ({"permissions": {"rules": [{"tool": "bash", "action": "deny"}]}}, "/permissions"),
    ({"attempts": 2}, "/attempts"),
    ({"protected_paths": ["*.lock"]}, "/protected_paths"),
    ({"allowed_paths": ["src/"]}, "/allowed_paths"),
    ({"webhook": {"url": "https://example.org/hook"}}, "/webhook"),
]


@pytest.mark.parametrize(("change", "pointer"), LATER, ids=[pointer for _, pointer in LATER])
def test_a_field_of_a_later_version_is_not_available(change: dict[str, Any], pointer: str) -> None:
    error = refusal({"prompt": "a", **change})
    assert isinstance(error, NotAvailable)
    assert (error.status, error.code) == (422, "not_available")
    assert pointers(error) == [pointer]
    assert pointer.strip("/").replace("/", ".") in error.detail


def test_every_later_field_is_named_at_once() -> None:
    assert pointers(refusal({"prompt": "a", "attempts": 2, "priority": "low"})) == ["/priority", "/attempts"]


def test_a_later_field_with_its_default_is_accepted() -> None:
    explicit = TaskSpec(prompt="a").model_dump(mode="json")
    assert parse_task(json.dumps(explicit).encode()) == TaskSpec(prompt="a")


def asked(query: str, **headers: str) -> Request:
    raw = [(name.replace("_", "-").lower().encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "query_string": query.encode(), "headers": raw})


CLOSED = Closed("limit", later={"dry_run": "false", "state": None}, later_headers=("Idempotency-Key",))


@pytest.mark.parametrize("query", ["", "limit=3", "dry_run=false", "limit=3&dry_run=false"])
async def test_known_parameters_and_defaults_pass(query: str) -> None:
    await CLOSED(asked(query))


@pytest.mark.parametrize(
    ("query", "pointer", "code"),
    [
        ("token=x", "/token", "invalid_request"),
        ("limit=1&limit=2", "/limit", "invalid_request"),
        ("dry_run=true", "/dry_run", "not_available"),
        ("state=queued", "/state", "not_available"),
    ],
)
async def test_other_parameters_are_refused_by_name(query: str, pointer: str, code: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await CLOSED(asked(query))
    assert caught.value.code == code
    assert {(item["pointer"], item["in"]) for item in caught.value.errors or []} == {(pointer, "query")}


async def test_a_header_of_a_later_version_is_refused() -> None:
    with pytest.raises(NotAvailable) as caught:
        await CLOSED(asked("", Idempotency_Key="1"))
    assert caught.value.errors == [
        {
            "pointer": "/Idempotency-Key",
            "in": "header",
            "detail": "is not available in this version; leave it out",
        }
    ]
