"""Text for the model: what a terminal would show in the end, in the size permitted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.tools.text import clean, clip, decode, lines_within, show_path


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("dl 1%\rdl 50%\rdl 100%\n", "dl 100%\n"),
        ("\x1b[31mred\x1b[0m \x1b[?25lhid\x1b]0;t\x07end\n", "red hidend\n"),
        ("dos\r\n", "dos\n"),
        ("\r\r\nx\r\r\n", "\nx\n"),
        ("".join(f"\rstep {i}" for i in range(1, 5001)) + "\n", "step 5000\n"),
        ("N\bNA\bAM\bM", "NAM"),
        ("|\b/\b-\bdone", "done"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b]0;never ends\nnext", "\nnext"),
        ("\x1b(Bplain\x1b[K", "plain"),
        ("a\0b\x07\x0b\x7f", "a\\x00b"),
        ("a\x9b31mb", "ab"),
        ("tab\there", "tab\there"),
        ("\x1b", ""),
    ],
)
def test_clean(raw: str, shown: str) -> None:
    assert clean(raw) == shown


@given(st.text())
def test_clean_leaves_no_control_character(text: str) -> None:
    cleaned = clean(text)
    assert not any((ch < " " and ch not in "\n\t") or "\x7f" <= ch <= "\x9f" for ch in cleaned)
    assert clean(cleaned) == cleaned


def test_a_character_halved_by_our_cut_is_left_out() -> None:
    euro = "€".encode()
    assert decode(b"x" + euro + euro[:2], cut_after=True) == "x€"
    assert decode(euro[1:] + euro, cut_before=True) == "€"
    assert decode(b"\xf0\xffok\xc3") == "��ok�"


def test_clip_keeps_what_fits() -> None:
    assert clip("a" * 100, hint="h", limit=100) == "a" * 100


def test_clip_shows_head_and_tail_and_says_what_is_missing() -> None:
    text = clip("A" * 500 + "B" * 500, hint="use grep", limit=400)
    head = "A" * 136
    assert text == f"{head}\n[… 728 characters left out here; use grep …]\n{'B' * 136}"


def test_clip_counts_what_was_dropped_before() -> None:
    text = clip("A" * 10, "B" * 10, dropped=1_000_000, hint="h", limit=400)
    assert text == f"{'A' * 10}\n[… about 1,000,000 characters left out here; h …]\n{'B' * 10}"


@given(st.text(max_size=3000), st.integers(0, 10**9), st.integers(400, 2_000))
def test_clip_is_never_longer_than_its_limit(text: str, dropped: int, limit: int) -> None:
    assert len(clip(text, text, dropped=dropped, hint="use head", limit=limit)) <= limit


def test_lines_within_counts_whole_lines() -> None:
    assert lines_within(["aaa", "bbb", "ccc"], 8) == 2
    assert lines_within(["aaa"], 3) == 0
    assert lines_within([], 3) == 0


def test_names_from_the_box_are_unambiguous() -> None:
    assert show_path("src/é.py") == "src/é.py"
    assert show_path("a\nb\x1b") == "a\\x0ab\\x1b"
    assert show_path("\udcff") == "\\xff"
