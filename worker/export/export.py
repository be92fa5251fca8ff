"""From a task's box to a proven patch in the blob store, in three steps (docs/patch.md).

1. The task's box streams out its change set: data, checked and kept in scratch files.
2. A fresh box of our image makes the patch from the touched paths' old and new versions.
3. There it is applied to a pristine copy of the upload; the whole tree's hash must be the one that this side computes
   from the upload's manifest and the change set. A patch that fails this is never stored.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from typing import BinaryIO, Literal

from sandbox_image.toolserver.records import ABSENT, EXEC, FILE, LINK, Malformed, Reader
from service.blobs import BlobRef, Blobs, BlobWriter
from service.contracts import PatchFile, PatchInfo
from service.errors import ExportFailed
from service.intake import Entry
from service.names import escape_path
from worker.export.changeset import Change, accept, flag_links, read_bodies, read_listing, too_large
from worker.export.findings import MAX_SHOWN, Findings
from worker.export.jobs import (
    Answer,
    Stat,
    ignored_job,
    ignored_ordinals,
    patch_chunks,
    patch_job,
    patch_stats,
    rule_files,
)
from worker.export.limits import ExportLimits
from worker.export.tree import base_tree, drop_unchanged, in_tree, kind_of, refuse_conflicts, result_tree
from worker.sandbox.base import BoxSpec, ExportReport, Sandbox, SandboxProvider, ToolFailure

_MODES = {FILE: "100644", EXEC: "100755", LINK: "120000", ABSENT: None}
_MB = 1 << 20
_READ = 256 * 1024
_SCRATCH_SHARE = 8
"""An export works in the box's /tmp, an eighth of its disk_mb (worker/sandbox/docker.py)."""
_SCRATCH_FACTOR = 5
"""Old and new versions as git objects, and both again in the patch, of which binary parts are a quarter longer."""
_SCRATCH_BYTES = 16 * _MB
_MEMORY_MB = 256
_MEMORY_FACTOR = 4
"""Tool server and git with small files; of large ones git holds both versions, and an index of their lines."""


def export(
    task_box: Sandbox,
    provider: SandboxProvider,
    spec: BoxSpec,
    manifest: Mapping[bytes, Entry],
    tar: BinaryIO,
    blobs: Blobs,
    limits: ExportLimits | None = None,
) -> PatchInfo:
    """Makes, proves and stores the patch of what is in `task_box`; `sha256` of the answer names its blob.

    `spec` says of which image (ours) and for which run the export box is; its sizes are computed here. `tar` is the
    upload's canonical tar, seekable, with `manifest` as its index. The answer has status `complete`; whether the work
    was cut short is the caller's to say. Raises ExportFailed when no patch could be proven, PatchTooLarge (with the
    largest files) beyond `limits`, SandboxError when a box is lost. No change at all is a proven, empty patch.
    """
    limits = limits or ExportLimits()
    with ExitStack() as stack:
        run = _Export(provider, spec, manifest, tar, blobs, limits, stack)
        try:
            return run.patch(task_box)
        except Malformed as odd:
            raise ExportFailed(f"a sandbox sent what is no change set or patch: {odd}") from odd
        except ToolFailure as failure:
            raise ExportFailed(f"a sandbox could not do its part of the export: {failure.message}") from failure


