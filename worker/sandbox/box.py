"""One box as the worker uses it: the `Sandbox` seam spoken over a channel.

Nothing in an answer is believed: each field is taken out by name and shape, and one that is missing or odd is a
SandboxError that ends the channel.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Literal, TypeVar, cast

import structlog

from sandbox_image.toolserver import wire
from service.errors import SandboxError
from worker.sandbox.base import (
    BackgroundOutput,
    EditResult,
    Entry,
    ExecResult,
    ExportReport,
    FileContent,
    Listing,
    LoadReport,
    Match,
    SandboxInfo,
    SearchResult,
    Transport,
    WriteResult,
)
from worker.sandbox.channel import Channel

T = TypeVar("T")

_log = structlog.get_logger(__name__)

QUICK_S = 60.0
"""The longest that a file tool may keep us waiting, in all; the pings notice a dead box long before."""
SLOW_S = 900.0
"""For loading, a change set or an export of the largest tree there may be."""
GRACE_S = 30.0
"""Beyond a command's own limit, for killing what it started and telling of it."""
_MAX_ROWS = 100_000
_KINDS = frozenset({"file", "dir", "link", "other"})
_BACKGROUND_BYTES = 256 << 10
_STATES = frozenset({"running", "exited", "killed"})
_ENDS = frozenset({"exited", "timeout", "flood", "cancelled"})


def connect(
    transport: Transport, *, image: str, runtime: str, remove: Callable[[], None], hello_timeout_s: float = 30
) -> Box:
    """The box at the other end of a fresh transport, greeted and attached to.

    `remove` ends the box for good and is called once, after the transport was let go of, also when the greeting
    fails; SandboxError when there is none in time.
    """
    channel = Channel(transport)
    try:
        about = channel.introduce(hello_timeout_s)
        tools = about.get("tools")
        names = tuple(str(tool)[:40] for tool in tools[:100]) if isinstance(tools, list) else ()
        info = SandboxInfo(image=image, runtime=runtime, python=str(about.get("python"))[:40], tools=names)
    except BaseException:
        channel.close()
        remove()
        raise
    return Box(channel, info, remove)


