"""Packs a folder for upload as git would see it: `.gitignore` rules hold, `.git` stays at home.

The archive is deterministic (no times, no owners), so that the same tree is the same workspace.
"""

from __future__ import annotations

import gzip
import os
import stat
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from pathspec import GitIgnoreSpec

_COMPRESSION = 6
_GIT = ".git"


@dataclass(frozen=True, slots=True)
class _Rules:
    """The rules of one `.gitignore`, which hold below its folder."""

    folder: str
    spec: GitIgnoreSpec

    def decide(self, path: str) -> bool | None:
        """True = ignored, False = taken back by a `!` rule, None = says nothing."""
        return self.spec.check_file(os.path.relpath(path, self.folder) + "/" * path.endswith("/")).include


@contextmanager
def packed(folder: Path) -> Iterator[BinaryIO]:
    """A gzipped tar of the folder in a temporary file, at its start. OSError when something cannot be read."""
    with tempfile.TemporaryFile() as archive:
        with (
            gzip.GzipFile(fileobj=archive, mode="wb", compresslevel=_COMPRESSION, filename="", mtime=0) as squeezed,
            tarfile.open(fileobj=squeezed, mode="w|", format=tarfile.GNU_FORMAT, errors="surrogateescape") as tar,
        ):
            root = str(folder.resolve())
            for path in _walk(root, _rules_above(root)):
                _add(tar, path, os.path.relpath(path, root))
        archive.seek(0)
        yield archive


def _add(tar: tarfile.TarFile, path: str, name: str) -> None:
    info = tar.gettarinfo(path, name)
    if info is None or info.type not in (tarfile.REGTYPE, tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.DIRTYPE):
        return
    if info.islnk():
        # A second name of a file: packed as a file of its own, since the first may be ignored.
        info.type, info.linkname, info.size = tarfile.REGTYPE, "", Path(path).stat().st_size
    info.mode = 0o755 if info.isdir() or info.mode & stat.S_IXUSR else 0o644
    info.uid = info.gid = info.mtime = 0
    info.uname = info.gname = ""
    if info.isreg():
        with Path(path).open("rb") as file:
            tar.addfile(info, file)
    else:
        tar.addfile(info)


def _walk(folder: str, rules: list[_Rules]) -> Iterator[str]:
    """Every path below the folder that is not ignored, folders before what is in them, in byte order."""
    rules = rules + _rules_of(folder)
    with os.scandir(folder) as entries:
        found = sorted(entries, key=lambda entry: os.fsencode(entry.name))
    for entry in found:
        is_folder = entry.is_dir(follow_symlinks=False)
        if entry.name == _GIT or _ignored(entry.path + "/" * is_folder, rules):
            continue
        yield entry.path
        if is_folder:
            yield from _walk(entry.path, rules)


def _ignored(path: str, rules: list[_Rules]) -> bool:
    """The nearest `.gitignore` that says anything decides."""
    for nearest in reversed(rules):
        if (decision := nearest.decide(path)) is not None:
            return decision
    return False


def _rules_of(folder: str) -> list[_Rules]:
    try:
        lines = Path(folder, ".gitignore").read_text(encoding="utf-8", errors="surrogateescape").split("\n")
    except (FileNotFoundError, IsADirectoryError):
        return []
    return [_Rules(folder, GitIgnoreSpec.from_lines(lines))]


def _rules_above(root: str) -> list[_Rules]:
    """The rules of the repository the folder lies in, outermost first; none outside of a repository."""
    above: list[_Rules] = []
    for folder in (Path(root), *Path(root).parents):
        if folder != Path(root):
            above = _rules_of(str(folder)) + above
        if (folder / _GIT).exists():
            return above
    return []
