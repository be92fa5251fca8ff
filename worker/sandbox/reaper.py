"""Removes the containers that nobody will ever use again.

A worker removes its own boxes; this is for those of a worker that was killed. The label says which deployment
made a container, so that two of them on one engine leave each other alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import docker
import structlog

from service.errors import SandboxError
from worker.sandbox.docker import LABEL, engine_errors, remove_container

PROBE_AGE_S = 600
"""A container outside any run (a probe of the doctor) is left alone this long, then removed."""

_log = structlog.get_logger(__name__)


def reap(client: docker.APIClient, deployment: str, alive: Callable[[str, int], bool]) -> list[str]:
    """Removes this deployment's containers whose run no longer holds its lease; their names.

    `alive(task, run)` is asked after the containers were listed, so a run that began in between is not in the
    list. A container that cannot be removed now is left for the next round.
    """
    with engine_errors("listing containers"):
        found: list[Mapping[str, Any]] = client.containers(
            all=True, filters={"label": f"{LABEL}deployment={deployment}"}
        )
    removed = []
    for container in found:
        if _in_use(container, alive):
            continue
        name = container["Names"][0].lstrip("/") if container["Names"] else container["Id"]
        try:
            remove_container(client, container["Id"])
        except SandboxError as error:
            _log.warning("container_not_removed", container=name, reason=error.detail)
        else:
            removed.append(name)
    return removed


def _in_use(container: Mapping[str, Any], alive: Callable[[str, int], bool]) -> bool:
    labels = container["Labels"]
    task, run = labels.get(f"{LABEL}task", ""), labels.get(f"{LABEL}run", "")
    if labels.get(f"{LABEL}purpose") == "probe" or not task or not run.isdigit():
        return time.time() - float(container["Created"]) < PROBE_AGE_S
    return alive(task, int(run))
