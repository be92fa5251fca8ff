"""Text on its way from the box to the model: decoded, cleaned of terminal noise, cut to size."""

from __future__ import annotations

import codecs
import re
import signal

from service.names import escape_path

RESULT_CHARS = 16_000
"""A tool result is never longer, whatever a command prints."""
BODY_CHARS = 15_000
"""What of it may be output: the rest is for the marks around it, status lines and a reminder."""

_ESCAPE_SEQUENCES = re.compile(
    r"\x1b\][^\x07\x1b\n]*(?:\x07|\x1b\\)?"  # OSC: titles, links
    r"|\x1b[PX^_][^\x1b\n]*(?:\x1b\\)?"  # DCS, SOS, PM, APC
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"  # CSI: colours, cursor
    r"|\x1b[ -/]*[0-~]?"  # character sets and the two-character ones
)
_OVERSTRIKE = re.compile("[^\n]\b")
_CONTROLS = re.compile("[\x01-\x08\x0b-\x1f\x7f-\x9f]")


def decode(data: bytes, *, cut_before: bool = False, cut_after: bool = False) -> str:
    """UTF-8 with U+FFFD for what is not; a character halved by our own cut is left out, not replaced."""
    if cut_before:
        data = re.sub(rb"\A[\x80-\xbf]{1,3}", b"", data)
    return codecs.getincrementaldecoder("utf-8")("replace").decode(data, final=not cut_after)


def clean(text: str) -> str:
    """What a person would see on a terminal in the end: no escape sequences, progress lines at their last state.

    NUL becomes a visible `\\x00`, other control characters go, CRLF becomes LF.
    """
    text = _ESCAPE_SEQUENCES.sub("", text)
    if "\r" in text:
        text = "\n".join(_last_frame(line) for line in text.split("\n"))
    if "\b" in text:
        text = _OVERSTRIKE.sub("", text)
    return _CONTROLS.sub("", text.replace("\0", "\\x00"))


def _last_frame(line: str) -> str:
    return line.rstrip("\r").rpartition("\r")[2]


def clip(head: str, tail: str = "", *, dropped: int = 0, hint: str, limit: int = BODY_CHARS) -> str:
    """Head and tail within `limit` characters, with a line between that says what is missing and how to see it.

    `dropped` = bytes that came between `head` and `tail` and were not kept; 0 = the two are one text.
    """
    if not dropped and len(head) + len(tail) <= limit:
        return head + tail
    room = (limit - len(hint) - 120) // 2
    if not dropped:
        whole = head + tail
        head, tail = whole[: len(whole) // 2], whole[len(whole) // 2 :]
    shown_head, shown_tail = head[:room], tail[max(0, len(tail) - room) :]
    missing = len(head) - len(shown_head) + len(tail) - len(shown_tail) + dropped
    about = "about " if dropped else ""
    return f"{shown_head}\n[… {about}{missing:,} characters left out here; {hint} …]\n{shown_tail}"


def lines_within(lines: list[str], limit: int) -> int:
    """How many of the first `lines`, each with its newline, fit into `limit` characters."""
    used = 0
    for count, line in enumerate(lines):
        used += len(line) + 1
        if used > limit:
            return count
    return len(lines)


def exit_status(exit_code: int | None) -> str:
    """The line that names how a command ended; above 128 bash tells of a signal."""
    try:
        return f"[exit {exit_code}: killed by {signal.Signals((exit_code or 0) - 128).name}]"
    except ValueError:
        return f"[exit {exit_code}]"


def show_path(path: str) -> str:
    """A file name from the box as one visible, unambiguous word (see `escape_path`)."""
    return escape_path(path.encode("utf-8", "surrogateescape"))
