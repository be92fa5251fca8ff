"""Without a Docker engine the service says so and tasks wait; they run when it is back."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path

import pytest
from kit import Deployment, pack

pytestmark = [pytest.mark.docker, pytest.mark.xdist_group("e2e"), pytest.mark.timeout(180)]


def test_tasks_wait_for_the_engine(sandbox_image: str, deployment: str, engine_url: str) -> None:
    folder = Path(tempfile.mkdtemp(prefix="py-e2e-"))
    socket = folder / "docker.sock"
    app = Deployment(folder, label=f"{deployment}-away", image=sandbox_image, docker_url=f"unix://{socket}")
    app.script("own", [("bash", {"command": "echo 1 > own.txt"}), ("done", {"summary": "Wrote."})])
    try:
        with app.running(until_ready=False):
            app.until(lambda: app.readyz().get("status") == "degraded", 40, "the API to say degraded")
            assert [reason for reason in app.readyz()["reasons"] if "engine" in reason]
            task = app.submit(pack({}), model="own")
            time.sleep(3)
            assert app.task(task["id"])["state"] == "queued"
            socket.symlink_to(engine_url.removeprefix("unix://"))
            done = app.finished(task["id"], 60)
            assert (done["state"], done["run"]) == ("succeeded", 1)
            app.until(app.ready, 30, "the API to say ok")
        assert app.containers() == []
    finally:
        shutil.rmtree(folder, ignore_errors=True)
