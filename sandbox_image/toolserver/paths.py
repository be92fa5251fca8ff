"""Paths that a model names, resolved step by step inside the roots of the box.

No step is left to the kernel's own link following: each directory is opened from its parent with O_NOFOLLOW, each
link is read and its target walked the same way, so nothing that changes meanwhile leads outside. `Failure` codes:
bad_path, outside, not_found, not_directory, link_loop, permission.
"""

from __future__ import annotations

import errno
import os
import stat
import unicodedata
from contextlib import suppress
from types import TracebackType
from typing import NamedTuple

from sandbox_image.toolserver.failures import Failure, from_os_error

WORKSPACE = b"/workspace"
MAX_PATH = 4_096
MAX_NAME = 255
MAX_DEPTH = 200
"""Each level holds one descriptor; the box's limit on those is 1,024."""
MAX_LINKS = 40
_DIR = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Root(NamedTuple):
    name: bytes
    """What it is called towards the worker: /workspace, /home/agent, /tmp."""
    folder: bytes
    """Where it is. The same, except where tests run the server on folders of their own."""
    fd: int


class Place:
    """A resolved path: an open parent directory and a name in it. Close it, or use it in a `with`."""

    def __init__(self, root: Root, names: list[bytes], fds: list[int], found: os.stat_result | None) -> None:
        self._fds = fds
        self.parent = fds[-1] if fds else root.fd
        self.name = names[-1] if names else b"."
        """`b"."` for a root itself."""
        self.found = found
        """What is there, never a link; None when nothing is."""
        if root.name == WORKSPACE:
            self.shown = b"/".join(names) or b"."
        else:
            self.shown = b"/".join((root.name, *names))
        """As the model is told: relative to the workspace, or absolute elsewhere."""

    def __enter__(self) -> Place:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for fd in self._fds:
            os.close(fd)


