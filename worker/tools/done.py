"""`done`: the end of the work, in the model's own words."""

from __future__ import annotations

from worker.tools.base import Answer, Arguments, Session, Tool, immediate


def run(session: Session, arguments: Arguments) -> Answer:
    session.finished = arguments["summary"].strip()
    return Answer("Finished")


DONE = Tool(
    "done",
    "End the task when the work is complete and checked, or when you cannot get further. Nothing can be done after it.",
    {
        "summary": {
            "type": "string",
            "description": "For the person who asked: what you changed and why, how you checked it, what is open.",
        }
    },
    ("summary",),
    immediate(run),
)
