"""Slow work in a forked child of the server: search, glob, the change set, an export.

The server itself must answer pings and take a cancel within seconds, and must outlive whatever hostile files do to
the one that reads them. The child knows all the server knew at the fork (the baseline, for one) at no cost, may wait
and start processes as it likes, and speaks through a pipe: records of type, length, bytes.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Any, NoReturn, Protocol

from sandbox_image.toolserver import wire
from sandbox_image.toolserver.failures import Failure, from_os_error
from sandbox_image.toolserver.processes import raise_oom_score, restore_signals

_RECORD = struct.Struct(">cI")
_BODY, _OK, _ERROR = b"B", b"R", b"E"
_PIECE = 32 << 10
_READ = 256 << 10


class Reader(Protocol):
    """The job's input: at most `size` bytes, b"" at the end."""

    def read(self, size: int, /) -> bytes: ...


Work = Callable[[Reader], Generator[bytes, None, dict[str, Any]]]
"""Runs in the child: reads its input, yields the body of the answer, returns the answer."""


class Job:
    """A forked child at work. `fd` gives its records; `input_fd` (-1 once closed) takes its input."""

    def __init__(self, work: Work, protocol_fds: tuple[int, ...], *, tools_alive: bool = False) -> None:
        """Failure `spawn_failed` when the box has no process left."""
        self.result: dict[str, Any] | None = None
        self.failure: Failure | None = None
        self._buffer = bytearray()
        self._input = bytearray()
        self._input_ended = False
        self.fd, output = os.pipe2(os.O_CLOEXEC)
        job_input, self.input_fd = os.pipe2(os.O_CLOEXEC)
        try:
            self.pid = os.fork()
        except OSError as error:
            for fd in (self.fd, output, job_input, self.input_fd):
                os.close(fd)
            raise Failure("spawn_failed", f"the sandbox has no process left: {error.strerror}") from error
        if self.pid == 0:
            _child(work, job_input, output, (*protocol_fds, self.fd, self.input_fd), tools_alive)
        os.close(output)
        os.close(job_input)
        os.set_blocking(self.fd, False)
        os.set_blocking(self.input_fd, False)

    def read(self) -> tuple[list[bytes], bool]:
        """Pieces of the body that have come, and whether more may come."""
        try:
            data = os.read(self.fd, _READ)
        except BlockingIOError:
            return [], True
        if not data:
            if self.result is None and self.failure is None:
                self.failure = Failure("io_error", "the operation ended before its time, perhaps for want of memory")
            return [], False
        self._buffer += data
        return list(self._records()), True

    def _records(self) -> Generator[bytes, None, None]:
        while len(self._buffer) >= _RECORD.size:
            kind, size = _RECORD.unpack_from(self._buffer)
            end = _RECORD.size + size
            if len(self._buffer) < end:
                return
            data = bytes(self._buffer[_RECORD.size : end])
            del self._buffer[:end]
            if kind == _BODY:
                yield data
            elif kind == _OK:
                self.result = wire.loads(data)
            else:
                said = wire.loads(data)
                self.failure = Failure(said["code"], said["message"])

    @property
    def input_waiting(self) -> int:
        """Bytes of input that the child has not taken."""
        return len(self._input)

    def give(self, data: bytes, ended: bool) -> None:
        """More input; nothing waits here, see `push`."""
        self._input += data
        self._input_ended = self._input_ended or ended
        self.push()

    def push(self) -> None:
        """Writes what the child's pipe takes."""
        if self.input_fd < 0:
            self._input.clear()
            return
        try:
            while self._input:
                with memoryview(self._input)[:_READ] as view:
                    written = os.write(self.input_fd, view)
                del self._input[:written]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._input.clear()  # it needs no more of it
            self._input_ended = True
        if self._input_ended:
            os.close(self.input_fd)
            self.input_fd = -1

    def close(self) -> None:
        os.close(self.fd)
        if self.input_fd >= 0:
            os.close(self.input_fd)
            self.input_fd = -1


def _child(work: Work, job_input: int, output: int, not_ours: tuple[int, ...], tools_alive: bool) -> NoReturn:
    """Never returns: the loop above us belongs to the server."""
    code = 1
    try:
        for fd in not_ours:
            os.close(fd)
        restore_signals()
        if not tools_alive:
            raise_oom_score()  # else a tool could look into us meanwhile; its own score is higher anyway
        _run(work, job_input, output)
        code = 0
    finally:
        os._exit(code)


def _run(work: Work, job_input: int, output: int) -> None:
    with open(job_input, "rb") as stream:
        try:
            steps = work(stream)
            while True:
                try:
                    piece = next(steps)
                except StopIteration as stop:
                    _send(output, _OK, wire.dumps(stop.value))
                    return
                for at in range(0, len(piece), _PIECE):
                    _send(output, _BODY, piece[at : at + _PIECE])
        except Failure as failure:
            _fail(output, failure)
        except OSError as error:
            _fail(output, from_os_error(error, "the workspace"))
        except Exception as error:  # noqa: BLE001 (the tool boundary: whatever it is, it is this call's outcome)
            _fail(output, Failure("io_error", f"the operation failed: {type(error).__name__}: {error}"))


def _fail(output: int, failure: Failure) -> None:
    with suppress(BrokenPipeError):
        _send(output, _ERROR, wire.dumps({"code": failure.code, "message": failure.message}))


def _send(output: int, kind: bytes, data: bytes) -> None:
    view = memoryview(_RECORD.pack(kind, len(data)) + data)
    while view:
        view = view[os.write(output, view) :]
