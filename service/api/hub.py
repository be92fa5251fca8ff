"""One reader of the store for every viewer of this process.

A thread blocks in `Store.wait_events` for all watched tasks at once and hands the records to their viewers; with no
viewer it sleeps. The hub promises no completeness: a viewer checks that the records continue its own sequence and
reads the store where they do not, so a slow or late viewer loses nothing and holds nothing up.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from service import telemetry
from service.errors import RequestError, Unavailable
from service.store import EventRecord, Store

BLOCK_MS = 200
"""How long one read may block; a viewer that joins meanwhile is heard after it."""
MAX_HELD = 1_000
"""Records a viewer may leave unread; beyond, it reads the store."""
PAUSE_S = 1.0
"""Between tries while the store does not answer."""

log = telemetry.logger("api.hub")


class Viewer:
    """The live end of one task's events, for one coroutine."""

    def __init__(self, loop: asyncio.AbstractEventLoop, after: int) -> None:
        self._loop = loop
        self._records: list[EventRecord] = []
        self._news = asyncio.Event()
        self.after = after
        self.closed = False

    async def next(self, timeout_s: float) -> list[EventRecord]:
        """The records that came since the last call; empty after `timeout_s`, or when the hub closes."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._news.wait()
        except TimeoutError:
            return []
        records, self._records = self._records, []
        if not self.closed:
            self._news.clear()
        return records

    def offer(self, records: Sequence[EventRecord]) -> None:
        """Hands records over from the hub's thread."""
        self._loop.call_soon_threadsafe(self._take, list(records))

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._end)

    def _take(self, records: list[EventRecord]) -> None:
        held = self._records + records
        self._records = held[-MAX_HELD:]  # what falls off the front shows as a break in the sequence
        self._news.set()

    def _end(self) -> None:
        self.closed = True
        self._news.set()


class EventHub:
    """Viewers by task, and the thread that reads for them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._watched: dict[str, set[Viewer]] = {}
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="event-hub", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Ends every viewer and the thread; safe from a signal handler's turn of the loop, and twice."""
        self._closing.set()
        self._end_viewers()

    def _end_viewers(self) -> None:
        with self._changed:
            viewers = [viewer for watched in self._watched.values() for viewer in watched]
            self._changed.notify_all()
        for viewer in viewers:
            viewer.close()

    def join(self) -> None:
        """Waits until the thread has let go of the store."""
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    @contextmanager
    def watch(self, task_id: str, after: int) -> Iterator[Viewer]:
        """A viewer of what comes after `after`."""
        viewer = Viewer(asyncio.get_running_loop(), after)
        with self._changed:
            self._watched.setdefault(task_id, set()).add(viewer)
            self._changed.notify_all()
        if self._closing.is_set():
            viewer.close()
        try:
            yield viewer
        finally:
            with self._changed:
                viewers = self._watched[task_id]
                viewers.discard(viewer)
                if not viewers:
                    del self._watched[task_id]

    def _positions(self) -> dict[str, int]:
        with self._changed:
            while not self._watched and not self._closing.is_set():
                self._changed.wait()
            return {task: min(viewer.after for viewer in viewers) for task, viewers in self._watched.items()}

    def _run(self) -> None:
        while not self._closing.is_set():
            positions = self._positions()
            if not positions:
                continue
            try:
                found = self._store.wait_events(positions, BLOCK_MS)
            except Unavailable:
                log.warning("store_unavailable")
                self._closing.wait(PAUSE_S)
                continue
            except RequestError:
                # One task's archive cannot be read. All streams end here and begin again, where its own one fails.
                log.exception("events_unreadable")
                self._end_viewers()
                continue
            with self._changed:
                for task, records in found.items():
                    for viewer in self._watched.get(task, ()):
                        fresh = [record for record in records if record.seq > viewer.after]
                        if fresh:
                            viewer.after = fresh[-1].seq
                            viewer.offer(fresh)