class Paths:
    """The roots of a box; the first one is the workspace, where relative paths start."""

    def __init__(self, roots: list[tuple[bytes, bytes]]) -> None:
        self.roots = [
            Root(name, os.path.realpath(folder), os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
            for name, folder in roots
        ]
        self.workspace = self.roots[0]
        prefixes = {r.name: r for r in self.roots} | {r.folder: r for r in self.roots}
        self._prefixes = sorted(prefixes.items(), key=lambda item: -len(item[0]))

    def keep_open(self) -> None:
        """Undoes a command's `chmod` of a root itself, which would close it to every tool that could repair it."""
        for root in self.roots:
            with suppress(OSError):  # not ours, like /tmp: then nobody in the box could close it either
                mode = os.fstat(root.fd).st_mode
                if mode & stat.S_IRWXU != stat.S_IRWXU:
                    os.chmod(root.folder, stat.S_IMODE(mode) | stat.S_IRWXU)

    def folder(self, name: bytes) -> bytes:
        """Where the root of this name is."""
        return next(root.folder for root in self.roots if root.name == name)

    def real(self, path: bytes) -> bytes:
        """Where an absolute path that the worker names is for the kernel; unchanged outside the roots."""
        for root in self.roots:
            if path == root.name or path.startswith(root.name + b"/"):
                return root.folder + path[len(root.name) :]
        return path

    def named(self, path: bytes) -> bytes:
        """The other way: what the worker calls a path that the kernel gave."""
        for root in self.roots:
            if path == root.folder or path.startswith(root.folder + b"/"):
                return root.name + path[len(root.folder) :]
        return path

    def resolve(self, path: str, *, make_parents: bool = False) -> Place:
        """The place `path` leads to through any links; all but the last part must exist or are made."""
        walk = _Walk(self, path, make_parents)
        try:
            return walk.run()
        except OSError as error:
            walk.close()
            raise from_os_error(error, path) from error
        except BaseException:
            walk.close()
            raise

    def enter(self, path: bytes, shown: str) -> tuple[Root, list[bytes]]:
        """The root an absolute path lies in and its parts below, unresolved; Failure `outside` for any other."""
        parts = [part for part in path.split(b"/") if part not in (b"", b".")]
        while parts and parts[0] == b"..":
            del parts[0]  # the parent of / is /
        clean = b"/" + b"/".join(parts)
        for prefix, root in self._prefixes:
            if clean == prefix or clean.startswith(prefix + b"/"):
                return root, [part for part in clean[len(prefix) :].split(b"/") if part]
        raise Failure("outside", f"{shown}: outside the workspace")


def encode_path(path: str) -> bytes:
    """The bytes of a path; Failure `bad_path` for what no file can be called."""
    try:
        raw = os.fsencode(path)
    except UnicodeEncodeError as error:
        raise Failure("bad_path", "the path is not valid text") from error
    if not raw:
        raise Failure("bad_path", "the path is empty")
    if b"\0" in raw:
        raise Failure("bad_path", "the path holds a NUL byte")
    if len(raw) > MAX_PATH:
        raise Failure("bad_path", f"the path is longer than {MAX_PATH} bytes")
    if any(len(part) > MAX_NAME for part in raw.split(b"/")):
        raise Failure("bad_path", f"a name in the path is longer than {MAX_NAME} bytes")
    return raw


class _Walk:
    def __init__(self, paths: Paths, path: str, make_parents: bool) -> None:
        raw = encode_path(path)
        self._paths = paths
        self._shown = path
        self._make = make_parents
        self._links = 0
        self._fds: list[int] = []
        self._names: list[bytes] = []
        if raw.startswith(b"/"):
            self._root, todo = paths.enter(raw, path)
        else:
            self._root, todo = paths.workspace, _parts(raw)
        self._todo = todo[::-1]
        self._must_be_dir = raw.endswith((b"/", b"/."))

    def close(self) -> None:
        for fd in self._fds:
            os.close(fd)
        self._fds.clear()

    def run(self) -> Place:
        while self._todo:
            part = self._todo.pop()
            if part == b"..":
                self._up()
                continue
            if len(self._names) >= MAX_DEPTH:
                raise Failure("bad_path", f"{self._shown}: more than {MAX_DEPTH} levels deep")
            if self._todo:
                self._down(part)
            elif (found := self._last(part)) is not _LINK:
                self._names.append(self._folded)
                return self._place(found)
        # A root itself, or a directory that was reached by `..` or by a link to one.
        found = os.fstat(self._fds[-1] if self._fds else self._root.fd)
        if self._fds:
            os.close(self._fds.pop())
        return self._place(found)

    def _place(self, found: os.stat_result | None) -> Place:
        if self._must_be_dir and (found is None or not stat.S_ISDIR(found.st_mode)):
            if found is None:
                raise Failure("not_found", f"{self._shown}: no such directory")
            raise Failure("not_directory", f"{self._shown}: not a directory")
        return Place(self._root, self._names, self._fds, found)

    def _parent(self) -> int:
        return self._fds[-1] if self._fds else self._root.fd

    def _up(self) -> None:
        if self._names:
            self._names.pop()
            os.close(self._fds.pop())
            return
        above = self._root.name.rpartition(b"/")[0]
        self._restart(b"/".join((above, *self._todo[::-1])))

    def _restart(self, path: bytes) -> None:
        self._root, todo = self._paths.enter(b"/" + path, self._shown)
        self.close()
        self._names.clear()
        self._todo = todo[::-1]

    def _down(self, part: bytes) -> None:
        try:
            fd = os.open(part, _DIR, dir_fd=self._parent())
        except FileNotFoundError:
            folded = fold(self._parent(), part)
            if folded is not None:
                part = folded
            elif self._make:
                os.mkdir(part, 0o755, dir_fd=self._parent())
            else:
                raise
            fd = os.open(part, _DIR, dir_fd=self._parent())
        except OSError as error:
            if error.errno in (errno.ENOTDIR, errno.ELOOP) and self._follow(part):
                return
            raise
        self._fds.append(fd)
        self._names.append(part)

    def _last(self, part: bytes) -> os.stat_result | None:
        """What stands at the end of the path; `_LINK` when it was a link, which then lies ahead again."""
        self._folded = part
        try:
            found = os.stat(part, dir_fd=self._parent(), follow_symlinks=False)
        except FileNotFoundError:
            folded = fold(self._parent(), part)
            if folded is None:
                return None
            self._folded = folded
            found = os.stat(folded, dir_fd=self._parent(), follow_symlinks=False)
        if stat.S_ISLNK(found.st_mode) and self._follow(self._folded):
            return _LINK
        return found

    def _follow(self, part: bytes) -> bool:
        """Puts the target of the link `part` ahead; False when it is no link."""
        try:
            target = os.readlink(part, dir_fd=self._parent())
        except OSError as error:
            if error.errno == errno.EINVAL:
                return False
            raise
        self._links += 1
        if self._links > MAX_LINKS:
            raise Failure("link_loop", f"{self._shown}: too many links")
        if target.startswith(b"/"):
            self._restart(b"/".join((target, *self._todo[::-1])))
        else:
            self._todo += _parts(target)[::-1]
        return True


_LINK = os.stat_result(range(10))
"""Marks "that was a link, go on"; never looked into."""


def _parts(path: bytes) -> list[bytes]:
    return [part for part in path.split(b"/") if part not in (b"", b".")]


def fold(directory: int, name: bytes) -> bytes | None:
    """The one entry of a directory that is `name` in another Unicode normal form (é as one or as two code points)."""
    if name.isascii():
        return None
    wanted = _normal(name)
    try:
        listing = os.open(b".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory)
    except OSError:
        return None
    try:
        same = [entry for entry in map(os.fsencode, os.listdir(listing)) if _normal(entry) == wanted]
    finally:
        os.close(listing)
    return same[0] if len(same) == 1 else None


def _normal(name: bytes) -> str:
    return unicodedata.normalize("NFC", os.fsdecode(name))
