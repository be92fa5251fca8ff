"""Request bodies, read as they come and never whole in memory unless they are small."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeVar

from fastapi import Request
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from service.errors import InvalidRequest, Stalled, TooLarge

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

T = TypeVar("T")

MULTIPART_SLACK = 64 << 10
"""Bytes a multipart body may have beyond its parts: boundaries and headers."""
STALL_S = 60.0
"""How long the next bytes of a body may take: a client that vanished without a word must not hold its file for ever."""


def _announced(request: Request) -> int | None:
    given = request.headers.get("content-length", "")
    return int(given) if given.isascii() and given.isdigit() else None


async def _coming(request: Request) -> AsyncIterator[bytes]:
    """The body as it arrives; 408 when nothing has for `STALL_S`."""
    stream = aiter(request.stream())
    while True:
        try:
            async with asyncio.timeout(STALL_S):
                chunk = await anext(stream)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise Stalled(f"Nothing of the body has come for {STALL_S:g} seconds.") from None
        yield chunk


async def chunks(request: Request, limit: int, what: str) -> AsyncIterator[bytes]:
    """The body piece by piece; 413 as soon as more than `limit` bytes are announced or seen, 408 when it stalls."""
    too_large = TooLarge(f"The {what} may have at most {limit} bytes.", extra={"limit_bytes": limit})
    announced = _announced(request)
    if announced is not None and announced > limit:
        raise too_large
    seen = 0
    async for chunk in _coming(request):
        seen += len(chunk)
        if seen > limit:
            raise too_large
        if chunk:
            yield chunk


async def read(request: Request, limit: int) -> bytes:
    """A small body as a whole."""
    return b"".join([chunk async for chunk in chunks(request, limit, "body")])


def is_multipart(request: Request) -> bool:
    return parse_options_header(request.headers.get("content-type"))[0] == b"multipart/form-data"


PartName = Literal["task", "workspace"]


@dataclass(frozen=True, slots=True)
class _Piece:
    """A bit of a part, or with `data` None its end."""

    part: PartName
    data: bytes | None


class _Form:
    """Turns the parser's callbacks into pieces of the two parts that a submission may have, each at most once."""

    def __init__(self, content_type: str) -> None:
        boundary = parse_options_header(content_type)[1].get(b"boundary", b"")
        if not boundary:
            raise InvalidRequest("The multipart body has no boundary.", code="invalid_multipart")
        self._header = bytearray()
        self._value = bytearray()
        self._disposition = b""
        self._seen: list[str] = []
        self._part: PartName = "task"
        self._pieces: list[_Piece] = []
        self._ended = False
        self._parser = self._guard(lambda: MultipartParser(boundary, self._callbacks()))

    def _callbacks(self) -> MultipartCallbacks:
        return {
            "on_part_begin": self._begin,
            "on_header_field": lambda data, start, end: self._header.extend(data[start:end]),
            "on_header_value": lambda data, start, end: self._value.extend(data[start:end]),
            "on_header_end": self._header_end,
            "on_headers_finished": self._named,
            "on_part_data": lambda data, start, end: self._piece(bytes(data[start:end])),
            "on_part_end": lambda: self._piece(None),
            "on_end": self._finished,
        }

    @staticmethod
    def _guard(call: Callable[[], T]) -> T:
        try:
            return call()
        except FormParserError as error:
            raise InvalidRequest("The multipart body is malformed.", code="invalid_multipart") from error

    def feed(self, chunk: bytes) -> list[_Piece]:
        """The pieces that `chunk` completes."""
        self._guard(lambda: self._parser.write(chunk))
        pieces, self._pieces = self._pieces, []
        return pieces

    def finish(self) -> None:
        """422 unless the closing boundary came."""
        if not self._ended:
            raise InvalidRequest("The multipart body is cut off.", code="invalid_multipart")

    def _begin(self) -> None:
        self._disposition = b""

    def _header_end(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._disposition = bytes(self._value)
        self._header.clear()
        self._value.clear()

    def _named(self) -> None:
        name = parse_options_header(self._disposition)[1].get(b"name", b"").decode("utf-8", "replace")
        if name not in ("task", "workspace"):
            raise InvalidRequest("A multipart submission has the parts task and workspace, and no other.")
        if name in self._seen:
            raise InvalidRequest(f"The part {name} stands twice.")
        self._seen.append(name)
        self._part = "task" if name == "task" else "workspace"

    def _piece(self, data: bytes | None) -> None:
        self._pieces.append(_Piece(self._part, data))

    def _finished(self) -> None:
        self._ended = True


Sink = Callable[[bytes | None], Awaitable[None]]
"""Takes a part's bytes in order, then None at its end."""


async def form(request: Request, sinks: dict[PartName, Sink], limit: int) -> None:
    """Feeds the parts of a multipart submission to their sinks while they come."""
    reader = _Form(request.headers.get("content-type", ""))
    async for chunk in chunks(request, limit + MULTIPART_SLACK, "submission"):
        for piece in reader.feed(chunk):
            await sinks[piece.part](piece.data)
    reader.finish()
