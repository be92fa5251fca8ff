"""Carries out the calls of one reply, in order: prepare → execute → finish, each told as events."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from service.events import ToolFinished, ToolStarted
from worker.agent.context import shorten
from worker.agent.repetition import Repetition
from worker.llm.messages import Steps, ToolCall, ToolResult
from worker.tools.base import Answer
from worker.tools.registry import Prepared, Toolbox

SUMMARY_CHARS = 2_000
NOT_RUN = "Error: not executed: `done` had already ended the task"


class Record(Protocol):
    """Where tool calls are written down (worker/llm/transcript.py)."""

    def tool(self, *, id: str, tool: str, arguments: str, ok: bool, result: str, duration_ms: int) -> None: ...


def carry_out(
    toolbox: Toolbox,
    calls: Sequence[ToolCall],
    *,
    turn: int,
    checkpoint: Callable[[], None],
    repetition: Repetition,
    record: Record | None,
) -> Steps[list[ToolResult]]:
    """One result for each call, in source order: a provider refuses a conversation that lacks one."""
    results: list[ToolResult] = []
    reminder = toolbox.reminder()
    for call in calls:
        if toolbox.finished is not None:
            results.append(ToolResult(call.id, call.name, NOT_RUN, ok=False))
            continue
        checkpoint()
        started = time.monotonic()
        prepared = toolbox.prepare(call)
        yield _started(call, prepared, turn)
        answer = prepared if isinstance(prepared, Answer) else (yield from toolbox.execute(prepared))
        duration_ms = round((time.monotonic() - started) * 1_000)
        summary = toolbox.unmarked(answer.text)[:SUMMARY_CHARS]
        yield ToolFinished(call.id, _name(call, prepared), answer.ok, summary, duration_ms)
        repetition.saw(_signature(call, prepared), answer.text, _kind(answer, prepared))
        told = f"{reminder}\n{answer.text}" if reminder else answer.text
        reminder = ""
        if record is not None:
            record.tool(
                id=call.id, tool=call.name, arguments=call.arguments, ok=answer.ok, result=told, duration_ms=duration_ms
            )
        results.append(ToolResult(call.id, call.name, told, answer.ok))
    return results


def _name(call: ToolCall, prepared: Prepared | Answer) -> str:
    return prepared.tool.name if isinstance(prepared, Prepared) else call.name[:100]


def _started(call: ToolCall, prepared: Prepared | Answer, turn: int) -> ToolStarted:
    arguments = prepared.arguments if isinstance(prepared, Prepared) else {"unreadable": call.arguments}
    return ToolStarted(call.id, _name(call, prepared), shorten(arguments), turn)


def _kind(answer: Answer, prepared: Prepared | Answer) -> str | None:
    """The kind of a failure: what one tool refuses says nothing of another. None when the tool did its work."""
    return f"{prepared.tool.name}: {answer.error}" if answer.error and isinstance(prepared, Prepared) else answer.error


def _signature(call: ToolCall, prepared: Prepared | Answer) -> str:
    if isinstance(prepared, Prepared):
        return f"{prepared.tool.name} {json.dumps(prepared.arguments, sort_keys=True)}"
    return f"{call.name} {call.arguments}"
