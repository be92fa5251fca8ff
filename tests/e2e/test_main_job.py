"""Task in, patch out: the main job over HTTP, on the real parts."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import tarfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx
import pytest
from archive_kit import extract_all
from kit import Deployment, pack

pytestmark = [pytest.mark.docker, pytest.mark.xdist_group("e2e"), pytest.mark.timeout(240)]

UPLOAD = pack({"run.sh": b"echo hi\n", "gone.txt": b"bye\n", "crlf.txt": b"one\r\n"})
EXAMPLES = Path(__file__).parents[2] / "examples"


def apply(archive: bytes, patch: bytes, folder: Path) -> None:
    """Extracts our own archive and applies the patch as a reviewer would."""
    folder.mkdir()
    extract_all(BytesIO(archive), folder)
    for check in (["--check"], []):
        subprocess.run(
            ["git", "apply", *check, "-"],
            input=patch,
            cwd=folder,
            check=True,
            env={**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.parent)},
        )


def tree(folder: Path) -> dict[str, object]:
    found: dict[str, object] = {}
    for path in folder.rglob("*"):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = str(path.readlink())
        elif path.is_file():
            found[name] = (path.read_bytes(), os.access(path, os.X_OK))
    return found


def test_the_patch_recreates_the_agents_tree(app: Deployment, tmp_path: Path) -> None:
    task = app.finished(app.submit(UPLOAD, model="tree")["id"])
    assert (task["state"], task["exit_reason"], task["summary"]) == ("succeeded", "completed", "Made a tree.")
    answer = app.client.get(f"/v1/tasks/{task['id']}/patch")
    assert answer.headers["X-Patch-Status"] == "complete"
    assert answer.headers["ETag"] == f'"{task["patch"]["sha256"]}"'
    apply(UPLOAD, answer.content, tmp_path / "w")
    assert tree(tmp_path / "w") == {
        "run.sh": (b"echo hi\nx\n", True),
        "crlf.txt": (b"two\r\n", False),
        "bin.dat": (b"\xff\x00\x01", False),
        "out": "../etc/passwd",
        "link": "run.sh",
        "new/dir/empty": (b"", False),
        'a b"c.txt': (b"no end", False),
    }
    assert task["patch"]["applies_cleanly"]
    assert task["patch"]["reproduces_tree"]
    assert (task["patch"]["files"], [flag["kind"] for flag in task["patch"]["flags"]]) == (8, ["symlink"])


def test_the_demo_model_mends_the_examples(app: Deployment, tmp_path: Path) -> None:
    buffer = BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        tar.add(EXAMPLES, arcname=".", filter=lambda member: None if "__pycache__" in member.name else member)
    task = app.submit(buffer.getvalue(), model="demo")
    events = list(app.events(task["id"]))
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert events[-1]["data"]["state"] == "succeeded"
    assert {"state", "phase", "text", "message", "tool_started", "tool_output", "tool_finished", "todo", "usage"} <= {
        event["type"] for event in events
    }
    patch = app.client.get(f"/v1/tasks/{task['id']}/patch")
    apply(buffer.getvalue(), patch.content, tmp_path / "w")
    names = {item["name"] for item in app.client.get(f"/v1/tasks/{task['id']}/artifacts").json()["items"]}
    assert "transcript.jsonl" in names


def test_a_question_is_answered_with_a_proven_empty_patch(app: Deployment) -> None:
    task = app.finished(app.submit(UPLOAD, model="answer")["id"])
    assert (task["state"], task["exit_reason"], task["summary"]) == ("succeeded", "answered", "All done.")
    assert app.client.get(f"/v1/tasks/{task['id']}/patch").status_code == 204


def test_a_dry_run_tells_its_writing_calls_and_changes_nothing(app: Deployment) -> None:
    task = app.finished(app.submit(UPLOAD, model="dry", dry_run_tools=True)["id"])
    assert (task["state"], task["exit_reason"], task["dry_run_tools"]) == ("succeeded", "completed", True)
    finished = [event["data"] for event in app.events(task["id"]) if event["type"] == "tool_finished"]
    assert [data["tool"] for data in finished] == ["bash", "write_file", "edit_file", "done"]
    assert [data["summary"].partition(":")[0] for data in finished[:3]] == ["Dry run"] * 3
    assert (task["patch"]["status"], task["patch"]["files"], task["patch"]["reproduces_tree"]) == ("complete", 0, True)
    assert task["patch"]["base_tree"] == task["patch"]["result_tree"]
    assert app.client.get(f"/v1/tasks/{task['id']}/patch").status_code == 204


def test_a_long_task_in_a_small_window_with_the_workspaces_own_notes_and_skill(app: Deployment) -> None:
    skill = b"---\nname: house\ndescription: How we work here.\n---\nMeasure twice.\n"
    upload = pack({"AGENTS.md": b"Use tabs.\n", ".claude/skills/house/SKILL.md": skill})
    task = app.finished(app.submit(upload, model="long")["id"])
    assert (task["state"], task["exit_reason"], task["summary"]) == ("succeeded", "completed", "Went on and on.")
    assert task["usage"]["turns"] == 10
    events = app.client.get(f"/v1/tasks/{task['id']}/events", headers={"Accept": "application/json"}).json()["items"]
    shorter = [event["data"] for event in events if event["type"] == "compacted"]
    assert {data["layer"] for data in shorter} == {"auto"}
    assert all(data["tokens_after"] < data["tokens_before"] for data in shorter)
    transcript = app.client.get(f"/v1/tasks/{task['id']}/artifacts/transcript.jsonl").text
    requests = [record for line in transcript.splitlines() if (record := json.loads(line))["kind"] == "request"]
    assert len(requests) == 10 + len(shorter)
    system = requests[0]["body"]["messages"][0]["content"]
    assert re.search(r"\nAGENTS\.md:\n<(data-\w+)>\nUse tabs\.\n</\1>\n", system)
    assert re.search(r"\n<(data-\w+)>\n- house: How we work here\.\n</\1>\n", system)
    # What was loaded in the first turn is still there in the last request.
    last: list[dict[str, str]] = []
    for request in requests:
        last = last[: request["messages_before"]] + request["body"]["messages"]
    assert [message["content"].count("Measure twice.") for message in last if message["role"] == "user"] == [0, 1]


def test_a_task_needs_no_workspace(app: Deployment, tmp_path: Path) -> None:
    task = app.finished(app.submit(None, model="own3")["id"])
    assert task["state"] == "succeeded", task
    apply(pack({}), app.client.get(f"/v1/tasks/{task['id']}/patch").content, tmp_path / "w")
    assert tree(tmp_path / "w") == {"own.txt": (b"3\n", False)}


def test_ten_at_once_each_get_their_own_patch(app: Deployment, tmp_path: Path) -> None:
    with ThreadPoolExecutor(10) as pool:
        tasks = list(pool.map(lambda n: app.submit(UPLOAD, model=f"own{n}"), range(10)))
    for n, task in enumerate(tasks):
        done = app.finished(task["id"])
        assert (done["state"], done["summary"]) == ("succeeded", f"Wrote {n}.")
        apply(UPLOAD, app.client.get(f"/v1/tasks/{task['id']}/patch").content, tmp_path / str(n))
        assert (tmp_path / str(n) / "own.txt").read_text() == f"{n}\n"


def test_too_many_files_are_listed_instead_of_a_cut_patch(app: Deployment) -> None:
    task = app.finished(app.submit(UPLOAD, model="many")["id"])
    assert (task["state"], task["exit_reason"]) == ("failed", "patch_too_large")
    answer = app.client.get(f"/v1/tasks/{task['id']}/patch")
    assert (answer.status_code, answer.json()["code"]) == (409, "patch_too_large")
    assert {"f1.txt", "f2.txt"} & {file["path"] for file in answer.json()["files"]}


def test_a_secret_reaches_the_command_and_nobody_else(app: Deployment) -> None:
    task = app.submit(UPLOAD, model="secret", env={"TOKEN": "hunter2-hunter2"})
    assert task["env"] == ["TOKEN"]
    done = app.finished(task["id"])
    events = app.client.get(f"/v1/tasks/{task['id']}/events", headers={"Accept": "application/json"}).json()["items"]
    outputs = "".join(event["data"]["text"] for event in events if event["type"] == "tool_output")
    assert "same" in outputs
    assert done["summary"] == "Used •••."
    shown = json.dumps([done, events], ensure_ascii=False)
    for item in app.client.get(f"/v1/tasks/{task['id']}/artifacts").json()["items"]:
        shown += app.client.get(f"/v1/tasks/{task['id']}/artifacts/{item['name']}").text
    for form in ("hunter2-hunter2", "aHVudGVyMi1odW50ZXIy"):
        assert form not in shown
        assert form not in app.log("worker") + app.log("api")


def test_cancel_reaches_into_a_running_command_and_saves_its_work(app: Deployment) -> None:
    task = app.submit(UPLOAD, model="busy")
    app.until(lambda: running_command(app, task["id"]), 30, "the command to run")
    began = time.monotonic()
    assert app.client.post(f"/v1/tasks/{task['id']}/cancel").status_code == 202
    done = app.finished(task["id"])
    assert time.monotonic() - began < 10
    assert (done["state"], done["exit_reason"], done["patch"]["status"]) == ("cancelled", "cancelled", "salvaged")
    assert b"started.txt" in app.client.get(f"/v1/tasks/{task['id']}/patch").content
    again = app.client.post(f"/v1/tasks/{task['id']}/cancel")
    assert (again.status_code, again.json()["code"]) == (409, "invalid_state")
    app.until(lambda: not mine(app, task["id"]), 10, "its container to go")


def test_a_task_cancelled_in_the_queue_never_gets_a_container(app: Deployment) -> None:
    busy = [app.submit(UPLOAD, model="busy")["id"] for _ in range(3)]
    for task_id in busy:
        app.until(lambda task_id=task_id: running_command(app, task_id), 40, "the workers to be busy")
    waiting = app.submit(UPLOAD, model="tree")
    assert app.client.post(f"/v1/tasks/{waiting['id']}/cancel").json()["state"] == "cancelled"
    answer = app.client.get(f"/v1/tasks/{waiting['id']}/patch")
    assert (answer.status_code, answer.json()["code"]) == (404, "no_patch")
    for task_id in busy:
        app.client.post(f"/v1/tasks/{task_id}/cancel")
        assert app.finished(task_id)["state"] == "cancelled"
    events = list(app.events(waiting["id"]))
    assert [event["data"]["state"] for event in events] == ["queued", "cancelled"]


def test_the_wall_time_ends_a_command_and_keeps_its_work(app: Deployment) -> None:
    done = app.finished(app.submit(UPLOAD, model="busy", limits={"wall_time_s": 4})["id"])
    assert (done["state"], done["exit_reason"], done["patch"]["status"]) == ("failed", "wall_time", "salvaged")


def test_a_killed_api_loses_nothing(app: Deployment) -> None:
    task = app.submit(UPLOAD, model="nap")
    seen: list[dict[str, Any]] = []
    with suppress(httpx.TransportError):
        for event in app.events(task["id"]):
            seen.append(event)
            if event["type"] == "tool_started":
                app.stop("api", signal.SIGKILL)
    assert seen[-1]["type"] != "state"
    app.start("api")
    app.until(app.ready, 30, "the API to be back")
    seen += list(app.events(task["id"], after=seen[-1]["seq"]))
    assert [event["seq"] for event in seen] == list(range(1, len(seen) + 1))
    assert app.finished(task["id"])["state"] == "succeeded"


def test_redis_away_for_a_moment_is_a_503_and_no_loss(app: Deployment) -> None:
    task = app.submit(UPLOAD, model="nap")
    app.until(lambda: running_command(app, task["id"]), 30, "the command to run")

    def refused() -> None:
        answer = app.client.get(f"/v1/tasks/{task['id']}")
        assert (answer.status_code, answer.json()["code"]) == (503, "store_unavailable")
        assert int(answer.headers["Retry-After"]) > 0
        assert app.client.get("/healthz").status_code == 200

    app.restart_redis(2, while_down=refused)
    app.until(app.ready, 30, "the service to be back")
    assert app.finished(task["id"])["state"] == "succeeded"


def test_a_run_that_writes_while_redis_has_no_memory_goes_on(app: Deployment) -> None:
    task = app.submit(UPLOAD, model="talk")
    app.until(lambda: running_command(app, task["id"]), 30, "the command to run")
    app.memory_of_redis(1)
    time.sleep(1)
    app.memory_of_redis(0)
    done = app.finished(task["id"])
    assert (done["state"], done["exit_reason"], done["run"]) == ("succeeded", "completed", 1)
    output = "".join(event["data"]["text"] for event in app.events(task["id"]) if event["type"] == "tool_output")
    assert output.split() == [str(number) for number in range(1, 51)]


def test_a_killed_worker_is_replaced_and_its_task_starts_over(app: Deployment) -> None:
    task = app.submit(UPLOAD, model="nap")
    app.until(lambda: running_command(app, task["id"]), 30, "the command to run")
    app.stop("worker", signal.SIGKILL)
    app.start("worker")
    done = app.finished(task["id"], 120)
    assert (done["state"], done["run"]) == ("succeeded", 2)
    seqs = [event["seq"] for event in app.events(task["id"])]
    assert seqs == list(range(1, len(seqs) + 1))
    app.until(lambda: app.containers() == [], 60, "the lost run's container to be removed")


def test_stopping_the_workers_hands_the_task_back_and_leaves_no_container(app: Deployment) -> None:
    task = app.submit(UPLOAD, model="nap")
    app.until(lambda: running_command(app, task["id"]), 30, "the command to run")
    app.stop("worker")
    assert app.containers() == []
    assert app.task(task["id"])["state"] == "queued"
    app.start("worker")
    done = app.finished(task["id"], 60)
    assert (done["state"], done["run"]) == ("succeeded", 2)


def running_command(app: Deployment, task_id: str) -> bool:
    page = app.client.get(f"/v1/tasks/{task_id}/events", headers={"Accept": "application/json"}).json()
    return any(event["type"] == "tool_started" for event in page["items"])


def mine(app: Deployment, task_id: str) -> list[str]:
    return [name for name in app.containers() if task_id in name]
