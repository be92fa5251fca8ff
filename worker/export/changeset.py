"""Takes the change set out of the task's box: everything checked, nothing but bytes in scratch files of our own.

The box may be hostile. A stream that is not what changes.py writes ends the export; a path that may not be in a patch
is refused and flagged, and the rest goes on. Memory holds the names of changed files, up to the limit, never bytes;
the names of new files wait on disk until the upload's ignore rules have been asked (a build may make 200,000).
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sandbox_image.toolserver.records import (
    ABSENT,
    BODY,
    CHANGE,
    CHUNK,
    END,
    EXEC,
    FILE,
    FOUND,
    LINK,
    LISTED,
    MAGIC,
    MISSING,
    Malformed,
    Reader,
    Record,
    is_git_data,
    record,
)
from service.blobs import BlobWriter
from service.errors import PatchTooLarge
from service.intake import Entry
from service.names import escape_path
from worker.export.findings import NOT_IN_PATCH, Findings
from worker.export.limits import ExportLimits
from worker.export.paths import link_escape, refusal

MAX_LISTED = 300_000
"""Changed paths that a box may name: its /workspace has 200,000 inodes, an upload 50,000 entries to delete."""
MAX_NAMES = 256 << 20
"""Bytes of their paths and link targets, which wait on our disk."""
MAX_TARGET = 4_095
"""Bytes of a link's target: Linux makes none longer."""
_ANY_BODY = 1 << 62
"""A body that is dropped may have any size: the export's time ends it."""
_ADVICE = "Ignore, remove or shrink what is not part of the work."
_SHOWN_FILES = 100
"""Files named by `PatchTooLarge`, the largest first."""


@dataclass(slots=True)
class Change:
    """What a path became; for a file, where its bytes are in the scratch file of bodies."""

    kind: int
    size: int
    target: bytes
    old_size: int = 0
    """Bytes of the uploaded file in its place."""
    offset: int = -1
    digest: bytes = b""


@dataclass(slots=True)
class Listing:
    """The names of a change set: `known` are paths of the upload, the `added` others wait in a scratch file."""

    known: dict[bytes, Change]
    added: int
    bytes: int
    """Sum of the files' sizes, of old or new versions, whichever is larger; new ones are as the box says."""


def read_listing(reader: Reader, manifest: Mapping[bytes, Entry], added_to: BlobWriter, findings: Findings) -> Listing:
    """The first part of the stream, up to LISTED; new paths go to `added_to` as a record stream."""
    listing = Listing(known={}, added=0, bytes=0)
    own_git = _OwnGit(manifest)
    listed = names = 0
    added_to.write(MAGIC)
    while (found := reader.next()).type != LISTED:
        if found.type == FOUND:
            _note(found, own_git, findings)
            continue
        listed += 1
        names += len(found.path) + len(found.aux)
        if found.type != CHANGE or listed > MAX_LISTED or names > MAX_NAMES:
            raise Malformed("the list of changes is not one")
        if len(found.aux) > (MAX_TARGET if found.kind == LINK else 0):
            raise Malformed("a change says more than its path and target")
        refused = refusal(found.path, found.kind)
        if refused is not None:
            findings.flag(refused[0], found.path, refused[1])
            continue
        entry = manifest.get(found.path)
        if entry is not None and entry.kind != "d":
            if found.path in listing.known:
                raise Malformed("a path is listed twice")
            listing.known[found.path] = Change(found.kind, found.size, found.aux, old_size=entry.size)
            listing.bytes += max(found.size, entry.size)
        elif found.kind != ABSENT:
            added_to.write(record(CHANGE, found.path, kind=found.kind, aux=found.aux, size=found.size))
            listing.added += 1
            listing.bytes += found.size
    if found.size != listed:
        raise Malformed("the list of changes is not complete")
    added_to.write(record(END))
    return listing


def added_paths(added: BlobWriter) -> Iterator[Record]:
    """The new paths again, in their order."""
    added.seek(0)
    reader = Reader(lambda: added.read(CHUNK))
    while (found := reader.next()).type != END:
        yield found


def accept(
    listing: Listing, added: BlobWriter, ignored: Iterator[int], limits: ExportLimits, findings: Findings
) -> dict[bytes, Change]:
    """All changes but the ignored new files; PatchTooLarge, with the largest files, when they are too many.

    `ignored` gives the ordinals of ignored paths among the added ones, rising.
    """
    accepted = listing.known
    tally = _Tally(limits)
    for path, change in accepted.items():
        tally.count(path, max(change.size, change.old_size))
    next_ignored = next(ignored, -1)
    for ordinal, found in enumerate(added_paths(added)):
        if ordinal == next_ignored:
            next_ignored = next(ignored, -1)
            findings.left_out("ignored", found.path)
            continue
        tally.count(found.path, found.size)
        if not tally.over:
            if found.path in accepted:
                raise Malformed("a path is listed twice")
            accepted[found.path] = Change(found.kind, found.size, found.aux)
    if next_ignored != -1:
        raise Malformed("an ignored path is not one of those that were asked for")
    tally.check()
    return accepted


