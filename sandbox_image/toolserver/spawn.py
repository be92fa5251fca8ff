"""One shell command, from its spawn to what is told of it."""

from __future__ import annotations

import os
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from sandbox_image.toolserver.failures import Failure
from sandbox_image.toolserver.paths import WORKSPACE, Paths

BASH = "/bin/bash"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PRELUDE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "prelude.sh")
MAX_ARGUMENT = 100_000
"""A longer command goes by file; the kernel refuses a single argument above 131,071 bytes."""
_READ = 64 << 10
"""Small enough that the allocator does not map and unmap memory for every read."""
_READS = 8
"""Per turn of the loop, so that a flood leaves room for the frames of the worker."""
_SIGNALS = signal.valid_signals()


class Request(NamedTuple):
    """What `exec` is asked; sizes in bytes, see `Sandbox.exec` in worker/sandbox/base.py."""

    command: bytes
    cwd: str
    env: dict[str, str]
    timeout_s: float
    head_bytes: int
    tail_bytes: int
    flood_bytes: int


def base_env(paths: Paths) -> dict[str, str]:
    """The same for every command: nothing interactive, nothing of the server's own."""
    return {
        "PATH": PATH,
        "HOME": os.fsdecode(paths.folder(b"/home/agent")),
        "TMPDIR": os.fsdecode(paths.folder(b"/tmp")),
        "USER": "agent",
        "LOGNAME": "agent",
        "SHELL": BASH,
        "LC_CTYPE": "C.UTF-8",  # UTF-8 text; all of LANG would cost every bash 0.2 ms
        "TERM": "dumb",
        "CI": "1",
        "PAGER": "cat",
        "GIT_PAGER": "cat",
        "MANPAGER": "cat",
        "EDITOR": "true",
        "VISUAL": "true",
        "GIT_EDITOR": "true",
        "GIT_TERMINAL_PROMPT": "0",
        "DEBIAN_FRONTEND": "noninteractive",
        "PIP_NO_INPUT": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }


def enter(paths: Paths, cwd: str) -> bytes:
    """Steps into it, or into the workspace when it is gone; where that is for the kernel.

    posix_spawn takes no directory, so whoever calls stands in it for the moment of the spawn.
    """
    wanted = paths.real(os.fsencode(cwd))
    if wanted.startswith(b"/"):
        with suppress(OSError, ValueError):
            os.chdir(wanted)
            return wanted
    os.chdir(paths.workspace.fd)
    return paths.workspace.folder


def start_bash(argv: list[str | bytes], env: Mapping[str, str], file_actions: Sequence[tuple[int, int, int]]) -> int:
    """The pid of a bash in a session of its own, in the current directory, which is / afterwards."""
    try:
        return os.posix_spawn(
            BASH,
            argv,
            {**env, "BASH_ENV": PRELUDE},
            file_actions=file_actions,
            setsid=True,
            setsigmask=(),
            setsigdef=_SIGNALS,
        )
    except (OSError, ValueError) as error:  # ValueError: a NUL in the command or the environment
        raise Failure("spawn_failed", f"the command could not be started: {error}") from error
    finally:
        os.chdir("/")


class Command:
    """A running command. `fd` is its stdout and stderr; nobody ever waits for the end of that pipe, because a
    background child may hold it open."""

    def __init__(self, request: Request, paths: Paths, env: Mapping[str, str], sink: Callable[[bytes], None]) -> None:
        """Spawns it; `sink` gets the first `head_bytes` of its output. Failure `spawn_failed` or `no_space`."""
        self._request = request
        self._paths = paths
        self._sink = sink
        self._cwd = b""
        self._script: str | None = None
        self._tail: deque[bytes] = deque()
        self._tail_size = 0
        self._head_left = request.head_bytes
        self.total = 0
        self.ended = "exited"
        self.output_ended = False
        self._started = time.monotonic()
        self.deadline = self._started + request.timeout_s
        self.fd, write = os.pipe2(os.O_CLOEXEC)
        try:
            os.set_blocking(self.fd, False)
            self.pid = self._spawn(write, env)
        except BaseException:
            self.close()
            raise
        finally:
            os.close(write)

    def _spawn(self, output: int, env: Mapping[str, str]) -> int:
        argv: list[str | bytes] = ["bash", "-c", self._request.command]
        if len(self._request.command) > MAX_ARGUMENT:
            self._script = self._write_script()
            argv = ["bash", self._script]
        actions = [(os.POSIX_SPAWN_DUP2, output, 1), (os.POSIX_SPAWN_DUP2, output, 2)]
        self._cwd = enter(self._paths, self._request.cwd)
        return start_bash(argv, {**env, **self._request.env}, actions)

    def _write_script(self) -> str:
        folder = os.fsdecode(self._paths.folder(b"/tmp"))
        path = os.path.join(folder, f".command-{os.urandom(8).hex()}")
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                view = memoryview(self._request.command)
                while view:
                    view = view[os.write(fd, view) :]
            finally:
                os.close(fd)
        except OSError as error:
            with suppress(OSError):
                os.unlink(path)
            raise Failure("no_space", f"the command is long and could not be stored: {error}") from error
        return path

    def read(self) -> bool:
        """Takes output that is there; whether there is more. Sets `ended` when it has become a flood."""
        for _ in range(_READS):
            try:
                data = os.read(self.fd, _READ)
            except BlockingIOError:
                return False
            if not data:
                self.output_ended = True
                return False
            self._take(data)
            if self.total > self._request.flood_bytes:
                if self.ended == "exited":
                    self.ended = "flood"
                return False
        return True

    def _take(self, data: bytes) -> None:
        self.total += len(data)
        if self._head_left:
            head = data[: self._head_left]
            self._head_left -= len(head)
            self._sink(head)
            data = data[len(head) :]
        if not data:
            return
        self._tail.append(data)
        self._tail_size += len(data)
        while self._tail_size - len(self._tail[0]) >= self._request.tail_bytes:
            self._tail_size -= len(self._tail.popleft())

    def at_end(self) -> None:
        """bash has stopped in its exit trap: its directory can still be read; lets it go on."""
        with suppress(OSError):
            self._cwd = os.readlink(f"/proc/{self.pid}/cwd".encode())
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGCONT)

    def result(self, status: int, oom_killed: bool) -> tuple[bytes, dict[str, object]]:
        """The tail of the output and the answer, once everything it started is dead."""
        while self.read():
            pass
        code = os.waitstatus_to_exitcode(status)
        size = self._request.tail_bytes
        tail = b"".join(self._tail)[-size:] if size else b""
        return tail, {
            "exit_code": (code if code >= 0 else 128 - code) if self.ended == "exited" else None,
            "ended": self.ended,
            "oom_killed": oom_killed,
            "cwd": os.fsdecode(self._left_in()),
            "head": min(self.total, self._request.head_bytes),
            "total_bytes": self.total,
            "duration_ms": round((time.monotonic() - self._started) * 1000),
        }

    def _left_in(self) -> bytes:
        return self._paths.named(self._cwd) if os.path.isdir(self._cwd) else WORKSPACE

    def close(self) -> None:
        os.close(self.fd)
        if self._script is not None:
            with suppress(OSError):
                os.unlink(self._script)
