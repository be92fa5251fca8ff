"""What every box must do, on the local double and on the engine: commands and how they end."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from sandbox_kit import pack, pieces, run, spec, text

from service.errors import SandboxError
from worker.sandbox.base import Sandbox, ToolFailure
from worker.sandbox.local import LocalProvider


def seconds(number: int) -> int:
    """A time to sleep that no other process of this machine sleeps for: the local box shares it."""
    return 7_000_000 + os.getpid() * 10 + number


def left(box: Sandbox, first: int, last: int) -> bytes:
    """How many processes sleep for one of these times."""
    choices = "|".join(str(seconds(number)) for number in range(first, last + 1))
    return run(box, f"cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep -cE '^({choices})$'")[0]


def code(box: Sandbox, command: str) -> int | None:
    return run(box, command)[1].exit_code


# ------------------------------------------------------------------------------------------- how commands end


def test_output_exit_code_and_size_of_a_command(box: Sandbox) -> None:
    output, result = run(box, "echo out; echo err >&2; exit 3")
    assert output == b"out\nerr\n"
    assert (result.exit_code, result.ended, result.oom_killed) == (3, "exited", False)
    assert (result.tail, result.total_bytes, result.cwd) == (b"", 8, "/workspace")


def test_b01_a_background_child_holds_no_call_open(box: Sandbox) -> None:
    for command, said in [
        ("sleep 300 & echo done", b"done\n"),
        ("(sleep 0.2; while :; do echo tick; sleep .2; done) & echo fg", b"fg\n"),
        ("nohup python3 -m http.server 9876 >/dev/null 2>&1 & echo up", b"up\n"),
        ("echo next", b"next\n"),
    ]:
        started = time.monotonic()
        output, result = run(box, command)
        assert (output, result.exit_code) == (said, 0)
        assert time.monotonic() - started < 2


def test_b02_t11_a_timeout_ends_the_whole_tree(box: Sandbox) -> None:
    started = time.monotonic()
    command = f"echo begun; setsid sleep {seconds(1)} >/dev/null 2>&1 & trap '' TERM HUP; sleep {seconds(2)}"
    output, result = run(box, command, timeout_s=1)
    assert time.monotonic() - started < 4
    assert (output, result.exit_code, result.ended) == (b"begun\n", None, "timeout")
    assert left(box, 1, 2) == b"0\n"


def test_t09_daemons_and_double_forks_do_not_survive(box: Sandbox) -> None:
    run(box, f"setsid nohup sleep {seconds(3)} & (sleep {seconds(4)} & (setsid sleep {seconds(5)} &)); true")
    assert left(box, 3, 5) == b"0\n"


def test_b03_readers_of_stdin_and_tty_get_nothing(box: Sandbox) -> None:
    started = time.monotonic()
    assert run(box, "cat")[0] == b""
    assert code(box, "python3") == 0
    assert run(box, "read -p 'sure? ' x; echo \"got=[$x] rc=$?\"")[0] == b"got=[] rc=1\n"
    assert code(box, "head -c1 </dev/tty") == 1
    assert text(box, "echo next") == "next\n"
    assert time.monotonic() - started < 5


def test_b04_no_command_harms_the_next(box: Sandbox) -> None:
    assert code(box, "set -euo pipefail") == 0
    assert code(box, "false") == 1
    assert text(box, "echo A") == "A\n"
    assert code(box, "exit 3") == 3
    assert text(box, "echo B") == "B\n"
    assert code(box, "exec true") == 0
    assert code(box, "kill -9 $$") == 137
    assert code(box, "set -e; false; echo not here") == 1
    assert text(box, "echo C") == "C\n"


def test_b06_any_bytes_come_through(box: Sandbox) -> None:
    assert run(box, "printf '\\xf0\\xff\\x00ok\\xc3'")[0] == b"\xf0\xff\0ok\xc3"
    assert len(run(box, "head -c 4096 /bin/ls")[0]) == 4096
    assert text(box, "echo café ☃") == "café ☃\n"


def test_b09_head_is_streamed_tail_is_kept_the_rest_counted(box: Sandbox) -> None:
    output, result = run(box, "seq 1 100000", head_bytes=10, tail_bytes=13)
    assert output == b"1\n2\n3\n4\n5\n"
    assert (result.tail, result.total_bytes) == (b"\n99999\n100000\n"[1:], 588895)
    output, result = run(box, "printf 0123456789", head_bytes=7, tail_bytes=5)
    assert (output, result.tail, result.total_bytes) == (b"0123456", b"789", 10)


def test_b09_an_endless_output_is_ended(box: Sandbox) -> None:
    output, result = run(box, "yes", head_bytes=1 << 20, tail_bytes=4, flood_bytes=8 << 20)
    assert (len(output), result.tail) == (1 << 20, b"y\ny\n")
    assert (result.exit_code, result.ended) == (None, "flood")
    assert result.total_bytes >= 8 << 20


def test_b10_a_long_command_goes_by_file(box: Sandbox) -> None:
    output, result = run(box, f"echo {'x' * 200_000}; pwd >&2; cd /usr", head_bytes=200_001)
    assert output == b"x" * 200_000 + b"\n"
    assert (result.exit_code, result.cwd) == (0, "/usr")
    assert text(box, "ls -A $TMPDIR") == ""


@pytest.mark.parametrize(
    ("command", "said", "exit_code"),
    [
        ("cat <<'EOF'\nhello\nEOF", b"hello\n", 0),
        ("echo hi # note", b"hi\n", 0),
        ("echo hi \\", b"hi\n", 0),
        ("echo next; (exit 5)", b"next\n", 5),
        ("echo a\n\n", b"a\n", 0),
    ],
)
def test_b11_awkward_ends(box: Sandbox, command: str, said: bytes, exit_code: int) -> None:
    output, result = run(box, command)
    assert (output, result.exit_code) == (said, exit_code)


def test_b11_syntax_errors_are_bashs_own(box: Sandbox) -> None:
    for command in ("echo 'abc", "if true; then"):
        output, result = run(box, command)
        assert result.exit_code == 2
        assert output.startswith(b"bash: -c: line ")
    output, result = run(box, "cat <<X\nabc")
    assert output.endswith(b"\nabc\n")
    assert result.exit_code == 0


def test_b11_tracing_shows_nothing_of_ours(box: Sandbox) -> None:
    assert run(box, "set -x; cd /usr; true")[0] == b"+ cd /usr\n+ true\n"


@pytest.mark.parametrize(
    ("command", "exit_code"),
    [
        ("echo a | grep zzz", 1),
        ("true", 0),
        ("nosuchcmd", 127),
        ("sh -c 'kill -9 $$'", 137),
        ("false | true", 0),
        ("exit 300", 44),
    ],
)
def test_b19_exit_codes(box: Sandbox, command: str, exit_code: int) -> None:
    assert code(box, command) == exit_code


def test_the_working_directory_is_carried_as_data(box: Sandbox) -> None:
    result = run(box, "mkdir -p 'a b/c'; cd 'a b/c'")[1]
    assert result.cwd == "/workspace/a b/c"
    assert text(box, 'basename "$PWD"', cwd=result.cwd) == "c\n"
    assert run(box, "cd ..; exit 4", cwd=result.cwd)[1].cwd == "/workspace/a b"
    assert run(box, "cd /; false")[1].cwd == "/"
    assert run(box, "(cd /usr)", cwd=result.cwd)[1].cwd == result.cwd
    assert run(box, "trap 'echo bye' EXIT; cd /usr", cwd=result.cwd)[0] == b"bye\n"


def test_a_working_directory_that_is_gone_becomes_the_workspace(box: Sandbox) -> None:
    assert run(box, "mkdir d; cd d; rmdir ../d")[1].cwd == "/workspace"
    assert run(box, "true", cwd="/workspace/d")[1].cwd == "/workspace"
    assert run(box, "true", cwd="not absolute")[1].cwd == "/workspace"


def test_the_environment_is_fixed_and_the_callers(box: Sandbox) -> None:
    shown = "echo $CI $TERM $PAGER $GIT_PAGER $A; echo ${BASH_ENV-unset}; bash -c 'echo ${BASH_ENV-unset}'"
    assert text(box, shown, env={"A": "1"}) == "1 dumb cat cat 1\nunset\nunset\n"
    assert text(box, "echo $A-", env={}) == "-\n"
    assert text(box, "echo $PATH", env={"PATH": "/bin"}) == "/bin\n"


def test_a_command_or_environment_that_cannot_be_is_refused(box: Sandbox) -> None:
    for command, env in [("echo a\0b", {}), ("true", {"A": "x\0"}), ("true", {"A": "x" * 200_000})]:
        with pytest.raises(ToolFailure) as caught:
            run(box, command, env=env)
        assert caught.value.code == "spawn_failed"
    assert text(box, "echo next") == "next\n"


def test_a_cancel_from_another_thread_acts_at_once(box: Sandbox) -> None:
    timer = threading.Timer(0.3, box.cancel)
    timer.start()
    started = time.monotonic()
    output, result = run(box, "echo a; trap '' TERM INT; sleep 60")
    timer.join()
    assert time.monotonic() - started < 3
    assert (output, result.exit_code, result.ended) == (b"a\n", None, "cancelled")
    box.cancel()  # nothing runs: nothing happens
    assert text(box, "echo next") == "next\n"


def test_a_call_that_is_given_up_is_killed(box: Sandbox) -> None:
    steps = box.exec(f"echo first; sleep {seconds(6)}")
    assert next(steps) == b"first\n"
    steps.close()
    assert left(box, 6, 6) == b"0\n"


def test_a_slow_reader_loses_nothing(box: Sandbox) -> None:
    steps = box.exec("head -c 3000000 /dev/zero | tr '\\0' x", head_bytes=3_000_000)
    size = len(next(steps))
    time.sleep(0.5)  # more than a window waits meanwhile
    for piece in steps:
        size += len(piece)
    assert size == 3_000_000


def test_a_command_that_stops_itself_goes_on(box: Sandbox) -> None:
    assert text(box, "kill -STOP $$; echo on") == "on\n"


def test_read_only_calls_from_several_threads_each_get_their_own_answer(box: Sandbox) -> None:
    box.load([pack({f"d/{n}": f"word{n}\n".encode() * (n * 2_000 + 1) for n in range(8)})])

    def look(n: int) -> tuple[bytes, int, int, int]:
        content = box.read(f"d/{n}").data
        return content, box.glob(f"d/{n}").total, box.glob("**/*").total, box.list("d").total

    with ThreadPoolExecutor(8) as pool:
        for n, told in enumerate(pool.map(look, [n % 8 for n in range(32)])):
            lines = n % 8 * 2_000 + 1
            assert told == (f"word{n % 8}\n".encode() * lines, 1, 8, 8)
    assert text(box, "echo next") == "next\n"


# -------------------------------------------------------------------------------------------- the box itself


def test_nothing_is_done_before_the_claim(tmp_path: Path) -> None:
    with closing(LocalProvider(tmp_path).open(spec())) as box, pytest.raises(ToolFailure) as caught:
        box.read("a")
    assert caught.value.code == "not_claimed"


def test_a_box_has_one_task(box: Sandbox) -> None:
    with pytest.raises(ToolFailure) as caught:
        box.claim("task_other", deadline_s=10)
    assert caught.value.code == "bad_request"


def test_past_its_deadline_a_box_ends_and_takes_all_with_it(tmp_path: Path) -> None:
    with closing(LocalProvider(tmp_path).open(spec())) as box:
        box.claim("task_x", deadline_s=0.5)
        started = time.monotonic()
        with pytest.raises(SandboxError, match="has ended"):
            run(box, "sleep 60")
        assert time.monotonic() - started < 5


def test_a_closed_box_says_so_and_closes_again(box: Sandbox) -> None:
    box.close()
    box.close()
    with pytest.raises(SandboxError):
        box.read("a")
    box.cancel()


def test_a_box_that_dies_ends_the_call_in_flight(box: Sandbox) -> None:
    threading.Timer(0.3, box.close).start()
    started = time.monotonic()
    with pytest.raises(SandboxError):
        run(box, "sleep 60")
    assert time.monotonic() - started < 20


def test_what_it_says_of_itself(box: Sandbox) -> None:
    assert box.info.python.startswith("3.")
    assert "git" in box.info.tools


# --------------------------------------------------------------------------------------- workspace and changes


def test_a_workspace_comes_in_as_it_is(box: Sandbox) -> None:
    long = "deep/" * 30 + "f"
    tar = pack({"a.txt": b"A", "run.sh": b"#!/bin/sh\necho ran\n", "l": "a.txt", long: b"x" * 5000, "empty": b""})
    report = box.load(pieces(tar, 777))
    assert (report.files, report.bytes) == (5, 1 + 19 + 5000)
    assert text(box, "cat l; ./run.sh; stat -c %a a.txt run.sh; wc -c <" + long) == "Aran\n644\n755\n5000\n"


def test_a_second_load_and_a_bad_one_are_refused(box: Sandbox) -> None:
    with pytest.raises(ToolFailure) as caught:
        box.load([b"not a tar at all" * 100])
    assert caught.value.code == "bad_request"
    with pytest.raises(ToolFailure, match="not empty"):
        box.load([pack({})])


def test_a_load_that_fails_early_is_not_sent_to_its_end(box: Sandbox) -> None:
    sent = 0

    def endless() -> Iterator[bytes]:
        nonlocal sent
        while True:
            sent += 1
            yield b"\xff" * 100_000

    with pytest.raises(ToolFailure):
        box.load(endless())
    assert sent < 100


def test_changes_are_told_against_what_was_loaded(box: Sandbox) -> None:
    box.load([pack({"same": b"1", "edited": b"2", "gone": b"3"})])
    assert b"same" not in b"".join(box.changes())
    run(box, "echo new >edited; rm gone; echo more >added")
    told = b"".join(box.changes())
    assert b"new\n" in told
    assert b"more\n" in told
    assert b"gone" in told
    assert b"same" not in told


def test_a_change_set_larger_than_the_window_streams(box: Sandbox) -> None:
    run(box, "head -c 5000000 /dev/urandom >big")
    size = 0
    for piece in box.changes():
        size += len(piece)
    assert size > 5_000_000
    steps = iter(box.changes())
    next(steps)
    steps.close()  # type: ignore[attr-defined]
    assert text(box, "echo next") == "next\n"
