"""What `docker inspect` must show of every container the suite makes (T04); checked on all of them, not on a sample."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import docker
from docker.errors import NotFound

FIXED = {
    "NetworkMode": "none", "ReadonlyRootfs": True, "Privileged": False, "CapDrop": ["ALL"], "IpcMode": "private",
    "ShmSize": 16 << 20, "LogConfig": {"Type": "none", "Config": {}}, "ExtraHosts": ["sandbox:127.0.0.1"],
    "PidMode": "", "UTSMode": "", "AutoRemove": False, "OomKillDisable": False,
}  # fmt: skip
EMPTY = ("CapAdd", "Binds", "Devices", "Init", "VolumesFrom", "Links", "GroupAdd", "DeviceRequests")


def broken_promises(found: Mapping[str, Any]) -> list[str]:
    """Which of the promises this container breaks, as sentences."""
    host, config = found["HostConfig"], found["Config"]
    broken = [f"{key} is {host[key]!r}" for key, value in FIXED.items() if host[key] != value]
    broken += [f"{key} is {host[key]!r}" for key in EMPTY if host.get(key)]
    broken += [f"mounts {found['Mounts']!r}"] if found["Mounts"] else []
    broken += [f"variable {entry}" for entry in config["Env"] or () if "=" in entry]
    broken += [] if config["User"] == "10001:10001" else [f"user {config['User']!r}"]
    broken += [] if config["Healthcheck"] == {"Test": ["NONE"]} else ["a health check runs"]
    broken += [] if "patchyard.deployment" in config["Labels"] else ["no deployment label"]
    for limit in ("Memory", "PidsLimit", "NanoCpus"):
        broken += [] if host[limit] and host[limit] > 0 else [f"no limit {limit}"]
    broken += [] if host["Memory"] == host["MemorySwap"] else ["swap beside the memory limit"]
    no_new, seccomp = host["SecurityOpt"]
    broken += [] if no_new == "no-new-privileges" else [f"security option {no_new!r}"]
    profile = json.loads(seccomp.removeprefix("seccomp="))
    broken += [] if profile["defaultAction"] == "SCMP_ACT_ERRNO" else ["the seccomp profile allows by default"]
    return [f"{found['Name']}: {promise}" for promise in broken]


@contextmanager
def every_container_kept_it(engine: docker.APIClient, url: str, deployment: str) -> Iterator[None]:
    """Inspects each container whose deployment label begins so, as it starts; fails at the end if one broke it."""
    watcher = docker.APIClient(base_url=url, version="auto", timeout=600)
    events = watcher.events(
        decode=True, filters={"type": "container", "event": "start", "label": "patchyard.deployment"}
    )
    broken: list[str] = []

    def watch() -> None:
        for event in events:
            if event["Actor"]["Attributes"].get("patchyard.deployment", "").startswith(deployment):
                try:
                    broken.extend(broken_promises(engine.inspect_container(event["id"])))
                except NotFound:
                    continue  # gone before we looked: its options came from the same function as all others'

    thread = threading.Thread(target=watch, name="launch-contract", daemon=True)
    thread.start()
    try:
        yield
    finally:
        events.close()
        thread.join(10)
        watcher.close()
    assert broken == []
