"""The store's side of a run: every write bears its lease, and waits while the store is away.

A store that restarts, or is out of memory for a moment, ends no run: what it cannot do now is asked again until
Control finds the lease lost. A write whose answer was lost may have been done. Then an event stands twice, each with
its own number, and an end that is already written is found as a lost lease.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeVar

import structlog

from service.blobs import Blobs
from service.errors import Unavailable
from service.events import ArtifactStored, Event
from service.store import Lease, Store

T = TypeVar("T")

AGAIN_S = 0.5

log = structlog.get_logger()


def patiently(check: Callable[[], None], call: Callable[[], T]) -> T:
    """What `call` returns, asked again while the store is away; `check` raises when that has lasted too long."""
    while True:
        try:
            return call()
        except Unavailable as error:
            log.warning("store_away", reason=error.detail)
            check()
            time.sleep(AGAIN_S)


class Journal:
    """What a run writes; `check` raises LeaseLost when the task is no longer ours."""

    def __init__(self, store: Store, blobs: Blobs, lease: Lease, check: Callable[[], None]) -> None:
        self._store = store
        self._blobs = blobs
        self._lease = lease
        self._check = check

    def append(self, event: Event) -> None:
        patiently(self._check, partial(self._store.append, self._lease, event))

    def update(self, **fields: Any) -> None:
        patiently(self._check, partial(self._store.update, self._lease, **fields))

    def add_artifact(self, name: str, chunks: Iterable[bytes]) -> None:
        """Unavailable where the disk takes no more: waiting would not make room."""
        ref = self._blobs.put(chunks)
        patiently(self._check, partial(self._store.add_artifact, self._lease, name, ref.sha256, ref.size))
        self.append(ArtifactStored(name, ref.size))
