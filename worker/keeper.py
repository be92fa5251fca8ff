"""The keeper, one per worker host: says what the host can serve, and tidies up behind workers that were killed.

Every 5 s it tells the store that it lives and how its engine is; every 10 s it publishes the catalogue, sweeps
lost leases and rings bells for waiting tasks; every 15 s it removes containers nobody holds. While the engine is
away it rings no bell, so queued tasks wait instead of failing.
"""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime

import structlog

from service.contracts import Catalogue
from service.errors import SandboxError, Unavailable
from worker.parts import Parts
from worker.sandbox.docker import EngineHealth, engine_client, engine_health
from worker.sandbox.reaper import reap

HEARTBEAT_S = 5.0
SWEEP_S = 10.0
REAP_S = 15.0
_ENGINE_TIMEOUT_S = 20.0

log = structlog.get_logger()


class Keeper:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._swept = self._reaped = float("-inf")

    def run(self, stop: threading.Event) -> None:
        """Works until `stop` is set, then removes what is left of our containers."""
        while not stop.is_set():
            self.round(time.monotonic())
            stop.wait(HEARTBEAT_S)
        self.reap()

    def round(self, now: float) -> None:
        """One heartbeat, with whatever else is due at `now`; a store or engine that is away is waited for."""
        settings = self._parts.settings
        health = engine_health(settings.docker_url, runtime=settings.sandbox_runtime, image=settings.sandbox_image)
        try:
            self._parts.store.heartbeat_keeper(
                settings.worker_host, {"ok": health.ok, "engine": health.engine, "workers": settings.workers}
            )
            if now - self._swept >= SWEEP_S:
                self._parts.store.publish_catalogue(self.catalogue(health))
                self.sweep(health)
                self._swept = now
        except Unavailable as error:
            log.warning("store_away", reason=error.detail)
            return
        if health.ok and now - self._reaped >= REAP_S:
            self.reap()
            self._reaped = now

    def catalogue(self, health: EngineHealth) -> Catalogue:
        settings = self._parts.settings
        return Catalogue(
            host=settings.worker_host,
            models=tuple(profile.card() for profile in self._parts.profiles.values()),
            images=(settings.sandbox_image,),
            maxima=settings.maxima,
            engine_ok=health.ok,
            engine=health.engine,
            workers=settings.workers,
            at=datetime.now(UTC),
        )

    def sweep(self, health: EngineHealth) -> None:
        """Gives the tasks of lost workers back to the queue, and rings for what waits if a box could be opened."""
        doorbell = self._parts.doorbell
        report = self._parts.store.sweep(bells_out=doorbell.bells_out())
        if report.queued or report.failed or report.cancelled:
            log.info("swept", queued=report.queued, failed=report.failed, cancelled=report.cancelled)
        if report.bells and health.ok:
            doorbell.ring(report.bells)

    def reap(self) -> None:
        """Removes this deployment's containers whose run holds no lease."""
        settings = self._parts.settings
        try:
            client = engine_client(settings.docker_url, _ENGINE_TIMEOUT_S)
            try:
                removed = reap(client, settings.deployment, self._parts.store.holds)
            finally:
                client.close()
        except (SandboxError, Unavailable) as error:
            log.warning("reap_failed", reason=error.detail)
            return
        if removed:
            log.info("reaped", containers=removed)
