"""The attached stdin and stdout of a container as a `Transport`: the engine's stream framing, taken apart.

The engine wraps what a container writes in its own frames (stream number, size); the container chooses the
bytes inside, never the frames, yet sizes are checked, so that a broken engine cannot make us buffer without end.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading

from service.errors import SandboxError

_HEADER = struct.Struct(">BxxxL")
_STDOUT = 1
_STREAMS = frozenset({0, 1, 2})
MAX_ENGINE_FRAME = 1 << 20
"""The engine copies in pieces of 32 KiB; a header that says more is no header."""
_RECEIVE = 64 << 10
_SEND_TIMEOUT_S = 30
"""A box takes what its credit window lets us send at once, so a send that stands still this long is a dead one."""


class Demux:
    """Takes engine frames in whatever pieces they arrive and gives the bytes of stdout."""

    def __init__(self) -> None:
        self._rest = b""
        self._left = 0
        self._wanted = False

    def feed(self, data: bytes) -> bytes:
        """The stdout bytes that `data` completes; SandboxError when it is not the engine's framing."""
        data = self._rest + data if self._rest else data
        out: list[bytes] = []
        at, end = 0, len(data)
        while at < end:
            if self._left == 0:
                if end - at < _HEADER.size:
                    break
                stream, self._left = _HEADER.unpack_from(data, at)
                if stream not in _STREAMS or self._left > MAX_ENGINE_FRAME:
                    raise SandboxError("the Docker engine sent an unknown stream frame")
                self._wanted = stream == _STDOUT
                at += _HEADER.size
            piece = data[at : at + self._left]
            if self._wanted:
                out.append(piece)
            self._left -= len(piece)
            at += len(piece)
        self._rest = data[at:]
        return out[0] if len(out) == 1 else b"".join(out)


class AttachTransport:
    """One attach connection. `send` and `receive` may run in different threads; `close` in any."""

    def __init__(self, stream: socket.SocketIO, raw: socket.socket) -> None:
        """`stream` is what docker-py gives (it owns the connection), `raw` the socket inside it."""
        self._stream = stream
        self._socket = raw
        self._demux = Demux()
        self._closing = threading.Lock()
        self._closed = False
        raw.settimeout(None)  # docker-py leaves its call timeout on it, and a box may be silent for long
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", _SEND_TIMEOUT_S, 0))

    def send(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise SandboxError(f"the sandbox takes no more input ({error})") from error

    def receive(self) -> bytes:
        while True:
            try:
                data = self._socket.recv(_RECEIVE)
            except OSError:
                return b""  # closed here, or reset by the engine: the end either way
            if not data:
                return b""
            if out := self._demux.feed(data):
                return out

    def close(self) -> None:
        with self._closing:
            if self._closed:
                return
            self._closed = True
        with contextlib.suppress(OSError):  # the engine may have been first
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes a blocked receive; close alone would not
        self._stream.close()
        self._socket.close()
