"""Blobs on disk: whole or not at all, one file for the same bytes, nothing left behind."""

from __future__ import annotations

import errno
import hashlib
import multiprocessing
import stat
from pathlib import Path
from typing import Any

import pytest

from service import blobs as blobs_module
from service.blobs import BlobRef, DiskBlobs
from service.errors import NotFound, Unavailable

HELLO = BlobRef(hashlib.sha256(b"hello").hexdigest(), 5)


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def stored(ref: BlobRef) -> str:
    return f"{ref.sha256[:2]}/{ref.sha256}"


def test_the_same_bytes_are_one_blob(tmp_path: Path) -> None:
    store = DiskBlobs(tmp_path)
    assert store.put([b"he", b"llo"]) == HELLO
    assert store.put([b"hello"]) == HELLO
    assert files(tmp_path) == [stored(HELLO)]
    with store.open(HELLO.sha256) as blob:
        blob.seek(1)
        assert blob.read() == b"ello"
    assert store.size(HELLO.sha256) == 5


def test_an_empty_blob_is_a_blob(tmp_path: Path) -> None:
    store = DiskBlobs(tmp_path)
    assert store.put([]) == BlobRef(hashlib.sha256().hexdigest(), 0)


def test_a_writer_appends_whatever_was_read_between(tmp_path: Path) -> None:
    store = DiskBlobs(tmp_path)
    with store.writer() as writer:
        writer.write(b"hel")
        assert writer.ref == BlobRef(hashlib.sha256(b"hel").hexdigest(), 3)
        writer.seek(1)
        assert writer.read(2) == b"el"
        writer.write(b"lo")
    assert writer.ref == HELLO
    with store.open(HELLO.sha256) as blob:
        assert blob.read() == b"hello"


def test_a_writer_that_fails_leaves_nothing(tmp_path: Path) -> None:
    store = DiskBlobs(tmp_path)

    def fail_half_way() -> None:
        with store.writer() as writer:
            writer.write(b"hello")
            raise KeyError

    with pytest.raises(KeyError):
        fail_half_way()
    with store.scratch() as scratch:
        scratch.write(b"hello")
        scratch.seek(0)
        assert scratch.read() == b"hello"
    assert files(tmp_path) == []


def test_a_missing_blob_is_not_found(tmp_path: Path) -> None:
    store = DiskBlobs(tmp_path)
    for name in (HELLO.sha256, "../../etc/passwd", "", HELLO.sha256.upper()):
        for ask in (store.open, store.size):
            with pytest.raises(NotFound) as caught:
                ask(name)
            assert caught.value.code == "blob_missing"


def test_delete_is_idempotent_and_readers_read_on(tmp_path: Path) -> None:
    store = DiskBlobs(tmp_path)
    store.put([b"hello"])
    with store.open(HELLO.sha256) as blob:
        store.delete(HELLO.sha256)
        store.delete(HELLO.sha256)
        assert blob.read() == b"hello"
    with pytest.raises(NotFound):
        store.size(HELLO.sha256)


def test_a_torn_blob_is_replaced(tmp_path: Path) -> None:
    store = DiskBlobs(tmp_path)
    store.put([b"hello"])
    (tmp_path / stored(HELLO)).write_bytes(b"")
    store.put([b"hello"])
    assert store.size(HELLO.sha256) == 5


def test_only_the_owner_may_look(tmp_path: Path) -> None:
    store = DiskBlobs(tmp_path / "blobs")
    store.put([b"hello"])
    modes = {str(path.relative_to(tmp_path)): stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")}
    assert modes == {
        "blobs": 0o700,
        "blobs/tmp": 0o700,
        f"blobs/{HELLO.sha256[:2]}": 0o700,
        f"blobs/{stored(HELLO)}": 0o600,
    }


def test_a_start_removes_the_files_of_dead_writers_only(tmp_path: Path) -> None:
    store = DiskBlobs(tmp_path)
    (tmp_path / "tmp" / "left-by-a-dead-writer").write_bytes(b"x")
    with store.writer() as alive:
        alive.write(b"hello")
        DiskBlobs(tmp_path)
        assert len(files(tmp_path)) == 1
    assert files(tmp_path) == [stored(HELLO)]


def test_a_full_disk_says_so_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = DiskBlobs(tmp_path)

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(blobs_module.os, "fsync", full)
    with pytest.raises(Unavailable) as caught:
        store.put([b"hello"])
    assert (caught.value.code, caught.value.status, caught.value.retry_after_s) == ("storage_full", 503, 60)
    assert files(tmp_path) == []


def _put_many(folder: Path, go: Any) -> None:
    go.wait(20)
    for number in range(40):
        DiskBlobs(folder).put([b"%d" % number] * 1000)


def test_processes_that_write_and_start_together_do_not_disturb_each_other(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    go = context.Event()
    writers = [context.Process(target=_put_many, args=(tmp_path, go)) for _ in range(3)]
    for writer in writers:
        writer.start()
    go.set()
    for writer in writers:
        writer.join(30)
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    assert len(files(tmp_path)) == 40
