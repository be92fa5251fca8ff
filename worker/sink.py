"""Where a run's events go: masked, in order, into the store; with the newest usage and todo kept at hand."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar

from service.contracts import TodoItem, Usage
from service.events import (
    Event,
    MessageDone,
    TextDelta,
    TodoChanged,
    ToolFinished,
    ToolOutput,
    UsageChanged,
)
from worker.llm.messages import Steps
from worker.masking import MaskedStream, Masker

T = TypeVar("T")

MAX_ARTIFACTS = 500
"""Per run; more are dropped with their event, so that a flood of outputs stays bounded."""


class Journal(Protocol):
    """The store's side of a run, bound to its lease; every call raises LeaseLost when that is gone."""

    def append(self, event: Event) -> None: ...

    def update(self, **fields: Any) -> None: ...

    def add_artifact(self, name: str, chunks: Iterable[bytes]) -> None:
        """Stores it and tells so as an event."""
        ...


class Sink:
    """The only event sink of a run. `check` raises when the run may no longer write."""

    def __init__(self, journal: Journal, masker: Masker, check: Callable[[], None]) -> None:
        self._journal = journal
        self._masker = masker
        self._check = check
        self._streams: dict[str, MaskedStream] = {}
        self._artifacts = 0
        self.usage = Usage()

    def drain(self, steps: Steps[T]) -> T:
        """Writes every event of `steps` and returns its result; closes it on any way out."""
        try:
            while True:
                try:
                    event = next(steps)
                except StopIteration as done:
                    result: T = done.value
                    return result
                self.write(event)
        finally:
            steps.close()

    def write(self, event: Event) -> None:
        self._check()
        match event:
            case TextDelta():
                self._piece("", event)
            case ToolOutput():
                self._piece(event.call_id, event)
            case MessageDone():
                self._flush("", TextDelta(""))
                self._append(event)
            case ToolFinished():
                self._flush(event.call_id, ToolOutput(event.call_id, ""))
                self._append(event)
            case UsageChanged():
                self.usage = Usage.model_validate(event.usage)
                self._journal.update(usage=self.usage)
                self._append(event)
            case TodoChanged():
                items = self._masker.data(event.items)
                self._journal.update(todo=tuple(TodoItem.model_validate(item) for item in items))
                self._append(event)
            case _:
                self._append(event)

    def artifact(self, name: str, data: bytes) -> None:
        """Stores an artifact, masked."""
        self._check()
        if self._artifacts >= MAX_ARTIFACTS:
            return
        self._artifacts += 1
        self._journal.add_artifact(name, [self._masker.bytes(data)])

    def _piece(self, key: str, event: TextDelta | ToolOutput) -> None:
        stream = self._streams.setdefault(key, MaskedStream(self._masker))
        if text := stream.feed(event.text):
            self._journal.append(dataclasses.replace(event, text=text))

    def _flush(self, key: str, event: TextDelta | ToolOutput) -> None:
        stream = self._streams.pop(key, None)
        if stream is not None and (text := stream.end()):
            self._journal.append(dataclasses.replace(event, text=text))

    def _append(self, event: Event) -> None:
        fields = self._masker.data(dataclasses.asdict(event))
        self._journal.append(type(event)(**fields))
