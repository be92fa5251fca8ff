"""The only back-channel into a run: cancel, deadline, drain, and the lease that says the task is still ours.

A thread renews the lease and asks for signals every second, so that a cancel acts within two. What it
learns reaches the run in two ways: `check()` raises at the next step, and whatever blocks right now (a
command in the box, a model's answer) is interrupted through the callbacks of `interrupting`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import structlog

from service.contracts import ExitReason
from service.errors import LeaseLost, Stopped, Unavailable

log = structlog.get_logger()

POLL_S = 1.0
LEASE_S = 30.0
STOP_WRITING_S = 25.0
"""A worker whose renewal is this late stops writing, five seconds before its lease ends for others."""


class HandedBack(Stopped):
    """The task goes back to the queue: this worker is shutting down, or its engine is away."""


class Signals(Protocol):
    @property
    def cancel_requested(self) -> bool: ...


class Control:
    """Watches one run; use as a context manager around it.

    `renew` renews the lease and returns the signals; it raises LeaseLost when the task is no longer ours.
    `wall_time_s` is running time, counted from the start of the context.
    """

    def __init__(self, renew: Callable[[], Signals], *, wall_time_s: float, drain: threading.Event) -> None:
        self._renew = renew
        self._wall_time_s = wall_time_s
        self._drain = drain
        self._stopped: Exception | None = None
        self._callbacks: list[Callable[[], None]] = []
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="control", daemon=True)

    def __enter__(self) -> Control:
        self._started = self._renewed = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._done.set()
        self._thread.join(timeout=10)

    def remaining_s(self) -> float:
        """Seconds of running time left, never negative."""
        return max(0.0, self._started + self._wall_time_s - time.monotonic())

    def check(self) -> None:
        """Raises what stopped the run: Stopped (cancelled, wall_time), HandedBack or LeaseLost."""
        if self._stopped is None and self.remaining_s() == 0:
            self._stop(Stopped("the wall time limit is used up", exit_reason=ExitReason.WALL_TIME))
        if self._stopped is not None:
            raise self._stopped

    def check_lease(self) -> None:
        """Raises LeaseLost only: for what must still be done after a stop (salvaging the patch)."""
        if isinstance(self._stopped, LeaseLost):
            raise self._stopped

    @contextmanager
    def interrupting(self, callback: Callable[[], None]) -> Iterator[None]:
        """While inside, a stop calls `callback` (from the control thread) to end what blocks."""
        with self._lock:
            self._callbacks.append(callback)
        try:
            if self._stopped is not None:
                callback()
            yield
        finally:
            with self._lock:
                self._callbacks.remove(callback)

    def _stop(self, reason: Exception) -> None:
        with self._lock:
            # A lost lease overrules everything: after it nothing may be written, not even a cancellation.
            if self._stopped is None or isinstance(reason, LeaseLost):
                self._stopped = reason
            callbacks = list(self._callbacks)
        for callback in callbacks:
            callback()

    def _watch(self) -> None:
        while not self._done.wait(POLL_S):
            reason = self._look()
            if reason is not None:
                self._stop(reason)
                if isinstance(reason, LeaseLost):
                    return

    def _look(self) -> Exception | None:
        try:
            signals = self._renew()
        except LeaseLost as lost:
            return lost
        except Unavailable:
            late = time.monotonic() - self._renewed
            log.warning("lease_renewal_failed", late_s=round(late, 1))
            return LeaseLost("the store has not answered in time to keep the lease") if late > STOP_WRITING_S else None
        self._renewed = time.monotonic()
        if self._stopped is not None:
            return None
        if signals.cancel_requested:
            return Stopped("cancelled on request")
        if self._drain.is_set():
            return HandedBack("this worker is shutting down")
        if self.remaining_s() == 0:
            return Stopped("the wall time limit is used up", exit_reason=ExitReason.WALL_TIME)
        return None
