"""The conversation of a run: its messages, which old ones may give way, and an estimate of its size."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from worker.llm.messages import Assistant, Message, System, ToolResult, User

CHARS_PER_TOKEN = 3
"""A cautious mean over prose and code; providers' own counts are used wherever they give one."""
BELIEVED = 3
"""A provider's count is believed within this factor of the estimate: some report nonsense."""
SCHEMAS_TOKENS = 10_000
"""What a provider may count besides the messages: the tools' schemas and its own frame."""


class Conversation:
    """Use `start` for a new one. `messages` is for reading; it changes through the methods only.

    A turn is an assistant message with all that follows up to the next one: whole turns go, so that a call and
    its result are never separated.
    """

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.summary = ""
        """What is left of the turns that were taken out."""
        self.ceiling = math.inf
        """Tokens at which a provider refused it: the window is not larger than that, whatever the profile says."""
        self._digest: User | None = None
        self._chars = 0
        self._counted, self._counted_chars = 0.0, 0

    @classmethod
    def start(cls, system: str, prompt: str) -> Conversation:
        """The system prompt, then the task in its submitter's words."""
        conversation = cls()
        conversation.add(System(system), User(prompt, pinned=True))
        return conversation

    def add(self, *messages: Message) -> None:
        self.messages.extend(messages)
        self._chars += size(messages)

    def note(self, text: str) -> None:
        """A word from the service itself, told from the submitter's by its mark."""
        self.add(User(f"[Patchyard] {text}"))

    @property
    def tokens(self) -> int:
        """Estimated size; kept while adding, so that a long conversation costs no more than a short one."""
        return int(self._counted) + (self._chars - self._counted_chars) // CHARS_PER_TOKEN

    def measured(self, tokens: int) -> None:
        """Corrects the estimate by what the provider counted for the messages as they are now; 0 = nothing."""
        if tokens > 0:
            guess = self._chars // CHARS_PER_TOKEN
            self._counted = min(max(tokens, guess // BELIEVED), guess * BELIEVED + SCHEMAS_TOKENS)
            self._counted_chars = self._chars

    def shorten_result(self, at: int, text: str) -> None:
        """Puts `text` in place of the tool result at index `at`."""
        result = self.messages[at]
        if isinstance(result, ToolResult):
            self.messages[at] = ToolResult(result.call_id, result.name, text, result.ok)
            self._resized(self._chars + len(text) - len(result.text))

    def tail(self, chars: int) -> int:
        """Index of the first of the newest turns that fit into `chars` together; of the newest one at least."""
        start = len(self.messages)
        used = 0
        for at in range(len(self.messages) - 1, 0, -1):
            used += size(self.messages[at : at + 1])
            if isinstance(self.messages[at], Assistant):
                if used > chars and start < len(self.messages):
                    break
                start = at
        return start

    def old(self, end: int) -> list[Message]:
        """The messages before index `end` that may give way: not the system prompt, pins and the last digest."""
        return [m for m in self.messages[:end] if not _stays(m) and m is not self._digest]

    def gain(self, end: int, digest: str) -> int:
        """Characters that `collapse` would save."""
        last = [] if self._digest is None else [self._digest]
        return size(self.old(end)) + size(last) - len(digest)

    def collapse(self, end: int, summary: str, digest: str) -> None:
        """Puts one message with the text `digest` in place of `old(end)`; `summary` is what it says of them."""
        kept: list[Message] = [m for m in self.messages[:end] if _stays(m)]
        self._digest = User(digest)
        self.summary = summary
        # In place: whoever reads `messages` keeps seeing the conversation.
        self.messages[:end] = [*kept, self._digest]
        self._resized(size(self.messages))

    def _resized(self, chars: int) -> None:
        """Fewer characters, and as many tokens fewer as they were worth so far."""
        self._counted = self.tokens * chars / max(1, self._chars)
        self._chars = self._counted_chars = chars


def _stays(message: Message) -> bool:
    return isinstance(message, System) or (isinstance(message, User) and message.pinned)


def size(messages: Iterable[Message]) -> int:
    """Characters of the messages."""
    return sum(map(_chars, messages))


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
