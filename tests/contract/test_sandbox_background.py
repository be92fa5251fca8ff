"""Commands in the background, on the local double and on the engine: what outlives a call, and what ends it."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable

import pytest
from sandbox_kit import pack, run, text

from worker.llm.messages import ToolCall
from worker.sandbox.base import BackgroundOutput, Sandbox, ToolFailure
from worker.tools.base import Answer
from worker.tools.registry import Prepared, build_toolbox


def seconds(number: int) -> int:
    """A time to sleep that no other process of this machine sleeps for: the local box shares it."""
    return 6_000_000 + os.getpid() * 10 + number


def left(box: Sandbox, *numbers: int) -> bytes:
    """How many processes sleep for one of these times."""
    choices = "|".join(str(seconds(number)) for number in numbers)
    return run(box, f"cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep -cE '^({choices})$'")[0]


def until(box: Sandbox, number: int, true: Callable[[BackgroundOutput], bool]) -> BackgroundOutput:
    deadline = time.monotonic() + 20
    while not true(said := box.output(number)):
        assert time.monotonic() < deadline, said
        time.sleep(0.02)
    return said


def ended(said: BackgroundOutput) -> bool:
    return said.state != "running"


def test_it_survives_the_calls_after_it_and_its_output_comes_by_offset(box: Sandbox) -> None:
    number = box.background("echo one; until [ -e go ]; do sleep 0.02; done; echo two; until [ -e end ]; do :; done")
    assert until(box, number, lambda said: said.total_bytes == 4) == BackgroundOutput(b"one\n", 0, 4, "running", None)
    assert text(box, "touch go; echo call") == "call\n"
    until(box, number, lambda said: said.total_bytes == 8)
    assert box.output(number, offset=4) == BackgroundOutput(b"two\n", 4, 8, "running", None)
    assert box.output(number, offset=8).data == b""
    text(box, "touch end")
    until(box, number, ended)
    assert box.output(number, offset=6) == BackgroundOutput(b"o\n", 6, 8, "exited", 0)


def test_daemons_of_ordinary_calls_still_die_beside_it(box: Sandbox) -> None:
    box.background(f"(setsid sleep {seconds(1)} &) ; sleep {seconds(2)}")
    deadline = time.monotonic() + 20
    while left(box, 1, 2) != b"2\n":
        assert time.monotonic() < deadline
    run(box, f"setsid nohup sleep {seconds(3)} & (sleep {seconds(4)} & (setsid sleep {seconds(5)} &)); true")
    assert left(box, 3, 4, 5) == b"0\n"
    run(box, f"(setsid sleep {seconds(3)} &); sleep 60", timeout_s=0.5)
    assert left(box, 3) == b"0\n"
    assert left(box, 1, 2) == b"2\n"


def test_kill_ends_its_whole_tree_and_no_other(box: Sandbox) -> None:
    first = box.background(f"trap '' TERM; (setsid sleep {seconds(1)} &); echo up; sleep {seconds(2)}")
    second = box.background(f"sleep {seconds(3)}")
    until(box, first, lambda said: said.data == b"up\n")
    box.kill(first)
    assert box.output(first) == BackgroundOutput(b"up\n", 0, 3, "killed", None)
    assert left(box, 1, 2) == b"0\n"
    assert (left(box, 3), box.output(second).state) == (b"1\n", "running")
    box.kill(first)


def test_what_a_command_that_ended_left_behind_goes_too(box: Sandbox) -> None:
    number = box.background(f"(setsid sleep {seconds(1)} >/dev/null 2>&1 &); exit 3")
    assert until(box, number, ended) == BackgroundOutput(b"", 0, 0, "exited", 3)
    assert left(box, 1) == b"0\n"


def test_how_it_ended_is_told_like_bash_tells_it(box: Sandbox) -> None:
    for command, exit_code in (
        ("exit 7", 7),
        ("kill -9 $$", 137),
        ("nosuchcmd 2>/dev/null", 127),
        ("kill -STOP $$", 0),
    ):
        number = box.background(command)
        assert until(box, number, ended) == BackgroundOutput(b"", 0, 0, "exited", exit_code)


def test_it_has_the_directory_the_environment_and_no_input(box: Sandbox) -> None:
    text(box, "mkdir d")
    number = box.background('basename "$PWD"; echo $CI $A; cat', cwd="/workspace/d", env={"A": "x" * 40_000})
    assert until(box, number, ended).data == b"d\n1 " + b"x" * 40_000 + b"\n"
    number = box.background("basename $PWD", cwd="/workspace/none")
    assert until(box, number, ended).data == b"workspace\n"


def test_only_the_last_of_a_flood_is_kept(box: Sandbox) -> None:
    number = box.background("head -c 3000000 /dev/zero | tr '\\0' x; echo end")
    until(box, number, ended)
    said = box.output(number)
    assert (said.total_bytes, said.offset, len(said.data)) == (3_000_004, 3_000_004 - (256 << 10), 256 << 10)
    assert said.data.endswith(b"xend\n")
    assert box.output(number, offset=3_000_000).data == b"end\n"
    endless = box.background("yes")
    started = time.monotonic()
    assert text(box, "echo prompt") == "prompt\n"
    assert time.monotonic() - started < 5
    box.kill(endless)


def test_at_most_eight_at_a_time(box: Sandbox) -> None:
    numbers = [box.background("sleep 300") for _ in range(8)]
    assert numbers == list(range(1, 9))
    with pytest.raises(ToolFailure) as caught:
        box.background("sleep 300")
    assert caught.value.code == "too_many"
    box.kill(3)
    assert box.background("true") == 9


def test_what_is_not_there_or_cannot_be_is_refused(box: Sandbox) -> None:
    for ask in (lambda: box.output(1), lambda: box.kill(1)):
        with pytest.raises(ToolFailure) as caught:
            ask()
        assert (caught.value.code, caught.value.message) == ("not_found", "there is no background command 1")
    with pytest.raises(ToolFailure) as caught:
        box.background("x" * 100_001)
    assert caught.value.code == "too_large"
    said = until(box, box.background("true", env={"A": "x" * 200_000}), ended)
    assert (said.exit_code, said.data[:33]) == (126, b"the command could not be started:")


def test_the_export_ends_it_first_and_sees_what_it_wrote(box: Sandbox) -> None:
    box.load([pack({"a": b"1"})])
    number = box.background(f"(setsid sleep {seconds(1)} &); while :; do echo x >>log; done")
    text(box, "until [ -e log ]; do :; done")
    first = b"".join(box.changes())
    assert b"log" in first
    assert box.output(number).state == "killed"
    assert b"".join(box.changes()) == first
    assert left(box, 1) == b"0\n"


def test_the_output_of_those_that_ended_long_ago_is_forgotten(box: Sandbox) -> None:
    for _ in range(18):
        until(box, box.background("true"), ended)
    with pytest.raises(ToolFailure):
        box.output(1)
    assert box.output(18).state == "exited"


def test_read_only_calls_work_beside_it(box: Sandbox) -> None:
    box.load([pack({"a.txt": b"1"})])
    box.background("sleep 300")
    assert (box.read("a.txt").data, box.glob("*.txt").total) == (b"1", 1)
    assert box.write("b.txt", b"2", overwrite=False).created


def test_background_bash_through_the_tools(box: Sandbox) -> None:
    toolbox = build_toolbox(box, env={}, command_timeout_s=20, store_artifact=lambda *_: None)

    def use(tool: str, **arguments: object) -> Answer:
        prepared = toolbox.prepare(ToolCall("c", tool, json.dumps(arguments)))
        assert isinstance(prepared, Prepared)
        steps = toolbox.execute(prepared)
        while True:
            try:
                next(steps)
            except StopIteration as stop:
                answer: Answer = stop.value
                return answer

    begun = use("bash", command="until [ -e go ]; do sleep 0.02; done; echo gone >said; sleep 300", background=True)
    assert begun.text.startswith("Started in the background as 1.")
    use("bash", command="touch go; until [ -s said ]; do sleep 0.02; done")
    assert "gone" in use("read_file", path="said").text
    assert re.fullmatch(r"\(no new output\)\n\[running for \d+\.\d s\]", use("bash_output", id=1).text)
    assert use("bash_kill", id=1).text.endswith("[killed: the command and everything it started]")


@pytest.mark.parametrize("box", [pytest.param("docker", marks=pytest.mark.docker)], indirect=True)
def test_a_fork_bomb_beside_it_costs_at_most_the_background(box: Sandbox) -> None:
    box.background("sleep 300")
    run(box, ":(){ :|:& };:", timeout_s=1)
    assert text(box, "echo next") == "next\n"


@pytest.mark.parametrize("box", [pytest.param("docker", marks=pytest.mark.docker)], indirect=True)
def test_the_helper_is_as_closed_as_the_server(box: Sandbox) -> None:
    number = box.background("echo $PPID; sleep 300")
    helper = until(box, number, lambda said: said.total_bytes > 0).data.decode().strip()
    assert text(box, f"stat -c %U /proc/{helper}/environ /proc/{helper}/fd") == "root\nroot\n"
    assert run(box, f"cat /proc/{helper}/environ; ls /proc/{helper}/fd; head -c1 /proc/{helper}/mem")[1].exit_code == 1
