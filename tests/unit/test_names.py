"""File names as text: every name has one spelling, and none can pass for another or deceive a reader."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.names import escape_path


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (b"src/a b.py", "src/a b.py"),
        ("caf\u00e9 \u30d5 \U0001f680".encode(), "caf\u00e9 \u30d5 \U0001f680"),
        (b"latin\xe9.txt", "latin\\xe9.txt"),
        (b"tab\there\nline", "tab\\x09here\\x0aline"),
        (b"back\\slash", "back\\\\slash"),
        (b"back\\x09", "back\\\\x09"),
        ("rtl\u202egpj.exe".encode(), "rtl\\u202egpj.exe"),
        ("zero\u200bwidth\u2066".encode(), "zero\\u200bwidth\\u2066"),
        (b"esc\x1b[31m\x7f", "esc\\x1b[31m\\x7f"),
        ("c1\u0085".encode(), "c1\\u0085"),
    ],
)
def test_how_a_name_is_shown(name: bytes, shown: str) -> None:
    assert escape_path(name) == shown


@given(st.binary(max_size=40), st.binary(max_size=40))
def test_two_names_never_look_the_same(first: bytes, second: bytes) -> None:
    assert (escape_path(first) == escape_path(second)) == (first == second)


@given(st.binary(max_size=40))
def test_it_is_always_printable_valid_json_text(name: bytes) -> None:
    shown = escape_path(name)
    assert json.loads(json.dumps(shown, ensure_ascii=False).encode()) == shown
    assert not any(ord(char) < 0x20 or 0x7F <= ord(char) < 0xA0 for char in shown)
