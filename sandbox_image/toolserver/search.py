"""Text search by ripgrep, ranked. Runs in a forked job: it blocks, and hostile files may make it large."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator

from sandbox_image.toolserver.failures import Failure
from sandbox_image.toolserver.paths import MAX_PATH, Paths
from sandbox_image.toolserver.spawn import PATH

MAX_LIMIT = 5_000
MAX_MATCHES = 100_000
"""Counted at most; ripgrep is ended there."""
MAX_TEXT = 500
"""Bytes of a line that are shown; ripgrep itself cuts there, so that a minified file costs nothing."""
_MAX_FILES = 5_000
_DEFINITION = re.compile(
    rb"^\s*(?:(?:export|default|public|private|protected|static|final|abstract|async|pub(?:\([a-z]+\))?|inline|extern)\s+)*"
    rb"(?:def|class|func|function|fn|interface|struct|enum|union|trait|impl|type|typedef|module|namespace|package"
    rb"|const|let|var|val|#\s*define|macro_rules!)\b"
)


class _File:
    __slots__ = ("count", "definitions", "path", "rows")

    def __init__(self, path: bytes) -> None:
        self.path = path
        self.count = 0
        self.definitions = 0
        self.rows: list[tuple[int, bytes]] = []

    @property
    def rank(self) -> tuple[bool, int, int, bytes]:
        return self.definitions == 0, -self.count, len(self.path), self.path


def search(paths: Paths, pattern: str, path: str, limit: int) -> dict[str, object]:
    """`{"matches": [[path, line, text]], "total_matches": n, "total_files": n}`.

    Files with definition-like matches first, then those with more matches, then shorter paths; inside a file by
    line. Ignore rules of the workspace hold, hidden files are searched, `.git` is not.
    """
    if not pattern or "\0" in pattern or "\n" in pattern:
        raise Failure("bad_pattern", "the pattern is empty or holds a NUL or a line feed")
    with paths.resolve(path) as place:
        if place.found is None:
            raise Failure("not_found", f"{path}: no such file or directory")
        is_dir = stat.S_ISDIR(place.found.st_mode)
        if not is_dir and not stat.S_ISREG(place.found.st_mode):
            raise Failure("not_regular", f"{path}: not a regular file")
        os.fchdir(place.parent)
        if is_dir and place.name != b".":
            os.chdir(place.name)
        prefix = place.shown if place.shown != b"." else b""
        target = b"./" if is_dir else b"./" + place.name
    files: dict[bytes, _File] = {}
    total = 0
    for found, line, text in _run(pattern, target):
        total += 1
        if is_dir:
            shown = b"/".join((prefix, found.removeprefix(b"./"))) if prefix else found.removeprefix(b"./")
        else:
            shown = prefix
        file = files.get(shown) or files.setdefault(shown, _File(shown))
        file.count += 1
        file.definitions += _DEFINITION.match(text) is not None
        if len(file.rows) < limit and len(files) <= _MAX_FILES:
            file.rows.append((line, text))
        if total >= MAX_MATCHES:
            break
    best = [
        (os.fsdecode(file.path), line, os.fsdecode(text))
        for file in sorted(files.values(), key=lambda file: file.rank)
        for line, text in file.rows
    ]
    return {"matches": best[:limit], "total_matches": total, "total_files": len(files)}


def _whole(before: bytes, path: bytes) -> bytes:
    """`path` with the lines before it that are part of its name; others are remarks about binary files."""
    while before and not os.path.lexists(before + path):
        before = before.partition(b"\n")[2]
    return before + path


def _run(pattern: str, target: bytes) -> Iterator[tuple[bytes, int, bytes]]:
    """path, line number and text of each match. Its output is `path NUL number : text`, one a line."""
    output, output_write = os.pipe2(os.O_CLOEXEC)
    errors, errors_write = os.pipe2(os.O_CLOEXEC)  # --no-messages: a bad pattern is all that is ever said there
    options = (
        "--no-config --no-messages --no-heading --with-filename --line-number --null --color=never --crlf "
        f"--hidden --glob=!.git --max-filesize=10M --max-columns={MAX_TEXT} --max-columns-preview"
    ).split()
    actions = [(os.POSIX_SPAWN_DUP2, output_write, 1), (os.POSIX_SPAWN_DUP2, errors_write, 2)]
    try:
        argv: list[bytes | str] = ["rg", *options, "-e", pattern, "--", target]
        pid = os.posix_spawnp("rg", argv, {"PATH": PATH}, file_actions=actions)
    except FileNotFoundError as error:
        raise Failure("io_error", "ripgrep is not installed in this sandbox") from error
    except (OSError, UnicodeEncodeError) as error:
        raise Failure("bad_pattern", f"the pattern cannot be searched for: {error}") from error
    finally:
        os.close(output_write)
        os.close(errors_write)
    with open(output, "rb") as stream:
        before = b""
        for row in stream:
            path, nul, rest = row.rstrip(b"\r\n").partition(b"\0")
            if not nul:
                before = (before + row)[-MAX_PATH:]
                continue
            number, _, text = rest.partition(b":")
            if number.isdigit():
                yield _whole(before, path), int(number), text
            before = b""
    _, status = os.waitpid(pid, 0)
    if os.waitstatus_to_exitcode(status) == 2:
        said = os.read(errors, 2_000).decode(errors="replace").strip()
        if "regex parse error" in said or "error parsing" in said or "regex" in said:
            raise Failure("bad_pattern", " ".join(said.removeprefix("rg:").split()))
