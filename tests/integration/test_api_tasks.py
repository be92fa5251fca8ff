"""Submitting, looking, waiting, cancelling, downloading: over HTTP, against a real Valkey."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from api_kit import TAR, Api, make_tar, patch_info, serving, wait_until

from service.contracts import ExitReason, State, TaskError
from service.intake import Manifest

PATCH = b"diff --git a/x b/x\r\n\xff\n"


@pytest.fixture
def api(redis_url: str, tmp_path: Path) -> Iterator[Api]:
    with serving(redis_url, tmp_path) as running:
        yield running


def problem(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """The refusal, checked to be a whole problem document."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = answer.json()
    assert body["code"] == code, body
    assert body["status"] == status
    assert body["request_id"] == answer.headers["x-request-id"]
    assert set(body) >= {"type", "title", "status", "detail", "code", "request_id"}
    assert status not in (429, 503) or int(answer.headers["retry-after"]) > 0
    return body


def form(task: Any, archive: bytes | None = TAR) -> dict[str, Any]:
    text = task if isinstance(task, str) else json.dumps(task)
    files: dict[str, Any] = {"task": (None, text)}
    if archive is not None:
        files["workspace"] = ("../../etc/x.tgz", archive)
    return files


def leftovers(api: Api) -> list[Path]:
    return list((api.settings.blob_dir / "tmp").iterdir())


def test_an_upload_is_known_by_its_bytes_within_its_team(api: Api) -> None:
    first = api.client().post("/v1/workspaces", content=TAR)
    assert first.status_code == 201
    body = first.json()
    assert body["sha256"] == hashlib.sha256(TAR).hexdigest()
    assert (body["size"], body["files"], body["unpacked_size"], body["format"]) == (len(TAR), 2, 18, "tar.gz")
    assert set(body) == {"id", "sha256", "size", "format", "files", "unpacked_size", "notes", "created_at"}
    assert api.client().post("/v1/workspaces", content=TAR).json() == body
    _, other = api.key("team-b", "submit")
    assert other.post("/v1/workspaces", content=TAR).json()["id"] != body["id"]
    stored = api.store.workspace("default", body["id"])
    assert stored is not None
    with api.blobs.open(stored.manifest) as blob:
        assert sorted(Manifest.load(blob)) == [b"README", b"shop/price.py"]
    assert leftovers(api) == []


def test_an_upload_without_a_length_is_streamed(api: Api) -> None:
    answer = api.client().post("/v1/workspaces", content=(TAR[at : at + 7] for at in range(0, len(TAR), 7)))
    assert answer.status_code == 201


def test_a_json_task_is_queued_with_what_was_resolved(api: Api) -> None:
    workspace = api.client().post("/v1/workspaces", content=TAR).json()["id"]
    answer = api.client().post(
        "/v1/tasks",
        json={
            "prompt": "fix ✓",
            "model": "unpriced",
            "workspace": {"id": workspace},
            "resources": {"memory_mb": 99_999},
        },
    )
    assert answer.status_code == 202
    body = answer.json()
    assert answer.headers["location"] == f"/v1/tasks/{body['id']}"
    assert (body["state"], body["team"], body["queue_position"]) == ("queued", "default", 1)
    assert (body["prompt"], body["image"]) == ("fix ✓", "patchyard-sandbox")
    assert body["limits"]["max_tokens"] == 2_000_000
    assert body["resources"] == {"cpus": 1.0, "memory_mb": 4096, "disk_mb": 1024, "pids": 512}
    assert api.client().get(answer.headers["location"]).json() == body
    assert api.app.state.parts.ring() == 0, "the bell had been rung"


@pytest.mark.parametrize("order", [("task", "workspace"), ("workspace", "task")])
def test_one_multipart_request_submits_archive_and_task(api: Api, order: tuple[str, str]) -> None:
    parts = form({"prompt": "fix", "model": "demo"})
    answer = api.client().post("/v1/tasks", files=[(name, parts[name]) for name in order])
    assert answer.status_code == 202, answer.text
    workspace = api.store.workspace("default", answer.json()["workspace"]["id"])
    assert workspace is not None
    assert workspace.sha256 == hashlib.sha256(TAR).hexdigest()
    assert leftovers(api) == []


def test_a_multipart_task_without_archive_is_a_task(api: Api) -> None:
    answer = api.client().post("/v1/tasks", files=form({"prompt": "why?", "model": "demo"}, archive=None))
    assert answer.status_code == 202
    assert answer.json()["workspace"] is None


