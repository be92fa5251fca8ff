"""Every refusal as `application/problem+json` (RFC 9457): the one map from exception to answer.

The document's members are `type, title, status, detail, code, request_id`, for a 422 also `errors[]` (each with a JSON
`pointer` and, where it is not the body, `in: query|header`), and whatever `extra` an error carries. Every 429 and 503
has `Retry-After`. An answer never repeats the id or the value a client sent.
"""

from __future__ import annotations

import http
import json
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from service import errors

MEDIA_TYPE = "application/problem+json"
MAX_ERRORS = 50
MAX_POINTER = 200
DEFAULT_RETRY_S = 5

CODES = {404: "route_not_found", 405: "method_not_allowed", 413: "too_large"}
"""The codes of refusals that the framework makes itself."""


def printable(text: str) -> str:
    """Client text that is safe inside a document of ours: no lone surrogate, bounded."""
    shown = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return shown if len(shown) <= MAX_POINTER else shown[: MAX_POINTER - 1] + "…"


def pointer(parts: Sequence[str | int]) -> str:
    """The JSON pointer (RFC 6901) of a path into a document."""
    return printable("".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts))


def respond(
    request_id: str, document: Mapping[str, Any], *, retry_after_s: int | None = None, headers: Mapping[str, str] | None
) -> Response:
    """A problem document as an answer; `document` has `status`, `title`, `code`, `detail` and what else it wants."""
    status: int = document["status"]
    sent = dict(headers or {})
    if retry_after_s is not None or status in (429, 503):
        sent["Retry-After"] = str(retry_after_s or DEFAULT_RETRY_S)
    body = json.dumps({**document, "type": "about:blank", "request_id": request_id})
    return Response(body.encode("ascii"), status, sent, MEDIA_TYPE)


def request_id(request: Request) -> str:
    """The id of this request, as the middleware gave it."""
    found: str = request.scope["state"]["request_id"]
    return found


def from_error(request: Request, error: errors.RequestError) -> Response:
    """The answer to a refusal of ours."""
    document = {
        **error.extra,
        "title": error.title,
        "status": error.status,
        "detail": error.detail,
        "code": error.code,
    }
    if error.errors is not None:
        document["errors"] = error.errors[:MAX_ERRORS]
    headers = {"WWW-Authenticate": "Bearer"} if error.status == 401 else None
    return respond(request_id(request), document, retry_after_s=error.retry_after_s, headers=headers)


def internal(request_id: str) -> Response:
    """The answer to a defect of ours; the log has the rest under the same id."""
    document = {
        "title": "Internal error",
        "status": 500,
        "detail": "The service failed; the operator finds the cause in its log under this request_id.",
        "code": "internal_error",
    }
    return respond(request_id, document, headers=None)


def from_validation(
    failures: Sequence[Mapping[str, Any]], *, inside: Sequence[str | int] = ()
) -> errors.InvalidRequest:
    """A refusal that names every field pydantic objects to; the values themselves are never repeated."""
    found = [
        {"pointer": pointer([*inside, *failure["loc"]]), "detail": printable(str(failure["msg"]))}
        for failure in failures[:MAX_ERRORS]
    ]
    return errors.InvalidRequest("The request has fields that are missing, unknown or out of range.", errors=found)


def _from_parameters(request: Request, error: RequestValidationError) -> Response:
    found = []
    for failure in error.errors():
        place, *path = failure["loc"]
        found.append({"pointer": pointer(path), "in": str(place), "detail": printable(str(failure["msg"]))})
    refusal = errors.InvalidRequest("A parameter is missing, unknown or out of range.", errors=found)
    return from_error(request, refusal)


async def _refused(request: Request, error: errors.RequestError) -> Response:
    return from_error(request, error)


async def _invalid(request: Request, error: RequestValidationError) -> Response:
    return _from_parameters(request, error)


async def _framework(request: Request, error: HTTPException) -> Response:
    status = error.status_code
    title = http.HTTPStatus(status).phrase
    document = {
        "title": title,
        "status": status,
        "detail": "There is no such route." if status == 404 else f"{title}.",
        "code": CODES.get(status, "bad_request"),
    }
    return respond(request_id(request), document, headers=error.headers)


def install(app: FastAPI) -> None:
    """Gives the app its handlers."""
    handlers: list[tuple[type[Exception], Any]] = [
        (errors.RequestError, _refused),
        (RequestValidationError, _invalid),
        (HTTPException, _framework),
    ]
    for kind, handler in handlers:
        app.add_exception_handler(kind, handler)
