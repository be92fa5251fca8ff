"""What the workspace says to an agent about itself: its notes (AGENTS.md, CLAUDE.md) and the index of its skills."""

from __future__ import annotations

from dataclasses import dataclass

from worker.sandbox.base import Sandbox, ToolFailure
from worker.tools import text
from worker.tools.base import Skill
from worker.tools.skill import find_skills

NOTES = ("AGENTS.md", "CLAUDE.md")
NOTE_BYTES = 64 << 10
NOTE_CHARS = 6_000
"""Of one file: it is part of every request."""


@dataclass(frozen=True, slots=True)
class Project:
    notes: tuple[tuple[str, str], ...] = ()
    """File name and text, as long as it has any."""
    skills: tuple[Skill, ...] = ()


def look_at(sandbox: Sandbox) -> Project:
    """Reads them from the box; a file that is not there or cannot be read is passed over."""
    notes: dict[str, str] = {}
    for name in NOTES:
        note = _note(sandbox, name)
        if note and note not in notes.values():  # one is often a link to the other
            notes[name] = note
    return Project(tuple(notes.items()), find_skills(sandbox))


def _note(sandbox: Sandbox, name: str) -> str:
    try:
        data = sandbox.read(name, limit=NOTE_BYTES).data
    except ToolFailure:
        return ""
    content = text.clean(text.decode(data, cut_after=True).removeprefix("\ufeff")).strip()
    return text.clip(content, hint=f"see {name} with read_file", limit=NOTE_CHARS)
