"""The app as data: routes, handlers and middleware around the parts it is given."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool

from service.api import docs, events, keys, middleware, openapi, ops, problems, results, tasks, uploads
from service.api.hub import EventHub
from service.api.parts import Parts
from service.blobs import Blobs
from service.seal import Sealer
from service.settings import ServiceSettings
from service.store import Store

DESCRIPTION = "Give it an archive and a prompt; get back a patch that was proven to apply."


class _App(FastAPI):
    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            self.openapi_schema = openapi.document(self)
        return self.openapi_schema


def create_app(
    settings: ServiceSettings, store: Store, blobs: Blobs, sealer: Sealer, *, ring: Callable[[], object]
) -> FastAPI:
    """The service's HTTP edge. `ring` tells a worker that there is work (service/queue.py).

    The caller keeps `store` and closes it; the app only stops its own reader of it.
    """
    hub = EventHub(store)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        hub.start()
        try:
            yield
        finally:
            hub.close()
            await run_in_threadpool(hub.join)

    app = _App(
        title="Patchyard",
        version=version("patchyard"),
        description=DESCRIPTION,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.parts = Parts(settings, store, blobs, sealer, ring, hub, asyncio.Semaphore(settings.upload_slots))
    problems.install(app)
    app.add_middleware(middleware.Edge)
    for module in (tasks, events, results, uploads, keys, ops, docs):
        app.include_router(module.router)
    return app
