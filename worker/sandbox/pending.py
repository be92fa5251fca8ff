"""What a box has said to one request and nobody has taken yet: between the channel's reader thread and who asked."""

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import NamedTuple

from sandbox_image.toolserver import wire
from service.errors import SandboxError


class News(NamedTuple):
    """What has come for a request since it was last looked at."""

    body: bytes
    credit: int
    """Bytes of our own body that the box has taken."""
    result: bytes | None


class Pending:
    """A request in flight: the reader thread adds what comes, whoever asked takes it.

    It holds at most a window of the body and the newest of all else, however many frames a box sends meanwhile.
    """

    def __init__(self) -> None:
        self.received = 0
        self.credited = 0
        self._lock = threading.Lock()
        self._bell: SimpleQueue[None] = SimpleQueue()
        """Holds one item while there is news: to wait on a condition would cost a call several times as much."""
        self._rung = False
        self._body: list[bytes] = []
        self._credit = 0
        self._result: bytes | None = None
        self._error: SandboxError | None = None

    @property
    def has_news(self) -> bool:
        return self._rung

    def add(self, frame: wire.Frame) -> None:
        """SandboxError for a frame that cannot be the next one; after the result, whatever comes is of no use."""
        with self._lock:
            if self._result is not None:
                return
            if frame.kind == wire.DATA:
                self._add_body(frame)
            elif frame.kind == wire.RESULT:
                if frame.offset != self.received:
                    raise SandboxError("the sandbox's answer is incomplete")
                self._result = frame.payload
            elif frame.kind == wire.CREDIT:
                self._credit = max(self._credit, frame.offset)
            elif frame.kind != wire.ACK:
                raise SandboxError("the sandbox sent a frame that is not its to send")
            self._ring()

    def _add_body(self, frame: wire.Frame) -> None:
        if frame.offset != self.received:
            raise SandboxError("the sandbox left a gap in its answer")
        self.received += len(frame.payload)
        if self.received - self.credited > wire.WINDOW:
            raise SandboxError("the sandbox sent more than its window")
        if frame.payload:
            self._body.append(frame.payload)

    def fail(self, error: SandboxError) -> None:
        with self._lock:
            self._error = error
            self._ring()

    def take(self, timeout_s: float) -> News:
        """Waits for news; queue.Empty when none comes in time, SandboxError when the channel has ended."""
        self._bell.get(timeout=timeout_s)
        with self._lock:
            if self._error is None:
                self._rung = False
            else:
                self._bell.put(None)  # what came before the end is told first, and the end to whoever asks again
                if not self._body and self._result is None:
                    raise SandboxError(self._error.detail)
            body, self._body = self._body, []
            return News(body[0] if len(body) == 1 else b"".join(body), self._credit, self._result)

    def _ring(self) -> None:
        if not self._rung:
            self._rung = True
            self._bell.put(None)
