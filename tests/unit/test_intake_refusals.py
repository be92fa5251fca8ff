"""Intake: what is refused, with which status and code, naming which member."""

from __future__ import annotations

import bz2
import gzip
import struct
import tarfile
import zipfile
import zlib

import pytest
import zstandard
from archive_kit import TAR_END, Row, make_tar, make_zip, refuse, take, tar_entry

from service.intake import IntakeLimits


def files(*names: str) -> tuple[Row, ...]:
    return tuple((name, "file", b"x", 0o644) for name in names)


def pax(*records: tuple[bytes, bytes]) -> bytes:
    data = b""
    for key, value in records:
        length = len(key) + len(value) + 3
        length += len(str(length + len(str(length))))
        data += b"%d %s=%s\n" % (length, key, value)
    return data


def zip_with(offset_in_local: int, offset_in_central: int, value: bytes, *, where: str = "both") -> bytes:
    """A zip of one stored file `a` with some bytes of its headers replaced."""
    raw = bytearray(make_zip(files("a"), method=zipfile.ZIP_STORED))
    central = raw.index(b"PK\1\2")
    if where in ("both", "local"):
        raw[offset_in_local : offset_in_local + len(value)] = value
    if where in ("both", "central"):
        raw[central + offset_in_central : central + offset_in_central + len(value)] = value
    return bytes(raw)


