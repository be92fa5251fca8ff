"""What the export box is asked, and what its answers may be (records.py, patch.py).

The export box is ours and fresh, but it works on hostile bytes: its answers are checked like any other.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Iterable, Iterator, Mapping
from typing import BinaryIO

from sandbox_image.toolserver.records import (
    ABSENT,
    CANDIDATE,
    CHUNK,
    END,
    EXEC,
    FILE,
    IGNORED,
    JOB,
    MAGIC,
    NEW,
    OLD,
    PATCH,
    RULES,
    STAT,
    Malformed,
    Reader,
    body,
    is_git_data,
    packed,
    record,
)
from service.blobs import BlobWriter
from service.errors import ExportFailed
from service.intake import Entry
from worker.export.changeset import Change, added_paths
from worker.export.tree import in_tree, kind_of
from worker.sandbox.base import ExportReport

_COUNT = re.compile(rb"(\d{1,12}) (\d{1,12})|- -")

Stat = tuple[int, int] | None
"""Additions and deletions; None for a binary file."""


def rule_files(manifest: Mapping[bytes, Entry]) -> list[bytes]:
    """The upload's ignore files. Its `.git/info/exclude` is repository data and not asked; a link is no rule to git."""
    return [
        path
        for path, entry in manifest.items()
        if entry.kind == "f" and path.rpartition(b"/")[2] == b".gitignore" and not is_git_data(path)
    ]


def ignored_job(manifest: Mapping[bytes, Entry], tar: BinaryIO, added: BlobWriter) -> Iterator[bytes]:
    """Asks which of the new paths the upload's ignore rules match."""
    return packed(_ignored_job(manifest, tar, added))


def _ignored_job(manifest: Mapping[bytes, Entry], tar: BinaryIO, added: BlobWriter) -> Iterator[bytes]:
    yield MAGIC
    yield record(JOB, aux=json.dumps({"op": "ignored"}).encode())
    for path in rule_files(manifest):
        entry = manifest[path]
        yield record(RULES, path, size=entry.size)
        yield from body(_slice(tar, entry.offset, entry.size))
    for found in added_paths(added):
        yield record(CANDIDATE, found.path)
    yield record(END)


def patch_job(
    manifest: Mapping[bytes, Entry],
    tar: BinaryIO,
    accepted: Mapping[bytes, Change],
    bodies: BlobWriter,
    max_patch_bytes: int,
) -> Iterator[bytes]:
    """Asks for the patch: old and new versions of the touched paths, and nothing else of the upload."""
    return packed(_patch_job(manifest, tar, accepted, bodies, max_patch_bytes))


def _patch_job(
    manifest: Mapping[bytes, Entry],
    tar: BinaryIO,
    accepted: Mapping[bytes, Change],
    bodies: BlobWriter,
    max_patch_bytes: int,
) -> Iterator[bytes]:
    yield MAGIC
    yield record(JOB, aux=json.dumps({"op": "patch", "max_patch_bytes": max_patch_bytes}).encode())
    for path in accepted:
        entry = manifest.get(path)
        if entry is None or not in_tree(path, entry):
            continue
        yield record(OLD, path, kind=kind_of(entry), aux=entry.target, size=entry.size)
        if entry.kind == "f":
            yield from body(_slice(tar, entry.offset, entry.size))
    for path, change in accepted.items():
        if change.kind == ABSENT:
            continue
        yield record(NEW, path, kind=change.kind, aux=change.target, size=change.size)
        if change.kind in (FILE, EXEC):
            yield from body(_slice(bodies, change.offset, change.size))
    yield record(END)


def _slice(source: BinaryIO | BlobWriter, offset: int, size: int) -> Iterator[bytes]:
    source.seek(offset)
    while size > 0:
        data = source.read(min(size, CHUNK))
        if not data:
            raise ExportFailed("a stored file is shorter than its index says")
        size -= len(data)
        yield data


class Answer:
    """One answer of an export box: its records while it streams, its report at the end."""

    def __init__(self, stream: Generator[bytes, None, ExportReport]) -> None:
        self._report: ExportReport | None = None
        self.reader = Reader.of(self._keep_report(stream))

    def _keep_report(self, stream: Generator[bytes, None, ExportReport]) -> Iterator[bytes]:
        self._report = yield from stream

    def expect(self, type_: bytes) -> None:
        """The next record must be a `type_`; at an early END the report says why."""
        found = self.reader.next()
        if found.type == END and type_ != END:
            self.finish()
        if found.type != type_:
            raise Malformed("an answer to another question")

    def finish(self) -> ExportReport:
        """After END: the report; ExportFailed, with the box's words, when it did not manage."""
        self.reader.finish()
        if self._report is None:
            raise Malformed("an export without a report")
        if self._report.message:
            raise ExportFailed(f"the patch could not be made: {self._report.message}")
        return self._report


def ignored_ordinals(answer: Answer) -> Iterator[int]:
    """Ordinals of the ignored paths, rising."""
    last = -1
    while (found := answer.reader.next()).type == IGNORED:
        if found.size <= last:
            raise Malformed("ignored paths out of order")
        last = found.size
        yield last
    if found.type != END:
        raise Malformed("an answer to another question")
    answer.finish()


def patch_chunks(answer: Answer, limit: int) -> Iterator[bytes]:
    """The patch's bytes; it may be empty."""
    answer.expect(PATCH)
    yield from answer.reader.body(limit)


def patch_stats(answer: Answer, touched: Iterable[bytes]) -> dict[bytes, Stat]:
    """What the patch does to each path; after `patch_chunks`."""
    left = set(touched)
    stats: dict[bytes, Stat] = {}
    while (found := answer.reader.next()).type == STAT:
        numbers = _COUNT.fullmatch(found.aux)
        if numbers is None or found.path not in left:
            raise Malformed("a count that belongs to no changed path")
        left.remove(found.path)
        stats[found.path] = (int(numbers[1]), int(numbers[2])) if numbers[1] else None
    if found.type != END:
        raise Malformed("an answer to another question")
    return stats
