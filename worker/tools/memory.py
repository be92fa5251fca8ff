"""Answers of read-only calls, for as long as nothing can have changed what they tell of."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from worker.tools.base import Answer

MAX_ANSWERS = 64
"""Of at most 16,000 characters each; the oldest go first."""


class Memory:
    """What a call answered when it was made before. `forget` whenever something may have written.

    No file is looked at again to tell whether an answer still holds (docs/decisions/061): no process of the box lives
    between two calls, so only our own calls change anything. Safe to use from several threads.
    """

    def __init__(self) -> None:
        self._answers: dict[str, Answer] = {}

    def recall(self, tool: str, arguments: Mapping[str, Any]) -> Answer | None:
        return self._answers.get(_key(tool, arguments))

    def keep(self, tool: str, arguments: Mapping[str, Any], answer: Answer) -> None:
        """A failure is not kept: it may be of the moment."""
        if answer.ok:
            self._answers[_key(tool, arguments)] = answer
        while len(self._answers) > MAX_ANSWERS:
            self._answers.pop(next(iter(self._answers)), None)

    def forget(self) -> None:
        self._answers.clear()


def _key(tool: str, arguments: Mapping[str, Any]) -> str:
    return f"{tool} {json.dumps(arguments, sort_keys=True)}"
