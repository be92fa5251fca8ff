"""The tools a model may call: one entry each, looked up, checked and carried out in one place."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from worker.llm.messages import Steps, ToolCall, ToolSchema
from worker.sandbox.base import Sandbox, ToolFailure
from worker.tools import arguments, text, todo
from worker.tools.background import BASH_KILL, BASH_OUTPUT
from worker.tools.base import Answer, Session, Skill, Tool, failure
from worker.tools.bash import BASH
from worker.tools.done import DONE
from worker.tools.edit_file import EDIT_FILE
from worker.tools.listing import GLOB, LIST_FILES
from worker.tools.memory import Memory
from worker.tools.read_file import READ_FILE
from worker.tools.search import SEARCH
from worker.tools.skill import SKILL
from worker.tools.todo import TODO
from worker.tools.write_file import WRITE_FILE

TOOLS: tuple[Tool, ...] = (
    BASH,
    BASH_OUTPUT,
    BASH_KILL,
    READ_FILE,
    WRITE_FILE,
    EDIT_FILE,
    LIST_FILES,
    SEARCH,
    GLOB,
    TODO,
    DONE,
)


NO_ROOM = frozenset({"too_many", "spawn_failed"})
"""Refusals of a box that has its hands full: nothing was done, and a moment later it may go."""
ROOM_WAITS_S = (0.1, 0.5)
DRY_RUN = (
    "Dry run: not carried out, nothing was changed; the call is shown to the person who asked, that is all. Go on with "
    "what you would do next, and call `done` at the end."
)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A call whose tool exists and whose arguments fit."""

    call_id: str
    tool: Tool
    arguments: dict[str, Any]


class Toolbox:
    """The tools of one run over one box. Not thread-safe, but read-only calls may be executed at the same time."""

    def __init__(self, session: Session, tools: tuple[Tool, ...] = TOOLS, *, dry_run: bool = False) -> None:
        self._session = session
        self._dry_run = dry_run
        self._memory = Memory()
        self._tools = {tool.name: tool for tool in tools}
        self.used = False
        """Whether any tool but `done` was carried out: before, a plain reply is an answer, not the end of work."""
        self.schemas: tuple[ToolSchema, ...] = tuple(tool.schema for tool in tools)

    @property
    def marker(self) -> str:
        """The tag around untrusted text in every answer; the prompt explains it to the model."""
        return self._session.marker

    def unmarked(self, answer: str) -> str:
        """An answer as people read it, without the tags."""
        return answer.replace(f"<{self.marker}>\n", "").replace(f"\n</{self.marker}>", "")

    @property
    def finished(self) -> str | None:
        """The summary the model gave to `done`, None before."""
        return self._session.finished

    def block(self, text: str) -> str:
        """Untrusted text inside the tag."""
        return self._session.block(text)

    def todo_list(self) -> str:
        """The todo list as it is now, a line for each item; empty while there is none."""
        return "\n".join(f"- {item.text} ({item.status})" for item in self._session.todo)

    @property
    def skills_in_use(self) -> tuple[str, ...]:
        """The answers that brought the skills the model works by; they stay when older results go."""
        return tuple(self._session.skills_in_use.values())

    def begin_turn(self) -> None:
        """Counts the turns since the todo list was touched."""
        self._session.turns_since_todo += 1

    def reminder(self) -> str:
        """What to put in front of the next tool results; mostly empty."""
        return todo.reminder(self._session)

    def prepare(self, call: ToolCall) -> Prepared | Answer:
        """The checked call, or the answer that tells the model what is wrong with it."""
        tool = self._find(call.name)
        if tool is None:
            name = f"'{call.name[:60]}'" if call.name else "without a name"
            return failure("unknown_tool", f"there is no tool {name}; the tools are {', '.join(self._tools)}")
        if not call.complete:
            return failure(
                "incomplete_call",
                "your reply broke off inside this call, so it was not executed; send it again, with less in one call",
            )
        try:
            values = arguments.check(tool.name, tool.parameters, arguments.parse(call.arguments))
        except arguments.BadArguments as bad:
            return failure("bad_arguments", str(bad))
        return Prepared(call.id, tool, values)

    def execute(self, prepared: Prepared) -> Steps[Answer]:
        """Carries it out. What the box refuses is an answer; a box that is gone raises SandboxError."""
        self.used = self.used or prepared.tool is not DONE
        if self._dry_run and prepared.tool.writes:
            return Answer(DRY_RUN)
        try:
            answer = yield from self._answered(prepared)
        except ToolFailure as refused:
            answer = failure(refused.code, refused.message[:1_000])
        return Answer(text.clip(answer.text, hint="narrow it", limit=text.RESULT_CHARS), answer.error)

    def _answered(self, prepared: Prepared) -> Steps[Answer]:
        tool, arguments = prepared.tool, prepared.arguments
        if tool.writes:
            self._memory.forget()
        if not (tool.read_only and self._session.still):
            return (yield from self._with_patience(prepared))
        answer = self._memory.recall(tool.name, arguments)
        if answer is None:
            answer = yield from self._with_patience(prepared)
            self._memory.keep(tool.name, arguments, answer)
        return answer

    def _with_patience(self, prepared: Prepared) -> Steps[Answer]:
        """Asks again where the box had no room and twice is the same as once."""
        for wait_s in ROOM_WAITS_S if prepared.tool.idempotent else ():
            try:
                return (yield from self._handled(prepared))
            except ToolFailure as refused:
                if refused.code not in NO_ROOM:
                    raise
            time.sleep(wait_s)
        return (yield from self._handled(prepared))

    def _handled(self, prepared: Prepared) -> Steps[Answer]:
        return prepared.tool.handler(self._session, prepared.arguments, prepared.call_id)

    def _find(self, name: str) -> Tool | None:
        name = name.strip()
        # Some models put a namespace in front: functions.bash
        return self._tools.get(name) or self._tools.get(name.rpartition(".")[2])


def build_toolbox(
    sandbox: Sandbox,
    *,
    env: Mapping[str, str],
    command_timeout_s: int,
    store_artifact: Callable[[str, bytes], None],
    dry_run: bool = False,
    skills: Sequence[Skill] = (),
) -> Toolbox:
    """All tools over `sandbox`. `env` is what commands see; `store_artifact` takes outputs too long for the model.

    In a `dry_run` those that may change the workspace are told, not carried out. `skill` is among them where there
    are `skills`.
    """
    session = Session(sandbox, env, command_timeout_s, store_artifact, skills={skill.name: skill for skill in skills})
    return Toolbox(session, (*TOOLS, SKILL) if skills else TOOLS, dry_run=dry_run)
