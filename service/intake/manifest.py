"""The index of a canonical tar: what each path is and where its bytes lie.

As a blob: gzip of one JSON array per line, in the order of the tar,
`[path, kind, executable, size, offset, sha256, target]`. Bytes that are not UTF-8 are lone surrogates there
(surrogateescape), which JSON writes as `\\udcNN` and reads back exactly.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from typing import BinaryIO, Literal, NamedTuple


class Entry(NamedTuple):
    kind: Literal["f", "l", "d"]
    """File, symbolic link, folder (only those with an entry of their own)."""
    exec: bool
    size: int
    offset: int
    """Of the file's bytes in the canonical tar; 0 for others."""
    sha256: str
    """Hex, of the file's bytes; empty for others."""
    target: bytes
    """Of a symbolic link; empty for others."""


class PackedManifest:
    """A manifest being written, compressed in memory: some 50 bytes an entry."""

    def __init__(self) -> None:
        self._deflate = zlib.compressobj(level=1, wbits=31)
        self._chunks: list[bytes] = []

    def add(self, path: bytes, entry: Entry) -> None:
        row = (_text(path), entry.kind, int(entry.exec), entry.size, entry.offset, entry.sha256, _text(entry.target))
        self._keep(self._deflate.compress(_line(row).encode("ascii") + b"\n"))

    def close(self) -> None:
        """No more entries."""
        self._keep(self._deflate.flush())

    def chunks(self) -> Iterator[bytes]:
        """The bytes of the blob; after `close`."""
        return iter(self._chunks)

    def _keep(self, data: bytes) -> None:
        if data:
            self._chunks.append(data)


class Manifest(Mapping[bytes, Entry]):
    """Path to entry, in the order of the tar."""

    def __init__(self, entries: dict[bytes, Entry]) -> None:
        self._entries = entries

    @classmethod
    def load(cls, blob: BinaryIO) -> Manifest:
        """Reads what `PackedManifest` wrote; ValueError or OSError when it is anything else."""
        with gzip.open(blob, "rt", encoding="ascii") as lines:
            return cls(dict(map(_parse, lines)))

    def __getitem__(self, path: bytes) -> Entry:
        return self._entries[path]

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


_line = json.JSONEncoder(separators=(",", ":")).encode
"""Made once: `json.dumps` makes an encoder for every row."""


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def _name(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _parse(line: str) -> tuple[bytes, Entry]:
    path, kind, executable, size, offset, sha256, target = json.loads(line)
    return _name(path), Entry(kind, bool(executable), size, offset, sha256, _name(target))
