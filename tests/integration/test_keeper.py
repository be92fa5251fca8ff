"""The keeper on real parts: what it says of its host, when it rings, and whose containers it removes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest
from pydantic import SecretStr
from store_kit import new_task
from ulid import ULID

from service.queue import Doorbell
from worker.doctor import PROBES, checks
from worker.keeper import Keeper
from worker.parts import Parts, build_parts
from worker.sandbox.base import BoxSpec
from worker.sandbox.docker import DockerProvider
from worker.settings import WorkerSettings


@pytest.fixture
def settings(redis_url: str, tmp_path: Path) -> WorkerSettings:
    return WorkerSettings(
        _env_file=None,
        redis_url=SecretStr(redis_url),
        redis_prefix=f"t{ULID()}:",
        data_dir=tmp_path,
        worker_host="host-a",
        workers=2,
        docker_url=f"unix://{tmp_path}/no-engine.sock",
        sandbox_image="patchyard-sandbox:any",
    )


@pytest.fixture
def parts(settings: WorkerSettings) -> Iterator[Parts]:
    made = build_parts(settings)
    # A queue of this test's own: bells of others would be counted as ours.
    yield dataclasses.replace(made, doorbell=Doorbell(settings.redis_url.get_secret_value(), name=f"q{ULID()}"))
    made.store.close()


def test_without_an_engine_it_says_why_and_rings_for_nobody(parts: Parts) -> None:
    parts.store.submit(new_task("red"), sealed=None)
    parts.store.heartbeat_worker("w1")
    Keeper(parts).round(0.0)
    (health,) = parts.store.engine_health()
    assert (health["host"], health["ok"]) == ("host-a", False)
    assert "no-engine.sock" in health["engine"]
    catalogue = parts.store.catalogue()
    assert catalogue is not None
    assert (catalogue.engine_ok, catalogue.workers) == (False, 2)
    assert [card.name for card in catalogue.models] == ["demo"]
    assert parts.doorbell.bells_out() == 0


@pytest.mark.docker
def test_with_an_engine_it_rings_for_what_waits(
    parts: Parts, settings: WorkerSettings, sandbox_image: str, engine_url: str, deployment: str
) -> None:
    changed = {"docker_url": engine_url, "sandbox_image": sandbox_image, "deployment": f"{deployment}-keeper"}
    able = dataclasses.replace(parts, settings=settings.model_copy(update=changed))
    parts.store.submit(new_task("red"), sealed=None)
    parts.store.heartbeat_worker("w1")
    Keeper(able).round(0.0)
    assert parts.store.engine_health()[0]["ok"] is True
    assert parts.doorbell.bells_out() == 1


@pytest.mark.docker
def test_it_removes_the_box_of_a_run_that_holds_no_lease_and_no_other(
    parts: Parts,
    settings: WorkerSettings,
    engine: docker.APIClient,
    sandbox_image: str,
    engine_url: str,
    deployment: str,
) -> None:
    label = f"{deployment}-reap"
    changed = {"docker_url": engine_url, "sandbox_image": sandbox_image, "deployment": label}
    able = dataclasses.replace(parts, settings=settings.model_copy(update=changed))
    task = parts.store.submit(new_task("red"), sealed=None)
    lease = parts.store.claim("w1")
    assert lease is not None
    provider = DockerProvider(url=engine_url, deployment=label)
    try:
        held, lost = (
            provider.open(
                BoxSpec(task=task.id, run=run, image=sandbox_image, cpus=1, memory_mb=128, disk_mb=64, pids=64)
            )
            for run in (lease.run, lease.run + 1)
        )
        Keeper(able).reap()
        left = [
            box["Names"][0] for box in engine.containers(all=True, filters={"label": f"patchyard.deployment={label}"})
        ]
        assert left == [f"/patchyard-{task.id}-{lease.run}"]
    finally:
        held.close()
        lost.close()
        provider.close()


@pytest.mark.docker
def test_the_doctor_finds_a_sound_host_sound(
    parts: Parts, settings: WorkerSettings, sandbox_image: str, engine_url: str, deployment: str
) -> None:
    provider = DockerProvider(url=engine_url, deployment=f"{deployment}-doctor")
    changed = {"docker_url": engine_url, "sandbox_image": sandbox_image}
    found = list(checks(dataclasses.replace(parts, settings=settings.model_copy(update=changed), provider=provider)))
    assert [check.name for check in found if not check.ok] == []
    assert [check.name for check in found] == [
        "machine", "store", "engine", "sandbox", *(name for name, _, _ in PROBES), "still alive"
    ]  # fmt: skip


def test_the_doctor_does_not_miss_a_redis_that_nobody_named(parts: Parts, tmp_path: Path) -> None:
    named = {name: getattr(parts.settings, name) for name in parts.settings.model_fields_set - {"redis_url"}}
    nowhere = dataclasses.replace(parts, settings=WorkerSettings(_env_file=None, **named))
    store = next(check for check in checks(nowhere) if check.name == "store")
    assert (store.ok, store.detail) == (True, "no PATCHYARD_REDIS_URL: `patchyard up` brings its own Redis")


def test_the_doctor_says_what_is_missing(parts: Parts) -> None:
    failed = [check for check in checks(parts) if not check.ok]
    assert [check.name for check in failed] == ["engine"]
    assert "no-engine.sock" in failed[0].detail