@dataclass
class _Export:
    """One export: its scratch files and its box, which end with `stack`, and its clock."""

    provider: SandboxProvider
    spec: BoxSpec
    manifest: Mapping[bytes, Entry]
    tar: BinaryIO
    blobs: Blobs
    limits: ExportLimits
    stack: ExitStack
    findings: Findings = field(default_factory=Findings)
    box: Sandbox | None = None

    def __post_init__(self) -> None:
        self.deadline = time.monotonic() + self.limits.timeout_s

    def patch(self, task_box: Sandbox) -> PatchInfo:
        bodies = self.stack.enter_context(self.blobs.scratch())
        with closing(self._timed(task_box.changes())) as stream:
            accepted = self._change_set(stream, bodies)
        drop_unchanged(self.manifest, accepted)
        refuse_conflicts(self.manifest, accepted, self.findings)
        flag_links(accepted, self.findings)
        result = result_tree(self.manifest, accepted)
        if accepted:
            ref, stats = self._proven(accepted, bodies, result)
        else:
            # Nothing to apply: the hash scan found every file as it was uploaded.
            ref, stats = self.blobs.put(()), {}
        return PatchInfo(
            status="complete",
            as_of_turn=0,
            sha256=ref.sha256,
            bytes=ref.size,
            files=len(accepted),
            additions=sum(stat[0] for stat in stats.values() if stat),
            deletions=sum(stat[1] for stat in stats.values() if stat),
            flags=tuple(self.findings.flags),
            applies_cleanly=True,
            reproduces_tree=True,
            base_tree=base_tree(self.manifest),
            result_tree=result,
            file_list=tuple(self._file(path, accepted[path], stats) for path in sorted(accepted)[:MAX_SHOWN]),
            not_in_patch=tuple(self.findings.not_in_patch),
        )

    def _change_set(self, stream: Iterator[bytes], bodies: BlobWriter) -> dict[bytes, Change]:
        """Step 1; new files are held against the upload's ignore rules between their names and their bytes."""
        reader = Reader.of(stream)
        with self.blobs.scratch() as added:
            listing = read_listing(reader, self.manifest, added, self.findings)
            ignored: Iterator[int] = iter(())
            if listing.added and rule_files(self.manifest):
                box = self._export_box(listing.bytes, names=added.ref.size)
                job = ignored_job(self.manifest, self.tar, added)
                ignored = ignored_ordinals(Answer(self._timed_answer(box.export(self._timed(job)))))
            accepted = accept(listing, added, ignored, self.limits, self.findings)
        read_bodies(reader, accepted, bodies, self.limits, self.findings)
        return accepted

    def _proven(
        self, accepted: Mapping[bytes, Change], bodies: BlobWriter, result: str
    ) -> tuple[BlobRef, dict[bytes, Stat]]:
        """Steps 2 and 3; the blob appears only when the proof holds."""
        box = self._export_box(sum(max(change.size, change.old_size) for change in accepted.values()))
        box.load(self._timed(self._pristine()))
        job = patch_job(self.manifest, self.tar, accepted, bodies, self.limits.max_patch_bytes)
        answer = Answer(self._timed_answer(box.export(self._timed(job))))
        with self.blobs.writer() as out:
            for data in patch_chunks(answer, self.limits.max_patch_bytes):
                out.write(data)
            stats = patch_stats(answer, accepted)
            report = answer.finish()
            if report.patch_bytes > self.limits.max_patch_bytes:
                raise too_large(accepted, self.limits)
            _check(report, out.ref.size, result)
        return out.ref, stats

    def _export_box(self, changed: int, names: int = 0) -> Sandbox:
        """The one fresh box of this export, sized for `changed` bytes (of old or new versions) and as many names."""
        if self.box is not None:
            return self.box
        changed = min(changed, self.limits.max_change_bytes)
        upload = sum(entry.size for entry in self.manifest.values())
        scratch = _SCRATCH_FACTOR * changed + names + _SCRATCH_BYTES
        spec = replace(
            self.spec,
            purpose="export",
            disk_mb=max(2 * (upload + changed), _SCRATCH_SHARE * scratch) // _MB + 1,
            memory_mb=_MEMORY_MB + _MEMORY_FACTOR * changed // _MB,
        )
        box = self.provider.open(spec)
        self.stack.callback(box.close)
        box.claim(self.spec.task, deadline_s=max(1.0, self.deadline - time.monotonic()))
        self.box = box
        return box

    def _pristine(self) -> Iterator[bytes]:
        self.tar.seek(0)
        while data := self.tar.read(_READ):
            yield data

    def _timed(self, parts: Iterable[bytes]) -> Generator[bytes, None, None]:
        try:
            for part in parts:
                self._check_time()
                yield part
        finally:
            if isinstance(parts, Generator):
                parts.close()

    def _timed_answer(self, stream: Generator[bytes, None, ExportReport]) -> Generator[bytes, None, ExportReport]:
        while True:
            try:
                part = next(stream)
            except StopIteration as end:
                report: ExportReport = end.value
                return report
            self._check_time()
            yield part

    def _check_time(self) -> None:
        if time.monotonic() > self.deadline:
            raise ExportFailed(f"the export took longer than {self.limits.timeout_s:g} s")

    def _file(self, path: bytes, change: Change, stats: Mapping[bytes, Stat]) -> PatchFile:
        entry = self.manifest.get(path)
        before = None if entry is None or not in_tree(path, entry) else kind_of(entry)
        stat = stats.get(path)
        return PatchFile(
            path=escape_path(path),
            status=_status(before, change.kind),
            additions=stat and stat[0],
            deletions=stat and stat[1],
            old_mode=None if before is None else _MODES[before],
            new_mode=_MODES[change.kind],
        )


def _status(before: int | None, after: int) -> Literal["added", "modified", "deleted", "type_changed"]:
    if before is None:
        return "added"
    if after == ABSENT:
        return "deleted"
    return "type_changed" if (before == LINK) != (after == LINK) else "modified"


def _check(report: ExportReport, size: int, result: str) -> None:
    """The proof: what was applied is what was sent, and gives the tree that the change set describes."""
    if report.patch_bytes != size or not report.applied:
        raise ExportFailed("the patch was not applied to a pristine copy of the upload")
    if report.tree != result:
        raise ExportFailed(
            "the patch applies, but does not give the workspace's tree "
            f"(expected {result[:12]}, got {report.tree[:12]}); it is withheld"
        )
