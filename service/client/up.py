"""Runs a whole deployment on this machine: embedded Redis, API and worker host, as child processes.

They are started in that order and stopped in the opposite one: workers give their tasks back while the store still
answers. A child that ends by itself ends the deployment. None outlives this process, however that ends.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from service.client.http import Json, PatchyardClient, Unreachable
from service.process import die_with_parent
from service.settings import child_environment

_REDIS_S = 30.0
_READY_S = 90.0
_SETTLE_S = 20.0
"""How long a service that could accept tasks may still lack a worker or an engine before we say so."""
_STOP_S = {"worker": 75.0, "api": 10.0, "redis": 15.0}
"""A worker host has 30 s for its workers and 30 s for its keeper."""
_MODULE_STOP_S = 10.0
_LOOK_S = 0.2
_LOG_TAIL = 1_500
_ENDING = (signal.SIGINT, signal.SIGTERM)


class DeploymentFailed(Exception):
    """What did not start or did not go on, and the end of its log."""


@dataclass(frozen=True, slots=True)
class Options:
    data_dir: Path
    host: str = "127.0.0.1"
    port: int = 0
    """0 = a free one."""
    workers: int = 2
    deployment: str | None = None
    """Label of the containers; None = one of this data folder, so that two deployments leave each other alone."""
    admin_key: str | None = None
    """None = the configured one, else the one in the data folder."""


@dataclass(frozen=True, slots=True)
class _Child:
    name: str
    process: subprocess.Popen[bytes]
    log: Path


class Deployment:
    """A context manager; `start` and the block belong to the thread that the children shall die with."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._folder = options.data_dir.resolve()
        self._port = options.port or _free_port(options.host)
        self._children: list[_Child] = []
        self._environment: dict[str, str] = {}

    @property
    def url(self) -> str:
        host = "127.0.0.1" if self._options.host in ("0.0.0.0", "") else self._options.host  # noqa: S104
        return f"http://{f'[{host}]' if ':' in host else host}:{self._port}"

    @property
    def admin_key_file(self) -> Path:
        return self._folder / "admin.key"

    @property
    def logs(self) -> Path:
        return self._folder / "logs"

    def __enter__(self) -> Self:
        self.logs.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            redis_url = self._start_redis()
            self._environment = {
                "PATCHYARD_REDIS_URL": redis_url,
                "PATCHYARD_DATA_DIR": str(self._folder),
                "PATCHYARD_HOST": self._options.host,
                "PATCHYARD_PORT": str(self._port),
                "PATCHYARD_WORKERS": str(self._options.workers),
                "PATCHYARD_DEPLOYMENT": self._options.deployment or _label(self._folder),
            }
            admin = {"PATCHYARD_ADMIN_KEY": self._options.admin_key} if self._options.admin_key else {}
            self._start("api", ["service.api"], model_keys=False, more=admin)
            self._start("worker", ["worker.main"], model_keys=True)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def module(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs another of our modules in this deployment's environment, to its end; interrupted when we are."""
        process = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            env=child_environment(self._environment, model_keys=False),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for us, who wait until it has cleaned up
            preexec_fn=functools.partial(die_with_parent, os.getpid(), signal.SIGINT),
        )
        try:
            stdout, stderr = process.communicate()
        except BaseException:
            process.send_signal(signal.SIGINT)
            try:
                process.communicate(timeout=_MODULE_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
            raise
        return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)

    def await_ready(self, stop: threading.Event) -> list[str]:
        """Waits until tasks are accepted and, for a while, until they would run; why they would not yet.

        Returns early when `stop` is set. DeploymentFailed when it takes too long or a child ends.
        """
        start = time.monotonic()
        settled: float | None = None
        with PatchyardClient(self.url, "") as client:
            while not stop.is_set():
                self.check()
                status, document = _ready(client)
                now = time.monotonic()
                reasons = [str(reason) for reason in document.get("reasons", ())]
                if status == 200:
                    settled = settled or now
                    if document.get("status") == "ok" or now - settled > _SETTLE_S:
                        return reasons
                elif now - start > _READY_S:
                    raise DeploymentFailed(f"not ready after {_READY_S:.0f} s: {'; '.join(reasons) or 'no answer'}")
                stop.wait(_LOOK_S)
        return []

    def check(self) -> None:
        """DeploymentFailed when a child has ended."""
        for child in self._children:
            if (code := child.process.poll()) is not None:
                raise DeploymentFailed(f"the {child.name} process ended with {code}; {child.log} ends:\n{_tail(child)}")

    def wait(self, stop: threading.Event) -> None:
        """Returns when `stop` is set; DeploymentFailed when a child ends before."""
        while not stop.wait(_LOOK_S):
            self.check()

    def stop(self) -> None:
        """Ends the children, the last started first; one that does not go in its time is killed. Idempotent."""
        while self._children:
            child = self._children[-1]
            child.process.terminate()
            try:
                child.process.wait(_STOP_S[child.name])
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()
            self._children.pop()

    def _start_redis(self) -> str:
        arguments = ["service.embedded", "--data-dir", str(self._folder / "redis")]
        child = self._start("redis", arguments, model_keys=False, stdout=subprocess.PIPE)
        assert child.process.stdout is not None  # noqa: S101 - it was asked for
        with child.process.stdout as output, selectors.DefaultSelector() as ready:
            ready.register(output, selectors.EVENT_READ)
            line = output.readline() if ready.select(_REDIS_S) else b""
        if not line:
            child.process.kill()
            child.process.wait()
            raise DeploymentFailed(f"the embedded Redis did not start:\n{_tail(child)}")
        return line.decode().strip()

    def _start(
        self,
        name: str,
        arguments: list[str],
        *,
        model_keys: bool,
        stdout: int = subprocess.STDOUT,
        more: Mapping[str, str] | None = None,
    ) -> _Child:
        path = self.logs / f"{name}.log"
        # Until Redis has the folder's lock it may be another deployment's, whose log is not ours to empty.
        with path.open("ab" if name == "redis" else "wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", *arguments],
                env=child_environment({**self._environment, **(more or {})}, model_keys=model_keys),
                stdin=subprocess.DEVNULL,
                stdout=log if stdout == subprocess.STDOUT else stdout,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for us, who stop the others in order
                preexec_fn=functools.partial(die_with_parent, os.getpid()),
            )
        child = _Child(name, process, path)
        self._children.append(child)
        return child


