"""A disk that fails in whatever way is `Unavailable` to the caller, who may try again: never a defect."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from service import blobs as blobs_module
from service.blobs import DiskBlobs
from service.errors import Unavailable

KNOWN = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
"""Of `hello`."""


def failing(code: int) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(code, os.strerror(code))

    return fail


def write(store: DiskBlobs) -> None:
    store.put([b"hello"])


def scratch(store: DiskBlobs) -> None:
    with store.scratch() as file:
        file.write(b"hello")


CALLS: dict[str, tuple[str, Callable[[DiskBlobs], object]]] = {
    "making a file": ("blobs.os.open", scratch),
    "locking it": ("blobs.fcntl.flock", scratch),
    "syncing it": ("blobs.os.fsync", write),
    "naming it": ("blobs.Path.replace", write),
    "opening a blob": ("blobs.Path.open", lambda store: store.open(KNOWN)),
    "its size": ("blobs.Path.stat", lambda store: store.size(KNOWN)),
    "removing it": ("blobs.Path.unlink", lambda store: store.delete(KNOWN)),
}


@pytest.mark.parametrize("code", [errno.EROFS, errno.EIO, errno.EMFILE, errno.EACCES])
@pytest.mark.parametrize("name", CALLS)
def test_a_disk_that_fails_is_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, code: int
) -> None:
    store = DiskBlobs(tmp_path)
    target, call = CALLS[name]
    module, _, attribute = target.rpartition(".")
    owner = {"blobs.os": blobs_module.os, "blobs.fcntl": blobs_module.fcntl, "blobs.Path": Path}[module]
    with monkeypatch.context() as patch:
        patch.setattr(owner, attribute, failing(code))
        with pytest.raises(Unavailable) as caught:
            call(store)
    assert (caught.value.code, caught.value.status) == ("storage_unavailable", 503)
    assert os.strerror(code) in caught.value.detail


def test_what_cannot_be_tidied_does_not_hide_what_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = DiskBlobs(tmp_path)
    monkeypatch.setattr(blobs_module.os, "fsync", failing(errno.ENOSPC))
    monkeypatch.setattr(Path, "unlink", failing(errno.EROFS))
    with pytest.raises(Unavailable) as caught:
        store.put([b"hello"])
    assert caught.value.code == "storage_full"
