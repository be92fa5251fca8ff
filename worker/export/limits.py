"""How much a patch may be before the task ends as `patch_too_large`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ExportLimits:
    max_files: int = 5_000
    """Changed paths, ignored ones not counted: more than any review reads, and less than a forgotten build folder."""
    max_change_bytes: int = 256 << 20
    """Of the changed files, each by the larger of its old and new version: git holds both in memory to compare."""
    max_patch_bytes: int = 50 << 20
    """Bytes of the patch itself."""
    timeout_s: float = 300.0
    """The whole export; the hash scan of a full 4 GiB workspace takes about 10 s."""
