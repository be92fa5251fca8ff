"""The one way to Redis: commands, batches and scripts, with every failure of Redis as `Unavailable`."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib import resources
from typing import Any, BinaryIO, Protocol, Self

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from service.contracts import MAX_RUNS, TERMINAL, TRANSITIONS
from service.redis_edge import redis_edge

LEASE_S = 30.0
"""A run's hold on its task between two renewals (docs/architecture.md: heartbeat 5 s, lease 30 s)."""
RETENTION_S = 30 * 86_400
"""How long an ended task, and a workspace after its last use, are kept (docs/api.md)."""
MAX_EVENTS = 50_000
"""Events per task (docs/api.md)."""
SEGMENT_EVENTS = 1_000
"""Events per archived segment (docs/architecture.md)."""
MAX_BLOCK_MS = 15_000
"""Longest single wait for events; the socket's timeout must lie above it."""


class _Stored(Protocol):
    @property
    def sha256(self) -> str: ...


class BlobStore(Protocol):
    """What the store needs of service/blobs.py to archive events."""

    def put(self, chunks: Iterable[bytes]) -> _Stored: ...

    def open(self, sha256: str) -> BinaryIO: ...

    def delete(self, sha256: str) -> None: ...


class Connection:
    """Connection, key prefix and blob store; the base of every duty of the store."""

    def __init__(self, client: redis.Redis, waiting: redis.Redis, prefix: str, blobs: BlobStore, head: str) -> None:
        self._client = client
        self._waiting = waiting
        self._prefix = prefix
        self._blobs = blobs
        self._head = head

    @classmethod
    def connect(
        cls,
        url: str,
        *,
        blobs: BlobStore,
        prefix: str = "patchyard:",
        lease_s: float = LEASE_S,
        max_events: int = MAX_EVENTS,
    ) -> Self:
        """A store over the Redis at `url`; does not itself connect, so that a process may start before Redis."""
        # No retries: a script whose answer was lost may have run. A pooled connection that died is noticed
        # before it is used again.
        options: dict[str, Any] = {"socket_connect_timeout": 2, "retry": Retry(NoBackoff(), 0)}
        client = redis.Redis.from_url(url, socket_timeout=5, **options)
        waiting = redis.Redis.from_url(url, socket_timeout=MAX_BLOCK_MS / 1000 + 5, **options)
        return cls(client, waiting, prefix, blobs, _constants(lease_s, max_events))

    def close(self) -> None:
        self._client.close()
        self._waiting.close()

    def ping(self) -> None:
        """Unavailable unless Redis answers."""
        self._call("PING")

    def _key(self, *parts: str) -> str:
        return self._prefix + ":".join(parts)

    def _now_ms(self) -> int:
        """The time by Redis' clock, the one clock of all hosts."""
        seconds, micros = self._call("TIME")
        return int(seconds) * 1000 + int(micros) // 1000

    def _call(self, *command: str | bytes | float) -> Any:
        with redis_edge("store"):
            return self._client.execute_command(*command)  # type: ignore[no-untyped-call]

    def _wait(self, *command: str | bytes | float) -> Any:
        """A command that may block for up to `MAX_BLOCK_MS`, on a connection that waits for it."""
        with redis_edge("store"):
            return self._waiting.execute_command(*command)  # type: ignore[no-untyped-call]

    def _batch(self, commands: Iterable[tuple[str | bytes | float, ...]]) -> list[Any]:
        """All the commands as one transaction: no other client sees or does anything in between."""
        with redis_edge("store"), self._client.pipeline(transaction=True) as pipeline:
            for command in commands:
                pipeline.execute_command(*command)  # type: ignore[no-untyped-call]
            return pipeline.execute()

    def _script(self, name: str, *arguments: str | bytes | float) -> Any:
        """Runs `lua/<name>.lua` after constants and `common.lua`; KEYS[1] is the prefix."""
        source = self._head + _source("common") + _source(name)
        digest = _digest(source)
        with redis_edge("store"):
            try:
                return self._client.evalsha(digest, 1, self._prefix, *arguments)
            except redis.exceptions.NoScriptError:
                return self._client.eval(source, 1, self._prefix, *arguments)


@functools.cache
def _source(name: str) -> str:
    return resources.files("service.store").joinpath("lua", f"{name}.lua").read_text(encoding="utf-8")


@functools.cache
def _digest(source: str) -> str:
    return hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()  # how EVALSHA names a script


def _constants(lease_s: float, max_events: int) -> str:
    """The Lua head: states and numbers are data, and live in Python only."""
    table = ", ".join(
        f"{state} = {{{', '.join(f'{to} = true' for to in sorted(allowed))}}}" for state, allowed in TRANSITIONS.items()
    )
    terminal = ", ".join(f"{state} = true" for state in sorted(TERMINAL))
    return (
        f"local TRANSITIONS = {{{table}}}\n"
        f"local TERMINAL = {{{terminal}}}\n"
        f"local MAX_RUNS = {MAX_RUNS}\n"
        f"local LEASE_MS = {int(lease_s * 1000)}\n"
        f"local RETENTION_MS = {RETENTION_S * 1000}\n"
        f"local MAX_EVENTS = {max_events}\n"
    )


def rfc3339(milliseconds: int) -> str:
    """UTC with milliseconds: `2026-01-31T09:30:00.125Z`."""
    moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def compact(value: object) -> str:
    """JSON without spaces."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
