"""What counts as failing the same way: one tool with one kind of refusal, not any three refusals in a row."""

from __future__ import annotations

from typing import Any

import pytest
from agent_fakes import MemoryBox, Script, budget_of, conversation, drain, says, toolbox_over

from service.contracts import ExitReason
from service.events import Notice
from worker.agent.loop import run_agent
from worker.sandbox.base import ToolFailure


class Closed(MemoryBox):
    """Refuses every path that leaves the workspace, as the real box does."""

    def read(self, path: str, **more: Any) -> Any:
        self._refuse(path)
        return super().read(path, **more)

    def write(self, path: str, data: bytes, **more: Any) -> Any:
        self._refuse(path)
        return super().write(path, data, **more)

    def _refuse(self, path: str) -> None:
        if not self._key(path).startswith("/workspace/"):
            raise ToolFailure("outside", f"{path}: outside the workspace")


def read(path: str) -> tuple[str, dict[str, str]]:
    return "read_file", {"path": path}


def write(path: str) -> tuple[str, dict[str, str]]:
    return "write_file", {"path": path, "content": "x"}


DONE = ("done", {"summary": "x"})


@pytest.mark.parametrize(
    ("calls", "told", "reason"),
    [
        # B18: eight tries at the fence by two tools; the last one is a plain name inside.
        (
            [
                *(read("../a"), read("/etc/passwd"), read("../b"), write("../c"), write("/etc/x")),
                *(read("/workspace-evil/x"), write("a/../../b.txt"), write("%2e%2e/x"), DONE),
            ],
            ["3 tool calls in a row failed the same way (read_file: outside)"],
            ExitReason.COMPLETED,
        ),
        ([read("../a"), write("../a"), read("../b"), write("../b"), DONE], [], ExitReason.COMPLETED),
        (
            [read("../a"), read("../b"), read("../c"), write("../a"), write("../b"), write("../c"), DONE],
            ["3 tool calls in a row failed the same way (read_file: outside)"],
            ExitReason.LOOP_DETECTED,
        ),
        # Names that do not exist are one failure, whatever they are.
        (
            [("view", {}), ("cat", {}), ("open", {}), DONE],
            ["3 tool calls in a row failed the same way (unknown_tool)"],
            ExitReason.ANSWERED,
        ),
    ],
)
def test_failing_the_same_way(calls: list[Any], told: list[str], reason: ExitReason) -> None:
    box = Closed()
    script = Script(*(says("", call) for call in calls))
    events, outcome = drain(run_agent(script, toolbox_over(box), conversation(), budget_of(), checkpoint=lambda: None))
    notices = [event.text for event in events if isinstance(event, Notice) and event.code == "loop_suspected"]
    assert notices == [f"Going in circles: {what}." for what in told]
    assert outcome.exit_reason is reason
    assert ("/workspace/%2e%2e/x" in box.files) is (write("%2e%2e/x") in calls)
