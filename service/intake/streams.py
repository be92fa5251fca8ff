"""Tells the formats apart by content and opens the byte stream of a tar, metered while it is unpacked."""

from __future__ import annotations

import io
import zlib
from abc import abstractmethod
from typing import TYPE_CHECKING, BinaryIO, Literal, Protocol, cast

import zstandard

from service.intake.policy import Meter, unreadable
from service.intake.tar import BLOCK, is_header

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

Format = Literal["tar", "tar.gz", "tar.zst", "zip"]

_CHUNK = 64 << 10
_MOST_GZIP_MEMBERS = 100_000
"""A block-wise gzip of 4 GiB has 65,536; millions of empty ones would only burn time."""
_ZSTD_WINDOW = 8 << 20
"""What RFC 8878 asks every decoder to offer; `--long` and `--ultra` ask for up to 2 GiB of our memory."""
_ACCEPTED = "it is none of tar, tar.gz, tar.zst, zip"


class Upload(Protocol):
    """An uploaded file on disk."""

    def seek(self, offset: int, whence: int = 0, /) -> int: ...

    def read(self, size: int = -1, /) -> bytes: ...


def sniff(upload: Upload) -> Format:
    """The format of an upload, by its first bytes; the upload is at its start afterwards."""
    upload.seek(0)
    start = upload.read(BLOCK)
    upload.seek(0)
    if len(start) == BLOCK and (is_header(start) or start.count(0) == BLOCK):
        return "tar"
    if start.startswith(b"\x1f\x8b"):
        return "tar.gz"
    if start.startswith(b"\x28\xb5\x2f\xfd") or (start[1:4] == b"\x2a\x4d\x18" and start[0] >> 4 == 5):
        return "tar.zst"
    if start.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return "zip"
    raise unreadable("it is empty" if not start else _ACCEPTED)


def open_stream(upload: Upload, kind: Literal["tar", "tar.gz", "tar.zst"], meter: Meter) -> io.BufferedReader:
    """The unpacked bytes; every read may end with the refusal of a bomb or of a broken stream."""
    kinds: dict[str, type[_Plain | _Gzip | _Zstd]] = {"tar": _Plain, "tar.gz": _Gzip, "tar.zst": _Zstd}
    return io.BufferedReader(kinds[kind](upload, meter), _CHUNK)


class _Stream(io.RawIOBase):
    def __init__(self, upload: Upload, meter: Meter) -> None:
        self._upload = upload
        self._meter = meter

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer).cast("B")
        data = self._next(len(view))
        self._meter.count_read(len(data))
        view[: len(data)] = data
        return len(data)

    @abstractmethod
    def _next(self, most: int) -> bytes:
        """One to `most` unpacked bytes; none at the end."""


class _Plain(_Stream):
    def _next(self, most: int) -> bytes:
        return self._upload.read(most)


class _Gzip(_Stream):
    """One or more gzip members, then nothing but zeros (tapes pad with them)."""

    def __init__(self, upload: Upload, meter: Meter) -> None:
        super().__init__(upload, meter)
        self._inflate = zlib.decompressobj(31)
        self._input = b""
        self._members = 1

    def _next(self, most: int) -> bytes:
        while not (self._inflate.eof and not self._open_next()):
            self._input = self._input or self._upload.read(_CHUNK)
            at_end = not self._input
            try:
                data = self._inflate.decompress(self._input, most)
            except zlib.error as error:
                raise unreadable(f"its gzip stream is broken ({error})") from None
            self._input = self._inflate.unused_data if self._inflate.eof else self._inflate.unconsumed_tail
            if data:
                return data
            if at_end and not self._inflate.eof:
                raise unreadable("its gzip stream is cut off")
        return b""

    def _open_next(self) -> bool:
        """Goes on with the next member; False at the end of the upload."""
        self._input = self._input or self._upload.read(_CHUNK)
        if self._input[:1] == b"\0":
            self._skip_zeros()
        if not self._input:
            return False
        self._members += 1
        if self._members > _MOST_GZIP_MEMBERS:
            raise unreadable(f"its gzip stream has more than {_MOST_GZIP_MEMBERS:,} members")
        self._inflate = zlib.decompressobj(31)
        return True

    def _skip_zeros(self) -> None:
        while self._input:
            if self._input.count(0) != len(self._input):
                raise unreadable("there is data after the end of its gzip stream")
            self._input = self._upload.read(_CHUNK)


class _Zstd(_Stream):
    def __init__(self, upload: Upload, meter: Meter) -> None:
        super().__init__(upload, meter)
        unpack = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW)
        self._reader = unpack.stream_reader(
            cast(BinaryIO, upload), read_size=_CHUNK, read_across_frames=True, closefd=False
        )

    def _next(self, most: int) -> bytes:
        try:
            return bytes(self._reader.read(most))
        except zstandard.ZstdError as error:
            hint = "; its window may be 8 MiB: pack it without --long and --ultra" if "memory" in str(error) else ""
            raise unreadable(f"its zstd stream is broken ({error}){hint}") from None
