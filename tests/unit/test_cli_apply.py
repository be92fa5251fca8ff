"""Applying a patch: all of it or nothing, whatever repository is around the folder."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from service.client.apply import NotApplied, git_apply

PATCH = b"""diff --git a/a.txt b/a.txt
index 5626abf0f72e58d7a153368ba57db4c673c0e171..f719efd430d52bcfc8566a43b2eb655688d38871 100644
--- a/a.txt
+++ b/a.txt
@@ -1 +1 @@
-one
+two \n"""
OTHER = PATCH.replace(b"a.txt", b"missing.txt")


def folder(root: Path) -> Path:
    inner = root / "inner"
    inner.mkdir()
    (inner / "a.txt").write_text("one\n")
    return inner


def test_a_patch_is_applied_inside_of_another_repository(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    inner = folder(tmp_path)
    git_apply(PATCH, inner, check_only=True)
    assert (inner / "a.txt").read_text() == "one\n"
    git_apply(PATCH, inner)
    assert (inner / "a.txt").read_text() == "two \n"


def test_a_patch_is_applied_at_the_root_of_a_repository(tmp_path: Path) -> None:
    inner = folder(tmp_path)
    subprocess.run(["git", "init", "-q", str(inner)], check=True)
    subprocess.run(["git", "-C", str(inner), "config", "apply.whitespace", "fix"], check=True)
    git_apply(PATCH, inner)
    assert (inner / "a.txt").read_text() == "two \n"


def test_a_patch_that_fits_in_part_changes_nothing(tmp_path: Path) -> None:
    inner = folder(tmp_path)
    with pytest.raises(NotApplied, match=r"missing\.txt: No such file"):
        git_apply(PATCH + OTHER, inner)
    assert (inner / "a.txt").read_text() == "one\n"


def test_without_git_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotApplied, match="git is not installed here"):
        git_apply(PATCH, folder(tmp_path))
