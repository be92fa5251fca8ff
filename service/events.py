"""The closed union of what a task's event stream may hold (docs/api.md).

The worker yields these; the store gives each its `seq` and time. `data` of the HTTP event is the
dataclass without its `type`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

EventType = Literal[
    "state", "phase", "text", "message", "tool_started", "tool_output", "tool_finished", "todo",
    "approval_requested", "approval_decided", "compacted", "usage", "notice", "verify_finished",
    "artifact", "network_denied",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class StateChanged:
    type: ClassVar[EventType] = "state"
    state: str
    run: int
    exit_reason: str | None = None
    error: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class PhaseChanged:
    type: ClassVar[EventType] = "phase"
    phase: str


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A piece of what the model is saying; coalesced before it is stored."""

    type: ClassVar[EventType] = "text"
    text: str


@dataclass(frozen=True, slots=True)
class MessageDone:
    """A whole message of the conversation, after its deltas."""

    type: ClassVar[EventType] = "message"
    role: Literal["assistant", "user"]
    text: str
    turn: int


@dataclass(frozen=True, slots=True)
class ToolStarted:
    type: ClassVar[EventType] = "tool_started"
    call_id: str
    tool: str
    arguments: dict[str, Any]
    turn: int


@dataclass(frozen=True, slots=True)
class ToolOutput:
    type: ClassVar[EventType] = "tool_output"
    call_id: str
    text: str


@dataclass(frozen=True, slots=True)
class ToolFinished:
    type: ClassVar[EventType] = "tool_finished"
    call_id: str
    tool: str
    ok: bool
    summary: str
    """The result's first lines, at most 2,000 characters."""
    duration_ms: int


@dataclass(frozen=True, slots=True)
class TodoChanged:
    type: ClassVar[EventType] = "todo"
    items: list[dict[str, str]]


@dataclass(frozen=True, slots=True)
class Compacted:
    """The conversation became shorter, so that it fits the model's window again."""

    type: ClassVar[EventType] = "compacted"
    layer: Literal["auto", "reactive"]
    """`auto`: old turns became a summary; `reactive`: the provider had refused the conversation as too long."""
    tokens_before: int
    tokens_after: int
    """Both estimated."""


@dataclass(frozen=True, slots=True)
class UsageChanged:
    type: ClassVar[EventType] = "usage"
    usage: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Notice:
    """Something the reader should know: a retry, a limit near, output dropped."""

    type: ClassVar[EventType] = "notice"
    code: str
    text: str


@dataclass(frozen=True, slots=True)
class ArtifactStored:
    type: ClassVar[EventType] = "artifact"
    name: str
    bytes: int


Event = (
    StateChanged | PhaseChanged | TextDelta | MessageDone | ToolStarted | ToolOutput | ToolFinished
    | TodoChanged | Compacted | UsageChanged | Notice | ArtifactStored
)  # fmt: skip
"""What this version emits; the other types of `EventType` come with their mechanisms."""

TERMINAL_EVENT: EventType = "state"


def event_data(event: Event) -> dict[str, Any]:
    """The `data` member of the HTTP event."""
    return dataclasses.asdict(event)
