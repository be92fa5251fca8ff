"""Who serves: worker hosts, their catalogues and health, and the counters of /metrics."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from service.contracts import Catalogue, ModelCard, Resources
from service.store.connection import RETENTION_S, Connection, compact

HEARTBEAT_TTL_S = 30
"""A host or worker that has said nothing for so long counts as gone (docs/architecture.md: heartbeat 5 s)."""


@dataclass(frozen=True, slots=True)
class Counters:
    queued: int
    running: int
    finished: dict[str, int]
    """exit_reason → tasks that ever ended so."""


class Fleet(Connection):
    """Heartbeats and catalogues."""

    def publish_catalogue(self, catalogue: Catalogue) -> None:
        """Replaces this host's catalogue; those of hosts gone for long are dropped."""
        known = self._catalogues()
        old = [
            host
            for host, other in known.items()
            if host != catalogue.host and (catalogue.at - other.at).total_seconds() > RETENTION_S
        ]
        commands: list[tuple[str, ...]] = [
            ("HSET", self._key("catalogues"), catalogue.host, catalogue.model_dump_json())
        ]
        if old:
            commands.append(("HDEL", self._key("catalogues"), *old))
        self._batch(commands)

    def catalogue(self) -> Catalogue | None:
        """What the live hosts offer together; with none alive, the last published; None if there never was one."""
        known = self._catalogues()
        if not known:
            return None
        live = [known[host] for host in self._live_hosts() if host in known]
        return _merge(live) if live else max(known.values(), key=lambda catalogue: catalogue.at)

    def heartbeat_keeper(self, host: str, info: Mapping[str, Any]) -> None:
        """Says that the host's keeper lives, and what it sees of its engine; forgotten after 30 s."""
        record = compact(dict(info))
        self._beat("keepers", host, ("SET", self._key("keeper", host), record, "EX", str(HEARTBEAT_TTL_S)))

    def heartbeat_worker(self, name: str) -> None:
        """Says that the worker lives; forgotten after 30 s."""
        self._beat("workers", name)

    def remove_worker(self, name: str) -> None:
        """Says that the worker has ended."""
        self._call("ZREM", self._key("workers"), name)

    def live_workers(self) -> int:
        count: int = self._call("ZCOUNT", self._key("workers"), self._now_ms(), "+inf")
        return count

    def engine_health(self) -> list[dict[str, Any]]:
        """One object per live keeper: its `host` and what it last said of its engine."""
        hosts = self._live_hosts()
        if not hosts:
            return []
        infos = self._call("MGET", *(self._key("keeper", host) for host in hosts))
        return [{**json.loads(info), "host": host} for host, info in zip(hosts, infos, strict=True) if info is not None]

    def counters(self) -> Counters:
        """Tasks queued and running now, and ended so far."""
        queued, running, finished = self._batch([
            ("ZCARD", self._key("queue")),
            ("ZCARD", self._key("leases")),
            ("HGETALL", self._key("finished")),
        ])  # fmt: skip
        ended = {reason.decode(): int(count) for reason, count in finished.items()}
        return Counters(queued=queued, running=running, finished=ended)

    def _beat(self, index: str, name: str, *more: tuple[str, ...]) -> None:
        now = self._now_ms()
        self._batch([
            ("ZREMRANGEBYSCORE", self._key(index), "-inf", now),
            ("ZADD", self._key(index), now + HEARTBEAT_TTL_S * 1000, name),
            *more,
        ])  # fmt: skip

    def _live_hosts(self) -> list[str]:
        names = self._call("ZRANGE", self._key("keepers"), self._now_ms(), "+inf", "BYSCORE")
        return sorted(name.decode() for name in names)

    def _catalogues(self) -> dict[str, Catalogue]:
        records = self._call("HGETALL", self._key("catalogues"))
        return {host.decode(): Catalogue.model_validate_json(record) for host, record in records.items()}


def _merge(catalogues: list[Catalogue]) -> Catalogue:
    """Any worker may get any task: what one host can serve is offered, but no box larger than all can make."""
    models: dict[str, ModelCard] = {}
    images: dict[str, None] = {}
    for catalogue in catalogues:
        images |= dict.fromkeys(catalogue.images)
        for card in catalogue.models:
            models.setdefault(card.name, card)
    maxima = [catalogue.maxima.model_dump() for catalogue in catalogues]
    return Catalogue(
        host=",".join(catalogue.host for catalogue in catalogues),
        models=tuple(models.values()),
        images=tuple(images),
        maxima=Resources(**{name: min(each[name] for each in maxima) for name in maxima[0]}),
        engine_ok=any(catalogue.engine_ok for catalogue in catalogues),
        engine="; ".join(dict.fromkeys(catalogue.engine for catalogue in catalogues)),
        workers=sum(catalogue.workers for catalogue in catalogues),
        at=max(catalogue.at for catalogue in catalogues),
    )
