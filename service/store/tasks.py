"""Task records as clients see them: submit, read, list, cancel."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from typing import Any

from service.contracts import EnvValue, State, Task, TaskSpec
from service.errors import Conflict, InvalidRequest, NotFound
from service.store.connection import Connection, rfc3339

_TEXT = frozenset({"team", "submitter", "state", "phase", "exit_reason"})
"""Fields kept as they are; `run` is a counter, the rest is JSON."""
_INTERNAL = frozenset({"seq", "fence", "cancel", "rank", "dropped", "worker", "started_ms", "finished_ms"})
"""Fields of the hash that are not the task's own."""
_SUBMITTED = frozenset({"spec", "team", "submitter", "created_at", "parent", "retry_of"})
_CURSOR = re.compile(r"task_[0-9A-Z]{26}")


class Tasks(Connection):
    """Tasks by id and by team; a task of another team is the caller's to hide."""

    def submit(self, task: Task, *, sealed: bytes | None) -> Task:
        """Records and queues a new task in one step; durable as the server's `appendfsync` says on return.

        Secret values are blanked here once more: `sealed` is the only form in which they rest.
        """
        record = task.model_copy(update={"spec": _without_secrets(task.spec)}).model_dump(mode="json")
        pairs: list[str] = []
        for field in sorted(_SUBMITTED):
            if record[field] is not None:
                pairs += [field, record[field] if field in _TEXT else json.dumps(record[field])]
        workspace = (task.spec.workspace and task.spec.workspace.id) or ""
        position = self._script("submit", task.id, task.team, sealed or b"", workspace, *pairs)
        if position < 0:
            raise Conflict("a task of this id exists", code="task_exists")
        return task.model_copy(
            update={"spec": _without_secrets(task.spec), "state": State.QUEUED, "queue_position": position + 1}
        )

    def task(self, task_id: str) -> Task | None:
        """The task as it is now, its place in the queue included; None for an unknown id."""
        return self._read([task_id])[0]

    def tasks(self, team: str, *, limit: int = 50, cursor: str | None = None) -> tuple[list[Task], str | None]:
        """A page of the team's tasks, newest first, and the cursor of the next page if there is one."""
        below = f"({_open_cursor(cursor)}" if cursor else "+"
        ids = [
            name.decode()
            for name in self._call(
                "ZRANGE", self._key("tasks", team), below, "-", "BYLEX", "REV", "LIMIT", 0, limit + 1
            )
        ]
        page = [task for task in self._read(ids[:limit]) if task is not None]
        return page, _cursor(ids[limit - 1]) if len(ids) > limit else None

    def request_cancel(self, task_id: str) -> State:
        """Cancels a queued task at once and asks a running one to stop; the state it is in then.

        NotFound for an unknown task, Conflict(code=invalid_state) for one that has ended.
        """
        answer = self._script("cancel", task_id)
        if answer is None:
            raise NotFound("no such task", code="task_not_found")
        done, state = bool(answer[0]), State(answer[1].decode())
        if not done:
            raise Conflict(f"the task is already {state}", code="invalid_state", extra={"state": str(state)})
        return state

    def sealed(self, task_id: str) -> bytes | None:
        """The task's sealed secrets while it has not ended; None when there are none."""
        value: bytes | None = self._call("GET", self._key("task", task_id, "sealed"))
        return value

    def _read(self, ids: list[str]) -> list[Task | None]:
        commands: list[tuple[str, ...]] = []
        for task_id in ids:
            commands.append(("HGETALL", self._key("task", task_id)))
            commands.append(("ZRANK", self._key("queue"), task_id))
        answers = self._batch(commands) if commands else []
        return [
            _task(task_id, record, position) if record else None
            for task_id, record, position in zip(ids, answers[::2], answers[1::2], strict=True)
        ]


def _without_secrets(spec: TaskSpec) -> TaskSpec:
    env = {
        name: "" if isinstance(value, str) else EnvValue(value="", phases=value.phases)
        for name, value in spec.env.items()
    }
    webhook = spec.webhook and spec.webhook.model_copy(update={"secret": None})
    return spec.model_copy(update={"env": env, "webhook": webhook})


def _task(task_id: str, record: Mapping[bytes, bytes], position: int | None) -> Task:
    values: dict[str, Any] = {"id": task_id, "queue_position": None if position is None else position + 1}
    for raw, value in record.items():
        field = raw.decode()
        if field not in _INTERNAL:
            values[field] = value.decode() if field in _TEXT else json.loads(value)
    for field in ("started", "finished"):
        moment = record.get(f"{field}_ms".encode())
        values[f"{field}_at"] = rfc3339(int(moment)) if moment is not None else None
    return Task.model_validate(values)


def _cursor(task_id: str) -> str:
    return base64.urlsafe_b64encode(task_id.encode()).decode().rstrip("=")


def _open_cursor(cursor: str) -> str:
    try:
        task_id = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True).decode("ascii")
    except (binascii.Error, ValueError):
        task_id = ""
    if not _CURSOR.fullmatch(task_id):
        raise InvalidRequest("the cursor is not one that this list gave", code="invalid_cursor")
    return task_id
