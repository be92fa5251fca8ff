"""A recording as a model: a loopback Chat Completions endpoint that answers by request order, whatever the prompt.

The same client code runs over real HTTP, and no network is needed: the demo and the tests use it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from service.errors import ModelError
from worker.llm.sse import loads
from worker.llm.summaries import is_summary
from worker.llm.transcript import responses

OVER = "The recording is over."
_IDLE_S = 30.0
"""A connection that sends nothing for so long is dropped."""


def _over() -> tuple[str, ...]:
    chunks: list[dict[str, Any]] = [
        {"choices": [{"index": 0, "delta": {"role": "assistant", "content": OVER}, "finish_reason": None}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
        {"choices": [], "usage": {"prompt_tokens": 0, "completion_tokens": 0}},
    ]
    return (*map(json.dumps, chunks), "[DONE]")


class ReplayServer:
    """Serves recorded responses on 127.0.0.1 while the context lasts; after the last one it says so and stops."""

    def __init__(self, recorded: Sequence[tuple[str, ...]], summaries: Sequence[tuple[str, ...]] = ()) -> None:
        # Two rows: where the window is another one than it was, summaries are asked for at other times or never.
        self._turns, self._summaries = iter(recorded), iter(summaries)
        self._lock = threading.Lock()

    @classmethod
    def of(cls, path: Path) -> ReplayServer:
        """From a transcript file; ModelError when it cannot be read."""
        try:
            with path.open(encoding="utf-8") as lines:
                turns = list(responses(lines))
                lines.seek(0)
                return cls(turns, list(responses(lines, summaries=True)))
        except (OSError, ValueError) as error:
            raise ModelError(f"the recording {path.name} cannot be read: {error}", retryable=False) from error

    def __enter__(self) -> ReplayServer:
        self._server = _Server(self)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="replay", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def take(self, *, summary: bool) -> tuple[str, ...]:
        """The data lines of the next turn, or of the next summary."""
        with self._lock:
            recorded = next(self._summaries if summary else self._turns, None)
        return _over() if recorded is None else recorded


def _asks_for_summary(body: bytes) -> bool:
    try:
        request = loads(body.decode())
    except ValueError:
        return False
    return isinstance(request, dict) and is_summary(request)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, replay: ReplayServer) -> None:
        self.replay = replay
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = _IDLE_S
    server: _Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        # The end of the body is the end of the connection: how most providers' proxies do it, too.
        self.send_header("Connection", "close")
        self.end_headers()
        try:
            for line in self.server.replay.take(summary=_asks_for_summary(body)):
                self.wfile.write(f"data: {line}\n\n".encode())
        except OSError:
            return  # the client was stopped in the middle

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing: the run's events tell what happens."""
