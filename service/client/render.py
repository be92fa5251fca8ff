"""Draws tasks and their events on a terminal or into a pipe.

Everything a model, a tool or a file name says is text: never markup, and control, direction-changing and
invisible characters are shown as escapes, so that nothing can repaint the screen or hide (T25).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.status import Status
from rich.table import Column, Table
from rich.text import Text

Json = dict[str, Any]

_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_KEPT = frozenset("\n\t")
_SHOWN_LINES = 12
"""Of one tool's output while it runs; all of it is in the transcript."""
_LINE = 200
_MARK = re.compile(r"</?data-[0-9a-f]+>")
"""What tells the model that text is only data; noise to a reader."""
_DRAWN_ELSEWHERE = frozenset({"todo", "done"})
"""Tools whose effect has an event of its own, or is the task's summary."""
_STATE_STYLE = {"succeeded": "green", "failed": "red", "cancelled": "yellow", "running": "cyan"}
_TODO_MARK = {"pending": "·", "in_progress": "▸", "completed": "✓"}
_PIPE_WIDTH = 4_096
_DIFF_STYLE = (("+++", "bold"), ("---", "bold"), ("diff ", "bold"), ("@@", "cyan"), ("+", "green"), ("-", "red"))


def printable(text: str) -> str:
    """The text with every character that is not plainly visible written out, as `\\x1b` or `\\u202e`."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(map(_spell, text))


def _spell(char: str) -> str:
    if char in _KEPT or unicodedata.category(char) not in _UNSEEN:
        return char
    code = ord(char)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def short(text: str, most: int = _LINE) -> str:
    """The first line, printable, cut with an ellipsis."""
    first, _, rest = printable(text.strip()).partition("\n")
    return first[: most - 1] + "…" if len(first) >= most else first + (" …" if rest else "")


def console(*, stderr: bool = False) -> Console:
    """Colours and movement on a terminal only; never guesses at markup, emoji or links in the text."""
    out = Console(stderr=stderr, markup=False, highlight=False, emoji=False, soft_wrap=True)
    if not out.is_terminal:
        out.width = _PIPE_WIDTH  # what reads a pipe wants whole lines
    return out


class _Output:
    """The output of one call as lines, the first few of them, whole whatever the pieces it comes in."""

    def __init__(self) -> None:
        self._lines = 0
        self._rest = ""
        self._began = False

    def end(self, summary: str) -> Iterator[str]:
        """What is left; the summary where nothing came before."""
        rest = self._rest if self._began else summary
        self._rest = ""
        return self.add(rest + "\n") if rest else iter(())

    def add(self, text: str) -> Iterator[str]:
        self._began = True
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            if _MARK.fullmatch(line):
                continue
            self._lines += 1
            if self._lines <= _SHOWN_LINES:
                shown = printable(line.rstrip())
                yield shown[: _LINE - 1] + "…" if len(shown) >= _LINE else shown
            elif self._lines == _SHOWN_LINES + 1:
                yield "…"
        self._rest = self._rest[-_LINE:]


class Progress:
    """Follows one task's events, line by line; with a status line underneath where there is a terminal."""

    def __init__(self, out: Console) -> None:
        self._out = out
        self._status: Status | None = out.status("queued") if out.is_terminal else None
        self._phase = "queued"
        self._usage = ""
        self._said = ""
        self._streamed = False
        self._outputs: dict[str, _Output] = {}
        """Of the calls in flight."""

    def __enter__(self) -> Progress:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end_text()
        if self._status is not None:
            self._status.stop()

    def show(self, event: Json) -> None:
        """Draws one event of the contract; types this version does not know are passed over."""
        draw = getattr(self, f"_on_{event['type']}", None)
        if event["type"] != "text":
            self._end_text()
        if draw is not None:
            draw(event["data"])

    def _line(self, text: str, style: str = "") -> None:
        self._out.print(Text(text, style=style))

    def _update(self) -> None:
        if self._status is not None:
            self._status.update(Text(" · ".join(filter(None, (self._phase, self._usage)))))

    def _on_state(self, data: Json) -> None:
        state, reason = str(data["state"]), data.get("exit_reason")
        again = f" (run {data['run']})" if data.get("run", 0) > 1 else ""
        self._phase = state
        self._line(f"● {printable(state)}{again}{f': {printable(reason)}' if reason else ''}", _style(state))
        if error := data.get("error"):
            self._line(f"  {short(str(error.get('message', '')), 2_000)}", "red")
        self._update()

    def _on_phase(self, data: Json) -> None:
        self._phase = printable(str(data["phase"]))
        self._line(f"● {self._phase}", "cyan")
        self._update()

    def _on_text(self, data: Json) -> None:
        """Whole lines as soon as they are there: a status line cannot stand behind half a one."""
        self._streamed = True
        *lines, self._said = (self._said + str(data["text"])).split("\n")
        for line in lines:
            self._line(printable(line))

    def _end_text(self) -> None:
        if self._said:
            self._line(printable(self._said))
        self._said = ""

    def _on_message(self, data: Json) -> None:
        if data["role"] == "assistant" and not self._streamed and data["text"]:
            self._line(printable(str(data["text"])))
        self._streamed = False

    def _on_tool_started(self, data: Json) -> None:
        self._outputs[data["call_id"]] = _Output()
        if data["tool"] in _DRAWN_ELSEWHERE:
            return
        arguments = data["arguments"]
        first = next(iter(arguments.values()), "") if isinstance(arguments, dict) else ""
        self._line(f"▸ {printable(str(data['tool']))}  {short(first) if isinstance(first, str) else ''}", "bold")

    def _on_tool_output(self, data: Json) -> None:
        for line in self._outputs.setdefault(data["call_id"], _Output()).add(str(data["text"])):
            self._line(f"    {line}", "dim")

    def _on_tool_finished(self, data: Json) -> None:
        output = self._outputs.pop(data["call_id"], _Output())
        if data["tool"] in _DRAWN_ELSEWHERE and data["ok"]:
            return
        for line in output.end(str(data["summary"])):
            self._line(f"    {line}", "dim")
        mark, style = ("✓", "green") if data["ok"] else ("✗", "red")
        self._line(f"  {mark} {data['duration_ms'] / 1000:.1f} s", style)

    def _on_todo(self, data: Json) -> None:
        for item in data["items"]:
            self._line(f"  {_TODO_MARK.get(item['status'], '·')} {short(str(item['text']))}")

    def _on_usage(self, data: Json) -> None:
        self._usage = usage_text(data["usage"])
        self._update()

    def _on_compacted(self, data: Json) -> None:
        self._line(f"! older turns taken out: {data['tokens_before']:,} → {data['tokens_after']:,} tokens", "yellow")

    def _on_notice(self, data: Json) -> None:
        self._line(f"! {short(str(data['text']), 1_000)}", "yellow")