def stop_on_signals() -> threading.Event:
    """An event that SIGINT and SIGTERM set; a second one ends this process at once, and the children with it."""
    stop = threading.Event()

    def on_signal(sign: int, _frame: object) -> None:
        if stop.is_set():
            signal.signal(sign, signal.SIG_DFL)
            signal.raise_signal(sign)
        stop.set()

    for sign in _ENDING:
        signal.signal(sign, on_signal)
    return stop


def interrupt_on_signals() -> None:
    """The first SIGINT or SIGTERM raises KeyboardInterrupt here, whatever is waited for; a second one ends us."""

    def on_signal(_sign: int, _frame: object) -> None:
        for sign in _ENDING:
            signal.signal(sign, signal.SIG_DFL)
        raise KeyboardInterrupt

    for sign in _ENDING:
        signal.signal(sign, on_signal)


def port_is_free(host: str, port: int) -> bool:
    """OSError where it is not the port that is in the way."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            raise
    return True


def _free_port(host: str) -> int:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def _label(folder: Path) -> str:
    return f"up-{hashlib.sha256(os.fsencode(folder)).hexdigest()[:12]}"


def _ready(client: PatchyardClient) -> tuple[int, Json]:
    try:
        return client.ready()
    except Unreachable as error:
        return 0, {"reasons": [error.detail]}


def _tail(child: _Child) -> str:
    text = child.log.read_text(encoding="utf-8", errors="replace")[-_LOG_TAIL:].strip()
    return text or f"(nothing; is there room on the disk of {child.log.parent}?)"
