"""The processes of a worker host: `python -m worker.main` supervises RQ workers and one keeper.

    python -m worker.main           N workers and the keeper, each a process that is started again when it dies
    python -m worker.main work      one worker: answers bells, each in a forked child
    python -m worker.main keep      the keeper

On SIGTERM or Ctrl-C the workers hand their running tasks back to the queue, then the keeper removes what is left.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from functools import partial
from types import FrameType

import structlog
from pydantic import ValidationError

from service.contracts import new_id
from service.errors import PatchyardError, Unavailable
from service.process import die_with_parent
from service.queue import DoorbellWorker
from service.store import Store
from service.telemetry import configure_logging
from worker import job
from worker.keeper import HEARTBEAT_S, Keeper
from worker.llm.connection import connect, warm
from worker.llm.profiles import ProfileError
from worker.parts import Parts, build_parts
from worker.settings import WorkerSettings

STOP_S = 30.0
"""How long workers may take to hand their tasks back before they are killed; the sweeper does it then."""
RESTART_S = 2.0

log = structlog.get_logger()


class Supervisor:
    """Keeps the processes alive and tells the store of the workers that are."""

    def __init__(self, parts: Parts) -> None:
        self._settings = parts.settings
        self._store: Store = parts.store
        self._keeper: subprocess.Popen[bytes] | None = None
        self._workers: dict[str, subprocess.Popen[bytes]] = {}
        self._stop = threading.Event()

    def run(self) -> int:
        for sign in (signal.SIGTERM, signal.SIGINT):
            signal.signal(sign, self._on_signal)
        beat = float("-inf")
        try:
            while not self._stop.is_set():
                self._start_missing()
                if time.monotonic() - beat >= HEARTBEAT_S:
                    self._heartbeat()
                    beat = time.monotonic()
                self._stop.wait(RESTART_S)
        finally:
            self._shut_down()
        return 0

    def _on_signal(self, _sign: int, _frame: FrameType | None) -> None:
        self._stop.set()

    def _start_missing(self) -> None:
        for name, process in list(self._workers.items()):
            if process.poll() is not None:
                log.error("worker_died", worker=name, exit_code=process.returncode)
                self._forget(name)
        while len(self._workers) < self._settings.workers:
            name = f"{self._settings.worker_host}-{new_id('key')[-10:]}"
            self._workers[name] = _spawn("work", "--name", name)
        if self._keeper is None or self._keeper.poll() is not None:
            self._keeper = _spawn("keep")

    def _heartbeat(self) -> None:
        try:
            for name in self._workers:
                self._store.heartbeat_worker(name)
        except Unavailable as error:
            log.warning("store_away", reason=error.detail)

    def _forget(self, name: str) -> None:
        del self._workers[name]
        try:
            self._store.remove_worker(name)
        except Unavailable as error:
            log.warning("store_away", reason=error.detail)

    def _shut_down(self) -> None:
        for process in self._workers.values():
            process.terminate()
        deadline = time.monotonic() + STOP_S
        for name, process in list(self._workers.items()):
            _wait(process, deadline)
            self._forget(name)
        if self._keeper is not None:
            self._keeper.terminate()
            _wait(self._keeper, time.monotonic() + STOP_S)


def _spawn(*arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "worker.main", *arguments],
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is for the supervisor, which stops the others in order
        preexec_fn=partial(die_with_parent, os.getpid()),
    )


def _wait(process: subprocess.Popen[bytes], deadline: float) -> None:
    try:
        process.wait(max(0.1, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def work(parts: Parts, name: str) -> int:
    """Answers bells until SIGTERM. Everything a run needs is imported and built before the first fork."""
    clients = {profile.name: connect(profile) for profile in parts.profiles.values()}
    for profile in parts.profiles.values():
        warm(profile)
    job.warm(replace(parts, clients=clients))
    DoorbellWorker.over(parts.settings.redis_url.get_secret_value(), name=name).work(logging_level=None)
    return 0


def keep(parts: Parts) -> int:
    stop = threading.Event()
    for sign in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sign, lambda *_: stop.set())
    Keeper(parts).run(stop)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m worker.main", description=__doc__.splitlines()[0])
    parser.add_argument("role", nargs="?", choices=("supervise", "work", "keep"), default="supervise")
    parser.add_argument("--name", help="the worker's name in the store", default=None)
    arguments = parser.parse_args()
    try:
        settings = WorkerSettings()
        configure_logging(settings.log_level, service=f"worker-{arguments.role}")
        parts = build_parts(settings)
    except (ValidationError, ProfileError, PatchyardError, OSError) as error:
        sys.stderr.write(f"patchyard worker: {error}\n")
        return 2
    if arguments.role == "work":
        return work(parts, arguments.name or f"{settings.worker_host}-{os.getpid()}")
    if arguments.role == "keep":
        return keep(parts)
    return Supervisor(parts).run()


if __name__ == "__main__":
    sys.exit(main())
