"""Reads tar headers strictly: v7, ustar, pax and GNU, as one stream, and nothing that two readers may see differently.

Refused although some reader takes it: sparse files, a size on a link or folder, two names or two sizes for one
member, global pax headers that rename, data behind the end marker, no end marker.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass

from service.intake.checksum import byte_sum
from service.intake.member import EMPTY, Member
from service.intake.policy import IntakeLimits, too_large, unreadable, unsafe

BLOCK = 512
_ZEROS = b"\0" * BLOCK
_CHUNK = 64 << 10
_OCTAL = re.compile(rb"[ \0]*([0-7]*)[ \0]*")
_MOST_EXTENSION = 1 << 20
"""Bytes of one pax header; they hold attributes too, which we do not keep."""
_RECORDS_PER_ENTRY = 20
"""pax records an archive may have for each of its permitted entries; some bytes each, more would take minutes."""
_PAX_RECORD = re.compile(rb"(\d{1,8}) ([^=\0]+)=")
_REFUSED_TYPES = {
    b"3": "is a character device",
    b"4": "is a block device",
    b"6": "is a FIFO",
    b"S": "is a sparse file (pack it without --sparse)",
}


@dataclass(frozen=True, slots=True)
class _Header:
    name: bytes
    mode: int
    size: int
    type: bytes
    link: bytes


@dataclass(slots=True)
class _Extension:
    """What the headers before a member say of it."""

    name: bytes | None = None
    link: bytes | None = None
    size: int | None = None
    seen: bytes = b""

    def take(self, kind: bytes, header: _Header) -> None:
        if kind in self.seen:
            raise unsafe(header.name, "comes after two headers of one kind for the same member")
        self.seen += kind

    def set_name(self, name: bytes) -> None:
        if self.name is not None:
            raise unsafe(name, "has two names")
        self.name = name

    def set_link(self, link: bytes) -> None:
        if self.link is not None:
            raise unsafe(link, "is one of two targets of the same link")
        self.link = link


class _Pax:
    """Reads the pax headers of one archive, which share a bound."""

    def __init__(self, limits: IntakeLimits) -> None:
        self._left = _RECORDS_PER_ENTRY * limits.entries

    def records(self, data: bytes, header: _Header) -> dict[bytes, bytes]:
        """The records `<length> <key>=<value>\\n` of a pax header; a later one of a key wins, as POSIX says."""
        records, at = {}, 0
        while at < len(data):
            match = _PAX_RECORD.match(data, at)
            end = at + int(match[1]) if match else 0
            if match is None or end <= match.end() or end > len(data) or data[end - 1 : end] != b"\n":
                raise unsafe(header.name, "has a broken pax header")
            if match[2].startswith(b"GNU.sparse."):
                raise unsafe(header.name, _REFUSED_TYPES[b"S"])
            self._left -= 1
            if self._left < 0:
                raise too_large("too_many_entries", "the archive has too many pax records")
            records[match[2]] = data[match.end() : end - 1]
            at = end
        return records


def is_header(block: bytes) -> bool:
    """Whether 512 bytes are a tar header: its checksum holds, by the unsigned or the old signed sum."""
    match = _OCTAL.fullmatch(block[148:156])
    if match is None or not match[1]:
        return False
    told = int(match[1], 8)
    fields = block[:148] + b" " * 8 + block[156:]
    total = byte_sum(fields)
    return told == total or told == total - 256 * sum(byte > 127 for byte in fields)


def members(stream: io.BufferedReader, limits: IntakeLimits) -> Iterator[Member]:
    """Every member in order; ends only at a proper end marker with nothing behind it."""
    globals_left = limits.entries
    pax = _Pax(limits)
    extension = _Extension()
    while (block := _read(stream, BLOCK)) != _ZEROS:
        header = _parse(block)
        if header.type == b"g":
            globals_left -= 1
            if globals_left < 0:
                raise too_large("too_many_entries", "the archive has too many global headers")
            _refuse_global(pax.records(_extension_data(stream, header), header), header)
        elif header.type in (b"x", b"X", b"L", b"K"):
            _extend(extension, header, _extension_data(stream, header), pax)
        else:
            member = _member(stream, header, extension)
            yield member
            for _ in member.body:
                pass
            extension = _Extension()
    if extension.seen:
        raise unreadable("it ends between a member's headers")
    while rest := stream.read(_CHUNK):
        if rest.count(0) != len(rest):
            raise unreadable("there is data after the archive's end marker")


def _read(stream: io.BufferedReader, size: int) -> bytes:
    data = stream.read(size)
    if len(data) != size:
        raise unreadable("it is cut off")
    return data


def _text(field: bytes) -> bytes:
    return field.partition(b"\0")[0]


def _number(field: bytes) -> int:
    """Octal, or base 256 where the first bit is set; -1 for a negative one."""
    if field[0] & 0x80:
        return -1 if field[0] & 0x40 else int.from_bytes(field, "big") ^ (0x80 << 8 * (len(field) - 1))
    match = _OCTAL.fullmatch(field)
    if match is None:
        raise unreadable("a number in a tar header is no number")
    return int(match[1] or b"0", 8)


def _parse(block: bytes) -> _Header:
    if not is_header(block):
        raise unreadable("a tar header is broken, or this is no tar archive")
    name = _text(block[:100])
    if block[257:263] == b"ustar\0" and (prefix := _text(block[345:500])):
        name = prefix + b"/" + name
    size = _number(block[124:136])
    if size < 0:
        raise unsafe(name, "has a negative size")
    return _Header(name, _number(block[100:108]) & 0o7777, size, block[156:157], _text(block[157:257]))


def _extension_data(stream: io.BufferedReader, header: _Header) -> bytes:
    if header.size > _MOST_EXTENSION:
        raise too_large("path_too_long", f"a header of the archive is larger than {_MOST_EXTENSION:,} bytes")
    data = _read(stream, header.size)
    _read(stream, -header.size % BLOCK)
    return data


def _refuse_global(records: dict[bytes, bytes], header: _Header) -> None:
    for key in (b"path", b"linkpath", b"size"):
        if key in records:
            raise unsafe(header.name, f"is a global header that sets {key.decode()!r} of every member")


def _extend(extension: _Extension, header: _Header, data: bytes, pax: _Pax) -> None:
    extension.take(header.type.lower() if header.type == b"X" else header.type, header)
    if header.type == b"L":
        extension.set_name(_text(data))
    elif header.type == b"K":
        extension.set_link(_text(data))
    else:
        records = pax.records(data, header)
        if b"path" in records:
            extension.set_name(records[b"path"])
        if b"linkpath" in records:
            extension.set_link(records[b"linkpath"])
        if b"size" in records:
            if not records[b"size"].isdigit() or len(records[b"size"]) > 20:
                raise unsafe(header.name, "has a pax size that is no number")
            extension.size = int(records[b"size"])


def _member(stream: io.BufferedReader, header: _Header, extension: _Extension) -> Member:
    name = header.name if extension.name is None else extension.name
    link = header.link if extension.link is None else extension.link
    size = header.size
    if extension.size is not None and extension.size != size:
        # Writers set the header's size to 0 where the real one does not fit; that is beyond our limit anyway.
        raise unsafe(name, "has two sizes")
    if header.type in (b"0", b"\0", b"7") and not name.endswith(b"/"):
        return Member(name, "file", header.mode, size, body=_body(stream, size))
    if header.type == b"1":
        # Old writers repeat the file's size here; every reader takes it as 0.
        return Member(name, "hard_link", header.mode, target=link)
    if header.type in (b"0", b"\0", b"7", b"2", b"5"):
        if size:
            raise unsafe(name, "is a link or a folder that claims to have content")
        if header.type == b"2":
            return Member(name, "link", target=link)
        return Member(name, "folder", header.mode, body=EMPTY)
    raise unsafe(name, _REFUSED_TYPES.get(header.type, f"is of an unknown type {header.type!r}"))


def _body(stream: io.BufferedReader, size: int) -> Iterator[bytes]:
    left = size
    while left:
        chunk = stream.read(min(_CHUNK, left))
        if not chunk:
            raise unreadable("it is cut off")
        left -= len(chunk)
        yield chunk
    _read(stream, -size % BLOCK)
