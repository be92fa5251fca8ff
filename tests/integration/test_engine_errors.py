"""An engine that is not there is one clear error, in bounded time, and leaves no socket behind."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from service.errors import SandboxError
from worker.sandbox.base import BoxSpec
from worker.sandbox.docker import DockerProvider, engine_health

SPEC = BoxSpec(task="task_1", run=1, image="img", cpus=1, memory_mb=128, disk_mb=64, pids=32)


def test_opening_a_box_without_an_engine(tmp_path: Path) -> None:
    provider = DockerProvider(url=f"unix://{tmp_path}/no.sock", deployment="d")
    with pytest.raises(SandboxError, match="the Docker engine does not answer") as caught:
        provider.open(SPEC)
    assert caught.value.retryable is True
    assert caught.value.exit_reason == "sandbox_error"


def test_health_without_an_engine_is_an_answer(tmp_path: Path) -> None:
    health = engine_health(f"unix://{tmp_path}/no.sock", runtime="runc", image="img")
    assert health.ok is False
    assert "the Docker engine does not answer" in health.engine


def test_making_a_provider_connects_to_nothing(tmp_path: Path) -> None:
    DockerProvider(url=f"unix://{tmp_path}/no.sock", deployment="d").close()


def test_a_refused_connection_is_closed_at_once(tmp_path: Path) -> None:
    """Warnings are errors here, so a socket left to the collector would fail this test."""
    engine_health(f"unix://{tmp_path}/no.sock", runtime="runc", image="img")
    gc.collect()
