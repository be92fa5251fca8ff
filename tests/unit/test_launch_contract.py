"""The check that is made on every container of the suite finds what it is there for."""

from __future__ import annotations

from typing import Any

import pytest
from launch_contract import broken_promises

from worker.sandbox.base import BoxSpec
from worker.sandbox.docker import container_options


def inspected() -> dict[str, Any]:
    spec = BoxSpec(task="task_1", run=1, image="i", cpus=1, memory_mb=128, disk_mb=64, pids=64)
    options = container_options(spec, image_id="sha256:1", image_env=("PATH",), deployment="d", runtime="runc")
    return {"Name": "/box", "Mounts": [], "Config": options, "HostConfig": options["HostConfig"]}


def test_our_own_options_keep_every_promise() -> None:
    assert broken_promises(inspected()) == []


@pytest.mark.parametrize(
    ("part", "key", "value", "said"),
    [
        ("HostConfig", "Privileged", True, "Privileged is True"),
        ("HostConfig", "NetworkMode", "bridge", "NetworkMode is 'bridge'"),
        ("HostConfig", "Binds", ["/:/host"], "Binds is ['/:/host']"),
        ("HostConfig", "CapAdd", ["SYS_ADMIN"], "CapAdd is ['SYS_ADMIN']"),
        ("HostConfig", "PidsLimit", 0, "no limit PidsLimit"),
        ("HostConfig", "MemorySwap", -1, "swap beside the memory limit"),
        ("Config", "User", "0", "user '0'"),
        ("Config", "Env", ["LD_PRELOAD=/x.so"], "variable LD_PRELOAD=/x.so"),
    ],
)
def test_a_broken_promise_is_named(part: str, key: str, value: object, said: str) -> None:
    found = inspected()
    found[part] = {**found[part], key: value}
    assert f"/box: {said}" in broken_promises(found)
