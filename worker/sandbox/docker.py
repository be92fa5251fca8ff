"""Boxes from a Docker engine; the only place that says what options a container of ours has.

`container_options` is the whole policy as one plain object of the engine's API (docs/security.md says why each
option is there); `DockerProvider` creates, attaches, starts and removes.
"""

from __future__ import annotations

import functools
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import resources
from typing import Any

import docker
from docker.errors import APIError, DockerException, ImageNotFound

from service.errors import SandboxError
from worker.sandbox.attach import AttachTransport
from worker.sandbox.base import BoxSpec, Sandbox
from worker.sandbox.box import connect

UID = GID = 10001
ENTRYPOINT = ("/usr/bin/python3", "-I", "-S", "-B", "/opt/patchyard/boot.py")
LABEL = "patchyard."
"""Before `deployment`, `task`, `run` and `purpose`."""

_MB = 1 << 20
_OPEN_FILES = 16_384
_SHM_BYTES = 16 * _MB
_WORKSPACE_INODES = 200_000
_SIDE_INODES = 20_000


def container_options(
    spec: BoxSpec, *, image_id: str, image_env: tuple[str, ...], deployment: str, runtime: str
) -> dict[str, Any]:
    """The body of the engine's create call for `spec`; nothing in it comes from the image or from a task's text.

    `image_env` holds the names the image sets: each is unset, because an LD_PRELOAD would load into PID 1.
    """
    return {
        "Image": image_id,
        "Entrypoint": list(ENTRYPOINT),
        "Cmd": [],
        "WorkingDir": "/",
        "User": f"{UID}:{GID}",
        "Env": sorted(image_env),  # a name without `=` unsets it
        "Hostname": "sandbox",
        "Domainname": "",
        "StopSignal": "SIGKILL",  # PID 1 ignores every other one
        "Healthcheck": {"Test": ["NONE"]},
        "Labels": {
            f"{LABEL}deployment": deployment,
            f"{LABEL}task": spec.task,
            f"{LABEL}run": str(spec.run),
            f"{LABEL}purpose": spec.purpose,
        },
        "Tty": False,
        "OpenStdin": True,
        "StdinOnce": False,  # the box outlives a worker's connection
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": False,
        "HostConfig": _host_config(spec, runtime),
    }


