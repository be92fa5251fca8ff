"""The conversation of a run: messages that only grow, and an estimate of their size."""

from __future__ import annotations

from typing import Any

from worker.llm.messages import Assistant, Message, System, ToolResult, User

CHARS_PER_TOKEN = 3
"""A cautious mean over prose and code; providers' own counts are used wherever they give one."""


class Conversation:
    """Use `start` for a new one. `messages` is for reading; `add` is the only way in."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._chars = 0

    @classmethod
    def start(cls, system: str, prompt: str) -> Conversation:
        """The system prompt, then the task in its submitter's words."""
        conversation = cls()
        conversation.add(System(system), User(prompt, pinned=True))
        return conversation

    def add(self, *messages: Message) -> None:
        self.messages.extend(messages)
        self._chars += sum(_chars(message) for message in messages)

    def note(self, text: str) -> None:
        """A word from the service itself, told from the submitter's by its mark."""
        self.add(User(f"[Patchyard] {text}"))

    @property
    def tokens(self) -> int:
        """Estimated size; kept while adding, so that a long conversation costs no more than a short one."""
        return self._chars // CHARS_PER_TOKEN


def _chars(message: Message) -> int:
    match message:
        case System() | User() | ToolResult():
            return len(message.text)
        case Assistant():
            return len(message.text) + sum(len(call.name) + len(call.arguments) for call in message.calls)


def shorten(value: Any, limit: int = 2_000) -> Any:
    """JSON-like data for an event: long strings cut, with how much is missing."""
    if isinstance(value, str):
        return value if len(value) <= limit else f"{value[:limit]}… ({len(value) - limit:,} more characters)"
    if isinstance(value, dict):
        return {key: shorten(item, limit) for key, item in value.items()}
    if isinstance(value, list):
        return [shorten(item, limit) for item in value]
    return value