UNREADABLE = {
    "nothing": (b"", "it is empty"),
    "text": (b"hello", "it is none of tar, tar.gz, tar.zst, zip"),
    "another packer": (bz2.compress(make_tar()), "it is none of tar, tar.gz, tar.zst, zip"),
    "gzip of text": (gzip.compress(b"hello"), "it is cut off"),
    "gzip of nothing": (gzip.compress(b""), "it is cut off"),
    "gzip cut off": (gzip.compress(make_tar())[:-9], "its gzip stream is cut off"),
    "gzip with a wrong checksum": (gzip.compress(make_tar())[:-8] + b"\1" * 8, "its gzip stream is broken"),
    "gzip and then text": (gzip.compress(make_tar()) + b"text", "its gzip stream is broken"),
    "gzip, zeros and then text": (gzip.compress(make_tar()) + b"\0text", "there is data after the end"),
    "zstd cut off": (zstandard.compress(make_tar())[:-20], "it is cut off"),
    "zstd and then text": (zstandard.compress(make_tar()) + b"text", "its zstd stream is broken"),
    "tar cut off in a file": (make_tar()[:1300], "it is cut off"),
    "tar cut off between members": (make_tar()[:512], "it is cut off"),
    "tar with a broken header": (tar_entry(b"a") + b"\1" * 512, "a tar header is broken"),
    "tar with data behind its end": (make_tar(members=()) + tar_entry(b"a"), "there is data after the archive's end"),
    "tar that ends between headers": (tar_entry(b"x", b"L", b"name\0") + TAR_END, "it ends between a member's headers"),
    "tar with a size that is text": (tar_entry(b"a", size=b"hello world\0"), "a number in a tar header is no number"),
    "zip cut off": (make_zip()[:-30], "it is cut off, or no zip archive"),
    "zip with data behind": (make_zip() + b"x", "there is data after the end of the zip archive"),
    "zip with data in front": (b"PK\3\4" + make_zip(), "its zip directory is not where it should be"),
    "zip with more records than told": (
        make_zip(files("a", "b")).replace(b"\2\0\2\0", b"\1\0\1\0"),
        "its zip directory has other records",
    ),
    "zip with fewer records than told": (
        make_zip(files("a")).replace(b"\1\0\1\0", b"\2\0\2\0"),
        "its zip directory has fewer records",
    ),
    "zip on two disks": (zip_with(0, 34, b"\1\0", where="central"), "it is one of several disks"),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_what_cannot_be_read_says_why(name: str) -> None:
    upload, why = UNREADABLE[name]
    error = refuse(upload)
    assert (error.status, error.code) == (422, "archive_unreadable")
    assert error.detail.startswith(f"the upload cannot be read: {why}")


def test_a_zstd_window_beyond_8_mib_is_refused_with_the_way_out() -> None:
    parameters = zstandard.ZstdCompressionParameters.from_level(3, window_log=27)
    packed = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    upload = packed.compress(make_tar(members=(("a", "file", bytes(9 << 20), 0o644),))) + packed.flush()
    assert refuse(upload).detail.endswith("its window may be 8 MiB: pack it without --long and --ultra")


UNSAFE = {
    "absolute": (make_tar(members=files("/a")), "/a", "has an absolute path"),
    "parent": (make_zip(files("a/../b")), "a/../b", "has '..' in its path"),
    "device": (tar_entry(b"dev", b"3") + TAR_END, "dev", "is a character device"),
    "block device": (tar_entry(b"dev", b"4") + TAR_END, "dev", "is a block device"),
    "fifo": (tar_entry(b"pipe", b"6") + TAR_END, "pipe", "is a FIFO"),
    "sparse": (tar_entry(b"s", b"S") + TAR_END, "s", "is a sparse file (pack it without --sparse)"),
    "sparse pax": (
        tar_entry(b"s", b"x", pax((b"GNU.sparse.major", b"1"))) + TAR_END,
        "s",
        "is a sparse file (pack it without --sparse)",
    ),
    "unknown type": (tar_entry(b"m", b"M") + TAR_END, "m", "is of an unknown type b'M'"),
    "link over a file": (
        make_tar(members=(*files("a"), ("a", "link", b"b", 0o777))),
        "a",
        "is there twice, and the two differ",
    ),
    "file over a link": (
        make_tar(members=(("a", "link", b"b", 0o777), *files("a"))),
        "a",
        "is a file and a symbolic link",
    ),
    "other link": (
        make_tar(members=(("a", "link", b"b", 0o777), ("a", "link", b"c", 0o777))),
        "a",
        "is there twice, and the two differ",
    ),
    "other mode": (
        make_tar(members=(("a", "file", b"x", 0o644), ("a", "file", b"x", 0o755))),
        "a",
        "is there twice, and the two differ",
    ),
    "folder over a file": (make_tar(members=(*files("a"), ("a", "folder", b"", 0o755))), "a", "is a folder and a file"),
    "file over a folder": (make_tar(members=files("a/b", "a")), "a", "is a file and a folder"),
    "through a link": (
        make_zip((("a", "link", b"/tmp", 0o777), *files("a/b/c"))),
        "a/b/c",
        "lies below 'a', which is a symbolic link",
    ),
    "below a file": (make_tar(members=files("a", "a/b")), "a/b", "lies below 'a', which is a file"),
    "file for the root": (make_tar(members=files("./.")), "./.", "takes the place of the workspace itself"),
    "hard link out": (
        tar_entry(b"a", b"1", link=b"../a") + TAR_END,
        "a",
        "is a hard link to something that is not a file before it in the archive",
    ),
    "hard link forward": (
        tar_entry(b"a", b"1", link=b"b") + tar_entry(b"b") + TAR_END,
        "a",
        "is a hard link to something that is not a file before it in the archive",
    ),
    "hard link to a link": (
        tar_entry(b"l", b"2", link=b"/etc/passwd") + tar_entry(b"a", b"1", link=b"l") + TAR_END,
        "a",
        "is a hard link to something that is not a file before it in the archive",
    ),
    "link to nothing": (
        tar_entry(b"a", b"2") + TAR_END,
        "a",
        "is a symbolic link whose target is empty or has a NUL byte",
    ),
    "NUL in a pax name": (
        tar_entry(b"x", b"x", pax((b"path", b"a\0b"))) + tar_entry(b"a") + TAR_END,
        "a\\x00b",
        "has a NUL byte in its name",
    ),
    "two names": (
        tar_entry(b"x", b"L", b"b\0") + tar_entry(b"x", b"x", pax((b"path", b"c"))) + tar_entry(b"a") + TAR_END,
        "c",
        "has two names",
    ),
    "two sizes": (
        tar_entry(b"x", b"x", pax((b"size", b"512"))) + tar_entry(b"a", data=b"1") + TAR_END,
        "a",
        "has two sizes",
    ),
    "two long names": (
        tar_entry(b"x", b"L", b"b\0") * 2 + tar_entry(b"a") + TAR_END,
        "x",
        "comes after two headers of one kind for the same member",
    ),
    "broken pax": (tar_entry(b"x", b"x", b"9999 path=a\n") + TAR_END, "x", "has a broken pax header"),
    "global name": (
        tar_entry(b"g", b"g", pax((b"path", b"a"))) + TAR_END,
        "g",
        "is a global header that sets 'path' of every member",
    ),
    "negative size": (tar_entry(b"a", size=b"\xff" * 12) + TAR_END, "a", "has a negative size"),
    "folder with content": (
        tar_entry(b"a", b"5", b"1") + TAR_END,
        "a",
        "is a link or a folder that claims to have content",
    ),
    "encrypted": (zip_with(6, 8, b"\1\0"), "a", "is encrypted"),
    "unknown method": (zip_with(8, 10, b"\x0c\0"), "a", "is packed by method 12; use deflate"),
    "wrong checksum": (zip_with(14, 16, b"abcd"), "a", "is damaged: its size or checksum is wrong"),
    "smaller than told": (zip_with(22, 24, b"\2"), "a", "is damaged: its size or checksum is wrong"),
    "larger than told": (zip_with(22, 24, b"\0"), "a", "is larger than the 0 bytes it claims"),
    "two names in a zip": (
        zip_with(30, 46, b"b", where="local"),
        "a",
        "has a header that differs from the archive's directory",
    ),
    "two sizes in a zip": (
        zip_with(18, 20, b"\7", where="local"),
        "a",
        "has sizes that differ from the archive's directory",
    ),
    "into the directory": (zip_with(18, 20, b"\7"), "a", "reaches into the archive's directory"),
    "no header": (zip_with(0, 42, b"\1", where="central"), "a", "has no header of its own"),
    "device in a zip": (zip_with(0, 40, b"\xa4\x21", where="central"), "a", "is neither a file, a folder nor"),
    "NUL in a zip name": (zip_with(30, 46, b"\0"), "\\x00", "has a NUL byte in its name"),
    "backslashes from elsewhere": (
        make_zip(files("..\\a"), system=0),
        "..\\\\a",
        "has backslashes in its path; pack it with forward slashes",
    ),
}


@pytest.mark.parametrize("name", UNSAFE)
def test_an_unsafe_member_is_named(name: str) -> None:
    upload, member, why = UNSAFE[name]
    error = refuse(upload)
    assert (error.status, error.code, error.extra) == (422, "archive_unsafe", {"member": member})
    assert error.detail.startswith(f"the member {member!r} {why}")


def test_a_zip_member_whose_data_ends_early_or_late_is_refused() -> None:
    body = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = body.compress(b"x" * 100) + body.flush()
    for data in (packed[:-1], packed + b"\0"):
        local = struct.pack("<4s5H3L2H", b"PK\3\4", 20, 0, 8, 0, 0, zlib.crc32(b"x" * 100), len(data), 100, 1, 0)
        central = struct.pack(
            "<4s6H3L5H2L",
            *(b"PK\1\2", 20, 20, 0, 8, 0, 0, zlib.crc32(b"x" * 100), len(data), 100, 1, 0, 0, 0, 0, 0, 0),
        )
        start = len(local) + 1 + len(data)
        end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 1, 1, len(central) + 1, start, 0)
        error = refuse(local + b"a" + data + central + b"a" + end)
        assert error.detail == "the member 'a' is damaged: its data does not end where it should"


