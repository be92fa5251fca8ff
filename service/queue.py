"""RQ as a doorbell: a bell says "there is work", the store says which (docs/architecture.md).

A bell carries nothing. Lost or doubled bells are harmless: whoever answers one asks the store, and the sweeper rings
again while tasks wait. That is why RQ 3.0's known gaps do not matter here: a bell whose worker is killed between
pop and start is lost, and one whose worker (not its child) is killed may be answered twice.

Redis is not trusted to hold only bells. RQ imports and calls whatever a job names, also as a callback, and fetches
URLs for it; JSON instead of pickle does not change that. `Bell` therefore takes one exact payload and a few harmless
fields, and `DoorbellWorker` listens to no remote commands.
"""

# RQ leaves most of its methods unannotated:
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import contextlib
import logging
import os
import signal
import zlib
from typing import Any, Self, cast

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from rq import Queue, Worker
from rq.exceptions import NoSuchJobError
from rq.executions import Execution
from rq.intermediate_queue import IntermediateQueue
from rq.job import Job
from rq.worker import WorkerStatus

from service.process import die_with_parent
from service.redis_edge import redis_edge

FUNCTION = "worker.job.answer_bell"
"""The only function a worker calls; named, not imported: the service knows nothing of the worker."""
QUEUE = "patchyard"
_PAYLOAD = b'["worker.job.answer_bell", null, [], {}]'
"""What RQ's JSON serializer makes of a call of it: function, instance, args, kwargs."""
_FIELDS = frozenset({
    b"data", b"origin", b"status", b"created_at", b"enqueued_at", b"started_at", b"ended_at", b"last_heartbeat",
    b"worker_name",
})  # fmt: skip
"""What is read of a job; all else is something to import, unpickle, fetch, repeat or wait for."""
_FAILURE_TTL_S = 60
_MONITORING_S = 5
"""Between a busy worker's heartbeats (docs/architecture.md)."""
_WORKER_TTL_S = 45
"""RQ then waits 30 s for a bell at a time, and 40 s for Redis itself before it gives a dead connection up."""

log = logging.getLogger("patchyard.queue")


class Bell(Job):
    """The one job there is. Anything else found in Redis is discarded as if it did not exist."""

    def restore(self, raw_data: Any) -> None:
        if _unpacked(raw_data.get(b"data", b"")) != _PAYLOAD:
            raise NoSuchJobError("not a bell: another payload")
        try:
            super().restore({field: value for field, value in raw_data.items() if field in _FIELDS})
        except (ValueError, TypeError, AttributeError) as error:
            raise NoSuchJobError("not a bell: unreadable") from error
        self.timeout, self.result_ttl, self.failure_ttl = -1, 0, _FAILURE_TTL_S

    @classmethod
    def fetch(cls, id: str, connection: redis.Redis | None = None, serializer: Any = None) -> Self:
        try:
            return cast("Self", super().fetch(id, connection=connection, serializer=serializer))
        except (NoSuchJobError, ValueError, redis.ResponseError) as error:
            log.warning("discarded a job that is not a bell: %.80r (%s)", id, error)
            if connection is not None:
                connection.delete(cls.redis_job_namespace_prefix + id)
            raise NoSuchJobError(f"not a bell: {id!r}") from error


def _unpacked(data: bytes) -> bytes:
    """The payload, compressed or not as RQ may have it; never more than a little longer than a bell's."""
    try:
        return zlib.decompressobj().decompress(data, len(_PAYLOAD) + 1)
    except zlib.error:
        return data


class BellQueue(Queue):
    job_class = Bell

    @classmethod
    def lmove(cls, connection: redis.Redis, queue_key: str, timeout: int | None) -> Any:
        """The next id, as RQ's. One that is no text would end the worker, and the next one that finds it again."""
        while (taken := super().lmove(connection, queue_key, timeout)) is not None:
            if _is_text(taken[1]):
                break
            log.warning("discarded an id that is no text: %.80r", taken[1])
            connection.lrem(IntermediateQueue(queue_key, connection).key, 1, taken[1])
        return taken


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


class Doorbell:
    """Rings, and counts the bells that nobody has answered yet. Never blocks for long: Unavailable within seconds."""

    def __init__(self, url: str, *, name: str = QUEUE) -> None:
        self._redis = redis.Redis.from_url(url, socket_connect_timeout=2, socket_timeout=5, retry=Retry(NoBackoff(), 0))
        self._queue = BellQueue(name, connection=self._redis, serializer="json")

    def ring(self, n: int = 1) -> int:
        """Rings up to `n` times, but never for more bells than there are workers; how often it did.

        With no worker there, one bell waits for the first. Twins that ring together may ring once too often.
        """
        with redis_edge("queue"):
            out = self._redis.llen(self._queue.key)
            workers = self._redis.scard(f"rq:workers:{self._queue.name}")
            count = min(n, max(workers, 1) - out)
            if count > 0:
                bell = BellQueue.prepare_data(FUNCTION, timeout=-1, result_ttl=0, failure_ttl=_FAILURE_TTL_S)
                self._queue.enqueue_many([bell] * count)
            return max(count, 0)

    def bells_out(self) -> int:
        """Bells rung and not yet taken by a worker."""
        with redis_edge("queue"):
            return int(self._redis.llen(self._queue.key))

    def close(self) -> None:
        self._redis.close()


class DoorbellWorker(Worker):
    """Answers bells, each in a forked child that dies with it. No threads, no scheduler, no remote commands.

    On SIGTERM the child gets SIGTERM too (`answer_bell` may then give its task back), and the worker ends after it.
    RQ's timeout is off: a run has its own wall clock (worker/control.py).
    """

    job_class = Bell
    queue_class = BellQueue
    max_connection_wait_time = 5.0

    @classmethod
    def over(cls, url: str, *, name: str | None = None, queue: str = QUEUE) -> Self:
        """A worker for `work()`; `name` must be new: RQ refuses one that seems to live."""
        connection = redis.Redis.from_url(url, socket_connect_timeout=5)
        return cls(
            [BellQueue(queue, connection=connection, serializer="json")],
            name=name,
            connection=connection,
            serializer="json",
            default_result_ttl=0,
            worker_ttl=_WORKER_TTL_S,
            job_monitoring_interval=_MONITORING_S,
            log_job_description=False,
        )

    def bootstrap(self, *_: Any, **__: Any) -> None:
        """As RQ's, without its own log handlers and its thread for remote commands."""
        self.register_birth()
        self.set_state(WorkerStatus.STARTED)

    def run_maintenance_tasks(self) -> None:
        # It reads names that anyone with access to Redis may have written; what is no text is not ours to tidy.
        try:
            super().run_maintenance_tasks()
        except UnicodeDecodeError:
            log.warning("RQ's registries hold a name that is no text; they are not tidied")

    def fork_work_horse(self, job: Job, queue: Queue) -> None:
        self._parent = os.getpid()
        super().fork_work_horse(job, queue)

    def main_work_horse(self, job: Job, queue: Queue) -> None:
        # Killed, not asked: a worker that is gone renews no lease, and its task is given to another.
        die_with_parent(self._parent, signal.SIGKILL)
        super().main_work_horse(job, queue)

    def maintain_heartbeats(self, job: Job, execution: Execution) -> None:
        # RQ's worker would end, and the run with it. The run decides for itself how long it can do without Redis.
        with contextlib.suppress(redis.RedisError):
            super().maintain_heartbeats(job, execution)

    def handle_warm_shutdown_request(self) -> None:
        super().handle_warm_shutdown_request()
        if self.horse_pid:
            self.kill_horse(signal.SIGTERM)
