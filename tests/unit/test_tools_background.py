"""`bash` in the background, `bash_output`, `bash_kill`, and what read-only answers are remembered beside them."""

from __future__ import annotations

from typing import Any

import pytest
from agent_fakes import Command, MemoryBox, data, toolbox_over, use

from worker.sandbox.base import BackgroundOutput, FileContent
from worker.tools import background, memory
from worker.tools.base import Answer
from worker.tools.registry import Toolbox


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(background.time, "monotonic", lambda: now[0])
    return now


def begun(box: MemoryBox) -> Toolbox:
    toolbox = toolbox_over(box)
    use(toolbox, "bash", {"command": "make serve", "background": "true"})
    return toolbox


def output(toolbox: Toolbox, number: Any = 1) -> Answer:
    return use(toolbox, "bash_output", {"id": number})[1]


def test_background_answers_at_once_with_an_id_and_the_commands_directory() -> None:
    box = MemoryBox(commands=[Command(cwd="/workspace/src")])
    toolbox = toolbox_over(box)
    use(toolbox, "bash", {"command": "cd src"})
    events, answer = use(toolbox, "bash", {"command": "make serve", "background": True})
    assert (events, answer) == ([], Answer(background.STARTED.format(number=1)))
    assert box.ran[1] == {"command": "make serve", "cwd": "/workspace/src", "env": {"A": "1"}, "background": True}


def test_bash_output_tells_only_what_is_new(clock: list[float]) -> None:
    box = MemoryBox()
    toolbox = begun(box)
    clock[0] += 2.04
    assert output(toolbox) == Answer("(no new output)\n[running for 2.0 s]")
    box.said[0] = BackgroundOutput(b"up\n", 0, 3, "running", None)
    assert output(toolbox, "1") == Answer(f"{data(toolbox, 'up')}\n[running for 2.0 s]")
    box.said[0] = BackgroundOutput(b"up\nhit\n", 0, 7, "exited", 0)
    assert output(toolbox) == Answer(f"{data(toolbox, 'hit')}\n[exit 0]")
    assert output(toolbox) == Answer("(no new output)\n[exit 0]")


def test_a_character_that_came_in_two_pieces_is_told_whole(clock: list[float]) -> None:
    box = MemoryBox()
    toolbox = begun(box)
    whole = "é☃".encode()
    told = []
    for size in range(1, len(whole) + 1):
        box.said[0] = BackgroundOutput(whole[:size], 0, size, "running", None)
        told.append(output(toolbox).text.partition("\n[")[0])
    nothing = "(no new output)"
    assert told == [nothing, data(toolbox, "é"), nothing, nothing, data(toolbox, "☃")]
    box.said[0] = BackgroundOutput(whole + b"\xc3", 0, len(whole) + 1, "exited", 137)
    assert output(toolbox).text == f"{data(toolbox, chr(0xFFFD))}\n[exit 137: killed by SIGKILL]"


def test_what_is_no_longer_kept_is_said() -> None:
    box = MemoryBox()
    toolbox = begun(box)
    box.said[0] = BackgroundOutput(b"end\n", 5_000, 5_004, "exited", 1)
    assert output(toolbox).text == f"[5,000 bytes before this were not kept]\n{data(toolbox, 'end')}\n[exit 1]"


def test_a_long_output_is_cut_and_kept_whole_as_an_artifact() -> None:
    kept: dict[str, bytes] = {}
    box = MemoryBox()
    toolbox = toolbox_over(box, kept)
    use(toolbox, "bash", {"command": "yes", "background": True})
    box.said[0] = BackgroundOutput(b"y\n" * 50_000, 0, 100_000, "exited", 0)
    answer = output(toolbox)
    assert len(answer.text) <= 16_000
    assert background.HINT in answer.text
    assert kept == {"output-001-bash_output.txt": b"y\n" * 50_000}


def test_bash_kill_ends_it_and_tells_its_last_words() -> None:
    box = MemoryBox()
    toolbox = begun(box)
    box.said[0] = BackgroundOutput(b"bye\n", 0, 4, "running", None)
    _, answer = use(toolbox, "bash_kill", {"id": 1})
    assert answer == Answer(f"{data(toolbox, 'bye')}\n[killed: the command and everything it started]")


def test_a_number_that_bash_never_gave_is_one_line() -> None:
    assert output(toolbox_over(MemoryBox()), 7) == Answer("Error: there is no background command 7", "not_found")


# -------------------------------------------------------------------------------------------------- the memory


class CountingBox(MemoryBox):
    reads = 0

    def read(self, path: str, *, limit: int = 10 << 20) -> FileContent:
        self.reads += 1
        return super().read(path, limit=limit)


def test_result_cache_holds_until_something_may_have_written(clock: list[float]) -> None:
    box = CountingBox({"/workspace/a": b"one\n"})
    toolbox = toolbox_over(box)
    first = use(toolbox, "read_file", {"path": "a"})[1]
    assert use(toolbox, "read_file", {"path": "a"})[1] == first
    assert box.reads == 1
    use(toolbox, "read_file", {"path": "a", "start": 1})
    assert box.reads == 2
    for writing in (
        ("bash", {"command": "make"}),
        ("write_file", {"path": "b", "content": "x"}),
        ("edit_file", {"path": "a", "old": "nowhere", "new": "y"}),
    ):
        use(toolbox, *writing)
        before = box.reads
        box.files["/workspace/a"] += b"more\n"
        assert use(toolbox, "read_file", {"path": "a"})[1].text.count("more") == box.files["/workspace/a"].count(
            b"more"
        )
        use(toolbox, "read_file", {"path": "a"})
        assert box.reads == before + 1


def test_nothing_is_remembered_while_a_background_command_may_write() -> None:
    box = CountingBox({"/workspace/a": b"one\n"})
    toolbox = begun(box)
    for _ in range(2):
        use(toolbox, "read_file", {"path": "a"})
    assert box.reads == 2
    box.said[0] = BackgroundOutput(b"", 0, 0, "exited", 0)
    output(toolbox)
    for _ in range(2):
        use(toolbox, "read_file", {"path": "a"})
    assert box.reads == 3


def test_a_failure_is_not_remembered_and_the_memory_is_bounded() -> None:
    box = CountingBox()
    toolbox = toolbox_over(box)
    for _ in range(2):
        use(toolbox, "read_file", {"path": "none"})
    assert box.reads == 2
    kept = memory.Memory()
    for number in range(memory.MAX_ANSWERS + 1):
        kept.keep("search", {"pattern": number}, Answer(str(number)))
    assert kept.recall("search", {"pattern": 0}) is None
    assert kept.recall("search", {"pattern": memory.MAX_ANSWERS}) == Answer(str(memory.MAX_ANSWERS))
