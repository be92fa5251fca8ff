"""Writes the canonical tar: the one form in which an upload is kept (format in service/intake/__init__.py)."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from typing import Protocol

from service.errors import ArchiveUnsafe
from service.intake.checksum import byte_sum
from service.intake.manifest import Entry, PackedManifest
from service.intake.member import Member
from service.intake.policy import IntakeLimits, Meter, StoredFile, Tree, clean_path, too_large, unsafe

BLOCK = 512
_CHUNK = 256 << 10
_HEADER = struct.Struct("100s8s8s8s12s12s8sc100s6s2s32s32s8s8s155s12x")
_NAME_FIELD = 100
_ID = b"0000000\0"
_TIME = b"00000000000\0"
_LONG_NAME = b"././@LongLink"
_SPECIAL_BITS = 0o7000


class Output(Protocol):
    """A file open for writing and reading back."""

    def write(self, data: bytes, /) -> int: ...

    def seek(self, offset: int, whence: int = 0, /) -> int: ...

    def read(self, size: int = -1, /) -> bytes: ...


def _header(name: bytes, mode: int, size: int, kind: bytes, link: bytes = b"") -> bytes:
    block = _HEADER.pack(
        name, b"%07o\0" % mode, _ID, _ID, b"%011o\0" % size, _TIME, b" " * 8, kind, link,
        b"ustar\0", b"00", b"", b"", b"", b"", b"",
    )  # fmt: skip
    return block[:148] + b"%06o\0 " % byte_sum(block) + block[156:]


def _padding(size: int) -> bytes:
    return b"\0" * (-size % BLOCK)


class CanonicalTar:
    """Takes members in any order, refuses what must not stand together, writes each path once."""

    def __init__(self, out: Output, limits: IntakeLimits, meter: Meter) -> None:
        self._out = out
        self._limits = limits
        self._meter = meter
        self._tree = Tree(limits)
        self._offset = 0
        self._members = 0
        self._special = self._copies = self._twice = 0
        self.manifest = PackedManifest()
        self.files = 0
        """Regular files and symbolic links written."""
        self.unpacked_size = 0
        """Bytes of the regular files written."""

    def add(self, member: Member) -> None:
        """Writes one member, or nothing where the same is there already."""
        self._members += 1
        if self._members > self._limits.entries:
            raise too_large("too_many_entries", f"the archive has more than {self._limits.entries:,} entries")
        path = clean_path(member.name, self._limits)
        if not path:
            if member.kind != "folder":
                raise unsafe(member.name, "takes the place of the workspace itself")
            return
        self._tree.enter(path, extra=len(member.target))
        self._special += bool(member.mode & _SPECIAL_BITS)
        match member.kind:
            case "folder":
                self._add_folder(path)
            case "link":
                self._add_link(path, member.target)
            case "hard_link":
                self._add_hard_link(path, member.target)
            case "file":
                self._add_file(path, bool(member.mode & 0o100), member.size, member.body)

    def close(self) -> tuple[str, ...]:
        """Ends the tar and the manifest; what was changed on the way, as sentences."""
        self._write(b"\0" * (2 * BLOCK))
        self.manifest.close()
        counted = (
            (self._special, "set-user-id, set-group-id or sticky bits were dropped from {} entries"),
            (self._copies, "hard links were made separate files: {}"),
            (self._twice, "entries that were there twice, with the same content, were kept once: {}"),
        )
        return tuple(text.format(count) for count, text in counted if count)

    def _add_folder(self, path: bytes) -> None:
        if self._tree.add_folder(path):
            self._write_header(path, 0o755, 0, b"5")
            self.manifest.add(path, Entry("d", False, 0, 0, "", b""))

    def _add_link(self, path: bytes, target: bytes) -> None:
        if not target or b"\0" in target:
            raise unsafe(path, "is a symbolic link whose target is empty or has a NUL byte")
        if len(target) > self._limits.target:
            raise too_large("path_too_long", f"the target of a link is longer than {self._limits.target:,} bytes")
        if not self._tree.add_link(path, target):
            self._twice += 1
            return
        self._write_header(path, 0o644, 0, b"2", target)
        self.manifest.add(path, Entry("l", False, 0, 0, "", target))
        self.files += 1

    def _add_hard_link(self, path: bytes, target: bytes) -> None:
        try:
            original = self._tree.find_file(clean_path(target, self._limits))
        except ArchiveUnsafe:
            original = None
        if original is None:
            raise unsafe(path, "is a hard link to something that is not a file before it in the archive")
        self._copies += 1
        self._add_file(path, original.executable, original.size, self._read_back(original))

    def _add_file(self, path: bytes, executable: bool, size: int, body: Iterator[bytes]) -> None:
        known = self._tree.file(path)
        self._meter.count_file(size)
        if known is not None:
            digest = hashlib.sha256()
            for chunk in body:
                digest.update(chunk)
            if not known.same(StoredFile(executable, size, 0, digest.digest())):
                raise unsafe(path, "is there twice, and the two differ")
            self._twice += 1
            return
        self._write_header(path, 0o755 if executable else 0o644, size, b"0")
        offset, digest = self._offset, hashlib.sha256()
        for chunk in body:
            digest.update(chunk)
            self._write(chunk)
        self._write(_padding(size))
        self._tree.add_file(path, StoredFile(executable, size, offset, digest.digest()))
        self.manifest.add(path, Entry("f", executable, size, offset, digest.hexdigest(), b""))
        self.files += 1
        self.unpacked_size += size

    def _write_header(self, path: bytes, mode: int, size: int, kind: bytes, link: bytes = b"") -> None:
        for long, record in ((link, b"K"), (path, b"L")):
            if len(long) > _NAME_FIELD:
                length = len(long) + 1
                self._write(_header(_LONG_NAME, 0o644, length, record) + long + b"\0" + _padding(length))
        self._write(_header(path[:_NAME_FIELD], mode, size, kind, link[:_NAME_FIELD]))

    def _read_back(self, file: StoredFile) -> Iterator[bytes]:
        done = 0
        while done < file.size:
            self._out.seek(file.offset + done)
            chunk = self._out.read(min(_CHUNK, file.size - done))
            self._out.seek(0, 2)
            done += len(chunk)
            yield chunk

    def _write(self, data: bytes) -> None:
        self._out.write(data)
        self._offset += len(data)
