"""An edit changes what it was asked to and not one byte more."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox_image.toolserver.edits import replace
from sandbox_image.toolserver.failures import Failure


def edited(data: bytes, old: bytes, new: bytes, replace_all: bool = False) -> bytes:
    return replace(data, old, new, "f", replace_all)[0]


def refusal(data: bytes, old: bytes, new: bytes, replace_all: bool = False) -> Failure:
    with pytest.raises(Failure) as caught:
        replace(data, old, new, "f", replace_all)
    return caught.value


@pytest.mark.parametrize(
    ("data", "old", "new", "after"),
    [
        (b"a\nb\n", b"a\nb", b"c", b"c\n"),
        (b"a\r\nb\r\n", b"a\nb\n", b"c\nd\n", b"c\r\nd\r\n"),
        (b"a\r\nb\r\n", b"a\r\nb", b"c\r\nd", b"c\r\nd\r\n"),
        (b"a\r\nb\r\n", b"b", b"c\nd", b"a\r\nc\r\nd\r\n"),
        (b"x\na\r\nb\r\ny\n", b"a\nb\n", b"c\nd\n", b"x\nc\r\nd\r\ny\n"),
        (b"x\r\na\nb\ny\r\n", b"a\nb\n", b"c\nd\n", b"x\r\nc\nd\ny\r\n"),
        (b"x\r\na\nb\r\n", b"\na", b"\nc", b"x\r\nc\nb\r\n"),
        (b"x\r\na\nb\r\n", b"x", b"1\n2", b"1\n2\r\na\nb\r\n"),
        (b"a\rb\rc", b"b", b"B", b"a\rB\rc"),
        (b"\xef\xbb\xbfa", b"a", b"b", b"\xef\xbb\xbfb"),
        (b"\xff\0old\xfe", b"old", b"new", b"\xff\0new\xfe"),
        (b"a.b", b"a.b", b"\\1\\g<0>$&", b"\\1\\g<0>$&"),
    ],
)
def test_line_ends_and_bytes_stay(data: bytes, old: bytes, new: bytes, after: bytes) -> None:
    assert edited(data, old, new) == after


def test_every_refusal_has_its_reason() -> None:
    assert refusal(b"foo\nfoo\nfoo\n", b"foo\nfoo\n", b"x").message == "f: 2 matches (at lines 1, 2)"
    assert refusal(b"a" * 2000, b"a", b"x").message == "f: at least 1000 matches (at lines 1, 1, 1, 1, 1, …)"
    assert refusal(b"abc", b"zzz", b"x").code == "no_match"
    assert refusal(b"a\r\nb\r\n", b"a\nb", b"a\r\nb").code == "no_change"
    assert "line 2" in refusal(b"x\n    if done:\n  y\n", b"if done:\n  z", b"").message
    assert "normal form" in refusal("re\u0301".encode(), "ré".encode(), b"x").message


def test_all_are_replaced_and_counted() -> None:
    assert replace(b"aaaa", b"aa", b"b", "f", True) == (b"bb", 2)
    assert replace(b"a\nx\r\na\r\nx\n", b"a\nx\n", b"y\n", "f", True) == (b"y\ny\r\n"[:2] + b"y\n", 2)


LINES = st.lists(
    st.tuples(st.sampled_from([b"a", b"b", b"ab", b"", b"\r"]), st.sampled_from([b"\n", b"\r\n"])), max_size=8
)


@given(LINES, st.lists(st.sampled_from([b"a", b"b", b"\n"]), min_size=1, max_size=5), st.sampled_from([b"", b"Z"]))
def test_as_an_expression_would(lines: list[tuple[bytes, bytes]], parts: list[bytes], new: bytes) -> None:
    """Against the slow and plain definition: a regular expression whose line ends match either kind, whole."""
    data = b"".join(text + end for text, end in lines)
    pattern = re.compile(b"".join(b"(?:\r\n|(?<!\r)\n)" if part == b"\n" else part for part in parts))
    wanted, count = pattern.subn(new, data)
    if count:
        assert replace(data, b"".join(parts), new, "f", True) == (wanted, count)
    else:
        assert refusal(data, b"".join(parts), new, True).code == "no_match"


def test_a_large_text_takes_no_time() -> None:
    old = b"0123456789abcdef\n" * 20_000
    started = time.monotonic()
    assert edited(b"start\r\n" + old + b"end\n", old, b"q\n") == b"start\r\nq\nend\n"
    assert refusal(old * 40, old + b"x", b"q").code == "no_match"
    assert time.monotonic() - started < 2
