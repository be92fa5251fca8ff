"""The record format: what is written is read back, and nothing else is read."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox_image.toolserver.records import (
    ABSENT,
    BODY,
    CHANGE,
    CHUNK,
    END,
    EXEC,
    FILE,
    LINK,
    MAGIC,
    MAX_AUX,
    MAX_PATH,
    NEW,
    Malformed,
    Reader,
    Record,
    TreeEntry,
    body,
    packed,
    record,
    tree_hash,
)

_NAMES = st.binary(min_size=1, max_size=50)


def _cut(data: bytes, sizes: list[int]) -> list[bytes]:
    parts = []
    for size in sizes:
        parts.append(data[:size])
        data = data[size:]
    return [*parts, data]


@given(
    records=st.lists(st.tuples(_NAMES, st.sampled_from([FILE, EXEC, LINK, ABSENT]), st.binary(max_size=300))),
    sizes=st.lists(st.integers(0, 70), max_size=30),
)
def test_any_records_come_back_however_they_are_cut(records: list[tuple[bytes, int, bytes]], sizes: list[int]) -> None:
    stream = [MAGIC]
    for path, kind, data in records:
        target = data if kind == LINK else b""
        stream.append(record(NEW, path, kind=kind, aux=target, size=len(data)))
        if kind in (FILE, EXEC):
            stream += body([data])
    stream.append(record(END))

    reader = Reader.of(_cut(b"".join(packed(stream)), sizes))
    found = []
    while (one := reader.next()).type != END:
        found.append((one.path, one.kind, b"".join(reader.body(300)) if one.has_body else one.aux))
    reader.finish()

    assert found == [(path, kind, b"" if kind == ABSENT else data) for path, kind, data in records]


@given(st.binary(max_size=400))
def test_garbage_is_malformed_and_nothing_else(data: bytes) -> None:
    with pytest.raises(Malformed):  # noqa: PT012 (whichever step finds it)
        reader = Reader.of([MAGIC + data])
        while True:
            if (one := reader.next()).type == END and not data.endswith(record(END)):
                reader.finish()
            if one.has_body:
                for _ in reader.body(100):
                    pass


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "ends in the middle"),
        (b"NOTRECS\n", "does not begin"),
        (MAGIC, "ends in the middle"),
        (MAGIC + record(b"x"), "out of bounds"),
        (MAGIC + record(CHANGE, kind=4), "out of bounds"),
        (MAGIC + record(CHANGE, b"a" * (MAX_PATH + 1)), "out of bounds"),
        (MAGIC + record(CHANGE, aux=b"a" * (MAX_AUX + 1)), "out of bounds"),
        (MAGIC + record(CHANGE, b"abc")[:-1], "ends in the middle"),
    ],
)
def test_a_head_out_of_bounds(data: bytes, why: str) -> None:
    with pytest.raises(Malformed, match=why):
        Reader.of([data]).next()


def test_a_body_is_no_larger_than_the_reader_allows() -> None:
    reader = Reader.of([MAGIC, record(BODY, b"a"), *body([b"12345"]), record(END)])
    assert reader.next() == Record(BODY, FILE, b"a", b"", 0)
    with pytest.raises(Malformed, match="larger"):
        list(reader.body(4))


def test_a_chunk_is_bounded_whatever_the_limit() -> None:
    reader = Reader.of([MAGIC, record(BODY), (CHUNK + 1).to_bytes(4, "big")])
    reader.next()
    with pytest.raises(Malformed, match="larger"):
        list(reader.body(1 << 40))


def test_a_body_must_be_read_before_the_next_record() -> None:
    reader = Reader.of([MAGIC, record(BODY, b"a"), *body([b"1"]), record(END)])
    reader.next()
    with pytest.raises(Malformed, match="not read to its end"):
        reader.next()


def test_bytes_after_the_end() -> None:
    reader = Reader.of([MAGIC, record(END), b"more"])
    assert reader.next().type == END
    with pytest.raises(Malformed, match="follow"):
        reader.finish()


def test_packed_keeps_the_bytes_in_fewer_pieces() -> None:
    parts = [bytes([n % 251]) * 100 for n in range(2_000)]
    fewer = list(packed(parts))
    assert b"".join(fewer) == b"".join(parts)
    assert len(fewer) == 4


def _sha(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def test_the_tree_hash_is_of_the_set_not_the_order() -> None:
    entries = [TreeEntry(b"b", FILE, _sha(b"1")), TreeEntry(b"a/c", LINK, _sha(b"b"))]
    assert tree_hash(entries) == tree_hash(reversed(entries))
    assert tree_hash([]) == hashlib.sha256(b"patchyard tree 1\n").hexdigest()


@pytest.mark.parametrize(
    "other",
    [
        TreeEntry(b"b", FILE, _sha(b"1")),
        TreeEntry(b"a", EXEC, _sha(b"1")),
        TreeEntry(b"a", LINK, _sha(b"1")),
        TreeEntry(b"a", FILE, _sha(b"2")),
    ],
)
def test_the_tree_hash_sees_name_kind_and_content(other: TreeEntry) -> None:
    assert tree_hash([other]) != tree_hash([TreeEntry(b"a", FILE, _sha(b"1"))])
