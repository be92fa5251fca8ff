"""A conversation as plain messages: for protocols that write tool calls, and their results, as text."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from worker.llm.messages import Assistant, Message, System, ToolCall, ToolResult, ToolSchema, User
from worker.llm.protocols.grammar import json_object

UNREADABLE_SHOWN = 2_000
"""Characters of arguments that are no JSON object which the model sees again."""
_EXAMPLES: dict[str, Any] = {"integer": 1, "boolean": True, "array": [], "object": {}}


def messages(
    conversation: Iterable[Message], description: str, write: Callable[[ToolCall], str]
) -> list[dict[str, Any]]:
    """The `messages` of a request: system, user and assistant only, never two of one role in a row.

    `description` of the tools goes to the end of the system text; `write` gives a call in the protocol's own form.
    """
    sent: list[dict[str, Any]] = []
    for message in conversation:
        role, text = _spoken(message, write)
        if not text.strip():
            continue
        if sent and sent[-1]["role"] == role:
            sent[-1]["content"] += f"\n\n{text}"
        else:
            sent.append({"role": role, "content": text})
    if description:
        if not sent or sent[0]["role"] != "system":
            sent.insert(0, {"role": "system", "content": description})
        else:
            sent[0]["content"] = f"{sent[0]['content'].rstrip()}\n\n{description}"
    return sent


def _spoken(message: Message, write: Callable[[ToolCall], str]) -> tuple[str, str]:
    match message:
        case System(text):
            return "system", encodable(text)
        case User(text):
            return "user", encodable(text)
        case ToolResult(_, name, text):
            return "user", encodable(f"[result of {name or 'a call without a name'}]\n{text}")
        case Assistant():
            parts = [message.text.rstrip(), *map(write, message.calls)]
            return "assistant", encodable("\n\n".join(part for part in parts if part))


def describe(rules: str, tools: Sequence[ToolSchema], form: Callable[[ToolSchema], str]) -> str:
    """The part of the system text that says how to call which tool; `form` shows one call."""
    return "\n\n".join((rules.strip(), *(_described(tool, form(tool)) for tool in tools))) if tools else ""


def _described(tool: ToolSchema, form: str) -> str:
    required = tool.parameters.get("required", [])
    lines = [_parameter(name, kind, name in required) for name, kind in tool.parameters.get("properties", {}).items()]
    return "\n".join((f"## {tool.name}", tool.description, "", form, "", *lines)).rstrip()


def _parameter(name: str, kind: dict[str, Any], required: bool) -> str:
    plain = kind.get("type") in ("string", "integer", "number", "boolean") and "enum" not in kind
    shape = kind["type"] if plain else f"JSON Schema {json.dumps(kind, ensure_ascii=False)}"
    said = f": {kind['description']}" if plain and "description" in kind else ""
    return f"- `{name}` ({'' if required else 'optional, '}{shape}){said}"


def example(tool: ToolSchema) -> dict[str, Any]:
    """The required arguments, to show the form of a call."""
    kinds = tool.parameters.get("properties", {})
    return {name: _EXAMPLES.get(kinds[name].get("type"), "…") for name in tool.parameters.get("required", [])}


def arguments_of(call: ToolCall) -> dict[str, Any] | None:
    """None where the model's arguments were no JSON object."""
    return json_object(call.arguments) if call.arguments.strip() else {}


def strings(arguments: dict[str, Any], *names: str) -> list[str] | None:
    """The values of `names` when these, all of them strings, are all there is."""
    values = [arguments.get(name) for name in names]
    found = [value for value in values if isinstance(value, str)]
    return found if len(found) == len(names) == len(arguments) else None


def encodable(text: str) -> str:
    """The text with half surrogate pairs replaced."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
