"""Deployment knobs of a worker host; with service/settings.py the only reader of the environment."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path

from pydantic import Field, SecretStr, model_validator

from service.contracts import Resources
from service.settings import SharedSettings


class WorkerSettings(SharedSettings):
    """What workers, keeper and doctor of one host need."""

    workers: int = Field(default=2, ge=1, le=64)
    worker_host: str = Field(default_factory=socket.gethostname)
    """Name under which this host publishes its catalogue."""
    deployment: str = "default"
    """Label of every container of ours; one engine may serve several deployments."""
    docker_url: str = Field(default_factory=lambda: os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock")
    sandbox_image: str = "patchyard-sandbox:latest"
    sandbox_runtime: str = "runc"
    models: Path | None = None
    """TOML file of model profiles."""
    model: str | None = None
    """With OPENAI_API_KEY: the model of the `default` profile when there is no file."""
    max_cpus: float = Field(default=4.0, ge=0.01)
    max_memory_mb: int = Field(default=8192, ge=128)
    max_disk_mb: int = Field(default=8192, ge=64)
    max_pids: int = Field(default=4096, ge=32)
    max_patch_bytes: int = Field(default=50 << 20, gt=0)
    max_patch_files: int = Field(default=5_000, gt=0)

    @model_validator(mode="after")
    def _models_file_exists(self) -> WorkerSettings:
        if self.models is not None and not self.models.is_file():
            raise ValueError(f"PATCHYARD_MODELS names {self.models}, which is not a file")
        return self

    @property
    def maxima(self) -> Resources:
        return Resources(cpus=self.max_cpus, memory_mb=self.max_memory_mb, disk_mb=self.max_disk_mb, pids=self.max_pids)


def secret_named(name: str) -> SecretStr | None:
    """The variable `name`, or the content of the file that `name`_FILE names; None when both are missing or empty."""
    value = os.environ.get(name)
    if not value and (path := os.environ.get(f"{name}_FILE")):
        value = Path(path).read_text(encoding="utf-8").strip()
    return SecretStr(value) if value else None


def openai_environment() -> Mapping[str, str]:
    """OPENAI_BASE_URL where it is set (the key is read by `secret_named`)."""
    return {name: os.environ[name] for name in ("OPENAI_BASE_URL",) if os.environ.get(name)}
