"""Replacing an exact piece of text in a file's bytes, whatever its line ends, encoding or last line.

All searching is done by `bytes` itself: it runs inside the server, which must not stand still over a large file.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterator

from sandbox_image.toolserver.failures import Failure

MAX_SCATTERED = 100_000
"""Replacements at once in a file that mixes LF and CRLF, where each is looked at by itself."""
_MAX_COUNT = 1_000
_MAX_HINT = 1 << 20


def replace(data: bytes, old: bytes, new: bytes, path: str, replace_all: bool) -> tuple[bytes, int]:
    """`data` with `old` replaced by `new`, and how often.

    A line end in `old`, LF or CRLF, matches either; line feeds in `new` follow the line ends of what they replace.
    Everything else is literal and every other byte stays. Failures: `no_match`; `not_unique` without `replace_all`
    when there are several matches, overlapping ones counted; `no_change`.
    """
    old = old.replace(b"\r\n", b"\n")
    crlf = data.count(b"\r\n")
    if crlf and crlf == data.count(b"\n"):
        old, new = old.replace(b"\n", b"\r\n"), _to_crlf(new)
    elif crlf and b"\n" in old:
        return _replace_mixed(data, old, new, path, replace_all)
    starts = _starts(data, old, data, path, replace_all)
    if replace_all:
        count = data.count(old)
        after = data.replace(old, new)
    else:
        count = 1
        after = b"".join((data[: starts[0]], new, data[starts[0] + len(old) :]))
    return _changed(data, after, path), count


def _replace_mixed(data: bytes, old: bytes, new: bytes, path: str, replace_all: bool) -> tuple[bytes, int]:
    """In a file with both kinds of line ends: found in a copy with LF only, replaced in the original."""
    plain = data.replace(b"\r\n", b"\n")
    starts = _starts(plain, old, data, path, replace_all)
    if replace_all:
        starts = list(_apart(plain, old))
        if len(starts) > MAX_SCATTERED:
            raise Failure("too_large", f"{path}: more than {MAX_SCATTERED} matches in a file with mixed line ends")
    pieces = []
    in_plain = in_data = done = 0
    for start in starts:
        begin = _advance(data, in_data, start - in_plain)
        end = _advance(data, begin, len(old))
        matched = data[begin:end]
        follows_crlf = matched.count(b"\r\n") * 2 > matched.count(b"\n")
        pieces += [data[done:begin], _to_crlf(new) if follows_crlf else new]
        in_plain, in_data, done = start + len(old), end, end
    return _changed(data, b"".join((*pieces, data[done:])), path), len(starts)


def _advance(data: bytes, start: int, size: int) -> int:
    """Where `size` bytes from `start` end in `data` when each CRLF counts as one; never between its two."""
    length = size
    while (longer := size + data.count(b"\r\n", start, start + length)) != length:
        length = longer
    end = start + length
    return end + 1 if size and data[end - 1 : end + 1] == b"\r\n" else end


def _starts(text: bytes, old: bytes, data: bytes, path: str, replace_all: bool) -> list[int]:
    """Where `old` begins, overlapping ones too; just the first for `replace_all`. Failure for none or too many."""
    first = text.find(old)
    if first < 0:
        raise Failure("no_match", f"{path}: the text was not found{_hint(data, old)}")
    starts = [first]
    if replace_all:
        return starts
    while len(starts) < _MAX_COUNT and (at := text.find(old, starts[-1] + 1)) >= 0:
        starts.append(at)
    if len(starts) > 1:
        count = f"{len(starts)}" if len(starts) < _MAX_COUNT else f"at least {_MAX_COUNT}"
        lines = ", ".join(str(text.count(b"\n", 0, start) + 1) for start in starts[:5])
        raise Failure("not_unique", f"{path}: {count} matches (at lines {lines}{', …' if len(starts) > 5 else ''})")
    return starts


def _apart(text: bytes, old: bytes) -> Iterator[int]:
    """Where `old` begins, each after the end of the one before."""
    at = text.find(old)
    while at >= 0:
        yield at
        at = text.find(old, at + len(old))


def _to_crlf(text: bytes) -> bytes:
    return text.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")


def _changed(before: bytes, after: bytes, path: str) -> bytes:
    if before == after:
        raise Failure("no_change", f"{path}: the replacement changes nothing")
    return after


def _hint(data: bytes, old: bytes) -> str:
    """What may be meant instead, in a few words; nothing for a file that is long to look through."""
    if len(data) > _MAX_HINT:
        return ""
    text, wanted = os.fsdecode(data), os.fsdecode(old)
    if not old.isascii() and unicodedata.normalize("NFC", wanted) in unicodedata.normalize("NFC", text):
        return "; the file has it in another Unicode normal form (accents as characters of their own)"
    first = next((line.strip() for line in re.split(r"\r?\n", wanted) if line.strip()), "")
    if not first:
        return ""
    for number, line in enumerate(text.split("\n"), 1):
        if first == line.strip() or (len(first) > 8 and first in line):
            return f"; its first line is close to line {number}, check spaces and the lines after it"
    return ""