def _host_config(spec: BoxSpec, runtime: str) -> dict[str, Any]:
    memory = (spec.memory_mb + spec.disk_mb) * _MB  # the tmpfs mounts count as memory
    disk = spec.disk_mb * _MB
    return {
        "NetworkMode": "none",
        "ExtraHosts": ["sandbox:127.0.0.1"],  # else looking up its own name fails, and sudo, Java and others wait
        "Dns": ["127.0.0.1"],  # not the host's resolvers, whose addresses are nobody's business in there
        "DnsSearch": ["."],
        "ReadonlyRootfs": True,
        "CapAdd": [],
        "CapDrop": ["ALL"],
        "Privileged": False,
        "SecurityOpt": ["no-new-privileges", f"seccomp={seccomp_profile()}"],
        "PidsLimit": spec.pids,
        "Memory": memory,
        "MemorySwap": memory,  # equal: no swap; unset would allow as much again
        "OomKillDisable": False,
        "NanoCpus": round(spec.cpus * 1_000_000_000),
        "Ulimits": [
            {"Name": "nofile", "Soft": _OPEN_FILES, "Hard": _OPEN_FILES},
            {"Name": "core", "Soft": 0, "Hard": 0},
            {"Name": "fsize", "Soft": disk, "Hard": disk},
        ],
        "Tmpfs": {
            "/workspace": _tmpfs(disk * 3 // 4, _WORKSPACE_INODES, f"mode=0755,uid={UID},gid={GID}"),
            "/home/agent": _tmpfs(disk // 8, _SIDE_INODES, f"mode=0755,uid={UID},gid={GID}"),
            "/tmp": _tmpfs(disk // 8, _SIDE_INODES, "mode=1777"),  # noqa: S108 - the box's own
        },
        "Binds": [],
        "Devices": [],
        "IpcMode": "private",
        "PidMode": "",
        "UTSMode": "",
        "ShmSize": _SHM_BYTES,
        "LogConfig": {"Type": "none", "Config": {}},  # output goes through the pipe alone, never to the host's disk
        "RestartPolicy": {"Name": "no", "MaximumRetryCount": 0},
        "AutoRemove": False,
        "PublishAllPorts": False,
        "Init": False,  # the tool server itself is PID 1 and reaps
        "Runtime": runtime,
    }


def _tmpfs(size: int, inodes: int, owner: str) -> str:
    return f"rw,exec,nosuid,nodev,size={size},nr_inodes={inodes},{owner}"


@functools.cache
def seccomp_profile() -> str:
    """The profile as JSON text: the engine takes it by value, so that no host path is involved."""
    return resources.files("sandbox_image").joinpath("seccomp.json").read_text(encoding="utf-8")


def container_name(spec: BoxSpec) -> str:
    suffix = "" if spec.purpose == "task" else f"-{spec.purpose}"
    return f"patchyard-{spec.task}-{spec.run}{suffix}"


@contextmanager
def engine_errors(doing: str) -> Iterator[None]:
    """Whatever docker-py and its HTTP client raise becomes a SandboxError that says what was being done."""
    try:
        yield
    except ImageNotFound as error:
        raise SandboxError(f"{doing}: the engine has no such image; build or load it first") from error
    except APIError as error:
        raise SandboxError(f"{doing}: the Docker engine refused ({error.explanation or error})") from error
    except (DockerException, OSError) as error:  # requests' errors are OSErrors
        raise SandboxError(f"{doing}: the Docker engine does not answer ({error})") from error


def engine_client(url: str, timeout_s: float) -> docker.APIClient:
    """A connected low-level client; every call through it ends after `timeout_s`."""
    with engine_errors(f"connecting to {url}"):
        if url.startswith("unix://"):
            _knock(url.removeprefix("unix://"), timeout_s)
        return docker.APIClient(base_url=url, version="auto", timeout=timeout_s)


def _knock(path: str, timeout_s: float) -> None:
    """Raises OSError when nobody listens there; docker-py would too, but leave its socket open for the collector."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as knock:
        knock.settimeout(timeout_s)
        knock.connect(path)


@dataclass(frozen=True, slots=True)
class EngineHealth:
    ok: bool
    engine: str
    """Engine name and version, or why no box can be opened."""


def engine_health(url: str, *, runtime: str, image: str, timeout_s: float = 5) -> EngineHealth:
    """Whether boxes could be opened now: the engine answers, knows the runtime and has the image. Never raises."""
    try:
        client = engine_client(url, timeout_s)
        try:
            with engine_errors("asking for its state"):
                info: Mapping[str, Any] = client.info()
            if runtime not in info.get("Runtimes", {}):
                return EngineHealth(ok=False, engine=f"the Docker engine has no runtime {runtime!r}")
            with engine_errors(f"looking for {image}"):
                client.inspect_image(image)
        finally:
            client.close()
    except SandboxError as error:
        return EngineHealth(ok=False, engine=error.detail)
    return EngineHealth(ok=True, engine=f"Docker {info.get('ServerVersion', '')}")


@dataclass(frozen=True, slots=True)
class Image:
    id: str
    env: tuple[str, ...]
    """Names of the variables it sets."""


class DockerProvider:
    """Opens boxes on one engine. Connects at first use, so that it may be made before a fork."""

    def __init__(
        self,
        *,
        url: str,
        deployment: str,
        runtime: str = "runc",
        call_timeout_s: float = 60,
        hello_timeout_s: float = 30,
    ) -> None:
        self._url = url
        self._deployment = deployment
        self._runtime = runtime
        self._call_timeout_s = call_timeout_s
        self._hello_timeout_s = hello_timeout_s
        self._client: docker.APIClient | None = None

    def open(self, spec: BoxSpec) -> Sandbox:
        client = self._connected()
        image = usable_image(client, spec.image)
        options = container_options(
            spec, image_id=image.id, image_env=image.env, deployment=self._deployment, runtime=self._runtime
        )
        name = container_name(spec)
        with engine_errors(f"creating {name}"):
            container: str = client.create_container_from_config(options, name)["Id"]
        transport: AttachTransport | None = None
        try:
            with engine_errors(f"starting {name}"):
                transport = attach(client, container)
                client.start(container)
            return connect(
                transport,
                image=image.id,
                runtime=self._runtime,
                remove=_remover(client, container, transport),
                hello_timeout_s=self._hello_timeout_s,
            )
        except BaseException:
            # Also on a KeyboardInterrupt or a job's timeout: what was made is removed, then the error goes on.
            if transport is not None:
                transport.close()
            with suppress(SandboxError):  # the first error is the one that says something; the reaper comes by
                remove_container(client, container)
            raise

    def close(self) -> None:
        """Lets go of the pooled connections; the next `open` connects again. Open boxes stay."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _connected(self) -> docker.APIClient:
        if self._client is None:
            self._client = engine_client(self._url, self._call_timeout_s)
        return self._client


def usable_image(client: docker.APIClient, name: str) -> Image:
    """What the engine knows of the image; SandboxError when there is none or it declares volumes."""
    with engine_errors(f"looking for {name}"):
        found: Mapping[str, Any] = client.inspect_image(name)
    config: Mapping[str, Any] = found.get("Config") or {}
    if volumes := config.get("Volumes"):
        raise SandboxError(
            f"the image {name} declares volumes ({', '.join(sorted(volumes))}): each would be a writable folder of "
            "the host without a limit; use an image without VOLUME",
            retryable=False,
        )
    names = {entry.partition("=")[0] for entry in config.get("Env") or ()}
    return Image(id=found["Id"], env=tuple(sorted(names)))


def attach(client: docker.APIClient, container: str) -> AttachTransport:
    """The raw stdin and stdout of a created container; before its start, so that no byte is lost."""
    stream = client.attach_socket(container, params={"stdin": 1, "stdout": 1, "stderr": 0, "stream": 1})
    return AttachTransport(stream, getattr(stream, "_sock", stream))


def _remover(client: docker.APIClient, container: str, transport: AttachTransport) -> Callable[[], None]:
    def remove() -> None:
        # In this order: with output unread by an attached client, the engine hangs on kill and remove until it goes.
        transport.close()
        remove_container(client, container)

    return remove


def remove_container(client: docker.APIClient, container: str) -> None:
    """Kills and removes it; one that is gone or on its way out is fine."""
    with engine_errors(f"removing {container[:24]}"):
        try:
            client.remove_container(container, force=True, v=True)
        except APIError as error:
            if error.status_code not in (404, 409):
                raise
