"""A task's events: a server-sent stream that resumes anywhere without a gap, or a page of JSON.

`id:` is the event's `seq`. A stream starts after `Last-Event-ID` (which a reconnecting browser sends), or else after
`?after=SEQ`. It ends after the terminal event, which is the last a task ever has; it also ends when this process stops,
and the client goes on elsewhere, and when its key is revoked. Whatever can be refused is refused before the first byte.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from fastapi.sse import KEEPALIVE_COMMENT, EventSourceResponse, format_sse_event
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, Response

from service import telemetry
from service.api.auth import signed_in
from service.api.parts import Parts, Use
from service.api.schema import Closed
from service.api.tasks import Found
from service.contracts import TERMINAL, Key, Task
from service.errors import InvalidRequest, RequestError
from service.store import EventRecord

HEARTBEAT_S = 15.0
READ_AT_ONCE = 500
RETRY_MS = 2_000
"""What a browser waits before it reconnects."""
MAX_PAGE = 1_000

FRAME = {
    "type": "object",
    "description": "One server-sent event; `data` is the event as in a page of JSON.",
    "properties": {
        "id": {"type": "string"},
        "event": {"type": "string"},
        "data": {"type": "string", "contentMediaType": "application/json"},
    },
    "required": ["id", "event", "data"],
}

_SEQ = re.compile(r"^[0-9]{1,15}\Z")

router = APIRouter()
log = telemetry.logger("api.events")


def event_json(task_id: str, record: EventRecord) -> dict[str, Any]:
    """The event of the contract: `{seq, time, task, type, data}`."""
    return {"seq": record.seq, "time": record.time, "task": task_id, "type": record.type, "data": record.data}


def is_terminal(record: EventRecord) -> bool:
    return record.type == "state" and record.data.get("state") in TERMINAL


async def start_after(request: Request, after: Annotated[int, Query(ge=0, le=10**15)] = 0) -> int:
    """Where the reader wants to go on: the header wins, because a reconnect repeats the URL it began with."""
    given = request.headers.get("last-event-id")
    if given is None:
        return after
    if not _SEQ.match(given):
        raise InvalidRequest(
            "Last-Event-ID must be the id of an event of this task: a whole number.",
            errors=[{"pointer": "/Last-Event-ID", "in": "header", "detail": "must be a whole number"}],
        )
    return int(given)


StartAfter = Annotated[int, Depends(start_after)]


async def _caught_up(use: Parts, task_id: str, after: int) -> AsyncIterator[Sequence[EventRecord]]:
    """What the store has after `after`, page by page; ends with an empty page if no more can ever come."""
    while True:
        # The state is read before the events: a task that is already over here has its last event in the read.
        now = await run_in_threadpool(use.store.task, task_id)
        page = await run_in_threadpool(use.store.events, task_id, after, READ_AT_ONCE)
        if page:
            yield page
            after = page[-1].seq
        if len(page) < READ_AT_ONCE:
            if now is None or now.state in TERMINAL:
                yield []
            return


async def follow(use: Parts, task: Task, after: int) -> AsyncIterator[Sequence[EventRecord]]:
    """Every event after `after`, each once and in order, in batches; an empty batch is a sign of life.

    The store is read until it has no more; from then on the hub's records count as long as they continue the sequence,
    and a break in it goes back to the store. So does a silence: a reader that is ahead of the store (which lost its
    last second in a crash) would else never hear that the task is over.
    """
    while True:
        async for page in _caught_up(use, task.id, after):
            if not page:
                return
            yield page
            after = page[-1].seq
            if is_terminal(page[-1]):
                return
        with use.hub.watch(task.id, after) as viewer:
            while not viewer.closed:
                batch = [record for record in await viewer.next(HEARTBEAT_S) if record.seq > after]
                if batch and batch[0].seq != after + 1:
                    break
                yield batch
                if not batch:
                    break
                after = batch[-1].seq
                if is_terminal(batch[-1]):
                    return
            if viewer.closed:
                return


async def frames(use: Parts, task: Task, after: int, sign_in: Callable[[], Key]) -> AsyncIterator[bytes]:
    """The stream on the wire; it ends within `HEARTBEAT_S` of a moment from which `sign_in` refuses."""
    yield format_sse_event(comment="patchyard", retry=RETRY_MS)
    signed_in_at = time.monotonic()
    try:
        async for batch in follow(use, task, after):
            if time.monotonic() - signed_in_at >= HEARTBEAT_S:
                await run_in_threadpool(sign_in)
                signed_in_at = time.monotonic()
            if not batch:
                yield KEEPALIVE_COMMENT
            for record in batch:
                text = json.dumps(event_json(task.id, record), ensure_ascii=False)
                yield format_sse_event(data_str=text, event=record.type, id=str(record.seq))
    except RequestError as error:
        # The answer has begun, so all that is left is to end it; the client comes back and is told then.
        log.warning("stream_ended", task=task.id, code=error.code)


def wants_json(request: Request) -> bool:
    accept = request.headers.get("accept", "")
    return "application/json" in accept and "text/event-stream" not in accept


@router.get(
    "/v1/tasks/{task_id}/events",
    summary="Follow a task",
    responses={
        200: {
            "description": "The stream, or with `Accept: application/json` a page of it",
            "content": {"text/event-stream": {"schema": FRAME}},
        }
    },
)
async def task_events(
    request: Request,
    use: Use,
    task: Found,
    after: StartAfter,
    _: Annotated[None, Depends(Closed("after", "limit"))],
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 200,
) -> Response:
    """Server-sent events; `limit` counts only for a page of JSON, whose `next_after` continues it."""
    if wants_json(request):
        page = await run_in_threadpool(use.store.events, task.id, after, limit)
        next_after = page[-1].seq if page else after
        return JSONResponse({"items": [event_json(task.id, record) for record in page], "next_after": next_after})
    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    return EventSourceResponse(frames(use, task, after, partial(signed_in, request, use)), headers=headers)
