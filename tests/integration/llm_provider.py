"""A provider on loopback that answers from a list, one entry per request, and keeps what it was sent."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Answer:
    body: bytes
    status: int = 200
    type: str = "text/event-stream"
    headers: dict[str, str] = field(default_factory=dict)
    piece: int = 0
    """Bytes per packet; 0 sends all at once."""
    stall: bool = False
    """After the body, silence until the provider is closed."""
    length: int | None = None
    """A Content-Length that may be a lie."""
    before_s: float = 0.0


def chunk(delta: Any = None, finish: str | None = None, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta or {}, "finish_reason": finish}], **more}


def stream(*chunks: Any, done: bool = True, **fields: Any) -> Answer:
    lines = [*map(json.dumps, chunks), *(["[DONE]"] if done else [])]
    return Answer("".join(f"data: {line}\n\n" for line in lines).encode(), **fields)


def says(text: str, finish: str = "stop") -> Answer:
    usage = {"prompt_tokens": 10, "completion_tokens": 5}
    return stream(chunk({"content": text}), chunk(finish=finish), {"choices": [], "usage": usage})


def calls(arguments: str, finish: str = "tool_calls", name: str = "bash") -> Answer:
    head = {"index": 0, "id": "k1", "function": {"name": name, "arguments": ""}}
    rest = {"index": 0, "function": {"arguments": arguments}}
    return stream(chunk({"tool_calls": [head]}), chunk({"tool_calls": [rest]}), chunk(finish=finish))


def refuses(status: int, message: str, code: str = "", **headers: str) -> Answer:
    body = json.dumps({"error": {"message": message, "code": code}}).encode()
    return Answer(body, status, "application/json", {k.replace("_", "-"): v for k, v in headers.items()})


def date_in(seconds: int) -> str:
    return formatdate(time.time() + seconds, usegmt=True)


class Provider:
    """`requests` are the bodies it was sent, `times` when, `headers` theirs; after the list it says "all done"."""

    def __init__(self, answers: list[Answer]) -> None:
        self._answers = list(answers)
        self.requests: list[dict[str, Any]] = []
        self.times: list[float] = []
        self.headers: list[dict[str, str]] = []
        self.arrived = threading.Event()
        self.closing = threading.Event()
        self.url = ""

    def refusal(self, body: dict[str, Any]) -> str | None:
        """What a stricter provider would not accept of this request."""
        return None

    def answer(self, body: dict[str, Any], headers: dict[str, str]) -> Answer:
        self.times.append(time.monotonic())
        self.requests.append(body)
        self.headers.append(headers)
        self.arrived.set()
        if message := self.refusal(body):
            return refuses(400, message)
        return self._answers.pop(0) if self._answers else says("all done")


@contextmanager
def serving(provider: Provider) -> Iterator[Provider]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            answer = provider.answer(body, {k.lower(): v for k, v in self.headers.items()} | {"path": self.path})
            try:
                self.send(answer)
            except OSError:
                return  # the client was stopped

        def send(self, answer: Answer) -> None:
            provider.closing.wait(answer.before_s)
            self.send_response(answer.status)
            fields = {"Content-Type": answer.type, "Connection": "close", **answer.headers}
            if answer.length is not None:
                fields["Content-Length"] = str(answer.length)
            for key, value in fields.items():
                self.send_header(key, value)
            self.end_headers()
            size = answer.piece or max(1, len(answer.body))
            for start in range(0, len(answer.body), size):
                self.wfile.write(answer.body[start : start + size])
                self.wfile.flush()
            if answer.stall:
                provider.closing.wait(30)

        def log_message(self, format: str, *args: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    provider.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    try:
        yield provider
    finally:
        provider.closing.set()
        server.shutdown()
        server.server_close()
        thread.join()
