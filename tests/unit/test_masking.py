"""Masking: every form of a secret disappears, whole or in pieces, and ordinary text is left alone."""

from __future__ import annotations

import base64
from urllib.parse import quote

from hypothesis import given
from hypothesis import strategies as st

from worker.masking import MASK, MaskedStream, Masker

SECRET = 's3cr3t/va+lue "x"'


def test_every_form_of_a_value_is_masked() -> None:
    masker = Masker([SECRET])
    raw = SECRET.encode()
    for form in (SECRET, raw.hex(), raw.hex().upper(), quote(SECRET, safe=""), base64.b64encode(raw).decode()):
        assert masker.text(f"<{form}>").startswith(f"<{MASK}"), form


def test_base64_is_masked_at_every_alignment() -> None:
    masker = Masker(["hunter2hunter2"])
    for before in ("", "a", "ab", "abc"):
        text = base64.b64encode(f"{before}hunter2hunter2 and more".encode()).decode()
        assert MASK in masker.text(text), before


def test_short_values_do_not_blank_ordinary_words() -> None:
    assert Masker(["true", "1"]).text("true is 1") == "true is 1"


def test_well_known_tokens_are_masked_without_being_told() -> None:
    masker = Masker([])
    assert masker.text("key sk-abcdefghijklmnopqrstuvwxyz0123 end") == f"key {MASK} end"
    assert masker.text("-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----!") == f"{MASK}!"


def test_a_secret_in_pieces_never_shows() -> None:
    stream = MaskedStream(Masker(["hunter2hunter2"]))
    shown = "".join([stream.feed("pw=hunt"), stream.feed("er2hun"), stream.feed("ter2 ok"), stream.end()])
    assert shown == f"pw={MASK} ok"


def test_text_that_only_began_like_a_secret_is_shown_unchanged() -> None:
    stream = MaskedStream(Masker(["hunter2hunter2"]))
    assert stream.feed("a hunt") == "a "
    assert stream.feed("ing dog. ") == "hunting dog. "
    assert stream.end() == ""


def test_data_is_masked_at_every_depth() -> None:
    assert Masker(["hunter2hunter2"]).data({"a": ["x hunter2hunter2", 3, None]}) == {"a": [f"x {MASK}", 3, None]}


def test_bytes_that_are_not_text_pass_unchanged() -> None:
    assert Masker(["hunter2hunter2"]).bytes(b"\xff\x00hunter2hunter2\xfe") == b"\xff\x00" + MASK.encode() + b"\xfe"


@given(st.text(max_size=60), st.text(max_size=60), st.lists(st.integers(1, 7), max_size=60))
def test_cut_anywhere_a_stream_hides_the_value(before: str, after: str, cuts: list[int]) -> None:
    stream = MaskedStream(Masker(["hunter2hunter2"]))
    text = f"{before}hunter2hunter2{after}"
    shown, at = "", 0
    for size in cuts:
        shown += stream.feed(text[at : at + size])
        at += size
    shown += stream.feed(text[at:]) + stream.end()
    assert "hunter2hunter2" not in shown
    assert shown == Masker(["hunter2hunter2"]).text(text)
