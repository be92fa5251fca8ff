"""Intake: every accepted archive of any format becomes the same canonical tar and manifest."""

from __future__ import annotations

import gzip
import hashlib
import io
import struct
import tarfile
import zipfile
from collections.abc import Callable

import pytest
import zstandard
from archive_kit import MEMBERS, make_tar, make_zip, manifest, take, tar_entry

from service.intake import Entry

CANONICAL = take(make_tar())[0]

UPLOADS = {
    "gnu": ("tar", make_tar()),
    "pax": ("tar", make_tar(tarfile.PAX_FORMAT)),
    "gzip": ("tar.gz", gzip.compress(make_tar(tarfile.PAX_FORMAT))),
    "gzip in members": ("tar.gz", b"".join(gzip.compress(make_tar()[at : at + 1000]) for at in range(0, 20_480, 1000))),
    "gzip padded": ("tar.gz", gzip.compress(make_tar()) + b"\0" * 9000),
    "zstd": ("tar.zst", zstandard.compress(make_tar())),
    "zstd in frames": ("tar.zst", zstandard.compress(make_tar()[:700]) + zstandard.compress(make_tar()[700:])),
    "zip": ("zip", make_zip()),
    "zip stored": ("zip", make_zip(method=zipfile.ZIP_STORED)),
}


@pytest.mark.parametrize("name", UPLOADS)
def test_every_format_gives_the_same_canonical_tar(name: str) -> None:
    format, upload = UPLOADS[name]
    tar, intake = take(upload)
    assert tar == CANONICAL
    assert (intake.format, intake.files, intake.notes) == (format, 6, ())
    assert intake.unpacked_size == 18 + 1280 + 0 + 2 + 10


def test_the_canonical_tar_is_byte_for_byte_its_documented_form() -> None:
    tar, _ = take(make_tar(members=(("a", "file", b"hi", 0o600), ("l", "link", b"t", 0o777))))

    def header(name: bytes, mode: bytes, size: bytes, sum: bytes, kind: bytes, link: bytes = b"") -> bytes:
        fields = (name.ljust(100, b"\0"), mode, b"0000000\0", b"0000000\0", size, b"0" * 11 + b"\0", sum, kind)
        return (b"".join(fields) + link.ljust(100, b"\0") + b"ustar\00000").ljust(512, b"\0")

    assert tar == b"".join(
        (
            header(b"a", b"0000644\0", b"00000000002\0", b"006100\0 ", b"0"),
            b"hi".ljust(512, b"\0"),
            header(b"l", b"0000644\0", b"0" * 11 + b"\0", b"006277\0 ", b"2", b"t"),
            b"\0" * 1024,
        )
    )


def test_the_standard_library_reads_the_canonical_tar() -> None:
    with tarfile.open(fileobj=io.BytesIO(CANONICAL)) as tar:
        seen = [(entry.name, entry.type, entry.mode, entry.uid, entry.mtime, entry.linkname) for entry in tar]
    assert seen == [
        ("src", tarfile.DIRTYPE, 0o755, 0, 0, ""),
        ("src/run.sh", tarfile.REGTYPE, 0o755, 0, 0, ""),
        ("src/data.bin", tarfile.REGTYPE, 0o644, 0, 0, ""),
        ("src/empty", tarfile.REGTYPE, 0o644, 0, 0, ""),
        ("link", tarfile.SYMTYPE, 0o644, 0, 0, "../outside/of it"),
        ("café.txt", tarfile.REGTYPE, 0o644, 0, 0, ""),
        ("d" * 60 + "/" + "n" * 200, tarfile.REGTYPE, 0o644, 0, 0, ""),
    ]


def test_the_canonical_tar_is_accepted_again_unchanged() -> None:
    assert take(CANONICAL)[0] == CANONICAL


def test_the_manifest_says_where_the_bytes_are() -> None:
    tar, intake = take(make_tar())
    index = manifest(intake)
    assert list(index) == [member[0].rstrip("/").encode() for member in MEMBERS]
    assert index[b"src"] == Entry("d", False, 0, 0, "", b"")
    assert index[b"link"] == Entry("l", False, 0, 0, "", b"../outside/of it")
    assert index[b"src/run.sh"].exec
    for name, kind, data, _ in MEMBERS:
        if kind == "file":
            entry = index[name.encode()]
            assert (entry.kind, entry.size, entry.sha256) == ("f", len(data), hashlib.sha256(data).hexdigest())
            assert tar[entry.offset : entry.offset + entry.size] == data


def test_names_that_are_not_text_are_kept_byte_for_byte() -> None:
    names = [
        "caf\udce9",
        "new\nline",
        "esc\x1b[31m",
        "-rf",
        "quote\"'`$(id)",
        " lead",
        "tab\t",
        "rtl\u202egpj.exe",
        "a\\b",
    ]
    _, intake = take(make_tar(members=tuple((name, "file", b"x", 0o644) for name in names)))
    assert list(manifest(intake)) == [name.encode("utf-8", "surrogateescape") for name in names]


