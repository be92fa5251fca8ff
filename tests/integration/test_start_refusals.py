"""A process that cannot start says why in one line, whatever is in the way."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from service.embedded import EmbeddedRedis

PATCHYARD = str(Path(sys.executable).with_name("patchyard"))


def start(*command: str, folder: Path, **environment: str) -> tuple[int, list[str]]:
    """Exit code and the lines of standard error."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PATCHYARD_", "OPENAI_"))}
    ended = subprocess.run(
        command if command[0] == PATCHYARD else [sys.executable, "-m", *command],
        env=clean | {"PATCHYARD_DATA_DIR": str(folder), "PATCHYARD_PORT": "0"} | environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return ended.returncode, ended.stderr.splitlines()


@pytest.mark.parametrize("module", ["service.api", "worker.main"])
def test_a_data_folder_that_cannot_be_made_is_named(module: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code, lines = start(module, folder=tmp_path / "file" / "data")
    assert code == 2
    assert len(lines) == 1
    assert lines[0].startswith(f"patchyard {module.split('.')[-1].replace('main', 'worker')}: ")
    assert str(tmp_path / "file") in lines[0]


def test_a_folder_that_another_redis_uses_is_named(tmp_path: Path) -> None:
    with EmbeddedRedis(tmp_path / "r"):
        code, lines = start("service.embedded", "--data-dir", str(tmp_path / "r"), folder=tmp_path)
    assert code == 2
    assert lines == [
        f"patchyard redis: another Patchyard uses {tmp_path / 'r'}; stop it, or choose another data folder"
    ]


@pytest.mark.parametrize("module", ["service.api", "worker.main"])
def test_a_sealing_key_that_is_none_is_named(module: str, tmp_path: Path) -> None:
    code, lines = start(module, folder=tmp_path, PATCHYARD_SEAL_KEY="secret-but-wrong")
    assert code == 2
    assert [line.partition(": ")[2] for line in lines] == ["the sealing key is not base64"]


@pytest.mark.parametrize("module", ["service.api", "worker.main"])
def test_an_address_that_is_none_of_redis_is_named(module: str, tmp_path: Path) -> None:
    code, lines = start(module, folder=tmp_path, PATCHYARD_REDIS_URL="localhost:6379")
    assert code == 2
    assert "must begin with redis://" in "".join(lines)
    assert "Traceback" not in "".join(lines)


@pytest.mark.parametrize("options", [("--host", "no-such-host.invalid"), ("--port", "5", "--host", "192.0.2.1")])
def test_an_address_that_is_not_ours_is_named_by_up(options: tuple[str, ...], tmp_path: Path) -> None:
    code, lines = start(PATCHYARD, "up", *options, folder=tmp_path)
    assert code == 1
    assert len(lines) == 1
    assert lines[0].startswith("patchyard: [Errno ")


def test_a_data_folder_that_cannot_be_made_is_named_by_up(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code, lines = start(PATCHYARD, "up", folder=tmp_path / "file" / "data")
    assert code == 1
    assert len(lines) == 1
    assert str(tmp_path / "file") in lines[0]