@pytest.mark.parametrize(
    ("files", "code"),
    [
        ([("workspace", ("x", TAR))], "invalid_request"),
        ([("task", (None, '{"prompt": "a", "model": "demo"}')), ("other", (None, "x"))], "invalid_request"),
        ([("task", (None, '{"prompt": "a", "model": "demo"}'))] * 2, "invalid_request"),
        ([("task", (None, "{")), ("workspace", ("x", TAR))], "invalid_json"),
        ([("task", (None, '{"prompt": "a", "model": "nope"}')), ("workspace", ("x", TAR))], "unknown_model"),
        ([("task", (None, '{"prompt": "a", "model": "demo"}')), ("workspace", ("x", b"no"))], "archive_unreadable"),
        (
            [
                ("task", (None, '{"prompt": "a", "model": "demo", "workspace": {"id": "ws_1"}}')),
                ("workspace", ("x", TAR)),
            ],
            "workspace_not_found",
        ),
    ],
)
def test_a_wrong_multipart_submission_leaves_nothing(api: Api, files: Any, code: str) -> None:
    answer = api.client().post("/v1/tasks", files=files)
    problem(answer, 404 if code == "workspace_not_found" else 422, code)
    assert api.client().get("/v1/tasks").json() == {"items": [], "next_cursor": None}
    assert leftovers(api) == []


def test_a_workspace_is_given_once(api: Api) -> None:
    workspace = api.client().post("/v1/workspaces", content=TAR).json()["id"]
    task = {"prompt": "a", "model": "demo", "workspace": {"id": workspace}}
    body = problem(api.client().post("/v1/tasks", files=form(task)), 422, "invalid_request")
    assert [error["pointer"] for error in body["errors"]] == ["/workspace"]


@pytest.mark.parametrize(
    ("content_type", "content"),
    [
        ("multipart/form-data", b"x"),
        ("multipart/form-data; boundary=b", b"x"),
        ("multipart/form-data; boundary=b", b'--b\r\nContent-Disposition: form-data; name="task"\r\n\r\n{"prompt"'),
        ("multipart/form-data; boundary=b", b"--b\r\nX" + b"y" * 10_000),
        ("multipart/form-data; boundary=" + "b" * 300, b"x"),
        ("multipart/form-data; boundary=b", b""),
    ],
)
def test_a_malformed_multipart_body_is_refused(api: Api, content_type: str, content: bytes) -> None:
    answer = api.client().post("/v1/tasks", content=content, headers={"Content-Type": content_type})
    problem(answer, 422, "invalid_multipart")


def test_env_values_rest_sealed_and_are_never_shown(api: Api) -> None:
    env = {"TOKEN": "s3cret-value-1", "OTHER": {"value": "s3cret-value-2", "phases": ["agent"]}}
    body = api.submit(env=env)
    assert body["env"] == ["OTHER", "TOKEN"]
    task = api.store.task(body["id"])
    assert task is not None
    assert "s3cret" not in task.model_dump_json()
    sealed = api.store.sealed(body["id"])
    assert sealed is not None
    assert b"s3cret" not in sealed
    restored = task.spec.with_env(api.sealer.open(body["id"], sealed))
    assert restored.env_for("agent") == {"TOKEN": "s3cret-value-1", "OTHER": "s3cret-value-2"}
    assert "s3cret" not in api.client().get(f"/v1/tasks/{body['id']}").text


def test_a_workspace_too_large_for_its_box_names_the_disk_it_needs(api: Api) -> None:
    archive = make_tar({"big": bytes(40 << 20)})
    task = {"prompt": "a", "model": "demo", "resources": {"disk_mb": 64}}
    body = problem(api.client().post("/v1/tasks", files=form(task, archive)), 422, "workspace_too_large")
    assert body["disk_mb_needed"] == 80


def test_tasks_are_listed_newest_first_page_by_page_and_only_the_team_s(api: Api) -> None:
    ids = []
    for number in range(5):
        ids.append(api.submit(prompt=f"number {number}")["id"])
        time.sleep(0.002)  # ids sort by the millisecond
    _, other = api.key("team-b", "submit")
    api.submit(other)
    seen, cursor = [], None
    for _ in range(3):
        query = {"limit": "2", **({"cursor": cursor} if cursor else {})}
        page = api.client().get("/v1/tasks", params=query).json()
        seen += [task["id"] for task in page["items"]]
        cursor = page["next_cursor"]
    assert seen == ids[::-1]
    assert cursor is None