SMALL = IntakeLimits(
    unpacked=1000, ratio=2, ratio_floor=500, entries=5, path=20, component=10, target=8, depth=3, names=60
)

BEYOND = {
    "a file": (make_tar(members=(("a", "file", bytes(1001), 0o644),)), "archive_too_large"),
    "all files": (make_zip((("a", "file", bytes(600), 0o644), ("b", "file", bytes(600), 0o644))), "archive_too_large"),
    "the ratio of a zip": (make_zip((("a", "file", bytes(900), 0o644),)), "archive_too_large"),
    "the ratio of a gzip": (gzip.compress(bytes(10_240)), "archive_too_large"),
    "copies": (
        tar_entry(b"a", data=bytes(400))
        + b"".join(tar_entry(name, b"1", link=b"a") for name in (b"b", b"c"))
        + TAR_END,
        "archive_too_large",
    ),
    "a forged size": (tar_entry(b"a", size=b"\x80" + b"\0" * 3 + b"\1" + b"\0" * 7) + TAR_END, "archive_too_large"),
    "entries of a tar": (make_tar(members=files(*"abcdef")), "too_many_entries"),
    "entries of a zip": (make_zip(files(*"abcdef")), "too_many_entries"),
    "the same entry": (make_tar(members=files(*"aaaaaa")), "too_many_entries"),
    "implied folders": (make_tar(members=files("a/b/1", "c/d/2", "e/f/3", "g/h/4")), "too_many_entries"),
    "names": (make_tar(members=files(*(f"{letter * 10}/{letter}" for letter in "abcdef"))), "too_many_entries"),
    "a path": (make_tar(members=files("abcdefghi/abcdefghi/a")), "path_too_long"),
    "a part": (make_zip(files("abcdefghijk")), "path_too_long"),
    "a target": (make_zip((("a", "link", b"123456789", 0o777),)), "path_too_long"),
    "depth": (make_tar(members=files("a/b/c/d")), "path_too_deep"),
}


