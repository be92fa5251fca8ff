"""The conversation, free of any provider: what the loop keeps, translated only at the call boundary."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from service.events import Event

if TYPE_CHECKING:
    from worker.llm.profiles import Profile

T = TypeVar("T")
Steps = Generator[Event, None, T]
"""The one shape of everything slow: yields events, returns a result, joined with `yield from`."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call as the model made it, complete. `arguments` is the raw text, not yet trusted to be JSON."""

    id: str
    """Unique within a conversation (the assembler makes it so)."""
    name: str
    """May be empty or no tool's name: models do that."""
    arguments: str
    complete: bool = True
    """False when the reply broke off inside this call: it must not be executed, nor its arguments repaired."""


@dataclass(frozen=True, slots=True)
class System:
    text: str


@dataclass(frozen=True, slots=True)
class User:
    text: str
    pinned: bool = False


@dataclass(frozen=True, slots=True)
class Assistant:
    text: str
    calls: tuple[ToolCall, ...] = ()
    reasoning: str = ""
    finish: Literal["stop", "tool_calls", "length"] = "stop"


@dataclass(frozen=True, slots=True)
class ToolResult:
    call_id: str
    name: str
    text: str
    ok: bool = True


Message = System | User | Assistant | ToolResult


@dataclass(frozen=True, slots=True)
class ToolSchema:
    """A tool as the model sees it; `parameters` is a JSON Schema object."""

    name: str
    description: str
    parameters: dict[str, Any]


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Of one model call, as the provider counted; `known` is False where it said nothing."""

    input: int = 0
    cached: int = 0
    """Part of `input`."""
    output: int = 0
    known: bool = True


@dataclass(frozen=True, slots=True)
class Reply:
    message: Assistant
    usage: TokenUsage
    cost_usd: float | None
    """None when the profile has no price."""
    truncated: bool = False
    prompt_tokens: int = 0
    """Size of this conversation as the provider counted it; 0 where it said nothing. `usage` may hold several calls."""
    request: dict[str, Any] = field(default_factory=dict)
    """The body as it was sent, for the transcript."""
    raw: tuple[str, ...] = ()
    """The raw response's data lines, before parsing, for the transcript."""


class Model(Protocol):
    """One model for one run; a real one comes from `worker.llm.client.open_model`."""

    @property
    def profile(self) -> Profile: ...

    def ask(self, messages: Sequence[Message], tools: Sequence[ToolSchema], *, max_seconds: float) -> Steps[Reply]:
        """One reply; yields TextDelta as the model speaks, and a Notice whenever it has to ask again.

        Raises ContextOverflow when the conversation does not fit, ModelError when the provider failed for
        good, Stopped when `max_seconds` (the running time that is left) are over or `abort` was called.
        """
        ...

    def abort(self) -> None:
        """From any thread: the `ask` in flight, and every later one, raises Stopped at once."""
        ...
