"""From a job of the worker to a patch and its proof, in a fresh box: git sees only bytes that we hand it.

Two jobs, both in the format of records.py, whose JOB record holds a JSON object:

- `{"op": "ignored"}`: RULES (the upload's ignore files), then CANDIDATE paths; the answer has an IGNORED record, with
  the candidate's ordinal as its size, for each that the rules match.
- `{"op": "patch", "max_patch_bytes": n}`: OLD and NEW versions of the touched paths; the answer is PATCH, then a STAT
  for each path (aux: additions and deletions, `- -` for binary). A patch beyond the limit is cut there, and
  `patch_bytes` of the report says so. Otherwise the patch is applied to the pristine copy that
  was loaded into `root` before, and the whole tree is hashed: the report.

No configuration, attribute, filter or hook of an upload is ever read: the objects go into a bare repository of our
own, and the patch is applied outside any repository, after repository data has been removed from the copy. Exit
codes are not relied on alone (as PID 1 the server may reap git first): a patch that was cut or applied wrongly shows
in the hash, a short list of ignored paths in its count.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import IO, Any, Protocol

from sandbox_image.toolserver.records import (
    ABSENT,
    CANDIDATE,
    CHUNK,
    END,
    EXEC,
    FILE,
    IGNORED,
    JOB,
    LINK,
    MAGIC,
    NEW,
    OLD,
    PATCH,
    RULES,
    STAT,
    Malformed,
    Reader,
    Record,
    body,
    packed,
    record,
    tree_hash,
)
from sandbox_image.toolserver.tree import tree_entries, walk

_MODES = {FILE: b"100644", EXEC: b"100755", LINK: b"120000"}
_TREE_DIFF = (
    "diff-tree", "-r", "--no-renames", "--no-color", "--no-ext-diff", "--no-textconv",
)  # fmt: skip
_PATCH = ("-p", "--binary", "--full-index", "--src-prefix=a/", "--dst-prefix=b/")
_CONFIG = f"""[core]
\trepositoryformatversion = 0
\tbare = true
\tfsync = none
\tfilemode = true
\tsymlinks = true
\tattributesFile = {os.devnull}
\texcludesFile = {os.devnull}
[pack]
\tcompression = 0
[fastimport]
\tunpackLimit = 0
"""
"""Objects live for one comparison: not compressed (the patch's binary parts are), not synced, never made loose."""
_FIELDS = 4
"""Of one answer of `git check-ignore --verbose`: source, line, pattern, path."""

_NONE_IGNORED = 1
"""Status of `git check-ignore` when no path matched."""


class Job(Protocol):
    def read(self, size: int, /) -> bytes:
        """At most `size` bytes; b"" at the end."""
        ...


class GitFailed(Exception):
    """A git process did not do its part; the message is its own last words."""


def run(job: Job, root: str, tmp: str) -> Generator[bytes, None, dict[str, Any]]:
    """Does one job; yields the answer stream, returns the fields of `ExportReport` (worker/sandbox/base.py).

    Works in a folder of its own below `tmp`, outside `root`, that holds at most the bytes of the job and the patch.
    Raises records.Malformed for a job that is not one.
    """
    report: dict[str, Any] = {"tree": "", "applied": False, "patch_bytes": 0, "message": ""}
    with tempfile.TemporaryDirectory(dir=tmp, prefix="export-") as scratch:
        yield from packed(_answer(job, Path(scratch), root, report))
    return report


def _answer(job: Job, scratch: Path, root: str, report: dict[str, Any]) -> Iterator[bytes]:
    yield MAGIC
    reader = Reader(lambda: job.read(CHUNK))
    head = reader.next()
    wanted = json.loads(head.aux) if head.type == JOB else {}
    git = _Git(scratch)
    try:
        if wanted.get("op") == "ignored":
            yield from _ignored(reader, git)
        elif wanted.get("op") == "patch":
            yield from _patch(reader, git, wanted["max_patch_bytes"], report)
            if report["patch_bytes"] <= wanted["max_patch_bytes"]:
                _prove(git, root, report)
        else:
            raise Malformed("a job of a kind that is not known")
    except (GitFailed, OSError) as failure:
        report["message"] = str(failure)[:2_000]
        while job.read(CHUNK):  # the worker may still be sending
            pass
    yield record(END)


class _Git:
    """Runs git under `scratch` with nothing of the machine's or the upload's configuration."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        self.repository = scratch / "repository"
        self.patch = scratch / "patch"
        self._log = scratch / "log"
        self._environment = {
            "PATH": os.environ.get("PATH", "/usr/local/bin:/usr/bin:/bin"),
            "HOME": str(scratch),
            "LC_ALL": "C",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_OPTIONAL_LOCKS": "0",
        }

    def init(self) -> None:
        """An empty bare repository; its HEAD names a branch that is never made, so no tree lends attributes."""
        for folder in ("objects/info", "refs/heads"):
            (self.repository / folder).mkdir(parents=True)
        (self.repository / "HEAD").write_text("ref: refs/heads/none\n")
        (self.repository / "config").write_text(_CONFIG)

    def start(
        self,
        *command: str,
        stdin: int | IO[bytes] = subprocess.DEVNULL,
        stdout: int = subprocess.DEVNULL,
        cwd: Path | str | None = None,
        **more: str,
    ) -> subprocess.Popen[bytes]:
        """Starts git; its complaints go to a file, so that no pipe can fill up."""
        with self._log.open("wb") as log:
            return subprocess.Popen(
                ["git", *command],
                stdin=stdin,
                stdout=stdout,
                stderr=log,
                cwd=cwd or self.scratch,
                env={**self._environment, **more},
            )

    def end(self, process: subprocess.Popen[bytes], what: str, *, fine: int = 0) -> None:
        """Waits for it; GitFailed for a status other than 0 and `fine`."""
        if process.wait() not in (0, fine):
            words = self._log.read_bytes()[-500:].decode("utf-8", "replace").strip()
            raise GitFailed(f"{what} failed with status {process.returncode}: {words}")

    def fields(self, process: subprocess.Popen[bytes], what: str, *, fine: int = 0) -> Iterator[bytes]:
        """The NUL-ended fields that it prints; statuses as for `end`."""
        assert process.stdout is not None  # noqa: S101
        rest = b""
        with process.stdout as output:
            while block := output.read(CHUNK):
                *fields, rest = (rest + block).split(b"\0")
                yield from fields
        self.end(process, what, fine=fine)


def _ignored(reader: Reader, git: _Git) -> Iterator[bytes]:
    git.init()
    tree = git.scratch / "tree"
    tree.mkdir()
    asked = 0
    candidates = git.scratch / "candidates"
    with candidates.open("wb") as out:
        while (found := reader.next()).type != END:
            if found.type == RULES:
                target = tree / os.fsdecode(found.path)
                target.parent.mkdir(parents=True, exist_ok=True)
                with target.open("wb") as rules:
                    rules.writelines(reader.body(found.size))
            elif found.type == CANDIDATE:
                out.write(b"./" + found.path + b"\0")  # a name may begin with ":", which is magic to git
                asked += 1
            else:
                raise Malformed("a record that does not belong into this job")
    answered = 0
    with candidates.open("rb") as paths:
        process = git.start(
            f"--git-dir={git.repository}", f"--work-tree={tree}", "-c", "core.bare=false",
            "check-ignore", "--no-index", "--verbose", "--non-matching", "-z", "--stdin",
            stdin=paths, stdout=subprocess.PIPE, cwd=tree,
        )  # fmt: skip
        pattern = b""
        for number, field in enumerate(git.fields(process, "git check-ignore", fine=_NONE_IGNORED)):
            if number % _FIELDS == _FIELDS - 2:
                pattern = field
            elif number % _FIELDS == _FIELDS - 1:
                if pattern and not pattern.startswith(b"!"):
                    yield record(IGNORED, size=answered)
                answered += 1
    if answered != asked:
        raise GitFailed(f"git check-ignore answered for {answered} of {asked} paths")


def _patch(reader: Reader, git: _Git, limit: int, report: dict[str, Any]) -> Iterator[bytes]:
    git.init()
    _store(reader, git)
    yield record(PATCH)
    failures: list[GitFailed] = []
    yield from body(_diff(git, limit, report, failures))
    if failures:
        raise failures[0]
    if report["patch_bytes"] > limit:
        return
    process = git.start(
        f"--git-dir={git.repository}", *_TREE_DIFF, "--numstat", "-z", "old", "new", stdout=subprocess.PIPE
    )
    for field in git.fields(process, "git diff-tree --numstat"):
        added, deleted, path = field.split(b"\t", 2)
        yield record(STAT, path, aux=added + b" " + deleted)


def _store(reader: Reader, git: _Git) -> None:
    """Writes both small trees with one process; bytes go in as they are, since fast-import knows no filters."""
    process = git.start(
        f"--git-dir={git.repository}", "fast-import", "--quiet", "--done", "--depth=0", stdin=subprocess.PIPE
    )
    assert process.stdin is not None  # noqa: S101
    try:
        with process.stdin as out:
            found = reader.next()
            for name, type_ in ((b"old", OLD), (b"new", NEW)):
                out.write(b"commit refs/heads/%s\ncommitter p <p> 0 +0000\ndata 0\n" % name)
                while found.type == type_:
                    for part in _entry(reader, found):
                        out.write(part)
                    found = reader.next()
            if found.type != END:
                raise Malformed("a record that does not belong into this job")
            out.write(b"done\n")
    except BrokenPipeError:
        pass  # it ended early: its status and its words say why
    finally:
        git.end(process, "git fast-import")


def _entry(reader: Reader, found: Record) -> Iterator[bytes]:
    if found.kind == ABSENT:
        return
    size = found.size if found.has_body else len(found.aux)
    yield b"M %s inline %s\ndata %d\n" % (_MODES[found.kind], _quoted(found.path), size)
    if not found.has_body:
        yield found.aux + b"\n"
        return
    sent = 0
    for part in reader.body(size):
        sent += len(part)
        yield part
    if sent != size:
        raise Malformed("a body is smaller than its record says")
    yield b"\n"


def _quoted(path: bytes) -> bytes:
    plain = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+ "
    return b'"' + b"".join(b"%c" % byte if byte in plain else b"\\%03o" % byte for byte in path) + b'"'


def _diff(git: _Git, limit: int, report: dict[str, Any], failures: list[GitFailed]) -> Iterator[bytes]:
    """The patch's bytes, also into a file; one that passes the limit is stopped, and is no patch."""
    process = git.start(f"--git-dir={git.repository}", *_TREE_DIFF, *_PATCH, "old", "new", stdout=subprocess.PIPE)
    assert process.stdout is not None  # noqa: S101
    with process.stdout as output, git.patch.open("wb") as copy:
        while block := output.read(CHUNK):
            report["patch_bytes"] += len(block)
            if report["patch_bytes"] > limit:
                process.kill()
                process.wait()
                return
            copy.write(block)
            yield block
    try:
        git.end(process, "git diff-tree")
    except GitFailed as failure:
        failures.append(failure)


def _prove(git: _Git, root: str, report: dict[str, Any]) -> None:
    """Applies the patch to the pristine copy in `root`, as whoever downloads it will, and hashes what came of it."""
    for path in [node.path for node in walk(root) if node.kind == "git"]:
        whole = os.path.join(os.fsencode(root), path)
        if os.path.isdir(whole) and not os.path.islink(whole):
            shutil.rmtree(whole)
        else:
            os.unlink(whole)
    if report["patch_bytes"]:
        process = git.start(
            "apply", "--whitespace=nowarn", str(git.patch),
            cwd=root, GIT_CEILING_DIRECTORIES=os.path.dirname(os.path.realpath(root)),
        )  # fmt: skip
        git.end(process, "git apply")
    report["applied"] = True
    report["tree"] = tree_hash(tree_entries(root))
