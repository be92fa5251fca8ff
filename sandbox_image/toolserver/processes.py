"""The processes of a box: what PID 1 owes the kernel, and their end.

Two ways to end everything that is not the server: as PID 1 `kill(-1)` reaches all there is; outside a PID
namespace (tests) the server is a child subreaper and ends its own descendants only.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import time
from contextlib import suppress

_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36
_KILL_WAIT_S = 8.0
"""Below the 10 s after which a worker gives a silent box up."""


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def set_dumpable(value: bool) -> None:
    """Not dumpable: our memory, environment and descriptors are closed to processes of the same user."""
    _prctl(_PR_SET_DUMPABLE, int(value))


def adopt_orphans() -> None:
    """What PID 1 gets from the kernel, for a server that is not PID 1."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def ignore_signals() -> None:
    """Ignores all signals that can be ignored but SIGCHLD: a tool shares our user and may send any."""
    for number in signal.valid_signals() - {signal.SIGCHLD, signal.SIGKILL, signal.SIGSTOP}:
        with suppress(OSError):  # the C library keeps some for itself
            signal.signal(number, signal.SIG_IGN)


def restore_signals() -> None:
    """The defaults again, for a forked job and what it starts."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        with suppress(OSError):
            signal.signal(number, signal.SIG_DFL)


def raise_oom_score() -> None:
    """The kernel takes this process before PID 1. It was forked from a non-dumpable one, whose files in /proc are
    root's; callers make sure that no tool runs in the moment in which it is dumpable."""
    set_dumpable(True)
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("500")
    set_dumpable(False)


class ChildSignal:
    """SIGCHLD as a descriptor to poll; pidfds do not work on every runtime."""

    def __init__(self) -> None:
        self.fd, self._write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)

    def clear(self) -> None:
        with suppress(BlockingIOError):
            while len(os.read(self.fd, 4096)) == 4096:
                pass


class Children:
    """All processes below the server. Those that are spared, with all below them, outlive `kill_all`."""

    def __init__(self, child_signal: ChildSignal) -> None:
        self._signal = child_signal
        self._is_init = os.getpid() == 1
        self._spared: set[int] = set()
        self._ended: dict[int, int] = {}
        """Wait statuses of spared ones, not yet asked for."""

    def spare(self, pid: int) -> None:
        """A child of ours that adopts all orphans below it."""
        self._spared.add(pid)

    def forsake(self, pid: int) -> None:
        """It is like any other from now on."""
        self._spared.discard(pid)

    def spared_status(self, pid: int) -> int | None:
        """None while it lives; told once."""
        return None if pid in self._spared else self._ended.pop(pid, signal.SIGKILL)

    def reap(self) -> tuple[dict[int, int], bool]:
        """Wait statuses of those that ended or stopped, and whether any child is left, a spared one too."""
        statuses: dict[int, int] = {}
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
            except ChildProcessError:
                return statuses, False
            if pid == 0:
                return statuses, True
            if pid not in self._spared:
                statuses[pid] = status
            elif not os.WIFSTOPPED(status):
                self._spared.remove(pid)
                self._ended[pid] = status

    def kill_all(self) -> dict[int, int]:
        """Ends and reaps every process but us and what is spared; returns their wait statuses.

        Orphans become our children when their parents die, so "no child left" means that nothing is left.
        TimeoutError when something cannot be killed: the box is then of no more use.
        """
        statuses: dict[int, int] = {}
        deadline = time.monotonic() + _KILL_WAIT_S
        while True:
            reaped, left = self.reap()
            statuses.update(reaped)
            # Twice: a tree that changes while it is read can hide a branch.
            if not left or (self._spared and not self._strays() and not self._strays()):
                return statuses
            if time.monotonic() > deadline:
                raise TimeoutError("a process cannot be killed")
            if time.monotonic() > deadline - _KILL_WAIT_S / 2:
                self._spared.clear()  # something forks faster than it can be picked out from among the spared
            self._signal.clear()
            self._kill_once()
            select.select([self._signal.fd], [], [], 0.02)

    def _kill_once(self) -> None:
        if self._is_init and not self._spared:
            with suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)
            return
        for pid in self._strays():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _strays(self) -> list[int]:
        return _descendants(os.getpid(), self._spared)


def _descendants(root: int, spared: set[int]) -> list[int]:
    """All below `root` but the spared ones and what is below these."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                parent = int(file.read().rpartition(b")")[2].split()[1])
                children.setdefault(parent, []).append(int(name))
    found: list[int] = []
    todo = [root]
    while todo:
        below = [pid for pid in children.get(todo.pop(), []) if pid not in spared]
        found += below
        todo += below
    return found


class OomCounter:
    """How often the kernel ended a process of this box for memory, from the cgroup's own count."""

    _FILES = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")

    def __init__(self) -> None:
        self._fd = -1
        if os.getpid() == 1:  # elsewhere these files speak of the whole machine
            for name in self._FILES:
                with suppress(OSError):
                    self._fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
                    break
        self._last = self._count()

    def _count(self) -> int:
        if self._fd < 0:
            return 0
        for line in os.pread(self._fd, 1024, 0).splitlines():
            key, _, value = line.partition(b" ")
            if key == b"oom_kill":
                return int(value)
        return 0

    def grew(self) -> bool:
        """Whether there were kills since the last question."""
        before, self._last = self._last, self._count()
        return self._last > before
