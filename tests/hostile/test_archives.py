"""T01 and T02: traversal, links, devices, bombs. Refused with a reason, nothing written, little memory and time."""

from __future__ import annotations

import gzip
import io
import json
import struct
import subprocess
import sys
import tarfile
import textwrap
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from service.blobs import DiskBlobs
from service.errors import RequestError
from service.intake import canonicalise

CASES = Path(__file__).parents[2].parent / "shared" / "cases"
GIB = 1 << 30
OK: tuple[int, str] = (201, "")
UNSAFE, BROKEN = (422, "archive_unsafe"), (422, "archive_unreadable")
LARGE, MANY, LONG = (413, "archive_too_large"), (413, "too_many_entries"), (413, "path_too_long")


def accept(upload: Path, folder: Path) -> tuple[int, str]:
    """What the API's edge makes of an upload: (201, "") or status and code; checks that nothing stays behind."""
    blobs = DiskBlobs(folder)
    try:
        with upload.open("rb") as file, blobs.writer() as tar:
            canonicalise(file, tar)
    except RequestError as error:
        assert [path for path in folder.rglob("*") if path.is_file()] == []
        return error.status, error.code
    return OK


# ------------------------------------------------------------------------------- a zoo of our own


def tar_of(*entries: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for fields in entries:
            data = fields.pop("data", b"")
            info = tarfile.TarInfo()
            info.size = len(data)
            for field, value in fields.items():
                setattr(info, field, value)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def link_maze() -> bytes:
    """Links whose resolved path overflows a resolver, which then lets one of them out (the class of CVE-2025-4517)."""
    entries: list[dict[str, Any]] = []
    folder, at = "f" * 200, ""
    for step in "abc":
        entries.append({"name": f"{at}{folder}", "type": tarfile.DIRTYPE})
        entries.append({"name": f"{at}{step}", "type": tarfile.SYMTYPE, "linkname": folder})
        at += f"{folder}/"
    entries.append({"name": "a/b/c/out", "type": tarfile.SYMTYPE, "linkname": "../" * 9 + "outside"})
    return tar_of(*entries, {"name": "a/b/c/out/CANARY", "data": b"x"})


def zeros(name: str, size: int, pack: Callable[[Any], Any]) -> Callable[[Path], None]:
    """A tar of one file of zeros, written through a packer."""

    class Zeros(io.RawIOBase):
        def readinto(self, buffer: Any) -> int:
            buffer[:] = bytes(len(buffer))
            return len(buffer)

        def readable(self) -> bool:
            return True

    def write(path: Path) -> None:
        info = tarfile.TarInfo(name)
        info.size = size
        with path.open("wb") as raw, pack(raw) as packed, tarfile.open(fileobj=packed, mode="w|") as tar:
            tar.addfile(info, io.BufferedReader(Zeros()))

    return write


def zip_bomb(path: Path, *, lie: bool = False) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive, archive.open("b", "w") as out:
        for _ in range(GIB >> 20):
            out.write(bytes(1 << 20))
    if lie:
        raw = bytearray(path.read_bytes())
        for signature, at in ((b"PK\3\4", 22), (b"PK\1\2", 24)):
            start = raw.index(signature) + at
            raw[start : start + 4] = struct.pack("<I", 100)
        path.write_bytes(raw)


def zip_of_one_body_many_times(path: Path) -> None:
    deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
    plain = bytes(1 << 20)
    body = deflate.compress(plain) + deflate.flush()
    numbers = (zlib.crc32(plain), len(body), len(plain))
    local = struct.pack("<4s5H3L2H", b"PK\3\4", 20, 0, 8, 0, 0, *numbers, 3, 0) + b"000" + body
    central = b"".join(
        struct.pack("<4s6H3L5H2L", b"PK\1\2", 20, 20, 0, 8, 0, 0, *numbers, 3, 0, 0, 0, 0, 0, 0) + b"%03d" % number
        for number in range(200)
    )
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 200, 200, len(central), len(local), 0)
    path.write_bytes(local + central + end)


def many(path: Path) -> None:
    with gzip.open(path, "wb", 1) as packed:
        for number in range(200_000):
            packed.write(tarfile.TarInfo(str(number)).tobuf())
        packed.write(bytes(1024))


def folders_without_end(path: Path) -> None:
    """Few entries that imply millions of folders."""
    with gzip.open(path, "wb", 1) as packed:
        for number in range(49_000):
            packed.write(tarfile.TarInfo("/".join(f"{number:x}{level:x}" for level in range(40))).tobuf())
        packed.write(bytes(1024))


