"""The HTTP client: one way to fail, and event streams that are taken up again without a gap or a double."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from service.client import http as http_module
from service.client.http import ClientError, PatchyardClient, Refused, Unreachable

Handler = Callable[[httpx.Request], httpx.Response]


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    slept: list[float] = []
    monkeypatch.setattr(http_module.time, "sleep", slept.append)
    return slept


def client(handler: Handler) -> PatchyardClient:
    return PatchyardClient("http://service", "pyd_key", transport=httpx.MockTransport(handler))


def problem(status: int, code: str, **members: Any) -> httpx.Response:
    body = {"status": status, "code": code, "detail": "No.", **members}
    return httpx.Response(status, json=body, headers={"content-type": "application/problem+json"})


def record(seq: int, type: str = "notice", **data: Any) -> dict[str, Any]:
    return {"seq": seq, "type": type, "task": "task_1", "time": "", "data": data or {"text": f"{seq}"}}


def wire(*events: dict[str, Any]) -> bytes:
    frames = [f"id: {e['seq']}\nevent: {e['type']}\ndata: {json.dumps(e, ensure_ascii=False)}\n\n" for e in events]
    return (": hello\r\n\r\n" + "".join(frames)).encode()


END = record(4, "state", state="succeeded")


def test_a_broken_stream_goes_on_where_it_broke(no_pauses: list[float]) -> None:
    asked: list[str] = []
    answers = [
        httpx.Response(200, content=wire(record(1), record(2))[:-20]),
        httpx.ConnectError("refused"),
        problem(503, "store_unavailable"),
        httpx.Response(200, content=wire(record(1), record(2), record(3))),
        httpx.Response(200, content=wire(END, record(5))),
    ]

    def handler(request: httpx.Request) -> httpx.Response:
        asked.append(request.headers["last-event-id"])
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    with client(handler) as service:
        assert [event["seq"] for event in service.events("task_1")] == [1, 2, 3, 4]
    assert asked == ["0", "1", "1", "1", "3"]
    assert no_pauses == [0.5, 1.0, 2.0, 0.5]


def test_line_separators_inside_an_event_do_not_cut_it() -> None:
    text = "a\u2028b\x85c\x0bd\x1ce"
    pieces = wire(record(1, text=text), record(4, "state", state="failed"))

    def handler(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=(pieces[at : at + 1] for at in range(len(pieces))))

    with client(handler) as service:
        assert next(service.events("task_1"))["data"]["text"] == text


def test_a_refused_stream_is_not_tried_again() -> None:
    with client(lambda _: problem(404, "task_not_found")) as service, pytest.raises(Refused) as caught:
        next(service.events("task_1"))
    assert (caught.value.status, caught.value.code) == (404, "task_not_found")


def test_a_service_that_stays_away_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 10_000, 50))
    monkeypatch.setattr(http_module.time, "monotonic", lambda: float(next(clock)))

    def handler(_: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    with client(handler) as service, pytest.raises(Unreachable, match="cannot reach the service: refused"):
        next(service.events("task_1"))


def test_a_refusal_names_the_fields() -> None:
    answer = problem(422, "invalid_request", errors=[{"pointer": "/limits/max_turns", "detail": "too small"}])
    with client(lambda _: answer) as service, pytest.raises(Refused) as caught:
        service.submit({"prompt": "x"}, None)
    assert caught.value.detail == "No.; /limits/max_turns: too small"


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(502, text="<html>bad gateway"),
        httpx.Response(200, text="<html>"),
        httpx.Response(200, json=[1]),
        httpx.Response(200, content=b"\xff"),
    ],
)
def test_what_is_not_our_service_is_said_to_be_so(answer: httpx.Response) -> None:
    with client(lambda _: answer) as service, pytest.raises(Unreachable, match="what answers there is not Patchyard"):
        service.task("task_1")


@pytest.mark.parametrize("url", ["", "service:8080", "ftp://x", "http://", "http://[::", "http://x:99999999"])
def test_an_address_that_is_none(url: str) -> None:
    with pytest.raises(ClientError):
        PatchyardClient(url, "")


def test_an_archive_is_sent_as_it_comes_beside_the_task() -> None:
    seen: dict[str, bytes] = {}

    class Pipe(io.RawIOBase):
        """Stdin: no length, no seeking."""

        left = b"archive" * 100_000

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int:
            part, Pipe.left = Pipe.left[: len(buffer)], Pipe.left[len(buffer) :]
            buffer[: len(part)] = part
            return len(part)

    def handler(request: httpx.Request) -> httpx.Response:
        seen["type"] = request.headers["content-type"].encode()
        seen["encoding"] = request.headers.get("transfer-encoding", "").encode()
        seen["body"] = request.read()
        return httpx.Response(202, json={"id": "task_1"})

    with client(handler) as service:
        assert service.submit({"prompt": "x"}, io.BufferedReader(Pipe())) == {"id": "task_1"}
    assert seen["type"].startswith(b"multipart/form-data; boundary=")
    assert seen["encoding"] == b"chunked"
    assert b'name="task"' in seen["body"]
    assert seen["body"].count(b"archive") == 100_000


def test_an_id_is_one_path_segment() -> None:
    asked: list[bytes] = []

    def handler(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.raw_path)
        return httpx.Response(200, json={})

    with client(handler) as service:
        service.task("../keys?x=é/")
    assert asked == [b"/v1/tasks/%2E%2E%2Fkeys%3Fx%3D%C3%A9%2F"]


def test_lists_are_read_page_by_page() -> None:
    pages = [{"items": [{"id": 1}, {"id": 2}], "next_cursor": "c"}, {"items": [{"id": 3}], "next_cursor": None}]
    asked: list[str] = []

    def handler(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.query.decode())
        return httpx.Response(200, json=pages.pop(0))

    with client(handler) as service:
        assert [task["id"] for task in service.tasks(300)] == [1, 2, 3]
    assert asked == ["limit=200", "limit=200&cursor=c"]
