"""Shared fixtures: the real Redis and the real engine. A missing part fails in CI and skips elsewhere."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import docker

    from worker.sandbox.docker import DockerProvider

ROOT = Path(__file__).resolve().parents[1]

os.environ.pop("PYTHONUNBUFFERED", None)  # users' shells do not have it, and it hides a missing flush

IN_CI = os.environ.get("CI", "") not in ("", "0", "false")


def missing(part: str) -> None:
    """A part that a test needs is not there: a failure where it must be, a reason elsewhere."""
    if IN_CI:
        pytest.fail(f"CI must have it: {part}")
    pytest.skip(part)


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """A real Valkey of this test process; tests use their own key prefix or flush what they made."""
    from service.embedded import EmbeddedRedis

    folder = Path(tempfile.mkdtemp(prefix="py-redis-"))  # short: a socket path holds 107 bytes
    try:
        with EmbeddedRedis(folder) as server:
            yield server.url
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def deployment() -> str:
    """The deployment label of every container this test process makes; `make test` removes them by its prefix."""
    run = os.environ.get("PATCHYARD_TEST_RUN", f"test-{os.getpid()}")
    return f"{run}-{os.environ.get('PYTEST_XDIST_WORKER', 'main')}"


@pytest.fixture(scope="session")
def engine_url() -> str:
    return os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")


@pytest.fixture(scope="session")
def engine(deployment: str, engine_url: str) -> Iterator[docker.APIClient]:
    """A client of the real Docker engine; at the end nothing with our label is left, also after failures."""
    from launch_contract import every_container_kept_it

    from service.errors import SandboxError
    from worker.sandbox.docker import engine_client, remove_container

    try:
        client = engine_client(engine_url, 60)
    except SandboxError as error:
        missing(error.detail)
        raise
    try:
        with every_container_kept_it(client, engine_url, deployment):
            yield client
    finally:
        for container in client.containers(all=True, filters={"label": f"patchyard.deployment={deployment}"}):
            remove_container(client, container["Id"])
        client.close()


@pytest.fixture(scope="session")
def sandbox_image(engine: docker.APIClient) -> str:
    """The name of the sandbox image of this checkout's sandbox_image/, built when it is not there yet."""
    script = str(ROOT / "scripts" / "sandbox-image.sh")
    built = subprocess.run([script], check=False, capture_output=True, text=True, timeout=600)
    if built.returncode:
        missing(f"the sandbox image: {built.stderr.strip()[-2000:]}")
    return subprocess.run([script, "--name"], check=True, capture_output=True, text=True, timeout=60).stdout.strip()


@pytest.fixture(scope="session")
def docker_provider(
    engine: docker.APIClient, engine_url: str, sandbox_image: str, deployment: str
) -> Iterator[DockerProvider]:
    """Opens real boxes, e.g. of `BoxSpec(image=sandbox_image, …)`, labelled with this process's deployment."""
    from worker.sandbox.docker import DockerProvider

    provider = DockerProvider(url=engine_url, deployment=deployment)
    yield provider
    provider.close()
