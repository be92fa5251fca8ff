"""The worker's end of the pipe: requests out, answers in, over one attached box.

Threads: callers send and wait; one reader takes frames in and hands them to whoever waits; one sends `ping` every
`PING_S`, also while nobody asks for anything. Everything from the box is bounded and checked, and anything that is not
the protocol ends the channel: every caller then gets the same SandboxError.
"""

from __future__ import annotations

import itertools
import secrets
import threading
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from queue import Empty
from typing import Any

from sandbox_image.toolserver import wire
from service.errors import SandboxError
from worker.sandbox.base import FAILURES, ToolFailure, Transport
from worker.sandbox.pending import News, Pending

PING_S = 5.0
MAX_UNANSWERED_PINGS = 2
RESEND_S = 1.0
MAX_COLLECTED = 80 << 20
"""Of a body that is collected before it is used."""
_CREDIT_STEP = 64 << 10
_PIECE = 4 * wire.SPLIT


class Channel:
    """Requests over one transport. `introduce` first; after any SandboxError only `close` is of use."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._parser = wire.Parser()
        self._token = wire.ZERO
        self._numbers: Iterator[int] = itertools.count(1)
        self._pending: dict[int, Pending] = {}
        self._done: deque[int] = deque()
        self._lock = threading.Lock()
        """Guards `_pending` and `_error`."""
        self._sending = threading.Lock()
        self._error: SandboxError | None = None
        self._closed = threading.Event()
        self._unanswered = 0
        self._reader = threading.Thread(target=self._read, name="box-reader", daemon=True)
        self._pinger = threading.Thread(target=self._ping, name="box-ping", daemon=True)

    # -------------------------------------------------------------------------------------- introduction

    def introduce(self, timeout_s: float) -> dict[str, Any]:
        """Says hello to a fresh box and attaches to it; what it said of itself, its `secret` among it."""
        self._reader.start()
        deadline = time.monotonic() + timeout_s
        about = self._ask_anonymously({"op": "hello"}, deadline)
        secret = about.get("secret")
        if not isinstance(secret, str):
            raise self.fail("the sandbox's greeting has no secret")
        self.attach(secret, 1, deadline - time.monotonic())
        return about

    def attach(self, secret: str, generation: int, timeout_s: float) -> None:
        """Takes the box over with a fresh token; a generation that is not above the last is refused by it."""
        token = secrets.token_bytes(16)
        self._parser.token = token
        request = {
            "op": "attach",
            "args": {"secret": secret, "generation": generation, "token": token.hex()},
        }
        self._numbers = itertools.count((generation << 32) + 1)
        self._ask_anonymously(request, time.monotonic() + timeout_s)
        self._token = token
        self._parser.anonymous = False
        self._pinger.start()

    def _ask_anonymously(self, request: dict[str, Any], deadline: float) -> dict[str, Any]:
        number = next(self._numbers)
        chunk = wire.encode(wire.ZERO, wire.REQUEST, number, wire.dumps(request))
        with self._register(number) as pending:
            while True:
                self.send(chunk)
                left = deadline - time.monotonic()
                if left <= 0:
                    raise self.fail("the sandbox did not answer in time after its start")
                try:
                    news = pending.take(min(left, RESEND_S))
                except Empty:
                    continue
                if news.result is None:
                    raise self.fail("the sandbox answered its first request with something else")
                return self._answer(news.result)

    # ------------------------------------------------------------------------------------------ requests

    def call(
        self, op: str, args: dict[str, Any], body: bytes | None = None, *, timeout_s: float = 60
    ) -> tuple[bytes, dict[str, Any]]:
        """Asks and waits: the body of the answer, collected, and the answer."""
        steps = self.stream(op, args, body, timeout_s=timeout_s)
        pieces: list[bytes] = []
        size = 0
        while True:
            try:
                piece = next(steps)
            except StopIteration as stop:
                return self._whole(b"".join(pieces), stop.value)
            size += len(piece)
            if size > MAX_COLLECTED:
                raise self.fail("the sandbox sent more than was asked for")
            pieces.append(piece)

    def stream(
        self,
        op: str,
        args: dict[str, Any],
        body: bytes | Iterable[bytes] | None = None,
        *,
        timeout_s: float = 60,
    ) -> Generator[bytes, None, dict[str, Any]]:
        """Asks; yields the body of the answer as it comes, returns the answer.

        A `body` longer than the window is sent piece by piece as the box takes it. `timeout_s` bounds the time spent
        waiting for the box, in all: one that only says that it is busy is given up too. ToolFailure is the box's
        refusal. To close the generator early gives the call up.
        """
        number = next(self._numbers)
        head = wire.dumps({"op": op, "args": args})
        flags = 0 if body is None else wire.BODY
        request = wire.encode(self._token, wire.REQUEST, number, head, flags=flags)
        if isinstance(body, bytes) and len(body) <= wire.WINDOW:
            request += wire.encode_body(self._token, number, body)
            body = None
        with self._register(number) as pending:
            answer = _Answer(self, pending, number, request, timeout_s)
            try:
                self.send(request)
                if body is not None:
                    yield from self._send_body(answer, body)
                while not answer.ended:
                    yield from answer.step()
            except GeneratorExit:
                with suppress(SandboxError):  # a box that is gone does nothing more for the call
                    self.tell("cancel", {"call": number})
                raise
        self._done.append(number)  # told with the next request, or the next ping
        return self._answer(answer.result or b"")

    def _send_body(self, answer: _Answer, body: bytes | Iterable[bytes]) -> Generator[bytes, None, None]:
        """Sends within the box's credit and passes on what it says meanwhile; stops when it has its result."""
        offset = 0
        for piece in _split(body):
            while offset + len(piece) - answer.credit > wire.WINDOW and not answer.ended:
                yield from answer.step()
            yield from answer.come_in()
            if answer.ended:
                return
            self.send(wire.encode_body(self._token, answer.number, piece, offset=offset, ended=False))
            offset += len(piece)
        self.send(wire.encode(self._token, wire.DATA, answer.number, offset=offset, flags=wire.FIN))

    def tell(self, op: str, args: dict[str, Any] | None = None) -> None:
        """Asks for something whose answer nobody waits for; from any thread."""
        request = wire.dumps({"op": op, "args": args or {}})
        self.send(wire.encode(self._token, wire.REQUEST, next(self._numbers), request))

    def close(self) -> None:
        """Lets the box go. Idempotent; callers that still wait get a SandboxError."""
        self.fail("the sandbox was closed")
        self._closed.set()
        self._transport.close()
        for thread in (self._reader, self._pinger):
            if thread.ident is not None and thread is not threading.current_thread():
                thread.join(5)

    # ------------------------------------------------------------------------------------------- threads

    def _read(self) -> None:
        try:
            while data := self._transport.receive():
                self._take(data)
        except SandboxError as error:
            self.fail(error.detail)
        finally:
            self.fail("the sandbox has ended")  # the first reason stays

    def _take(self, data: bytes) -> None:
        skipped = self._parser.skipped
        for frame in self._parser.feed(data):
            self._dispatch(frame)
        if self._parser.skipped > skipped and not self._parser.anonymous:
            raise SandboxError("the sandbox sent bytes that are not the protocol")

    def _dispatch(self, frame: wire.Frame) -> None:
        self._unanswered = 0
        with self._lock:
            pending = self._pending.get(frame.call)
        if pending is not None:  # else of a call that was given up, or a ping
            pending.add(frame)

    def _ping(self) -> None:
        request = wire.dumps({"op": "ping", "args": {}})
        while not self._closed.wait(PING_S):
            if self._unanswered >= MAX_UNANSWERED_PINGS:
                self.fail("the sandbox does not answer")
                self._transport.close()  # also wakes a send that stands still
                return
            self._unanswered += 1
            if not self._sending.acquire(timeout=PING_S):
                self._unanswered += 1  # a send has stood still all the while: the ping of this time, as good as sent
                continue
            try:
                self._send(wire.encode(self._token, wire.REQUEST, next(self._numbers), request))
            except SandboxError:
                return
            finally:
                self._sending.release()

    # ------------------------------------------------------------------------------------------- helpers

    def fail(self, detail: str) -> SandboxError:
        """Ends the channel for everyone who waits; the first reason stays. Returns it for the caller to raise."""
        with self._lock:
            if self._error is None:
                self._error = SandboxError(detail)
            waiting = list(self._pending.values())
            error = self._error
        for pending in waiting:
            pending.fail(error)
        return SandboxError(error.detail)

    @contextmanager
    def _register(self, number: int) -> Iterator[Pending]:
        pending = Pending()
        with self._lock:
            if self._error is not None:
                raise SandboxError(self._error.detail)
            self._pending[number] = pending
        try:
            yield pending
        finally:
            with self._lock:
                del self._pending[number]

    def send(self, data: bytes) -> None:
        with self._sending:
            self._send(data)

    def _send(self, data: bytes) -> None:
        """For who holds `_sending`."""
        done = []
        while self._done:
            done.append(wire.encode(self._token, wire.DONE, self._done.popleft()))
        if done:
            data = b"".join((*done, data))
        try:
            self._transport.send(data)
        except SandboxError as error:
            raise self.fail(error.detail) from error

    def give_credit(self, number: int, pending: Pending, taken: int) -> None:
        """Tells the box how much of its answer has been used, when it is worth a frame."""
        if taken - pending.credited >= _CREDIT_STEP:
            pending.credited = taken
            self.send(wire.encode(self._token, wire.CREDIT, number, offset=taken))

    def _whole(self, body: bytes, answer: dict[str, Any]) -> tuple[bytes, dict[str, Any]]:
        """An answer too long for a frame came as the body."""
        return (b"", self._answer(body)) if answer.get("in_body") is True else (body, answer)

    def _answer(self, payload: bytes) -> dict[str, Any]:
        try:
            said = wire.loads(payload)
        except ValueError as error:
            raise self.fail("the sandbox's answer is not JSON") from error
        if said.get("in_body") is True:
            return said
        answer, failure = said.get("ok"), said.get("error")
        if isinstance(answer, dict):
            return answer
        if isinstance(failure, dict):
            code, message = failure.get("code"), failure.get("message")
            if isinstance(code, str) and code in FAILURES and isinstance(message, str):
                raise ToolFailure(code, _one_line(message))
        raise self.fail("the sandbox's answer is neither a result nor a known failure")


