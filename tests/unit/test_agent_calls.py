"""The calls of one reply: what runs together, in which order it is told, what is asked again, what a dry run does."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from agent_fakes import MemoryBox, Script, budget_of, conversation, drain, says, toolbox_over, use

from service.errors import SandboxError
from service.events import ToolFinished, ToolOutput, ToolStarted
from worker.agent import calls
from worker.agent.loop import run_agent
from worker.llm.messages import ToolResult
from worker.sandbox.base import FileContent, ToolFailure
from worker.tools import registry

READS = [("read_file", {"path": name}) for name in ("a", "b", "c")]
DONE = says("", ("done", {"summary": "x"}))


class MeetingBox(MemoryBox):
    """A read returns only when `parties` of them are in flight; then the last to come is the first to leave."""

    def __init__(self, parties: int) -> None:
        super().__init__({f"/workspace/{name}": name.encode() for name in "abcdefgh"})
        self._barrier = threading.Barrier(parties)
        self._lock = threading.Lock()
        self.now = self.most = 0

    def read(self, path: str, *, limit: int = 10 << 20) -> FileContent:
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)
        try:
            self._barrier.wait(10)
            return super().read(path, limit=limit)
        finally:
            with self._lock:
                self.now -= 1


def carried_out(box: MemoryBox, *made: tuple[str, Any], checkpoints: list[int] | None = None) -> tuple[list[Any], Any]:
    script = Script(says("", *made), DONE)
    seen = [] if checkpoints is None else checkpoints
    events, _ = drain(
        run_agent(script, toolbox_over(box), conversation(), budget_of(), checkpoint=lambda: seen.append(1))
    )
    told = [event for event in events if isinstance(event, ToolStarted | ToolFinished | ToolOutput)]
    return told[: 2 * len(made)], [m for m in script.asked[1] if isinstance(m, ToolResult)]


def ids(events: list[Any]) -> list[tuple[str, str]]:
    return [(type(event).__name__.removeprefix("Tool"), event.call_id) for event in events]


def test_execution_order_neighbours_that_read_run_together_and_results_keep_their_order() -> None:
    checkpoints: list[int] = []
    events, results = carried_out(MeetingBox(3), *READS, checkpoints=checkpoints)
    assert ids(events) == [
        ("Started", "c0"), ("Started", "c1"), ("Started", "c2"),
        ("Finished", "c0"), ("Finished", "c1"), ("Finished", "c2"),
    ]  # fmt: skip
    assert [(result.call_id, result.text.partition("\n")[0]) for result in results] == [
        ("c0", "a"), ("c1", "b"), ("c2", "c"),
    ]  # fmt: skip
    assert len(checkpoints) == 2 + 3 + 1  # each model call, each read, and `done`


def test_at_most_four_run_together() -> None:
    box = MeetingBox(4)
    _, results = carried_out(box, *[("read_file", {"path": name}) for name in "abcdefgh"])
    assert [result.ok for result in results] == [True] * 8
    assert box.most == calls.AT_ONCE == 4


def test_a_call_that_writes_runs_alone_and_parts_those_around_it() -> None:
    box = MeetingBox(1)
    write = ("write_file", {"path": "new", "content": "n"})
    events, results = carried_out(box, READS[0], write, ("read_file", {"path": "new"}), ("todo", {"items": []}))
    assert ids(events) == [(kind, f"c{at}") for at in range(4) for kind in ("Started", "Finished")]
    assert [result.text.partition("\n")[0] for result in results] == [
        "a", "Created new: 1 line, 1 bytes", "new", "Todo: 0 of 0 completed",
    ]  # fmt: skip


def test_a_call_that_cannot_be_carried_out_does_not_part_its_neighbours() -> None:
    _, results = carried_out(MeetingBox(2), READS[0], ("read_file", {}), READS[1])
    assert [result.ok for result in results] == [True, False, True]


def test_a_box_that_is_gone_ends_the_run_once_no_read_is_in_flight() -> None:
    class GoneBox(MeetingBox):
        def read(self, path: str, *, limit: int = 10 << 20) -> FileContent:
            super().read(path, limit=limit)
            raise SandboxError(f"gone at {path}")

    box = GoneBox(3)
    with pytest.raises(SandboxError, match="gone at a"):
        carried_out(box, *READS)
    assert box.now == 0


# ---------------------------------------------------------------------------------------------- asked again


class FullBox(MemoryBox):
    """Refuses the first `times` requests with `code`."""

    def __init__(self, times: int, code: str) -> None:
        super().__init__({"/workspace/a": b"text"})
        self.left, self.code, self.asked = times, code, 0

    def read(self, path: str, *, limit: int = 10 << 20) -> FileContent:
        self._refuse()
        return super().read(path, limit=limit)

    def exec(self, command: str, **more: Any) -> Any:
        self._refuse()
        return super().exec(command, **more)

    def _refuse(self) -> None:
        self.asked += 1
        if self.left:
            self.left -= 1
            raise ToolFailure(self.code, "no room")


@pytest.mark.parametrize(("times", "code", "asked", "error"), [
    (1, "too_many", 2, None),
    (2, "spawn_failed", 3, None),
    (3, "too_many", 3, "too_many"),
    (1, "not_found", 1, "not_found"),
])  # fmt: skip
def test_an_idempotent_call_is_asked_again_where_the_box_had_no_room(
    times: int, code: str, asked: int, error: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(registry.time, "sleep", waits.append)
    box = FullBox(times, code)
    _, answer = use(toolbox_over(box), "read_file", {"path": "a"})
    assert (box.asked, answer.error) == (asked, error)
    assert waits == [0.1, 0.5][: asked - 1]


def test_a_call_that_is_not_idempotent_is_not_asked_again() -> None:
    box = FullBox(1, "too_many")
    _, answer = use(toolbox_over(box), "bash", {"command": "make"})
    assert (box.asked, answer.text) == (1, "Error: no room")


# -------------------------------------------------------------------------------------------------- dry run


def test_dry_run_tells_the_writing_calls_and_carries_out_the_others() -> None:
    box = MemoryBox({"/workspace/a": b"old\n"})
    toolbox = toolbox_over(box, dry_run=True)
    writing = [
        ("bash", {"command": "rm a"}),
        ("write_file", {"path": "b", "content": "x"}),
        ("edit_file", {"path": "a", "old": "old", "new": "new"}),
    ]
    script = Script(says("", *writing, ("read_file", {"path": "a"})), DONE)
    events, outcome = drain(run_agent(script, toolbox, conversation(), budget_of(), checkpoint=lambda: None))
    results = [message for message in script.asked[1] if isinstance(message, ToolResult)]
    assert [(result.text, result.ok) for result in results[:3]] == [(registry.DRY_RUN, True)] * 3
    assert "old" in results[3].text
    assert (box.files, box.ran) == ({"/workspace/a": b"old\n"}, [])
    told = [(event.tool, event.arguments) for event in events if isinstance(event, ToolStarted)]
    assert told[:3] == writing
    assert (outcome.exit_reason, outcome.summary) == ("completed", "x")


def test_each_tool_says_what_it_is() -> None:
    flags = {tool.name: (tool.read_only, tool.idempotent, tool.writes) for tool in registry.TOOLS}
    reads, neither = (True, True, False), (False, False, False)
    assert flags == {
        "bash": (False, False, True),
        "bash_output": (False, True, False),
        "bash_kill": (False, True, False),
        "read_file": reads,
        "write_file": (False, True, True),
        "edit_file": (False, False, True),
        "list_files": reads,
        "search": reads,
        "glob": reads,
        "todo": neither,
        "done": neither,
    }
