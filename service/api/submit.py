"""From a parsed task to a queued one: everything that needs the catalogue, the workspace or the store."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime

from service import telemetry
from service.api.parts import Parts
from service.api.problems import printable
from service.api.schema import NOT_YET
from service.contracts import Catalogue, Key, ModelCard, Resources, Task, TaskSpec, Workspace, new_id
from service.errors import InvalidRequest, NotAvailable, NotFound, Unavailable

TOKENS_WITHOUT_PRICE = 2_000_000
"""`max_tokens` of a task whose model has no price: `max_cost_usd` cannot bound it (docs/api.md)."""

WORKSPACE_SHARE = 2 / 3 * 3 / 4
"""Of `disk_mb`: /workspace is ¾ of the box's disk, and an upload may fill ⅔ of that (docs/sandbox.md)."""

WORKSPACE_ID = re.compile(r"^ws_[0-9A-HJKMNP-TV-Z]{26}\Z")

_MIB = 1 << 20

log = telemetry.logger("api.submit")


def catalogue(use: Parts) -> Catalogue:
    """What the workers can serve; 503 `no_catalogue` while none has ever said so."""
    found = use.store.catalogue()
    if found is None:
        raise Unavailable("No worker has published its models and images yet; try again shortly.", code="no_catalogue")
    return found


def _card(known: Catalogue, name: str) -> ModelCard:
    for card in known.models:
        if card.name == name:
            return card
    names = sorted(card.name for card in known.models)
    raise InvalidRequest(
        f"There is no model {printable(name)!r}; there are: {', '.join(names)}.",
        code="unknown_model",
        errors=[{"pointer": "/model", "detail": "is not in the catalogue (GET /v1/models)"}],
        extra={"models": names},
    )


def _image(known: Catalogue, asked: str | None) -> str:
    default = known.images[0]
    if asked not in (None, default):
        raise NotAvailable(
            "Not available in this version: an image other than the default.",
            errors=[{"pointer": "/image", "detail": NOT_YET}],
        )
    return default


def clamp(asked: Resources, maxima: Resources) -> Resources:
    """What the operator allows of what was asked for."""
    return Resources(
        cpus=min(asked.cpus, maxima.cpus),
        memory_mb=min(asked.memory_mb, maxima.memory_mb),
        disk_mb=min(asked.disk_mb, maxima.disk_mb),
        pids=min(asked.pids, maxima.pids),
    )


def check_fits(workspace: Workspace, resources: Resources, maxima: Resources) -> None:
    """422 `workspace_too_large`, naming the `disk_mb` it takes, for an upload the box could not work with."""
    if workspace.unpacked_size <= WORKSPACE_SHARE * resources.disk_mb * _MIB:
        return
    needed = math.ceil(workspace.unpacked_size / (WORKSPACE_SHARE * _MIB))
    beyond = f", which is beyond this operator's maximum of {maxima.disk_mb}" if needed > maxima.disk_mb else ""
    raise InvalidRequest(
        f"The workspace holds {workspace.unpacked_size} bytes; it needs resources.disk_mb {needed}{beyond}.",
        code="workspace_too_large",
        errors=[{"pointer": "/resources/disk_mb", "detail": f"must be at least {needed}"}],
        extra={"disk_mb_needed": needed},
    )


def resolve(spec: TaskSpec, known: Catalogue) -> TaskSpec:
    """The task with every default that depends on the deployment filled in."""
    card = _card(known, spec.model)
    limits = spec.limits
    if limits.max_tokens is None and card.price is None:
        limits = limits.model_copy(update={"max_tokens": TOKENS_WITHOUT_PRICE})
    return spec.model_copy(
        update={
            "image": _image(known, spec.image),
            "limits": limits,
            "resources": clamp(spec.resources, known.maxima),
        }
    )


def workspace_of(use: Parts, key: Key, spec: TaskSpec) -> Workspace | None:
    """The upload the task names; 404 for an unknown one and for one of another team alike."""
    if spec.workspace is None or spec.workspace.id is None:
        return None
    asked = spec.workspace.id
    found = use.store.workspace(key.team, asked) if WORKSPACE_ID.match(asked) else None
    if found is None:
        raise NotFound("There is no such workspace.", code="workspace_not_found")
    return found


def check(use: Parts, key: Key, spec: TaskSpec) -> TaskSpec:
    """The resolved task, or the refusal it earns; writes nothing."""
    known = catalogue(use)
    resolved = resolve(spec, known)
    workspace = workspace_of(use, key, spec)
    if workspace is not None:
        check_fits(workspace, resolved.resources, known.maxima)
    return resolved


def submit(use: Parts, key: Key, spec: TaskSpec) -> Task:
    """Queues the task durably, its env values sealed, and rings for a worker."""
    resolved = check(use, key, spec)
    task_id = new_id("task")
    env = resolved.env_to_seal()
    task = use.store.submit(
        Task(
            id=task_id,
            team=key.team,
            submitter=key.id,
            spec=resolved.without_env_values(),
            created_at=datetime.now(UTC),
        ),
        sealed=None if env is None else use.sealer.seal(task_id, env),
    )
    log.info("task_submitted", task=task.id, team=task.team, model=resolved.model)
    try:
        use.ring()
    except Unavailable:
        # The task is stored; the sweeper rings for what no bell announced.
        log.warning("bell_not_rung", task=task.id)
    return task