class _Answer:
    """What has come of one answer, seen from the thread that asked."""

    def __init__(self, channel: Channel, pending: Pending, number: int, request: bytes, timeout_s: float) -> None:
        self.number = number
        self.credit = 0
        """Bytes of our body that the box has taken."""
        self.result: bytes | None = None
        self._channel = channel
        self._pending = pending
        self._request = request
        self._patience_s = timeout_s
        self._heard = False
        self._taken = 0

    @property
    def ended(self) -> bool:
        return self.result is not None

    def step(self) -> Generator[bytes, None, None]:
        """Waits for news, asking again while none has come at all."""
        yield from self._use(self._wait())

    def come_in(self) -> Generator[bytes, None, None]:
        """Uses what has come already."""
        if self._pending.has_news:
            yield from self._use(self._wait())

    def _wait(self) -> News:
        started = time.monotonic()
        deadline = started + self._patience_s
        while True:
            left = max(0.0, deadline - time.monotonic())
            try:
                news = self._pending.take(left if self._heard else min(left, RESEND_S))
            except Empty:
                if deadline <= time.monotonic():
                    raise self._channel.fail("the sandbox did not answer in time") from None
                self._channel.send(self._request)
            else:
                self._patience_s -= time.monotonic() - started
                return news

    def _use(self, news: News) -> Generator[bytes, None, None]:
        self._heard = True
        self.credit = news.credit
        if news.body:
            yield news.body
            self._taken += len(news.body)
            if news.result is None:
                self._channel.give_credit(self.number, self._pending, self._taken)
        self.result = news.result


def _split(body: bytes | Iterable[bytes]) -> Iterator[memoryview]:
    """Pieces of a few chunks each: fewer, larger writes, and still a part of the window only."""
    for part in (body,) if isinstance(body, bytes) else body:
        view = memoryview(part)
        for at in range(0, len(view), _PIECE):
            yield view[at : at + _PIECE]


def _one_line(text: str) -> str:
    return " ".join(text.encode("utf-8", "backslashreplace").decode().split())[:2_000]
