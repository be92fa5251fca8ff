"""Blobs by sha256: archives, patches and artifacts behind one small interface.

Layout of `DiskBlobs(folder)`, everything mode 0700/0600:

    <folder>/ab/abcdef…     a blob, named by the sha256 of its bytes
    <folder>/tmp/…          a file being written, locked by its writer

A blob appears at once and whole (fsync, then rename), or not at all. Errors: `NotFound` code `blob_missing`;
`Unavailable` code `storage_full` when the disk has no room, `storage_unavailable` when it fails in another way.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import secrets
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from service.errors import NotFound, Unavailable

_SHA256 = re.compile(r"[0-9a-f]{64}")
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_RETRY_LATER_S = 60


@dataclass(frozen=True, slots=True)
class BlobRef:
    sha256: str
    size: int


class BlobWriter(Protocol):
    """A file being written: appends, hashes as it goes, and can be read back at any place."""

    @property
    def ref(self) -> BlobRef:
        """Name and size of what has been written so far."""
        ...

    def write(self, data: bytes, /) -> int:
        """Appends all of `data`, wherever the last read was."""
        ...

    def seek(self, offset: int, whence: int = 0, /) -> int: ...

    def read(self, size: int = -1, /) -> bytes: ...


class Blobs(Protocol):
    def put(self, chunks: Iterable[bytes]) -> BlobRef:
        """Stores the joined chunks; the same bytes twice are one blob."""
        ...

    def writer(self) -> AbstractContextManager[BlobWriter]:
        """Becomes a blob when the block ends well, and nothing when it raises."""
        ...

    def scratch(self) -> AbstractContextManager[BlobWriter]:
        """The same kind of file, gone when the block ends."""
        ...

    def open(self, sha256: str) -> BinaryIO:
        """The blob's bytes, seekable; the caller closes it."""
        ...

    def size(self, sha256: str) -> int: ...

    def delete(self, sha256: str) -> None:
        """Idempotent; who has the blob open keeps reading it."""
        ...


@contextmanager
def _disk() -> Iterator[None]:
    """What the disk refuses is not the caller's doing: it may try again."""
    try:
        yield
    except OSError as error:
        full = error.errno in _FULL
        raise Unavailable(
            "the disk of the service is full; try again later"
            if full
            else f"the disk of the service fails ({error.strerror}); try again later",
            code="storage_full" if full else "storage_unavailable",
            retry_after_s=_RETRY_LATER_S,
        ) from error


class _TempFile:
    """A locked file in the temp folder, appended to and hashed."""

    def __init__(self, folder: Path) -> None:
        self._path, descriptor = _create_locked(folder)
        self._file = os.fdopen(descriptor, "w+b", buffering=1 << 17)
        self._hash = hashlib.sha256()
        self._size = 0
        self._at_end = True

    @property
    def ref(self) -> BlobRef:
        return BlobRef(self._hash.hexdigest(), self._size)

    def write(self, data: bytes, /) -> int:
        with _disk():
            if not self._at_end:
                self._file.seek(0, os.SEEK_END)
                self._at_end = True
            self._file.write(data)
        self._hash.update(data)
        self._size += len(data)
        return len(data)

    def seek(self, offset: int, whence: int = 0, /) -> int:
        self._at_end = False
        with _disk():
            return self._file.seek(offset, whence)

    def read(self, size: int = -1, /) -> bytes:
        self._at_end = False
        with _disk():
            return self._file.read(size)

    def keep(self, target: Path) -> None:
        """Moves the file, whole and durable, to its name."""
        with _disk():
            self._file.flush()
            os.fsync(self._file.fileno())
            target.parent.mkdir(mode=0o700, exist_ok=True)
            # An older copy of another size was torn by a power cut before it was durable: replace it.
            if not (target.exists() and target.stat().st_size == self._size):
                self._path.replace(target)
                _sync_folder(target.parent)

    def discard(self) -> None:
        """Closes the file and removes its temporary name; idempotent."""
        # Closing flushes, which on a full disk fails again, for bytes that nobody wants any more. A name that cannot
        # be removed now is removed by the next start.
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self._file.close()


def _create_locked(folder: Path) -> tuple[Path, int]:
    while True:
        path = folder / secrets.token_hex(16)
        with _disk():
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        # Between the two calls a starting process may have taken the file for a dead writer's.
        if path.exists():
            return path, descriptor
        os.close(descriptor)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class DiskBlobs:
    """Blobs as plain files; several processes may share the folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._temp = folder / "tmp"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._temp.mkdir(mode=0o700, exist_ok=True)
        self._remove_dead()

    def put(self, chunks: Iterable[bytes]) -> BlobRef:
        with self.writer() as writer:
            for chunk in chunks:
                writer.write(chunk)
        return writer.ref

    @contextmanager
    def writer(self) -> Iterator[BlobWriter]:
        temp = _TempFile(self._temp)
        try:
            yield temp
            temp.keep(self._path(temp.ref.sha256))
        finally:
            temp.discard()

    @contextmanager
    def scratch(self) -> Iterator[BlobWriter]:
        temp = _TempFile(self._temp)
        try:
            yield temp
        finally:
            temp.discard()

    def open(self, sha256: str) -> BinaryIO:
        with _disk():
            try:
                return self._path(sha256).open("rb")
            except FileNotFoundError:
                raise _missing(sha256) from None

    def size(self, sha256: str) -> int:
        with _disk():
            try:
                return self._path(sha256).stat().st_size
            except FileNotFoundError:
                raise _missing(sha256) from None

    def delete(self, sha256: str) -> None:
        with _disk():
            self._path(sha256).unlink(missing_ok=True)

    def _path(self, sha256: str) -> Path:
        if not _SHA256.fullmatch(sha256):
            raise _missing(sha256)
        return self._folder / sha256[:2] / sha256

    def _remove_dead(self) -> None:
        """Removes what writers that no longer live have left: nobody holds the lock of such a file."""
        for path in self._temp.iterdir():
            try:
                with path.open("rb") as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.unlink(missing_ok=True)
            except (BlockingIOError, FileNotFoundError):
                continue


def _missing(sha256: str) -> NotFound:
    return NotFound(f"blob {sha256[:64]!r} is not stored", code="blob_missing")
