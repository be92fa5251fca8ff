"""Clients that say nothing, stop half-way, or do not speak HTTP: answered or ended, never kept for ever."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from api_kit import ADMIN, Api, serving, wait_until

from service.api import body, connection


@pytest.fixture
def api(redis_url: str, tmp_path: Path) -> Iterator[Api]:
    with serving(redis_url, tmp_path / "data") as running:
        yield running


@contextmanager
def connected(api: Api) -> Iterator[socket.socket]:
    host, port = api.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as sock:
        yield sock


def read_all(sock: socket.socket) -> bytes:
    return b"".join(iter(lambda: sock.recv(65_536), b""))


@pytest.mark.parametrize("first", [b"", b"GET /heal", b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\nGET /hea"])
def test_a_head_that_does_not_come_ends_the_connection(api: Api, monkeypatch: pytest.MonkeyPatch, first: bytes) -> None:
    monkeypatch.setattr(connection, "HEAD_S", 0.3)
    with connected(api) as sock:
        sock.sendall(first)
        began = time.monotonic()
        rest = read_all(sock)
    assert 0.2 < time.monotonic() - began < 5
    assert rest.count(b"HTTP/1.1 200 OK") == first.count(b"\r\n\r\n")


def test_bytes_now_and_then_do_not_set_the_clock_back(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEAD_S", 0.5)
    with connected(api) as sock:
        sock.settimeout(0.1)
        for _ in range(50):
            sock.sendall(b"G")
            with suppress(TimeoutError):
                assert sock.recv(1) == b""
                return
    pytest.fail("the connection is still open after five seconds")


def test_a_long_answer_is_not_cut_by_the_clock_of_the_head(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEAD_S", 0.3)
    task = api.submit()
    began = time.monotonic()
    assert api.client().get(f"/v1/tasks/{task['id']}", params={"wait": 1}).status_code == 200
    assert time.monotonic() - began >= 1


@pytest.mark.parametrize("path", ["/v1/workspaces", "/v1/tasks"])
def test_a_body_that_stops_coming_is_408_and_leaves_no_file(
    api: Api, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(body, "STALL_S", 0.3)
    head = (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {ADMIN}\r\n"
        "Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
    )
    with connected(api) as sock:
        sock.sendall(head.encode())
        answer = read_all(sock)
    assert answer.startswith(b"HTTP/1.1 408 ")
    document = json.loads(answer.partition(b"\r\n\r\n")[2])
    assert (document["code"], document["status"]) == ("request_timeout", 408)
    wait_until(lambda: list((api.settings.blob_dir / "tmp").iterdir()) == [])


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc" + bytes(200),
        b"GET /healthz HTTP/1.1\r\n\r\n",
        b"POST /v1/tasks HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
    ],
    ids=["tls", "no host", "negative length"],
)
def test_what_is_not_http_is_a_problem_too(api: Api, sent: bytes) -> None:
    with connected(api) as sock:
        sock.sendall(sent)
        head, _, content = read_all(sock).partition(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    assert lines[0] == b"http/1.1 400 bad request"
    assert {b"content-type: application/problem+json", b"x-content-type-options: nosniff", b"connection: close"} <= {
        *lines
    }
    document = json.loads(content)
    assert {name: document[name] for name in ("status", "code", "detail")} == {
        "status": 400,
        "code": "bad_request",
        "detail": "Invalid HTTP request received.",
    }
    assert f"x-request-id: {document['request_id'].lower()}".encode() in lines


def test_garbage_behind_a_request_that_is_being_answered_breaks_nothing(api: Api) -> None:
    head = f"POST /v1/tasks HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {ADMIN}\r\nTransfer-Encoding: chunked\r\n\r\n"
    with connected(api) as sock:
        sock.sendall(head.encode() + b"zz\r\n")
        assert b"400" in read_all(sock).partition(b"\r\n")[0]
    assert api.client().get("/healthz").status_code == 200
