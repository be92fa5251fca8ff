"""The system prompt, put together from parts that can be read and tested one by one (prompts/*.md)."""

from __future__ import annotations

import re
from importlib.resources import files
from string import Template

from service.contracts import TaskSpec
from worker.sandbox.base import SandboxInfo

PARTS = ("identity", "act", "tools", "code", "stop", "data", "environment")
"""In this order; where two rules meet, the earlier one wins."""


def build(spec: TaskSpec, info: SandboxInfo, marker: str) -> str:
    """The system prompt of a task. `marker` is the tag that the toolbox puts around untrusted text."""
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
    return "\n\n".join(part(name).substitute(facts).strip() for name in PARTS) + "\n"


def part(name: str) -> Template:
    """One part; `$name` stands for a fact of the task."""
    return Template((files("worker.agent") / "prompts" / f"{name}.md").read_text(encoding="utf-8"))


def _variables(spec: TaskSpec) -> str:
    names = sorted(spec.env_for("agent"))
    return f" The variables {', '.join(names)} are set for this task." if names else ""


def _word(text: str) -> str:
    """What the box says of itself goes into the prompt as words only."""
    return re.sub(r"[^A-Za-z0-9._+-]", "", text)[:60]
