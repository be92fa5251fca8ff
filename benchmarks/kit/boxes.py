"""Boxes of ours and an ordinary container of the same image beside them, all gone at the end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import docker

from worker.llm.messages import ToolCall
from worker.sandbox.base import BoxSpec, Sandbox
from worker.sandbox.docker import DockerProvider, engine_client, remove_container
from worker.settings import WorkerSettings
from worker.tools.base import Answer
from worker.tools.registry import Prepared, Toolbox, build_toolbox

ROOT = Path(__file__).resolve().parents[2]
CALL_S = 60
PEER_S = 900
"""An ordinary container ends by itself then, should we be killed outright; our boxes have their own guard."""


def end_on_sigterm() -> None:
    """A `kill` also takes the way through every `finally`."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def sandbox_image() -> str:
    """The image of this checkout's sandbox_image/, built when it is not there."""
    script = str(ROOT / "scripts" / "sandbox-image.sh")
    subprocess.run([script], check=True, timeout=600)
    return subprocess.run([script, "--name"], check=True, capture_output=True, text=True, timeout=60).stdout.strip()


class Host:
    """One engine, one image, one label for all that a run makes."""

    def __init__(self, url: str, image: str, label: str, client: docker.APIClient) -> None:
        self.image = image
        self.url = url
        self.client = client
        self._label = label
        self._cli = ["docker", "-H", url]
        self._provider = DockerProvider(url=url, deployment=label)

    @contextmanager
    def box(self) -> Iterator[Sandbox]:
        """A claimed box, opened the worker's way."""
        task = f"task_{uuid.uuid4().hex}"
        # 2 GB for the tmpfs mounts and the commands, as a task has by default; no CPU limit that a peer lacks.
        spec = BoxSpec(task, 1, self.image, cpus=os.cpu_count() or 1, memory_mb=2048, disk_mb=1024, pids=512)
        box = self._provider.open(spec)
        try:
            box.claim(task, deadline_s=PEER_S)
            yield box
        finally:
            box.close()

    @contextmanager
    def peer(self) -> Iterator[str]:
        """The id of an ordinary container that waits for `docker exec`."""
        container = self.run_peer()
        try:
            yield container
        finally:
            remove_container(self.client, container)

    def run_peer(self) -> str:
        """What `docker run -d` takes to the id; the caller removes it."""
        label = f"patchyard.deployment={self._label}"
        command = ["run", "-d", "--init", "--label", label, "--network", "none", "--entrypoint", "sleep"]
        return self.docker(*command, self.image, str(PEER_S)).decode().strip()

    def docker(self, *arguments: str, stdin: int | bytes = b"") -> bytes:
        """The docker CLI's output; CalledProcessError when it fails. `stdin` is bytes or a descriptor."""
        source = {"input": stdin} if isinstance(stdin, bytes) else {"stdin": stdin}
        done = subprocess.run([*self._cli, *arguments], check=True, stdout=subprocess.PIPE, timeout=CALL_S, **source)
        return done.stdout

    def engine(self) -> str:
        """Name and version, for the record."""
        return f"Docker {self.client.version()['Version']}"

    def clear(self) -> None:
        """Whatever of ours is left, also after a failure."""
        self._provider.close()
        for container in self.client.containers(all=True, filters={"label": f"patchyard.deployment={self._label}"}):
            remove_container(self.client, container["Id"])


@contextmanager
def host() -> Iterator[Host]:
    """The engine of the worker's own settings; every container made through it is removed."""
    settings = WorkerSettings()
    image = sandbox_image()
    client = engine_client(settings.docker_url, CALL_S)
    try:
        here = Host(settings.docker_url, image, f"bench-{os.getpid()}", client)
        try:
            yield here
        finally:
            here.clear()
    finally:
        client.close()


def toolbox(box: Sandbox) -> Toolbox:
    """The tools as a run has them; artifacts go nowhere."""
    return build_toolbox(box, env={}, command_timeout_s=CALL_S, store_artifact=lambda _name, _data: None)


def use(tools: Toolbox, name: str, arguments: str) -> Answer:
    """One call of a model, from its raw JSON to the answer; RuntimeError when a tool fails."""
    prepared = tools.prepare(ToolCall("call", name, arguments))
    if not isinstance(prepared, Prepared):
        raise RuntimeError(prepared.text)  # noqa: TRY004 (what is wrong is the call)
    steps = tools.execute(prepared)
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            answer: Answer = stop.value
            break
    if not answer.ok:
        raise RuntimeError(answer.text)
    return answer
