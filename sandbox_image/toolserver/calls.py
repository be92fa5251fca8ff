"""One request of the worker, from its first frame to the moment its answer may be forgotten."""

from __future__ import annotations

from typing import Any

from sandbox_image.toolserver import wire
from sandbox_image.toolserver.failures import Failure

KEPT = frozenset({"load", "exec", "write", "edit", "export", "background", "kill"})
"""Their outcome is kept until the worker is done with it: to run them again would not be the same."""
EXCLUSIVE = KEPT | {"changes"}
"""Run alone. The others only read and may overlap each other; `changes` first ends what runs in the background."""
STREAMED = frozenset({"load", "export"})
"""Their body is taken in while they run; other bodies are collected first."""
OPS = EXCLUSIVE | {"read", "list", "glob", "search", "output"}
MAX_BODY = 64 << 20
"""Of a collected body."""


class Outgoing:
    """The body of an answer, sent as far as credit allows."""

    def __init__(self, keep: bool) -> None:
        """`keep` holds all of it until the worker is done with the call, for one that re-attaches."""
        self._keep = keep
        self._data = bytearray()
        self._base = 0
        self._sent = 0
        self._credit = 0

    @property
    def backlog(self) -> int:
        return self._base + len(self._data) - self._sent

    @property
    def size(self) -> int:
        return self._base + len(self._data)

    def push(self, data: bytes) -> None:
        self._data += data

    def next(self) -> tuple[int, bytes] | None:
        """Offset and bytes of the next chunk, if the window has room."""
        room = min(self.backlog, wire.SPLIT, self._credit + wire.WINDOW - self._sent)
        if room <= 0:
            return None
        at, offset = self._sent - self._base, self._sent
        data = bytes(memoryview(self._data)[at : at + room])
        self._sent += room
        return offset, data

    def credit(self, taken: int) -> None:
        if not self._credit <= taken <= self._sent:
            return  # late or wrong: what was never sent cannot have been taken
        self._credit = taken
        if not self._keep:
            del self._data[: taken - self._base]
            self._base = taken

    def rewind(self) -> None:
        """From the start again, for another worker; only of a body that is kept."""
        self._sent = self._credit = 0


class Call:
    """State of one request."""

    def __init__(self, number: int, op: str, args: dict[str, Any], has_body: bool) -> None:
        self.id = number
        self.op = op
        self.args = args
        self.exclusive = op in EXCLUSIVE
        self.kept = op in KEPT
        self.body = bytearray()
        """What came before the operation runs."""
        self.body_ended = not has_body
        self.received = 0
        self.out = Outgoing(keep=op == "exec")
        self.result: bytes | None = None
        self.answered = False
        self.muted = False
        """Belongs to a worker that is gone; speaks again when its successor asks under the same id."""

    def arrived(self, offset: int, size: int, ended: bool) -> None:
        """Counts one DATA frame. Failure `bad_request` when one before it was lost, `too_large` for too much."""
        if self.body_ended or offset != self.received:
            raise Failure("bad_request", "the body of the request has a gap")
        self.received += size
        self.body_ended = ended
        if self.op not in STREAMED and self.received > MAX_BODY:
            raise Failure("too_large", f"more than {MAX_BODY} bytes at once")

    def succeed(self, answer: dict[str, Any]) -> None:
        """Sets the result; one too long for a frame becomes the body, and `in_body` says so."""
        result = wire.dumps({"ok": answer})
        if len(result) > wire.SPLIT:
            self.out.push(result)
            result = wire.dumps({"in_body": True})
        self.result = result

    def fail(self, failure: Failure) -> None:
        self.result = wire.dumps({"error": {"code": failure.code, "message": failure.message}})
