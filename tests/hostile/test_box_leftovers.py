"""What a command may leave behind to spoil the calls after it, and the patch: memory that is no process's, closed
folders, names that read as others, FIFOs where programs look for files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sandbox_kit import pack, run, spec, text

from sandbox_image.toolserver import operations
from sandbox_image.toolserver.calls import Call
from sandbox_image.toolserver.jobs import Job
from sandbox_image.toolserver.wire import loads
from worker.sandbox.base import Match, Sandbox
from worker.sandbox.docker import DockerProvider

Open = Callable[..., Any]


@pytest.fixture
def opened(docker_provider: DockerProvider, sandbox_image: str) -> Open:
    @contextmanager
    def open_box(**sizes: int) -> Iterator[Sandbox]:
        asked = spec(sandbox_image, **sizes)
        box = docker_provider.open(asked)
        try:
            box.claim(asked.task, deadline_s=300)
            yield box
        finally:
            box.close()

    return open_box


SHARED = """python3 -c '
import ctypes
libc = ctypes.CDLL(None)
libc.shmat.restype = ctypes.c_void_p
for i in range(400):
    at = libc.shmat(libc.shmget(0, 1 << 20, 0o1600), None, 0)
    ctypes.memset(at, 1, 1 << 20)
'"""
OTHERS = """python3 -c '
import ctypes
libc = ctypes.CDLL(None)
assert libc.semget(0, 9, 0o1600) >= 0
assert libc.msgget(0, 0o1600) >= 0
'; cat /proc/sysvipc/* | wc -l"""


@pytest.mark.docker
def test_t06_shared_memory_ends_with_its_call(opened: Open) -> None:
    """It is no process's: with enough of it left behind the kernel took PID 1, and with it the box and its patch."""
    with opened(memory_mb=128, disk_mb=64) as box:
        for _ in range(3):
            assert run(box, SHARED)[1].oom_killed
        assert text(box, OTHERS) == "5\n"  # three lines of titles and the two
        assert text(box, "cat /proc/sysvipc/* | wc -l; ls /dev/mqueue") == "3\n"
        assert box.write("f", bytes(5_000_000), overwrite=True).created
        assert len(b"".join(box.changes())) > 5_000_000


@pytest.mark.docker
def test_a_workspace_closed_by_a_command_is_open_to_the_next_call(opened: Open) -> None:
    with opened() as box:
        box.load([pack({"a.txt": b"hi"})])
        run(box, "echo new >b.txt; chmod 000 /workspace /home/agent")
        assert box.read("a.txt").data == b"hi"
        assert text(box, "ls; stat -c %a /workspace /home/agent") == "a.txt\nb.txt\n700\n700\n"
        assert b"b.txt" in b"".join(box.changes())


@pytest.mark.docker
def test_a_match_is_told_under_the_whole_name_of_its_file(opened: Open) -> None:
    with opened() as box:
        run(
            box,
            r"""echo 'the README'>README.md; echo needle >$'x\nREADME.md'; printf 'needle\n\0' >bin; mkdir $'d\n'
            echo needle >$'d\n/f'; echo needle >n""",
        )
        assert set(box.search("needle").matches) == {
            Match("x\nREADME.md", 1, "needle"),
            Match("d\n/f", 1, "needle"),
            Match("n", 1, "needle"),
        }


def test_a_look_that_takes_too_long_is_refused_before_the_worker_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A FIFO called .gitignore holds ripgrep for ever, and a hundred thousand deep folders a glob for minutes."""
    call = Call(1, "search", {}, has_body=False)
    job = Job(lambda stream: iter(()), ())  # type: ignore[arg-type,return-value]
    running = operations._Job(call, job)
    try:
        assert running.deadline is not None
        running.overdue()
        assert loads(call.result or b"")["error"]["code"] == "io_error"
        assert operations._Job(Call(2, "changes", {}, has_body=False), job).deadline is None
    finally:
        running.close()
