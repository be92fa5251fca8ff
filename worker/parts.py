"""The parts a worker host is assembled from, made once per process from its settings."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field

import openai

from service.blobs import DiskBlobs
from service.queue import Doorbell
from service.seal import Sealer, decode_key, load_or_create_key
from service.store import Store
from worker.llm.profiles import Profile, ProfileError, load_profiles, openai_table
from worker.sandbox.docker import DockerProvider
from worker.settings import WorkerSettings, openai_environment, secret_named


@dataclass(frozen=True, slots=True)
class Parts:
    settings: WorkerSettings
    store: Store
    blobs: DiskBlobs
    sealer: Sealer
    doorbell: Doorbell
    provider: DockerProvider
    profiles: Mapping[str, Profile]
    clients: Mapping[str, openai.OpenAI] = field(default_factory=dict)
    """By profile name, made before a fork: a TLS context costs more than the fork itself."""


def build_parts(settings: WorkerSettings) -> Parts:
    """Everything a run needs; connects to nothing yet, so that it may be built before a fork."""
    url = settings.redis_url.get_secret_value()
    blobs = DiskBlobs(settings.blob_dir)
    seal_key = settings.seal_key
    return Parts(
        settings=settings,
        store=Store.connect(url, prefix=settings.redis_prefix, blobs=blobs),
        blobs=blobs,
        sealer=Sealer(
            decode_key(seal_key.get_secret_value()) if seal_key else load_or_create_key(settings.seal_key_file)
        ),
        doorbell=Doorbell(url),
        provider=DockerProvider(
            url=settings.docker_url, deployment=settings.deployment, runtime=settings.sandbox_runtime
        ),
        profiles=profiles(settings),
    )


def profiles(settings: WorkerSettings) -> dict[str, Profile]:
    """Those of the TOML file, or the `default` one that OPENAI_API_KEY makes; ProfileError says what is wrong."""
    if settings.models is not None:
        try:
            tables = tomllib.loads(settings.models.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ProfileError(f"{settings.models} is not TOML: {error}") from None
        return load_profiles(tables, api_key=secret_named, folder=settings.models.parent)
    tables = {}
    if secret_named("OPENAI_API_KEY") is not None:
        table = openai_table(openai_environment().get("OPENAI_BASE_URL"), settings.model or DEFAULT_OPENAI_MODEL)
        tables["default"] = table
    return load_profiles(tables, api_key=secret_named, folder=settings.data_dir)


DEFAULT_OPENAI_MODEL = "gpt-4.1-mini"
"""What OPENAI_API_KEY alone stands for: small, cheap, with tool calls; PATCHYARD_MODEL names another."""