def read_bodies(
    reader: Reader, accepted: dict[bytes, Change], bodies: BlobWriter, limits: ExportLimits, findings: Findings
) -> None:
    """The second part of the stream: bytes of accepted files into `bodies`, others dropped.

    Stops when nothing more is wanted. A file that vanished after it was listed counts as deleted.
    """
    wanted = {path for path, change in accepted.items() if change.kind in (FILE, EXEC)}
    total = 0
    while wanted:
        found = reader.next()
        if found.type not in (BODY, MISSING):
            raise Malformed("the bytes of a listed file did not come")
        if found.path not in wanted:
            for _ in reader.body(_ANY_BODY):
                pass
            continue
        wanted.remove(found.path)
        change = accepted[found.path]
        if found.type == BODY:
            _keep(reader, change, bodies, offset=total, limit=limits.max_change_bytes - total)
            total += change.size
        elif found.kind == ABSENT:
            change.kind, change.size = ABSENT, 0
        else:
            del accepted[found.path]
            findings.left_out("unreadable", found.path)


def _keep(reader: Reader, change: Change, bodies: BlobWriter, *, offset: int, limit: int) -> None:
    digest, size = hashlib.sha256(), 0
    for data in reader.body(limit):
        bodies.write(data)
        digest.update(data)
        size += len(data)
    change.offset, change.size, change.digest = offset, size, digest.digest()


def flag_links(accepted: Mapping[bytes, Change], findings: Findings) -> None:
    """Says which changed links lead out of the tree; they are data, and stay in the patch."""
    for path, change in accepted.items():
        reason = link_escape(path, change.target) if change.kind == LINK else None
        if reason is not None:
            findings.flag("symlink", path, reason)


def _note(found: Record, own_git: _OwnGit, findings: Findings) -> None:
    kind, _, detail = found.aux.decode("utf-8", "replace").partition("\0")
    if kind == "git_data":
        if found.path not in own_git:
            findings.flag("dot_git", found.path, "a repository that the upload did not have; its data stays out")
    elif kind in NOT_IN_PATCH:
        findings.left_out(kind, found.path, detail)
    else:
        raise Malformed("a finding of a kind that is not known")


class _OwnGit:
    """Where the upload itself has repository data."""

    def __init__(self, manifest: Mapping[bytes, Entry]) -> None:
        self._roots = {_git_root(path) for path in manifest if is_git_data(path)}

    def __contains__(self, path: bytes) -> bool:
        return path in self._roots


def _git_root(path: bytes) -> bytes:
    parts = path.split(b"/")
    return b"/".join(parts[: parts.index(b".git") + 1])


class _Tally:
    """Counts what would be in the patch, and remembers the largest of it."""

    def __init__(self, limits: ExportLimits) -> None:
        self._limits = limits
        self._files = 0
        self._bytes = 0
        self._largest: list[tuple[int, bytes]] = []

    @property
    def over(self) -> bool:
        return self._files > self._limits.max_files or self._bytes > self._limits.max_change_bytes

    def count(self, path: bytes, size: int) -> None:
        self._files += 1
        self._bytes += size
        if len(self._largest) < _SHOWN_FILES:
            heapq.heappush(self._largest, (size, path))
        else:
            heapq.heappushpop(self._largest, (size, path))

    def check(self) -> None:
        if self.over:
            raise PatchTooLarge(
                f"{self._files:,} changed files with {self._bytes:,} bytes; a patch may have "
                f"{self._limits.max_files:,} files and {self._limits.max_change_bytes:,} bytes of them. {_ADVICE}",
                files=self.largest(),
            )

    def largest(self) -> list[dict[str, object]]:
        return [{"path": escape_path(path), "bytes": size} for size, path in sorted(self._largest, reverse=True)]


def too_large(accepted: Mapping[bytes, Change], limits: ExportLimits) -> PatchTooLarge:
    """The error for a patch that itself is too large, though the changed files are not."""
    tally = _Tally(limits)
    for path, change in accepted.items():
        tally.count(path, max(change.size, change.old_size))
    return PatchTooLarge(
        f"the patch has more than {limits.max_patch_bytes:,} bytes, which is what it may have. {_ADVICE}",
        files=tally.largest(),
    )
