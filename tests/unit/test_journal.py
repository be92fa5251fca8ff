"""A run's writes wait while the store is away, and no longer than its lease."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from service.blobs import BlobRef
from service.errors import LeaseLost, Unavailable
from service.events import ArtifactStored, Notice
from service.store import Lease
from worker import journal as journal_module
from worker.journal import Journal, patiently

LEASE = Lease(task_id="task_x", run=1, fence=1, worker="w")
AWAY = Unavailable("the store does not answer")


class Store:
    """Takes writes after it was away `away` times."""

    def __init__(self, away: int) -> None:
        self.away = away
        self.written: list[tuple[Any, ...]] = []

    def _write(self, *what: Any) -> int:
        if self.away:
            self.away -= 1
            raise AWAY
        self.written.append(what)
        return len(self.written)

    def append(self, lease: Lease, event: Any) -> int:
        return self._write("append", lease, event)

    def update(self, lease: Lease, **fields: Any) -> None:
        self._write("update", lease, fields)

    def add_artifact(self, lease: Lease, name: str, sha256: str, size: int) -> None:
        self._write("artifact", lease, name, sha256, size)


class Blobs:
    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    def put(self, chunks: Any) -> BlobRef:
        if self.error is not None:
            raise self.error
        return BlobRef("a" * 64, len(b"".join(chunks)))


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    slept: list[float] = []
    monkeypatch.setattr(journal_module.time, "sleep", slept.append)
    return slept


def journal(store: Store, *, blobs: Blobs | None = None, check: Callable[[], None] = lambda: None) -> Journal:
    return Journal(store, blobs or Blobs(), LEASE, check)  # type: ignore[arg-type]


def test_each_write_is_made_once_when_the_store_is_back(pauses: list[float]) -> None:
    store, notice = Store(away=2), Notice("code", "text")
    kept = journal(store)
    kept.append(notice)
    store.away = 1
    kept.update(phase="agent")
    store.away = 1
    kept.add_artifact("a.txt", [b"hello"])
    assert store.written == [
        ("append", LEASE, notice),
        ("update", LEASE, {"phase": "agent"}),
        ("artifact", LEASE, "a.txt", "a" * 64, 5),
        ("append", LEASE, ArtifactStored("a.txt", 5)),
    ]
    assert pauses == [0.5] * 4


def test_it_ends_with_the_lease() -> None:
    asked: list[int] = []

    def check() -> None:
        asked.append(1)
        if len(asked) == 3:
            raise LeaseLost("late")

    store = Store(away=99)
    with pytest.raises(LeaseLost):
        journal(store, check=check).append(Notice("code", "text"))
    assert (store.written, len(asked)) == ([], 3)


def test_a_full_disk_is_not_waited_for(pauses: list[float]) -> None:
    store = Store(away=0)
    full = Unavailable("the disk is full", code="storage_full")
    with pytest.raises(Unavailable) as caught:
        journal(store, blobs=Blobs(full)).add_artifact("a.txt", [b"hello"])
    assert (caught.value, store.written, pauses) == (full, [], [])


def test_another_error_is_not_tried_again() -> None:
    def defect() -> None:
        raise ValueError("ours")

    with pytest.raises(ValueError, match="ours"):
        patiently(lambda: None, defect)
