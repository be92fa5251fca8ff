"""File names are bytes; people and JSON read text. One way from the first to the second, for everything we show."""

from __future__ import annotations

import re

_ESCAPED = re.compile("[\\x00-\\x1f\\x7f-\\x9f\\\\\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]|[\udc80-\udcff]")


def escape_path(path: bytes) -> str:
    """A file name, which is bytes, as a JSON string: UTF-8 where it is, and where it is not `\\xNN`.

    Control characters, invisible and direction-changing ones and the backslash itself are escaped too
    (`\\x09`, `\\u202e`, `\\\\`), so that every name has exactly one spelling and none can deceive.
    """

    def spell(match: re.Match[str]) -> str:
        code = ord(match[0])
        if match[0] == "\\":
            return "\\\\"
        if 0xDC80 <= code <= 0xDCFF:
            return f"\\x{code - 0xDC00:02x}"
        return f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}"

    return _ESCAPED.sub(spell, path.decode("utf-8", "surrogateescape"))
