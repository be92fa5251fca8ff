"""Tasks for tests of the store and of those who use it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from service.contracts import Task, TaskSpec, new_id


def new_task(team: str = "red", **spec: Any) -> Task:
    """A task that has not been submitted yet; `spec` goes over a spec of nothing but a prompt."""
    return Task(
        id=new_id("task"),
        team=team,
        submitter="key_1",
        spec=TaskSpec(**{"prompt": "mend it", **spec}),
        created_at=datetime.now(UTC),
    )
