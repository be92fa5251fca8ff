"""What was there, in few words: the stub of a result, and old turns as a list or as material for a summary."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from worker.llm.messages import Assistant, Message, System, ToolCall, ToolResult, User
from worker.llm.sse import loads
from worker.tools.text import clip

SUBJECTS = ("command", "pattern", "path", "name", "prompt", "id")
"""The argument that says what a call was about, whatever order the model wrote them in."""
SUBJECT_CHARS = 120
LISTED = 60
"""Calls that a list of old turns names, the newest ones."""
_STATUS_CHARS = 100
_SAID, _ARGUMENTS, _RESULT = 2_000, 600, 1_500
"""Characters of a message, of a call's arguments and of a result that a summary is written from."""


def label(call: ToolCall) -> str:
    """The tool and what it was used on: `read_file src/a.py`."""
    try:
        arguments = loads(call.arguments)
    except ValueError:
        arguments = None
    known = arguments if isinstance(arguments, dict) else {}
    subject = " ".join(next((value for name in SUBJECTS if isinstance(value := known.get(name), str)), "").split())
    return f"{call.name} {subject[:SUBJECT_CHARS]}".strip()


def stub(call: ToolCall, result: ToolResult, marker: str) -> str:
    """One line in place of a result: `read_file src/a.py, 240 lines`, with its own last line where that is a status."""
    return f"[{outcome(call, result, marker)}; taken out to save room: call again if you need it]"


def outcome(call: ToolCall, result: ToolResult, marker: str) -> str:
    """A call with its result in a few words."""
    lines = result.text.split("\n")
    begin, end = f"<{marker}>", f"</{marker}>"
    inside = lines[lines.index(begin) + 1 : lines.index(end)] if begin in lines and end in lines else lines
    last = lines[-1]
    if not result.ok:
        return f"{label(call)}: {lines[0][:_STATUS_CHARS]}"
    status = f" {last}" if len(lines) > 1 and last.startswith("[") and len(last) <= _STATUS_CHARS else ""
    return f"{label(call)}, {len(inside)} line{'' if len(inside) == 1 else 's'}{status}"


def with_calls(messages: Sequence[Message]) -> Iterator[tuple[int, ToolCall, ToolResult]]:
    """Every tool result with its index and the call it belongs to."""
    calls: dict[str, ToolCall] = {}
    for at, message in enumerate(messages):
        if isinstance(message, Assistant):
            calls = {call.id: call for call in message.calls}
        elif isinstance(message, ToolResult):
            yield at, calls.get(message.call_id) or ToolCall(message.call_id, message.name, ""), message


def listed(old: Sequence[Message], marker: str) -> str:
    """Old turns without a model's help: the files that were changed, and the newest calls with their outcome."""
    done = [(call, outcome(call, result, marker)) for _, call, result in with_calls(old)]
    touched = dict.fromkeys(
        label(call).partition(" ")[2] for call, _ in done if call.name in ("write_file", "edit_file")
    )
    lines = [f"Files touched: {', '.join(list(touched)[-LISTED:]) or 'none'}", "Calls, the newest last:"]
    return "\n".join([*lines, *(f"- {text}" for _, text in done[-LISTED:])])


def rendered(old: Sequence[Message], limit: int) -> str:
    """Old turns as text, long parts cut, at most `limit` characters: what came first is left out first."""
    pieces: list[str] = []
    for piece in map(_piece, reversed(old)):
        limit -= len(piece) + 1
        if limit < 0:
            pieces.append("[… what came before is left out …]")
            break
        pieces.append(piece)
    return "\n".join(reversed(pieces))


def _piece(message: Message) -> str:
    match message:
        case System(text):
            return text
        case User(text):
            return f"NOTE: {_cut(text, _SAID)}"
        case ToolResult():
            return f"RESULT: {_cut(message.text, _RESULT)}"
        case Assistant():
            said = [f"AGENT: {_cut(message.text, _SAID)}"] if message.text.strip() else []
            return "\n".join([*said, *_calls(message.calls)])


def _calls(calls: Iterable[ToolCall]) -> Iterator[str]:
    return (f"CALL: {call.name} {_cut(call.arguments, _ARGUMENTS)}" for call in calls)


def _cut(text: str, limit: int) -> str:
    return clip(text, hint="not needed here", limit=limit)
