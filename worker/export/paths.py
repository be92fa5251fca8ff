"""Which changed paths may never be in a patch, whatever the box says of them."""

from __future__ import annotations

import re

from sandbox_image.toolserver.records import LINK

MAX_COMPONENT = 255
_HFS_IGNORED = re.compile("[\u200c-\u200f\u202a-\u202e\u206a-\u206f\ufeff]")
"""What HFS+ leaves out of a name, from git's utf8.c."""
_DOT_GIT = re.compile(r"(\.git|git~1)[ .]*(:.*)?", re.IGNORECASE | re.DOTALL)
_DOT_GITMODULES = re.compile(r"(\.gitmodules|gitmod~[1-4]|gi7eba~[1-9]\d*|gi7eb~[1-9]\d*)[ .]*(:.*)?", re.I | re.DOTALL)


def refusal(path: bytes, kind: int) -> tuple[str, str] | None:
    """Flag kind and reason for a path that must stay out; None for one that may go in.

    `dot_git` covers what any git on any file system takes for `.git` (verify_path in git's read-cache.c: case, HFS+
    ignorable characters, NTFS short names, trailing dots and blanks, streams, backslashes), and a *link* called
    `.gitmodules`, which git refuses to make.
    """
    components = path.split(b"/")
    if b"\0" in path or any(part in (b"", b".", b"..") or len(part) > MAX_COMPONENT for part in components):
        return "unsafe_path", "not a plain relative path"
    for part in path.replace(b"\\", b"/").split(b"/"):
        name = _HFS_IGNORED.sub("", part.decode("utf-8", "surrogateescape"))
        if _DOT_GIT.fullmatch(name):
            return "dot_git", "git would take this for repository data"
        if kind == LINK and _DOT_GITMODULES.fullmatch(name):
            return "dot_git", "git refuses .gitmodules as a link"
    return None


def link_escape(path: bytes, target: bytes) -> str | None:
    """Why a link's target deserves a look, or None: absolute, out of the tree, or into repository data."""
    if target.startswith(b"/"):
        return "the target is absolute"
    depth = path.count(b"/")
    for part in target.split(b"/"):
        if part == b"..":
            depth -= 1
        elif part not in (b"", b"."):
            depth += 1
        if depth < 0:
            return "the target is outside the tree"
        if part.lower() == b".git":
            return "the target is repository data"
    return None
