"""Applies a patch to a folder with git, outside of any repository around the folder."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from service.settings import child_environment


class NotApplied(Exception):
    """Git's own words, or that it is missing; the folder is unchanged."""


def git_apply(patch: bytes, folder: Path, *, check_only: bool = False) -> None:
    """Checks the patch against the folder and then applies it: all of it or nothing.

    A repository *around* the folder is hidden from git: from inside one, `git apply` would skip every path outside of
    it and still exit 0.
    """
    if shutil.which("git") is None:
        raise NotApplied("git is not installed here")
    folder = folder.resolve()
    environment = child_environment({"GIT_CEILING_DIRECTORIES": str(folder.parent), "LC_ALL": "C"}, model_keys=False)
    for mode in ("--check",) if check_only else ("--check", "--apply"):
        done = subprocess.run(
            ["git", "apply", "--whitespace=nowarn", mode, "-"],
            input=patch,
            cwd=folder,
            env=environment,
            capture_output=True,
            check=False,
        )
        if done.returncode != 0:
            raise NotApplied(done.stderr.decode("utf-8", "replace").strip())
