"""Walks a folder that hostile code has shaped, by directory descriptors and without following a link.

Never raises for what it finds: what cannot be entered or read is a node that says so. Nothing else writes to the
tree while it is walked (the server has ended every process), but a walk stays right, file by file, if something does.
A file or folder whose owner took away his own right to read it is given that right and keeps it: the export is the
last use of a task's box, and the mode as it was has been reported.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from typing import Literal, NamedTuple

from sandbox_image.toolserver.records import EXEC, FILE, LINK, MAX_PATH, TreeEntry

MAX_DEPTH = 256
"""Folders inside folders; each open level holds one descriptor. Uploads may have 64."""

Kind = Literal["file", "link", "dir", "empty_dir", "special", "git", "too_deep", "unreadable"]

_DIR = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NAME = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_BLOCK = 256 * 1024


class Node(NamedTuple):
    path: bytes
    kind: Kind
    """`git` is an entry named exactly `.git`, of any type: never entered. `too_deep` is not entered either."""
    mode: int
    size: int
    links: int
    folder: int
    """Descriptor of its folder, open until the next node is asked for."""

    @property
    def name(self) -> bytes:
        return self.path.rpartition(b"/")[2]

    @property
    def executable(self) -> bool:
        return bool(self.mode & stat.S_IXUSR)


class _Folder:
    """An open folder of the walk, with what is still to be visited in it."""

    def __init__(self, descriptor: int, prefix: bytes) -> None:
        self.descriptor = descriptor
        self.prefix = prefix
        self.names = sorted((os.fsencode(name) for name in os.listdir(descriptor)), reverse=True)
        self.empty = not self.names


def walk(root: str) -> Iterator[Node]:
    """Every entry below `root`, folders before what is in them, names in byte order."""
    stack = [_Folder(os.open(root, _DIR), b"")]
    try:
        while stack:
            folder = stack[-1]
            if not folder.names:
                os.close(stack.pop().descriptor)
                continue
            name = folder.names.pop()
            try:
                status = os.lstat(name, dir_fd=folder.descriptor)
            except FileNotFoundError:
                continue
            path = folder.prefix + name
            child = None
            kind = _kind(path, status.st_mode, len(stack))
            if kind == "dir":
                child = _enter(folder.descriptor, name, path, status)
                kind = "unreadable" if child is None else "empty_dir" if child.empty else "dir"
                if child is not None:
                    stack.append(child)
            yield Node(path, kind, status.st_mode, status.st_size, status.st_nlink, folder.descriptor)
    finally:
        for folder in stack:
            os.close(folder.descriptor)


def _kind(path: bytes, mode: int, depth: int) -> Kind:
    if path.endswith(b"/.git") or path == b".git":
        return "git"
    if len(path) > MAX_PATH or depth > MAX_DEPTH:
        return "too_deep"
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISLNK(mode):
        return "link"
    return "dir" if stat.S_ISDIR(mode) else "special"


def _enter(parent: int, name: bytes, path: bytes, status: os.stat_result) -> _Folder | None:
    try:
        if status.st_mode & 0o500 != 0o500:
            _permit(parent, name, 0o500)
        descriptor = os.open(name, _DIR, dir_fd=parent)
    except OSError:
        return None
    try:
        return _Folder(descriptor, path + b"/")
    except OSError:
        os.close(descriptor)
        return None


def _permit(parent: int, name: bytes, bits: int) -> None:
    """Gives the owner, which is us, `bits` on an entry; a link is left alone.

    By a descriptor that only names it, since one that reads is just what its mode forbids.
    """
    descriptor = os.open(name, _NAME, dir_fd=parent)
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISLNK(mode):
            os.chmod(f"/proc/self/fd/{descriptor}", stat.S_IMODE(mode) | bits)
    finally:
        os.close(descriptor)


def read_file(folder: int, name: bytes) -> Iterator[bytes]:
    """The bytes of a regular file as they are now; OSError when it is none (any more) or cannot be read."""
    try:
        descriptor = os.open(name, _FILE, dir_fd=folder)
    except PermissionError:
        _permit(folder, name, 0o400)
        descriptor = os.open(name, _FILE, dir_fd=folder)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise FileNotFoundError(name)
        while block := os.read(descriptor, _BLOCK):
            yield block
    finally:
        os.close(descriptor)


def read_path(root: int, path: bytes) -> Iterator[bytes]:
    """The same for a path below the open folder `root`; a link on the way is an OSError."""
    *folders, name = path.split(b"/")
    at = os.dup(root)
    try:
        for folder in folders:
            inner = os.open(folder, _DIR, dir_fd=at)
            os.close(at)
            at = inner
        yield from read_file(at, name)
    finally:
        os.close(at)


def file_digest(node: Node) -> bytes:
    """sha256 of a regular file's bytes."""
    digest = hashlib.sha256()
    for block in read_file(node.folder, node.name):
        digest.update(block)
    return digest.digest()


def tree_entries(root: str) -> Iterator[TreeEntry]:
    """Every file and link below `root` but for repository data, as `tree_hash` wants them; OSError if unreadable."""
    for node in walk(root):
        if node.kind == "file":
            yield TreeEntry(node.path, EXEC if node.executable else FILE, file_digest(node))
        elif node.kind == "link":
            target = os.readlink(node.name, dir_fd=node.folder)
            yield TreeEntry(node.path, LINK, hashlib.sha256(target).digest())
        elif node.kind in ("special", "too_deep", "unreadable"):
            raise OSError(f"{node.kind} entry in a tree that was made from plain files")
