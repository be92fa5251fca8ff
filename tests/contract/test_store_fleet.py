"""Who serves: catalogues of hosts that come and go, heartbeats that end, counters that add up."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
import redis

from service.contracts import Catalogue, ExitReason, ModelCard, Resources, State, Task
from service.store import Counters, Store

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def card(name: str, model: str = "m") -> ModelCard:
    return ModelCard(name=name, model=model, context_window=1_000, price={"input": 0.1, "output": 0.2})


def catalogue(host: str, *, at: datetime = NOW, models: tuple[str, ...] = ("default",), cpus: float = 4) -> Catalogue:
    return Catalogue(
        host=host,
        models=tuple(card(name, f"{name}@{host}") for name in models),
        images=("default", f"image-{host}"),
        maxima=Resources(cpus=cpus, memory_mb=8_192, disk_mb=4_096, pids=1_024),
        engine_ok=True,
        engine="docker 20.10",
        workers=2,
        at=at,
    )


def silence(raw: redis.Redis, prefix: str, index: str, name: str) -> None:
    """Makes a heartbeat end a moment ago."""
    raw.zadd(f"{prefix}{index}", {name: time.time() * 1000 - 1}, xx=True)


def test_before_the_first_catalogue_there_is_none(store: Store) -> None:
    assert store.catalogue() is None


def test_a_catalogue_is_read_as_published_also_without_its_keeper(store: Store, raw: redis.Redis, prefix: str) -> None:
    store.publish_catalogue(catalogue("a"))
    assert store.catalogue() == catalogue("a")
    store.heartbeat_keeper("a", {})
    assert store.catalogue() == catalogue("a")
    assert raw.ttl(f"{prefix}catalogues") == -1


def test_a_later_catalogue_of_a_host_replaces_the_earlier(store: Store) -> None:
    store.publish_catalogue(catalogue("a"))
    later = catalogue("a", at=NOW + timedelta(seconds=5), models=("x",))
    store.publish_catalogue(later)
    assert store.catalogue() == later


def test_live_hosts_offer_together(store: Store) -> None:
    store.publish_catalogue(catalogue("b", models=("default", "big"), cpus=8, at=NOW + timedelta(seconds=1)))
    store.publish_catalogue(catalogue("a", models=("default", "demo"), cpus=2))
    for host in ("a", "b"):
        store.heartbeat_keeper(host, {})
    assert store.catalogue() == Catalogue(
        host="a,b",
        models=(card("default", "default@a"), card("demo", "demo@a"), card("big", "big@b")),
        images=("default", "image-a", "image-b"),
        maxima=Resources(cpus=2, memory_mb=8_192, disk_mb=4_096, pids=1_024),
        engine_ok=True,
        engine="docker 20.10",
        workers=4,
        at=NOW + timedelta(seconds=1),
    )


def test_a_dead_host_offers_nothing_while_another_lives(store: Store, raw: redis.Redis, prefix: str) -> None:
    for host in ("a", "b"):
        store.publish_catalogue(catalogue(host, models=(host,)))
        store.heartbeat_keeper(host, {})
    silence(raw, prefix, "keepers", "a")
    assert [model.name for model in store.catalogue().models] == ["b"]


def test_when_every_host_is_dead_the_last_word_counts(store: Store) -> None:
    store.publish_catalogue(catalogue("a", at=NOW + timedelta(minutes=1)))
    store.publish_catalogue(catalogue("b"))
    assert store.catalogue().host == "a"


def test_a_host_gone_for_a_month_is_forgotten(store: Store, raw: redis.Redis, prefix: str) -> None:
    store.publish_catalogue(catalogue("old"))
    store.publish_catalogue(catalogue("a", at=NOW + timedelta(days=29)))
    assert raw.hlen(f"{prefix}catalogues") == 2
    store.publish_catalogue(catalogue("a", at=NOW + timedelta(days=31)))
    assert raw.hkeys(f"{prefix}catalogues") == [b"a"]


def test_workers_count_while_they_say_so(store: Store, raw: redis.Redis, prefix: str) -> None:
    assert store.live_workers() == 0
    for name in ("a", "b", "c"):
        store.heartbeat_worker(name)
    store.heartbeat_worker("a")
    assert store.live_workers() == 3
    silence(raw, prefix, "workers", "b")
    assert store.live_workers() == 2
    store.remove_worker("c")
    assert store.live_workers() == 1
    store.heartbeat_worker("a")
    assert raw.zcard(f"{prefix}workers") == 1


def test_a_heartbeat_lasts_thirty_seconds(store: Store, raw: redis.Redis, prefix: str) -> None:
    store.heartbeat_worker("w")
    store.heartbeat_keeper("h", {})
    for index, name in (("workers", "w"), ("keepers", "h")):
        assert 28 < raw.zscore(f"{prefix}{index}", name) / 1000 - time.time() <= 30.5
    assert 28 < raw.ttl(f"{prefix}keeper:h") <= 30


def test_engine_health_is_what_live_keepers_say(store: Store, raw: redis.Redis, prefix: str) -> None:
    assert store.engine_health() == []
    store.heartbeat_keeper("b", {"engine_ok": False, "engine": "no answer"})
    store.heartbeat_keeper("a", {"engine_ok": True, "engine": "docker ü"})
    assert store.engine_health() == [
        {"host": "a", "engine_ok": True, "engine": "docker ü"},
        {"host": "b", "engine_ok": False, "engine": "no answer"},
    ]
    silence(raw, prefix, "keepers", "a")
    assert [health["host"] for health in store.engine_health()] == ["b"]


def test_counters_follow_the_tasks(store: Store, submit: Callable[..., Task]) -> None:
    assert store.counters() == Counters(queued=0, running=0, finished={})
    for _ in range(6):
        submit()
    leases = [store.claim("w") for _ in range(4)]
    store.finish(leases[0], State.SUCCEEDED, ExitReason.COMPLETED)
    store.finish(leases[1], State.SUCCEEDED, ExitReason.COMPLETED)
    store.finish(leases[2], State.FAILED, ExitReason.MODEL_ERROR)
    assert store.counters() == Counters(queued=2, running=1, finished={"completed": 2, "model_error": 1})


def test_two_deployments_on_one_redis_do_not_meet(store: Store, redis_url: str, submit: Callable[..., Task]) -> None:
    class Nowhere:
        def __getattr__(self, name: str) -> None:
            pytest.fail("no blob is needed here")

    submit()
    other = Store.connect(redis_url, prefix="other-deployment:", blobs=Nowhere())
    assert other.counters() == Counters(queued=0, running=0, finished={})
    assert other.claim("w") is None
    other.close()
