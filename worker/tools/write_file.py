"""`write_file`: a whole file; an existing one only after the model has seen what it replaces."""

from __future__ import annotations

from worker.sandbox.base import ToolFailure
from worker.tools import text
from worker.tools.base import Answer, Arguments, Session, Tool, absolute, failure, immediate


def run(session: Session, arguments: Arguments) -> Answer:
    path, content = arguments["path"], arguments["content"]
    name = text.show_path(path)
    where = absolute(path)
    try:
        result = session.sandbox.write(path, content.encode(), overwrite=where in session.seen)
    except ToolFailure as refused:
        if refused.code != "exists":
            raise
        return failure(
            "exists",
            f"{name} exists and is not empty, and you have not read it; read it first with read_file "
            "(or change a part of it with edit_file)",
        )
    session.seen.add(where)
    lines = content.count("\n") + (0 if content.endswith("\n") or not content else 1)
    what = "Created" if result.created else "Overwrote"
    return Answer(f"{what} {name}: {lines} line{'' if lines == 1 else 's'}, {result.size:,} bytes")


WRITE_FILE = Tool(
    "write_file",
    "Create a file, or replace the whole of one you have read. Makes missing directories. To change a part of a "
    "file use edit_file.",
    {
        "path": {"type": "string", "description": "Relative to /workspace, or absolute."},
        "content": {"type": "string", "description": "The whole file, exactly as it shall be."},
    },
    ("path", "content"),
    immediate(run),
    idempotent=True,
    writes=True,
)
