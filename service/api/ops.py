"""What operators and clients ask about the service itself: health, readiness, figures, models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Depends
from starlette.responses import JSONResponse, Response

from service import telemetry
from service.api.auth import SignedIn
from service.api.parts import Parts, Use
from service.api.schema import Closed
from service.api.submit import catalogue
from service.errors import Unavailable

router = APIRouter()
TakesNoQuery = Annotated[None, Depends(Closed())]


@router.get("/healthz", summary="Is the process alive?", tags=["operations"])
async def healthz(_: TakesNoQuery) -> JSONResponse:
    """No I/O."""
    return JSONResponse({"status": "ok"})


def _probe(check: Callable[[], object]) -> str | None:
    """Why a part that nothing works without does not answer, or None."""
    try:
        check()
    except Unavailable as error:
        return error.detail
    except OSError as error:
        return error.strerror or "an input/output error"
    return None


def _writable(use: Parts) -> None:
    with use.blobs.scratch() as scratch:
        scratch.write(b"ready?")


def _degraded(use: Parts) -> list[str]:
    """Why queued tasks would wait."""
    reasons = []
    if use.store.live_workers() == 0:
        reasons.append("no worker is alive; queued tasks wait")
    engines = use.store.engine_health()
    if not engines:
        reasons.append("no keeper reports a Docker engine; queued tasks wait")
    reasons += [
        f"the engine of {engine['host']} does not answer: {engine['engine']}" for engine in engines if not engine["ok"]
    ]
    return reasons


@router.get("/readyz", summary="Can the service accept and run tasks?", tags=["operations"])
def readyz(use: Use, _: TakesNoQuery) -> JSONResponse:
    """200 `ok`; 200 `degraded` with reasons when tasks are accepted but would wait; 503 when none is accepted."""
    faults = {"store": _probe(use.store.ping), "blobs": _probe(lambda: _writable(use))}
    reasons = [f"{part}: {fault}" for part, fault in faults.items() if fault]
    if not reasons and use.store.catalogue() is None:
        reasons.append("no worker has published its models and images yet")
    if reasons:
        error = Unavailable("; ".join(reasons), code="not_ready")
        error.extra = {"reasons": reasons}
        raise error
    waiting = _degraded(use)
    return JSONResponse({"status": "degraded" if waiting else "ok", "reasons": waiting})


@router.get(
    "/metrics",
    summary="Prometheus figures",
    tags=["operations"],
    responses={200: {"description": "Figures", "content": {"text/plain": {"schema": {"type": "string"}}}}},
)
def metrics(use: Use, _: TakesNoQuery) -> Response:
    """Computed from the store on each scrape."""
    counters = use.store.counters()
    families = [
        telemetry.Family("patchyard_tasks_queued", "Tasks waiting for a worker", "gauge", {(): counters.queued}),
        telemetry.Family("patchyard_tasks_running", "Tasks a worker holds", "gauge", {(): counters.running}),
        telemetry.Family(
            "patchyard_tasks_finished",
            "Tasks ever ended, by exit_reason",
            "counter",
            {(reason,): count for reason, count in sorted(counters.finished.items())},
            labels=["exit_reason"],
        ),
        telemetry.Family("patchyard_workers", "Workers alive", "gauge", {(): use.store.live_workers()}),
    ]
    return Response(telemetry.metrics_text(families), media_type=telemetry.METRICS_CONTENT_TYPE)


@router.get("/v1/models", summary="Models and images a task may ask for", tags=["models"])
def models(use: Use, _key: SignedIn, _: TakesNoQuery) -> JSONResponse:
    """As the workers publish them; the first image is the default."""
    known = catalogue(use)
    found: dict[str, Any] = {
        "models": [card.model_dump(mode="json") for card in known.models],
        "images": list(known.images),
        "maxima": known.maxima.model_dump(mode="json"),
    }
    return JSONResponse(found)
