"""What a task did to its workspace, as a record stream: every file is hashed, only what differs is sent.

It runs in the task's own box, so the worker takes all of it as hostile data (worker/export/changeset.py): no rule
about paths is applied here but the one about repository data, and no cap but the length of a path.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from typing import Protocol

from sandbox_image.toolserver.records import (
    ABSENT,
    BODY,
    CHANGE,
    END,
    EXEC,
    FILE,
    FOUND,
    LINK,
    LISTED,
    MAGIC,
    MAX_PATH,
    MISSING,
    body,
    is_git_data,
    packed,
    record,
)
from sandbox_image.toolserver.tree import Node, file_digest, read_path, walk

MAX_FINDINGS = 1_000
"""Findings of one kind that are sent; a task shows no more (service/contracts.py)."""
_PLAIN_FILE_MODES = frozenset({0o644, 0o755})


class Baseline(Protocol):
    """What the loader remembers of an entry it made."""

    @property
    def kind(self) -> str:
        """f, l or d."""
        ...

    @property
    def exec(self) -> bool: ...
    @property
    def size(self) -> int: ...
    @property
    def sha256(self) -> bytes: ...
    @property
    def target(self) -> bytes: ...


def stream(root: str, baseline: Mapping[bytes, Baseline]) -> Iterator[bytes]:
    """The change set of `root` against `baseline`, in the format of records.py; OSError only if `root` is gone.

    Names come first and bodies after, smallest first, so that the worker can drop ignored or too many files before
    their bytes have been moved.
    """
    return packed(_records(root, baseline))


def _records(root: str, baseline: Mapping[bytes, Baseline]) -> Iterator[bytes]:
    yield MAGIC
    scan = _Scan(baseline)
    for node in walk(root):
        yield from scan.node(node)
    yield from scan.absent()
    yield record(LISTED, size=scan.listed)
    yield from _bodies(root, scan.files)
    yield record(END)


def _bodies(root: str, files: list[tuple[int, bytes]]) -> Iterator[bytes]:
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for _, path in sorted(files):
            content = read_path(descriptor, path)
            try:
                first = next(content, b"")
            except OSError as failure:
                gone = not isinstance(failure, PermissionError)
                yield record(MISSING, path, kind=ABSENT if gone else FILE)
                continue
            yield record(BODY, path)
            yield from body(_rest(first, content))
    finally:
        os.close(descriptor)


def _rest(first: bytes, content: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from content


class _Scan:
    """One pass over the tree: what differs, what is gone, and what a patch cannot say."""

    def __init__(self, baseline: Mapping[bytes, Baseline]) -> None:
        self.baseline = baseline
        self.files: list[tuple[int, bytes]] = []
        """Size and path of every file whose bytes are to follow."""
        self.listed = 0
        self._seen: set[bytes] = set()
        self._found: dict[str, int] = {}
        self._barren = _barren(baseline)
        self._unknown: list[bytes] = []
        """Folders that could not be entered: nothing is known, so nothing is deleted, below them."""

    def node(self, node: Node) -> Iterator[bytes]:
        if node.kind == "file":
            yield from self._file(node)
        elif node.kind == "link":
            yield from self._link(node)
        elif node.kind == "empty_dir" and node.path not in self._barren:
            yield from self._finding("empty_dir", node.path, "added")
        elif node.kind == "empty_dir" or node.kind == "dir":
            self._barren.discard(node.path)
        elif node.kind == "git":
            yield from self._finding("git_data", node.path, "")
        elif node.kind == "special":
            yield from self._finding("special", node.path, _special(node.mode))
        else:
            self._unknown.append(node.path[:MAX_PATH])
            yield from self._finding(node.kind, node.path[:MAX_PATH], "not looked into")
        if node.kind in ("dir", "empty_dir") and stat.S_IMODE(node.mode) != 0o755:
            yield from self._finding("mode", node.path, f"folder {stat.S_IMODE(node.mode):04o}")

    def absent(self) -> Iterator[bytes]:
        """Deletions: of the baseline's files and links, and of its empty folders."""
        unknown = tuple(path + b"/" for path in self._unknown)
        for path, entry in self.baseline.items():
            if entry.kind == "d" or path in self._seen or path.startswith(unknown) or is_git_data(path):
                continue
            self.listed += 1
            yield record(CHANGE, path, kind=ABSENT)
        for path in self._barren:
            yield from self._finding("empty_dir", path, "removed")

    def _file(self, node: Node) -> Iterator[bytes]:
        kind = EXEC if node.executable else FILE
        if stat.S_IMODE(node.mode) not in _PLAIN_FILE_MODES:
            yield from self._finding("mode", node.path, f"file {stat.S_IMODE(node.mode):04o}")
        if node.links > 1:
            yield from self._finding("hard_link", node.path, f"{node.links} names")
        known = self.baseline.get(node.path)
        self._seen.add(node.path)
        if known is not None and known.kind == "f" and known.exec == node.executable and known.size == node.size:
            try:
                if file_digest(node) == known.sha256:
                    return
            except OSError as failure:
                yield from self._finding("unreadable", node.path, os.strerror(failure.errno or 0))
                return
        self.listed += 1
        self.files.append((node.size, node.path))
        yield record(CHANGE, node.path, kind=kind, size=node.size)

    def _link(self, node: Node) -> Iterator[bytes]:
        try:
            target = os.readlink(node.name, dir_fd=node.folder)
        except OSError:
            return
        known = self.baseline.get(node.path)
        self._seen.add(node.path)
        if known is not None and known.kind == "l" and known.target == target:
            return
        self.listed += 1
        yield record(CHANGE, node.path, kind=LINK, aux=target)

    def _finding(self, kind: str, path: bytes, detail: str) -> Iterator[bytes]:
        count = self._found[kind] = self._found.get(kind, 0) + 1
        if count <= MAX_FINDINGS:
            yield record(FOUND, path, aux=f"{kind}\0{detail}".encode())


def _barren(baseline: Mapping[bytes, Baseline]) -> set[bytes]:
    """The baseline's folders with nothing in them."""
    parents = {path.rpartition(b"/")[0] for path in baseline}
    folders = {path for path, entry in baseline.items() if entry.kind == "d" and not is_git_data(path)}
    return folders - parents


def _special(mode: int) -> str:
    if stat.S_ISFIFO(mode):
        return "fifo"
    return "socket" if stat.S_ISSOCK(mode) else "device"
