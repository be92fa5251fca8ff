"""Makes archives for tests, good and bad, and takes them in."""

from __future__ import annotations

import io
import stat
import tarfile
import zipfile
from pathlib import Path
from typing import BinaryIO

import pytest

from service.errors import RequestError
from service.intake import Intake, IntakeLimits, Manifest, canonicalise

Row = tuple[str, str, bytes, int]
"""Name, kind (file, folder, link), bytes or link target, mode."""

MEMBERS: tuple[Row, ...] = (
    ("src/", "folder", b"", 0o755),
    ("src/run.sh", "file", b"#!/bin/sh\necho hi\n", 0o755),
    ("src/data.bin", "file", bytes(range(256)) * 5, 0o644),
    ("src/empty", "file", b"", 0o644),
    ("link", "link", b"../outside/of it", 0o777),
    ("café.txt", "file", b"x\n", 0o644),
    ("d" * 60 + "/" + "n" * 200, "file", b"long name\n", 0o644),
)


def extract_all(file: BinaryIO, folder: Path) -> None:
    """Extracts one of our own archives as it is: links may point anywhere. Python 3.11.2 has no `filter=`."""
    with tarfile.open(fileobj=file) as archive:
        archive.extraction_filter = lambda member, _folder: member
        archive.extractall(folder)


def make_tar(format: int = tarfile.GNU_FORMAT, members: tuple[Row, ...] = MEMBERS) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format) as tar:
        for name, kind, data, mode in members:
            info = tarfile.TarInfo(name.rstrip("/"))
            info.mode, info.uid, info.mtime, info.uname = mode, 1234, 99, "me"
            if kind == "link":
                info.type, info.linkname = tarfile.SYMTYPE, data.decode()
                tar.addfile(info)
            elif kind == "folder":
                info.type = tarfile.DIRTYPE
                tar.addfile(info)
            else:
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def make_zip(members: tuple[Row, ...] = MEMBERS, *, method: int = zipfile.ZIP_DEFLATED, system: int = 3) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, kind, data, mode in members:
            info = zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0))
            info.create_system, info.compress_type = system, method
            types = {"file": stat.S_IFREG, "folder": stat.S_IFDIR, "link": stat.S_IFLNK}
            info.external_attr = (types[kind] | mode) << 16
            archive.writestr(info, data)
    return buffer.getvalue()


def take(upload: bytes, limits: IntakeLimits | None = None) -> tuple[bytes, Intake]:
    out = io.BytesIO()
    intake = canonicalise(io.BytesIO(upload), out, limits or IntakeLimits())
    return out.getvalue(), intake


def manifest(intake: Intake) -> Manifest:
    return Manifest.load(io.BytesIO(b"".join(intake.manifest.chunks())))


def refuse(upload: bytes, limits: IntakeLimits | None = None) -> RequestError:
    with pytest.raises(RequestError) as caught:
        take(upload, limits)
    return caught.value


def tar_entry(
    name: bytes, kind: bytes = b"0", data: bytes = b"", *, link: bytes = b"", size: bytes | None = None
) -> bytes:
    """One raw tar entry, with whatever name, type and size field."""
    block = bytearray(512)
    block[0 : len(name)] = name
    block[100:108] = b"0000644\0"
    block[124:136] = b"%011o\0" % len(data) if size is None else size
    block[148:156] = b" " * 8
    block[156:157] = kind
    block[157 : 157 + len(link)] = link
    block[257:265] = b"ustar\00000"[:8]
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block) + data + b"\0" * (-len(data) % 512)


TAR_END = b"\0" * 1024
