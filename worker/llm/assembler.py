"""Bytes of a Chat Completions answer in, one reply out: pure, and no worse than a ModelError for any bytes.

Reads a stream of chunks or a whole JSON body, whichever came. Tolerates what compatible servers really send:
deltas without an index, repeated or split ids and names, arguments before the name, as a whole or as an object,
empty or missing `choices`, `delta: null`, usage in a chunk of its own, a `finish_reason` that does not fit.
What broke off half-way is a Transient error, never a reply.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from service.errors import ModelError
from worker.llm.calls import CallBuilder
from worker.llm.failures import Transient, in_stream
from worker.llm.messages import Assistant, TokenUsage
from worker.llm.protocols.grammar import Grammar
from worker.llm.protocols.reader import CallReader
from worker.llm.sse import EventStream, loads
from worker.llm.thinking import ThinkingFilter, well_formed

MAX_REPLY_BYTES = 32 << 20
"""Of one answer on the wire; a reply of 64,000 tokens takes 15 MB in the most talkative chunk format seen."""

_LENGTH = frozenset({"length", "max_tokens", "max_output_tokens"})
_INTERRUPTED = frozenset({"error", "network_error", "insufficient_system_resource", "abort"})


@contextmanager
def _bounded_depth() -> Iterator[None]:
    try:
        yield
    except RecursionError:
        raise Transient("the model's answer is nested too deeply to be read") from None


@dataclass(frozen=True, slots=True)
class Assembled:
    message: Assistant
    usage: TokenUsage
    truncated: bool
    """The token limit ended it."""


class Assembler:
    """Takes one answer: `feed` its bytes, then `finish`.

    `taken` are the call ids the conversation already uses; `grammar` says how calls may stand in the text.
    """

    def __init__(self, taken: frozenset[str] = frozenset(), grammar: Grammar | None = None) -> None:
        self._kind: Literal["unknown", "stream", "json"] = "unknown"
        self._events = EventStream()
        self._body: list[bytes] = []
        self._size = 0
        self._filter = ThinkingFilter()
        self._reader = CallReader(grammar)
        self._said: list[str] = []
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls = CallBuilder(taken)
        self._usage: TokenUsage | None = None
        self._finish = ""
        self._chosen = False
        self._done = False
        self.lines: list[str] = []
        """The data lines read so far, before parsing."""

    def feed(self, chunk: bytes) -> str:
        """Takes bytes as they come and returns the visible text they completed."""
        with _bounded_depth():
            return self._feed(chunk)

    def finish(self) -> tuple[str, Assembled]:
        """The end of the visible text, and the reply; Transient when the answer broke off."""
        with _bounded_depth():
            return self._finished()

    def _feed(self, chunk: bytes) -> str:
        self._size += len(chunk)
        if self._size > MAX_REPLY_BYTES:
            raise ModelError(f"the model's answer is larger than {MAX_REPLY_BYTES >> 20} MB")
        if self._kind == "unknown":
            chunk = self._recognize(chunk)
        if self._kind == "json":
            self._body.append(chunk)
            return ""
        return self._take(self._events.feed(chunk)) if self._kind == "stream" else ""

    def _finished(self) -> tuple[str, Assembled]:
        text = self._whole_body() if self._kind == "json" else self._take(self._events.end())
        self._check_end()
        length = self._finish in _LENGTH
        last, unclosed = self._filter.end()
        text += self._visible(last)
        self._reasoning.append(unclosed)
        # A server that found calls itself may have left them in the text, too: they are not run twice.
        rest, spoken = self._reader.end(cut=length, read=not self._calls)
        text += rest
        self._text.append(rest)
        for call in spoken:
            self._calls.add_spoken(call.name, call.arguments, complete=call.complete)
        calls = self._calls.finish(cut=length)
        message = Assistant(
            text=well_formed("".join(self._text)),
            calls=calls,
            reasoning=well_formed("".join((*self._filter.thoughts, *self._reasoning))),
            finish="length" if length else "tool_calls" if calls else "stop",
        )
        return text, Assembled(message, self._usage or TokenUsage(known=False), length)

    def said(self) -> str:
        """Everything the model said so far, in one piece: text, reasoning, arguments."""
        return "\n".join(("".join(self._said), "".join(self._reasoning), *self._filter.thoughts, *self._calls.texts()))

    # ------------------------------------------------------------------------------------------ recognizing

    def _recognize(self, chunk: bytes) -> bytes:
        self._body.append(chunk)
        start = b"".join(self._body).removeprefix(b"\xef\xbb\xbf").lstrip()
        if not start:
            return b""
        if start.startswith(b"<"):
            raise ModelError("the model's address answered with a web page, not an API answer: check base_url")
        self._kind = "json" if start[:1] in (b"{", b"[") else "stream"
        self._body = []
        return start

    def _whole_body(self) -> str:
        text = b"".join(self._body).decode("utf-8", "replace")
        try:
            body = loads(text)
        except ValueError:
            raise Transient("the model's answer broke off: its JSON is not complete") from None
        # One line: a raw line end can only stand between the tokens of JSON.
        self.lines.append(text.replace("\r", " ").replace("\n", " "))
        self._done = True
        return self._chunk("", body)

    # --------------------------------------------------------------------------------------------- chunks

    def _take(self, events: list[tuple[str, str]]) -> str:
        return "".join(self._event(event, data) for event, data in events)

    def _event(self, event: str, data: str) -> str:
        if self._done:
            return ""  # nothing counts after [DONE]
        data = data.strip()
        self.lines.append(data)
        if data == "[DONE]":
            self._done = True
        if not data.startswith(("{", "[{")):
            return ""  # keep-alives such as "ping" are no chunks
        try:
            chunk = loads(data)
        except ValueError:
            raise Transient("the model's answer was damaged on its way: a chunk is not JSON") from None
        return self._chunk(event, chunk)

    def _chunk(self, event: str, chunk: Any) -> str:
        if isinstance(chunk, list):
            chunk = chunk[0] if chunk else {}
        if not isinstance(chunk, dict):
            return ""
        if event == "error" or chunk.get("error"):
            raise in_stream(chunk.get("error") or chunk)
        self._count(chunk.get("usage"))
        choices = chunk.get("choices")
        if not isinstance(choices, list) or not choices:
            if self._kind == "json":
                raise in_stream(chunk)
            return ""
        return self._choice(choices[0])

    def _choice(self, choice: Any) -> str:
        if not isinstance(choice, dict) or choice.get("index") not in (0, None):
            return ""
        self._chosen = True
        self._count(choice.get("usage"))
        if isinstance(reason := choice.get("finish_reason"), str) and reason:
            self._finish = reason
        for key in ("delta", "message"):
            if isinstance(delta := choice.get(key), dict):
                return self._delta(delta)
        return ""

    def _delta(self, delta: dict[str, Any]) -> str:
        text, thought = _content(delta.get("content"))
        if isinstance(refusal := delta.get("refusal"), str):
            text += refusal
        for key in ("reasoning_content", "reasoning"):
            if isinstance(piece := delta.get(key), str) and piece:
                thought += piece
                break  # servers that send both send the same text twice
        self._reasoning.append(thought)
        calls = delta.get("tool_calls")
        for call in calls if isinstance(calls, list) else [calls]:
            self._calls.add(call)
        if isinstance(function := delta.get("function_call"), dict):
            self._calls.add({"index": 0, "function": function})
        return self._visible(self._filter.feed(text))

    def _visible(self, said: str) -> str:
        """What of the text is no call."""
        self._said.append(said)
        text = self._reader.feed(said)
        self._text.append(text)
        return text

    def _count(self, usage: Any) -> None:
        if isinstance(usage, dict) and (counted := _usage(usage)) is not None:
            self._usage = counted

    # ------------------------------------------------------------------------------------------------ end

    def _check_end(self) -> None:
        if self._finish in _INTERRUPTED:
            raise Transient(f"the model's provider broke off its answer ({self._finish})")
        if self._finish == "content_filter":
            raise ModelError("the provider's content filter stopped the model's answer", retryable=False)
        if not self._finish and not self._done:
            raise Transient("the model's answer broke off")
        if not self._chosen:
            raise Transient("the model's provider sent an answer without content")


def _content(content: Any) -> tuple[str, str]:
    """Text and thoughts of a `content` that is a string, null, or a list of typed parts."""
    if isinstance(content, str):
        return content, ""
    parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    thinking = [part["thinking"] for part in parts if isinstance(part.get("thinking"), list)]
    thoughts = [piece for pieces in thinking for piece in pieces if isinstance(piece, dict)]
    return _texts(parts), _texts(thoughts)


def _texts(parts: list[dict[str, Any]]) -> str:
    return "".join(part["text"] for part in parts if isinstance(part.get("text"), str))


def _usage(usage: dict[str, Any]) -> TokenUsage | None:
    """The provider's count; None where it is not one. Cached tokens have three spellings."""

    def number(value: Any) -> int | None:
        return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53 else None

    given, made = number(usage.get("prompt_tokens")), number(usage.get("completion_tokens"))
    if given is None or made is None:
        return None
    details = usage.get("prompt_tokens_details")
    spellings = (
        details.get("cached_tokens") if isinstance(details, dict) else None,
        usage.get("prompt_cache_hit_tokens"),
        usage.get("cached_tokens"),
    )
    cached = next((count for count in map(number, spellings) if count is not None), 0)
    return TokenUsage(input=given, cached=min(cached, given), output=made)
