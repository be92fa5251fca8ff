"""Archives in: streamed to a scratch file, checked off the event loop, kept as one canonical tar."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse

from service.api import body
from service.api.auth import Submitter
from service.api.parts import Parts, Use
from service.api.schema import Closed
from service.blobs import BlobWriter
from service.contracts import Key, Workspace, new_id
from service.errors import InvalidRequest
from service.intake import canonicalise

WRITE_BYTES = 1 << 20
"""Collected before one trip to a thread that hashes and writes."""

router = APIRouter()


class Upload:
    """An archive on its way in; `scratch` is its file, gone with the request."""

    def __init__(self, scratch: BlobWriter) -> None:
        self.scratch = scratch
        self._held = bytearray()

    async def take(self, data: bytes | None) -> None:
        """The next bytes, or None at the end."""
        self._held += data or b""
        if data is None or len(self._held) >= WRITE_BYTES:
            piece, self._held = bytes(self._held), bytearray()
            await run_in_threadpool(self.scratch.write, piece)

    @property
    def received(self) -> int:
        """Bytes so far, those included that are not yet in the file."""
        return self.scratch.ref.size + len(self._held)

    @property
    def sha256(self) -> str:
        return self.scratch.ref.sha256

    @property
    def size(self) -> int:
        return self.scratch.ref.size


@contextmanager
def receiving(use: Parts) -> Iterator[Upload]:
    """An upload whose file is removed on any way out, a client that leaves included."""
    with use.blobs.scratch() as scratch:
        yield Upload(scratch)


def _accept(use: Parts, key: Key, upload: Upload) -> Workspace:
    upload.scratch.seek(0)
    with use.blobs.writer() as canonical:
        intake = canonicalise(upload.scratch, canonical)
    manifest = use.blobs.put(intake.manifest.chunks())
    return use.store.put_workspace(
        Workspace(
            id=new_id("ws"),
            team=key.team,
            sha256=upload.sha256,
            size=upload.size,
            format=intake.format,
            files=intake.files,
            unpacked_size=intake.unpacked_size,
            blob=canonical.ref.sha256,
            manifest=manifest.sha256,
            notes=intake.notes,
            created_at=datetime.now(UTC),
        )
    )


async def accept(use: Parts, key: Key, upload: Upload) -> Workspace:
    """The workspace of a received archive; ArchiveUnsafe or TooLarge if it may not be one.

    At most `upload_slots` archives are checked at one time; the others wait their turn on disk.
    """
    async with use.upload_slots:
        return await run_in_threadpool(_accept, use, key, upload)


def answer(workspace: Workspace) -> dict[str, Any]:
    """The workspace as clients see it: no blob names."""
    return workspace.model_dump(mode="json", exclude={"blob", "manifest", "team"})


@router.post(
    "/v1/workspaces",
    status_code=201,
    summary="Upload an archive",
    responses={201: {"description": "The workspace"}},
)
async def upload_workspace(
    request: Request, use: Use, key: Submitter, _: Annotated[None, Depends(Closed())]
) -> JSONResponse:
    """The body is the raw archive: tar, tar.gz, tar.zst or zip, told apart by content."""
    if body.is_multipart(request):
        raise InvalidRequest("Send the archive itself as the body; multipart is for POST /v1/tasks.")
    with receiving(use) as upload:
        async for chunk in body.chunks(request, use.settings.max_upload_bytes, "archive"):
            await upload.take(chunk)
        await upload.take(None)
        workspace = await accept(use, key, upload)
    return JSONResponse(answer(workspace), status_code=201)
