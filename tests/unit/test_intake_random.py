"""Intake against random trees, which it must keep, and random damage, which may only end in a client's error."""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile

import pytest
import zstandard
from archive_kit import Row, make_tar, make_zip, manifest, take
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from service.errors import ArchiveUnsafe, TooLarge

NAME = st.text(st.characters(blacklist_characters="/\0", blacklist_categories=("Cs",)), min_size=1, max_size=60).filter(
    lambda name: name not in (".", "..")
)
LEAF = st.one_of(
    st.tuples(st.just("file"), st.binary(max_size=1500), st.sampled_from([0o644, 0o755])),
    st.tuples(st.just("link"), NAME.map(str.encode), st.just(0o777)),
    st.tuples(st.just("folder"), st.just(b""), st.just(0o755)),
)


@st.composite
def trees(draw: st.DrawFn) -> tuple[Row, ...]:
    """Rows of a tree in any order, each path once, nothing below a file or a link."""
    rows: list[Row] = []
    folders = [""]
    taken: set[str] = set()
    for _ in range(draw(st.integers(0, 12))):
        path = draw(st.sampled_from(folders)) + draw(NAME)
        kind, data, mode = draw(LEAF)
        if path in taken or len(path.encode()) > 1000 or len(path.rpartition("/")[2].encode()) > 255:
            continue
        taken.add(path)
        rows.append((path + "/" * (kind == "folder"), kind, data, mode))
        if kind == "folder":
            folders.append(path + "/")
    return tuple(draw(st.permutations(rows)))


def read_back(tar: bytes) -> dict[str, tuple[str, bytes, int]]:
    """A tree as the standard library reads it, folders left out: those with files in them may be implied."""
    seen = {}
    with tarfile.open(fileobj=io.BytesIO(tar), encoding="utf-8", errors="surrogateescape") as archive:
        for entry in archive:
            if entry.issym():
                seen[entry.name] = ("link", entry.linkname.encode(), 0o777)
            elif entry.isreg():
                file = archive.extractfile(entry)
                assert file is not None
                seen[entry.name] = ("file", file.read(), entry.mode)
    return seen


PACKERS = {
    "gnu": lambda rows: make_tar(tarfile.GNU_FORMAT, rows),
    "pax": lambda rows: gzip.compress(make_tar(tarfile.PAX_FORMAT, rows), 1),
    "zstd": lambda rows: zstandard.compress(make_tar(tarfile.PAX_FORMAT, rows), 1),
    "zip": make_zip,
}


@pytest.mark.parametrize("packer", PACKERS)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(rows=trees())
def test_a_random_tree_is_kept(packer: str, rows: tuple[Row, ...]) -> None:
    tar, intake = take(PACKERS[packer](rows))
    expected = {name: (kind, data, mode) for name, kind, data, mode in rows if kind != "folder"}
    assert read_back(tar) == expected
    index = manifest(intake)
    assert {name.rstrip("/").encode() for name, *_ in rows} >= set(index)
    for name, (kind, data, mode) in expected.items():
        entry = index[name.encode()]
        assert (entry.kind, entry.exec) == (kind[0], mode == 0o755)
        assert (tar[entry.offset : entry.offset + entry.size] if kind == "file" else entry.target) == data


SEEDS = {
    "tar": make_tar(tarfile.PAX_FORMAT),
    "tar.gz": gzip.compress(make_tar()),
    "tar.zst": zstandard.compress(make_tar()),
    "zip": make_zip(),
    "stored zip": make_zip(method=zipfile.ZIP_STORED),
}


def answer(upload: bytes) -> None:
    """Takes the upload in; what is accepted is canonical, and only a client's error may refuse it."""
    try:
        tar, intake = take(upload)
    except (ArchiveUnsafe, TooLarge):
        return
    assert take(tar)[0] == tar
    assert intake.files <= 6


@pytest.mark.parametrize("seed", SEEDS)
@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_damage_ends_in_an_answer(seed: str, data: st.DataObject) -> None:
    raw = bytearray(SEEDS[seed])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(raw) - 1))
        piece = data.draw(st.binary(min_size=1, max_size=8))
        if data.draw(st.booleans()):
            raw[at : at + len(piece)] = piece
        else:
            del raw[at : at + data.draw(st.integers(1, 600))]
            raw = raw or bytearray(b"\0")
    answer(bytes(raw))


@settings(max_examples=200, deadline=None)
@given(
    start=st.sampled_from([b"", b"PK\3\4", b"PK\5\6", b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd", b"\0" * 512]),
    rest=st.binary(max_size=2000),
)
def test_bytes_of_any_kind_end_in_an_answer(start: bytes, rest: bytes) -> None:
    answer(start + rest)
