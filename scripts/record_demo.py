"""Writes worker/llm/demo.jsonl: the recording that the built-in `demo` profile answers from.

It mends the shop in examples/. A test runs its edits and both test runs against examples/, so that neither can
change without the other: after a change here or there, run `python scripts/record_demo.py`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RECORDING = Path(__file__).parents[1] / "worker" / "llm" / "demo.jsonl"
TESTS = "python3 -m unittest discover -s tests -t ."
PIECE = 24
"""Characters per streamed chunk."""

STEPS = ["Run the tests and see what fails", "Find and fix the cause", "Run the tests again"]


def todo(done: int) -> dict[str, Any]:
    states = ["completed"] * done + ["in_progress"] + ["pending"] * len(STEPS)
    return {"items": [{"text": text, "status": state} for text, state in zip(STEPS, states, strict=False)]}


OLD = "    return int(cents * (1 - percent / 100))\n"
NEW = """\
    # In whole numbers: a float can fall just short of the half cent, and int() cuts off what is left.
    return (cents * (100 - percent) + 50) // 100
"""

TURNS: list[tuple[str, list[tuple[str, dict[str, Any]]]]] = [
    (
        "I'll start by running the tests to see the failure for myself.",
        [("todo", todo(0)), ("bash", {"command": TESTS})],
    ),
    (
        "One test fails: a 10 % discount on 19.95 gives 17.95, where half a cent up makes 17.96. "
        "The basket leaves the percentage to `discounted`, so I'll look there and at who else uses it.",
        [("todo", todo(1)), ("read_file", {"path": "shop/discount.py"}), ("search", {"pattern": "discounted"})],
    ),
    (
        "`int()` cuts the fraction off instead of rounding it, and the float in front of it may already be too small. "
        "The README asks for the nearest cent, half a cent up; whole numbers do that exactly.",
        [("edit_file", {"path": "shop/discount.py", "old": OLD, "new": NEW})],
    ),
    ("Now the tests again.", [("todo", todo(2)), ("bash", {"command": TESTS})]),
    (
        "All tests pass.",
        [
            ("todo", todo(3)),
            (
                "done",
                {
                    "summary": "Discounts are now rounded to the nearest cent, half a cent up, as the README asks: "
                    "`discounted` in shop/discount.py cut the fraction off (`int()` on a float). It computes in whole "
                    "numbers now. The failing test passes, and so do the others."
                },
            ),
        ],
    ),
]


def pieces(text: str) -> list[str]:
    return [text[start : start + PIECE] for start in range(0, len(text), PIECE)]


def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def stream(number: int, text: str, calls: list[tuple[str, dict[str, Any]]]) -> list[str]:
    """The data lines of one response, as a provider streams them."""
    chunks = [chunk({"role": "assistant", "content": ""})]
    chunks += [chunk({"content": piece}) for piece in pieces(text)]
    for index, (name, arguments) in enumerate(calls):
        head = {"index": index, "id": f"demo{number}{index}", "type": "function"}
        chunks.append(chunk({"tool_calls": [{**head, "function": {"name": name, "arguments": ""}}]}))
        for piece in pieces(json.dumps(arguments)):
            chunks.append(chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]}))
    chunks.append(chunk({}, "tool_calls"))
    said = len(text) + len(json.dumps(calls))
    usage = {"prompt_tokens": 1800 + 400 * number, "completion_tokens": said // 4}
    usage["total_tokens"] = sum(usage.values())
    chunks.append({"object": "chat.completion.chunk", "choices": [], "usage": usage})
    return [*(json.dumps(item, separators=(",", ":")) for item in chunks), "[DONE]"]


def main() -> None:
    with RECORDING.open("w", encoding="utf-8") as out:
        for number, (text, calls) in enumerate(TURNS):
            record = {"kind": "response", "n": number + 1, "outcome": "used", "lines": stream(number, text, calls)}
            out.write(json.dumps(record) + "\n")
    print(f"{RECORDING}: {len(TURNS)} responses")


if __name__ == "__main__":
    main()
