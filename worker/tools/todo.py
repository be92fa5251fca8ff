"""`todo`: the model's own plan, shown to people as it goes."""

from __future__ import annotations

from collections.abc import Sequence

from service.contracts import TodoItem
from service.events import TodoChanged
from worker.llm.messages import Steps
from worker.tools.base import Answer, Arguments, Session, Tool, failure

STATUSES = ("pending", "in_progress", "completed")
MAX_ITEMS = 50
MAX_CHARS = 500
REMIND_AFTER_TURNS = 3


def run(session: Session, arguments: Arguments, _call_id: str) -> Steps[Answer]:
    items = tuple(TodoItem(text=" ".join(item["text"].split()), status=item["status"]) for item in arguments["items"])
    refusal = refused(session.todo, items)
    if refusal:
        return failure("todo_refused", f"the list was not changed: {refusal}")
    session.todo = items
    session.turns_since_todo = 0
    yield TodoChanged([item.model_dump() for item in items])
    done = sum(item.status == "completed" for item in items)
    now = next((f"; now: {item.text}" for item in items if item.status == "in_progress"), "")
    return Answer(f"Todo: {done} of {len(items)} completed{now}")


def refused(before: Sequence[TodoItem], after: Sequence[TodoItem]) -> str:
    """Why `after` may not replace `before`; empty when it may."""
    if len(after) > MAX_ITEMS:
        return f"at most {MAX_ITEMS} items"
    texts = [item.text for item in after]
    if not all(texts) or max(map(len, texts), default=0) > MAX_CHARS:
        return f"an item needs a text of 1 to {MAX_CHARS} characters"
    if len(set(texts)) < len(texts):
        return "two items have the same text"
    running = [item.text for item in after if item.status == "in_progress"]
    if len(running) > 1:
        return f"only one item may be in_progress, not {len(running)}; complete one first"
    was = {item.text: item.status for item in before}
    for item in after:
        old = was.get(item.text, "pending")
        if STATUSES.index(item.status) < STATUSES.index(old):
            return f"'{item.text}' is {old} and cannot go back to {item.status}; add a new item instead"
    return ""


def reminder(session: Session) -> str:
    """What stands in front of the next tool results after three turns without an update; empty otherwise."""
    open_items = [item for item in session.todo if item.status != "completed"]
    if not open_items or session.turns_since_todo < REMIND_AFTER_TURNS:
        return ""
    session.turns_since_todo = 0
    listed = "; ".join(f"{item.text[:80]} ({item.status})" for item in open_items[:5])
    more = f"; and {len(open_items) - 5} more" if len(open_items) > 5 else ""
    return f"[Reminder: your todo list is {REMIND_AFTER_TURNS} turns old. Still open: {listed}{more}. Update it.]"


TODO = Tool(
    "todo",
    "Write down the steps of a task with three or more of them, and keep the list up to date: send the whole list "
    "each time. Items go pending → in_progress → completed, at most one is in_progress. Not for small tasks.",
    {
        "items": {
            "type": "array",
            "description": "The whole list, in order.",
            "items": {
                "type": "object",
                "properties": {"text": {"type": "string"}, "status": {"type": "string", "enum": list(STATUSES)}},
                "required": ["text", "status"],
                "additionalProperties": False,
            },
        }
    },
    ("items",),
    run,
)
