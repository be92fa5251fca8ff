"""`skill`: loads one `SKILL.md` of the image or the workspace on demand; `find_skills` makes the index of them."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping

from worker.sandbox.base import Sandbox, ToolFailure
from worker.tools import text
from worker.tools.base import Answer, Arguments, Session, Skill, Tool, failure, immediate

FOLDERS = ("/opt/patchyard/skills", ".patchyard/skills", ".claude/skills")
"""In this order: of two skills of one name the first counts, so that a workspace cannot replace one of the image."""
MAX_ENTRIES, MAX_SKILLS = 100, 30
"""Folders that are looked into, and skills that make the index, which is part of every request."""
MAX_DESCRIPTION = 300
READ_BYTES = 64 << 10
BODY_CHARS = 8_000
"""Of one skill; the rest is a file that can be read."""
IN_USE = 2
"""Skills that survive compaction, those loaded last; together they stay well below a small window."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_FRONT_MATTER = re.compile(r"\A---[ \t]*\n(.*?)\n---[ \t]*(?:\n|\Z)", re.DOTALL)


def find_skills(sandbox: Sandbox) -> tuple[Skill, ...]:
    """The index: at most `MAX_SKILLS`; a file without a usable name and a description is none."""
    found: dict[str, Skill] = {}
    for folder in FOLDERS:
        try:
            entries = sandbox.list(folder, limit=MAX_ENTRIES).entries
        except ToolFailure:
            continue
        for entry in entries:
            skill = _skill(sandbox, f"{folder}/{posixpath.basename(entry.path)}/SKILL.md")
            if skill is not None and len(found) < MAX_SKILLS:
                found.setdefault(skill.name, skill)
    return tuple(found.values())


def run(session: Session, arguments: Arguments) -> Answer:
    skill = session.skills.get(arguments["name"].strip())
    if skill is None:
        return failure("unknown_skill", f"there is no such skill; the skills are {', '.join(session.skills)}")
    _, body = _parts(_read(session.sandbox, skill.path))
    shown = text.clip(body, hint=f"see {text.show_path(skill.path)} with read_file", limit=BODY_CHARS)
    folder = text.show_path(posixpath.dirname(skill.path))
    answer = f"Skill {skill.name}; its files are in {folder}\n{session.block(shown)}"
    session.skills_in_use.pop(skill.name, None)
    session.skills_in_use[skill.name] = answer
    for name in list(session.skills_in_use)[:-IN_USE]:
        del session.skills_in_use[name]
    return Answer(answer)


def _skill(sandbox: Sandbox, path: str) -> Skill | None:
    try:
        fields, _ = _parts(_read(sandbox, path))
    except ToolFailure:
        return None  # a link out of the workspace, or a folder of that name
    name, description = fields.get("name", ""), fields.get("description", "")
    if not description or not _NAME.fullmatch(name):
        return None
    return Skill(name, description[:MAX_DESCRIPTION], path)


def _read(sandbox: Sandbox, path: str) -> str:
    return text.clean(text.decode(sandbox.read(path, limit=READ_BYTES).data, cut_after=True).removeprefix("\ufeff"))


def _parts(content: str) -> tuple[Mapping[str, str], str]:
    """The front matter's plain `key: value` lines, and what comes after it."""
    front = _FRONT_MATTER.match(content)
    if front is None:
        return {}, content
    pairs = (line.partition(":") for line in front[1].split("\n") if not line.startswith((" ", "\t", "#")))
    fields = {key.strip(): " ".join(value.split()).strip("\"'") for key, _, value in pairs}
    return fields, content[front.end() :]


SKILL = Tool(
    "skill",
    "Load one of the skills listed in your instructions: how this project wants a certain kind of work to be done. "
    "Use it before you begin work of that kind.",
    {"name": {"type": "string", "description": "A name from the list."}},
    ("name",),
    immediate(run),
    idempotent=True,
)
