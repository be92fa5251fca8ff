"""Which containers the reaper takes: those of runs without a lease and old strays, never another deployment's."""

from __future__ import annotations

import time
from typing import Any

import pytest
from docker.errors import APIError, NotFound

from service.errors import SandboxError
from worker.sandbox.reaper import reap


class FakeResponse:
    def __init__(self, status_code: int) -> None:
        self.status_code = status_code
        self.reason = "because"
        self.url = "unix://engine"


class FakeEngine:
    """The two calls the reaper makes, on a table of containers."""

    def __init__(self, *containers: dict[str, Any], broken: Exception | None = None) -> None:
        self.listed = list(containers)
        self.removed: list[str] = []
        self.broken = broken

    def containers(self, *, all: bool, filters: dict[str, str]) -> list[dict[str, Any]]:
        assert all
        name, _, value = filters["label"].partition("=")
        return [container for container in self.listed if container["Labels"].get(name) == value]

    def remove_container(self, container: str, *, force: bool, v: bool) -> None:
        assert force
        assert v
        if self.broken:
            raise self.broken
        self.removed.append(container)


def container(task: str, run: int, *, purpose: str = "task", deployment: str = "d", age: float = 0) -> dict[str, Any]:
    return {
        "Id": f"id-{task}-{run}-{purpose}",
        "Names": [f"/patchyard-{task}-{run}"],
        "Created": int(time.time() - age),
        "Labels": {
            "patchyard.deployment": deployment,
            "patchyard.task": task,
            "patchyard.run": str(run),
            "patchyard.purpose": purpose,
        },
    }


def test_only_runs_without_a_lease_go() -> None:
    engine = FakeEngine(
        container("task_a", 1),
        container("task_a", 2),
        container("task_b", 1),
        container("task_c", 1, deployment="other"),
    )
    assert reap(engine, "d", lambda task, run: (task, run) == ("task_a", 2)) == [
        "patchyard-task_a-1",
        "patchyard-task_b-1",
    ]
    assert engine.removed == ["id-task_a-1-task", "id-task_b-1-task"]


def test_an_export_box_lives_as_long_as_its_run() -> None:
    engine = FakeEngine(container("task_a", 1, purpose="export"), container("task_b", 1, purpose="export"))
    assert reap(engine, "d", lambda task, run: task == "task_a") == ["patchyard-task_b-1"]


def test_a_probe_has_ten_minutes() -> None:
    young, old = container("probe-1", 0, purpose="probe", age=500), container("probe-2", 0, purpose="probe", age=700)
    assert reap(FakeEngine(young, old), "d", lambda task, run: False) == ["patchyard-probe-2-0"]


def test_one_that_is_gone_already_counts_as_removed() -> None:
    engine = FakeEngine(container("task_a", 1), broken=NotFound("gone", response=FakeResponse(404)))
    assert reap(engine, "d", lambda task, run: False) == ["patchyard-task_a-1"]


def test_one_that_cannot_be_removed_waits_for_the_next_round() -> None:
    engine = FakeEngine(container("task_a", 1), broken=APIError("stuck", response=FakeResponse(500)))
    assert reap(engine, "d", lambda task, run: False) == []


def test_an_unanswered_question_about_a_lease_removes_nothing() -> None:
    engine = FakeEngine(container("task_a", 1))

    def alive(task: str, run: int) -> bool:
        raise SandboxError("the store does not answer")

    with pytest.raises(SandboxError):
        reap(engine, "d", alive)
    assert engine.removed == []
