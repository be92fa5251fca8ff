"""Frames between a worker and a box; both ends import this module, so that it cannot drift.

    chunk  = header + payload + crc32(payload)                                   at most 64 KiB in all
    header = magic, token, kind, flags, call, offset, length, crc32(all of these)

Bytes that do not make a good chunk are skipped one by one up to the next that do: a worker that died half-way
through a chunk leaves such bytes, and its successor first sends `PAD`, which completes whatever was cut. `token`
is random per attach and chosen by the worker, so nothing inside an upload or an output can pass for a frame; the
all-zero token is good for `hello`, `attach` and their answers only.

kind      from     payload / offset
REQUEST   worker   JSON `{"op": …, "args": {…}}`; with flag BODY, DATA frames of the same call follow
DATA      both     bytes of the call's body; `offset` is where they stand in it; flag FIN ends it (worker only)
CREDIT    both     none; `offset` bytes of the other end's body have been taken in
RESULT    box      JSON `{"ok": {…}}` or `{"error": {"code": …, "message": …}}`; ends the call and the box's body
ACK       box      none; the request arrived and its result is not ready yet
DONE      worker   none; the result arrived, the box may forget it

Neither end sends more than `WINDOW` bytes of one body beyond the credit it has: with about 1.2 MB unread by an
attached client, `kill` and `rm` of that container hang in the engine.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple
from zlib import crc32

MAGIC = b"\xf5PY\x01"
"""Begins with a byte that UTF-8 never holds, so that a search through text ends at once."""
ZERO = bytes(16)
MAX_CHUNK = 64 << 10
SPLIT = 32 << 10
"""Where bodies and JSON that is too long for one frame are cut; 32 KiB was the fastest through the engine."""
WINDOW = 512 << 10
PAD = bytes(MAX_CHUNK)

REQUEST, DATA, CREDIT, RESULT, ACK, DONE = 1, 2, 3, 4, 5, 6
KINDS = frozenset({REQUEST, DATA, CREDIT, RESULT, ACK, DONE})
FIN, BODY = 1, 2

_HEADER = struct.Struct(">4s16sBBQQI")
_CRC = struct.Struct(">I")
_HEAD = _HEADER.size + _CRC.size
OVERHEAD = _HEAD + _CRC.size
MAX_PAYLOAD = MAX_CHUNK - OVERHEAD


class Frame(NamedTuple):
    kind: int
    flags: int
    call: int
    offset: int
    payload: bytes
    anonymous: bool
    """It bore the all-zero token."""


def encode(token: bytes, kind: int, call: int, payload: bytes = b"", *, offset: int = 0, flags: int = 0) -> bytes:
    """One chunk; ValueError when `payload` is longer than `MAX_PAYLOAD`."""
    if len(payload) > MAX_PAYLOAD:
        raise ValueError(f"a payload of {len(payload)} bytes does not fit a chunk")
    return b"".join(_parts(token, kind, flags, call, offset, payload))


def encode_body(token: bytes, call: int, data: bytes | memoryview, *, offset: int = 0, ended: bool = True) -> bytes:
    """`data`, which must fit the window, as DATA chunks from `offset` on; FIN on the last if the body has `ended`."""
    view = memoryview(data)  # cut without a copy: a workspace of gigabytes goes through here
    parts: list[bytes | memoryview] = []
    for at in range(0, max(len(view), 1), SPLIT):
        flags = FIN if ended and at + SPLIT >= len(view) else 0
        parts += _parts(token, DATA, flags, call, offset + at, view[at : at + SPLIT])
    return b"".join(parts)


def _parts(
    token: bytes, kind: int, flags: int, call: int, offset: int, payload: bytes | memoryview
) -> tuple[bytes, bytes, bytes | memoryview, bytes]:
    header = _HEADER.pack(MAGIC, token, kind, flags, call, offset, len(payload))
    return header, _CRC.pack(crc32(header)), payload, _CRC.pack(crc32(payload))


def dumps(value: Any) -> bytes:
    """Compact ASCII JSON; lone surrogates (bytes that are not UTF-8) survive as escapes."""
    return json.dumps(value, separators=(",", ":")).encode()


def loads(data: bytes) -> dict[str, Any]:
    """A JSON object; ValueError for anything else."""
    try:
        value = json.loads(data)
    except RecursionError as error:
        raise ValueError("JSON nested too deeply") from error
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004 (what is wrong is the data)
    return value


class Parser:
    """Finds the good chunks in a stream of bytes that arrives in any pieces; holds at most one chunk back."""

    def __init__(self) -> None:
        self.token: bytes | None = None
        """The token that frames must bear; None before the first attach."""
        self.anonymous = True
        """Whether frames with the all-zero token are let through."""
        self.skipped = 0
        """Bytes so far that belonged to no good chunk."""
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Frames that `data` completes. A new `token` holds from the next frame on, also within `data`."""
        buffer = self._buffer
        buffer += data
        at = 0
        try:
            while True:
                start = buffer.find(MAGIC, at)
                if start < 0:
                    start = max(at, len(buffer) - len(MAGIC) + 1)
                self.skipped += start - at
                at = start
                if len(buffer) - at < _HEAD:
                    return
                size = self._check_header(at)
                if size is None:
                    self.skipped += 1
                    at += 1
                    continue
                end = at + _HEAD + size
                if len(buffer) < end + _CRC.size:
                    return
                payload = bytes(memoryview(buffer)[at + _HEAD : end])
                if crc32(payload) != _CRC.unpack_from(buffer, end)[0]:
                    self.skipped += 1
                    at += 1
                    continue
                _, token, kind, flags, call, offset, _ = _HEADER.unpack_from(buffer, at)
                at = end + _CRC.size
                yield Frame(kind, flags, call, offset, payload, token == ZERO)
        finally:
            del buffer[:at]

    def _check_header(self, at: int) -> int | None:
        """The length of the payload, or None when no chunk of ours begins at `at`."""
        _, token, kind, _, _, _, size = _HEADER.unpack_from(self._buffer, at)
        if size > MAX_PAYLOAD or kind not in KINDS:
            return None
        if token != self.token and not (self.anonymous and token == ZERO):
            return None
        crc: int = _CRC.unpack_from(self._buffer, at + _HEADER.size)[0]
        header = memoryview(self._buffer)[at : at + _HEADER.size]
        try:
            return int(size) if crc32(header) == crc else None
        finally:
            header.release()  # a bytearray with a view on it cannot shrink
