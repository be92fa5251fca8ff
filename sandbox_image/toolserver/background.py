"""Commands that outlive their call: each below a helper of its own, with the last of its output kept.

The helper is a fork of the server that adopts the orphans of its command (PR_SET_CHILD_SUBREAPER), so that all the
command starts stays below it, double forks too, and can be told from what other calls leave behind. It ends with the
command; what is then left of the tree is the server's and is killed like any other leftover.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from typing import NamedTuple, NoReturn

from sandbox_image.toolserver.failures import Failure
from sandbox_image.toolserver.paths import Paths
from sandbox_image.toolserver.processes import Children, adopt_orphans, restore_signals
from sandbox_image.toolserver.spawn import MAX_ARGUMENT, enter, start_bash

MAX_RUNNING = 8
MAX_ENDED = 16
"""Of these the last words can still be read; the oldest go first."""
KEPT_BYTES = 256 << 10
"""Of the output of each: its last ones."""
CANNOT_START = 126
"""The exit code where bash itself could not be started; the output then says why. bash's own for such a thing."""
_READ = 64 << 10
_READS = 8
"""Per turn of the loop, so that a flood leaves room for the frames of the worker."""


class Output(NamedTuple):
    """What a command said from `offset` on, and how it stands."""

    data: bytes
    offset: int
    """Of `data` in all of the output: later than what was asked for when that is no longer kept."""
    total_bytes: int
    state: str
    """`running`, `exited` or `killed`."""
    exit_code: int | None
    """Of one that exited; 128 + signal when a signal ended it."""


class Backgrounds:
    """All background commands of a box, by number."""

    def __init__(self, paths: Paths, children: Children, env: Mapping[str, str]) -> None:
        self._paths = paths
        self._children = children
        self._env = env
        self._commands: dict[int, _Command] = {}
        self._count = 0

    @property
    def running(self) -> bool:
        """Whether any tool may be alive although no call is in flight."""
        self.settle()
        return any(command.state == "running" for command in self._commands.values())

    def start(self, command: str, cwd: str, env: Mapping[str, str]) -> int:
        """Its number. Failure `too_many`, `too_large` or `spawn_failed`."""
        encoded = os.fsencode(command)
        if len(encoded) > MAX_ARGUMENT:
            raise Failure("too_large", f"a background command has at most {MAX_ARGUMENT:,} bytes; put it into a file")
        self.settle()
        if sum(one.state == "running" for one in self._commands.values()) >= MAX_RUNNING:
            raise Failure("too_many", f"{MAX_RUNNING} background commands are running; end one of them first")
        ended = [number for number, one in self._commands.items() if one.state != "running"]
        for number in ended[: max(0, len(ended) - MAX_ENDED + 1)]:
            self._commands.pop(number).close()
        environment = {**self._env, **env}

        def begin() -> int:
            enter(self._paths, cwd)
            return start_bash(["bash", "-c", encoded + b"\n"], environment, ())

        started = _Command(begin)
        self._children.spare(started.pid)
        self._count += 1
        self._commands[self._count] = started
        return self._count

    def output(self, number: int, offset: int, limit: int) -> Output:
        """What is kept of its output from `offset` on, at most `limit` bytes. Failure `not_found`."""
        command = self._find(number)
        self.settle()
        command.read()
        return command.output(offset, limit)

    def kill(self, number: int) -> None:
        """Ends it and all it started; nothing happens when it has ended. Failure `not_found`."""
        command = self._find(number)
        if command.state == "running":
            command.state = "killed"
            self._children.forsake(command.pid)
            self._children.kill_all()

    def kill_all(self) -> None:
        """Ends all of them: afterwards nothing but the server is alive."""
        for command in self._commands.values():
            if command.state == "running":
                command.state = "killed"
                self._children.forsake(command.pid)
        self._children.kill_all()

    def settle(self) -> None:
        """Takes note of those that have ended."""
        for command in self._commands.values():
            if command.state == "running" and (status := self._children.spared_status(command.pid)) is not None:
                command.end(status)

    def descriptors(self) -> dict[int, Callable[[], None]]:
        """What to wait for, and what to do when there is something to read."""
        return {one.fd: one.read for one in self._commands.values() if one.fd >= 0}

    def _find(self, number: int) -> _Command:
        command = self._commands.get(number)
        if command is None:
            raise Failure("not_found", f"there is no background command {number}")
        return command


class _Command:
    """One of them, seen from the server: its helper's pid, and the last of its output."""

    def __init__(self, start: Callable[[], int]) -> None:
        """Forks the helper, which does `start`. Failure `spawn_failed` when the box has no process left."""
        self.state = "running"
        self._exit_code: int | None = None
        self._kept = bytearray()
        self._total = 0
        self.fd, output = os.pipe2(os.O_CLOEXEC)
        try:
            self.pid = os.fork()
        except OSError as error:
            self.close()
            raise Failure("spawn_failed", f"the sandbox has no process left: {error.strerror}") from error
        else:
            if self.pid == 0:
                _help(start, output)
        finally:
            os.close(output)
        os.set_blocking(self.fd, False)

    def read(self) -> None:
        """Takes output that is there."""
        for _ in range(_READS):
            if self.fd < 0:
                return
            try:
                data = os.read(self.fd, _READ)
            except BlockingIOError:
                return
            if not data:
                self.close()
            self._total += len(data)
            self._kept += data
            del self._kept[: max(0, len(self._kept) - KEPT_BYTES)]

    def output(self, offset: int, limit: int) -> Output:
        first = self._total - len(self._kept)
        start = max(first, min(offset, self._total))
        with memoryview(self._kept)[start - first :][:limit] as view:
            return Output(bytes(view), start, self._total, self.state, self._exit_code)

    def end(self, status: int) -> None:
        code = os.waitstatus_to_exitcode(status)
        self.state, self._exit_code = "exited", code if code >= 0 else 128 - code

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def _help(start: Callable[[], int], output: int) -> NoReturn:
    """The helper's life. Never returns: the loop above us belongs to the server.

    It stays non-dumpable like the server it was forked from, for it knows all that one knew.
    """
    code = CANNOT_START
    try:
        restore_signals()
        adopt_orphans()
        os.dup2(output, 1)
        os.dup2(output, 2)
        try:
            main = start()
        except Failure as failure:
            os.write(1, f"{failure.message}\n".encode(errors="replace"))
        else:
            os.closerange(0, os.sysconf("SC_OPEN_MAX"))  # the protocol's pipes and the outputs of the others
            code = _outcome(main)
    finally:
        os._exit(code)


def _outcome(main: int) -> int:
    """Reaps whatever ends below us until the command itself does; its exit code."""
    while True:
        pid, status = os.waitpid(-1, os.WUNTRACED)
        if pid != main:
            continue
        if os.WIFSTOPPED(status):  # in the exit trap of the prelude; its directory is of no interest here
            os.kill(main, signal.SIGCONT)
            continue
        code = os.waitstatus_to_exitcode(status)
        return code if code >= 0 else 128 - code
