"""Carries out the calls of one reply: prepare → execute → finish, each told as events.

Neighbours that only read run at the same time, the rest one by one. Results, and the events of each step, come in
source order.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from typing import NamedTuple, Protocol

from service.events import ToolFinished, ToolStarted
from worker.agent.context import shorten
from worker.agent.repetition import Repetition
from worker.llm.messages import Steps, ToolCall, ToolResult
from worker.tools.base import Answer
from worker.tools.registry import Prepared, Toolbox

SUMMARY_CHARS = 2_000
NOT_RUN = "Error: not executed: `done` had already ended the task"
AT_ONCE = 4
"""Read-only calls in flight: a box answers most within a millisecond, and searches share its few cores."""


class Record(Protocol):
    """Where tool calls are written down (worker/llm/transcript.py)."""

    def tool(self, *, id: str, tool: str, arguments: str, ok: bool, result: str, duration_ms: int) -> None: ...


class _Made(NamedTuple):
    """A call and what preparing it gave."""

    call: ToolCall
    prepared: Prepared | Answer

    @property
    def read_only(self) -> bool:
        """Also for a call that cannot be carried out: it changes nothing either."""
        return self.prepared.tool.read_only if isinstance(self.prepared, Prepared) else True


class _Finished(NamedTuple):
    answer: Answer
    duration_ms: int


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
    for group in _groups(_Made(call, toolbox.prepare(call)) for call in calls):
        if toolbox.finished is not None:
            results += [ToolResult(call.id, call.name, NOT_RUN, ok=False) for call, _ in group]
            continue
        for call, prepared in group:
            checkpoint()
            yield _started(call, prepared, turn)
        finished = yield from _execute(toolbox, group)
        for (call, prepared), (answer, duration_ms) in zip(group, finished, strict=True):
            summary = toolbox.unmarked(answer.text)[:SUMMARY_CHARS]
            yield ToolFinished(call.id, _name(call, prepared), answer.ok, summary, duration_ms)
            repetition.saw(_signature(call, prepared), answer.text, _kind(answer, prepared))
            told = f"{reminder}\n{answer.text}" if reminder else answer.text
            reminder = ""
            if record is not None:
                record.tool(
                    id=call.id,
                    tool=call.name,
                    arguments=call.arguments,
                    ok=answer.ok,
                    result=told,
                    duration_ms=duration_ms,
                )
            results.append(ToolResult(call.id, call.name, told, answer.ok))
    return results


def _groups(made: Iterable[_Made]) -> Iterator[list[_Made]]:
    """What runs together: neighbours that only read, and each other call alone."""
    for read_only, neighbours in groupby(made, key=lambda one: one.read_only):
        if read_only:
            yield list(neighbours)
        else:
            yield from ([one] for one in neighbours)


def _execute(toolbox: Toolbox, group: list[_Made]) -> Steps[list[_Finished]]:
    """How each ended. Raises what the first of them raises, once none is in flight any more."""
    if len(group) == 1:
        return [(yield from _one(toolbox, group[0].prepared))]
    with ThreadPoolExecutor(min(AT_ONCE, len(group)), thread_name_prefix="read-only-call") as pool:
        return list(pool.map(lambda one: _silently(_one(toolbox, one.prepared)), group))


def _one(toolbox: Toolbox, prepared: Prepared | Answer) -> Steps[_Finished]:
    started = time.monotonic()
    answer = prepared if isinstance(prepared, Answer) else (yield from toolbox.execute(prepared))
    return _Finished(answer, round((time.monotonic() - started) * 1_000))


def _silently(steps: Steps[_Finished]) -> _Finished:
    """Runs steps of a read-only call, which tells nothing on its way."""
    try:
        next(steps)
    except StopIteration as stop:
        finished: _Finished = stop.value
        return finished
    raise AssertionError("a read-only tool has an event to tell")


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
