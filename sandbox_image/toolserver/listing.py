"""What is in the workspace: one directory, or all files that match a pattern. Links are shown, never followed."""

from __future__ import annotations

import fnmatch
import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress

from sandbox_image.toolserver.failures import Failure, from_os_error
from sandbox_image.toolserver.paths import MAX_DEPTH, WORKSPACE, Paths

MAX_LIMIT = 20_000
_MAX_ALTERNATIVES = 64
_LISTING = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

EntryRow = tuple[str, str, int, int]
"""path, kind (file, dir, link, other), size, mode"""


def list_directory(paths: Paths, path: str, limit: int) -> dict[str, object]:
    """The entries of one directory by name: `{"entries": [EntryRow], "total": n}`."""
    with paths.resolve(path) as place:
        if place.found is None:
            raise Failure("not_found", f"{path}: no such directory")
        if not stat.S_ISDIR(place.found.st_mode):
            raise Failure("not_directory", f"{path}: not a directory")
        prefix = b"" if place.shown == b"." else place.shown + b"/"
        try:
            fd = os.open(place.name, _LISTING, dir_fd=place.parent)
            try:
                names = sorted(map(os.fsencode, os.listdir(fd)))
                rows = [_row(prefix + name, found) for name, found in _looked_at(fd, names[:limit])]
            finally:
                os.close(fd)
        except OSError as error:
            raise from_os_error(error, path) from error
    return {"entries": rows, "total": len(names)}


def glob(paths: Paths, pattern: str, limit: int) -> dict[str, object]:
    """Files and links below the workspace whose path matches; `**` spans directories, `{a,b}` gives alternatives.

    Names that begin with a dot match like others; `.git` is passed over, and so is what lies deeper than `MAX_DEPTH`.
    """
    patterns = [_compile(alternative) for alternative in _alternatives(_relative(pattern))]
    rows: list[EntryRow] = []
    total = 0
    for path, found in _walk(paths.workspace.fd):
        parts = path.split(b"/")
        if any(_matches(parts, pattern_parts) for pattern_parts in patterns):
            total += 1
            rows.append(_row(path, found))
    rows.sort()
    return {"entries": rows[:limit], "total": total}


def _row(path: bytes, found: os.stat_result) -> EntryRow:
    kind = {stat.S_IFREG: "file", stat.S_IFDIR: "dir", stat.S_IFLNK: "link"}.get(stat.S_IFMT(found.st_mode), "other")
    return os.fsdecode(path), kind, found.st_size, stat.S_IMODE(found.st_mode)


def _walk(root: int) -> Iterator[tuple[bytes, os.stat_result]]:
    """All that is not a directory, in no order. Each directory is opened from its parent and is closed before its
    children are opened, so that neither depth nor breadth uses up descriptors."""
    todo: list[tuple[bytes, ...]] = [()]
    while todo:
        folder = todo.pop()
        try:
            fd = _open_below(root, folder)
        except OSError:
            continue  # no permission, or gone: nothing to list
        try:
            for name, found in _looked_at(fd, map(os.fsencode, os.listdir(fd))):
                if not stat.S_ISDIR(found.st_mode):
                    yield b"/".join((*folder, name)), found
                elif name != b".git" and len(folder) < MAX_DEPTH:
                    todo.append((*folder, name))
        except OSError:
            continue
        finally:
            os.close(fd)


def _looked_at(folder: int, names: Iterable[bytes]) -> Iterator[tuple[bytes, os.stat_result]]:
    """The names with what they stand for, without those that a command in the background has just taken away."""
    for name in names:
        with suppress(FileNotFoundError):
            yield name, os.stat(name, dir_fd=folder, follow_symlinks=False)


def _open_below(root: int, folder: tuple[bytes, ...]) -> int:
    fd = os.open(b".", _LISTING, dir_fd=root)
    for name in folder:
        try:
            below = os.open(name, _LISTING, dir_fd=fd)
        finally:
            os.close(fd)
        fd = below
    return fd


def _relative(pattern: str) -> str:
    if pattern.startswith("/"):
        inside = pattern.removeprefix(os.fsdecode(WORKSPACE) + "/")
        if inside == pattern:
            raise Failure("outside", f"{pattern}: outside the workspace")
        pattern = inside
    parts = [part for part in pattern.split("/") if part not in ("", ".")]
    if not parts or "\0" in pattern or len(pattern) > 2_000 or len(parts) > MAX_DEPTH:
        raise Failure("bad_pattern", "the pattern is empty, too long or holds a NUL character")
    if ".." in parts:
        raise Failure("outside", f"{pattern}: outside the workspace")
    return "/".join(parts)


def _alternatives(pattern: str) -> list[str]:
    """`a.{b,c}` → `a.b`, `a.c`; braces that do not close are characters."""
    todo = [pattern]
    done: list[str] = []
    while todo:
        if len(todo) + len(done) > _MAX_ALTERNATIVES:
            raise Failure("bad_pattern", f"the pattern has more than {_MAX_ALTERNATIVES} alternatives")
        text = todo.pop()
        match = re.search(r"\{([^{}]*,[^{}]*)\}", text)
        if match is None:
            done.append(text)
        else:
            todo += [text[: match.start()] + choice + text[match.end() :] for choice in match.group(1).split(",")]
    return done


def _compile(pattern: str) -> list[re.Pattern[str] | None]:
    """One expression per part of the path; None for `**`."""
    try:
        parts: list[re.Pattern[str] | None] = []
        for part in pattern.split("/"):
            if part != "**":
                parts.append(re.compile(fnmatch.translate(part)))
            elif not parts or parts[-1] is not None:
                parts.append(None)
    except re.error as error:
        raise Failure("bad_pattern", f"bad pattern: {error}") from error
    if parts[-1] is None:
        parts.append(re.compile(r"(?s:.*)\Z"))
    return parts


def _matches(path: list[bytes], pattern: list[re.Pattern[str] | None]) -> bool:
    """Whether the parts fit; one pass over a set of reachable positions, so that many `**` cost no more than one."""
    reached = {0}
    for part in map(os.fsdecode, path):
        after = set()
        for at in _past_stars(reached, pattern):
            if at < len(pattern):
                expression = pattern[at]
                if expression is None:
                    after.add(at)
                elif expression.match(part):
                    after.add(at + 1)
        reached = after
        if not reached:
            return False
    return len(pattern) in reached


def _past_stars(reached: set[int], pattern: list[re.Pattern[str] | None]) -> set[int]:
    """`**` also spans nothing."""
    return reached | {at + 1 for at in reached if at < len(pattern) and pattern[at] is None}
