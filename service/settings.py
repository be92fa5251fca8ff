"""Deployment knobs of the API, and what it shares with the worker; read once from the environment and `.env`.

Every secret is also read from the file that `<NAME>_FILE` names (compose secrets).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, SecretStr, field_validator
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict


class SecretFiles(PydanticBaseSettingsSource):
    """Reads `PATCHYARD_X_FILE` for every secret field X that the environment does not set itself."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        path = os.environ.get(f"{self.config.get('env_prefix', '')}{field_name}_file".upper())
        if not path or "SecretStr" not in str(field.annotation):
            return None, field_name, False
        return Path(path).read_text(encoding="utf-8").strip() or None, field_name, False

    def __call__(self) -> dict[str, Any]:
        values = {name: self.get_field_value(field, name)[0] for name, field in self.settings_cls.model_fields.items()}
        return {name: value for name, value in values.items() if value is not None}


class SharedSettings(BaseSettings):
    """What every process of a deployment must agree on. An empty variable counts as one that is not set."""

    model_config = SettingsConfigDict(
        env_prefix="PATCHYARD_",
        env_file=".env",
        env_ignore_empty=True,
        extra="ignore",
        frozen=True,
        hide_input_in_errors=True,  # it may be a secret
    )

    redis_url: SecretStr = SecretStr("redis://127.0.0.1:6379/0")
    """Secret because it may hold a password."""
    redis_prefix: str = "patchyard:"
    data_dir: Path = Path(".patchyard/data")
    """Holds blobs, and the keys made on first start; API and workers of a host share it."""
    seal_key: SecretStr | None = None
    """32 bytes, base64; without it one is made in the data folder."""
    log_level: str = "INFO"

    @field_validator("redis_url")
    @classmethod
    def _is_an_address_of_redis(cls, value: SecretStr) -> SecretStr:
        if not value.get_secret_value().startswith(("redis://", "rediss://", "unix://")):
            raise ValueError("must begin with redis://, rediss:// or unix://")
        return value

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, SecretFiles(settings_cls), dotenv_settings

    @property
    def blob_dir(self) -> Path:
        return self.data_dir / "blobs"

    @property
    def seal_key_file(self) -> Path:
        return self.data_dir / "seal.key"


class ServiceSettings(SharedSettings):
    """What the API alone needs."""

    host: str = "127.0.0.1"
    port: int = Field(default=8080, ge=0, le=65_535)
    admin_key: SecretStr | None = None
    """An admin key of team `default` that always exists; without it the first start makes one."""
    max_upload_bytes: int = Field(default=1 << 30, gt=0)
    max_body_bytes: int = Field(default=1 << 20, gt=0)
    """Of a JSON body; an upload has its own cap."""
    upload_slots: int = Field(default=2, ge=1)
    """Archives being checked at one time; more wait."""

    @property
    def admin_key_file(self) -> Path:
        return self.data_dir / "admin.key"


class UpSettings(ServiceSettings):
    """What `patchyard up` needs to know before it starts the others."""

    workers: int = Field(default=2, ge=1, le=64)
    deployment: str | None = None
    """None = a name made of the data folder."""


_HARMLESS = (
    *("PATH", "HOME", "LANG", "LC_", "TZ", "TMPDIR", "PYTHON", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "SSL_CERT_"),
    "DOCKER_HOST",
)
_FOR_WORKERS = "PATCHYARD_MODEL"


def child_environment(changes: Mapping[str, str], *, model_keys: bool) -> dict[str, str]:
    """The environment for a process that we start: ours with `changes`.

    Without `model_keys` only what no key can hide in is passed on: the API has no business with them.
    """
    passed = {
        name: value
        for name, value in os.environ.items()
        if model_keys
        or name.startswith(_HARMLESS)
        or (name.startswith("PATCHYARD_") and not name.startswith(_FOR_WORKERS))
    }
    return passed | dict(changes)
