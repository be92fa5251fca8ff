"""The system prompt, put together from parts that can be read and tested one by one (prompts/*.md)."""

from __future__ import annotations

import re
from importlib.resources import files
from string import Template

from service.contracts import TaskSpec
from worker.agent.project import Project
from worker.sandbox.base import SandboxInfo
from worker.tools.registry import Toolbox

PARTS = ("identity", "act", "tools", "code", "stop", "data", "environment")
"""In this order; where two rules meet, the earlier one wins."""


def build(spec: TaskSpec, info: SandboxInfo, toolbox: Toolbox, project: Project) -> str:
    """The system prompt of a task; what `project` says stands at the end, marked as untrusted."""
    marker = toolbox.marker
    facts = {
        "marker": marker,
        "python": _word(info.python),
        "tools": ", ".join(_word(tool) for tool in info.tools) or "a plain shell",
        "variables": _variables(spec),
        "max_turns": str(spec.limits.max_turns),
        "command_timeout_s": str(spec.limits.command_timeout_s),
        "memory_mb": str(spec.resources.memory_mb),
        "wall_minutes": str(max(1, spec.limits.wall_time_s // 60)),
    }
    parts = list(PARTS)
    if project.skills:
        parts.append("skills")
        facts["skills"] = toolbox.block("\n".join(f"- {skill.name}: {skill.description}" for skill in project.skills))
    if project.notes:
        parts.append("notes")
        facts["notes"] = "\n".join(f"{name}:\n{toolbox.block(note)}" for name, note in project.notes)
    return "\n\n".join(part(name).substitute(facts).strip() for name in parts) + "\n"


def part(name: str) -> Template:
    """One part; `$name` stands for a fact of the task."""
    return Template((files("worker.agent") / "prompts" / f"{name}.md").read_text(encoding="utf-8"))


def _variables(spec: TaskSpec) -> str:
    names = sorted(spec.env_for("agent"))
    return f" The variables {', '.join(names)} are set for this task." if names else ""


def _word(text: str) -> str:
    """What the box says of itself goes into the prompt as words only."""
    return re.sub(r"[^A-Za-z0-9._+-]", "", text)[:60]
