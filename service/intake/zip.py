"""Reads zip strictly: the central directory decides, and each member's own header must say the same.

Members are read in the order in which they lie in the file, each behind the end of the one before, so that none
overlap. Every one is inflated, counted and checked against its size and CRC. Encryption, several disks, methods
but stored and deflate are refused. Memory holds two numbers a member.
"""

from __future__ import annotations

import stat
import struct
import zlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass

from service.intake.member import Member
from service.intake.policy import IntakeLimits, too_large, unreadable, unsafe
from service.intake.streams import Upload

_CHUNK = 64 << 10
_END = struct.Struct("<4s4H2LH")
_LOCATOR = struct.Struct("<4sLQL")
_END64 = struct.Struct("<4sQ2H2L4Q")
_CENTRAL = struct.Struct("<4s2B5H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_MOST_COMMENT = 0xFFFF
_FULL16, _FULL32 = 0xFFFF, 0xFFFFFFFF
_ENCRYPTED, _DESCRIPTOR, _PATCHED, _STRONG, _MASKED = 1 << 0, 1 << 3, 1 << 5, 1 << 6, 1 << 13
_LOOSE_FLAGS = 0b110
"""Hints of how hard the packer tried; they change nothing."""
_ZIP64 = 0x0001
_STORED, _DEFLATED = 0, 8
_UNIX = 3
_ENDS_EARLY = "is damaged: its data does not end where it should"
_CUT = "it is cut off, or no zip archive"


@dataclass(frozen=True, slots=True)
class _Record:
    """One member as the central directory describes it."""

    name: bytes
    system: int
    flags: int
    method: int
    crc: int
    packed: int
    size: int
    start: int
    """Where its local header is."""
    attributes: int


def members(upload: Upload, limits: IntakeLimits) -> Iterator[Member]:
    """Every member, by its place in the file."""
    central, size, count = _find_directory(upload)
    if count > limits.entries:
        raise too_large("too_many_entries", f"the archive has more than {limits.entries:,} entries")
    end_of_last = 0
    for position in _by_place(upload, central, size, count):
        record, _ = _central_record(upload, position)
        if record.start < end_of_last:
            raise unsafe(record.name, "overlaps another member")
        data_start = _check_local(upload, record)
        end_of_last = data_start + record.packed
        if end_of_last > central:
            raise unsafe(record.name, "reaches into the archive's directory")
        yield _member(upload, record, data_start)


def _read(upload: Upload, offset: int, size: int) -> bytes:
    upload.seek(offset)
    data = upload.read(size)
    if len(data) != size:
        raise unreadable(_CUT)
    return data


def _find_directory(upload: Upload) -> tuple[int, int, int]:
    """Offset, size and number of records of the central directory, which must end where its end record starts."""
    length = upload.seek(0, 2)
    tail_start = max(0, length - _MOST_COMMENT - _END.size)
    tail = _read(upload, tail_start, length - tail_start)
    at = tail.rfind(b"PK\x05\x06")
    if at < 0 or len(tail) - at < _END.size:
        raise unreadable(_CUT)
    _, disk, first_disk, here, count, size, start, comment = _END.unpack_from(tail, at)
    end = tail_start + at
    if end + _END.size + comment != length:
        raise unreadable("there is data after the end of the zip archive")
    if _FULL16 in (here, count) or _FULL32 in (size, start):
        locator = end - _LOCATOR.size
        if locator >= 0 and _read(upload, locator, 4) == b"PK\x06\x07":
            return _find_directory64(upload, locator)
    if disk or first_disk or here != count:
        raise unreadable("it is one of several disks of a zip archive")
    return _checked(start, size, count, end)


def _find_directory64(upload: Upload, locator: int) -> tuple[int, int, int]:
    _, disk, at, disks = _LOCATOR.unpack(_read(upload, locator, _LOCATOR.size))
    if at + _END64.size > locator:
        raise unreadable("its zip64 end record is not where it should be")
    signature, length, _, _, this_disk, first_disk, here, count, size, start = _END64.unpack(
        _read(upload, at, _END64.size)
    )
    if signature != b"PK\x06\x06" or at + 12 + length != locator:
        raise unreadable("its zip64 end record is broken")
    if disk or this_disk or first_disk or disks > 1 or here != count:
        raise unreadable("it is one of several disks of a zip archive")
    return _checked(start, size, count, at)


def _checked(start: int, size: int, count: int, end: int) -> tuple[int, int, int]:
    if start + size != end:
        raise unreadable("its zip directory is not where it should be")
    return start, size, count


def _by_place(upload: Upload, central: int, size: int, count: int) -> list[int]:
    """Positions of the directory's records, ordered by where their members lie."""
    positions, starts = array("Q"), array("Q")
    at = central
    for _ in range(count):
        if at >= central + size:
            raise unreadable("its zip directory has fewer records than it says")
        record, end = _central_record(upload, at)
        positions.append(at)
        starts.append(record.start)
        at = end
    if at != central + size:
        raise unreadable("its zip directory has other records than it says")
    return [positions[index] for index in sorted(range(count), key=starts.__getitem__)]


def _central_record(upload: Upload, at: int) -> tuple[_Record, int]:
    """The record at `at`, and where the next one starts."""
    fields = _CENTRAL.unpack(_read(upload, at, _CENTRAL.size))
    signature, _, system, _, flags, method, _, _, crc, packed, size = fields[:11]
    name_length, extra_length, comment_length, disk, _, attributes, start = fields[11:]
    if signature != b"PK\x01\x02":
        raise unreadable("its zip directory is broken")
    name = _read(upload, at + _CENTRAL.size, name_length)
    extra = _read(upload, at + _CENTRAL.size + name_length, extra_length)
    size, packed, start, disk = _zip64(name, extra, [(size, 8), (packed, 8), (start, 8), (disk, 4)])
    if disk:
        raise unreadable("it is one of several disks of a zip archive")
    record = _Record(name, system, flags, method, crc, packed, size, start, attributes)
    return record, at + _CENTRAL.size + name_length + extra_length + comment_length


def _zip64(name: bytes, extra: bytes, fields: list[tuple[int, int]]) -> list[int]:
    """The fields, each (value, width) that is all ones replaced by its 64-bit form from the extra data."""
    wide, at = b"", 0
    while at + 4 <= len(extra):
        tag, length = struct.unpack_from("<2H", extra, at)
        if tag == _ZIP64:
            wide = extra[at + 4 : at + 4 + length]
            break
        at += 4 + length
    values, at = [], 0
    for value, width in fields:
        if value == (_FULL32 if width == 8 else _FULL16) and wide:
            if at + width > len(wide):
                raise unsafe(name, "has a broken zip64 record")
            value = int.from_bytes(wide[at : at + width], "little")
            at += width
        values.append(value)
    return values


def _check_local(upload: Upload, record: _Record) -> int:
    """Where the member's data starts; refused when its own header says something else than the directory."""
    header = _LOCAL.unpack(_read(upload, record.start, _LOCAL.size))
    signature, _, flags, method, _, _, crc, packed, size, name_length, extra_length = header
    if signature != b"PK\x03\x04":
        raise unsafe(record.name, "has no header of its own")
    name = _read(upload, record.start + _LOCAL.size, name_length)
    extra = _read(upload, record.start + _LOCAL.size + name_length, extra_length)
    size, packed = _zip64(record.name, extra, [(size, 8), (packed, 8)])
    own, told = (crc, packed, size), (record.crc, record.packed, record.size)
    # With a descriptor the header was written before the sizes were known: zeros, or already the truth.
    later = bool(flags & _DESCRIPTOR) and all(mine in (0, _FULL32, real) for mine, real in zip(own, told, strict=True))
    if name != record.name or (flags ^ record.flags) & ~_LOOSE_FLAGS or method != record.method:
        raise unsafe(record.name, "has a header that differs from the archive's directory")
    if own != told and not later:
        raise unsafe(record.name, "has sizes that differ from the archive's directory")
    return record.start + _LOCAL.size + len(name) + len(extra)


def _member(upload: Upload, record: _Record, data_start: int) -> Member:
    name = record.name
    if record.flags & (_ENCRYPTED | _STRONG | _MASKED):
        raise unsafe(name, "is encrypted")
    if record.flags & _PATCHED or record.method not in (_STORED, _DEFLATED):
        raise unsafe(name, f"is packed by method {record.method}; use deflate")
    if record.system != _UNIX and b"\\" in name:
        # A name may hold a backslash on Unix; elsewhere it is a broken packer's folder separator.
        raise unsafe(name, "has backslashes in its path; pack it with forward slashes")
    unix = record.attributes >> 16 if record.system == _UNIX else 0
    kind, mode = stat.S_IFMT(unix), unix & 0o7777 or 0o644
    if (name.endswith(b"/") and kind in (0, stat.S_IFREG)) or kind == stat.S_IFDIR:
        if record.size:
            raise unsafe(name, "is a folder that claims to have content")
        return Member(name, "folder", mode)
    if kind == stat.S_IFLNK:
        return Member(name, "link", target=_link_target(upload, record, data_start))
    if kind not in (0, stat.S_IFREG) or name.endswith(b"/"):
        raise unsafe(name, "is neither a file, a folder nor a symbolic link")
    return Member(name, "file", mode, record.size, body=_body(upload, record, data_start))


def _link_target(upload: Upload, record: _Record, data_start: int) -> bytes:
    if record.size > _CHUNK:
        raise too_large("path_too_long", "the target of a link is too long")
    return b"".join(_body(upload, record, data_start))


def _body(upload: Upload, record: _Record, data_start: int) -> Iterator[bytes]:
    """The member's bytes, inflated; refused as soon as they are more than its size says."""
    size, crc = 0, 0
    for data in (_stored if record.method == _STORED else _inflated)(upload, record, data_start):
        size += len(data)
        if size > record.size:
            raise unsafe(record.name, f"is larger than the {record.size:,} bytes it claims")
        crc = zlib.crc32(data, crc)
        yield data
    if size != record.size or crc != record.crc:
        raise unsafe(record.name, "is damaged: its size or checksum is wrong")


def _stored(upload: Upload, record: _Record, data_start: int) -> Iterator[bytes]:
    for at in range(0, record.packed, _CHUNK):
        yield _read(upload, data_start + at, min(_CHUNK, record.packed - at))


def _inflated(upload: Upload, record: _Record, data_start: int) -> Iterator[bytes]:
    inflate = zlib.decompressobj(-15)
    try:
        for packed in _stored(upload, record, data_start):
            if inflate.eof:
                raise unsafe(record.name, _ENDS_EARLY)
            while packed and not inflate.eof:
                if data := inflate.decompress(packed, _CHUNK):
                    yield data
                packed = inflate.unconsumed_tail
        while not inflate.eof and (data := inflate.decompress(inflate.unconsumed_tail, _CHUNK)):
            yield data
    except zlib.error as error:
        raise unsafe(record.name, f"is damaged ({error})") from None
    if not inflate.eof or inflate.unused_data:
        raise unsafe(record.name, _ENDS_EARLY)