def usage_text(usage: Json) -> str:
    cost = usage.get("cost_usd")
    parts = [
        f"{usage.get('turns', 0)} turns",
        f"{usage.get('input_tokens', 0) + usage.get('output_tokens', 0):,} tokens",
    ]
    return ", ".join([*parts, *([f"${cost:.4f}"] if cost is not None else [])])


def _style(state: str) -> str:
    return _STATE_STYLE.get(state, "")


def task_table(tasks: list[Json]) -> Table:
    table = Table(Column("id", no_wrap=True), "state", "created", "model", "title", box=None, pad_edge=False)
    for task in tasks:
        reason = f" ({task['exit_reason']})" if task["exit_reason"] else ""
        table.add_row(
            Text(printable(task["id"])),
            Text(printable(task["state"] + reason), style=_style(task["state"])),
            Text(printable(task["created_at"][:19])),
            Text(printable(task["model"])),
            Text(short(task["title"] or task["prompt"], 60)),
        )
    return table


def key_table(keys: list[Json]) -> Table:
    table = Table(Column("id", no_wrap=True), "team", "roles", "name", "created", box=None, pad_edge=False)
    for key in keys:
        cells = (key["id"], key["team"], ",".join(key["roles"]), key["name"], key["created_at"][:19])
        table.add_row(*(Text(short(str(cell), 80)) for cell in cells))
    return table


def task_details(task: Json) -> Table:
    """What a person wants to know of one task."""
    table = Table(box=None, show_header=False, pad_edge=False)
    patch = task["patch"] or {}
    rows = {
        "id": task["id"],
        "state": task["state"] + (f" ({task['exit_reason']})" if task["exit_reason"] else ""),
        "phase": task["phase"],
        "queue": task["queue_position"],
        "model": task["model"],
        "prompt": short(task["prompt"], 500),
        "created": task["created_at"],
        "finished": task["finished_at"],
        "usage": usage_text(task["usage"]),
        "summary": task["summary"],
        "error": (task["error"] or {}).get("message"),
        "patch": patch_text(patch) if patch else None,
    }
    for name, value in rows.items():
        if value is not None:
            table.add_row(Text(name, style="bold"), Text(printable(str(value))))
    return table


def patch_text(patch: Json) -> str:
    """One line about a patch: what it changes, and what was found about it."""
    if patch["status"] == "none":
        return f"none: {patch.get('reason')}"
    proven = "proven" if patch.get("reproduces_tree") else "not proven"
    counts = f"{patch['files']} files, +{patch['additions']} -{patch['deletions']}, {patch['bytes']:,} bytes, {proven}"
    flags = ", ".join(f"{flag['kind']} {flag['path']}" for flag in patch.get("flags", ()))
    return counts + (f"; flags: {flags}" if flags else "")


def print_patch(out: Console, patch: bytes) -> None:
    """A patch for eyes: coloured, and nothing in it can act on the terminal."""
    for line in patch.decode("utf-8", "backslashreplace").split("\n"):
        style = next((style for start, style in _DIFF_STYLE if line.startswith(start)), "")
        out.print(Text(printable(line), style=style))
