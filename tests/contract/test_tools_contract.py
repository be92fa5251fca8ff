"""The whole tool layer over a box: the same answers from the subprocess double and from the real engine.

The cases follow known faults of other agents (background children, awkward endings, line ends, link tricks …);
their inputs are our own.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from service.contracts import new_id
from service.events import ToolOutput
from worker.llm.messages import ToolCall
from worker.sandbox.base import BoxSpec, ExecResult, Sandbox, SandboxProvider
from worker.sandbox.local import LocalProvider
from worker.tools.base import Answer
from worker.tools.registry import Toolbox, build_toolbox


@dataclass
class Desk:
    """A box with its tools, used the way the loop does."""

    box: Sandbox
    toolbox: Toolbox
    artifacts: dict[str, bytes]
    streamed: list[str] = field(default_factory=list)

    def use(self, tool: str, **arguments: Any) -> Answer:
        prepared = self.toolbox.prepare(ToolCall("c", tool, json.dumps(arguments)))
        if isinstance(prepared, Answer):
            return prepared
        steps = self.toolbox.execute(prepared)
        while True:
            try:
                event = next(steps)
            except StopIteration as stop:
                answer: Answer = stop.value
                assert len(answer.text) <= 16_000
                answer.text.encode()
                return answer
            if isinstance(event, ToolOutput):
                self.streamed.append(event.text)

    def bash(self, command: str, **arguments: Any) -> tuple[str, str]:
        """Output and status line."""
        answer = self.use("bash", command=command, **arguments)
        assert answer.ok, answer.text
        body, _, status = answer.text.rpartition("\n")
        return self.bare(body), status

    def bare(self, text: str) -> str:
        mark = self.toolbox.marker
        return text.removeprefix(f"<{mark}>\n").removesuffix(f"\n</{mark}>")

    def prepare(self, script: str) -> None:
        """Makes the state a case starts from."""
        steps = self.box.exec(script)
        output = b""
        while True:
            try:
                output += next(steps)
            except StopIteration as stop:
                result: ExecResult = stop.value
                break
        assert result.exit_code == 0, output


@contextmanager
def opened(provider: SandboxProvider, image: str) -> Iterator[Sandbox]:
    task = new_id("task")  # a name of its own: the tests of two processes share one engine
    spec = BoxSpec(task=task, run=1, image=image, cpus=1.0, memory_mb=512, disk_mb=256, pids=200)
    box = provider.open(spec)
    try:
        box.claim(task, deadline_s=600)
        yield box
    finally:
        box.close()


def desk_over(box: Sandbox) -> Desk:
    kept: dict[str, bytes] = {}
    return Desk(box, build_toolbox(box, env={"ASK": "no"}, command_timeout_s=30, store_artifact=kept.__setitem__), kept)


@pytest.fixture(scope="module")
def real_box(docker_provider: SandboxProvider, sandbox_image: str) -> Iterator[Sandbox]:
    with opened(docker_provider, sandbox_image) as box:
        yield box


@pytest.fixture
def real(real_box: Sandbox) -> Desk:
    """Tools over one real box that all tests of this module share: no case may harm the next one.

    It has limits, and ripgrep, which the machine of the double need not have.
    """
    made = desk_over(real_box)
    made.prepare("find /workspace /tmp -mindepth 1 -delete")
    return made


@pytest.fixture(params=["local", pytest.param("docker", marks=pytest.mark.docker)])
def desk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Desk]:
    if request.param == "docker":
        yield request.getfixturevalue("real")
    else:
        with opened(LocalProvider(tmp_path), "local") as box:
            yield desk_over(box)


# ---------------------------------------------------------------------------------------------- commands


@pytest.mark.parametrize(
    ("command", "output"),
    [
        ("sleep 400 & echo started", "started"),
        ("(while :; do echo tock; sleep .1; done) & sleep .05; echo front", "front"),
        ("setsid nohup sleep 401 >/dev/null 2>&1 & echo off", "off"),
    ],
)
def test_a_background_child_cannot_hold_a_call_open(desk: Desk, command: str, output: str) -> None:
    started = time.monotonic()
    said, status = desk.bash(command)
    assert time.monotonic() - started < 2
    assert (said.replace("tock\n", "").replace("\ntock", ""), status) == (output, "[exit 0]")
    assert desk.bash("sleep .3; echo next") == ("next", "[exit 0]")


def test_a_timeout_ends_everything_that_was_started(desk: Desk) -> None:
    # Times that no other process of this machine sleeps for: the local box shares it with the other test process.
    first, second = 8_000_000 + os.getpid() * 10, 8_000_001 + os.getpid() * 10
    said, status = desk.bash(f"echo begun; setsid sleep {first} & trap '' TERM HUP; sleep {second}", timeout_s=1)
    assert (said, status) == ("begun", "[timed out after 1 s: the command and everything it started were killed]")
    count = f"cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep -cE '^({first}|{second})$'"
    assert desk.bash(count) == ("0", "[exit 1]")


@pytest.mark.parametrize(
    ("command", "output", "status"),
    [
        ("cat", "(no output)", "[exit 0]"),
        ("python3", "(no output)", "[exit 0]"),
        ('read -r answer; echo "<$answer> $?"', "<> 1", "[exit 0]"),
        ("echo $ASK $CI $TERM", "no 1 dumb", "[exit 0]"),
    ],
)
def test_nothing_waits_for_input(desk: Desk, command: str, output: str, status: str) -> None:
    started = time.monotonic()
    assert desk.bash(command) == (output, status)
    assert time.monotonic() - started < 5
    assert desk.bash("echo next") == ("next", "[exit 0]")


def test_there_is_no_terminal(desk: Desk) -> None:
    said, _ = desk.bash("head -c1 </dev/tty; echo rc=$?")
    assert said.endswith("rc=1")


def test_shell_options_and_endings_do_not_reach_the_next_call(desk: Desk) -> None:
    statuses = [
        desk.bash(command)
        for command in ("set -euo pipefail", "false", "echo A", "exit 3", "exec true", "kill -9 $$", "echo C")
    ]
    nothing = "(no output)"
    assert statuses == [
        (nothing, "[exit 0]"),
        (nothing, "[exit 1]"),
        ("A", "[exit 0]"),
        (nothing, "[exit 3]"),
        (nothing, "[exit 0]"),
        (nothing, "[exit 137: killed by SIGKILL]"),
        ("C", "[exit 0]"),
    ]


def test_the_directory_is_carried_over_and_a_removed_one_given_up(desk: Desk) -> None:
    assert desk.bash("mkdir -p 'a b'/c && cd 'a b'/c")[1] == "[exit 0] [now in /workspace/a b/c]"
    assert desk.bash("touch here; cd ..; ls c")[0] == "here"
    assert desk.bash("cd /workspace 2>/dev/null || cd ..; rm -rf 'a b'")[0] == "(no output)"
    desk.bash("mkdir -p gone; cd gone; rmdir ../gone")
    assert desk.bash("echo still works")[0] == "still works"


@pytest.mark.parametrize(
    ("command", "output"),
    [
        (r"printf '\xf0\xff\x00ok\xc3'", "\ufffd\ufffd\\x00ok\ufffd"),
        ("echo café ☃", "café ☃"),
        (
            r"printf 'get 1%%\rget 100%%\n\033[1;32mgreen\033[0m \033[?25lx\033]0;title\007y\ndos\r\n'",
            "get 100%\ngreen xy\ndos",
        ),
        ("for i in $(seq 1 5000); do printf '\\rstep %d' $i; done; echo", "step 5000"),
    ],
)
def test_output_becomes_clean_text(desk: Desk, command: str, output: str) -> None:
    assert desk.bash(command) == (output, "[exit 0]")


def test_binary_output_is_valid_text(desk: Desk) -> None:
    said, status = desk.bash('head -c 4096 "$(command -v bash)"')
    assert status == "[exit 0]"
    json.dumps([said, *desk.streamed]).encode()
    assert "\0" not in said + "".join(desk.streamed)


def test_characters_survive_chunk_borders(desk: Desk) -> None:
    said, _ = desk.bash("python3 -c \"import sys; sys.stdout.write('x' + '\\u20ac' * 200000)\"")
    assert "\ufffd" not in said + "".join(desk.streamed)
    assert "".join(desk.streamed) == "x" + "€" * 200_000
    missing = re.search(r"\n\[… ([\d,]+) characters left out here[^\n]*\n", said)
    assert missing is not None
    assert int(missing[1].replace(",", "")) + len(said) - len(missing[0]) == 200_001


def test_one_endless_line_is_cut_in_the_middle_and_kept_as_an_artifact(desk: Desk) -> None:
    desk.prepare("python3 -c \"open('min.js','w').write('a;' * 2000000)\"")
    said, status = desk.bash("cat min.js; echo end")
    assert status == "[exit 0]"
    assert said.startswith("a;a;")
    assert said.endswith("a;end")
    missing = re.search(r"\[… about ([\d,]+) characters left out here", said)
    assert missing is not None
    assert int(missing[1].replace(",", "")) + len(said) > 3_999_000
    assert [len(name) for name in desk.artifacts] == [len("output-001-bash.txt")]


def test_a_flood_is_stopped(desk: Desk) -> None:
    started = time.monotonic()
    said, status = desk.bash("yes")
    assert time.monotonic() - started < 25
    assert said.startswith("y\ny\n")
    assert status.startswith(("[killed: too much output, ", "[timed out"))


def test_long_commands_and_contents_pass(desk: Desk) -> None:
    line = "0123456789abcdef\n"
    assert desk.use("write_file", path="big.txt", content=line * 20_000).text == (
        "Created big.txt: 20000 lines, 340,000 bytes"
    )
    assert desk.bash("wc -c big.txt")[0] == "340000 big.txt"
    said = desk.bash(f"cat > h.txt <<'EOF'\n{'z' * 200_000}\nEOF\nwc -c h.txt")
    assert said == ("200001 h.txt", "[exit 0]")
    assert desk.use("edit_file", path="big.txt", old=line * 5_000, new="q\n").error == "not_unique"


@pytest.mark.parametrize(
    ("command", "output", "status"),
    [
        ("cat <<'EOF'\nhello\nEOF", "hello", "[exit 0]"),
        ("echo hi # note", "hi", "[exit 0]"),
        ("echo hi \\", "hi", "[exit 0]"),
        ("echo next; (exit 5)", "next", "[exit 5]"),
        ("true", "(no output)", "[exit 0]"),
        ("grep zzz /dev/null", "(no output)", "[exit 1]"),
        ("sh -c 'kill -9 $$'", None, "[exit 137: killed by SIGKILL]"),
        ("false | true", "(no output)", "[exit 0]"),
        ("exit 300", "(no output)", "[exit 44]"),
        ("nosuchcmd", None, "[exit 127]"),
        ("echo 'abc", None, "[exit 2]"),
        ("if true; then", None, "[exit 2]"),
    ],
)
def test_endings_are_exact(desk: Desk, command: str, output: str | None, status: str) -> None:
    said, ended = desk.bash(command)
    assert ended == status
    if output is not None:
        assert said == output
    assert "patchyard" not in said.lower()


def test_a_here_document_without_an_end_still_prints(desk: Desk) -> None:
    assert "abc" in desk.bash("cat <<X\nabc")[0]


# ------------------------------------------------------------------------------------------------- edits


def test_an_edit_must_match_exactly_once(desk: Desk) -> None:
    desk.prepare(r"printf 'foo\nfoo\nfoo\n' >o.txt; printf abc >e.txt")
    kinds = [
        desk.use("edit_file", path="o.txt", old="foo\nfoo\n", new="X").error,
        desk.use("edit_file", path="e.txt", old="", new="X", replace_all=True).error,
        desk.use("edit_file", path="e.txt", old="abc", new="abc").error,
        desk.use("edit_file", path="e.txt", old="zzz", new="y").error,
    ]
    assert kinds == ["not_unique", "empty_old", "no_change", "no_match"]
    assert desk.bash("cat o.txt e.txt")[0] == "foo\nfoo\nfoo\nabc"


def test_an_edit_keeps_line_ends_bom_and_a_missing_last_newline(desk: Desk) -> None:
    desk.prepare(r"printf '\xef\xbb\xbfa\r\nb\r\nc\r\n' >c; printf 'a\rb\rc' >m; printf 'x\ny' >n")
    assert desk.use("edit_file", path="c", old="a\nb\n", new="a\nB\nnew\n").ok
    assert desk.use("edit_file", path="m", old="b", new="B").ok
    assert desk.use("edit_file", path="n", old="y", new="z").ok
    assert desk.box.read("c").data == b"\xef\xbb\xbfa\r\nB\r\nnew\r\nc\r\n"
    assert desk.box.read("m").data == b"a\rB\rc"
    assert desk.box.read("n").data == b"x\nz"


def test_edits_and_writes_keep_mode_links_and_hard_links(desk: Desk) -> None:
    desk.prepare(r"printf '#!/bin/sh\necho a\n' >s.sh; chmod 755 s.sh; echo q >t; ln -s t ln; echo h >h1; ln h1 h2")
    assert desk.use("edit_file", path="s.sh", old="echo a", new="echo b").ok
    assert desk.use("edit_file", path="ln", old="q", new="r").ok
    assert desk.use("write_file", path="h1", content="H\n").error == "exists"
    assert desk.use("read_file", path="h1").ok
    assert desk.use("write_file", path="h1", content="H\n").text == "Overwrote h1: 1 line, 2 bytes"
    assert desk.bash("stat -c %A s.sh; readlink ln; cat t h2; ./s.sh")[0] == "-rwxr-xr-x\nt\nr\nH\nb"


def test_replacement_text_is_literal(desk: Desk) -> None:
    desk.prepare(r"printf 'old\n' >r.txt")
    new = r"C:\new\g<0>\1 $& $1 \\ %s {x}"
    assert desk.use("edit_file", path="r.txt", old="old", new=new).ok
    assert desk.box.read("r.txt").data == new.encode() + b"\n"


def test_normal_forms_are_told_apart_with_a_hint(desk: Desk) -> None:
    desk.prepare("python3 -c \"open('cafe\\u0301.txt', 'w').write('re\\u0301sume\\u0301\\n')\"")
    found = desk.use("read_file", path="caf\u00e9.txt")
    missed = desk.use("edit_file", path="cafe\u0301.txt", old="r\u00e9sum\u00e9", new="cv")
    assert found.ok or "cafe\u0301.txt" in found.text
    assert missed.ok or "re\u0301sume\u0301" in missed.text
    assert desk.bash("ls | wc -l")[0] == "1"


# ------------------------------------------------------------------------------------------------- paths


@pytest.mark.parametrize(
    ("tool", "path"),
    [
        ("read_file", "../../etc/passwd"),
        ("read_file", "/etc/passwd"),
        ("read_file", "e/passwd"),
        ("read_file", "/workspace-evil/x"),
        ("write_file", "dang"),
        ("write_file", "e/x"),
        ("write_file", "sib/x"),
        ("write_file", "a/../../b.txt"),
        ("edit_file", "e/passwd"),
        ("list_files", ".."),
        ("list_files", "e"),
    ],
)
def test_nothing_outside_is_reached(desk: Desk, tool: str, path: str) -> None:
    desk.prepare("ln -s /etc e; ln -s ../outside_new dang; ln -s /workspace-evil sib")
    more = {
        "write_file": {"content": "x"},
        "edit_file": {"old": "root", "new": "x"},
    }.get(tool, {})
    answer = desk.use(tool, path=path, **more)
    assert not answer.ok
    assert answer.text.startswith("Error: ")
    assert "root:" not in answer.text
    assert desk.bash("ls -d /workspace-evil ../outside_new ../b.txt 2>/dev/null | wc -l")[0] == "0"


def test_names_that_only_look_like_tricks_are_names(desk: Desk) -> None:
    assert desk.use("write_file", path="%2e%2e/x", content="y").ok
    assert desk.bash("cat ./%2e%2e/x")[0] == "y"


@pytest.mark.parametrize(
    ("tool", "arguments", "kinds"),
    [
        ("write_file", {"path": "dir", "content": "x"}, {"is_directory"}),
        ("write_file", {"path": "f/", "content": "x"}, {"is_directory", "not_directory", "bad_path", "not_found"}),
        ("write_file", {"path": "exists", "content": "2"}, {"exists"}),
        ("read_file", {"path": "nope"}, {"not_found"}),
        ("read_file", {"path": "dir"}, {"is_directory"}),
        ("read_file", {"path": "fifo"}, {"not_regular"}),
        ("read_file", {"path": "me"}, {"link_loop"}),
        ("read_file", {"path": "a\0b"}, {"bad_path"}),
        ("read_file", {"path": "x" * 5_000}, {"bad_path"}),
        ("read_file", {"path": ""}, {"bad_path", "is_directory"}),
        ("list_files", {"path": "exists"}, {"not_directory"}),
        ("glob", {"pattern": ""}, {"bad_pattern"}),
    ],
)
def test_odd_targets_are_clean_errors_at_once(
    desk: Desk, tool: str, arguments: dict[str, str], kinds: set[str]
) -> None:
    desk.prepare("mkdir dir; echo x >exists; mkfifo fifo; ln -s me me")
    started = time.monotonic()
    answer = desk.use(tool, **arguments)
    assert time.monotonic() - started < 2
    assert answer.error in kinds
    assert re.fullmatch(r"Error: [^\n]+", answer.text)
    assert desk.box.read("exists").data == b"x\n"


def test_a_read_only_file_is_refused_and_stays(desk: Desk) -> None:
    desk.prepare("echo r >ro; chmod 444 ro")
    answer = desk.use("edit_file", path="ro", old="r", new="w")
    assert answer.error == "permission"
    assert "read-only (mode 444)" in answer.text
    assert desk.bash("stat -c %a ro; cat ro")[0] == "444\nr"


def test_missing_parents_are_made(desk: Desk) -> None:
    assert desk.use("write_file", path="new/deep/f.txt", content="1").text == (
        "Created new/deep/f.txt: 1 line, 1 bytes"
    )
    assert desk.bash("cat new/deep/f.txt")[0] == "1"


# ---------------------------------------------------------------------------------------------- looking


def test_reading_listing_finding(desk: Desk) -> None:
    desk.prepare(
        "mkdir -p src/deep; printf 'def total():\\n    return 1\\n' >src/a.py; printf 'total()\\n' >src/deep/b.py;"
        " printf '#!/bin/sh\\n' >run; chmod +x run"
    )
    mark = desk.toolbox.marker
    assert desk.use("list_files").text == f"<{mark}>\nrun (10 bytes, executable)\nsrc/\n</{mark}>\n[2 in all]"
    assert desk.use("glob", pattern="**/*.py").text == (
        f"<{mark}>\nsrc/a.py (26 bytes)\nsrc/deep/b.py (8 bytes)\n</{mark}>\n[2 in all]"
    )
    assert desk.use("read_file", path="src/a.py", start=2).text == (
        f"src/a.py\n<{mark}>\n     2\t    return 1\n</{mark}>\n[lines 2-2 of 2]"
    )


@pytest.mark.docker
def test_searching(real: Desk) -> None:
    real.prepare(
        "mkdir -p src/deep; printf 'def total():\\n    return 1\\n' >src/a.py; printf 'total()\\n' >src/deep/b.py"
    )
    mark = real.toolbox.marker
    assert real.use("search", pattern=r"total\(").text == (
        f"<{mark}>\nsrc/a.py:1: def total():\nsrc/deep/b.py:1: total()\n</{mark}>\n[2 in 2 files]"
    )
    assert real.use("search", pattern="total", path="src/deep").text == (
        f"<{mark}>\nsrc/deep/b.py:1: total()\n</{mark}>\n[1 in 1 file]"
    )
    assert real.use("search", pattern="absent").text.startswith("No match")
    assert real.use("search", pattern="(").error == "bad_pattern"
    assert real.use("search", pattern="root", path="../..").error == "outside"


def test_names_that_are_not_text_are_shown_escaped(desk: Desk) -> None:
    desk.prepare("touch \"$(printf 'bad\\377name')\" \"$(printf 'new\\nline')\"")
    assert desk.bare(desk.use("list_files").text.rpartition("\n")[0]) == (
        "bad\\xffname (0 bytes)\nnew\\x0aline (0 bytes)"
    )


# --------------------------------------------------------------------------------------- limits of a box


@pytest.mark.docker
def test_orphans_are_reaped(real: Desk) -> None:
    script = (
        "import os, time\nfor _ in range(260):\n    pid = os.fork()\n    if pid == 0:\n"
        "        if os.fork() == 0:\n            time.sleep(.01)\n        os._exit(0)\n    os.waitpid(pid, 0)\n"
    )
    real.use("write_file", path="/tmp/orphans.py", content=script)
    real.bash("python3 /tmp/orphans.py; sleep 1")
    assert real.bash("echo a | cat | cat") == ("a", "[exit 0]")


@pytest.mark.docker
def test_a_memory_hog_is_named(real: Desk) -> None:
    _, status = real.bash("python3 -c 'x = bytearray(2 << 30)'; exit $?")
    assert "out of memory" in status
    assert real.bash("echo next") == ("next", "[exit 0]")


@pytest.mark.docker
def test_a_full_disk_and_a_fork_bomb_leave_the_box_usable(real: Desk) -> None:
    said, _ = real.bash("head -c 20G /dev/zero >fill; stat -c %s fill; rm -f fill")
    assert "No space left" in said
    real.bash(":(){ :|:& };: ; sleep 1; echo x", timeout_s=10)
    assert real.bash("echo next") == ("next", "[exit 0]")
