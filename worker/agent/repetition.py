"""Notices when a run goes round in circles."""

from __future__ import annotations

from collections import deque

SAME_CALLS = 4
SAME_ERRORS = 3
ALTERNATING = 6


class Repetition:
    """Remembers the last calls with their results; a command's exit code is a result, not an error."""

    def __init__(self) -> None:
        self._last: deque[tuple[str, int, str | None]] = deque(maxlen=ALTERNATING)

    def saw(self, call: str, result: str, error: str | None) -> None:
        """Takes one finished call: its name and arguments, its result, the kind of its failure."""
        self._last.append((call, hash(result), error))

    def found(self) -> str:
        """What goes round, in words; empty when nothing does. What was found is forgotten, so that it counts anew."""
        last = list(self._last)
        reason = ""
        if len(last) >= SAME_CALLS and len(set(last[-SAME_CALLS:])) == 1:
            reason = f"the same call gave the same result {SAME_CALLS} times"
        elif len(last) >= SAME_ERRORS and last[-1][2] and len({error for *_, error in last[-SAME_ERRORS:]}) == 1:
            reason = f"{SAME_ERRORS} tool calls in a row failed the same way ({last[-1][2]})"
        elif len(last) == ALTERNATING and len(set(last[::2])) == len(set(last[1::2])) == 1 and last[0] != last[1]:
            reason = "two calls alternate without any change in their results"
        if reason:
            self._last.clear()
        return reason
