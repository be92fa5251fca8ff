"""What Redis does wrong leaves the store as `Unavailable`, soon, whatever was asked."""

from __future__ import annotations

import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from store_kit import new_task

from service.blobs import DiskBlobs
from service.contracts import ExitReason, Role, State
from service.embedded import EmbeddedRedis
from service.errors import Unavailable
from service.events import TextDelta
from service.store import Lease, Store

LEASE = Lease("task_1", 1, 1, "w")
CALLS: dict[str, Callable[[Store], Any]] = {
    "authenticate": lambda store: store.authenticate("secret"),
    "create_key": lambda store: store.create_key("red", [Role.SUBMIT], "k"),
    "ensure_admin_key": lambda store: store.ensure_admin_key("secret"),
    "submit": lambda store: store.submit(new_task(), sealed=None),
    "task": lambda store: store.task("task_1"),
    "tasks": lambda store: store.tasks("red"),
    "request_cancel": lambda store: store.request_cancel("task_1"),
    "events": lambda store: store.events("task_1"),
    "wait_events": lambda store: store.wait_events({"task_1": 0}, 1_000),
    "claim": lambda store: store.claim("w"),
    "renew": lambda store: store.renew(LEASE),
    "append": lambda store: store.append(LEASE, TextDelta("x")),
    "finish": lambda store: store.finish(LEASE, State.FAILED, ExitReason.MODEL_ERROR),
    "sweep": lambda store: store.sweep(),
    "catalogue": lambda store: store.catalogue(),
    "heartbeat_worker": lambda store: store.heartbeat_worker("w"),
    "counters": lambda store: store.counters(),
    "ping": lambda store: store.ping(),
}


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="py-down-") as name:
        yield Path(name)


@pytest.mark.parametrize("name", CALLS)
def test_without_redis_every_call_is_unavailable_soon(name: str, folder: Path) -> None:
    began = time.monotonic()
    store = Store.connect(f"unix://{folder}/none.sock", blobs=DiskBlobs(folder / "b"))
    with pytest.raises(Unavailable) as refused:
        CALLS[name](store)
    assert time.monotonic() - began < 1
    assert (refused.value.code, refused.value.status, refused.value.retry_after_s) == ("store_unavailable", 503, 5)


def test_a_server_that_accepts_and_never_answers_does_not_hang_us(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        store = Store.connect(f"redis://127.0.0.1:{listener.getsockname()[1]}", blobs=DiskBlobs(folder / "b"))
        began = time.monotonic()
        with pytest.raises(Unavailable):
            store.task("task_1")
        assert time.monotonic() - began < 8


def test_a_stop_under_way_is_unavailable_and_a_start_heals(folder: Path) -> None:
    server = EmbeddedRedis(folder / "r").start()
    store = Store.connect(server.url, blobs=DiskBlobs(folder / "b"))
    try:
        task = store.submit(new_task(), sealed=None)
        failures: list[BaseException] = []

        def wait() -> None:
            try:
                store.wait_events({task.id: 1}, 10_000)
            except Unavailable as error:
                failures.append(error)

        waiting = threading.Thread(target=wait)
        waiting.start()
        time.sleep(0.2)
        server.stop()
        waiting.join(5)
        assert len(failures) == 1
        with pytest.raises(Unavailable):
            store.task(task.id)
        server.start()
        assert store.task(task.id) == task
        assert store.claim("w").task_id == task.id
    finally:
        server.stop()
        store.close()


def test_a_full_memory_is_unavailable_and_leaves_nothing_half_done(folder: Path) -> None:
    with EmbeddedRedis(folder / "r") as server, redis.Redis.from_url(server.url) as raw:
        store = Store.connect(server.url, blobs=DiskBlobs(folder / "b"))
        running, queued = store.submit(new_task(), sealed=b"s"), store.submit(new_task(), sealed=b"s")
        lease = store.claim("w")
        before = {key: raw.dump(key) for key in raw.keys("*")}
        raw.config_set("maxmemory", "1")
        writes = [
            lambda: store.submit(new_task(), sealed=b"x"),
            lambda: store.claim("w2"),
            lambda: store.append(lease, TextDelta("x")),
            lambda: store.update(lease, summary="x", phase="agent"),
            lambda: store.finish(lease, State.SUCCEEDED, ExitReason.COMPLETED),
            lambda: store.release(lease),
            lambda: store.request_cancel(queued.id),
            lambda: store.request_cancel(running.id),
            lambda: store.ensure_admin_key("secret"),
            lambda: store.create_key("red", [Role.SUBMIT], "k"),
        ]
        for write in writes:
            with pytest.raises(Unavailable):
                write()
        assert {key: raw.dump(key) for key in raw.keys("*")} == before
        assert store.task(running.id).state is State.RUNNING
        raw.config_set("maxmemory", "0")
        store.finish(lease, State.SUCCEEDED, ExitReason.COMPLETED)
        store.close()
