"""Packing a folder: what git would see of it, the same bytes for the same tree."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import pytest

from service.client.pack import packed


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def names(folder: Path) -> list[str]:
    with packed(folder) as archive, tarfile.open(fileobj=archive, errors="surrogateescape") as tar:
        return tar.getnames()


def test_gitignore_rules_hold_where_they_stand(tmp_path: Path) -> None:
    tree(
        tmp_path,
        {
            ".gitignore": "*.log\nbuild/\n/only-here\n!keep.log\n",
            "a.log": "",
            "keep.log": "",
            "only-here": "",
            "build/out": "",
            "src/.gitignore": "!b.log\n*.tmp\n",
            "src/a.log": "",
            "src/b.log": "",
            "src/c.tmp": "",
            "src/only-here": "",
            "src/build/x": "",
            "other/c.tmp": "",
        },
    )
    assert names(tmp_path) == [
        ".gitignore", "keep.log", "other", "other/c.tmp", "src", "src/.gitignore", "src/b.log", "src/only-here",
    ]  # fmt: skip


def test_what_an_ignored_folder_holds_cannot_be_taken_back(tmp_path: Path) -> None:
    tree(tmp_path, {".gitignore": "out/\n!out/keep\n", "out/keep": ""})
    assert names(tmp_path) == [".gitignore"]


def test_rules_of_the_repository_around_the_folder_hold_too(tmp_path: Path) -> None:
    tree(tmp_path, {"repo/.git/config": "", "repo/.gitignore": "*.log\n/sub/x\n", ".gitignore": "*\n"})
    tree(tmp_path, {"repo/sub/a.log": "", "repo/sub/x": "", "repo/sub/y": ""})
    assert names(tmp_path / "repo" / "sub") == ["y"]


def test_without_a_repository_only_the_folders_own_rules_hold(tmp_path: Path) -> None:
    tree(tmp_path, {".gitignore": "*\n", "sub/x": ""})
    assert names(tmp_path / "sub") == ["x"]


def test_git_data_stays_at_home(tmp_path: Path) -> None:
    tree(tmp_path, {".git/config": "token", "a": "", "nested/.git/config": "token", "nested/b": "", "module/.git": "x"})
    assert names(tmp_path) == ["a", "module", "nested", "nested/b"]


def test_kinds_and_modes(tmp_path: Path) -> None:
    tree(tmp_path, {"plain": "1", "run": "2"})
    (tmp_path / "run").chmod(0o700)
    (tmp_path / "plain").chmod(0o600)
    (tmp_path / "link").symlink_to("../outside")
    (tmp_path / "again").hardlink_to(tmp_path / "plain")
    (tmp_path / "empty").mkdir()
    os.mkfifo(tmp_path / "pipe")
    with packed(tmp_path) as archive, tarfile.open(fileobj=archive) as tar:
        seen = [
            (entry.name, entry.type, entry.mode, entry.size, entry.linkname, entry.mtime, entry.uid) for entry in tar
        ]
    assert seen == [
        ("again", tarfile.REGTYPE, 0o644, 1, "", 0, 0),
        ("empty", tarfile.DIRTYPE, 0o755, 0, "", 0, 0),
        ("link", tarfile.SYMTYPE, 0o755, 0, "../outside", 0, 0),
        ("plain", tarfile.REGTYPE, 0o644, 1, "", 0, 0),
        ("run", tarfile.REGTYPE, 0o755, 1, "", 0, 0),
    ]


def test_a_link_to_a_folder_is_a_link(tmp_path: Path) -> None:
    tree(tmp_path, {"d/x": ""})
    (tmp_path / "l").symlink_to("d")
    assert names(tmp_path) == ["d", "d/x", "l"]


def test_names_that_are_not_text(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"caf\xe9")).write_text("")
    assert names(tmp_path) == [os.fsdecode(b"caf\xe9")]


def test_the_same_tree_is_the_same_archive(tmp_path: Path) -> None:
    archives = []
    for name in ("one", "two"):
        folder = tree(tmp_path / name, {"b/x": "1", "a": "2"})
        os.utime(folder / "a", (5, len(archives)))
        with packed(folder) as archive:
            archives.append(archive.read())
    assert archives[0] == archives[1]


def test_a_file_that_vanishes_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), packed(tmp_path / "nothing"):
        pass
