"""Runs of a task: claim, lease, fencing, the writes of a run, and what becomes of it when its worker is lost."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from pydantic import TypeAdapter

from service.contracts import ExitReason, State, Task, TaskError
from service.errors import LeaseLost, NotFound
from service.events import Event
from service.store.connection import compact
from service.store.events import Events, encode

_FIELDS = ("phase", "summary", "todo", "usage", "patch", "verification", "review")
"""What a run may write of its task."""
_ADAPTERS: dict[str, TypeAdapter[Any]] = {
    name: TypeAdapter(cast("Any", Task.model_fields[name].annotation)) for name in _FIELDS
}


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to write as this run of this task; it ends 30 s after the last renewal."""

    task_id: str
    run: int
    fence: int
    worker: str


@dataclass(frozen=True, slots=True)
class RunSignals:
    """What the outside wants of a run."""

    cancel_requested: bool


@dataclass(frozen=True, slots=True)
class Artifact:
    name: str
    sha256: str
    size: int


@dataclass(frozen=True, slots=True)
class SweepReport:
    """What a sweep did with the tasks of lost workers, and how many bells are to be rung now."""

    queued: tuple[str, ...]
    failed: tuple[str, ...]
    cancelled: tuple[str, ...]
    bells: int


class Runs(Events):
    """Every write names its lease and is refused with LeaseLost once another has it, or the task has ended."""

    def claim(self, worker: str) -> Lease | None:
        """Starts the task whose turn it is, as `worker`'s; None when there is none."""
        answer = self._script("claim", worker)
        if answer is None:
            return None
        return Lease(task_id=answer[0].decode(), run=answer[1], fence=answer[2], worker=worker)

    def renew(self, lease: Lease) -> RunSignals:
        """Extends the lease to 30 s from now."""
        return RunSignals(cancel_requested=bool(self._held(lease, "renew")))

    def append(self, lease: Lease, event: Event) -> int:
        """Adds one event; its seq, or the last one where the task's share of such events is used up."""
        return self.append_many(lease, [event])

    def append_many(self, lease: Lease, events: Sequence[Event]) -> int:
        """Adds the events in one step; the seq of the last."""
        if not events:
            raise ValueError("append_many wants at least one event")
        last = self._held(lease, "append", *encode(events))
        self._archive_if_full(lease.task_id, len(events), last)
        return last

    def update(self, lease: Lease, **fields: Any) -> None:
        """Writes fields of the task (`phase, summary, todo, usage, patch, verification, review`).

        A changed phase is also told as an event. ValueError for another field or a value that is not its type.
        """
        self._held(lease, "update", *_pairs(fields))

    def add_artifact(self, lease: Lease, name: str, sha256: str, size: int) -> None:
        """Records a stored artifact; a later one of the same name replaces it. Telling it is the run's (`append`)."""
        self._held(lease, "artifact", name, compact({"sha256": sha256, "size": size}))

    def artifacts(self, task_id: str) -> list[Artifact]:
        """The task's artifacts by name."""
        records = self._call("HGETALL", self._key("task", task_id, "artifacts"))
        return sorted(
            (Artifact(name=name.decode(), **json.loads(record)) for name, record in records.items()),
            key=lambda artifact: artifact.name,
        )

    def finish(
        self, lease: Lease, state: State, exit_reason: ExitReason, *, error: TaskError | None = None, **fields: Any
    ) -> None:
        """Ends the task in one step: fields, state, end of lease and secrets, and the state event as the last."""
        problem = error.model_dump_json() if error else ""
        if self._held(lease, "finish", state, exit_reason, problem, *_pairs(fields)) == -2:
            raise ValueError(f"{state} is not a state in which a running task can end")

    def release(self, lease: Lease) -> State:
        """Gives an unfinished run back (drain): the task is queued again as after a lost worker."""
        answer = self._script("release", lease.task_id, lease.fence)
        if answer is None:
            raise _lost(lease)
        return State(answer.decode())

    def holds(self, task_id: str, run: int) -> bool:
        """Whether this run is the task's present one, so that its box is somebody's."""
        state, present = self._call("HMGET", self._key("task", task_id), "state", "run")
        return bool(state == State.RUNNING.encode() and int(present) == run)

    def sweep(self, *, bells_out: int = 0) -> SweepReport:
        """Queues the tasks of lost workers again, at most `MAX_RUNS` runs each, and forgets what is past retention.

        `bells_out` is what `queue.Doorbell.bells_out` says. Any number of sweepers may run at once.
        """
        swept = [part.decode() for part in self._script("sweep")]
        done = list(zip(swept[::2], swept[1::2], strict=True))
        self._forget()
        queued, workers = self._batch([
            ("ZCARD", self._key("queue")),
            ("ZCOUNT", self._key("workers"), self._now_ms(), "+inf"),
        ])  # fmt: skip
        return SweepReport(
            queued=tuple(task_id for task_id, state in done if state == State.QUEUED),
            failed=tuple(task_id for task_id, state in done if state == State.FAILED),
            cancelled=tuple(task_id for task_id, state in done if state == State.CANCELLED),
            bells=max(0, min(queued, workers) - bells_out),
        )

    def _forget(self) -> None:
        for segment in self._script("forget"):
            with contextlib.suppress(NotFound):
                self._blobs.delete(json.loads(segment)["sha256"])

    def _held(self, lease: Lease, script: str, *arguments: str | int) -> int:
        answer: int = self._script(script, lease.task_id, lease.fence, *arguments)
        if answer == -1:
            raise _lost(lease)
        return answer


def _lost(lease: Lease) -> LeaseLost:
    return LeaseLost(f"run {lease.run} no longer owns {lease.task_id}")


def _pairs(fields: dict[str, Any]) -> list[str]:
    pairs: list[str] = []
    for name, value in fields.items():
        if name not in _ADAPTERS:
            raise ValueError(f"a run does not write {name!r}")
        adapter = _ADAPTERS[name]
        text = adapter.dump_json(adapter.validate_python(value)).decode()
        pairs += [name, json.loads(text) if name == "phase" else text]
    return pairs
