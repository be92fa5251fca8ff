"""The loop: ask the model, carry out what it asked for, feed the results back, until it stops.

It knows no provider, no engine and no store: everything it needs is passed in, everything it has to tell
it yields. A feature that is added stands beside it, not in it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from service.contracts import ExitReason, Usage
from service.errors import ModelError
from service.events import MessageDone, Notice, UsageChanged
from worker.agent import compaction
from worker.agent.budget import Budget
from worker.agent.calls import Record, carry_out
from worker.agent.context import Conversation
from worker.agent.repetition import Repetition
from worker.llm.messages import Model, Reply, Steps
from worker.tools.registry import Toolbox

LAST_TURN = (
    "This is your last turn: finish now. Call `done` with a summary of what is done and what is open, "
    "or make the one change that matters most together with it."
)
SILENT = (
    "Your reply was empty. If the task is complete, call `done` with a summary. If not, go on with a tool call, "
    "or say why you cannot."
)
CUT_OFF = "Your reply was cut off at the output limit. Go on from there, in smaller steps."
MAX_SILENT = 1
"""Empty replies in a row that are asked about; the next one ends the run."""
MAX_CUT_OFF = 3


@dataclass(frozen=True, slots=True)
class Outcome:
    exit_reason: ExitReason
    summary: str
    """The model's last word: what it gave to `done`, or its last text."""
    usage: Usage


def run_agent(
    model: Model,
    toolbox: Toolbox,
    conversation: Conversation,
    budget: Budget,
    *,
    checkpoint: Callable[[], None],
    record: Record | None = None,
) -> Steps[Outcome]:
    """Runs until the model finishes, a limit is reached or the run goes in circles.

    `checkpoint` is called before each model call and each tool call and raises Stopped to end the run.
    Raises what the model and the box raise for good: ModelError, ContextOverflow, SandboxError.
    """
    repetition, stops, warned, said = Repetition(), _Stops(), False, ""
    while True:
        checkpoint()
        yield from compaction.make_room(model, conversation, toolbox, budget)
        spent = budget.exhausted()
        if spent is not None:
            return Outcome(spent, said, budget.usage)
        yield from _tell_limits(conversation, budget)
        reply = yield from compaction.ask(model, conversation, toolbox, budget)
        budget.charge(reply, conversation.tokens)
        toolbox.begin_turn()
        yield from _take(reply, conversation, budget)
        said = reply.message.text.strip() or said
        if not reply.message.calls:
            reason = yield from stops.judge(reply, conversation, used_tools=toolbox.used)
            if reason is not None:
                return Outcome(reason, said, budget.usage)
            continue
        stops.forget()
        results = yield from carry_out(
            toolbox,
            reply.message.calls,
            turn=budget.usage.turns,
            checkpoint=checkpoint,
            repetition=repetition,
            record=record,
        )
        conversation.add(*results)
        if toolbox.finished is not None:
            reason = ExitReason.COMPLETED if toolbox.used else ExitReason.ANSWERED
            return Outcome(reason, toolbox.finished or said, budget.usage)
        circle = repetition.found()
        if circle and warned:
            return Outcome(ExitReason.LOOP_DETECTED, said, budget.usage)
        if circle:
            warned = True
            yield Notice("loop_suspected", f"Going in circles: {circle}.")
            conversation.note(f"You are going in circles: {circle}. Try another way, or call `done` and say why.")


def _tell_limits(conversation: Conversation, budget: Budget) -> Steps[None]:
    """Warnings to the reader and, in one note, to the model."""
    notes = budget.warnings()
    for note in notes:
        yield Notice("limit_near", note)
    if budget.last_turn:
        notes.append(LAST_TURN)
    if notes:
        conversation.note(" ".join(notes))


def _take(reply: Reply, conversation: Conversation, budget: Budget) -> Steps[None]:
    """Puts the reply into the conversation, unless it is empty: providers refuse an empty assistant message."""
    message = reply.message
    if message.text.strip() or message.calls:
        conversation.add(message)
    if message.text:
        yield MessageDone("assistant", message.text, budget.usage.turns)
    yield UsageChanged(budget.usage.model_dump())


class _Stops:
    """What a reply without calls means: an answer, the end, or a question back (a bounded number of them)."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self._silent = self._cut_off = 0

    def judge(self, reply: Reply, conversation: Conversation, *, used_tools: bool) -> Steps[ExitReason | None]:
        """The reason to end, or None when the model was asked to go on. ModelError when asking has no end."""
        if not reply.message.text.strip():
            self._silent += 1
            if self._silent > MAX_SILENT:
                raise ModelError("the model gave an empty reply again after it was asked to finish or say why")
            yield Notice("empty_reply", "The model's reply was empty; it is asked to finish or say why.")
            conversation.note(SILENT)
            return None
        self._silent = 0
        if not reply.truncated:
            return ExitReason.COMPLETED if used_tools else ExitReason.ANSWERED
        yield Notice("reply_cut_off", "The model's reply was cut off at its output limit.")
        if not used_tools:
            return ExitReason.ANSWERED
        self._cut_off += 1
        if self._cut_off > MAX_CUT_OFF:
            raise ModelError("the model's replies are cut off at its output limit again and again")
        conversation.note(CUT_OFF)
        return None
