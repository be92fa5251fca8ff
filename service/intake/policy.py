"""What an archive may hold: limits, names, and which entries may stand beside each other.

Memory is flat whatever comes: paths are kept as short keys, and the number of entries, of the folders they
imply and of the bytes of all names is bounded.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass

from service.errors import ArchiveUnsafe, TooLarge
from service.names import escape_path

_SHOWN_NAME = 120
"""Characters of a member's name in an error."""


@dataclass(frozen=True, slots=True)
class IntakeLimits:
    """The defaults are the contract's (docs/api.md); sizes in bytes."""

    unpacked: int = 4 << 30
    ratio: int = 100
    """Unpacked to uploaded bytes; looked at above `ratio_floor`."""
    ratio_floor: int = 64 << 20
    entries: int = 50_000
    """As many folders again may be implied by paths: a box has 200,000 inodes."""
    path: int = 1_024
    component: int = 255
    target: int = 4_095
    """Of a symbolic link: what Linux can store."""
    depth: int = 64
    names: int = 8 << 20
    """All paths and link targets together; 50,000 entries of 160 bytes."""


def _shown(name: bytes) -> str:
    text = escape_path(name)
    return text if len(text) <= _SHOWN_NAME else f"{text[:_SHOWN_NAME]}…"


def unsafe(name: bytes, why: str) -> ArchiveUnsafe:
    """The refusal of one member, by its name."""
    shown = _shown(name)
    return ArchiveUnsafe(f"the member {shown!r} {why}", extra={"member": shown})


def unreadable(why: str) -> ArchiveUnsafe:
    """The refusal of the whole upload: it is no archive, or a broken one."""
    return ArchiveUnsafe(f"the upload cannot be read: {why}", code="archive_unreadable")


def too_large(code: str, why: str) -> TooLarge:
    return TooLarge(why, code=code)


def clean_path(name: bytes, limits: IntakeLimits) -> bytes:
    """The one spelling of a member's path, relative and without `.`; empty for the root itself.

    `..` is refused even where it would stay inside: no tool that makes archives of folders writes it.
    """
    if not name:
        raise unsafe(name, "has no name")
    if b"\0" in name:
        raise unsafe(name, "has a NUL byte in its name")
    if name.startswith(b"/"):
        raise unsafe(name, "has an absolute path")
    parts = [part for part in name.split(b"/") if part not in (b"", b".")]
    if b".." in parts:
        raise unsafe(name, "has '..' in its path")
    path = b"/".join(parts)
    if len(path) > limits.path:
        raise too_large("path_too_long", f"the path {_shown(path)!r} is longer than {limits.path:,} bytes")
    if len(parts) > limits.depth:
        raise too_large("path_too_deep", f"the path {_shown(path)!r} is deeper than {limits.depth} folders")
    if any(len(part) > limits.component for part in parts):
        raise too_large("path_too_long", f"the path {_shown(path)!r} has a part longer than {limits.component} bytes")
    return path


class Meter:
    """Counts what comes out of an upload and stops it while it is being unpacked."""

    def __init__(self, limits: IntakeLimits, uploaded: int) -> None:
        self._limits = limits
        self._uploaded = uploaded
        # Headers, long names and padding come on top of the files' bytes.
        self._most = limits.unpacked + limits.entries * 4_096
        self._read = self._files = 0

    def count_read(self, size: int) -> None:
        """`size` more bytes of an unpacked stream."""
        self._read += size
        self._check(self._read, self._most)

    def count_file(self, size: int) -> None:
        """A file of `size` bytes, before its bytes are read; a copy or a duplicate costs time like any other."""
        self._files += size
        self._check(self._files, self._limits.unpacked)

    def _check(self, total: int, most: int) -> None:
        limits = self._limits
        if total > most:
            raise too_large("archive_too_large", f"the archive unpacks to more than {limits.unpacked:,} bytes")
        if total > limits.ratio_floor and total > limits.ratio * self._uploaded:
            raise too_large(
                "archive_too_large", f"the archive unpacks to more than {limits.ratio} times its size, like a bomb"
            )


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file that was written to the canonical tar."""

    executable: bool
    size: int
    offset: int
    sha256: bytes

    def same(self, other: StoredFile) -> bool:
        return (self.executable, self.size, self.sha256) == (other.executable, other.size, other.sha256)


_FILE = struct.Struct(">?QQ32s")
_DIRECTORY = b"d"
_SHORT = 48
"""Up to here a path is its own key; a longer one is keyed by a hash behind a NUL, which no path holds."""


def _key(path: bytes) -> bytes:
    return path if len(path) <= _SHORT else b"\0" + hashlib.blake2b(path, digest_size=16).digest()


class Tree:
    """The paths seen so far and what they are, so that nothing is written through, below or over another."""

    def __init__(self, limits: IntakeLimits) -> None:
        self._limits = limits
        self._seen: dict[bytes, bytes] = {}
        self._names = 0

    def enter(self, path: bytes, extra: int = 0) -> None:
        """Makes the parents of `path` folders; refused where one of them is a file or a link."""
        self._names += len(path) + extra
        if self._names > self._limits.names:
            raise too_large("too_many_entries", f"the archive's names take more than {self._limits.names:,} bytes")
        parent, missing = path, []
        while (cut := parent.rfind(b"/")) >= 0:
            parent = parent[:cut]
            key = _key(parent)
            known = self._seen.get(key)
            if known == _DIRECTORY:
                break
            if known is not None:
                raise unsafe(path, f"lies below {_shown(parent)!r}, which is a {_kind(known)}")
            missing.append(key)
        self._seen.update(dict.fromkeys(missing, _DIRECTORY))
        if len(self._seen) > 2 * self._limits.entries:
            raise too_large("too_many_entries", f"the archive has more than {2 * self._limits.entries:,} folders")

    def add_folder(self, path: bytes) -> bool:
        """False when the folder is known, by its own entry or by one inside it."""
        key = _key(path)
        known = self._seen.get(key)
        if known is None:
            self._seen[key] = _DIRECTORY
        elif known != _DIRECTORY:
            raise unsafe(path, f"is a folder and a {_kind(known)}")
        return known is None

    def add_link(self, path: bytes, target: bytes) -> bool:
        """False when the same link is known."""
        key, record = _key(path), b"l" + hashlib.blake2b(target, digest_size=16).digest()
        known = self._seen.get(key)
        if known is None:
            self._seen[key] = record
        elif known != record:
            raise unsafe(path, "is there twice, and the two differ")
        return known is None

    def file(self, path: bytes) -> StoredFile | None:
        """The file at `path`; None when nothing is there; refused when something else is."""
        known = self._seen.get(_key(path))
        if known is None:
            return None
        if len(known) != 1 + _FILE.size:
            raise unsafe(path, f"is a file and a {_kind(known)}")
        return StoredFile(*_FILE.unpack(known[1:]))

    def add_file(self, path: bytes, file: StoredFile) -> None:
        self._seen[_key(path)] = b"f" + _FILE.pack(file.executable, file.size, file.offset, file.sha256)

    def find_file(self, path: bytes) -> StoredFile | None:
        """The file at `path`, None for anything else."""
        known = self._seen.get(_key(path), b"")
        return StoredFile(*_FILE.unpack(known[1:])) if known[:1] == b"f" else None


def _kind(record: bytes) -> str:
    return {b"d": "folder", b"l": "symbolic link"}.get(record[:1], "file")
