"""`search`: where a regular expression matches, best files first."""

from __future__ import annotations

from worker.sandbox.base import SearchResult
from worker.tools import text
from worker.tools.base import Answer, Arguments, Session, Tool, immediate

MAX_MATCHES = 200
LINE_CHARS = 300


def run(session: Session, arguments: Arguments) -> Answer:
    result = session.sandbox.search(arguments["pattern"], arguments.get("path", "."), limit=MAX_MATCHES)
    if not result.matches:
        return Answer("No match; the pattern is a regular expression, and case counts")
    lines = _lines(result)
    shown = text.lines_within(lines, text.BODY_CHARS)
    counts = f"{result.total_matches:,} in {result.total_files:,} file{'' if result.total_files == 1 else 's'}"
    if shown < result.total_matches:
        rest = f"[the first {shown:,} of {counts}; narrow it with a longer pattern or a path]"
    else:
        rest = f"[{counts}]"
    return Answer(f"{session.block(chr(10).join(lines[:shown]))}\n{rest}")


def _lines(result: SearchResult) -> list[str]:
    return [f"{text.show_path(match.path)}:{match.line}: {_short(match.text)}" for match in result.matches]


def _short(line: str) -> str:
    line = text.clean(line.rstrip("\r\n")).replace("\n", " ")
    return line if len(line) <= LINE_CHARS else f"{line[:LINE_CHARS]}[…]"


SEARCH = Tool(
    "search",
    "Search file contents with a regular expression (ripgrep). Use it to find where something is defined or used. "
    "Ignored files are left out.",
    {
        "pattern": {"type": "string", "description": "A regular expression in ripgrep's syntax."},
        "path": {"type": "string", "description": "File or directory to search; the workspace by default."},
    },
    ("pattern",),
    immediate(run),
    read_only=True,
    idempotent=True,
)