@pytest.mark.parametrize("name", BEYOND)
def test_what_is_beyond_a_limit_is_too_large(name: str) -> None:
    upload, code = BEYOND[name]
    error = refuse(upload, SMALL)
    assert (error.status, error.code) == (413, code)


def test_an_extension_header_is_bounded() -> None:
    assert refuse(tar_entry(b"x", b"x", bytes(2 << 20))).code == "path_too_long"


def test_what_is_at_a_limit_is_accepted() -> None:
    limits = IntakeLimits(unpacked=500, entries=3, path=20, component=10, depth=3, target=8)
    members = (
        ("0123456789/1/3456789", "file", bytes(500), 0o644),
        ("a/b/c", "file", b"", 0o644),
        ("l", "link", b"12345678", 0o777),
    )
    assert take(make_tar(members=members), limits)[1].unpacked_size == 500
    assert take(make_zip(members), limits)[1].unpacked_size == 500


def test_the_defaults_are_those_of_the_contract() -> None:
    limits = IntakeLimits()
    assert (limits.unpacked, limits.ratio, limits.ratio_floor) == (4 << 30, 100, 64 << 20)
    assert (limits.entries, limits.path, limits.depth) == (50_000, 1_024, 64)


def test_a_long_name_is_shown_short_and_escaped() -> None:
    error = refuse(make_tar(members=files("../\x1b\u202e" + "a" * 200)))
    assert error.detail == f"the member '../\\\\x1b\\\\u202e{'a' * 107}…' has '..' in its path"


def test_gnu_long_names_and_pax_names_meet_the_same_limits() -> None:
    for format in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        assert refuse(make_tar(format, files("a/" * 70 + "b"))).code == "path_too_deep"
        assert refuse(make_tar(format, files("a" * 256))).code == "path_too_long"
        assert refuse(make_tar(format, files(("a" * 99 + "/") * 11))).code == "path_too_long"
