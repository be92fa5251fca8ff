"""`/docs`: the OpenAPI document for people, from three small files of our own; nothing is fetched from elsewhere."""

from __future__ import annotations

from functools import cache
from importlib import resources

from fastapi import APIRouter
from starlette.responses import Response

CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)

router = APIRouter(include_in_schema=False)


@cache
def _asset(name: str) -> bytes:
    return resources.files("service.api").joinpath("assets", name).read_bytes()


def _page(name: str, media_type: str) -> Response:
    headers = {"Content-Security-Policy": CSP, "Cache-Control": "no-cache"}
    return Response(_asset(name), media_type=media_type, headers=headers)


@router.get("/docs")
def page() -> Response:
    return _page("docs.html", "text/html")


@router.get("/docs/docs.js")
def script() -> Response:
    return _page("docs.js", "text/javascript")


@router.get("/docs/docs.css")
def style() -> Response:
    return _page("docs.css", "text/css")
