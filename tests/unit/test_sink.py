"""The sink: order, masking across pieces, and what it keeps at hand."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from service.contracts import TodoItem, Usage
from service.errors import LeaseLost
from service.events import (
    Event,
    MessageDone,
    Notice,
    TextDelta,
    TodoChanged,
    ToolFinished,
    ToolOutput,
    UsageChanged,
)
from worker.llm.messages import Steps
from worker.masking import MASK, Masker
from worker.sink import Sink

SECRET = "hunter2hunter2"


class Recorder:
    def __init__(self) -> None:
        self.events: list[Event] = []
        self.fields: dict[str, Any] = {}
        self.artifacts: dict[str, bytes] = {}

    def append(self, event: Event) -> None:
        self.events.append(event)

    def update(self, **fields: Any) -> None:
        self.fields.update(fields)

    def add_artifact(self, name: str, chunks: Iterable[bytes]) -> None:
        self.artifacts[name] = b"".join(chunks)


@pytest.fixture
def journal() -> Recorder:
    return Recorder()


@pytest.fixture
def sink(journal: Recorder) -> Sink:
    return Sink(journal, Masker([SECRET]), check=lambda: None)


def test_a_secret_cut_over_two_deltas_is_masked_before_the_message_ends(sink: Sink, journal: Recorder) -> None:
    for event in (TextDelta("pw hunter2"), TextDelta("hunter2"), MessageDone("assistant", f"pw {SECRET}", 1)):
        sink.write(event)
    assert journal.events == [TextDelta("pw "), TextDelta(MASK), MessageDone("assistant", f"pw {MASK}", 1)]


def test_outputs_of_two_calls_are_masked_apart(sink: Sink, journal: Recorder) -> None:
    sink.write(ToolOutput("a", "hunter2"))
    sink.write(ToolOutput("b", "plain. "))
    sink.write(ToolFinished("a", "bash", True, "ok", 3))
    assert journal.events == [
        ToolOutput("b", "plain. "),
        ToolOutput("a", "hunter2"),
        ToolFinished("a", "bash", True, "ok", 3),
    ]


def test_usage_and_todo_are_kept_on_the_task(sink: Sink, journal: Recorder) -> None:
    sink.write(UsageChanged({"turns": 2, "input_tokens": 10}))
    sink.write(TodoChanged([{"text": f"use {SECRET}", "status": "in_progress"}]))
    assert journal.fields["usage"] == sink.usage == Usage(turns=2, input_tokens=10)
    assert journal.fields["todo"] == (TodoItem(text=f"use {MASK}", status="in_progress"),)


def test_an_artifact_is_masked(sink: Sink, journal: Recorder) -> None:
    sink.artifact("out.txt", f"x{SECRET}".encode())
    assert journal.artifacts == {"out.txt": f"x{MASK}".encode()}


def test_draining_returns_the_result_and_closes_what_fails() -> None:
    journal = Recorder()
    closed = []

    def steps() -> Steps[str]:
        try:
            yield Notice("a", "b")
            return "done"
        finally:
            closed.append(True)

    assert Sink(journal, Masker([]), check=lambda: None).drain(steps()) == "done"
    assert journal.events == [Notice("a", "b")]

    def lost() -> None:
        raise LeaseLost("gone")

    with pytest.raises(LeaseLost):
        Sink(journal, Masker([]), check=lost).drain(steps())
    assert closed == [True, True]
    assert journal.events == [Notice("a", "b")]
