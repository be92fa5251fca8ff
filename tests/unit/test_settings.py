"""Settings: the environment, secret files, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from service.settings import ServiceSettings, child_environment
from worker.settings import WorkerSettings, secret_named


def test_a_secret_is_read_from_the_file_its_variable_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "key").write_text("pyd_from_file\n")
    monkeypatch.setenv("PATCHYARD_ADMIN_KEY_FILE", str(tmp_path / "key"))
    secret = ServiceSettings(_env_file=None).admin_key
    assert secret is not None
    assert secret.get_secret_value() == "pyd_from_file"


def test_the_variable_itself_wins_over_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "key").write_text("from_file")
    monkeypatch.setenv("PATCHYARD_ADMIN_KEY_FILE", str(tmp_path / "key"))
    monkeypatch.setenv("PATCHYARD_ADMIN_KEY", "from_variable")
    secret = ServiceSettings(_env_file=None).admin_key
    assert secret is not None
    assert secret.get_secret_value() == "from_variable"


def test_only_secrets_are_read_from_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "host").write_text("0.0.0.0")
    monkeypatch.setenv("PATCHYARD_HOST_FILE", str(tmp_path / "host"))
    assert ServiceSettings(_env_file=None).host == "127.0.0.1"


def test_a_secret_does_not_show_in_a_repr(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATCHYARD_REDIS_URL", "redis://:hunter2hunter2@127.0.0.1/0")
    assert "hunter2" not in repr(ServiceSettings(_env_file=None))


def test_a_models_file_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATCHYARD_MODELS", "/nowhere/models.toml")
    with pytest.raises(ValidationError, match=r"/nowhere/models\.toml, which is not a file"):
        WorkerSettings(_env_file=None)


def test_a_model_key_may_come_from_a_file_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "key").write_text("sk-abc\n")
    monkeypatch.delenv("DEEPSEEK_API_KEY", raising=False)
    monkeypatch.setenv("DEEPSEEK_API_KEY_FILE", str(tmp_path / "key"))
    secret = secret_named("DEEPSEEK_API_KEY")
    assert secret is not None
    assert secret.get_secret_value() == "sk-abc"
    assert secret_named("NO_SUCH_KEY_ANYWHERE") is None


def test_what_is_empty_counts_as_not_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compose passes `${NAME:-}` on as an empty variable, and a secret file may be empty."""
    (tmp_path / "empty").write_text("\n")
    for name in ("PATCHYARD_ADMIN_KEY", "PATCHYARD_MODELS", "PATCHYARD_MODEL", "PATCHYARD_PORT", "OPENAI_API_KEY"):
        monkeypatch.setenv(name, "")
    for name in ("PATCHYARD_SEAL_KEY_FILE", "OPENAI_API_KEY_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "empty"))
    service, worker = ServiceSettings(_env_file=None), WorkerSettings(_env_file=None)
    assert (service.admin_key, service.seal_key, service.port) == (None, None, 8080)
    assert (worker.models, worker.model, worker.seal_key) == (None, None, None)
    assert secret_named("OPENAI_API_KEY") is None


def test_workers_use_the_engine_that_the_docker_command_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///run/user/1000/docker.sock")
    assert WorkerSettings(_env_file=None).docker_url == "unix:///run/user/1000/docker.sock"
    monkeypatch.setenv("PATCHYARD_DOCKER_URL", "unix:///elsewhere.sock")
    assert WorkerSettings(_env_file=None).docker_url == "unix:///elsewhere.sock"
    monkeypatch.delenv("PATCHYARD_DOCKER_URL")
    monkeypatch.setenv("DOCKER_HOST", "")
    assert WorkerSettings(_env_file=None).docker_url == "unix:///var/run/docker.sock"


def test_a_child_without_model_keys_still_finds_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///run/user/1000/docker.sock")
    monkeypatch.setenv("DEEPSEEK_API_KEY", "sk-canary")
    passed = child_environment({}, model_keys=False)
    assert passed["DOCKER_HOST"] == "unix:///run/user/1000/docker.sock"
    assert "DEEPSEEK_API_KEY" not in passed


def test_an_address_that_is_none_of_redis_is_refused_without_being_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATCHYARD_REDIS_URL", "http://:hunter2@host")
    with pytest.raises(ValidationError) as caught:
        ServiceSettings(_env_file=None)
    assert "must begin with redis://, rediss:// or unix://" in str(caught.value)
    assert "hunter2" not in str(caught.value)
