"""Frames survive any cut and any garbage; nothing but the right token makes one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox_image.toolserver import wire

TOKEN = bytes(range(16))
OTHER = bytes(range(1, 17))


def parser() -> wire.Parser:
    made = wire.Parser()
    made.token = TOKEN
    made.anonymous = False
    return made


def found(made: wire.Parser, data: bytes) -> list[tuple[int, bytes]]:
    return [(frame.call, frame.payload) for frame in made.feed(data)]


def data_chunk(call: int, payload: bytes, token: bytes = TOKEN) -> bytes:
    return wire.encode(token, wire.DATA, call, payload)


def test_every_field_comes_back() -> None:
    chunk = wire.encode(TOKEN, wire.DATA, 2**63, b"abc", offset=2**62, flags=wire.FIN)
    assert list(parser().feed(chunk)) == [wire.Frame(wire.DATA, wire.FIN, 2**63, 2**62, b"abc", False)]
    assert len(chunk) == wire.OVERHEAD + 3


def test_a_chunk_holds_64_kib_in_all() -> None:
    assert len(data_chunk(1, bytes(wire.MAX_PAYLOAD))) == 65536
    with pytest.raises(ValueError, match="does not fit"):
        data_chunk(1, bytes(wire.MAX_PAYLOAD + 1))


@given(st.lists(st.binary(max_size=200), max_size=5), st.integers(1, 50))
def test_pieces_of_any_size_give_the_same_frames(payloads: list[bytes], size: int) -> None:
    stream = b"".join(data_chunk(number, payload) for number, payload in enumerate(payloads))
    made = parser()
    got = [frame for at in range(0, len(stream), size) for frame in found(made, stream[at : at + size])]
    assert got == list(enumerate(payloads))
    assert made.skipped == 0


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_garbage_is_skipped_up_to_the_next_good_chunk(before: bytes, between: bytes) -> None:
    made = parser()
    stream = before + data_chunk(1, b"one") + between + data_chunk(2, b"two") + wire.PAD
    assert found(made, stream) == [(1, b"one"), (2, b"two")]
    assert made.skipped >= len(before) + len(between)


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_a_damaged_chunk_never_passes_and_costs_no_other(at: int, flip: int) -> None:
    chunk = bytearray(data_chunk(1, b"payload" * 20))
    chunk[at % len(chunk)] ^= flip
    made = parser()
    assert found(made, bytes(chunk) + wire.PAD + data_chunk(2, b"two")) == [(2, b"two")]


@given(st.integers(0, 40_000))
def test_a_cut_chunk_costs_one_pad(cut: int) -> None:
    chunk = data_chunk(1, bytes(range(250)) * 160)
    made = parser()
    assert found(made, chunk[:cut]) == []
    assert found(made, wire.PAD + data_chunk(2, b"two")) == [(2, b"two")]


def test_only_the_right_token_makes_a_frame() -> None:
    forged = data_chunk(1, b"x", OTHER) + data_chunk(2, b"x", wire.ZERO)
    made = parser()
    assert found(made, forged + data_chunk(3, b"y")) == [(3, b"y")]
    made.anonymous = True
    assert found(made, forged) == [(2, b"x")]


def test_a_chunk_inside_a_payload_is_data() -> None:
    inner = data_chunk(1, b"inner")
    assert found(parser(), data_chunk(2, inner)) == [(2, inner)]


def test_a_new_token_holds_from_the_next_frame_on() -> None:
    made = parser()
    seen = []
    for frame in made.feed(data_chunk(1, b"") + data_chunk(2, b"") + data_chunk(3, b"", OTHER)):
        seen.append(frame.call)
        made.token = OTHER
    assert seen == [1, 3]


def test_an_unknown_kind_or_length_is_no_frame() -> None:
    assert found(parser(), wire.encode(TOKEN, 99, 1, b"") + data_chunk(2, b"")) == [(2, b"")]


@pytest.mark.parametrize("size", [0, 1, wire.SPLIT, wire.SPLIT + 1, 3 * wire.SPLIT])
def test_a_body_is_split_and_its_end_marked(size: int) -> None:
    body = bytes(index % 251 for index in range(size))
    frames = list(parser().feed(wire.encode_body(TOKEN, 1, body)))
    assert b"".join(frame.payload for frame in frames) == body
    assert [bool(frame.flags & wire.FIN) for frame in frames] == [False] * (len(frames) - 1) + [True]
    assert [frame.offset for frame in frames] == [wire.SPLIT * index for index in range(len(frames))]


def test_json_keeps_names_that_are_not_utf8() -> None:
    value = {"path": "a\udcff☃"}
    assert wire.loads(wire.dumps(value)) == value


@pytest.mark.parametrize("data", [b"", b"[]", b"1", b"\xff", b"{", b"[" * 100_000])
def test_json_that_is_no_object_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError, match=r".*"):
        wire.loads(data)
