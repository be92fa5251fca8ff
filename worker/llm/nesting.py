"""How deep a JSON text is nested at each of its characters, without parsing it: it may be broken or cut off."""

from __future__ import annotations

from collections.abc import Iterator


def nesting(text: str) -> Iterator[tuple[int, bool]]:
    """After each character: how many objects and lists are open, and whether a string is."""
    depth, in_string, escaped = 0, False, False
    for char in text:
        if in_string:
            if escaped:
                escaped = False
            elif char == "\\":
                escaped = True
            elif char == '"':
                in_string = False
        elif char == '"':
            in_string = True
        elif char in "{[":
            depth += 1
        elif char in "}]":
            depth -= 1
        yield depth, in_string
