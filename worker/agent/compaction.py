"""Keeps a conversation within its model's window: three layers, each harder than the one before.

Micro, every turn: tool results older than the last few become one line that says what was there. Auto, at 70 %
of the window: old turns become a summary that the model writes. Reactive, when the provider says that it does not
fit: only the newest turn stays, its results cut, and the request is made once more. Pinned messages, the todo list
and the skills in use survive all three.
"""

from __future__ import annotations

from importlib.resources import files

from service.errors import ContextOverflow, ModelError
from service.events import Compacted, Notice, TextDelta, UsageChanged
from worker.agent.budget import Budget
from worker.agent.context import CHARS_PER_TOKEN, Conversation, size
from worker.agent.digest import listed, rendered, stub, with_calls
from worker.llm.messages import Assistant, Message, Model, Reply, Steps, System, ToolResult, User
from worker.llm.summaries import SUMMARY_HEAD
from worker.tools.registry import Toolbox
from worker.tools.text import clip

AUTO_AT = 0.7
"""Share of the window at which old turns become a summary."""
FRESH_TURNS = 6
FRESH_SHARE = 0.4
"""The last few: results of so many turns stay, as long as they fit into this share of the window; the newest always."""
TAIL_SHARE = 0.2
"""Share of the window that the turns kept beside a summary may fill."""
WORTH_SHARE = 0.1
"""Less than this is not worth the call that a summary costs."""
SUMMARY_SHARE, SUMMARY_LEAST = 0.1, 1_000
"""A summary's room: a share of the window, and characters that it has in any case."""
MATERIAL_SHARE = 0.6
STUB_ABOVE = 300
"""Characters; a shorter result stays: its stub would hardly be shorter."""
SQUEEZED_CHARS = 2_000
"""What is left of a result of the newest turn when the provider refused the conversation."""
TASK_CHARS = 4_000
"""Of the task, as the one who writes the summary sees it."""


def make_room(model: Model, conversation: Conversation, toolbox: Toolbox, budget: Budget) -> Steps[None]:
    """Micro, and auto where it is time; with a budget that is used up nothing is asked of the model."""
    window = int(min(model.profile.context_window, conversation.ceiling))
    shed(conversation, toolbox, window)
    if conversation.tokens < AUTO_AT * window or budget.exhausted() is not None:
        return
    cut = conversation.tail(_chars(window, TAIL_SHARE))
    if size(conversation.old(cut)) < _chars(window, WORTH_SHARE):
        return
    before = conversation.tokens
    summary = yield from _summary(model, conversation, toolbox, budget, cut, window)
    _collapse(conversation, toolbox, cut, clip(summary, hint="too long", limit=_summary_chars(window)))
    yield Compacted("auto", before, conversation.tokens)


def ask(model: Model, conversation: Conversation, toolbox: Toolbox, budget: Budget) -> Steps[Reply]:
    """The model's reply; a conversation that does not fit is squeezed once. ContextOverflow when that is not enough."""
    try:
        reply = yield from model.ask(conversation.messages, toolbox.schemas, max_seconds=budget.seconds_left())
    except ContextOverflow:
        before = conversation.tokens
        if not squeeze(conversation, toolbox):
            raise
        conversation.ceiling = min(conversation.ceiling, before)
        yield Compacted("reactive", before, conversation.tokens)
        reply = yield from model.ask(conversation.messages, toolbox.schemas, max_seconds=budget.seconds_left())
    conversation.measured(reply.prompt_tokens)
    return reply


def shed(conversation: Conversation, toolbox: Toolbox, window: int) -> None:
    """Micro: stubs in place of all tool results but those of the last few turns."""
    end = _fresh_from(conversation, _chars(window, FRESH_SHARE))
    for at, call, result in with_calls(conversation.messages[:end]):
        if len(result.text) > STUB_ABOVE and not _in_use(result, toolbox):
            short = stub(call, result, toolbox.marker)
            if len(short) < len(result.text):
                conversation.shorten_result(at, short)


