"""`transcript.jsonl`: every request, raw response and tool call of a run, to see what the model saw and to replay it.

One JSON object per line, `time` in seconds since the epoch:

    {"kind": "request",  "n": 1, "time": …, "messages_before": 0, "body": {…}}
    {"kind": "response", "n": 1, "time": …, "duration_ms": …, "outcome": "used", "lines": ["…", …], "error": null}
    {"kind": "tool",     "time": …, "duration_ms": …, "id": "…", "tool": "bash", "arguments": "…", "ok": true,
     "result": "…"}

`body.messages` holds what is new: the first `messages_before` messages are those of the request before. Mostly
these are all it had; fewer where the conversation was made shorter (worker/agent/compaction.py) or is another one.
`lines` are the data lines of the response, before parsing. `outcome` is `used` (the reply the run went on with),
`asked_again` (cut off, so asked once more) or `failed`; a replay serves `used` ones. A response to a request for a
summary of old turns has `"summary": true`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Literal

from pydantic import TypeAdapter, ValidationError

from worker.llm.summaries import is_summary

MAX_BYTES = 64 << 20
"""Of one transcript; what comes later is counted, not kept. 100 turns of a long task take about 10 MB."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request to a provider and what came back."""

    body: dict[str, Any]
    lines: tuple[str, ...]
    outcome: Literal["used", "asked_again", "failed"]
    error: str | None
    said: str
    """Text, reasoning and arguments of the reply in one piece, to find what is split over `lines`."""
    started: float
    """Seconds since the epoch."""
    duration_ms: int


Recorder = Callable[[Exchange], None]


class Transcript:
    """Writes one run's transcript to `file`, at most `max_bytes`, and closes it; use as a context manager.

    `mask` hides secrets in a text. Response lines that hold a secret, whole or split over several of them,
    are kept back as a whole.
    """

    def __init__(self, file: BinaryIO, *, mask: Callable[[str], str] = str, max_bytes: int = MAX_BYTES) -> None:
        self._file = file
        self._mask = mask
        self._left = max_bytes
        self._requests = 0
        self._sent: list[Any] = []
        self.dropped = 0
        """Records that did not fit."""

    def __enter__(self) -> Transcript:
        return self

    def __exit__(self, *exc: object) -> None:
        self._file.close()

    def exchange(self, exchange: Exchange) -> None:
        """Records a request and its response; the model's client calls it (`open_model(…, record=…)`)."""
        self._requests += 1
        messages = exchange.body.get("messages", [])
        known = _common(self._sent, messages)
        self._sent = messages
        body = self._masked({**exchange.body, "messages": messages[known:]})
        self._write("request", exchange.started, {"n": self._requests, "messages_before": known, "body": body})
        lines = list(exchange.lines)
        withheld = any(self._mask(text) != text for text in (exchange.said, *lines))
        self._write(
            "response",
            exchange.started + exchange.duration_ms / 1000,
            {
                "n": self._requests,
                "duration_ms": exchange.duration_ms,
                "outcome": exchange.outcome,
                "error": exchange.error and self._mask(exchange.error),
                "lines": [] if withheld else lines,
                **({"summary": True} if is_summary(exchange.body) else {}),
                **({"withheld": self._mask(exchange.said)} if withheld else {}),
            },
        )

    def tool(self, *, id: str, tool: str, arguments: str, ok: bool, result: str, duration_ms: int) -> None:
        """Records a tool call and what the model was told of it; the loop calls it."""
        fields = {"id": id, "tool": tool, "arguments": arguments, "ok": ok, "result": result}
        self._write("tool", time.time(), {"duration_ms": duration_ms, **self._masked(fields)})

    def _masked(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._mask(value)
        if isinstance(value, dict):
            return {key: self._masked(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._masked(item) for item in value]
        return value

    def _write(self, kind: str, at: float, fields: dict[str, Any]) -> None:
        line = json.dumps({"kind": kind, "time": round(at, 3), **fields}).encode() + b"\n"
        if len(line) > self._left:
            self.dropped += 1
            return
        self._left -= len(line)
        self._file.write(line)
        self._file.flush()


def _common(before: Sequence[Any], now: Sequence[Any]) -> int:
    """How many messages at their beginning are the same."""
    return next((at for at, (a, b) in enumerate(zip(before, now, strict=False)) if a != b), min(len(before), len(now)))


@dataclass(frozen=True, slots=True)
class _Record:
    """What a replay reads of a line."""

    kind: str
    outcome: str = "used"
    lines: tuple[str, ...] = ()
    summary: bool = False


_RECORD = TypeAdapter(_Record)


def responses(lines: Iterable[str], *, summaries: bool = False) -> Iterator[tuple[str, ...]]:
    """The data lines of each `used` response of a transcript, in order; ValueError names a line that is none.

    Those of the turns, or with `summaries` those of the summaries.
    """
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = _RECORD.validate_json(line)
        except ValidationError as error:
            raise ValueError(f"line {number} is no record of a transcript: {error.errors()[0]['msg']}") from None
        if record.kind == "response" and record.outcome == "used" and record.summary is summaries:
            yield record.lines
