"""compose.yaml and the Dockerfiles: valid, linted, and the promises of docs/operations.md as exact values."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent


def config(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(BIN / "docker-compose"), "--env-file", "/dev/null", "-f", str(ROOT / "compose.yaml"), *arguments],
        env={"PATH": os.environ["PATH"], "HOME": "/nonexistent", **environment},
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    done = config("--profile", "build", "config", "--format", "json", DOCKER_GID="123", PATCHYARD_SECRETS="/s")
    assert done.returncode == 0, done.stderr
    parsed: dict[str, Any] = json.loads(done.stdout)
    return parsed


def test_it_is_valid_without_a_warning() -> None:
    done = config("config", "-q", DOCKER_GID="123")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_group_of_the_socket_must_be_said() -> None:
    done = config("config", "-q")
    assert done.returncode != 0
    assert "set DOCKER_GID in .env: stat -c %g /var/run/docker.sock" in done.stderr


@pytest.mark.parametrize("name", ["redis", "api", "worker"])
def test_every_service_is_confined(project: dict[str, Any], name: str) -> None:
    service = project["services"][name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["pids_limit"] == 512
    assert service["logging"] == {"driver": "json-file", "options": {"max-file": "3", "max-size": "10m"}}
    assert service["healthcheck"]["test"]
    assert "privileged" not in service
    assert "network_mode" not in service


def test_only_the_worker_reaches_docker(project: dict[str, Any]) -> None:
    holders = {
        name
        for name, service in project["services"].items()
        if any("docker.sock" in volume["source"] for volume in service.get("volumes", []))
    }
    assert holders == {"worker"}
    assert project["services"]["worker"]["group_add"] == ["123"]


def test_only_the_api_has_a_port_and_only_on_this_host(project: dict[str, Any]) -> None:
    ports = {name: service["ports"] for name, service in project["services"].items() if "ports" in service}
    assert ports == {
        "api": [
            {"mode": "ingress", "host_ip": "127.0.0.1", "target": 8080, "published": "8080", "protocol": "tcp"},
        ]
    }


def test_redis_is_on_a_private_network_and_forgets_nothing(project: dict[str, Any]) -> None:
    redis = project["services"]["redis"]
    assert list(redis["networks"]) == ["store"]
    assert project["networks"]["store"]["internal"] is True
    command = redis["command"][-1]
    for words in ("requirepass", "--appendonly yes", "--appendfsync always", "--maxmemory-policy noeviction"):
        assert words in command


def test_each_service_has_its_own_secrets_and_only_as_files(project: dict[str, Any]) -> None:
    given = {
        name: sorted(secret["source"] for secret in service.get("secrets", []))
        for name, service in project["services"].items()
    }
    assert given == {
        "redis": ["redis_password"],
        "api": ["admin_key", "redis_url", "seal_key"],
        "worker": ["openai_api_key", "redis_url", "seal_key"],
        "sandbox-image": [],
    }
    assert all(secret["file"].startswith("/s/") for secret in project["secrets"].values())


def test_the_secrets_script_writes_each_once(tmp_path: Path) -> None:
    script, folder = str(ROOT / "scripts" / "compose-secrets.sh"), tmp_path / "secrets"
    environment = {"PATH": os.environ["PATH"], "OPENAI_API_KEY": "sk-test"}
    subprocess.run([script, str(folder)], env=environment, check=True, capture_output=True, timeout=30)
    first = {path.name: path.read_text() for path in folder.iterdir()}
    subprocess.run([script, str(folder)], env={"PATH": os.environ["PATH"]}, check=True, capture_output=True, timeout=30)
    assert {path.name: path.read_text() for path in folder.iterdir()} == first
    assert sorted(first) == ["admin_key", "openai_api_key", "redis_password", "redis_url", "seal_key"]
    assert first["openai_api_key"] == "sk-test"
    assert first["redis_url"] == f"redis://:{first['redis_password']}@redis:6379/0"
    assert (folder.stat().st_mode & 0o777, (folder / "seal_key").stat().st_mode & 0o777) == (0o700, 0o644)


@pytest.mark.parametrize("dockerfile", ["Dockerfile", "sandbox_image/Dockerfile"])
def test_dockerfiles_lint_and_build_with_the_classic_builder(dockerfile: str) -> None:
    path = ROOT / dockerfile
    done = subprocess.run([str(BIN / "hadolint"), str(path)], check=False, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "")
    text = path.read_text(encoding="utf-8")
    for word in ("--mount", "<<", "# syntax="):
        assert word not in text
