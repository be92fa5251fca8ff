"""Replacing an exact piece of text in a file's bytes, whatever its line ends, encoding or last line."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterator

from sandbox_image.toolserver.failures import Failure

_MAX_COUNT = 1_000


def replace(data: bytes, old: bytes, new: bytes, path: str, replace_all: bool) -> tuple[bytes, int]:
    """`data` with `old` replaced by `new`, and how often.

    A line feed in `old` also matches CRLF; line feeds in `new` then follow the line ends of what they replace.
    Everything else is literal and every other byte stays. Failures: `no_match`; `not_unique` without `replace_all`
    when there are several matches, overlapping ones counted; `no_change`.
    """
    pattern = re.compile(re.escape(old).replace(rb"\r\n", b"\n").replace(b"\\\n", b"\n").replace(b"\n", b"\r?\n"))
    found = list(pattern.finditer(data) if replace_all else _overlapping(pattern, data))
    if not found:
        raise Failure("no_match", f"{path}: the text was not found{_hint(data, old)}")
    if len(found) > 1 and not replace_all:
        count = f"{len(found)}" if len(found) < _MAX_COUNT else f"at least {_MAX_COUNT}"
        lines = ", ".join(str(data.count(b"\n", 0, match.start()) + 1) for match in found[:5])
        raise Failure("not_unique", f"{path}: {count} matches (at lines {lines}{', …' if len(found) > 5 else ''})")
    crlf_file = b"\r\n" in data and data.count(b"\n") == data.count(b"\r\n")
    pieces, at = [], 0
    for match in found:
        pieces += [data[at : match.start()], _with_line_ends_of(match.group(), new, crlf_file)]
        at = match.end()
    after = b"".join((*pieces, data[at:]))
    if after == data:
        raise Failure("no_change", f"{path}: the replacement changes nothing")
    return after, len(found)


def _overlapping(pattern: re.Pattern[bytes], data: bytes) -> Iterator[re.Match[bytes]]:
    at = count = 0
    while count < _MAX_COUNT and (match := pattern.search(data, at)):
        yield match
        at = match.start() + 1
        count += 1


def _with_line_ends_of(matched: bytes, new: bytes, crlf_file: bool) -> bytes:
    """`new` with CRLF where the text it replaces has them; the file decides when that holds no line end."""
    crlf = matched.count(b"\r\n")
    if crlf * 2 > matched.count(b"\n") or (b"\n" not in matched and crlf_file):
        return re.sub(rb"(?<!\r)\n", b"\r\n", new)
    return new


def _hint(data: bytes, old: bytes) -> str:
    """What may be meant instead, in a few words."""
    text, wanted = os.fsdecode(data), os.fsdecode(old)
    if not old.isascii() and unicodedata.normalize("NFC", wanted) in unicodedata.normalize("NFC", text):
        return "; the file has it in another Unicode normal form (accents as characters of their own)"
    first = next((line.strip() for line in wanted.splitlines() if line.strip()), "")
    if not first:
        return ""
    for number, line in enumerate(text.split("\n"), 1):
        if first == line.strip() or (len(first) > 8 and first in line):
            return f"; its first line is close to line {number}, check spaces and the lines after it"
    return ""