@pytest.mark.parametrize("query", ["limit=0", "limit=201", "limit=x", "cursor=nonsense", "cursor=%ff%00"])
def test_a_bad_page_request_is_refused(api: Api, query: str) -> None:
    answer = api.client().get(f"/v1/tasks?{query}")
    problem(answer, 422, "invalid_cursor" if "cursor" in query else "invalid_request")


def test_wait_answers_when_the_task_ends(api: Api) -> None:
    task = api.submit()
    lease = api.claim()
    ended = threading.Timer(0.4, api.finish, (lease,))
    ended.start()
    began = time.monotonic()
    body = api.client().get(f"/v1/tasks/{task['id']}?wait=15").json()
    took = time.monotonic() - began
    ended.join()
    assert body["state"] == "succeeded"
    assert 0.2 < took < 5


def test_wait_answers_in_time_when_it_does_not_end(api: Api) -> None:
    task = api.submit()
    began = time.monotonic()
    assert api.client().get(f"/v1/tasks/{task['id']}?wait=1").json()["state"] == "queued"
    assert 0.9 < time.monotonic() - began < 4


@pytest.mark.parametrize("wait", ["-1", "61", "x", "1.5", "1&wait=2"])
def test_a_bad_wait_is_refused(api: Api, wait: str) -> None:
    problem(api.client().get(f"/v1/tasks/{api.submit()['id']}?wait={wait}"), 422, "invalid_request")


def test_cancelling_a_queued_task_ends_it(api: Api) -> None:
    task = api.submit()
    answer = api.client().post(f"/v1/tasks/{task['id']}/cancel")
    assert answer.status_code == 200
    assert (answer.json()["state"], answer.json()["exit_reason"]) == ("cancelled", "cancelled")
    body = problem(api.client().post(f"/v1/tasks/{task['id']}/cancel"), 409, "invalid_state")
    assert body["state"] == "cancelled"
    body = problem(api.client().get(f"/v1/tasks/{task['id']}/patch"), 404, "no_patch")
    assert body["reason"] == "the task was cancelled while queued"


def test_cancelling_a_running_task_asks_its_run(api: Api) -> None:
    task = api.submit()
    lease = api.claim()
    for _ in range(2):
        answer = api.client().post(f"/v1/tasks/{task['id']}/cancel")
        assert (answer.status_code, answer.json()["state"]) == (202, "running")
    assert api.store.renew(lease).cancel_requested


def test_the_patch_is_the_stored_bytes_with_its_headers(api: Api) -> None:
    task = api.submit()
    lease = api.claim()
    path = f"/v1/tasks/{task['id']}/patch"
    assert problem(api.client().get(path), 409, "not_finished")["state"] == "running"
    api.finish(lease, patch=PATCH)
    answer = api.client().get(path)
    assert (answer.status_code, answer.content) == (200, PATCH)
    etag = f'"{hashlib.sha256(PATCH).hexdigest()}"'
    assert answer.headers["etag"] == etag
    assert answer.headers["content-type"].startswith("text/x-diff")
    assert answer.headers["content-disposition"].startswith(f'attachment; filename="{task["id"]}.patch"')
    assert answer.headers["x-patch-status"] == "complete"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert api.client().get(path, headers={"If-None-Match": etag}).status_code == 304
    assert api.client().get(path, headers={"If-None-Match": '"x"'}).status_code == 200
    assert api.client().get(path, headers={"Range": "bytes=0-3"}).content == PATCH[:4]
    problem(api.client().get(path + "?format=mbox"), 422, "not_available")


def test_an_empty_patch_is_204_only_when_proven(api: Api) -> None:
    task = api.submit()
    api.finish(api.claim(), patch=b"")
    answer = api.client().get(f"/v1/tasks/{task['id']}/patch")
    assert (answer.status_code, answer.content, answer.headers["x-patch-status"]) == (204, b"", "complete")

    task = api.submit()
    info = patch_info(status="none", bytes=0, reason="the sandbox was lost before a checkpoint")
    error = TaskError(code="sandbox_error", message="lost")
    api.finish(api.claim(), state=State.FAILED, exit_reason=ExitReason.SANDBOX_ERROR, error=error, patch=None)
    problem(api.client().get(f"/v1/tasks/{task['id']}/patch"), 404, "no_patch")

    task = api.submit()
    lease = api.claim()
    api.store.update(lease, patch=info)
    api.store.finish(lease, State.FAILED, ExitReason.SANDBOX_ERROR, error=error)
    body = problem(api.client().get(f"/v1/tasks/{task['id']}/patch"), 404, "no_patch")
    assert body["reason"] == "the sandbox was lost before a checkpoint"


