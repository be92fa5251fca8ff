"""`list_files` and `glob`: names, kinds and sizes, never more than a page of them."""

from __future__ import annotations

from worker.sandbox.base import Entry, Listing
from worker.tools import text
from worker.tools.base import Answer, Arguments, Session, Tool, immediate

MAX_ENTRIES = 1_000


def run_list(session: Session, arguments: Arguments) -> Answer:
    path = arguments.get("path", ".")
    listing = session.sandbox.list(path, limit=MAX_ENTRIES)
    if not listing.total:
        return Answer(f"{text.show_path(path)} is empty")
    return _answer(session, listing, "list a directory further down, or use glob")


def run_glob(session: Session, arguments: Arguments) -> Answer:
    listing = session.sandbox.glob(arguments["pattern"], limit=MAX_ENTRIES)
    if not listing.total:
        return Answer("No file matches; patterns are relative to /workspace, ** stands for any directories")
    return _answer(session, listing, "use a narrower pattern")


def _answer(session: Session, listing: Listing, hint: str) -> Answer:
    lines = [_line(entry) for entry in listing.entries]
    shown = text.lines_within(lines, text.BODY_CHARS)
    rest = f"[{shown:,} of {listing.total:,} shown; {hint}]" if shown < listing.total else f"[{listing.total:,} in all]"
    return Answer(f"{session.block(chr(10).join(lines[:shown]))}\n{rest}")


def _line(entry: Entry) -> str:
    name = text.show_path(entry.path)
    match entry.kind:
        case "dir":
            return f"{name}/"
        case "link":
            return f"{name} (link)"
        case "other":
            return f"{name} (not a regular file)"
        case "file":
            return f"{name} ({entry.size:,} bytes{', executable' if entry.mode & 0o100 else ''})"


LIST_FILES = Tool(
    "list_files",
    "List one directory. Use it first to see how a project is laid out.",
    {"path": {"type": "string", "description": "Relative to /workspace; the workspace itself by default."}},
    (),
    immediate(run_list),
    read_only=True,
    idempotent=True,
)

GLOB = Tool(
    "glob",
    "Find files by name: `**/*.py`, `src/**/test_*.ts`.",
    {"pattern": {"type": "string", "description": "Relative to /workspace; ** stands for any directories."}},
    ("pattern",),
    immediate(run_glob),
    read_only=True,
    idempotent=True,
)
