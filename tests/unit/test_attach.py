"""The engine's stream framing is taken apart whatever the pieces it arrives in."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.errors import SandboxError
from worker.sandbox.attach import MAX_ENGINE_FRAME, Demux


def frame(stream: int, data: bytes) -> bytes:
    return struct.pack(">BxxxL", stream, len(data)) + data


def test_stdout_alone_comes_through() -> None:
    assert Demux().feed(frame(1, b"one") + frame(2, b"stderr") + frame(1, b"") + frame(1, b"two")) == b"onetwo"


def test_a_frame_may_arrive_byte_by_byte() -> None:
    demux = Demux()
    assert b"".join(demux.feed(bytes([byte])) for byte in frame(1, b"slow") + frame(1, b"ly")) == b"slowly"


@given(st.lists(st.tuples(st.sampled_from([0, 1, 2]), st.binary(max_size=40)), max_size=8), st.data())
def test_any_cut_gives_the_same_bytes(frames: list[tuple[int, bytes]], data: st.DataObject) -> None:
    wire = b"".join(frame(stream, body) for stream, body in frames)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=6)))
    demux = Demux()
    got = b"".join(demux.feed(wire[a:b]) for a, b in zip([0, *cuts], [*cuts, len(wire)], strict=True))
    assert got == b"".join(body for stream, body in frames if stream == 1)


@pytest.mark.parametrize("header", [struct.pack(">BxxxL", 7, 1), struct.pack(">BxxxL", 1, MAX_ENGINE_FRAME + 1)])
def test_what_is_not_the_framing_is_an_error(header: bytes) -> None:
    with pytest.raises(SandboxError, match="unknown stream frame"):
        Demux().feed(header)
