"""A whole deployment for a test: real Redis, API and workers as processes on this machine, and an HTTP client."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import redis

from service.embedded import EmbeddedRedis

ADMIN_KEY = "pyd_" + "e2e" * 14
TERMINAL = {"succeeded", "failed", "cancelled"}


class Deployment:
    """Alive inside `running()`; `client` speaks as the admin of team `default`."""

    def __init__(self, folder: Path, *, label: str, image: str, workers: int = 2, docker_url: str = "") -> None:
        self.folder = folder
        self.label = label
        self.port = _free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.models = folder / "models.toml"
        self.models.touch()
        self._redis = EmbeddedRedis(folder / "redis")
        self.extra = {"PATCHYARD_SANDBOX_IMAGE": image, "PATCHYARD_WORKERS": str(workers)}
        if docker_url:
            self.extra["PATCHYARD_DOCKER_URL"] = docker_url
        self.readiness = "no answer yet"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.client = httpx.Client(
            base_url=self.url, headers={"Authorization": f"Bearer {ADMIN_KEY}"}, timeout=70, trust_env=False
        )

    @contextmanager
    def running(self, *, until_ready: bool = True) -> Iterator[None]:
        """Everything started, and stopped at the end, whatever happens in between."""
        try:
            self._redis.start()
            self.start("api")
            self.start("worker")
            if until_ready:
                self.until(self.ready, 60, "the deployment to be ready")
            yield
        finally:
            self.client.close()
            for name in ("api", "worker"):
                self.stop(name)
            self._redis.stop()

    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PATCHYARD_", "OPENAI_"))}
        return kept | {
            "PATCHYARD_REDIS_URL": self._redis.url,
            "PATCHYARD_DATA_DIR": str(self.folder / "data"),
            "PATCHYARD_ADMIN_KEY": ADMIN_KEY,
            "PATCHYARD_PORT": str(self.port),
            "PATCHYARD_DEPLOYMENT": self.label,
            "PATCHYARD_MODELS": str(self.models),
            **self.extra,
        }

    def start(self, name: str) -> None:
        module = {"api": "service.api", "worker": "worker.main"}[name]
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", module], env=self.environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def stop(self, name: str, sign: signal.Signals = signal.SIGTERM) -> None:
        process = self.processes.pop(name, None)
        if process is None:
            return
        process.send_signal(sign)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def restart_redis(self, down_s: float, while_down: Callable[[], None] = lambda: None) -> None:
        self._redis.stop()
        try:
            while_down()
            time.sleep(down_s)
        finally:
            self._redis.start()

    def memory_of_redis(self, limit: int) -> None:
        """Redis refuses every write above so many bytes; 0 = no limit."""
        with redis.Redis.from_url(self._redis.url) as client:
            client.config_set("maxmemory", str(limit))

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def until(self, condition: Callable[[], Any], timeout_s: float, what: str) -> Any:
        deadline = time.monotonic() + timeout_s
        while True:
            value = condition()
            if value:
                return value
            if time.monotonic() > deadline:
                logs = "\n".join(f"--- {name}\n{self.log(name)[-3000:]}" for name in self.processes)
                raise AssertionError(f"waited {timeout_s:g} s for {what} ({self.readiness})\n{logs}")
            time.sleep(0.1)

    def readyz(self) -> dict[str, Any]:
        try:
            answer = self.client.get("/readyz")
        except httpx.TransportError:
            return {}
        self.readiness = answer.text
        return dict(answer.json())

    def ready(self) -> bool:
        return self.readyz().get("status") == "ok"

    def submit(self, archive: bytes | None, *, key: str = "", **task: Any) -> dict[str, Any]:
        files: dict[str, Any] = {"task": (None, json.dumps({"prompt": "Do it.", **task}), "application/json")}
        if archive is not None:
            files["workspace"] = ("w.tgz", archive, "application/octet-stream")
        answer = self.client.post("/v1/tasks", files=files, headers=_as(key))
        assert answer.status_code == 202, answer.text
        assert answer.headers["Location"] == f"/v1/tasks/{answer.json()['id']}"
        return dict(answer.json())

    def task(self, task_id: str) -> dict[str, Any]:
        return dict(self.client.get(f"/v1/tasks/{task_id}").json())

    def finished(self, task_id: str, timeout_s: float = 90) -> dict[str, Any]:
        """The task once it is terminal, waited for by `?wait`."""
        deadline = time.monotonic() + timeout_s
        while True:
            task = self.client.get(f"/v1/tasks/{task_id}", params={"wait": 20}).json()
            if task["state"] in TERMINAL:
                return dict(task)
            if time.monotonic() > deadline:
                raise AssertionError(f"not finished after {timeout_s:g} s: {task}\n{self.log('worker')[-4000:]}")

    def events(self, task_id: str, after: int = 0) -> Iterator[dict[str, Any]]:
        """The task's events as the SSE stream gives them, until it ends by itself."""
        with self.client.stream("GET", f"/v1/tasks/{task_id}/events", headers={"Last-Event-ID": str(after)}) as stream:
            assert stream.status_code == 200
            for line in stream.iter_lines():
                if line.startswith("data:"):
                    yield json.loads(line[5:])

    def containers(self) -> list[str]:
        """Names of this deployment's containers, also stopped ones."""
        command = [
            "docker",
            "ps",
            "-a",
            "--filter",
            f"label=patchyard.deployment={self.label}",
            "--format",
            "{{.Names}}",
        ]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()

    def script(
        self,
        name: str,
        steps: Sequence[tuple[str, Mapping[str, Any]]],
        final: str = "All done.",
        window: int = 128_000,
    ) -> None:
        """Adds a model profile that makes these tool calls, one a turn. Workers must be started again to see it."""
        write_recording(self.folder / f"{name}.jsonl", steps, final)
        with self.models.open("a") as toml:
            toml.write(f'[{name}]\nreplay = "{name}.jsonl"\ncontext_window = {window}\n')


def write_recording(path: Path, steps: Sequence[tuple[str, Mapping[str, Any]]], final: str) -> None:
    """A transcript whose replay makes the given tool calls, one a turn, then says `final`."""

    def chunk(delta: dict[str, Any], finish: str | None = None) -> str:
        return json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})

    def call(number: int, tool: str, arguments: Mapping[str, Any]) -> list[str]:
        function = {"name": tool, "arguments": json.dumps(arguments)}
        delta = {"tool_calls": [{"index": 0, "id": f"c{number}", "type": "function", "function": function}]}
        return [chunk(delta), chunk({}, "tool_calls"), "[DONE]"]

    replies = [call(number, *step) for number, step in enumerate(steps)]
    replies.append([chunk({"content": final}), chunk({}, "stop"), "[DONE]"])
    lines = [
        json.dumps({"kind": "response", "n": n, "outcome": "used", "lines": reply})
        for n, reply in enumerate(replies, 1)
    ]
    path.write_text("\n".join(lines) + "\n")


def pack(files: Mapping[str, bytes]) -> bytes:
    """A tar.gz with these files; a name that ends in `*` is executable."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name.rstrip("*"))
            info.size, info.mode = len(data), 0o755 if name.endswith("*") else 0o644
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def _as(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"} if key else {}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
