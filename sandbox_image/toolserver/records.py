"""The records in which change sets, export jobs and their answers travel; both ends import this.

    stream = MAGIC record* END
    record = type (1 byte) kind (1) path length (2) aux length (4) size (8), big-endian, then path and aux
             and, for the types of `WITH_BODY`, chunks: length (4) and that many bytes; length 0 ends the body

Whatever is read may have been written by hostile code: every length is checked before it is used, and anything
odd is `Malformed`. What a path or a size *means* is the caller's to check.

Change set (task's box to worker, changes.py): CHANGE* and FOUND* in any order, LISTED (size = how many CHANGE),
then one BODY or MISSING (ABSENT: vanished; FILE: unreadable) for each CHANGE of kind FILE or EXEC, smallest first, END.
Job (worker to export box, patch.py): JOB, then RULES*, CANDIDATE* or OLD*, NEW*, END.
Answer (export box to worker): IGNORED* or PATCH, STAT*; END.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

MAGIC = b"PYRECS1\n"

CHANGE, FOUND, LISTED, BODY, MISSING = b"C", b"F", b"L", b"B", b"M"
JOB, RULES, CANDIDATE, OLD, NEW = b"J", b"R", b"Q", b"O", b"N"
IGNORED, PATCH, STAT = b"I", b"P", b"S"
END = b"Z"
TYPES = frozenset({CHANGE, FOUND, LISTED, BODY, MISSING, JOB, RULES, CANDIDATE, OLD, NEW, IGNORED, PATCH, STAT, END})

FILE, EXEC, LINK, ABSENT = 0, 1, 2, 3
"""What a path is: a regular file, one its owner may execute, a symbolic link (aux = target), nothing."""

MAX_PATH = 4_000
"""Bytes of a path: below Linux's PATH_MAX of 4,096, which git needs whole to name a file."""
MAX_AUX = 64 * 1024
"""Bytes of a link target (4,095 at most on Linux) or of a report."""
CHUNK = 64 * 1024
"""Bytes of one chunk of a body."""

_HEAD = struct.Struct(">cBHIQ")
_LENGTH = struct.Struct(">I")
_END_OF_BODY = _LENGTH.pack(0)
_BODY_BY_KIND = frozenset({OLD, NEW})
_ALWAYS_BODY = frozenset({BODY, RULES, PATCH})


class Malformed(ValueError):
    """The stream is not what this module describes."""


class Record(NamedTuple):
    type: bytes
    kind: int
    path: bytes
    aux: bytes
    size: int

    @property
    def has_body(self) -> bool:
        return self.type in _ALWAYS_BODY or (self.type in _BODY_BY_KIND and self.kind in (FILE, EXEC))


def record(type_: bytes, path: bytes = b"", *, kind: int = FILE, aux: bytes = b"", size: int = 0) -> bytes:
    """One record without its body."""
    return _HEAD.pack(type_, kind, len(path), len(aux), size) + path + aux


def body(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The encoded body of a record; chunks of any size."""
    for data in chunks:
        for start in range(0, len(data), CHUNK):
            part = data[start : start + CHUNK]
            yield _LENGTH.pack(len(part)) + part
    yield _END_OF_BODY


def packed(parts: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes in fewer, larger pieces: many small records cost one frame together."""
    held: list[bytes] = []
    size = 0
    for part in parts:
        held.append(part)
        size += len(part)
        if size >= CHUNK:
            yield b"".join(held)
            held, size = [], 0
    if held:
        yield b"".join(held)


class Reader:
    """Reads one stream strictly; a body must be drained before the next record is asked for."""

    def __init__(self, pull: Callable[[], bytes]) -> None:
        """`pull` gives the next bytes, of any size, and b"" at the end."""
        self._pull = pull
        self._held = b""
        self._at = 0
        self._in_body = False
        if self._exact(len(MAGIC)) != MAGIC:
            raise Malformed("the stream does not begin as a record stream")

    @classmethod
    def of(cls, parts: Iterable[bytes]) -> Reader:
        iterator = iter(parts)
        return cls(lambda: next((part for part in iterator if part), b""))

    def next(self) -> Record:
        """The next record; END is one too. A stream that stops before it is Malformed."""
        if self._in_body:
            raise Malformed("a body was not read to its end")
        type_, kind, path_length, aux_length, size = _HEAD.unpack(self._exact(_HEAD.size))
        if type_ not in TYPES or kind > ABSENT or path_length > MAX_PATH or aux_length > MAX_AUX:
            raise Malformed("a record's head is out of bounds")
        found = Record(type_, kind, self._exact(path_length), self._exact(aux_length), size)
        self._in_body = found.has_body
        return found

    def body(self, limit: int) -> Iterator[bytes]:
        """The chunks of the record just read; more than `limit` bytes is Malformed."""
        total = 0
        while self._in_body:
            (length,) = _LENGTH.unpack(self._exact(_LENGTH.size))
            total += length
            if length > CHUNK or total > limit:
                raise Malformed("a body is larger than it may be")
            if length == 0:
                self._in_body = False
                return
            yield self._exact(length)

    def finish(self) -> None:
        """After END: anything more is Malformed."""
        if self._at < len(self._held) or self._pull():
            raise Malformed("bytes follow the end of the stream")

    def _exact(self, count: int) -> bytes:
        end = self._at + count
        if end <= len(self._held):
            found = self._held[self._at : end]
            self._at = end
            return found
        parts = [self._held[self._at :]]
        missing = end - len(self._held)
        while missing > 0:
            more = self._pull()
            if not more:
                raise Malformed("the stream ends in the middle")
            parts.append(more)
            missing -= len(more)
        self._held = b"".join(parts)
        self._at = count
        return self._held[:count]


def is_git_data(path: bytes) -> bool:
    """A component is exactly `.git`: repository data, which is never part of a tree here."""
    return b".git" in path.split(b"/")


class TreeEntry(NamedTuple):
    """One file or link of a tree as its hash sees it."""

    path: bytes
    kind: int
    """FILE, EXEC or LINK."""
    digest: bytes
    """sha256 of the content; of the target for a link."""


def tree_hash(entries: Iterable[TreeEntry]) -> str:
    """One sha256 (hex) over all files and links: path, executable bit, content, target; the order is ours.

    Folders are not in it: git does not carry them.
    """
    total = hashlib.sha256(b"patchyard tree 1\n")
    for path, kind, digest in sorted(entries):
        total.update(struct.pack(">IB", len(path), kind) + path + digest)
    return total.hexdigest()
