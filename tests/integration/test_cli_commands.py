"""The command line against the real API: what it prints, and its exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from api_kit import ADMIN, TAR, Api, serving, wait_until
from typer.testing import CliRunner, Result

from service.client.cli import app
from service.contracts import ExitReason, Review, State
from service.events import Notice
from service.intake import Manifest

Run = Callable[..., Result]

PATCH = b"""diff --git a/a.txt b/a.txt
index 5626abf0f72e58d7a153368ba57db4c673c0e171..f719efd430d52bcfc8566a43b2eb655688d38871 100644
--- a/a.txt
+++ b/a.txt
@@ -1 +1 @@
-one
+two \n"""


@pytest.fixture
def api(redis_url: str, tmp_path: Path) -> Iterator[Api]:
    # The API runs in this process; its log would end up in the command's output.
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    try:
        with serving(redis_url, tmp_path / "service") as running:
            yield running
    finally:
        structlog.reset_defaults()


def process(api: Api, *arguments: str) -> subprocess.Popen[bytes]:
    """The command as a process of its own, on no terminal but one that could show colours."""
    environment = {"PATCHYARD_URL": api.url, "PATCHYARD_API_KEY": ADMIN, "TERM": "xterm-256color", "PATH": os.defpath}
    return subprocess.Popen(
        [sys.executable, "-c", "from service.client.cli import app; app()", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        cwd=Path(__file__).parents[2],
    )


@pytest.fixture
def run(api: Api) -> Run:
    runner = CliRunner()

    def invoke(*arguments: str, key: str = ADMIN, url: str = api.url, stdin: bytes = b"") -> Result:
        environment = {"PATCHYARD_URL": url, "PATCHYARD_API_KEY": key}
        return runner.invoke(app, list(arguments), env=environment, input=stdin)

    return invoke


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "a.txt").write_text("one\n")
    (folder / ".gitignore").write_text("*.log\n")
    (folder / "x.log").write_text("noise\n")
    return folder


def submitted(result: Result) -> str:
    assert result.exit_code == 0, result.output
    return result.stdout.strip()


def finished(api: Api, run: Run, *arguments: str, **outcome: Any) -> str:
    """The id of a task that has ended so."""
    task_id = submitted(run("submit", "-m", "do it", "--model", "demo", *arguments))
    api.finish(api.claim(), **outcome)
    return task_id


def test_submit_packs_a_folder_as_git_sees_it(api: Api, run: Run, project: Path) -> None:
    options = ("--title", "mine", "--label", "a=b", "--label", "c=d=e", "--max-turns", "7", "--disk-mb", "256")
    task_id = submitted(run("submit", str(project), "-m", "do it", "--model", "demo", *options))
    task = api.store.task(task_id)
    assert task is not None
    assert (task.spec.prompt, task.spec.title, task.spec.labels) == ("do it", "mine", {"a": "b", "c": "d=e"})
    assert (task.spec.limits.max_turns, task.spec.resources.disk_mb) == (7, 256)
    assert task.spec.workspace is not None
    assert task.spec.workspace.id is not None
    workspace = api.store.workspace("default", task.spec.workspace.id)
    assert workspace is not None
    with api.blobs.open(workspace.manifest) as blob:
        assert list(Manifest.load(blob)) == [b".gitignore", b"a.txt"]


def test_submit_takes_an_archive_from_a_file_or_stdin(api: Api, run: Run, tmp_path: Path) -> None:
    (tmp_path / "x.tgz").write_bytes(TAR)
    ids = [
        submitted(run("submit", str(tmp_path / "x.tgz"), "-m", "x", "--model", "demo")),
        submitted(run("submit", "-", "-m", "x", "--model", "demo", stdin=TAR)),
    ]
    tasks = [api.store.task(task_id) for task_id in ids]
    assert tasks[0] is not None
    assert tasks[1] is not None
    assert tasks[0].spec.workspace == tasks[1].spec.workspace


@pytest.mark.parametrize(
    ("state", "reason", "review", "code"),
    [
        (State.SUCCEEDED, ExitReason.COMPLETED, "none", 0),
        (State.FAILED, ExitReason.TURN_LIMIT, "none", 1),
        (State.CANCELLED, ExitReason.CANCELLED, "none", 4),
        (State.SUCCEEDED, ExitReason.COMPLETED, "pending", 5),
    ],
)
def test_the_exit_code_of_watch_is_how_it_went(
    api: Api, run: Run, state: State, reason: ExitReason, review: str, code: int
) -> None:
    task_id = finished(api, run, state=state, exit_reason=reason, review=Review(state=review))
    result = run("watch", task_id)
    assert result.exit_code == code
    assert f"● {state}: {reason}" in result.stdout
    assert "\x1b" not in result.output


def test_watch_follows_a_running_task(api: Api, run: Run) -> None:
    task_id = submitted(run("submit", "-m", "do it", "--model", "demo"))
    watching = process(api, "watch", task_id, "--json")
    lease = api.claim()
    api.store.append(lease, Notice("x", "line\u2028\x1b[2J"))
    api.finish(lease)
    stdout, _ = watching.communicate(timeout=30)
    assert watching.returncode == 0
    events = [json.loads(line) for line in stdout.decode().split("\n") if line]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert [event["data"]["text"] for event in events if event["type"] == "notice"] == ["line\u2028\x1b[2J"]
    assert events[-1]["data"]["state"] == "succeeded"


def test_submit_and_apply_in_one_command(api: Api, project: Path) -> None:
    submitting = process(api, "submit", str(project), "-m", "do it", "--model", "demo", "--apply")
    wait_until(lambda: api.store.counters().queued == 1)
    api.finish(api.claim(), patch=PATCH)
    stdout, stderr = submitting.communicate(timeout=30)
    assert submitting.returncode == 0, stderr
    assert b"patch: 1 files, +1 -0, " in stdout
    assert b"\x1b" not in stdout + stderr
    assert (project / "a.txt").read_text() == "two \n"


def test_the_patch_is_exact_in_a_file_and_in_a_pipe(api: Api, run: Run, tmp_path: Path) -> None:
    raw = b"diff --git a/x b/x\r\n\xff\x1b[2J\n"
    task_id = finished(api, run, patch=raw)
    assert run("patch", task_id, "-o", str(tmp_path / "p")).exit_code == 0
    assert (tmp_path / "p").read_bytes() == raw
    assert run("patch", task_id).stdout_bytes == raw


def test_apply_changes_the_folder_or_says_why_not(api: Api, run: Run, project: Path) -> None:
    task_id = finished(api, run, patch=PATCH)
    assert run("apply", task_id, str(project)).exit_code == 0
    assert (project / "a.txt").read_text() == "two \n"
    again = run("apply", task_id, str(project))
    assert again.exit_code == 1
    assert "patchyard: the patch was not applied: error: patch failed: a.txt:1" in again.stderr


def test_a_task_without_a_patch(api: Api, run: Run) -> None:
    running = submitted(run("submit", "-m", "x", "--model", "demo"))
    assert run("patch", running).exit_code == 1
    api.finish(api.claim())
    assert run("patch", running).exit_code == 1


def test_lists_and_details(api: Api, run: Run) -> None:
    ids = [finished(api, run, "--title", f"number {number}\x1b[2J") for number in range(3)]
    listed = run("ls", "-n", "2")
    assert [line.split()[0] for line in listed.stdout.splitlines()[1:]] == [ids[2], ids[1]]
    assert "number 2\\x1b[2J" in listed.stdout
    assert [task["id"] for task in json.loads(run("ls", "--json").stdout)] == ids[::-1]
    assert "succeeded (completed)" in run("show", ids[0]).stdout
    assert json.loads(run("show", ids[0], "--json").stdout)["id"] == ids[0]


def test_cancel(run: Run) -> None:
    task_id = submitted(run("submit", "-m", "x", "--model", "demo"))
    assert run("cancel", task_id).stdout == "cancelled\n"
    again = run("cancel", task_id)
    assert again.exit_code == 2
    assert "cancelled" in again.stderr


def test_keys_are_made_listed_and_revoked(run: Run) -> None:
    made = json.loads(run("keys", "create", "--team", "payments", "--role", "submit", "--name", "ci", "--json").stdout)
    assert (made["team"], made["roles"], made["name"]) == ("payments", ["submit"], "ci")
    assert run("ls", key=made["secret"]).exit_code == 0
    assert run("keys", "list", key=made["secret"]).exit_code == 3
    listed = run("keys", "list", "--team", "payments").stdout
    assert made["id"] in listed
    assert made["secret"] not in listed
    assert run("keys", "revoke", made["id"], "--team", "payments").exit_code == 0
    refused = run("ls", key=made["secret"])
    assert refused.exit_code == 3
    assert refused.stderr.endswith("; set PATCHYARD_API_KEY\n")


def test_usage_errors(run: Run, tmp_path: Path) -> None:
    assert run("submit").exit_code == 2
    assert run("submit", "-m", "x", "--label", "nothing").exit_code == 2
    assert run("submit", "-m", "x", "--apply").exit_code == 2
    assert run("submit", str(tmp_path / "missing"), "-m", "x").exit_code == 2
    assert run("submit", "-m", "x", "--model", "no-such").exit_code == 2
    assert run("show", "task_no-such").exit_code == 2
    assert run("show", "../keys").exit_code == 2


def test_nobody_there(run: Run) -> None:
    result = run("ls", url="http://127.0.0.1:1")
    assert result.exit_code == 3
    assert result.stderr.startswith("patchyard: cannot reach the service: ")


def test_an_archive_comes_through_a_pipe(api: Api) -> None:
    """A pipe has no length, and `tar c . | patchyard submit -` is what `-` is for."""
    submitting = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from service.client.cli import app; app()",
            "submit",
            "-",
            "-m",
            "x",
            "--model",
            "demo",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"PATCHYARD_URL": api.url, "PATCHYARD_API_KEY": ADMIN, "PATH": os.defpath},
        cwd=Path(__file__).parents[2],
    )
    out, _ = submitting.communicate(TAR, timeout=30)
    assert submitting.returncode == 0
    task = api.store.task(out.decode().strip())
    assert task is not None
    assert task.spec.workspace is not None


@pytest.mark.parametrize(
    ("options", "pointer"),
    [
        (("--max-cost-usd", "nan"), "NaN is not JSON"),
        (("--cpus", "inf"), "Infinity is not JSON"),
        (("--title", "bad \udcff"), "/title: must not contain lone surrogates"),
    ],
)
def test_what_no_document_can_hold_is_a_wrong_usage(run: Run, options: tuple[str, ...], pointer: str) -> None:
    result = run("submit", "-m", "x", "--model", "demo", *options)
    assert result.exit_code == 2
    assert pointer in result.stderr
