"""What contract tests share: a store of its own for every test on the one server, and a box of either kind."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis
from sandbox_kit import spec
from store_kit import new_task
from ulid import ULID

from service.blobs import DiskBlobs
from service.contracts import Task
from service.store import Store
from worker.sandbox.base import Sandbox
from worker.sandbox.local import LocalProvider


@pytest.fixture
def prefix(redis_url: str) -> Iterator[str]:
    name = f"t{ULID()}:"
    yield name
    with redis.Redis.from_url(redis_url) as client:
        for key in client.scan_iter(f"{name}*", count=1_000):
            client.delete(key)


@pytest.fixture
def connect(redis_url: str, prefix: str, tmp_path: Path) -> Iterator[Callable[..., Store]]:
    """Makes stores over the test's own keys; with `lease_s` and `max_events` of one's choice."""
    made: list[Store] = []

    def make(**options: Any) -> Store:
        made.append(Store.connect(redis_url, prefix=prefix, blobs=DiskBlobs(tmp_path / "blobs"), **options))
        return made[-1]

    yield make
    for store in made:
        store.close()


@pytest.fixture
def store(connect: Callable[..., Store]) -> Store:
    return connect()


@pytest.fixture
def raw(redis_url: str) -> Iterator[redis.Redis]:
    """The server itself, to look behind the store."""
    with redis.Redis.from_url(redis_url) as client:
        yield client


@pytest.fixture
def submit(store: Store) -> Callable[..., Task]:
    """Queues a new task: `submit(team=…, sealed=…, prompt=…)`."""

    def send(team: str = "red", sealed: bytes | None = None, **spec: Any) -> Task:
        return store.submit(new_task(team, **spec), sealed=sealed)

    return send


@pytest.fixture
def together() -> Callable[..., list[Any]]:
    """Calls the functions in threads that start at the same moment; their results, an exception as itself."""

    def run(*calls: Callable[[], Any]) -> list[Any]:
        barrier = threading.Barrier(len(calls))

        def one(call: Callable[[], Any]) -> Any:
            barrier.wait(10)
            try:
                return call()
            except Exception as error:  # noqa: BLE001 - the test judges it
                return error

        with ThreadPoolExecutor(len(calls)) as pool:
            return list(pool.map(one, calls))

    return run


@pytest.fixture(params=["local", pytest.param("docker", marks=pytest.mark.docker)])
def box(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    """A claimed box: every contract holds on the local double and on the engine."""
    asked = spec()
    if request.param == "local":
        opened = LocalProvider(request.getfixturevalue("tmp_path")).open(asked)
    else:
        asked = spec(request.getfixturevalue("sandbox_image"))
        opened = request.getfixturevalue("docker_provider").open(asked)
    try:
        opened.claim(asked.task, deadline_s=300)
        yield opened
    finally:
        opened.close()
