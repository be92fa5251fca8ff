"""The scripts behind `make`: quiet when there is nothing to do, one clear line when they cannot go on."""

from __future__ import annotations

import os
import re
import subprocess
import uuid
from pathlib import Path

import docker
import pytest

from worker.sandbox.docker import remove_container

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


def script(name: str, *arguments: str, **environment: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [str(SCRIPTS / name), *arguments],
        env={**os.environ, **environment},
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.returncode, done.stdout, done.stderr


def test_an_engine_that_was_named_and_does_not_answer_is_never_replaced(tmp_path: Path) -> None:
    url = f"unix://{tmp_path}/none.sock"
    assert script("engine.sh", DOCKER_HOST=url) == (
        1,
        "",
        f"patchyard: no Docker engine answers at DOCKER_HOST={url}\n",
    )


@pytest.mark.docker
def test_an_engine_that_answers_is_left_alone(engine: docker.APIClient) -> None:
    before = engine.info()["ID"]
    assert script("engine.sh") == (0, "", "")
    assert engine.info()["ID"] == before


@pytest.mark.docker
def test_the_sandbox_image_is_named_by_its_content(sandbox_image: str) -> None:
    assert re.fullmatch(r"patchyard-sandbox:[0-9a-f]{12}", sandbox_image)
    assert script("sandbox-image.sh", "--name") == (0, f"{sandbox_image}\n", "")
    other = script("sandbox-image.sh", "--name", SANDBOX_PACKAGES="nodejs")[1]
    assert other != f"{sandbox_image}\n"


@pytest.mark.docker
def test_leftovers_are_removed_by_the_prefix_of_their_deployment(
    engine: docker.APIClient, sandbox_image: str, deployment: str
) -> None:
    def made(name: str) -> str:
        created: str = engine.create_container(sandbox_image, labels={"patchyard.deployment": name})["Id"]
        return created

    mine, beside = f"{deployment}-{uuid.uuid4().hex}", f"{deployment}x-{uuid.uuid4().hex}"
    left, kept = made(f"{mine}-gw0"), made(beside)
    try:
        assert script("remove-containers.sh", mine) == (0, "", "")
        found = {container["Id"] for container in engine.containers(all=True)}
        assert left not in found
        assert kept in found
    finally:
        remove_container(engine, left)
        remove_container(engine, kept)
