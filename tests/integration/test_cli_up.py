"""`patchyard up`, `demo` and the proof as a user runs them: real processes, a real engine, nothing left behind."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import pytest
from api_kit import make_tar, wait_until

from service.client.pack import packed
from worker.proof import Outcome, prove
from worker.sandbox.docker import DockerProvider

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
COMMAND = [sys.executable, "-c", "from service.client.cli import app; app()"]


@pytest.fixture
def environment(deployment: str, sandbox_image: str, tmp_path: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PATCHYARD_", "OPENAI_"))}
    return kept | {
        "PATCHYARD_SANDBOX_IMAGE": sandbox_image,
        "PATCHYARD_DEPLOYMENT": f"{deployment}-{tmp_path.name}",
        "PYTHONPATH": str(ROOT),
    }


class Up:
    """A running `patchyard up`."""

    def __init__(self, environment: dict[str, str], folder: Path) -> None:
        self.environment = environment
        self.data = folder / "data"
        self.process = subprocess.Popen(
            [*COMMAND, "up", "--port", "0", "--data-dir", str(self.data), "--workers", "1"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=folder,
        )

    def await_ready(self) -> str:
        """Its address."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        match = re.match(r"ready: (http://127\.0\.0\.1:\d+) ", line)
        assert match, line + (self.process.stderr.read() if self.process.stderr and not line else "")
        return match[1]

    def run(self, url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        key = (self.data / "admin.key").read_text().strip()
        environment = {**self.environment, "PATCHYARD_URL": url, "PATCHYARD_API_KEY": key}
        return subprocess.run(
            [*COMMAND, *arguments], env=environment, capture_output=True, text=True, timeout=90, check=False
        )

    def children(self) -> list[int]:
        """Pids of every process below it."""
        found, queue = [], [self.process.pid]
        while queue:
            listed = Path(f"/proc/{queue.pop()}/task").glob("*/children")
            pids = [int(pid) for path in listed for pid in path.read_text().split()]
            found += pids
            queue += pids
        return found


@pytest.fixture
def up(environment: dict[str, str], tmp_path: Path) -> Iterator[Up]:
    running = Up(environment, tmp_path)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.process.terminate()
        try:
            running.process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            running.process.kill()
            running.process.communicate()


def gone(pids: list[int]) -> bool:
    return not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def containers(engine: docker.APIClient, environment: dict[str, str]) -> list[Any]:
    """Those of the deployment, and of the demos that ran under its name."""
    found: list[Any] = engine.containers(all=True, filters={"label": "patchyard.deployment"})
    name = environment["PATCHYARD_DEPLOYMENT"]
    return [each for each in found if each["Labels"]["patchyard.deployment"].startswith(name)]


def copy_of_examples(folder: Path) -> Path:
    with packed(EXAMPLES) as archive:
        target = folder / "project"
        target.mkdir()
        subprocess.run(["tar", "xzf", "-", "-C", str(target)], stdin=archive, check=True)
    return target


@pytest.mark.docker
def test_up_runs_a_task_and_leaves_nothing(up: Up, engine: docker.APIClient, tmp_path: Path) -> None:
    url = up.await_ready()
    project = copy_of_examples(tmp_path)
    done = up.run(url, "submit", str(project), "-m", "Fix the failing test.", "--model", "demo", "--apply")
    assert done.returncode == 0, done.stderr + done.stdout
    assert "● succeeded: completed" in done.stdout
    assert "// 100" in (project / "shop" / "discount.py").read_text()

    children = up.children()
    assert len(children) >= 4
    up.process.send_signal(signal.SIGINT)
    stdout, stderr = up.process.communicate(timeout=60)
    assert (up.process.returncode, stderr) == (0, "")
    assert stdout.splitlines()[-1] == "stopping …"
    assert gone(children)
    assert containers(engine, up.environment) == []


@pytest.mark.docker
def test_tasks_of_one_up_are_there_in_the_next(up: Up, environment: dict[str, str], tmp_path: Path) -> None:
    url = up.await_ready()
    task = up.run(url, "submit", "-m", "Say hello.", "--model", "demo").stdout.strip()
    up.process.terminate()
    up.process.communicate(timeout=60)
    again = Up(environment, tmp_path)
    try:
        assert json.loads(up.run(again.await_ready(), "ls", "--json").stdout)[0]["id"] == task
    finally:
        again.process.terminate()
        again.process.communicate(timeout=60)


@pytest.mark.docker
def test_the_children_of_a_killed_up_die(up: Up) -> None:
    up.await_ready()
    children = up.children()
    up.process.kill()
    up.process.wait(10)
    wait_until(lambda: gone(children), 45)


@pytest.mark.docker
def test_a_child_that_dies_ends_up_with_its_last_words(up: Up) -> None:
    up.await_ready()
    children = up.children()
    api = next(pid for pid in children if b"service.api" in Path(f"/proc/{pid}/cmdline").read_bytes())
    os.kill(api, signal.SIGKILL)
    _, stderr = up.process.communicate(timeout=60)
    assert up.process.returncode == 1
    assert stderr.startswith("patchyard: the api process ended with -9; ")
    assert gone(children)


@pytest.mark.docker
def test_the_api_of_up_has_no_model_key(environment: dict[str, str], tmp_path: Path) -> None:
    canary = "sk-canary-of-a-model-key"
    models = tmp_path / "models.toml"
    models.write_text('[mine]\nbase_url = "http://127.0.0.1:9/v1"\napi_key_env = "MINE_KEY"\nmodel = "m"\n')
    secrets = {"OPENAI_API_KEY": canary, "MINE_KEY": canary, "PATCHYARD_MODELS": str(models)}
    running = Up(environment | secrets, tmp_path)
    try:
        running.await_ready()
        seen = {}
        for pid in running.children():
            command = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
            if "-m" in command:
                module = command[command.index("-m") + 1]
                environ = Path(f"/proc/{pid}/environ").read_bytes()
                seen[module] = canary.encode() in environ
        assert seen == {"service.embedded": False, "service.api": False, "worker.main": True}
    finally:
        running.process.terminate()
        running.process.communicate(timeout=60)


def test_a_port_in_use_is_said_at_once(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run(
            [*COMMAND, "up", "--port", str(port), "--data-dir", str(tmp_path / "data")],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
            cwd=ROOT,
        )
    assert done.returncode == 2
    assert done.stderr == f"patchyard: port {port} of 127.0.0.1 is in use; choose another with --port\n"


def test_a_redis_that_cannot_start_is_said(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "redis").write_text("a file where the folder should be")
    started = time.monotonic()
    done = subprocess.run(
        [*COMMAND, "up", "--port", "0", "--data-dir", str(tmp_path / "data")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("patchyard: the embedded Redis did not start:")
    assert time.monotonic() - started < 30


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.timeout(180)
def test_the_demo_proves_its_patch_twice(environment: dict[str, str], engine: docker.APIClient, tmp_path: Path) -> None:
    for _ in range(2):
        done = subprocess.run(
            [*COMMAND, "demo"], env=environment, capture_output=True, text=True, timeout=85, check=False, cwd=tmp_path
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "\n+    return (cents * (100 - percent) + 50) // 100\n" in done.stdout
        assert done.stdout.splitlines()[-5:] == [
            "✓ git apply --check on a clean copy of the project",
            "✓ the project's tests before the patch, in a fresh sandbox: FAILED (failures=1)",
            "✓ the project's tests after the patch, in a fresh sandbox: OK",
            "",
            "Start your own with `.venv/bin/patchyard up`; its API is described at http://127.0.0.1:8080/docs",
        ]
        assert list((tmp_path / ".patchyard").iterdir()) == []
    assert containers(engine, environment) == []


@pytest.mark.docker
def test_the_proof_believes_only_what_it_saw(
    docker_provider: DockerProvider, sandbox_image: str, tmp_path: Path
) -> None:
    archive = tmp_path / "x.tgz"
    archive.write_bytes(make_tar({"answer": b"41\n"}))
    patch = b"diff --git a/answer b/answer\n--- a/answer\n+++ b/answer\n@@ -1 +1 @@\n-41\n+42\n"
    right = prove(docker_provider, sandbox_image, archive, patch, "cat answer; grep -q 42 answer")
    assert right.holds
    assert (right.before, right.applies, right.after) == (Outcome(1, "41\n"), True, Outcome(0, "42\n"))

    useless = prove(docker_provider, sandbox_image, archive, patch, "true")
    assert (useless.holds, useless.before.exit_code) == (False, 0)

    other = prove(docker_provider, sandbox_image, archive, patch.replace(b"41", b"40"), "false")
    assert (other.holds, other.applies, other.after) == (False, False, None)
