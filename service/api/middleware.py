"""The outermost layer of the edge: request id, security headers, access log, and the last resort against defects.

It also reads off a body that a refusal left unread: a server that closes with unread bytes resets the connection, and
the client then sees a broken pipe where the answer should be. At most `DRAIN_BYTES` and `DRAIN_S`; a client that asked
with `Expect: 100-continue` has sent nothing yet and is answered at once.
"""

from __future__ import annotations

import asyncio
import re
import time
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from ulid import ULID

from service import telemetry
from service.api import problems
from service.errors import Unavailable

DRAIN_BYTES = 16 << 20
DRAIN_S = 2.0

MAX_IN_FLIGHT = 1_000
"""Requests at one time, most of them viewers of event streams; more get 503."""

CSP = "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
SECURITY_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": CSP,
    "Cache-Control": "no-store",
}
"""Set on every answer that does not set them itself."""

_REQUEST_ID = re.compile(r"^[A-Za-z0-9._-]{1,64}\Z")

log = telemetry.logger("api")


class _Exchange:
    """One request and its answer: what was read, what was sent."""

    def __init__(self, receive: Receive, send: Send, *, has_body: bool, request_id: str) -> None:
        self._receive = receive
        self._send = send
        self._unread = has_body
        self._request_id = request_id
        self.status: int | None = None

    async def receive(self) -> Message:
        message = await self._receive()
        self._unread = message["type"] == "http.request" and message.get("more_body", False)
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            if self._unread and self.status >= 400:
                await self._drain()
            headers = MutableHeaders(scope=message)
            for name, value in SECURITY_HEADERS.items():
                headers.setdefault(name, value)
            headers["X-Request-ID"] = self._request_id
            if self._unread and self.status >= 400:
                headers["Connection"] = "close"
        await self._send(message)

    async def _drain(self) -> None:
        left = DRAIN_BYTES
        try:
            async with asyncio.timeout(DRAIN_S):
                while self._unread and left > 0:
                    left -= len((await self.receive()).get("body", b""))
        except TimeoutError:
            return


class Edge:
    """ASGI middleware around the whole app."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self._in_flight = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        request_id = given if _REQUEST_ID.match(given) else f"req_{ULID()}"
        scope.setdefault("state", {})["request_id"] = request_id
        sent_body = "transfer-encoding" in headers or headers.get("content-length", "0") != "0"
        exchange = _Exchange(receive, send, has_body=sent_body and "expect" not in headers, request_id=request_id)
        began = time.monotonic()
        with telemetry.bound(request_id=request_id):
            self._in_flight += 1
            try:
                await self._answer(scope, exchange)
            finally:
                self._in_flight -= 1
            self._record(scope, exchange, time.monotonic() - began)

    async def _answer(self, scope: Scope, exchange: _Exchange) -> None:
        try:
            if self._in_flight > MAX_IN_FLIGHT and scope["path"] != "/healthz":
                await self._busy(scope, exchange)
            else:
                await self.app(scope, exchange.receive, exchange.send)
        except ClientDisconnect:
            log.info("client_left")
        except Exception:  # the API's edge: nothing may pass it but an answer
            log.exception("unexpected_error")
            if exchange.status is not None:
                raise  # the answer has begun: cut the connection, so that it does not look whole
            await problems.internal(scope["state"]["request_id"])(scope, exchange.receive, exchange.send)

    @staticmethod
    async def _busy(scope: Scope, exchange: _Exchange) -> None:
        error = Unavailable("The service answers as many requests as it can; try again shortly.", code="busy")
        answer = problems.from_error(Request(scope), error)
        await answer(scope, exchange.receive, exchange.send)

    @staticmethod
    def _record(scope: Scope, exchange: _Exchange, seconds: float) -> None:
        who: dict[str, Any] = {name: scope["state"][name] for name in ("team", "key") if name in scope["state"]}
        log.info(
            "request",
            method=scope["method"],
            path=scope["path"],
            status=exchange.status,
            duration_ms=round(seconds * 1000, 1),
            **who,
        )
