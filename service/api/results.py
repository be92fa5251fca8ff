"""What a task leaves: its patch and its artifacts, as attachments."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Depends, Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from service import errors
from service.api.parts import Parts, Use
from service.api.schema import Closed
from service.api.tasks import Found
from service.blobs import Blobs
from service.contracts import TERMINAL, ExitReason, PatchInfo, Task

READ_BYTES = 64 << 10
NO_PATCH = {
    ExitReason.CANCELLED: "the task was cancelled before it had anything to export",
    ExitReason.WORKSPACE_ERROR: "the workspace could not be loaded",
    ExitReason.SANDBOX_ERROR: "the sandbox was lost before there was anything to export",
    ExitReason.WORKER_LOST: "the worker was lost before there was anything to export",
    ExitReason.EXPORT_FAILED: "the patch could not be proven",
}
"""Why there is none, where the run left no reason of its own."""

_RANGE = re.compile(r"^bytes=(\d{0,18})-(\d{0,18})\Z")

router = APIRouter()


class RangeNotSatisfiable(errors.RequestError):
    status, title, code = 416, "Range not satisfiable", "range_not_satisfiable"


def attachment(name: str) -> str:
    """`Content-Disposition` for a download (RFC 6266, RFC 5987): no name can add a header or a parameter."""
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", name)
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}"


def byte_range(header: str | None, size: int) -> range | None:
    """The one range a client asks for; None for the whole, which also answers what we do not serve (RFC 9110)."""
    match = _RANGE.match(header) if header else None
    if match is None or match[1] == match[2] == "":
        return None
    if match[1] == "":
        first, last = max(0, size - int(match[2])), size - 1
        unsatisfiable = int(match[2]) == 0
    else:
        first, last = int(match[1]), min(size - 1, int(match[2] or size))
        if match[2] and int(match[2]) < first:
            return None
        unsatisfiable = False
    if unsatisfiable or first >= size:
        raise RangeNotSatisfiable(f"The content has {size} bytes.", extra={"size": size})
    return range(first, last + 1)


def _pieces(blobs: Blobs, sha256: str, start: int, count: int) -> Iterator[bytes]:
    with blobs.open(sha256) as file:  # opened by the first read: an answer that is never sent opens nothing
        file.seek(start)
        while count > 0 and (piece := file.read(min(READ_BYTES, count))):
            count -= len(piece)
            yield piece


def download(use: Parts, request: Request, sha256: str, *, media_type: str, headers: dict[str, str]) -> Response:
    """A blob as an answer: 304 for a client that has it, 206 for a range of it."""
    size = use.blobs.size(sha256)
    etag = f'"{sha256}"'
    headers = {**headers, "ETag": etag, "Accept-Ranges": "bytes", "Cache-Control": "private, no-cache"}
    known = {tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")}
    if etag in known or "*" in known:
        return Response(status_code=304, headers=headers)
    condition = request.headers.get("if-range")
    asked = request.headers.get("range") if condition in (None, etag) else None
    part = byte_range(asked, size)
    wanted = range(size) if part is None else part
    if part is not None:
        headers["Content-Range"] = f"bytes {part.start}-{part.stop - 1}/{size}"
    return StreamingResponse(
        _pieces(use.blobs, sha256, wanted.start, len(wanted)),
        status_code=200 if part is None else 206,
        media_type=media_type,
        headers={**headers, "Content-Length": str(len(wanted))},
    )


def exported(task: Task) -> PatchInfo:
    """The proven patch of a finished task, or the refusal that says why there is none."""
    if task.state not in TERMINAL:
        raise errors.Conflict(
            f"The task is {task.state}; its patch comes with its end.",
            code="not_finished",
            extra={"state": task.state},
        )
    patch = task.patch
    if task.exit_reason is ExitReason.PATCH_TOO_LARGE:
        files = [file.model_dump(mode="json") for file in patch.file_list] if patch else []
        raise errors.Conflict(
            "The change is larger than a patch may be; `files` lists what it touches.",
            code="patch_too_large",
            extra={"files": files, "file_count": patch.files if patch else 0},
        )
    proven = patch is not None and patch.status != "none" and patch.reproduces_tree
    if patch is None or not proven:
        reason = patch.reason if patch and patch.reason else _reason(task)
        raise errors.NotFound(f"There is no patch: {reason}.", code="no_patch", extra={"reason": reason})
    return patch


def _reason(task: Task) -> str:
    if task.started_at is None and task.exit_reason is ExitReason.CANCELLED:
        return "the task was cancelled while queued"
    if task.spec.workspace is None:
        return "the task had no workspace"
    if task.exit_reason in NO_PATCH:
        return NO_PATCH[task.exit_reason]
    return task.error.message if task.error else "the run ended without one"


@router.get(
    "/v1/tasks/{task_id}/patch",
    summary="Download the patch",
    responses={
        200: {"description": "The patch", "content": {"text/x-diff": {"schema": {"type": "string"}}}},
        204: {"description": "Proven: the task changed nothing"},
        206: {"description": "A range of the patch", "content": {"text/x-diff": {"schema": {"type": "string"}}}},
        304: {"description": "The client has it"},
    },
)
def get_patch(
    request: Request, use: Use, task: Found, _: Annotated[None, Depends(Closed(later={"format": None}))]
) -> Response:
    """For `git apply`: bytes, executable bits and link targets exactly as the agent left them."""
    patch = exported(task)
    headers: dict[str, str] = {"X-Patch-Status": patch.status}
    if patch.bytes == 0 or patch.sha256 is None:
        return Response(status_code=204, headers=headers)
    headers["Content-Disposition"] = attachment(f"{task.id}.patch")
    return download(use, request, patch.sha256, media_type="text/x-diff", headers=headers)


@router.get("/v1/tasks/{task_id}/artifacts", summary="List what the run stored")
def list_artifacts(use: Use, task: Found, _: Annotated[None, Depends(Closed())]) -> JSONResponse:
    """Name and size of each."""
    items = [
        {"name": artifact.name, "size": artifact.size, "sha256": artifact.sha256}
        for artifact in use.store.artifacts(task.id)
    ]
    return JSONResponse({"items": items})


@router.get(
    "/v1/tasks/{task_id}/artifacts/{name:path}",
    summary="Download an artifact",
    responses={
        200: {"description": "The artifact", "content": {"application/octet-stream": {"schema": {"type": "string"}}}},
        206: {"description": "A range", "content": {"application/octet-stream": {"schema": {"type": "string"}}}},
        304: {"description": "The client has it"},
        416: {"description": "The range lies beyond its end"},
    },
)
def get_artifact(request: Request, use: Use, task: Found, name: str, _: Annotated[None, Depends(Closed())]) -> Response:
    """Always an attachment, never something a browser would show; one byte range is honoured."""
    for artifact in use.store.artifacts(task.id):
        if artifact.name == name:
            headers = {"Content-Disposition": attachment(name.rsplit("/", 1)[-1])}
            return download(use, request, artifact.sha256, media_type="application/octet-stream", headers=headers)
    raise errors.NotFound("The task has no such artifact.", code="artifact_not_found")
