"""What a box answers when it cannot do what it was asked: a code of a closed table and one line of why."""

from __future__ import annotations

import errno
import os


class Failure(Exception):
    """An answer to the model. `code` is one of `FAILURES` of worker/sandbox/base.py."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message[:2_000]


_CODES = {
    errno.ENOENT: ("not_found", "no such file"),
    errno.ENOTDIR: ("not_directory", "a part of the path is not a directory"),
    errno.EISDIR: ("is_directory", "is a directory"),
    errno.EACCES: ("permission", "permission denied"),
    errno.EPERM: ("permission", "permission denied"),
    errno.EROFS: ("permission", "read-only file system"),
    errno.ETXTBSY: ("permission", "the program is running"),
    errno.ELOOP: ("link_loop", "too many links"),
    errno.ENAMETOOLONG: ("bad_path", "the name is too long"),
    errno.EEXIST: ("exists", "already exists"),
    errno.ENOSPC: ("no_space", "no space left in the sandbox"),
    errno.EDQUOT: ("no_space", "no space left in the sandbox"),
    errno.EFBIG: ("too_large", "larger than the sandbox's file size limit"),
    errno.ENXIO: ("not_regular", "not a regular file"),
    errno.ENODEV: ("not_regular", "not a regular file"),
}


def from_os_error(error: OSError, path: str) -> Failure:
    """The failure that says what the kernel said of `path`."""
    number = error.errno or 0
    code, text = _CODES.get(number, ("io_error", os.strerror(number) if number else "input/output error"))
    return Failure(code, f"{path}: {text}")
