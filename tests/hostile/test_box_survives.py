"""What a command in a real box may try against the box itself: T05 to T08, T10, B22 and B25."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator

import pytest
from sandbox_kit import run, spec, text

from worker.sandbox.base import Sandbox
from worker.sandbox.docker import DockerProvider

pytestmark = pytest.mark.docker


@pytest.fixture
def box(docker_provider: DockerProvider, sandbox_image: str) -> Iterator[Sandbox]:
    asked = spec(sandbox_image)
    opened = docker_provider.open(asked)
    try:
        opened.claim(asked.task, deadline_s=300)
        yield opened
    finally:
        opened.close()


def alive(box: Sandbox) -> None:
    started = time.monotonic()
    assert text(box, "echo next") == "next\n"
    assert time.monotonic() - started < 5
    assert text(box, "ps -eo pid= | wc -l").strip() == "4"  # PID 1, bash, ps, wc


def test_t10_no_signal_harms_the_server(box: Sandbox) -> None:
    run(box, "for s in $(seq 1 64); do kill -s $s 1 2>/dev/null; done; true")
    alive(box)
    assert run(box, "kill -9 -1")[1].exit_code in (0, 1, 137)
    alive(box)
    run(box, "for i in $(seq 2000); do kill -CHLD 1; done")
    alive(box)


def test_t10_the_server_is_closed_to_tools(box: Sandbox) -> None:
    for path in ("fd/1", "fd/3", "mem", "environ", "maps", "cwd", "root", "oom_score_adj"):
        _, result = run(box, f"(cat /proc/1/{path} || ls /proc/1/{path}/) >/dev/null 2>&1 && echo x >/proc/1/{path}")
        assert result.exit_code != 0, path
    alive(box)


def test_t10_the_server_cannot_be_starved(box: Sandbox) -> None:
    before = text(box, "cat /proc/1/limits /proc/1/sched 2>/dev/null; ps -o ni=,cls=,rtprio= 1; taskset -p 1 2>&1")
    for command in (
        "prlimit --pid 1 --nofile=3",
        "renice 19 1",
        "chrt -i -p 0 1",
        "taskset -p 1 1",
        "ionice -c 3 -p 1",
        "python3 -c 'import os; os.setpriority(os.PRIO_USER, 0, 19)'",
    ):
        run(box, command)
    after = text(box, "cat /proc/1/limits 2>/dev/null; ps -o ni=,cls=,rtprio= 1; taskset -p 1 2>&1")
    assert after.splitlines()[-2:] == before.splitlines()[-2:]
    alive(box)


def test_t05_b25_a_fork_bomb_ends_with_its_call(box: Sandbox) -> None:
    _, result = run(box, "trap '' TERM; :(){ :|:& };: ; sleep 1; echo x", timeout_s=5)
    assert result.ended in ("exited", "timeout")
    alive(box)


HOG = """python3 -c 'x = []
while True: x.append(b"x" * (1 << 22))'"""


def test_t06_a_memory_hog_is_named(box: Sandbox) -> None:
    _, result = run(box, HOG)
    assert (result.exit_code, result.oom_killed) == (137, True)
    output, result = run(box, f"{HOG} || echo went on")
    assert (output.endswith(b"went on\n"), result.exit_code, result.oom_killed) == (True, 0, True)
    alive(box)
    assert run(box, "false")[1].oom_killed is False


def test_t07_b25_disk_and_inodes_are_bounded(box: Sandbox) -> None:
    output, _ = run(box, "head -c 20G /dev/zero >fill; stat -c %s fill; rm fill; truncate -s 1T sparse; rm -f sparse")
    assert b"No space left" in output
    assert max(int(line) for line in output.splitlines() if line.isdigit()) <= 192 << 20
    output, _ = run(box, "python3 -c \"for i in range(250000): open(f'f{i}', 'w').close()\" 2>&1; ls | wc -l")
    assert b"No space left" in output
    assert int(output.splitlines()[-1]) < 200_000
    run(box, "cd /; find /workspace -mindepth 1 -delete")
    alive(box)


def test_t08_a_gigabyte_of_output_costs_the_worker_nothing(box: Sandbox) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.monotonic()
    output, result = run(box, "yes | head -c 1G", flood_bytes=64 << 20)
    assert (result.ended, len(output)) == ("flood", 1 << 20)
    assert time.monotonic() - started < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 << 10
    alive(box)


def test_b22_orphans_are_reaped(box: Sandbox) -> None:
    program = (
        "import os, time\n"
        "for i in range(260):\n"
        "  p = os.fork()\n"
        "  if p == 0:\n"
        "    if os.fork() == 0:\n"
        "      time.sleep(.01); os._exit(0)\n"
        "    os._exit(0)\n"
        "  os.waitpid(p, 0)\n"
    )
    _, result = run(box, f"python3 -c '{program}'; ps -eo stat= | grep -c Z")
    assert result.ended == "exited"
    assert text(box, "echo a | cat | cat") == "a\n"


def test_t09_only_pid_1_is_left_after_each_call(box: Sandbox) -> None:
    run(box, "setsid nohup sleep 999 & (sleep 999 & (setsid sleep 999 &)); true")
    alive(box)


def test_what_looks_like_frames_is_output(box: Sandbox) -> None:
    output, _ = run(box, "printf '\\365PY\\001%.0s' $(seq 10000)")
    assert output == b"\xf5PY\x01" * 10_000
    alive(box)
