"""The loader takes the canonical tar, at any cut, and nothing else."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sandbox_kit import pack

from sandbox_image.toolserver.failures import Failure
from sandbox_image.toolserver.workspace import BaselineEntry, Loader

FILES: dict[str, bytes | str] = {
    "a.txt": b"A",
    "bin/run.sh": b"#!/bin/sh\n",
    "l": "bin/run.sh",
    "deep/" * 40 + "f": b"x" * 700,
    "to": "t" * 150,
    "empty": b"",
    "block": b"b" * 512,
}


@pytest.fixture
def root(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path, os.O_RDONLY)
    yield fd
    os.close(fd)


def loaded(root: int, tar: bytes, size: int = 1 << 20) -> Loader:
    loader = Loader(root)
    try:
        for at in range(0, len(tar), size):
            loader.feed(tar[at : at + size])
        loader.finish()
    finally:
        loader.close()
    return loader


@pytest.mark.parametrize("size", [1, 100, 511, 512, 513, 4096, 1 << 20])
def test_all_comes_in_whatever_the_pieces(root: int, tmp_path: Path, size: int) -> None:
    loader = loaded(root, pack(FILES), size)
    for name, content in FILES.items():
        if isinstance(content, str):
            assert str((tmp_path / name).readlink()) == content
        else:
            assert (tmp_path / name).read_bytes() == content
    assert (loader.files, loader.bytes) == (7, 1 + 10 + 700 + 512)


def test_the_baseline_tells_what_was_loaded(root: int) -> None:
    baseline = loaded(root, pack(FILES)).baseline
    assert baseline[b"bin/run.sh"] == BaselineEntry("f", True, 10, hashlib.sha256(b"#!/bin/sh\n").digest(), b"")
    assert baseline[b"empty"] == BaselineEntry("f", False, 0, hashlib.sha256().digest(), b"")
    assert baseline[b"l"] == BaselineEntry("l", False, 10, b"", b"bin/run.sh")
    assert baseline[b"bin"] == BaselineEntry("d", False, 0, b"", b"")
    assert (len(baseline), b"nope" in baseline, b"deep/deep" in baseline) == (7 + 41, False, True)


def test_an_empty_workspace(root: int) -> None:
    assert loaded(root, bytes(1024)).files == 0


def altered(at: int, value: bytes, files: dict[str, bytes | str] | None = None) -> bytes:
    """The first header with other bytes and a checksum that is right again."""
    tar = bytearray(pack(files or {"name": b"data"}))
    tar[at : at + len(value)] = value
    tar[148:156] = b" " * 8
    tar[148:156] = b"%06o\0 " % sum(tar[:512])
    return bytes(tar)


BAD = {
    "absolute": altered(0, b"/ame"),
    "parent": altered(0, b"../e"),
    "inner parent": altered(0, b"a/../e"),
    "dot": altered(0, b"./me"),
    "empty part": altered(0, b"a//e"),
    "empty name": altered(0, bytes(4)),
    "device": altered(156, b"3"),
    "fifo": altered(156, b"6"),
    "hard link": altered(156, b"1"),
    "pax header": altered(156, b"x"),
    "setuid": altered(100, b"0004755\0"),
    "group writable": altered(100, b"0000664\0"),
    "other magic": altered(257, b"ustar  \0"),
    "prefix": altered(345, b"p"),
    "negative size": altered(124, b"-0000000001\0"),
    "base 256 size": altered(124, b"\x80" + bytes(10) + b"\4"),
    "size of a link": altered(156, b"2"),
    "wrong checksum": b"x" + pack({"name": b""})[1:],
    "a file twice": pack({"a": b"1"})[:-1024] + pack({"a": b"1"}),
    "a file as folder": pack({"a": b"1", "a/b": b"2"}),
    "a link as folder": pack({"a": "/etc", "a/b": b"2"}),
    "a link and a file": pack({"a": "/etc/passwd"})[:-1024] + pack({"a": b"1"}),
    "cut in data": pack({"a": b"1" * 2000})[:1024],
    "cut before the end": pack({"a": b"1"})[:-512],
    "after the end": pack({"a": b"1"}) + b"x" * 512,
    "name too long": pack({"d/" * 600 + "f": b""}),
    "garbage": b"\xff" * 2048,
    "nothing": b"",
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_not_canonical_is_refused(root: int, name: str) -> None:
    with pytest.raises(Failure) as caught:
        loaded(root, BAD[name])
    assert caught.value.code in ("bad_request", "exists")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(st.integers(0, 5_000), st.binary(min_size=1, max_size=20))
def test_damage_is_refused_or_harmless(tmp_path_factory: pytest.TempPathFactory, at: int, noise: bytes) -> None:
    folder = tmp_path_factory.mktemp("noise")
    inside = folder / "inside"
    inside.mkdir()
    tar = bytearray(pack(FILES))
    at %= len(tar)
    tar[at : at + len(noise)] = noise
    fd = os.open(inside, os.O_RDONLY)
    try:
        loaded(fd, bytes(tar))
    except Failure:
        pass
    finally:
        os.close(fd)
    assert list(folder.iterdir()) == [inside]