def squeeze(conversation: Conversation, toolbox: Toolbox) -> bool:
    """Reactive: all but the newest turn becomes a list, that one's results are cut. False when nothing got shorter."""
    before = size(conversation.messages)
    cut = conversation.tail(0)
    old = conversation.old(cut)
    if old:
        known = f"{conversation.summary}\n\n{listed(old, toolbox.marker)}".strip()
        summary = clip(known, hint="too long", limit=max(SQUEEZED_CHARS, len(conversation.summary)))
        if conversation.gain(cut, _digest(summary, toolbox)) > 0:
            _collapse(conversation, toolbox, cut, summary)
    for at, _, result in with_calls(conversation.messages):
        if len(result.text) > SQUEEZED_CHARS and not _in_use(result, toolbox):
            hint = "ask for less at a time"
            conversation.shorten_result(at, clip(result.text, hint=hint, limit=SQUEEZED_CHARS))
    return size(conversation.messages) < before


def _fresh_from(conversation: Conversation, room: int) -> int:
    """Index of the oldest turn whose results stay."""
    start, turns = len(conversation.messages), 0
    for at in range(len(conversation.messages) - 1, 0, -1):
        message = conversation.messages[at]
        if isinstance(message, ToolResult):
            room -= len(message.text)
        elif isinstance(message, Assistant) and message.calls:
            if turns and (turns == FRESH_TURNS or room < 0):
                break
            start, turns = at, turns + 1
    return start


def _summary(
    model: Model, conversation: Conversation, toolbox: Toolbox, budget: Budget, cut: int, window: int
) -> Steps[str]:
    """What the model makes of the old turns; a plain list of them where it fails or says nothing."""
    old = conversation.old(cut)
    pins = "\n\n".join(m.text[:TASK_CHARS] for m in conversation.messages if isinstance(m, User) and m.pinned)
    known = f"What was noted of still earlier turns:\n{conversation.summary}\n\n" if conversation.summary else ""
    material = _data(toolbox, known + rendered(old, _chars(window, MATERIAL_SHARE)))
    request: list[Message] = [
        System(_prompt(toolbox.marker)),
        User(f"The task:\n{pins}\n\nThe turns to sum up:\n{material}"),
    ]
    try:
        reply = yield from _unheard(model.ask(request, (), max_seconds=budget.seconds_left()))
    except ModelError as error:
        # The turn that follows finds out for itself whether the model answers at all.
        yield Notice("summary_failed", f"No summary of the old turns ({error.detail}); a list of the calls is kept.")
    else:
        budget.charge(reply, size(request) // CHARS_PER_TOKEN, turn=False)
        yield UsageChanged(budget.usage.model_dump())
        if text := reply.message.text.strip():
            return text
    return f"{conversation.summary}\n\n{listed(old, toolbox.marker)}".strip()


def _unheard(steps: Steps[Reply]) -> Steps[Reply]:
    """The model's reply, without its words being told to the reader as the agent's own."""
    try:
        while True:
            try:
                event = next(steps)
            except StopIteration as done:
                reply: Reply = done.value
                return reply
            if not isinstance(event, TextDelta):
                yield event
    finally:
        steps.close()


def _collapse(conversation: Conversation, toolbox: Toolbox, cut: int, summary: str) -> None:
    shown = [m.text for m in conversation.messages[cut:] if isinstance(m, ToolResult)]
    conversation.collapse(cut, summary, _digest(summary, toolbox, shown))


def _digest(summary: str, toolbox: Toolbox, shown: list[str] | None = None) -> str:
    """The message in place of old turns; `shown` are the results that stay, whose skills need not be said twice."""
    parts = [f"[Patchyard] Older turns were taken out to save room. Your notes of them:\n{_data(toolbox, summary)}"]
    if todo := toolbox.todo_list():
        parts.append(f"Your todo list:\n{_data(toolbox, todo)}")
    skills = [text for text in toolbox.skills_in_use if not any(text in result for result in shown or ())]
    return "\n\n".join([*parts, *skills])


def _data(toolbox: Toolbox, text: str) -> str:
    """A marked block; the marks of the results that the text was made of would end it early."""
    mark = toolbox.marker
    return toolbox.block(text.replace(f"<{mark}>", "").replace(f"</{mark}>", ""))


def _in_use(result: ToolResult, toolbox: Toolbox) -> bool:
    return any(text in result.text for text in toolbox.skills_in_use)


def _prompt(marker: str) -> str:
    rules = (files("worker.agent") / "prompts" / "summary.md").read_text(encoding="utf-8")
    return f"{SUMMARY_HEAD}\n{rules.replace('$marker', marker)}"


def _summary_chars(window: int) -> int:
    return max(SUMMARY_LEAST, _chars(window, SUMMARY_SHARE))


def _chars(window: int, share: float) -> int:
    return int(window * CHARS_PER_TOKEN * share)
