"""Tasks: submit, list, look at, wait for, cancel."""

from __future__ import annotations

import re
import time
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse

from service.api import auth, body, uploads
from service.api.auth import SignedIn, Submitter
from service.api.parts import Parts, Use
from service.api.schema import Closed, parse_task
from service.api.submit import check, submit
from service.contracts import TERMINAL, Key, Task, TaskSpec, WorkspaceRef
from service.errors import InvalidRequest, NotFound, TooLarge

MAX_WAIT_S = 60
MAX_PAGE = 200
TASK_ID = re.compile(r"^task_[0-9A-HJKMNP-TV-Z]{26}\Z")

router = APIRouter()


def find(use: Parts, key: Key, task_id: str) -> Task:
    """The task if it is the team's; otherwise 404, the same for one that does not exist."""
    task = use.store.task(task_id) if TASK_ID.match(task_id) else None
    if task is None or task.team != key.team:
        raise NotFound("There is no such task.", code="task_not_found")
    return task


def found_task(task_id: str, use: Use, key: SignedIn) -> Task:
    """The task of the path, as a dependency of every route below it."""
    return find(use, key, task_id)


Found = Annotated[Task, Depends(found_task)]


class _Submission:
    """The two parts of a multipart submission, in whatever order they come."""

    def __init__(self, use: Parts, key: Key, upload: uploads.Upload) -> None:
        self._use = use
        self._key = key
        self._upload = upload
        self._text = bytearray()
        self.spec: TaskSpec | None = None
        self.has_workspace = False

    async def task(self, data: bytes | None) -> None:
        if data is None:
            # Judged as soon as it is there: no archive need travel for a task that is refused.
            self.spec = parse_task(bytes(self._text))
            await run_in_threadpool(check, self._use, self._key, self.spec)
        elif len(self._text) + len(data) > self._use.settings.max_body_bytes:
            limit = self._use.settings.max_body_bytes
            raise TooLarge(f"The part task may have at most {limit} bytes.", extra={"limit_bytes": limit})
        else:
            self._text += data

    async def workspace(self, data: bytes | None) -> None:
        self.has_workspace = True
        if self._upload.received + len(data or b"") > self._use.settings.max_upload_bytes:
            limit = self._use.settings.max_upload_bytes
            raise TooLarge(f"The archive may have at most {limit} bytes.", extra={"limit_bytes": limit})
        await self._upload.take(data)


async def _submit_form(request: Request, use: Parts, key: Key) -> Task:
    limit = use.settings.max_upload_bytes + use.settings.max_body_bytes
    with uploads.receiving(use) as upload:
        parts = _Submission(use, key, upload)
        await body.form(request, {"task": parts.task, "workspace": parts.workspace}, limit)
        spec = parts.spec
        if spec is None:
            raise InvalidRequest("The part task is missing.")
        if parts.has_workspace:
            if spec.workspace is not None:
                raise InvalidRequest(
                    "Give the workspace once: as the part workspace, or by the field workspace.",
                    errors=[{"pointer": "/workspace", "detail": "must be left out beside the part workspace"}],
                )
            workspace = await uploads.accept(use, key, upload)
            spec = spec.model_copy(update={"workspace": WorkspaceRef(id=workspace.id)})
    return await run_in_threadpool(submit, use, key, spec)


@router.post("/v1/tasks", status_code=202, summary="Submit a task")
async def submit_task(
    request: Request,
    use: Use,
    key: Submitter,
    _: Annotated[None, Depends(Closed(later={"dry_run": "false"}, later_headers=("Idempotency-Key",)))],
) -> JSONResponse:
    """A JSON task, or multipart with the parts `task` (JSON) and `workspace` (archive)."""
    if body.is_multipart(request):
        task = await _submit_form(request, use, key)
    else:
        spec = parse_task(await body.read(request, use.settings.max_body_bytes))
        task = await run_in_threadpool(submit, use, key, spec)
    return JSONResponse(task.answer(), status_code=202, headers={"Location": f"/v1/tasks/{task.id}"})


@router.get("/v1/tasks", summary="List the team's tasks, newest first")
def list_tasks(
    use: Use,
    key: SignedIn,
    _: Annotated[
        None,
        Depends(Closed("limit", "cursor", later={"state": None, "review": None, "label": None, "submitter": None})),
    ],
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 50,
    cursor: Annotated[str | None, Query(max_length=500)] = None,
) -> JSONResponse:
    """One page; `next_cursor` is null on the last."""
    tasks, next_cursor = use.store.tasks(key.team, limit=limit, cursor=cursor)
    return JSONResponse({"items": [task.answer() for task in tasks], "next_cursor": next_cursor})


async def wait_for(use: Parts, task: Task, seconds: int) -> Task:
    """The task as soon as it is terminal, or as it stands after `seconds`."""
    deadline = time.monotonic() + seconds
    newest = await run_in_threadpool(use.store.last_seq, task.id)
    with use.hub.watch(task.id, newest) as viewer:
        while True:
            found = await run_in_threadpool(use.store.task, task.id)
            task = found or task
            left = deadline - time.monotonic()
            if task.state in TERMINAL or left <= 0 or viewer.closed:
                return task
            await viewer.next(left)


@router.get("/v1/tasks/{task_id}", summary="Look at a task")
async def get_task(
    use: Use,
    task: Found,
    _: Annotated[None, Depends(Closed("wait"))],
    wait: Annotated[int, Query(ge=0, le=MAX_WAIT_S)] = 0,
) -> JSONResponse:
    """With `wait`, answers as soon as the task is terminal, at the latest after that many seconds."""
    if wait and task.state not in TERMINAL:
        task = await wait_for(use, task, wait)
    return JSONResponse(task.answer())


@router.post(
    "/v1/tasks/{task_id}/cancel",
    summary="Cancel a task",
    responses={200: {"description": "Cancelled"}, 202: {"description": "The running task will stop within seconds"}},
)
def cancel_task(use: Use, key: SignedIn, task: Found, _: Annotated[None, Depends(Closed())]) -> JSONResponse:
    """A queued task is cancelled at once, a running one within seconds; 409 `invalid_state` on a finished one."""
    auth.check_controls(key, task)
    use.store.request_cancel(task.id)
    task = find(use, key, task.id)
    return JSONResponse(task.answer(), status_code=200 if task.state in TERMINAL else 202)
