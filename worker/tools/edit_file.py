"""`edit_file`: one exact replacement; where the text is not found, the places that come nearest."""

from __future__ import annotations

import unicodedata

from worker.sandbox.base import ToolFailure
from worker.tools import text
from worker.tools.base import Answer, Arguments, Session, Tool, failure, immediate

SCANNED_BYTES = 1 << 20
SCANNED_LINES = 5_000
"""Where nearest places are looked for: an edit that misses must still be answered at once."""
LINE_CHARS = 200
CANDIDATES = 3
CONTEXT = 2
SIMILAR = 0.5


def run(session: Session, arguments: Arguments) -> Answer:
    path, old, new = arguments["path"], arguments["old"], arguments["new"]
    name = text.show_path(path)
    try:
        result = session.sandbox.edit(path, old, new, replace_all=arguments.get("replace_all", False))
    except ToolFailure as refused:
        if refused.code == "no_match":
            return _no_match(session, path, old, refused.message)
        if refused.code == "not_unique":
            more = "give more lines around it to make it unique, or replace_all=true"
            return failure(refused.code, f"{refused.message}; {more}")
        raise
    count = result.replacements
    return Answer(f"Edited {name}: {count} replacement{'' if count == 1 else 's'}")


def _no_match(session: Session, path: str, old: str, message: str) -> Answer:
    lines = _content(session, path)
    wanted = [line.strip() for line in old.strip("\r\n").split("\n")]
    stripped = [line.strip() for line in lines]
    same = [at for at in range(len(lines) - len(wanted) + 1) if stripped[at : at + len(wanted)] == wanted]
    if same and any(wanted):
        reason = f"{message}; it is there only with other whitespace, copy it exactly"
        return failure("no_match", reason, _places(session, lines, same[:CANDIDATES], len(wanted)))
    near = _nearest(stripped, wanted)
    if near:
        return failure("no_match", f"{message}; these places come nearest", _places(session, lines, near, len(wanted)))
    return failure("no_match", f"{message}; nothing in the file is like it, read it again")


def _content(session: Session, path: str) -> list[str]:
    data = session.sandbox.read(path, limit=SCANNED_BYTES).data
    lines = text.decode(data).removeprefix("\ufeff").replace("\r\n", "\n").replace("\0", "\\x00").split("\n")
    return lines[:SCANNED_LINES]


def _nearest(stripped: list[str], wanted: list[str]) -> list[int]:
    """Line indices where a block like `wanted` may begin, best first, judged by its longest line.

    Likeness is the share of common letter triples: linear, unlike a diff, whatever a hostile file holds.
    """
    telling = max(range(len(wanted)), key=lambda at: len(wanted[at]))
    target = _triples(wanted[telling])
    scored = []
    for at, line in enumerate(stripped):
        triples = _triples(line)
        likeness = 2 * len(target & triples) / ((len(target) + len(triples)) or 1)
        if likeness >= SIMILAR:
            scored.append((-likeness, at))
    return [max(0, at - telling) for _, at in sorted(scored)[:CANDIDATES]]


def _triples(line: str) -> set[str]:
    folded = unicodedata.normalize("NFKC", line[:LINE_CHARS]).casefold()
    return {folded[at : at + 3] for at in range(max(1, len(folded) - 2))} - {""}


def _places(session: Session, lines: list[str], starts: list[int], height: int) -> str:
    shown = []
    for start in starts:
        first, last = max(0, start - CONTEXT), min(len(lines), start + min(height, 20) + CONTEXT)
        shown.append("\n".join(f"{at + 1:>6}\t{lines[at][:LINE_CHARS]}" for at in range(first, last)))
    return session.block(text.clip("\n   …\n".join(shown), hint="read the file"))


EDIT_FILE = Tool(
    "edit_file",
    "Replace one piece of text in a file by another. `old` must be in the file exactly once, with its exact "
    "whitespace: give enough lines around the change to make it unique. Keeps line ends and mode. To rename "
    "something everywhere in a file use replace_all.",
    {
        "path": {"type": "string", "description": "Relative to /workspace, or absolute."},
        "old": {"type": "string", "description": "The text as it is now, without line numbers."},
        "new": {"type": "string", "description": "The text as it shall be; empty to delete it."},
        "replace_all": {"type": "boolean", "description": "Replace every occurrence. Default false."},
    },
    ("path", "old", "new"),
    immediate(run),
    writes=True,
)
