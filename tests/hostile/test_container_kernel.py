"""T03: what the kernel lets a tool do, asked from inside a real box (kernel_probe.py), against one exact table."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from worker.sandbox.base import BoxSpec, ExecResult, Sandbox
from worker.sandbox.docker import DockerProvider

pytestmark = pytest.mark.docker

PROBE = (Path(__file__).parent / "kernel_probe.py").read_bytes()

ALLOWED = {
    "own limits", "own nice", "own affinity", "socket inet", "socket inet6 udp", "socket unix",
    "socket netlink route", "socketpair unix", "fifo",
}  # fmt: skip
OTHER_ERRORS = {
    # So that the C library falls back instead of giving up.
    "clone3": {"ENOSYS"},
    "io_uring_setup": {"ENOSYS"},
    "a call of the future": {"ENOSYS"},
    # Refused by the file system or by the server being non-dumpable, not by seccomp.
    "write core_pattern": {"EACCES", "EROFS"},
    "write memory limit": {"EACCES", "EROFS", "ENOENT"},  # cgroup v2 has no such file
    "write oom_score_adj of 1": {"EACCES"},
    "lower own oom_score_adj": {"EACCES"},
    "write memory of 1": {"EACCES"},
    "write stdout of 1": {"EACCES"},
    "read environ of 1": {"EACCES"},
    "read memory map of 1": {"EACCES"},
    "list descriptors of 1": {"EACCES"},
    "read kcore": {"EACCES", "ENOENT", "ENODATA"},
    "read shadow": {"EACCES"},
    "write the tool server": {"EACCES", "EROFS"},
    "write /etc": {"EACCES", "EROFS"},
    "make in /": {"EROFS"},
}


def run(box: Sandbox, command: str) -> tuple[ExecResult, str]:
    output = b""
    call = box.exec(command, timeout_s=60)
    while True:
        try:
            output += next(call)
        except StopIteration as stop:
            return stop.value, output.decode()


@pytest.fixture(scope="module")
def box(docker_provider: DockerProvider, sandbox_image: str) -> Iterator[Sandbox]:
    task = f"task_{uuid.uuid4().hex}"
    opened = docker_provider.open(
        BoxSpec(task=task, run=1, image=sandbox_image, cpus=1, memory_mb=512, disk_mb=128, pids=128)
    )
    try:
        opened.claim(task, deadline_s=120)
        yield opened
    finally:
        opened.close()


def test_t03_every_attempt_ends_as_the_table_says(box: Sandbox) -> None:
    box.write("/tmp/probe.py", PROBE, overwrite=True)
    result, output = run(box, "python3 -I /tmp/probe.py")
    assert result.exit_code == 0, output
    found: dict[str, str] = json.loads(output)
    expected = {name: {"ok"} if name in ALLOWED else OTHER_ERRORS.get(name, {"EPERM"}) for name in found}
    wrong = {name: word for name, word in found.items() if word not in expected[name]}
    assert wrong == {}
    assert ALLOWED | set(OTHER_ERRORS) <= set(found)


def test_ordinary_work_goes_on_under_the_profile(box: Sandbox) -> None:
    program = (
        "import asyncio, multiprocessing, socket, threading, concurrent.futures as f\n"
        "t = threading.Thread(target=print, args=('thread',)); t.start(); t.join()\n"
        "print(multiprocessing.Pool(2).map(abs, [-1, 2]))\n"
        "print(asyncio.run(asyncio.sleep(0, 'loop')), [name for _, name in socket.if_nameindex()])\n"
        "s = socket.create_server(('127.0.0.1', 0)); socket.create_connection(s.getsockname()); print('loopback')\n"
    )
    box.write("/tmp/work.py", program.encode(), overwrite=True)
    result, output = run(
        box,
        "python3 /tmp/work.py && git init -q /tmp/r && cd /tmp/r && echo x > f && git add f && "
        "git -c user.name=n -c user.email=e@e commit -qm m && git log --format=%s && rg -c x . && nice -n 5 echo nice",
    )
    assert (result.exit_code, output) == (0, "thread\n[1, 2]\nloop ['lo']\nloopback\nm\n./f:1\nnice\n")


def test_a_sparse_giant_and_a_full_disk_stop_at_the_limit(box: Sandbox) -> None:
    result, output = run(
        box,
        "cd /workspace; python3 -c \"open('huge', 'wb').truncate(1 << 40)\" 2>&1 | grep -o 'File too large'; "
        "dd if=/dev/zero of=full bs=1M count=1024 2>&1 | grep -o 'No space left'; "
        "df --output=avail -B1 /workspace | tail -n 1 | tr -d ' '; rm -f full huge",
    )
    assert (result.exit_code, output) == (0, "File too large\nNo space left\n0\n")