class Box:
    """Implements `Sandbox`."""

    def __init__(self, channel: Channel, info: SandboxInfo, remove: Callable[[], None]) -> None:
        self.info = info
        self._channel = channel
        self._remove: Callable[[], None] | None = remove

    def claim(self, task: str, *, deadline_s: float) -> None:
        self._channel.call("claim", {"task": task, "deadline_s": deadline_s})

    def load(self, tar: Iterable[bytes]) -> LoadReport:
        steps = self._channel.stream("load", {}, tar, timeout_s=SLOW_S)
        answer = self._fields(_drained(steps))
        return LoadReport(answer.number("files"), answer.number("bytes"))

    def exec(
        self,
        command: str,
        *,
        cwd: str = "/workspace",
        env: Mapping[str, str] | None = None,
        timeout_s: float = 120,
        head_bytes: int = 1 << 20,
        tail_bytes: int = 64 << 10,
        flood_bytes: int = 64 << 20,
    ) -> Generator[bytes, None, ExecResult]:
        args = {
            "command": command,
            "cwd": cwd,
            "env": dict(env or {}),
            "timeout_s": timeout_s,
            "head_bytes": head_bytes,
            "tail_bytes": tail_bytes,
            "flood_bytes": flood_bytes,
        }
        steps = self._channel.stream("exec", *_framed(args), timeout_s=timeout_s + GRACE_S)
        tail: list[bytes] = []
        left = head_bytes
        try:
            while True:
                try:
                    piece = next(steps)
                except StopIteration as stop:
                    answer = self._fields(stop.value)
                    break
                head, rest = piece[:left], piece[left:]
                left -= len(head)
                if head:
                    yield head
                if rest:
                    tail.append(rest)
        finally:
            steps.close()  # given up early: the command is killed
        return self._ended(answer, b"".join(tail))

    def _ended(self, answer: _Fields, tail: bytes) -> ExecResult:
        ended = answer.one_of("ended", _ENDS)
        return ExecResult(
            exit_code=answer.number("exit_code", 255) if ended == "exited" else None,
            ended=cast('Literal["exited", "timeout", "flood", "cancelled"]', ended),
            oom_killed=answer.flag("oom_killed"),
            cwd=answer.text("cwd"),
            tail=tail,
            total_bytes=answer.number("total_bytes"),
            duration_ms=answer.number("duration_ms"),
        )

    def background(self, command: str, *, cwd: str = "/workspace", env: Mapping[str, str] | None = None) -> int:
        args = {"command": command, "cwd": cwd, "env": dict(env or {})}
        return self._ask("background", *_framed(args)).number("id")

    def output(self, number: int, *, offset: int = 0) -> BackgroundOutput:
        body, said = self._channel.call(
            "output", {"id": number, "offset": offset, "limit": _BACKGROUND_BYTES}, timeout_s=QUICK_S
        )
        answer = self._fields(said)
        if len(body) > _BACKGROUND_BYTES:
            raise self._odd("it sent more of an output than was asked for")
        state = answer.one_of("state", _STATES)
        return BackgroundOutput(
            data=body,
            offset=answer.number("offset"),
            total_bytes=answer.number("total_bytes"),
            state=cast('Literal["running", "exited", "killed"]', state),
            exit_code=answer.number("exit_code", 255) if state == "exited" else None,
        )

    def kill(self, number: int) -> None:
        self._ask("kill", {"id": number})

    def read(self, path: str, *, limit: int = 10 << 20) -> FileContent:
        body, said = self._channel.call("read", {"path": path, "limit": limit}, timeout_s=QUICK_S)
        answer = self._fields(said)
        if len(body) > limit:
            raise self._odd("it sent more of a file than was asked for")
        return FileContent(body, answer.number("size"), answer.number("mode"), answer.text("stamp"))

    def write(self, path: str, data: bytes, *, overwrite: bool) -> WriteResult:
        answer = self._ask("write", {"path": path, "overwrite": overwrite}, data)
        return WriteResult(answer.flag("created"), answer.number("size"), answer.text("stamp"))

    def edit(self, path: str, old: str, new: str, *, replace_all: bool = False) -> EditResult:
        old_bytes, new_bytes = os.fsencode(old), os.fsencode(new)
        args = {"path": path, "old_size": len(old_bytes), "replace_all": replace_all}
        answer = self._ask("edit", args, old_bytes + new_bytes)
        return EditResult(answer.number("replacements"), answer.text("stamp"))

    def list(self, path: str = ".", *, limit: int = 1_000) -> Listing:
        return self._listing("list", {"path": path, "limit": limit}, limit)

    def glob(self, pattern: str, *, limit: int = 1_000) -> Listing:
        return self._listing("glob", {"pattern": pattern, "limit": limit}, limit)

    def _listing(self, op: str, args: dict[str, Any], limit: int) -> Listing:
        answer = self._ask(op, args)
        entries = []
        for row in answer.rows("entries", limit):
            match row:
                case [str(path), str(kind), int(size), int(mode)] if kind in _KINDS and _is_bytes(path):
                    entries.append(Entry(path, cast('Literal["file", "dir", "link", "other"]', kind), size, mode))
                case _:
                    raise self._odd("an entry of a list is not one")
        return Listing(tuple(entries), answer.number("total"))

    def search(self, pattern: str, path: str = ".", *, limit: int = 200) -> SearchResult:
        answer = self._ask("search", {"pattern": pattern, "path": path, "limit": limit})
        matches = []
        for row in answer.rows("matches", limit):
            match row:
                case [str(found), int(line), str(text)] if _is_bytes(found) and _is_bytes(text):
                    matches.append(Match(found, line, text))
                case _:
                    raise self._odd("a match is not one")
        return SearchResult(tuple(matches), answer.number("total_matches"), answer.number("total_files"))

    def changes(self) -> Iterator[bytes]:
        yield from self._channel.stream("changes", {}, timeout_s=SLOW_S)

    def export(self, job: Iterable[bytes]) -> Generator[bytes, None, ExportReport]:
        said = yield from self._channel.stream("export", {}, job, timeout_s=SLOW_S)
        answer = self._fields(said)
        return ExportReport(
            tree=answer.text("tree"),
            applied=answer.flag("applied"),
            patch_bytes=answer.number("patch_bytes"),
            message=answer.text("message")[:2_000],
        )

    def cancel(self) -> None:
        with suppress(SandboxError):  # a box that is gone runs nothing
            self._channel.tell("cancel")

    def close(self) -> None:
        self._channel.close()
        remove, self._remove = self._remove, None
        if remove is None:
            return
        try:
            remove()
        except SandboxError as error:
            _log.warning("container_not_removed", reason=error.detail)  # the keeper's reaper comes by

    def _ask(self, op: str, args: dict[str, Any], body: bytes | None = None) -> _Fields:
        return self._fields(self._channel.call(op, args, body, timeout_s=QUICK_S)[1])

    def _fields(self, answer: dict[str, Any]) -> _Fields:
        return _Fields(answer, self._odd)

    def _odd(self, what: str) -> SandboxError:
        return self._channel.fail(f"the sandbox's answer makes no sense: {what}")


class _Fields:
    """An answer's fields by name and shape."""

    def __init__(self, values: dict[str, Any], odd: Callable[[str], SandboxError]) -> None:
        self._values = values
        self._odd = odd

    def number(self, name: str, high: int = 1 << 62) -> int:
        value = self._values.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= high:
            raise self._odd(f"{name} is no sensible number")
        return value

    def text(self, name: str) -> str:
        value = self._values.get(name)
        if not isinstance(value, str) or len(value) > 64 << 10 or not _is_bytes(value):
            raise self._odd(f"{name} is no text")
        return value

    def one_of(self, name: str, choices: frozenset[str]) -> str:
        value = self.text(name)
        if value not in choices:
            raise self._odd(f"{name} is none of its values")
        return value

    def flag(self, name: str) -> bool:
        value = self._values.get(name)
        if not isinstance(value, bool):
            raise self._odd(f"{name} is neither true nor false")
        return value

    def rows(self, name: str, limit: int) -> list[Any]:
        value = self._values.get(name)
        if not isinstance(value, list) or len(value) > min(limit, _MAX_ROWS):
            raise self._odd(f"{name} is no list of at most {limit}")
        return value


def _framed(args: dict[str, Any]) -> tuple[dict[str, Any], bytes | None]:
    """The arguments of a command, which go as the body when they are too long for a frame."""
    encoded = wire.dumps(args)
    return ({}, encoded) if len(encoded) > wire.SPLIT else (args, None)


def _is_bytes(text: str) -> bool:
    """Whether it stands for bytes, as all text of a box does: JSON can also spell surrogates that stand for none."""
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return True


def _drained(steps: Generator[bytes, None, T]) -> T:
    """The answer of a call whose body is of no use."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            return cast("T", stop.value)
