"""The native protocol: our conversation as a Chat Completions request with tool calls."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from worker.llm.messages import Assistant, Message, System, ToolCall, ToolResult, ToolSchema, User
from worker.llm.protocols.dialects import DialectGrammar
from worker.llm.protocols.written import UNREADABLE_SHOWN, encodable
from worker.llm.sse import loads

_BAD_NAME = re.compile(r"[^A-Za-z0-9_-]")


def request(conversation: Sequence[Message], schemas: Sequence[ToolSchema], *, echo_reasoning: bool) -> dict[str, Any]:
    """The conversation and the tools as a request's fields."""
    body: dict[str, Any] = {"messages": messages(conversation, echo_reasoning=echo_reasoning)}
    if schemas:
        body["tools"] = tools(schemas)
    return body


def grammar(schemas: Sequence[ToolSchema]) -> DialectGrammar:
    """For the calls that a model's server should have taken out of its text, and did not."""
    return DialectGrammar({tool.name for tool in schemas})


def messages(conversation: Iterable[Message], *, echo_reasoning: bool) -> list[dict[str, Any]]:
    """The `messages` of a request: always encodable, every call with a valid name and a JSON object.

    `echo_reasoning` sends thoughts back with the tool calls they led to: some providers demand that, others
    refuse the field. An assistant message without text and calls is left out: providers refuse it.
    """
    return [body for message in conversation if (body := _message(message, echo_reasoning)) is not None]


def tools(schemas: Sequence[ToolSchema]) -> list[dict[str, Any]]:
    """The `tools` of a request."""
    return [
        {
            "type": "function",
            "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
        }
        for tool in schemas
    ]


def _message(message: Message, echo_reasoning: bool) -> dict[str, Any] | None:
    match message:
        case System(text):
            return {"role": "system", "content": encodable(text)}
        case User(text):
            return {"role": "user", "content": encodable(text)}
        case ToolResult(call_id, _, text):
            return {"role": "tool", "tool_call_id": call_id, "content": encodable(text)}
        case Assistant():
            return _assistant(message, echo_reasoning)


def _assistant(message: Assistant, echo_reasoning: bool) -> dict[str, Any] | None:
    text = encodable(message.text)
    if not message.calls:
        return {"role": "assistant", "content": text} if text.strip() else None
    # null, not "": some providers call an empty string an empty message.
    body: dict[str, Any] = {"role": "assistant", "content": text or None, "tool_calls": [*map(_call, message.calls)]}
    if echo_reasoning:
        body["reasoning_content"] = encodable(message.reasoning)
    return body


def _call(call: ToolCall) -> dict[str, Any]:
    name = _BAD_NAME.sub("_", call.name)[:64] or "unnamed"
    return {"id": call.id, "type": "function", "function": {"name": name, "arguments": _arguments(call.arguments)}}


def _arguments(text: str) -> str:
    """The model's own text where it is a JSON object; strict providers refuse to be sent anything else back."""
    if not text.strip():
        return "{}"
    try:
        value = loads(text)
    except ValueError:
        value = text
    if value is None:
        return "{}"
    return encodable(text) if isinstance(value, dict) else json.dumps({"unreadable": text[:UNREADABLE_SHOWN]})
