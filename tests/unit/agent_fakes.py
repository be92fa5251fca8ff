"""A scripted model and a box in memory: just enough of both seams to see what the loop and the tools do."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from service.contracts import Limits
from service.events import Event, TextDelta
from worker.agent.budget import Budget
from worker.agent.context import Conversation
from worker.llm.messages import Assistant, Message, Reply, Steps, TokenUsage, ToolCall, ToolSchema
from worker.llm.profiles import Profile
from worker.sandbox.base import (
    BackgroundOutput,
    EditResult,
    ExecResult,
    FileContent,
    Listing,
    SandboxInfo,
    SearchResult,
    ToolFailure,
    WriteResult,
)
from worker.tools.base import Answer
from worker.tools.registry import Toolbox, build_toolbox

T = TypeVar("T")
COUNTED = TokenUsage(10, 0, 5)


def drain(steps: Generator[Event, None, T]) -> tuple[list[Event], T]:
    events: list[Event] = []
    while True:
        try:
            events.append(next(steps))
        except StopIteration as stop:
            return events, stop.value


def says(text: str = "", *calls: tuple[str, Any], usage: TokenUsage = COUNTED, **more: Any) -> Reply:
    """A reply; a call is (tool, arguments as an object or as raw text)."""
    made = tuple(
        ToolCall(f"c{at}", name, arguments if isinstance(arguments, str) else json.dumps(arguments))
        for at, (name, arguments) in enumerate(calls)
    )
    more.setdefault("cost_usd", None)
    return Reply(Assistant(text, made), usage, **more)


class Script:
    """Answers with the given replies in order, the last one for ever; remembers what it was asked."""

    def __init__(self, *replies: Reply, window: int = 128_000) -> None:
        self.replies = list(replies)
        self.profile = Profile(name="script", base_url="", model="script", context_window=window)
        self.asked: list[list[Message]] = []
        self.max_seconds: list[float] = []

    def ask(self, messages: Sequence[Message], tools: Sequence[ToolSchema], *, max_seconds: float) -> Steps[Reply]:
        self.asked.append(list(messages))
        self.max_seconds.append(max_seconds)
        reply = self.replies[min(len(self.asked), len(self.replies)) - 1]
        if reply.message.text:
            yield TextDelta(reply.message.text)
        return reply

    def abort(self) -> None:
        raise NotImplementedError


@dataclass
class Command:
    """What the next `exec` does."""

    pieces: tuple[bytes, ...] = ()
    exit_code: int | None = 0
    ended: Any = "exited"
    oom_killed: bool = False
    cwd: str = "/workspace"
    tail: bytes = b""
    total_bytes: int = -1


@dataclass
class MemoryBox:
    files: dict[str, bytes] = field(default_factory=dict)
    commands: list[Command] = field(default_factory=list)
    ran: list[dict[str, Any]] = field(default_factory=list)
    said: list[BackgroundOutput] = field(default_factory=list)
    """What each background command has said, whole."""
    listing: Listing = field(default_factory=lambda: Listing((), 0))
    found: SearchResult = field(default_factory=lambda: SearchResult((), 0, 0))
    info: SandboxInfo = field(default_factory=lambda: SandboxInfo("sha256:0", "runc", "3.13.5", ("git", "rg")))

    def _key(self, path: str) -> str:
        return posixpath.normpath(posixpath.join("/workspace", path))

    def exec(
        self,
        command: str,
        *,
        cwd: str = "/workspace",
        env: Mapping[str, str] | None = None,
        timeout_s: float = 120,
        **_caps: int,
    ) -> Generator[bytes, None, ExecResult]:
        self.ran.append({"command": command, "cwd": cwd, "env": env, "timeout_s": timeout_s})
        now = self.commands.pop(0) if self.commands else Command()
        yield from now.pieces
        total = now.total_bytes if now.total_bytes >= 0 else sum(map(len, now.pieces))
        return ExecResult(now.exit_code, now.ended, now.oom_killed, now.cwd, now.tail, total, 1)

    def background(self, command: str, *, cwd: str = "/workspace", env: Mapping[str, str] | None = None) -> int:
        self.ran.append({"command": command, "cwd": cwd, "env": env, "background": True})
        self.said.append(BackgroundOutput(b"", 0, 0, "running", None))
        return len(self.said)

    def output(self, number: int, *, offset: int = 0) -> BackgroundOutput:
        said = self.said[number - 1] if number <= len(self.said) else None
        if said is None:
            raise ToolFailure("not_found", f"there is no background command {number}")
        start = max(said.offset, offset)
        return replace(said, data=said.data[start - said.offset :], offset=start)

    def kill(self, number: int) -> None:
        self.said[number - 1] = replace(self.said[number - 1], state="killed")

    def read(self, path: str, *, limit: int = 10 << 20) -> FileContent:
        if self._key(path) not in self.files:
            raise ToolFailure("not_found", f"{path}: no such file")
        data = self.files[self._key(path)]
        return FileContent(data[:limit], len(data), 0o644, "1")

    def write(self, path: str, data: bytes, *, overwrite: bool) -> WriteResult:
        before = self.files.get(self._key(path))
        if before and not overwrite:
            raise ToolFailure("exists", f"{path}: already exists")
        self.files[self._key(path)] = data
        return WriteResult(before is None, len(data), "2")

    def edit(self, path: str, old: str, new: str, *, replace_all: bool = False) -> EditResult:
        content = self.read(path).data.decode()
        count = content.count(old)
        if not count:
            raise ToolFailure("no_match", "not there")
        if count > 1 and not replace_all:
            raise ToolFailure("not_unique", "more than once")
        self.files[self._key(path)] = content.replace(old, new).encode()
        return EditResult(count, "3")

    def list(self, path: str = ".", *, limit: int = 1_000) -> Listing:
        return self.listing

    def glob(self, pattern: str, *, limit: int = 1_000) -> Listing:
        return self.listing

    def search(self, pattern: str, path: str = ".", *, limit: int = 200) -> SearchResult:
        return self.found

    def changes(self) -> Iterator[bytes]:
        raise NotImplementedError

    def cancel(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


def toolbox_over(
    box: MemoryBox, kept: dict[str, bytes] | None = None, timeout_s: int = 120, *, dry_run: bool = False
) -> Toolbox:
    store = {} if kept is None else kept
    return build_toolbox(
        box,  # type: ignore[arg-type]
        env={"A": "1"},
        command_timeout_s=timeout_s,
        store_artifact=store.__setitem__,
        dry_run=dry_run,
    )


def use(toolbox: Toolbox, tool: str, arguments: Any, call_id: str = "c1") -> tuple[list[Event], Answer]:
    """One call through the whole tool layer."""
    raw = arguments if isinstance(arguments, str) else json.dumps(arguments)
    prepared = toolbox.prepare(ToolCall(call_id, tool, raw))
    if isinstance(prepared, Answer):
        return [], prepared
    return drain(toolbox.execute(prepared))


def data(toolbox: Toolbox, text: str) -> str:
    return f"<{toolbox.marker}>\n{text}\n</{toolbox.marker}>"


def budget_of(**limits: Any) -> Budget:
    return Budget(Limits(**limits), seconds_left=lambda: 3600.0)


def conversation() -> Conversation:
    return Conversation.start("system", "task")
