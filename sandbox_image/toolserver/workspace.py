"""Loading the workspace: the canonical tar of service/intake.py, and nothing else, into an empty folder.

The tar: 512-byte headers with `ustar` magic and an empty prefix field; types `0` file, `2` link, `5` directory,
`L`/`K` for the next entry's long name/target; modes 0644 or 0755; clean relative paths, one entry per path, parents
before children or implied; two zero blocks at the end. Every file is hashed as it streams by: what was loaded is the
baseline that changes are told against.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple, cast
from zlib import adler32

from sandbox_image.toolserver.failures import Failure, from_os_error

BLOCK = 512
MAGIC = b"ustar\x0000"
MAX_LONG = 64 << 10
_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NAME, _TARGET, _CONTENT = "name", "target", "content"


class BaselineEntry(NamedTuple):
    kind: Literal["f", "l", "d"]
    exec: bool
    size: int
    sha256: bytes
    """Of a file's bytes; b"" for others."""
    target: bytes
    """Of a link; b"" for others."""


class Baseline(Mapping[bytes, BaselineEntry]):
    """Path → what was loaded there. Packed, about 200 bytes an entry: there may be 200,000 of them."""

    def __init__(self) -> None:
        self._packed: dict[bytes, bytes] = {}

    def add(self, path: bytes, entry: BaselineEntry) -> None:
        flags = entry.kind.encode() + (b"x" if entry.exec else b"-")
        rest = entry.target if entry.kind == "l" else entry.sha256
        self._packed[path] = flags + entry.size.to_bytes(8, "big") + rest

    def __getitem__(self, path: bytes) -> BaselineEntry:
        packed = self._packed[path]
        kind = cast("Literal['f', 'l', 'd']", chr(packed[0]))
        size = int.from_bytes(packed[2:10], "big")
        rest = packed[10:]
        link = kind == "l"
        return BaselineEntry(kind, packed[1:2] == b"x", size, b"" if link else rest, rest if link else b"")

    def __contains__(self, path: object) -> bool:
        return path in self._packed

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._packed)

    def __len__(self) -> int:
        return len(self._packed)


