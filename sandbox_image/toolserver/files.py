"""File tools answered inside the server: read, write, edit.

Writes go into the file that is there: inode, mode, owner, links and hard links stay. A file that nobody may write
(mode 444) is refused as `permission`; the model can `chmod` it if it means to.
"""

from __future__ import annotations

import os
import stat

from sandbox_image.toolserver.edits import replace
from sandbox_image.toolserver.failures import Failure, from_os_error
from sandbox_image.toolserver.paths import Paths, Place

MAX_READ = 64 << 20
MAX_EDIT = 16 << 20
_OPEN = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
"""Not blocking: a FIFO put there between look and open must not hold the server."""


def stamp(found: os.stat_result) -> str:
    """Identity of one version of a file."""
    return f"{found.st_size}-{found.st_mtime_ns}-{found.st_ctime_ns}-{found.st_ino}"


def read(paths: Paths, path: str, limit: int) -> tuple[bytes, dict[str, object]]:
    """At most `limit` bytes from the start, and size, mode and stamp of the whole."""
    with paths.resolve(path) as place:
        fd, found = _open(place, path, os.O_RDONLY)
        try:
            data = _read_all(fd, min(limit, MAX_READ, found.st_size))
        except OSError as error:
            raise from_os_error(error, path) from error
        finally:
            os.close(fd)
    return data, {"size": found.st_size, "mode": stat.S_IMODE(found.st_mode), "stamp": stamp(found)}


def write(paths: Paths, path: str, data: bytes, overwrite: bool) -> dict[str, object]:
    """Puts `data` in place of what the file holds; a new one gets mode 0644 and its missing parents 0755."""
    with paths.resolve(path, make_parents=True) as place:
        if place.found is None:
            return _create(place, path, data)
        if not overwrite and stat.S_ISREG(place.found.st_mode) and place.found.st_size > 0:
            raise Failure("exists", f"{path}: exists and is not empty")
        fd, found = _open(place, path, os.O_WRONLY)
        try:
            after = _overwrite(fd, path, data, found.st_size)
        finally:
            os.close(fd)
    return {"created": False, "size": len(data), "stamp": stamp(after)}


def edit(paths: Paths, path: str, old: bytes, new: bytes, replace_all: bool) -> dict[str, object]:
    """Replaces `old` by `new` (see `edits.replace`) in place."""
    if not old:
        raise Failure("empty_old", "the text to replace is empty")
    if old == new:
        raise Failure("no_change", "old and new text are the same")
    with paths.resolve(path) as place:
        fd, found = _open(place, path, os.O_RDWR)
        try:
            if found.st_size > MAX_EDIT:
                raise Failure("too_large", f"{path}: {found.st_size} bytes; files up to {MAX_EDIT} can be edited")
            before = _read_all(fd, found.st_size)
            after, count = replace(before, old, new, path, replace_all)
            os.lseek(fd, 0, os.SEEK_SET)
            result = _overwrite(fd, path, after, found.st_size)
        except OSError as error:
            raise from_os_error(error, path) from error
        finally:
            os.close(fd)
    return {"replacements": count, "stamp": stamp(result)}


def _open(place: Place, path: str, flags: int) -> tuple[int, os.stat_result]:
    """An open regular file; devices, FIFOs and sockets are refused unopened."""
    if place.found is None:
        raise Failure("not_found", f"{path}: no such file")
    _check_regular(place.found, path)
    if flags != os.O_RDONLY and not place.found.st_mode & 0o222:
        raise Failure("permission", f"{path}: is read-only (mode {stat.S_IMODE(place.found.st_mode):o})")
    try:
        fd = os.open(place.name, flags | _OPEN, dir_fd=place.parent)
    except OSError as error:
        raise from_os_error(error, path) from error
    found = os.fstat(fd)
    try:
        _check_regular(found, path)
    except Failure:
        os.close(fd)
        raise
    return fd, found


def _check_regular(found: os.stat_result, path: str) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise Failure("is_directory", f"{path}: is a directory")
    if not stat.S_ISREG(found.st_mode):
        raise Failure("not_regular", f"{path}: not a regular file")


def _create(place: Place, path: str, data: bytes) -> dict[str, object]:
    try:
        fd = os.open(place.name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OPEN, 0o644, dir_fd=place.parent)
    except OSError as error:
        raise from_os_error(error, path) from error
    try:
        after = _overwrite(fd, path, data, 0)
    except Failure:
        os.unlink(place.name, dir_fd=place.parent)
        raise
    finally:
        os.close(fd)
    return {"created": True, "size": len(data), "stamp": stamp(after)}


def _overwrite(fd: int, path: str, data: bytes, size: int) -> os.stat_result:
    """Room is made before the first old byte goes, so a full disk leaves the file as it was."""
    try:
        if len(data) > size:
            try:
                os.posix_fallocate(fd, size, len(data) - size)
            except OSError:
                os.ftruncate(fd, size)
                raise
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.ftruncate(fd, len(data))
        return os.fstat(fd)
    except OSError as error:
        raise from_os_error(error, path) from error


def _read_all(fd: int, size: int) -> bytes:
    pieces = []
    while size > 0 and (piece := os.read(fd, size)):
        pieces.append(piece)
        size -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
