"""What the box says of its workspace: every difference, by content, and what a patch cannot say."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from sandbox_image.toolserver.changes import stream
from sandbox_image.toolserver.records import ABSENT, BODY, CHANGE, END, EXEC, FILE, FOUND, LINK, LISTED, MISSING, Reader
from sandbox_image.toolserver.tree import tree_entries


class _Known(NamedTuple):
    kind: str
    exec: bool = False
    size: int = 0
    sha256: bytes = b""
    target: bytes = b""


def _file(data: bytes, *, executable: bool = False) -> _Known:
    return _Known("f", executable, len(data), hashlib.sha256(data).digest())


class _Said(NamedTuple):
    changes: dict[bytes, tuple[int, int | bytes]]
    """Kind, and size of a file or target of a link."""
    findings: set[tuple[bytes, bytes]]
    bodies: list[tuple[bytes, bytes | int]]
    """Content, or the kind of a MISSING."""


def _read(parts: Iterator[bytes]) -> _Said:
    said = _Said({}, set(), [])
    reader = Reader.of(parts)
    while (found := reader.next()).type != LISTED:
        if found.type == FOUND:
            said.findings.add((found.path, found.aux))
        else:
            assert found.type == CHANGE
            assert found.path not in said.changes
            said.changes[found.path] = (found.kind, found.aux if found.kind == LINK else found.size)
    assert found.size == len(said.changes)
    while (found := reader.next()).type != END:
        if found.type == BODY:
            said.bodies.append((found.path, b"".join(reader.body(1 << 30))))
        else:
            assert found.type == MISSING
            said.bodies.append((found.path, found.kind))
    reader.finish()
    return said


def test_every_kind_of_change(tmp_path: Path) -> None:
    (tmp_path / "same").write_bytes(b"same")
    (tmp_path / "new").write_bytes(b"fresh")
    (tmp_path / "longer").write_bytes(b"12345678")
    (tmp_path / "other").write_bytes(b"xyz")
    (tmp_path / "mode").write_bytes(b"m")
    (tmp_path / "mode").chmod(0o755)
    (tmp_path / "link").symlink_to("new")
    (tmp_path / "kept link").symlink_to("same")
    (tmp_path / "now a link").symlink_to("same")
    (tmp_path / "now a file").write_bytes(b"")
    baseline = {
        b"same": _file(b"same"),
        b"longer": _file(b"1234"),
        b"other": _file(b"abc"),
        b"mode": _file(b"m"),
        b"link": _Known("l", target=b"old"),
        b"kept link": _Known("l", target=b"same"),
        b"now a link": _file(b"text"),
        b"now a file": _Known("l", target=b"same"),
        b"gone": _file(b"gone"),
        b"gone too/link": _Known("l", target=b"x"),
    }

    said = _read(stream(str(tmp_path), baseline))

    assert said.changes == {
        b"new": (FILE, 5),
        b"longer": (FILE, 8),
        b"other": (FILE, 3),
        b"mode": (EXEC, 1),
        b"link": (LINK, b"new"),
        b"now a link": (LINK, b"same"),
        b"now a file": (FILE, 0),
        b"gone": (ABSENT, 0),
        b"gone too/link": (ABSENT, 0),
    }
    assert said.bodies == [
        (b"now a file", b""), (b"mode", b"m"), (b"other", b"xyz"), (b"new", b"fresh"), (b"longer", b"12345678"),
    ]  # fmt: skip
    assert said.findings == set()


def test_a_change_that_neither_size_nor_time_shows(tmp_path: Path) -> None:
    target = tmp_path / "mapped"
    target.write_bytes(b"before")
    times = target.stat()
    target.write_bytes(b"after!")
    os.utime(target, ns=(times.st_atime_ns, times.st_mtime_ns))

    assert _read(stream(str(tmp_path), {b"mapped": _file(b"before")})).changes == {b"mapped": (FILE, 6)}


def test_repository_data_is_named_and_never_entered(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "config").write_text("x")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / ".git").write_text("gitdir: /nowhere")
    (tmp_path / ".gitignore").write_text("x")

    said = _read(stream(str(tmp_path), {b".git/HEAD": _file(b"gone"), b".git/refs": _Known("d")}))

    assert said.changes == {b".gitignore": (FILE, 1)}
    assert said.findings == {(b".git", b"git_data\0"), (b"sub/.git", b"git_data\0")}


def test_what_a_patch_cannot_say(tmp_path: Path) -> None:
    (tmp_path / "new empty").mkdir()
    (tmp_path / "old empty").mkdir()
    (tmp_path / "filled").mkdir()
    (tmp_path / "filled" / "f").write_bytes(b"")
    (tmp_path / "private").write_bytes(b"")
    (tmp_path / "private").chmod(0o600)
    (tmp_path / "setuid").write_bytes(b"")
    (tmp_path / "setuid").chmod(0o4755)
    (tmp_path / "closed").mkdir(mode=0o755)
    (tmp_path / "closed" / "inside").write_bytes(b"i")
    (tmp_path / "closed").chmod(0o000)
    (tmp_path / "one").write_bytes(b"")
    os.link(tmp_path / "one", tmp_path / "two")
    os.mkfifo(tmp_path / "fifo")
    os.mknod(tmp_path / "sock", stat.S_IFSOCK | 0o600)
    baseline = {
        b"old empty": _Known("d"), b"filled": _Known("d"), b"lost empty": _Known("d"), b"fifo": _file(b"was"),
    }  # fmt: skip

    said = _read(stream(str(tmp_path), baseline))

    assert said.findings == {
        (b"new empty", b"empty_dir\0added"),
        (b"lost empty", b"empty_dir\0removed"),
        (b"private", b"mode\0file 0600"),
        (b"setuid", b"mode\0file 4755"),
        (b"closed", b"mode\0folder 0000"),
        (b"one", b"hard_link\0002 names"),
        (b"two", b"hard_link\0002 names"),
        (b"fifo", b"special\0fifo"),
        (b"sock", b"special\0socket"),
    }
    assert said.changes[b"fifo"] == (ABSENT, 0)
    assert said.changes[b"closed/inside"] == (FILE, 1)


def test_a_file_that_vanishes_between_its_name_and_its_bytes(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    (tmp_path / "b").write_bytes(b"22")
    parts = stream(str(tmp_path), {})
    # New files are first opened for their bytes, long after the walk has named them.
    real_open, opened = os.open, []

    def vanish(path: object, flags: int, *rest: object, **more: object) -> int:
        if path == b"a" and not opened:
            opened.append(path)
            (tmp_path / "a").unlink()
            (tmp_path / "a").symlink_to("/etc/passwd")
        return real_open(path, flags, *rest, **more)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", vanish)
        said = _read(parts)

    assert said.bodies == [(b"a", ABSENT), (b"b", b"22")]


def test_a_tree_deeper_than_any_path(tmp_path: Path) -> None:
    (tmp_path / "here").write_bytes(b"1")
    subprocess.run(
        ["python3", "-c", "import os\nfor _ in range(3000): os.mkdir('d' * 40); os.chdir('d' * 40)"],
        cwd=tmp_path, check=True, timeout=60,
    )  # fmt: skip
    try:
        said = _read(stream(str(tmp_path), {b"d" * 40 + b"/x": _file(b"gone")}))
    finally:
        subprocess.run(["rm", "-rf", "d" * 40], cwd=tmp_path, check=True, timeout=60)

    (path, finding), *others = said.findings
    assert (finding, others) == (b"too_deep\0not looked into", [])
    assert 3_900 < len(path) <= 4_000
    assert said.changes == {b"here": (FILE, 1), b"d" * 40 + b"/x": (ABSENT, 0)}


def test_folders_below_the_deepest_level_are_left_out(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["d"] * 300)
    deep.mkdir(parents=True)
    try:
        said = _read(stream(str(tmp_path), {}))
    finally:
        shutil.rmtree(tmp_path / "d")

    assert said.findings == {(b"d/" * 256 + b"d", b"too_deep\0not looked into")}


def test_findings_of_one_kind_end_at_a_thousand(tmp_path: Path) -> None:
    for number in range(1_010):
        (tmp_path / str(number)).mkdir()
    assert len(_read(stream(str(tmp_path), {})).findings) == 1_000


def test_a_tree_of_plain_files_has_no_special_entry(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OSError, match="special"):
        list(tree_entries(str(tmp_path)))
