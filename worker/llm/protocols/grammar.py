"""What a text protocol's grammar is: where a call may begin in a text, and how to read it from there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from worker.llm.sse import loads

_NAME = re.compile(r'"name"\s*:\s*"([^"\\]{1,200})"')
_ARGUMENTS = re.compile(r'"(?:arguments|parameters)"\s*:\s*(.*)\}\s*\Z', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Spoken:
    """A call that was found in text, before it has an id."""

    name: str
    arguments: str
    complete: bool = True


@dataclass(frozen=True, slots=True)
class Found:
    calls: tuple[Spoken, ...]
    end: int
    """Where the text goes on."""


class Grammar(Protocol):
    """One way of writing calls into text, for the tools of one request."""

    def opener(self, text: str, start: int) -> re.Match[str] | None:
        """The first thing at or after `start` that looks like the beginning of a call."""
        ...

    def undecided(self, text: str, start: int) -> int:
        """Where the end of `text` may still become an opener; its length when nothing may."""
        ...

    def read(self, text: str, opener: re.Match[str], *, cut: bool) -> Found | None:
        """The calls that begin at `opener`; None when it is only text. `cut`: the token limit ended the text."""
        ...


@dataclass(frozen=True, slots=True)
class Token:
    """An opening or a closing mark behind the opener of a call."""

    start: int
    end: int
    opens: bool
    counts: bool
    """An opening one: of the call's own kind. A closing one: alone at the end of its line."""


def closing(tokens: Iterable[Token], *, extend: bool = True) -> Token | None:
    """The mark that ends a call whose content may hold such marks itself.

    Pairs inside the content are skipped. With `extend`, closing marks that are left over before the next call
    belong to the content too: the last of them ends it. Where opening ones are left over, the call ends before the
    first opening mark that follows a closing one.
    """
    depth = 1
    last: Token | None = None
    before_opening: Token | None = None
    end: Token | None = None
    for token in tokens:
        if token.opens:
            if end is not None:
                break
            before_opening = before_opening or last
            depth += token.counts
            continue
        last = token
        depth -= 1
        if depth == 0:
            end = token
            if not extend:
                break
        elif depth < 0 and token.counts:
            end = token
    return end or before_opening or last


def packed(arguments: dict[str, Any]) -> str:
    return json.dumps(arguments, ensure_ascii=False)


def json_call(text: str) -> Spoken | None:
    """`{"name": …, "arguments": {…}}` as a call; None without a name.

    Where it is not quite JSON, the arguments are passed on as they stand: the tool layer repairs them or tells the
    model what is wrong.
    """
    try:
        value = json.JSONDecoder(strict=False).decode(text.strip())
    except (ValueError, RecursionError):
        name, arguments = _NAME.search(text), _ARGUMENTS.search(text)
        return Spoken(name[1], arguments[1].strip() if arguments else "") if name else None
    if not isinstance(value, dict) or not isinstance(name := value.get("name"), str) or not name:
        return None
    given = value.get("arguments", value.get("parameters", {}))
    return Spoken(name, given if isinstance(given, str) else json.dumps(given, ensure_ascii=False))


def json_object(text: str) -> dict[str, Any] | None:
    """The object that `text` is, None for anything else."""
    try:
        value = loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def unwrapped(text: str, *, both: bool = True) -> str:
    """Content between two tags: without the line break behind the first and, with `both`, before the second."""
    bare = text.removeprefix("\r\n") if text.startswith("\r\n") else text.removeprefix("\n")
    if not both or len(bare) == len(text):
        return bare
    return bare.removesuffix("\r\n") if bare.endswith("\r\n") else bare.removesuffix("\n")
