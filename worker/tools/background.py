"""`bash_output` and `bash_kill`: what a background command has said since it was last looked at, and its end."""

from __future__ import annotations

import codecs
import time

from worker.sandbox.base import BackgroundOutput
from worker.tools import text
from worker.tools.base import Answer, Arguments, Session, Tool, Watch, immediate

HINT = "to see more, let it write into a file under /tmp and use grep, head, tail or sed -n on that"
STARTED = (
    "Started in the background as {number}. See what it says with bash_output, end it with bash_kill. It has no time "
    "limit; it ends with the task."
)


def start(session: Session, command: str) -> Answer:
    """What `bash` does with `background`: the answer bears the number that the two tools take."""
    number = session.sandbox.background(command, cwd=session.cwd, env=session.env)
    session.background[number] = Watch(time.monotonic())
    return Answer(STARTED.format(number=number))


def output(session: Session, arguments: Arguments) -> Answer:
    return _news(session, arguments["id"])


def kill(session: Session, arguments: Arguments) -> Answer:
    session.sandbox.kill(arguments["id"])
    return _news(session, arguments["id"])


def _news(session: Session, number: int) -> Answer:
    watch = session.background.get(number) or Watch(time.monotonic())
    said = session.sandbox.output(number, offset=watch.offset)
    session.background[number] = watch
    watch.ended = said.state != "running"
    data = said.data if watch.ended else _whole(said.data)
    gap = said.offset - watch.offset
    watch.offset = said.offset + len(data)
    shown = text.clean(text.decode(data, cut_before=gap > 0))
    if len(shown) > text.BODY_CHARS:
        session.keep("bash_output", data)
    clipped = text.clip(shown, hint=HINT)
    lost = f"[{gap:,} bytes before this were not kept]\n" if gap else ""
    body = session.block(clipped) if clipped.strip() else "(no new output)"
    return Answer(f"{lost}{body}\n{_status(said, watch)}")


def _whole(data: bytes) -> bytes:
    """Without a last character that has not come whole: the rest of it comes with the next piece."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(data)
    return data[: len(data) - len(decoder.getstate()[0])]


def _status(said: BackgroundOutput, watch: Watch) -> str:
    if said.state == "exited":
        return text.exit_status(said.exit_code)
    if said.state == "killed":
        return "[killed: the command and everything it started]"
    # The time also keeps apart the results of someone who waits: they are no circle.
    return f"[running for {time.monotonic() - watch.started:.1f} s]"


_NUMBER = {"id": {"type": "integer", "minimum": 1, "description": "The number that bash gave when it started it."}}

BASH_OUTPUT = Tool(
    "bash_output",
    "See what a background command has said since you last looked, and whether it still runs. Does not wait: to wait, "
    "run a bash with sleep before it.",
    _NUMBER,
    ("id",),
    immediate(output),
    idempotent=True,
)

BASH_KILL = Tool(
    "bash_kill",
    "End a background command and everything it started. Do so when you need it no more.",
    _NUMBER,
    ("id",),
    immediate(kill),
    idempotent=True,
)
