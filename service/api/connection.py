"""One client's connection: uvicorn's HTTP/1.1 with what a public edge needs beside it.

A request's head comes whole within `HEAD_S`, or the connection ends: one that says nothing, or a byte now and then,
holds no descriptor for long. What is not HTTP is answered by a problem document like every other refusal.
"""

from __future__ import annotations

import asyncio

import h11
from ulid import ULID
from uvicorn.protocols.http.h11_impl import H11Protocol

from service.api import middleware, problems

HEAD_S = 15.0


class ClientConnection(H11Protocol):
    """Made by uvicorn for each connection (`Config(http=ClientConnection)`)."""

    _head_due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._await_head()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answers what is not HTTP; where an answer has begun, all that is left is to cut it."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            request_id = f"req_{ULID()}"
            document = {"title": "Bad Request", "status": 400, "code": "bad_request", "detail": msg}
            answer = problems.respond(
                request_id, document, headers={**middleware.SECURITY_HEADERS, "Connection": "close"}
            )
            answer.headers["X-Request-ID"] = request_id
            head = h11.Response(status_code=400, headers=answer.raw_headers, reason=b"Bad Request")
            for event in (head, h11.Data(data=bytes(answer.body)), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _await_head(self) -> None:
        """Starts the clock when the next head is waited for; more bytes of it do not set it back."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_waiting()
        elif self._head_due is None and not self.transport.is_closing():
            self._head_due = self.loop.call_later(HEAD_S, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._head_due is not None:
            self._head_due.cancel()
            self._head_due = None
