"""`bash`: one command in the box, its output as a person would read it, its end named exactly."""

from __future__ import annotations

import codecs
import time

from service.events import ToolOutput
from worker.llm.messages import Steps
from worker.sandbox.base import ExecResult
from worker.tools import background, text
from worker.tools.base import WORKSPACE, Answer, Arguments, Session, Tool, failure

COALESCE_S = 0.05
COALESCE_CHARS = 1_000
MAX_COMMAND_CHARS = 1_000_000
HINT = "to see more, run it again with its output in a file under /tmp, then use grep, head, tail or sed -n on that"


def run(session: Session, arguments: Arguments, call_id: str) -> Steps[Answer]:
    command: str = arguments["command"]
    if not command.strip():
        return failure("bad_arguments", "the command is empty")
    if "\0" in command:
        return failure("bad_arguments", "the command holds a NUL character, which bash cannot take")
    if len(command) > MAX_COMMAND_CHARS:
        return failure("bad_arguments", f"the command is longer than {MAX_COMMAND_CHARS:,} characters; use write_file")
    if arguments.get("background", False):
        return background.start(session, command)
    timeout_s = min(arguments.get("timeout_s", session.command_timeout_s), session.command_timeout_s)
    head, result = yield from _execute(session, command, timeout_s, call_id)
    session.cwd = result.cwd
    return Answer(_report(session, head, result, timeout_s))


def _execute(session: Session, command: str, timeout_s: int, call_id: str) -> Steps[tuple[bytes, ExecResult]]:
    """Streams the output as events, in pieces of about 50 ms or 1,000 characters, and keeps its head."""
    head = bytearray()
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    pending, told = "", 0.0
    running = session.sandbox.exec(command, cwd=session.cwd, env=session.env, timeout_s=timeout_s)
    try:
        while True:
            try:
                piece = next(running)
            except StopIteration as stop:
                result: ExecResult = stop.value
                break
            head += piece
            pending += decoder.decode(piece).replace("\0", "\\x00")
            now = time.monotonic()
            if len(pending) >= COALESCE_CHARS or now - told >= COALESCE_S:
                yield ToolOutput(call_id, pending)
                pending, told = "", now
    finally:
        running.close()
    pending += decoder.decode(b"", final=True)
    if pending:
        yield ToolOutput(call_id, pending)
    return bytes(head), result


def _report(session: Session, head: bytes, result: ExecResult, timeout_s: int) -> str:
    status = _status(result, timeout_s)
    if result.cwd != WORKSPACE:
        status += f" [now in {text.show_path(result.cwd)[:200]}]"
    # `tail` may overlap the head when little more came; what neither holds was dropped in the box.
    after_head = max(0, result.total_bytes - len(head))
    tail = result.tail[-after_head:] if after_head else b""
    dropped = after_head - len(tail)
    if not dropped:
        head, tail = head + tail, b""
    shown_head = text.clean(text.decode(head, cut_after=dropped > 0))
    shown_tail = text.clean(text.decode(tail, cut_before=True))
    if dropped or len(shown_head) > text.BODY_CHARS:
        gap = f"\n[… {dropped} bytes were not kept …]\n".encode() if dropped else b""
        session.keep("bash", head + gap + tail)
    output = text.clip(shown_head, shown_tail, dropped=dropped, hint=HINT)
    return f"{session.block(output) if output.strip() else '(no output)'}\n{status}"


def _status(result: ExecResult, timeout_s: int) -> str:
    match result.ended:
        case "timeout":
            return f"[timed out after {timeout_s} s: the command and everything it started were killed]"
        case "flood":
            return f"[killed: too much output, {result.total_bytes:,} bytes]"
        case "cancelled":
            return "[cancelled: the command and everything it started were killed]"
        case "exited":
            pass
    if result.oom_killed:
        return f"[exit {result.exit_code}: out of memory: the kernel killed a process at the sandbox's memory limit]"
    return text.exit_status(result.exit_code)


BASH = Tool(
    "bash",
    "Run a command with bash in the sandbox: run tests and programs, use git, move or delete files, anything the "
    "other tools do not do. Starts in the directory where the last command left off; variables, and "
    "processes that a command leaves behind, do not survive the call. For a server or a long build that shall go on "
    "while you work, set `background`. There is no terminal, no input and no network. Prefer read_file, search "
    "and edit_file over cat, grep and sed for looking at and changing files.",
    {
        "command": {"type": "string", "description": "What bash runs; may have many lines."},
        "timeout_s": {
            "type": "integer",
            "minimum": 1,
            "description": "Seconds until it is killed. Only to stop it earlier than the task's own limit.",
        },
        "background": {
            "type": "boolean",
            "description": "Go on at once and let it run, without a time limit; the answer has its id. Default false.",
        },
    },
    ("command",),
    run,
    writes=True,
)