def members_without_end(path: Path) -> None:
    path.write_bytes(gzip.compress(b"") * 500_000)


def copies_without_end(path: Path) -> None:
    link = {"type": tarfile.LNKTYPE, "linkname": "a"}
    path.write_bytes(tar_of({"name": "a", "data": bytes(1 << 20)}, *({"name": "b", **link} for _ in range(20_000))))


def zeros_behind_the_end(path: Path) -> None:
    with gzip.open(path, "wb", 9) as packed:
        packed.write(tar_of({"name": "a"}))
        for _ in range(512):
            packed.write(bytes(1 << 20))


def plain(data: bytes) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(data) and None


T01 = {
    "up": (plain(tar_of({"name": "../CANARY", "data": b"x"})), UNSAFE),
    "absolute": (plain(tar_of({"name": "/tmp/CANARY", "data": b"x"})), UNSAFE),
    "out and in again": (plain(tar_of({"name": "../x/../y/CANARY", "data": b"x"})), UNSAFE),
    "link, then through it": (
        plain(tar_of({"name": "l", "type": tarfile.SYMTYPE, "linkname": ".."}, {"name": "l/CANARY", "data": b"x"})),
        UNSAFE,
    ),
    "link to the root, then through it": (
        plain(tar_of({"name": "a", "type": tarfile.SYMTYPE, "linkname": "."}, {"name": "a/b", "data": b"x"})),
        UNSAFE,
    ),
    "hard link out": (
        plain(tar_of({"name": "h", "type": tarfile.LNKTYPE, "linkname": "../../../../etc/passwd"})),
        UNSAFE,
    ),
    "hard link out, then written": (
        plain(tar_of({"name": "in", "type": tarfile.LNKTYPE, "linkname": "../victim"}, {"name": "in", "data": b"x"})),
        UNSAFE,
    ),
    "a maze of links": (plain(link_maze()), UNSAFE),
    "device": (plain(tar_of({"name": "d", "type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 5})), UNSAFE),
    "fifo": (plain(tar_of({"name": "p", "type": tarfile.FIFOTYPE})), UNSAFE),
    "sparse, 1 TiB": (plain(tar_of({"name": "s", "type": tarfile.GNUTYPE_SPARSE})), UNSAFE),
    "two that differ": (plain(tar_of({"name": "x", "data": b"1"}, {"name": "x", "data": b"2"})), UNSAFE),
    "a git folder with traps": (
        plain(
            tar_of(
                {"name": ".git/config", "data": b"[core]\n\tfsmonitor = touch CANARY\n"},
                {"name": ".git/hooks/post-checkout", "data": b"#!/bin/sh\ntouch CANARY\n", "mode": 0o755},
            )
        ),
        OK,
    ),
}

T02 = {
    "gzip bomb": (zeros("z", GIB, lambda raw: gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=9)), LARGE),
    "zstd bomb": (zeros("z", GIB, lambda raw: zstandard.ZstdCompressor(3).stream_writer(raw, closefd=False)), LARGE),
    "zip bomb": (zip_bomb, LARGE),
    "zip bomb that lies": (lambda path: zip_bomb(path, lie=True), UNSAFE),
    "zip members that share their bytes": (zip_of_one_body_many_times, UNSAFE),
    "200,000 entries": (many, MANY),
    "folders without end": (folders_without_end, MANY),
    "gzip members without end": (members_without_end, BROKEN),
    "copies without end": (copies_without_end, LARGE),
    "zeros behind the end": (zeros_behind_the_end, LARGE),
}


@pytest.mark.parametrize("name", T01)
def test_t01_nothing_gets_out(name: str, tmp_path: Path) -> None:
    write, expected = T01[name]
    write(tmp_path / "upload")
    assert accept(tmp_path / "upload", tmp_path / "blobs") == expected
    assert not list(tmp_path.rglob("*CANARY*"))


@pytest.mark.parametrize("name", T02)
def test_t02_a_bomb_ends_early_and_in_little_memory(name: str, tmp_path: Path) -> None:
    write, expected = T02[name]
    write(tmp_path / "upload")
    report = measure(tmp_path / "upload", tmp_path / "blobs")
    assert (report["status"], report["code"]) == expected
    assert report["grown_kib"] <= 32 << 10
    assert report["cpu_s"] < 2


def test_a_real_tree_of_50_000_files_takes_little_memory(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "upload", "w") as tar:
        for number in range(50_000):
            tar.addfile(tarfile.TarInfo(f"{number % 997:04}/{'long-folder-name' * 6}/{number}"))
    report = measure(tmp_path / "upload", tmp_path / "blobs")
    assert (report["status"], report["files"]) == (201, 50_000)
    assert report["grown_kib"] <= 32 << 10


def measure(upload: Path, folder: Path) -> dict[str, Any]:
    """Takes an upload in, in a process of its own: outcome, CPU seconds, growth of its resident memory in KiB."""
    code = r"""
        import json, pathlib, re, sys, time
        from service.blobs import DiskBlobs
        from service.errors import RequestError
        from service.intake import canonicalise

        def peak():
            # Not ru_maxrss, which an exec inherits from the process before it.
            return int(re.search(r"VmHWM:\s+(\d+) kB", pathlib.Path("/proc/self/status").read_text())[1])

        upload, folder = map(pathlib.Path, sys.argv[1:])
        blobs, before, start = DiskBlobs(folder), peak(), time.process_time()
        outcome = {"status": 201, "code": ""}
        try:
            with upload.open("rb") as file, blobs.writer() as tar:
                outcome["files"] = canonicalise(file, tar).files
        except RequestError as error:
            outcome.update(status=error.status, code=error.code)
        outcome.update(cpu_s=time.process_time() - start, grown_kib=peak() - before)
        print(json.dumps(outcome))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(upload), str(folder)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    report: dict[str, Any] = json.loads(done.stdout)
    return report


# ---------------------------------------------------------------------- the case collection, where it is at hand

COLLECTION = {
    "service/make_archives.py": {
        "zip_dotdot.zip": UNSAFE, "zip_abs.zip": UNSAFE, "zip_backslash.zip": OK, "zip_symlink_through.zip": UNSAFE,
        "zip_symlink_out.zip": OK, "zip_dup.zip": UNSAFE, "zip_case.zip": OK, "zip_file_as_dir.zip": UNSAFE,
        "zip_many.zip": MANY, "zip_longname.zip": LONG, "zip_bomb.zip": LARGE, "zip_bomb_liar.zip": UNSAFE,
        "empty.zip": OK, "notzip.zip": BROKEN, "t.zip": BROKEN, "tar_dotdot.tgz": UNSAFE,
        "tar_hardlink_out.tgz": UNSAFE, "tar_symlink_chain.tgz": UNSAFE, "tar_device_fifo.tgz": UNSAFE,
        "tar_setuid.tgz": OK, "tar_noperm.tgz": OK, "tar_nonutf8.tgz": OK,
    },
    "hostile/make_corpus.py": {
        "tar_dotdot.tar": UNSAFE, "tar_abs.tar": UNSAFE, "tar_symlink_then_write.tar": UNSAFE,
        "tar_hardlink_outside.tar": UNSAFE, "tar_chr_dev.tar": UNSAFE, "tar_fifo.tar": UNSAFE, "tar_suid.tar": OK,
        "tar_realpath_overflow.tar": LONG, "tar_exit_reenter.tar": UNSAFE, "tar_200k_empty.tar.gz": MANY,
        "tar_bomb_1GiB.tar.gz": LARGE, "tar_case_collide.tar": UNSAFE, "tar_names.tar": OK, "tar_dotgit.tar": OK,
        "tar_truncated.tar": BROKEN, "not_an_archive.bin": BROKEN, "empty.tar": BROKEN, "zip_symlink.zip": UNSAFE,
        "zip_dotdot.zip": UNSAFE, "zip_bomb_1GiB.zip": LARGE, "zip_overlap_200MiB.zip": UNSAFE,
    },
}  # fmt: skip


@pytest.mark.parametrize("script", COLLECTION)
def test_the_case_collection(script: str, tmp_path: Path) -> None:
    if not (CASES / script).exists():
        pytest.skip("the case collection is not beside this clone; the same faults are tested above from our own")
    subprocess.run(
        [sys.executable, "-W", "ignore", str(CASES / script), str(tmp_path / "cases")],
        check=True,
        timeout=110,
        stdout=subprocess.DEVNULL,
    )
    archives = tmp_path / "cases" / ("archives" if script.startswith("hostile") else "")
    outcomes = {
        path.name: accept(path, tmp_path / "blobs" / path.name)
        for path in sorted(archives.iterdir())
        if path.name != "EXPECT.txt"
    }
    assert outcomes == COLLECTION[script]
    assert not list(tmp_path.rglob("CANARY*"))
