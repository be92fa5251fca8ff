"""The edge's pure parts: ranges, attachment names, what a patch request earns, what a task is resolved to."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from api_kit import MAXIMA, catalogue, patch_info

from service.api.app import create_app
from service.api.results import RangeNotSatisfiable, attachment, byte_range, exported
from service.api.submit import check_fits, resolve
from service.blobs import DiskBlobs
from service.contracts import ExitReason, Limits, PatchFile, Resources, State, Task, TaskSpec, Workspace
from service.errors import Conflict, InvalidRequest, NotAvailable, NotFound
from service.seal import Sealer
from service.settings import ServiceSettings
from service.store import Store

NOW = datetime(2026, 1, 2, tzinfo=UTC)
MIB = 1 << 20


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (None, None),
        ("bytes=0-4", range(5)),
        ("bytes=5-", range(5, 10)),
        ("bytes=-3", range(7, 10)),
        ("bytes=-99", range(10)),
        ("bytes=8-99", range(8, 10)),
        ("bytes=0-1,3-4", None),
        ("bytes=4-2", None),
        ("bytes=-", None),
        ("lines=1-2", None),
        ("bytes=0-" + "9" * 30, None),
    ],
)
def test_one_byte_range_is_served_and_anything_else_is_the_whole(header: str | None, expected: range | None) -> None:
    assert byte_range(header, 10) == expected


@pytest.mark.parametrize("header", ["bytes=10-", "bytes=10-12", "bytes=-0"])
def test_a_range_beyond_the_end_is_416(header: str) -> None:
    with pytest.raises(RangeNotSatisfiable) as caught:
        byte_range(header, 10)
    assert (caught.value.status, caught.value.code) == (416, "range_not_satisfiable")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("setup.log", "attachment; filename=\"setup.log\"; filename*=UTF-8''setup.log"),
        ('a";\r\nX: y', "attachment; filename=\"a____X__y\"; filename*=UTF-8''a%22%3B%0D%0AX%3A%20y"),
        ("naïve.txt", "attachment; filename=\"na_ve.txt\"; filename*=UTF-8''na%C3%AFve.txt"),
    ],
)
def test_a_file_name_cannot_leave_its_parameter(name: str, expected: str) -> None:
    assert attachment(name) == expected


def task(**changes: Any) -> Task:
    values = {
        "id": "task_01ARZ3NDEKTSV4RRFFQ69G5FAV",
        "team": "a",
        "submitter": "key_1",
        "spec": TaskSpec(prompt="p", workspace={"id": "ws_1"}),
        "created_at": NOW,
        "started_at": NOW,
        "state": State.SUCCEEDED,
        "exit_reason": ExitReason.COMPLETED,
        **changes,
    }
    return Task.model_validate(values)


@pytest.mark.parametrize("state", [State.QUEUED, State.RUNNING, State.WAITING])
def test_no_patch_before_the_end(state: State) -> None:
    with pytest.raises(Conflict) as caught:
        exported(task(state=state, exit_reason=None, patch=patch_info(sha256="0" * 64, bytes=5)))
    assert (caught.value.code, caught.value.extra) == ("not_finished", {"state": state})


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"state": State.CANCELLED, "exit_reason": ExitReason.CANCELLED, "started_at": None},
            "the task was cancelled while queued",
        ),
        (
            {"state": State.FAILED, "exit_reason": ExitReason.WORKSPACE_ERROR},
            "the workspace could not be loaded",
        ),
        ({"patch": patch_info(status="none", reason="the box was gone", bytes=0)}, "the box was gone"),
        (
            {"state": "failed", "exit_reason": "export_failed", "patch": patch_info(reproduces_tree=False)},
            "the patch could not be proven",
        ),
        (
            {"state": "failed", "exit_reason": "model_error", "error": {"code": "x", "message": "no answer"}},
            "no answer",
        ),
        ({"spec": TaskSpec(prompt="p")}, "the task had no workspace"),
    ],
)
def test_where_nothing_was_proven_there_is_no_patch_and_a_reason(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(NotFound) as caught:
        exported(task(**changes))
    assert (caught.value.code, caught.value.extra) == ("no_patch", {"reason": reason})


def test_a_patch_that_is_too_large_lists_its_files() -> None:
    file = PatchFile(path="big", status="added", additions=9, deletions=0, old_mode=None, new_mode="100644")
    with pytest.raises(Conflict) as caught:
        exported(
            task(
                state=State.FAILED,
                exit_reason=ExitReason.PATCH_TOO_LARGE,
                patch=patch_info(status="none", file_list=[file], files=7),
            )
        )
    assert caught.value.code == "patch_too_large"
    assert caught.value.extra == {"files": [file.model_dump(mode="json")], "file_count": 7}


def test_resolving_fills_in_what_the_deployment_decides() -> None:
    asked = TaskSpec(prompt="p", model="demo", resources=Resources(cpus=64, memory_mb=512, disk_mb=9000, pids=512))
    known = resolve(asked, catalogue())
    assert known.image == "patchyard-sandbox"
    assert known.resources == Resources(cpus=2, memory_mb=512, disk_mb=2048, pids=512)
    assert known.limits == Limits()


def test_a_model_without_a_price_gets_a_token_limit_in_place_of_one_in_money() -> None:
    known = resolve(TaskSpec(prompt="p", model="unpriced"), catalogue())
    assert (known.limits.max_tokens, known.limits.max_cost_usd) == (2_000_000, 3.0)
    own = resolve(TaskSpec(prompt="p", model="unpriced", limits=Limits(max_tokens=5)), catalogue())
    assert own.limits.max_tokens == 5


def test_an_unknown_model_is_refused_with_the_known_names() -> None:
    with pytest.raises(InvalidRequest) as caught:
        resolve(TaskSpec(prompt="p", model="gpt-9"), catalogue())
    assert caught.value.code == "unknown_model"
    assert caught.value.extra == {"models": ["demo", "unpriced"]}
    assert "demo, unpriced" in caught.value.detail


def test_only_the_default_image_is_available() -> None:
    assert (
        resolve(TaskSpec(prompt="p", model="demo", image="patchyard-sandbox"), catalogue()).image == "patchyard-sandbox"
    )
    with pytest.raises(NotAvailable):
        resolve(TaskSpec(prompt="p", model="demo", image="other-image"), catalogue())


def workspace(size: int) -> Workspace:
    return Workspace(
        id="ws_1",
        team="a",
        sha256="0",
        size=1,
        format="tar",
        files=1,
        unpacked_size=size,
        blob="0",
        manifest="0",
        created_at=NOW,
    )


def test_a_workspace_may_fill_half_the_disk_of_its_box() -> None:
    check_fits(workspace(512 * MIB), Resources(disk_mb=1024), MAXIMA)
    with pytest.raises(InvalidRequest) as caught:
        check_fits(workspace(512 * MIB + 1), Resources(disk_mb=1024), MAXIMA)
    assert caught.value.code == "workspace_too_large"
    assert caught.value.extra == {"disk_mb_needed": 1025}
    assert "maximum" not in caught.value.detail


def test_a_workspace_that_no_permitted_box_could_hold_says_so() -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_fits(workspace(2000 * MIB), Resources(disk_mb=2048), MAXIMA)
    assert "needs resources.disk_mb 4000, which is beyond this operator's maximum of 2048" in caught.value.detail


def test_the_openapi_document_declares_problems_and_has_no_dangling_reference(tmp_path: Path) -> None:
    blobs = DiskBlobs(tmp_path)
    store = Store.connect("redis://127.0.0.1:1/0", blobs=blobs)
    app = create_app(ServiceSettings(_env_file=None), store, blobs, Sealer(b"k" * 32), ring=lambda: None)
    document = app.openapi()
    text = json.dumps(document)
    names = set(document["components"]["schemas"])
    used = {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert used <= names
    problem = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    for path, operations in document["paths"].items():
        for operation in operations.values():
            refusals = {status: answer for status, answer in operation["responses"].items() if status >= "400"}
            assert refusals, path
            assert all(answer["content"] == problem for answer in refusals.values())
            if "503" in refusals:
                assert "Retry-After" in refusals["503"]["headers"]
    assert {(path, method) for path, operations in document["paths"].items() for method in operations} == {
        ("/v1/workspaces", "post"),
        ("/v1/tasks", "post"),
        ("/v1/tasks", "get"),
        ("/v1/tasks/{task_id}", "get"),
        ("/v1/tasks/{task_id}/events", "get"),
        ("/v1/tasks/{task_id}/cancel", "post"),
        ("/v1/tasks/{task_id}/patch", "get"),
        ("/v1/tasks/{task_id}/artifacts", "get"),
        ("/v1/tasks/{task_id}/artifacts/{name}", "get"),
        ("/v1/models", "get"),
        ("/v1/keys", "post"),
        ("/v1/keys", "get"),
        ("/v1/keys/{key_id}", "delete"),
        ("/healthz", "get"),
        ("/readyz", "get"),
        ("/metrics", "get"),
    }
    store.close()
