"""Drawing: nothing that a model, a tool or a file name says can act on the terminal (T25)."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from service.client.render import Progress, key_table, print_patch, printable, short, task_details, task_table

HOSTILE = "ok\nlevel=critical\x1b[2J\x1b]8;;http://x\x07l\x9b31m\x00\r\u202eevil\u2028z\u200b\U000e0041"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text", "plain text"),
        ("two\nlines\tand a tab", "two\nlines\tand a tab"),
        ("名前 é", "名前 é"),
        ("\x1b[31m", "\\x1b[31m"),
        ("\x9b31m", "\\x9b31m"),
        ("a\rb\x00c\x7f", "a\\x0db\\x00c\\x7f"),
        ("\u202eevil\u2066", "\\u202eevil\\u2066"),
        ("ad\u200bmin\ufeff", "ad\\u200bmin\\ufeff"),
        ("\u2028\x85", "\\u2028\\x85"),
        ("\U000e0041", "\\U000e0041"),
        ("\ud800", "\\ud800"),
    ],
)
def test_only_what_is_plainly_visible_is_printed_as_it_is(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_short_is_one_line() -> None:
    assert short("  one\ntwo") == "one …"
    assert short("x" * 300, 10) == "x" * 9 + "…"
    assert short("", 10) == ""


def event(type: str, **data: Any) -> dict[str, Any]:
    return {"seq": 1, "type": type, "data": data}


RUN = [
    event("state", state="queued", run=0, exit_reason=None, error=None),
    event("state", state="running", run=1, exit_reason=None, error=None),
    event("phase", phase="agent"),
    event("text", text="I look"),
    event("text", text=" first.\nThen"),
    event("message", role="assistant", text="I look first.\nThen", turn=1),
    event("tool_started", call_id="1", tool="bash", arguments={"command": "make\ntest"}, turn=1),
    event("tool_output", call_id="1", text="li"),
    event("tool_output", call_id="1", text="ne 1\n  line 2"),
    event("tool_finished", call_id="1", tool="bash", ok=True, summary="…", duration_ms=1234),
    event("tool_started", call_id="2", tool="read_file", arguments={"path": "a"}, turn=1),
    event("tool_finished", call_id="2", tool="read_file", ok=False, summary="<data-0a>\nError: no", duration_ms=0),
    event("tool_started", call_id="3", tool="todo", arguments={"items": []}, turn=1),
    event("todo", items=[{"text": "one", "status": "completed"}, {"text": "two", "status": "in_progress"}]),
    event("tool_finished", call_id="3", tool="todo", ok=True, summary="Todo: 1", duration_ms=0),
    event("message", role="assistant", text="never streamed", turn=2),
    event("notice", code="retry", text="asked again"),
    event("usage", usage={"turns": 2, "input_tokens": 1000, "output_tokens": 234, "cost_usd": 0.5}),
    event("some_later_type", x=1),
    event("state", state="failed", run=2, exit_reason="turn_limit", error={"message": "too many"}),
]

DRAWN = """\
● queued
● running
● agent
I look first.
Then
▸ bash  make …
    line 1
      line 2
  ✓ 1.2 s
▸ read_file  a
    Error: no
  ✗ 0.0 s
  ✓ one
  ▸ two
never streamed
! asked again
● failed (run 2): turn_limit
  too many
"""


def draw(events: list[dict[str, Any]], *, terminal: bool = False) -> str:
    out = io.StringIO()
    screen = Console(file=out, force_terminal=terminal, markup=False, highlight=False, emoji=False, soft_wrap=True)
    with Progress(screen) as progress:
        for each in events:
            progress.show(each)
    return out.getvalue()


def test_a_run_is_drawn_line_by_line() -> None:
    assert draw(RUN) == DRAWN


def test_a_pipe_gets_no_escape_and_a_terminal_gets_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    assert "\x1b" not in draw(RUN)
    assert "\x1b[32m" in draw(RUN, terminal=True)


def test_a_flood_of_output_is_cut() -> None:
    flood = event("tool_output", call_id="1", text="x" * 1000 + "\n" + "y\n" * 100)
    assert draw([flood]).splitlines() == ["    " + "x" * 199 + "…", *["    y"] * 11, "    …"]


def test_hostile_text_stays_text_everywhere() -> None:
    events = [
        event("state", state=HOSTILE, run=1, exit_reason=HOSTILE, error={"message": HOSTILE}),
        event("phase", phase=HOSTILE),
        event("text", text=HOSTILE),
        event("message", role="assistant", text=HOSTILE, turn=1),
        event("tool_started", call_id="1", tool=HOSTILE, arguments={"command": HOSTILE}, turn=1),
        event("tool_output", call_id="1", text=HOSTILE + "\n"),
        event("tool_finished", call_id="1", tool=HOSTILE, ok=True, summary=HOSTILE, duration_ms=1),
        event("todo", items=[{"text": HOSTILE, "status": "pending"}]),
        event("notice", code="x", text="[bold]markup[/bold] :smile:" + HOSTILE),
    ]
    drawn = draw(events)
    assert "[bold]markup[/bold] :smile:" in drawn
    assert not set(drawn) & set("\x1b\x9b\x00\r\x07\u202e\u2028\u200b\U000e0041")


TASK = {
    "id": "task_1", "state": "succeeded", "exit_reason": "completed", "created_at": "2026-01-02T03:04:05.678Z",
    "finished_at": None, "model": "demo", "title": None, "prompt": HOSTILE, "phase": None, "queue_position": None,
    "usage": {"turns": 1, "input_tokens": 2, "output_tokens": 3, "cost_usd": None}, "summary": HOSTILE, "error": None,
    "patch": {
        "status": "complete", "files": 1, "additions": 2, "deletions": 3, "bytes": 4567, "reproduces_tree": True,
        "flags": [{"kind": "symlink", "path": "a\x1b"}],
    },
}  # fmt: skip


def test_tables_hold_text_only() -> None:
    out = io.StringIO()
    screen = Console(file=out, width=200)
    screen.print(task_table([TASK]))
    screen.print(task_details(TASK))
    screen.print(key_table([{"id": HOSTILE, "team": "t", "roles": ["admin"], "name": "[red]x", "created_at": "2026"}]))
    drawn = out.getvalue()
    assert "1 files, +2 -3, 4,567 bytes, proven; flags: symlink a\\x1b" in drawn
    assert "[red]x" in drawn
    assert not set(drawn) & set("\x1b\x9b\x00\r\x07\u202e\u2028\u200b")


def test_a_patch_is_shown_without_acting() -> None:
    out = io.StringIO()
    print_patch(Console(file=out, soft_wrap=True), b"+++ b/a\n+rm x #\r safe\n+\x1b[2J\xff\n")
    assert out.getvalue() == "+++ b/a\n+rm x #\\x0d safe\n+\\x1b[2J\\xff\n\n"
