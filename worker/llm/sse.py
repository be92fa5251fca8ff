"""Server-sent events, cut out of bytes that arrive in any pieces; more forgiving than the standard."""

from __future__ import annotations

import json
from typing import Any


def loads(text: str) -> Any:
    """`json.loads`, with a hostile nesting depth as the same ValueError as any other mistake."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


class EventStream:
    """`feed` bytes, get the `(event, data)` pairs that are complete; `end` gives what a lost last blank line held.

    Comments, ids and retry lines are dropped; CRLF, CR and LF end a line; a blank line between two events
    may be missing where the data read so far is complete JSON (some servers leave it out).
    """

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._held_cr = False
        self._data: list[str] = []
        self._event = ""
        self._first = True

    def feed(self, chunk: bytes) -> list[tuple[str, str]]:
        if self._held_cr:
            chunk = b"\r" + chunk
        # A CR at the end may be half of a CRLF: it waits for the next byte.
        self._held_cr = chunk.endswith(b"\r")
        chunk = chunk.removesuffix(b"\r").replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        head, newline, rest = chunk.rpartition(b"\n")
        if not newline:
            self._parts.append(rest)
            return []
        block = b"".join(self._parts) + head
        self._parts = [rest]
        return self._lines(block)

    def end(self) -> list[tuple[str, str]]:
        """The events of what has not been ended by a line end or a blank line."""
        rest, self._parts = b"".join(self._parts), []
        return [*self._lines(rest), *self._dispatch()]

    def _lines(self, block: bytes) -> list[tuple[str, str]]:
        if self._first:
            self._first = False
            block = block.removeprefix(b"\xef\xbb\xbf")
        events: list[tuple[str, str]] = []
        for line in block.split(b"\n"):
            if not line:
                events += self._dispatch()
                continue
            field, _, value = line.partition(b":")
            text = value.removeprefix(b" ").decode("utf-8", "replace")
            if field == b"event":
                self._event = text
            elif field == b"data":
                if self._data and self._is_whole():
                    events += self._dispatch()
                self._data.append(text)
        return events

    def _is_whole(self) -> bool:
        text = "\n".join(self._data)
        if text.strip() == "[DONE]":
            return True
        try:
            loads(text)
        except ValueError:
            return False
        return True

    def _dispatch(self) -> list[tuple[str, str]]:
        data, event = self._data, self._event
        self._data, self._event = [], ""
        return [(event, "\n".join(data))] if data else []
