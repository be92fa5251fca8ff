"""What the routes work with, handed to the app when it is made; nothing of it is global."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from service.api.hub import EventHub
from service.blobs import Blobs
from service.seal import Sealer
from service.settings import ServiceSettings
from service.store import Store


@dataclass(frozen=True, slots=True)
class Parts:
    settings: ServiceSettings
    store: Store
    blobs: Blobs
    sealer: Sealer
    ring: Callable[[], object]
    """Tells a worker that there is work; it may fail, the sweeper rings again."""
    hub: EventHub
    upload_slots: asyncio.Semaphore


async def parts(request: Request) -> Parts:
    """The parts of the app that answers this request. (A dependency that waits for nothing is async: no thread.)"""
    found: Parts = request.app.state.parts
    return found


Use = Annotated[Parts, Depends(parts)]
