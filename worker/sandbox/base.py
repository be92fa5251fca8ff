"""The seam between the worker and a box: what can be asked of a sandbox, and who is to blame when it fails.

Three outcomes, never mixed:
  - a result: what the command or file tool did, also when that was to fail (`ExecResult.exit_code`);
  - `ToolFailure`: the request could not be done for a reason the *model* can act on (no such file, path
    outside the workspace, not unique …); `code` is one of `FAILURES`;
  - `service.errors.SandboxError`: the box is gone, does not answer, or sent what is not the protocol.

Everything that comes out is attacker-controlled bytes. Paths are `str` with surrogateescape for bytes that
are not UTF-8; relative ones start at /workspace.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

FAILURES = frozenset({
    "not_found", "is_directory", "not_directory", "not_regular", "outside", "link_loop", "permission",
    "exists", "too_large", "not_unique", "no_match", "empty_old", "no_change", "bad_path", "bad_pattern",
    "no_space", "binary", "io_error", "spawn_failed", "bad_request", "unknown_request", "not_claimed", "too_many",
})  # fmt: skip
"""The closed table of codes a box may answer with; any other code is a SandboxError."""


class ToolFailure(Exception):
    """The box did not do it, and says why in one line that the model can act on."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True)
class SandboxInfo:
    """What the box said of itself at `hello`; plain data, believed only for display."""

    image: str
    """Image digest, from the engine, not from the box."""
    runtime: str
    python: str
    tools: tuple[str, ...]
    """Names among git, rg, node, gcc, … found on PATH."""


@dataclass(frozen=True, slots=True)
class ExecResult:
    exit_code: int | None
    """128 + signal when killed by one; None when the box ended it (`ended`)."""
    ended: Literal["exited", "timeout", "flood", "cancelled"]
    oom_killed: bool
    cwd: str
    """Where the command left off, absolute in the box; the next call's `cwd`."""
    tail: bytes
    """Last bytes of the output when more than `head_bytes` came; the head was streamed."""
    total_bytes: int
    duration_ms: int


@dataclass(frozen=True, slots=True)
class BackgroundOutput:
    """What a background command said from an offset on, and how it stands."""

    data: bytes
    offset: int
    """Of `data`: beyond what was asked for where that is no longer kept."""
    total_bytes: int
    state: Literal["running", "exited", "killed"]
    exit_code: int | None
    """Of one that exited; 128 + signal when killed by one that is not ours."""


@dataclass(frozen=True, slots=True)
class FileContent:
    data: bytes
    """At most the `limit` asked for."""
    size: int
    mode: int
    stamp: str
    """Opaque identity of this version (size, times, inode)."""


@dataclass(frozen=True, slots=True)
class WriteResult:
    created: bool
    size: int
    stamp: str


@dataclass(frozen=True, slots=True)
class EditResult:
    replacements: int
    stamp: str


@dataclass(frozen=True, slots=True)
class Entry:
    path: str
    kind: Literal["file", "dir", "link", "other"]
    size: int
    mode: int


@dataclass(frozen=True, slots=True)
class Listing:
    entries: tuple[Entry, ...]
    total: int
    """How many there are; `entries` may hold fewer."""


@dataclass(frozen=True, slots=True)
class Match:
    path: str
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class SearchResult:
    matches: tuple[Match, ...]
    """At most the `limit` asked for, best files first."""
    total_matches: int
    total_files: int


@dataclass(frozen=True, slots=True)
class LoadReport:
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class ExportReport:
    """What a fresh box of our image made of a change set (see worker/export.py)."""

    tree: str
    """Hash of the whole tree after `git apply`, by `tree_hash` of sandbox_image/toolserver/records.py."""
    applied: bool
    patch_bytes: int
    message: str


class Sandbox(Protocol):
    """One box, used by one run. Not thread-safe except `cancel` and parallel read-only calls."""

    info: SandboxInfo

    def claim(self, task: str, *, deadline_s: float) -> None:
        """Ties the box to a task; it ends itself `deadline_s` from now, or 120 s after the last sign of us."""
        ...

    def load(self, tar: Iterable[bytes]) -> LoadReport:
        """Streams a canonical tar (service/intake.py) into the empty /workspace."""
        ...

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
        """Runs `bash -c`-like, yields the first `head_bytes` of stdout+stderr as they come.

        More is counted, its last `tail_bytes` kept; past `flood_bytes` the command is killed. When it
        returns, nothing this command started is alive. Bytes are raw: decoding is the caller's.
        """
        ...

    def background(self, command: str, *, cwd: str = "/workspace", env: Mapping[str, str] | None = None) -> int:
        """Starts a command that goes on beside the calls after it, without a time limit; its number.

        It ends with the box, and before `changes` looks. At most 8 run at a time (`too_many`).
        """
        ...

    def output(self, number: int, *, offset: int = 0) -> BackgroundOutput:
        """What it has said since byte `offset`; the last 256 KiB are kept. `not_found` for no such number."""
        ...

    def kill(self, number: int) -> None:
        """Ends a background command and all it started; nothing happens when it has ended already."""
        ...

    def read(self, path: str, *, limit: int = 10 << 20) -> FileContent: ...

    def write(self, path: str, data: bytes, *, overwrite: bool) -> WriteResult:
        """Writes through links inside the workspace, keeps the mode, makes parents.

        Without `overwrite`, an existing non-empty file is `exists`.
        """
        ...

    def edit(self, path: str, old: str, new: str, *, replace_all: bool = False) -> EditResult:
        """Replaces one exact match; keeps BOM, line ends (LF in `old`/`new` matches CRLF), mode, link, inode."""
        ...

    def list(self, path: str = ".", *, limit: int = 1_000) -> Listing: ...

    def glob(self, pattern: str, *, limit: int = 1_000) -> Listing: ...

    def search(self, pattern: str, path: str = ".", *, limit: int = 200) -> SearchResult:
        """ripgrep, ranked: files with more and definition-like matches first, then shorter paths."""
        ...

    def changes(self) -> Iterator[bytes]:
        """The change set against what was loaded, in the format of toolserver/records.py.

        Hashes every regular file. The caller must treat it as hostile.
        """
        ...

    def export(self, job: Iterable[bytes]) -> Generator[bytes, None, ExportReport]:
        """In a fresh box: does a job of toolserver/patch.py against what was loaded; yields its answer stream.

        The caller must treat it as hostile.
        """
        ...

    def cancel(self) -> None:
        """From any thread: the command in flight is killed and its `exec` returns `cancelled`."""
        ...

    def close(self) -> None:
        """Removes the box. Idempotent, never raises for a box that is gone."""
        ...


class Transport(Protocol):
    """The attached stdin/stdout of a box's main process, as bytes."""

    def send(self, data: bytes) -> None:
        """Writes all of `data`; raises SandboxError when the box is gone."""
        ...

    def receive(self) -> bytes:
        """Blocks for the next bytes of its stdout; b"" at the end."""
        ...

    def close(self) -> None:
        """Lets go of the streams, waking a blocked `receive`. Idempotent. The box itself stays."""
        ...


@dataclass(frozen=True, slots=True)
class BoxSpec:
    """What a box is made of; everything else about it is fixed in worker/sandbox/docker.py."""

    task: str
    run: int
    image: str
    cpus: float
    memory_mb: int
    disk_mb: int
    pids: int
    purpose: Literal["task", "export", "probe"] = "task"


class SandboxProvider(Protocol):
    """Opens boxes: the engine for real, a subprocess for tests."""

    def open(self, spec: BoxSpec) -> Sandbox:
        """A started box whose `hello` was answered; SandboxError when that does not happen in time."""
        ...