class Loader:
    """Takes the tar in pieces of any size. Failure `bad_request` for what is not canonical, `no_space` when full."""

    def __init__(self, root: int) -> None:
        """`root` is the descriptor of the workspace, in which nothing else writes meanwhile."""
        self.baseline = Baseline()
        self.files = 0
        self.bytes = 0
        self._root = root
        self._folders: set[bytes] = set()
        self._rest = b""
        self._left = 0
        self._padding = 0
        self._sink = ""
        self._long = bytearray()
        self._name: bytes | None = None
        self._target: bytes | None = None
        self._fd = -1
        self._file: tuple[bytes, bool, int] = (b"", False, 0)
        self._hash = hashlib.sha256()
        self._zero_blocks = 0

    def feed(self, data: bytes) -> None:
        if self._rest:
            data = self._rest + data
        view = memoryview(data)
        at, end = 0, len(data)
        while at < end:
            if self._left:
                size = min(self._left, end - at)
                self._content(view[at : at + size])
                at += size
            elif self._padding:
                size = min(self._padding, end - at)
                self._padding -= size
                at += size
            elif end - at >= BLOCK:
                self._header(data[at : at + BLOCK])
                at += BLOCK
            else:
                break
        self._rest = data[at:]

    def finish(self) -> dict[str, object]:
        """`{"files", "bytes"}`; Failure when the tar was cut off."""
        if self._zero_blocks < 2 or self._rest or self._fd >= 0:
            raise Failure("bad_request", "the workspace's tar is cut off")
        return {"files": self.files, "bytes": self.bytes}

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _header(self, block: bytes) -> None:
        if not block.strip(b"\0"):
            self._zero_blocks += 1
            if self._name is not None or self._target is not None:
                raise _malformed("a long name without an entry")
            return
        if self._zero_blocks:
            raise _malformed("bytes after the end")
        kind, mode, size = _fields(block)
        if kind in (b"L", b"K"):
            self._sink = _NAME if kind == b"L" else _TARGET
            if not 0 < size <= MAX_LONG:
                raise _malformed("a long name of no sensible length")
            self._expect(size)
            return
        path = _clean(_text(block[:100]) if self._name is None else self._name)
        target = _text(block[157:257]) if self._target is None else self._target
        self._name = self._target = None
        try:
            self._entry(kind, path, target, mode, size)
        except OSError as error:
            raise from_os_error(error, os.fsdecode(path)) from error

    def _entry(self, kind: bytes, path: bytes, target: bytes, mode: int, size: int) -> None:
        self._make_parents(path)
        if kind == b"0":
            self._fd = os.open(path, _FILE, mode, dir_fd=self._root)
            self._file = (path, mode == 0o755, size)
            self._hash = hashlib.sha256()
            self._sink = _CONTENT
            self._expect(size)
            if size == 0:
                self._end_file()
        elif size:
            raise _malformed("an entry without content that has a size")
        elif kind == b"2":
            os.symlink(target, path, dir_fd=self._root)
            self.baseline.add(path, BaselineEntry("l", False, len(target), b"", target))
            self.files += 1
        elif kind == b"5":
            self._make_folder(path)
        else:
            raise _malformed(f"an entry of type {kind!r}")

    def _make_parents(self, path: bytes) -> None:
        """Every parent is a directory that this loader made: nothing is ever written through a link."""
        parent = path.rpartition(b"/")[0]
        if not parent or parent in self._folders:
            return
        if parent in self.baseline:
            raise _malformed(f"{os.fsdecode(parent)} is no directory")
        self._make_parents(parent)
        self._make_folder(parent)

    def _make_folder(self, path: bytes) -> None:
        os.mkdir(path, 0o755, dir_fd=self._root)
        self._folders.add(path)
        self.baseline.add(path, BaselineEntry("d", False, 0, b"", b""))

    def _expect(self, size: int) -> None:
        self._left = size
        self._padding = -size % BLOCK

    def _content(self, piece: memoryview) -> None:
        self._left -= len(piece)
        if self._sink != _CONTENT:
            self._long += piece
            if not self._left:
                self._end_long()
            return
        self._hash.update(piece)
        try:
            while piece:
                piece = piece[os.write(self._fd, piece) :]
        except OSError as error:
            raise from_os_error(error, os.fsdecode(self._file[0])) from error
        if not self._left:
            self._end_file()

    def _end_file(self) -> None:
        self.close()
        path, executable, size = self._file
        self.baseline.add(path, BaselineEntry("f", executable, size, self._hash.digest(), b""))
        self.files += 1
        self.bytes += size

    def _end_long(self) -> None:
        value = bytes(self._long)
        self._long.clear()
        value = value.removesuffix(b"\0")
        if b"\0" in value:
            raise _malformed("a NUL in a long name")
        if self._sink == _NAME:
            self._name = value
        else:
            self._target = value


def _fields(block: bytes) -> tuple[bytes, int, int]:
    """Type, mode and size of a header whose checksum and magic are right."""
    checksum = block[148:156]
    # The low half of Adler-32 is 1 + the sum of the bytes, ten times faster than `sum`. It wraps at 65,521, which no
    # canonical header reaches; in the sum that a header states its own 8 bytes count as blanks.
    if (adler32(block) & 0xFFFF) - 1 - sum(checksum) + 8 * 32 != _octal(checksum):
        raise _malformed("a wrong checksum")
    if block[257:265] != MAGIC or block[345:500].strip(b"\0"):
        raise _malformed("a header that is not the canonical one")
    kind, mode, size = block[156:157], _octal(block[100:108]), _octal(block[124:136])
    if kind == b"0" and mode not in (0o644, 0o755):
        raise _malformed(f"mode {mode:o}")
    return kind, mode, size


def _octal(field: bytes) -> int:
    digits = field.rstrip(b"\0 ")
    if not digits or digits.strip(b"01234567"):  # int() alone would take signs, blanks and underscores
        raise _malformed("a number that is not octal")
    return int(digits, 8)


def _text(field: bytes) -> bytes:
    return field.partition(b"\0")[0]


def _clean(path: bytes) -> bytes:
    path = path.removesuffix(b"/")
    parts = path.split(b"/")
    if len(path) > 1_024 or any(not part or part in (b".", b"..") or len(part) > 255 for part in parts):
        raise _malformed("an unclean path")
    return path


def _malformed(what: str) -> Failure:
    return Failure("bad_request", f"not a canonical workspace tar: {what}")