def test_a_hard_link_becomes_a_file_of_its_own() -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        info = tarfile.TarInfo("a")
        info.size, info.mode = 300_000, 0o755
        tar.addfile(info, io.BytesIO(b"xyz" * 100_000))
        link = tarfile.TarInfo("b/c")
        link.type, link.linkname = tarfile.LNKTYPE, "./a"
        tar.addfile(link)
    tar_bytes, intake = take(buffer.getvalue())
    copy = manifest(intake)[b"b/c"]
    assert (copy.exec, copy.size) == (True, 300_000)
    assert tar_bytes[copy.offset : copy.offset + copy.size] == b"xyz" * 100_000
    assert intake.notes == ("hard links were made separate files: 1",)
    assert (intake.files, intake.unpacked_size) == (2, 600_000)


def test_special_bits_are_dropped_and_modes_made_plain() -> None:
    members = (
        ("su", "file", b"", 0o6755),
        ("none", "file", b"", 0o000),
        ("group", "file", b"", 0o671),
        ("sticky/", "folder", b"", 0o1777),
    )
    for upload in (make_tar(members=members), make_zip(members)):
        tar_bytes, intake = take(upload)
        with tarfile.open(fileobj=io.BytesIO(tar_bytes)) as tar:
            assert [entry.mode for entry in tar] == [0o755, 0o644, 0o644, 0o755]
        assert intake.notes == ("set-user-id, set-group-id or sticky bits were dropped from 2 entries",)


@pytest.mark.parametrize("pack", [make_tar, make_zip])
def test_spellings_of_a_path_become_one(pack: Callable[..., bytes]) -> None:
    spellings = ("./a", "a", "b/./c", "b//c", "b/", "./b/./", "./")
    members = tuple((name, "folder" if name.endswith("/") else "file", b"", 0o644) for name in spellings)
    _, intake = take(pack(members=members))
    assert list(manifest(intake)) == [b"a", b"b/c"]
    assert intake.notes == ("entries that were there twice, with the same content, were kept once: 2",)


def test_an_archive_without_entries_is_an_empty_workspace() -> None:
    for upload in (make_tar(members=()), make_zip(()), gzip.compress(make_tar(members=())), b"\0" * 1024):
        tar_bytes, intake = take(upload)
        assert tar_bytes == b"\0" * 1024
        assert (intake.files, intake.unpacked_size, list(manifest(intake))) == (0, 0, [])


def test_git_folders_and_links_are_kept_as_data() -> None:
    members = (
        (".git/config", "file", b"[core]\n", 0o644),
        (".git/hooks/post-checkout", "file", b"#!/bin/sh\n", 0o755),
        (".GIT/x", "file", b"", 0o644),
        ("abs", "link", b"/etc/passwd", 0o777),
        ("loop", "link", b"loop", 0o777),
    )
    for pack in (make_tar, make_zip):
        _, intake = take(pack(members=members))
        assert list(manifest(intake)) == [name.encode() for name, *_ in members]


def test_names_in_one_letter_case_only_stay_apart() -> None:
    _, intake = take(make_zip((("A", "file", b"1", 0o644), ("a", "file", b"2", 0o644))))
    assert list(manifest(intake)) == [b"A", b"a"]


def test_a_zip_from_another_system_has_plain_modes() -> None:
    _, intake = take(make_zip((("a", "file", b"1", 0o755), ("d/", "folder", b"", 0o755)), system=0))
    assert [(entry.kind, entry.exec) for entry in manifest(intake).values()] == [("f", False), ("d", False)]


def test_a_streamed_zip_with_descriptors_is_read() -> None:
    class Pipe(io.RawIOBase):
        """Cannot seek, so that zipfile writes the sizes behind the data."""

        def __init__(self) -> None:
            self.data = bytearray()

        def writable(self) -> bool:
            return True

        def write(self, data: bytes) -> int:  # type: ignore[override]
            self.data += data
            return len(data)

    pipe = Pipe()
    with zipfile.ZipFile(pipe, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a", b"1" * 1000)
        with archive.open("b", "w", force_zip64=True) as member:
            member.write(b"2" * 1000)
    _, intake = take(bytes(pipe.data))
    assert [(path, entry.size) for path, entry in manifest(intake).items()] == [(b"a", 1000), (b"b", 1000)]


def test_a_zip64_archive_is_read() -> None:
    plain = make_zip((("a", "file", b"hello", 0o644),))
    end = plain.index(b"PK\5\6")
    count, size, start = struct.unpack_from("<H2L", plain, end + 10)
    record = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, count, count, size, start)
    locator = struct.pack("<4sLQL", b"PK\6\7", 0, end, 1)
    end_record = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    _, intake = take(plain[:end] + record + locator + end_record)
    assert list(manifest(intake)) == [b"a"]


def test_a_v7_tar_without_magic_is_read() -> None:
    block = bytearray(make_tar(members=(("a", "file", b"", 0o644),))[:512])
    block[257:265] = b"\0" * 8
    block[156:157] = b"\0"
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    _, intake = take(bytes(block) + b"\0" * 1024)
    assert list(manifest(intake)) == [b"a"]


def test_what_git_archive_writes_is_read() -> None:
    comment = b"52 comment=0123456789abcdef0123456789abcdef01234567\n"
    _, intake = take(tar_entry(b"pax_global_header", b"g", comment) + make_tar())
    assert intake.files == 6