def test_artifacts_are_listed_and_served_in_ranges_as_attachments(api: Api) -> None:
    task = api.submit()
    lease = api.claim()
    data = bytes(range(256)) * 1_000
    blob = api.blobs.put([data])
    api.store.add_artifact(lease, "outputs/<b>naïve.html", blob.sha256, blob.size)
    base = f"/v1/tasks/{task['id']}/artifacts"
    assert api.client().get(base).json() == {
        "items": [{"name": "outputs/<b>naïve.html", "size": len(data), "sha256": blob.sha256}]
    }
    path = f"{base}/outputs/%3Cb%3Ena%C3%AFve.html"
    whole = api.client().get(path)
    assert whole.content == data
    assert whole.headers["content-type"] == "application/octet-stream"
    assert whole.headers["content-disposition"].startswith('attachment; filename="_b_na_ve.html"')
    assert whole.headers["x-content-type-options"] == "nosniff"
    part = api.client().get(path, headers={"Range": "bytes=1000-1999"})
    assert (part.status_code, part.content) == (206, data[1000:2000])
    assert part.headers["content-range"] == f"bytes 1000-1999/{len(data)}"
    assert api.client().get(path, headers={"Range": "bytes=-5"}).content == data[-5:]
    problem(api.client().get(path, headers={"Range": f"bytes={len(data)}-"}), 416, "range_not_satisfiable")
    problem(api.client().get(f"{base}/transcript.jsonl"), 404, "artifact_not_found")


def test_models_are_the_catalogue(api: Api) -> None:
    body = api.client().get("/v1/models").json()
    assert [card["name"] for card in body["models"]] == ["demo", "unpriced"]
    assert body["images"] == ["patchyard-sandbox", "other-image"]
    assert body["maxima"]["memory_mb"] == 4096


def test_without_a_catalogue_nothing_is_submitted(redis_url: str, tmp_path: Path) -> None:
    with serving(redis_url, tmp_path, published=[]) as api:
        problem(api.client().post("/v1/tasks", json={"prompt": "a"}), 503, "no_catalogue")
        problem(api.client().get("/v1/models"), 503, "no_catalogue")
        assert problem(api.client().get("/readyz"), 503, "not_ready")["reasons"] == [
            "no worker has published its models and images yet"
        ]
        assert api.client().get("/v1/tasks").status_code == 200


def test_readiness_says_why_tasks_would_wait(api: Api) -> None:
    client = api.client(None)
    assert client.get("/healthz").json() == {"status": "ok"}
    assert client.get("/readyz").json() == {
        "status": "degraded",
        "reasons": [
            "no worker is alive; queued tasks wait",
            "no keeper reports a Docker engine; queued tasks wait",
        ],
    }
    api.store.heartbeat_worker("w1")
    api.store.heartbeat_keeper("host-a", {"ok": False, "engine": "connection refused"})
    assert client.get("/readyz").json() == {
        "status": "degraded",
        "reasons": ["the engine of host-a does not answer: connection refused"],
    }
    api.store.heartbeat_keeper("host-a", {"ok": True, "engine": "Docker 20.10"})
    assert client.get("/readyz").json() == {"status": "ok", "reasons": []}


def test_figures_count_what_the_store_holds(api: Api) -> None:
    api.submit()
    api.submit()
    api.finish(api.claim())
    text = api.client(None).get("/metrics").text
    assert "patchyard_tasks_queued 1.0" in text
    assert 'patchyard_tasks_finished_total{exit_reason="completed"} 1.0' in text


def test_the_docs_page_needs_nothing_from_elsewhere(api: Api) -> None:
    page = api.client(None).get("/docs")
    assert page.status_code == 200
    assert "http:" not in page.text
    assert "https:" not in page.text
    assert "script-src 'self'" in page.headers["content-security-policy"]
    assert "unsafe" not in page.headers["content-security-policy"]
    for asset in ("/docs/docs.js", "/docs/docs.css", "/openapi.json"):
        assert api.client(None).get(asset).status_code == 200


def test_twenty_submissions_at_once_are_twenty_tasks(api: Api) -> None:
    answers: list[int] = []
    client = api.client()

    def one() -> None:
        answers.append(client.post("/v1/tasks", files=form({"prompt": "a", "model": "demo"})).status_code)

    threads = [threading.Thread(target=one) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [202] * 20
    assert len(api.client().get("/v1/tasks").json()["items"]) == 20
    wait_until(lambda: leftovers(api) == [])
