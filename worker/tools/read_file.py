"""`read_file`: numbered lines of a text file, as many as fit, and how to get the next ones."""

from __future__ import annotations

from worker.sandbox.base import FileContent
from worker.tools import text
from worker.tools.base import Answer, Arguments, Session, Tool, absolute, failure, immediate

LINE_CHARS = 2_000
"""A longer line (minified code) is shown in part."""
READ_BYTES = 10 << 20
SNIFFED_BYTES = 8_192
"""A NUL among the first bytes makes a file binary: git's own rule."""


def run(session: Session, arguments: Arguments) -> Answer:
    path: str = arguments["path"]
    content = session.sandbox.read(path, limit=READ_BYTES)
    if b"\0" in content.data[:SNIFFED_BYTES]:
        return failure(
            "binary", f"{text.show_path(path)} is a binary file of {content.size:,} bytes; look at it with bash"
        )
    session.seen.add(absolute(path))
    lines = _lines(content.data)
    start, end = arguments.get("start", 1), arguments.get("end", len(lines))
    name = text.show_path(path)
    if not lines:
        return Answer(f"{name} is empty")
    if start > len(lines):
        return failure("bad_range", f"{name} has {len(lines)} lines, line {start} is past its end")
    if end < start:
        return failure("bad_range", f"end ({end}) is before start ({start})")
    shown = _numbered(lines[start - 1 : end], start, text.BODY_CHARS - len(name))
    return Answer(
        f"{name}{_notes(content)}\n{session.block(chr(10).join(shown))}\n"
        f"{_where(start, start + len(shown) - 1, len(lines), content)}"
    )


def _numbered(lines: list[str], start: int, room: int) -> list[str]:
    """As many of the lines, with their numbers, as fit into `room` characters."""
    shown = []
    for number, line in enumerate(lines, start):
        shown.append(f"{number:>6}\t{_short(line)}")
        room -= len(shown[-1]) + 1
        if room < 0:
            shown.pop()
            break
    return shown


def _lines(data: bytes) -> list[str]:
    decoded = text.decode(data).removeprefix("\ufeff").replace("\0", "\\x00")
    lines = decoded.split("\n")
    if lines[-1] == "":
        lines.pop()
    return [line.removesuffix("\r") for line in lines]


def _short(line: str) -> str:
    if len(line) <= LINE_CHARS:
        return line
    return f"{line[:LINE_CHARS]}[… {len(line) - LINE_CHARS:,} more characters in this line; see them with cut -c …]"


def _notes(content: FileContent) -> str:
    notes = []
    if content.data.startswith(b"\xef\xbb\xbf"):
        notes.append("starts with a BOM")
    if b"\r\n" in content.data:
        notes.append("CRLF line ends")
    try:
        content.data.decode()
    except UnicodeDecodeError:
        if content.size == len(content.data):
            notes.append("not UTF-8: bytes shown as \ufffd")
    return f" ({', '.join(notes)})" if notes else ""


def _where(first: int, last: int, total: int, content: FileContent) -> str:
    of = f"{total}" if content.size <= len(content.data) else f"{total} in the first {len(content.data):,} bytes"
    more = f"; go on with start={last + 1}" if last < total else ""
    return f"[lines {first}-{last} of {of}{more}]"


READ_FILE = Tool(
    "read_file",
    "Read a text file: numbered lines, whole or a range. Use it before you change a file. The number and the tab "
    "in front of each line are not part of the file.",
    {
        "path": {"type": "string", "description": "Relative to /workspace, or absolute."},
        "start": {"type": "integer", "minimum": 1, "description": "First line, from 1."},
        "end": {"type": "integer", "minimum": 1, "description": "Last line, included."},
    },
    ("path",),
    immediate(run),
    read_only=True,
    idempotent=True,
)
