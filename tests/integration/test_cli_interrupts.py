"""What a user's Ctrl-C, `.env` and other settings do to `patchyard up` and `demo`: real processes, a real engine."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-c", "from service.client.cli import app; app()"]


@pytest.fixture
def environment(deployment: str, sandbox_image: str, tmp_path: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PATCHYARD_", "OPENAI_"))}
    return kept | {
        "PATCHYARD_SANDBOX_IMAGE": sandbox_image,
        "PATCHYARD_DEPLOYMENT": f"{deployment}-{tmp_path.name}",
        "PYTHONPATH": str(ROOT),
    }


@pytest.fixture
def silent_model() -> Iterator[str]:
    """The address of a provider that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/v1"


def started(environment: dict[str, str], folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=folder,
        start_new_session=True,
    )


def read_to(process: subprocess.Popen[str], start: str) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(start):
            return line
    raise AssertionError(f"no line begins with {start!r}; stderr: {process.stderr and process.stderr.read()}")


def end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.terminate()
    process.communicate(timeout=60)


def labels(engine: docker.APIClient, prefix: str) -> list[str]:
    found = engine.containers(all=True, filters={"label": "patchyard.deployment"})
    return [name for each in found if (name := each["Labels"]["patchyard.deployment"]).startswith(prefix)]


@pytest.mark.docker
@pytest.mark.parametrize("moment", ["● agent", "✓ git apply --check"], ids=["a silent model", "the proof"])
def test_ctrl_c_ends_the_demo_at_once_and_leaves_nothing(
    environment: dict[str, str], engine: docker.APIClient, silent_model: str, tmp_path: Path, moment: str
) -> None:
    if moment == "● agent":
        environment |= {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": silent_model}
    demo = started(environment, tmp_path, "demo")
    try:
        read_to(demo, moment)
        time.sleep(0.3)
        begin = time.monotonic()
        os.killpg(demo.pid, signal.SIGINT)  # as a terminal does: to every process in the foreground
        _, stderr = demo.communicate(timeout=60)
    finally:
        end(demo)
    assert time.monotonic() - begin < 10
    assert (demo.returncode, stderr) == (130, "patchyard: interrupted; nothing was left behind\n")
    assert list((tmp_path / ".patchyard").iterdir()) == []
    assert labels(engine, environment["PATCHYARD_DEPLOYMENT"]) == []


@pytest.mark.docker
def test_a_configured_admin_key_is_no_business_of_the_demo(
    environment: dict[str, str], silent_model: str, tmp_path: Path
) -> None:
    (tmp_path / ".env").write_text("PATCHYARD_ADMIN_KEY=pyd_of_another_deployment\n")
    model = {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": silent_model}
    demo = started(environment | model, tmp_path, "demo")
    try:
        assert read_to(demo, "● agent") == "● agent\n"
    finally:
        end(demo)


@pytest.mark.docker
def test_the_demo_s_boxes_are_not_those_of_a_deployment_beside_it(
    environment: dict[str, str], engine: docker.APIClient, silent_model: str, tmp_path: Path
) -> None:
    name = environment["PATCHYARD_DEPLOYMENT"]
    model = {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": silent_model}
    demo = started(environment | model, tmp_path, "demo")
    try:
        read_to(demo, "● agent")
        [label] = labels(engine, name)
        assert label.startswith(f"{name}-demo-")
    finally:
        end(demo)


@pytest.mark.docker
def test_up_reads_its_settings_from_the_env_file(environment: dict[str, str], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    lines = [f"PATCHYARD_PORT={port}", "PATCHYARD_DATA_DIR=kept", "PATCHYARD_ADMIN_KEY=pyd_mine", "PATCHYARD_MODEL="]
    (tmp_path / ".env").write_text("\n".join(lines))
    up = started(environment, tmp_path, "up", "--workers", "1")
    try:
        assert read_to(up, "ready: ") == f"ready: http://127.0.0.1:{port} (docs at http://127.0.0.1:{port}/docs)\n"
        assert read_to(up, "admin key: ") == (
            f"admin key: the one of PATCHYARD_ADMIN_KEY, logs: {tmp_path / 'kept' / 'logs'}\n"
        )
    finally:
        end(up)


@pytest.mark.docker
def test_events_come_through_a_pipe_as_they_happen(
    environment: dict[str, str], silent_model: str, tmp_path: Path
) -> None:
    model = {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": silent_model, "PATCHYARD_ADMIN_KEY": "pyd_mine"}
    up = started(environment | model, tmp_path, "up", "--workers", "1", "--port", "0")
    try:
        client = {"PATCHYARD_URL": read_to(up, "ready: ").split()[1], "PATCHYARD_API_KEY": "pyd_mine"}
        submit = started(environment | client, tmp_path, "submit", "-m", "Say hello.", "--watch", "--json")
        try:
            assert json.loads(read_to(submit, "{"))["data"]["state"] == "queued"
            assert submit.poll() is None
        finally:
            end(submit)
    finally:
        end(up)


def test_a_setting_that_cannot_be_used_is_one_line(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("PATCHYARD_PORT=http\nPATCHYARD_WORKERS=0\n")
    done = subprocess.run(
        [*COMMAND, "up"],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (
        2,
        "",
        "patchyard: the settings cannot be used: PATCHYARD_PORT: Input should be a valid integer, unable to parse "
        "string as an integer; PATCHYARD_WORKERS: Input should be greater than or equal to 1\n",
    )


def test_the_version_is_said(tmp_path: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "--version"],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "patchyard 0.1.0\n", "")
