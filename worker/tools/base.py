"""What a tool is: a name and schema for the model, a handler for us, and the session all tools of a run share."""

from __future__ import annotations

import posixpath
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from service.contracts import TodoItem
from worker.llm.messages import Steps, ToolSchema
from worker.sandbox.base import Sandbox

WORKSPACE = "/workspace"

Arguments = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a tool says to the model. `error` is the kind of a failure, None when the tool did its work."""

    text: str
    error: str | None = None

    @property
    def ok(self) -> bool:
        return self.error is None


def failure(kind: str, message: str, detail: str = "") -> Answer:
    """One line `Error: …`, with material that helps to act on it below (`detail`)."""
    line = "Error: " + " ".join(message.split())
    return Answer(f"{line}\n{detail}" if detail else line, kind)


@dataclass(frozen=True, slots=True)
class Skill:
    """A `SKILL.md` of the image or the workspace; the text itself is read when it is asked for."""

    name: str
    description: str
    path: str
    """Of the SKILL.md, as the file tools take it."""


@dataclass(slots=True)
class Watch:
    """How far a background command has been looked at."""

    started: float
    offset: int = 0
    """Bytes of its output that the model has been shown."""
    ended: bool = False


@dataclass(slots=True)
class Session:
    """The state that lasts from call to call of one run."""

    sandbox: Sandbox
    env: Mapping[str, str]
    command_timeout_s: int
    store_artifact: Callable[[str, bytes], None]
    marker: str = field(default_factory=lambda: f"data-{secrets.token_hex(4)}")
    """Tag around untrusted text. Random per run, so that no file can hold its end tag."""
    cwd: str = WORKSPACE
    seen: set[str] = field(default_factory=set)
    """Absolute paths whose content the model has read or written: those it may overwrite."""
    skills: Mapping[str, Skill] = field(default_factory=dict)
    skills_in_use: dict[str, str] = field(default_factory=dict)
    """By name, the newest last: the answers that brought them."""
    todo: tuple[TodoItem, ...] = ()
    turns_since_todo: int = 0
    finished: str | None = None
    """The summary given to `done`."""
    artifacts: int = 0
    background: dict[int, Watch] = field(default_factory=dict)
    """By the number the box gave."""

    @property
    def still(self) -> bool:
        """No command of ours is alive between two calls; one in the background is, until it was seen to have ended."""
        return all(watch.ended for watch in self.background.values())

    def block(self, text: str) -> str:
        """Untrusted text, marked as data."""
        return f"<{self.marker}>\n{text.rstrip(chr(10))}\n</{self.marker}>"

    def keep(self, tool: str, data: bytes) -> None:
        """Hands a whole output on as an artifact: the model saw a part, people may want the rest."""
        self.artifacts += 1
        self.store_artifact(f"output-{self.artifacts:03d}-{tool}.txt", data)


def absolute(path: str) -> str:
    """The path as the box sees it, links not resolved; relative ones start at the workspace."""
    return posixpath.normpath(posixpath.join(WORKSPACE, path))


Handler = Callable[[Session, Arguments, str], Steps[Answer]]
"""(session, checked arguments, call id) → events, then the answer. May raise ToolFailure."""


def immediate(function: Callable[[Session, Arguments], Answer]) -> Handler:
    """The handler of a tool that has nothing to tell while it works."""

    def handler(session: Session, arguments: Arguments, _call_id: str) -> Steps[Answer]:
        yield from ()
        return function(session, arguments)

    return handler


@dataclass(frozen=True, slots=True)
class Tool:
    name: str
    description: str
    """Tells the model when to use it."""
    properties: Mapping[str, dict[str, Any]]
    required: tuple[str, ...]
    handler: Handler
    read_only: bool = False
    """Changes nothing, not even the session, and tells nothing while it works: several may run at the same time."""
    idempotent: bool = False
    """To do it twice leaves what doing it once leaves: asked again when the box had no room for it."""
    writes: bool = False
    """May change the workspace: in a dry run it is told, not carried out."""

    @property
    def parameters(self) -> dict[str, Any]:
        """The JSON Schema of the arguments."""
        return {
            "type": "object",
            "properties": dict(self.properties),
            "required": list(self.required),
            "additionalProperties": False,
        }

    @property
    def schema(self) -> ToolSchema:
        return ToolSchema(self.name, self.description, self.parameters)
