"""Takes calls out of a text that is still arriving: text goes on at once, the markup of a call is never shown."""

from __future__ import annotations

from dataclasses import replace

from worker.llm.calls import MAX_CALLS
from worker.llm.protocols.grammar import Grammar, Spoken

MAX_TEXT_CHARS = 1_000_000
MAX_MISTAKEN = 16
"""Openers that turn out to be text, after which the rest is text, too. Both bound the time for hostile text."""
_BLANKS = 64
"""White space in front of a call that is taken for a part of its markup."""


class CallReader:
    """`feed` text as it comes and show what it returns; `end` gives the rest of it and the calls.

    From the first opener on everything is held back until the reply is whole, because only then it is sure where
    a call ends. However the text is cut into pieces, the outcome is the same.
    """

    def __init__(self, grammar: Grammar | None) -> None:
        self._grammar = grammar
        self._tail = ""
        """What is held back, behind the last character shown (openers depend on it)."""
        self._start = 0
        self._opened: list[str] = []
        self._inside = self._spoke = False

    def feed(self, text: str) -> str:
        if self._grammar is None:
            return text
        if self._inside:
            self._opened.append(text)
            return ""
        text = self._tail + text
        opener = self._grammar.opener(text, self._start)
        self._inside = opener is not None
        at = _before_blanks(text, opener.start() if opener else self._grammar.undecided(text, self._start), self._start)
        shown = text[self._start : at]
        self._tail, self._start = (text[at - 1 :], 1) if at else (text, 0)
        self._spoke = self._spoke or bool(shown.strip())
        return shown

    def end(self, *, cut: bool, read: bool = True) -> tuple[str, tuple[Spoken, ...]]:
        """`cut`: the token limit ended the reply, so that its last call may not be whole.

        Without `read` what was held back is text: a reply with real calls means no others.
        """
        text = "".join((self._tail, *self._opened))
        if self._grammar is None or not read or len(text) > MAX_TEXT_CHARS:
            return text[self._start :], ()
        first, later, calls = _read(self._grammar, text, self._start, cut)
        if not calls:
            return text[self._start :], ()
        if cut:
            calls[-1] = replace(calls[-1], complete=False)
        separate = self._spoke or bool(first.strip())
        return first + "\n\n" * bool(separate and later) + "\n\n".join(later), tuple(calls)


def _read(grammar: Grammar, text: str, start: int, cut: bool) -> tuple[str, list[str], list[Spoken]]:
    """The text in front of the first call, the texts behind it, and the calls."""
    pieces: list[str] = []
    calls: list[Spoken] = []
    at, mistaken = start, 0
    while mistaken < MAX_MISTAKEN and len(calls) < MAX_CALLS and (opener := grammar.opener(text, at)):
        found = grammar.read(text, opener, cut=cut)
        at = found.end if found else opener.end()
        if found:
            pieces.append(text[start : _before_blanks(text, opener.start(), start)])
            calls += found.calls
            start = at
        else:
            mistaken += 1
    pieces.append(text[start:])
    return pieces[0], [piece.strip() for piece in pieces[1:] if piece.strip()], calls


def _before_blanks(text: str, at: int, start: int) -> int:
    window = max(start, at - _BLANKS)
    return window + len(text[window:at].rstrip())
