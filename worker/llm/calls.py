"""Joins the fragments of tool calls into calls with ids of their own."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from worker.llm.messages import ToolCall
from worker.llm.nesting import nesting
from worker.llm.thinking import well_formed

MAX_CALLS = 128
"""Of one reply; the field's APIs allow that many."""

_USABLE_ID = re.compile(r"[A-Za-z0-9_:.-]{1,128}")


def is_cut(arguments: str) -> bool:
    """True when a JSON text ends inside a string, an object or a list: it broke off.

    Other mistakes (a raw newline, a trailing comma) are not cuts: such text is whole and may be repaired.
    """
    depth, in_string = 0, False
    for depth, in_string in nesting(arguments):  # noqa: B007 - the last one counts
        pass
    return in_string or depth > 0


@dataclass(slots=True)
class _Call:
    id: str = ""
    name: str = ""
    pieces: list[str] = field(default_factory=list)
    complete: bool = True

    @property
    def arguments(self) -> str:
        return "".join(self.pieces)


class CallBuilder:
    """`add` each fragment as it comes, then `finish`. `taken` are ids that must not be used again."""

    def __init__(self, taken: frozenset[str]) -> None:
        self._taken = set(taken)
        self._calls: list[_Call] = []
        self._by_index: dict[int, _Call] = {}

    def add(self, fragment: Any) -> None:
        """Takes one element of `tool_calls`, whatever it is."""
        if not isinstance(fragment, dict):
            return
        function = fragment.get("function")
        function = function if isinstance(function, dict) else {}
        id, name = _text(fragment.get("id")), _text(function.get("name"))
        arguments = function.get("arguments")
        piece = json.dumps(arguments) if isinstance(arguments, dict | list) else _text(arguments)
        index = fragment.get("index")
        call = self._find(index if type(index) is int else None, id, name, piece)
        if call is None:
            return
        call.id = call.id or id
        if not call.pieces:
            call.name = _joined(call.name, name)
        elif not call.name:
            call.name = name
        if piece:
            call.pieces.append(piece)

    def add_spoken(self, name: str, arguments: str, *, complete: bool) -> None:
        """Takes a call that was found in text, as a whole."""
        if len(self._calls) < MAX_CALLS:
            self._calls.append(_Call(name=name, pieces=[arguments], complete=complete))

    def __len__(self) -> int:
        return len(self._calls)

    def finish(self, *, cut: bool) -> tuple[ToolCall, ...]:
        """The calls in order, each with an id no other has. `cut`: the token limit ended the reply."""
        calls = [call for call in self._calls if call.id or call.name or call.pieces]
        return tuple(self._finished(call, cut and call is calls[-1]) for call in calls)

    def texts(self) -> Iterator[str]:
        return (call.arguments for call in self._calls)

    def _find(self, index: int | None, id: str, name: str, piece: str) -> _Call | None:
        last = self._calls[-1] if self._calls else None
        current = last if index is None else self._by_index.get(index)
        if current is not None and not self._begins_another(current, index, id, name, piece):
            return current
        if current is None and not (id or name or piece):
            return None
        if len(self._calls) >= MAX_CALLS:
            return None
        current = _Call()
        self._calls.append(current)
        if index is not None:
            self._by_index[index] = current
        return current

    @staticmethod
    def _begins_another(current: _Call, index: int | None, id: str, name: str, piece: str) -> bool:
        if id and current.id and id != current.id:
            return True
        if id and index is not None:
            return False  # the same index and id: servers that repeat both in every delta
        # Nothing tells them apart but that the one before is whole and this one starts with a name.
        if not (name and current.name and current.pieces and piece.lstrip().startswith("{")):
            return False
        return not is_cut(current.arguments)

    def _finished(self, call: _Call, last_of_cut: bool) -> ToolCall:
        arguments = well_formed(call.arguments)
        complete = call.complete and not is_cut(arguments) and not (last_of_cut and not arguments.strip())
        return ToolCall(self._unique(call.id), well_formed(call.name).strip(), arguments, complete)

    def _unique(self, id: str) -> str:
        if id in self._taken or not _USABLE_ID.fullmatch(id):
            # Nine letters and digits: the one form that every provider accepts back.
            number = len(self._taken) + 1
            while (id := f"c{number:08d}") in self._taken:
                number += 1
        self._taken.add(id)
        return id


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _joined(name: str, piece: str) -> str:
    """A name that comes in pieces; one that is repeated, or grows from delta to delta, is not doubled."""
    return piece if piece.startswith(name) else name + piece
