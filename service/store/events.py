"""A task's event stream: gapless numbers, archived segments and the live tail joined."""

from __future__ import annotations

import contextlib
import gzip
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from service.errors import Unavailable
from service.events import Event, event_data
from service.store.connection import MAX_BLOCK_MS, SEGMENT_EVENTS, Connection, compact, rfc3339

_PAGE = 500
"""Events of one answer of `wait_events` per task."""


@dataclass(frozen=True, slots=True)
class EventRecord:
    """An event with its place in its task: `seq` counts from 1 without gaps, `time` is RFC 3339 UTC."""

    seq: int
    time: str
    type: str
    data: dict[str, Any]


class Events(Connection):
    """Reading and archiving. Writing needs a lease: see runs.py."""

    def events(self, task_id: str, after: int = 0, limit: int = 1_000) -> list[EventRecord]:
        """The events that follow `after`, at most `limit`, never with a gap; empty when there are none yet."""
        # One transaction: between two reads a segment could be archived, and its events be in neither.
        segments, live = self._batch([
            ("ZRANGE", self._key("task", task_id, "segments"), f"({after}", "+inf", "BYSCORE"),
            ("XRANGE", self._key("task", task_id, "events"), f"{after + 1}-0", "+", "COUNT", limit),
        ])  # fmt: skip
        found: list[EventRecord] = []
        for segment in segments:
            if len(found) < limit:
                found += self._segment(json.loads(segment)["sha256"], after)
        return (found + [_record(entry, fields) for entry, fields in live])[:limit]

    def last_seq(self, task_id: str) -> int:
        """The number of the newest event; 0 for an unknown task."""
        return int(self._call("HGET", self._key("task", task_id), "seq") or 0)

    def wait_events(self, after: Mapping[str, int], block_ms: int) -> dict[str, list[EventRecord]]:
        """New events of any of these tasks (id → last seq seen), as soon as there are some; {} at the time-out.

        One blocking read for all; it waits at most `MAX_BLOCK_MS`. A task's list may be cut: ask on from its end.
        """
        if not after:
            return {}
        streams = {self._key("task", task_id, "events"): task_id for task_id in after}
        wait = max(1, min(block_ms, MAX_BLOCK_MS))  # 0 would mean for ever
        positions = [f"{seq}-0" for seq in after.values()]
        answer = self._wait("XREAD", "COUNT", _PAGE, "BLOCK", wait, "STREAMS", *streams, *positions)
        found: dict[str, list[EventRecord]] = {}
        for name, entries in _streams(answer):
            task_id = streams[name.decode()]
            records = [_record(entry, fields) for entry, fields in entries]
            if records and records[0].seq != after[task_id] + 1:  # what lies between has been archived
                records = self.events(task_id, after[task_id], _PAGE)
            if records:
                found[task_id] = records
        return found

    def _archive(self, task_id: str) -> None:
        """Moves every full segment from the stream into a blob; safe against a crash at any point and a twin."""
        stream, index = self._key("task", task_id, "events"), self._key("task", task_id, "segments")
        while True:
            newest, length = self._batch([("ZRANGE", index, -1, -1), ("XLEN", stream)])
            if length < SEGMENT_EVENTS:
                return
            first = json.loads(newest[0])["last"] + 1 if newest else 1
            last = first + SEGMENT_EVENTS - 1
            entries = self._call("XRANGE", stream, f"{first}-0", f"{last}-0")
            if len(entries) != SEGMENT_EVENTS:  # a twin has just archived them
                return
            # Stored before it is bound: a segment that is listed can be read.
            blob = self._blobs.put(_pack(_record(entry, fields) for entry, fields in entries))
            segment = compact({"first": first, "last": last, "sha256": blob.sha256})
            if not self._script("archive", task_id, first, last, segment):
                return

    def _archive_if_full(self, task_id: str, count: int, last: int) -> None:
        """After `count` appended events that end at seq `last`."""
        if last // SEGMENT_EVENTS == (last - count) // SEGMENT_EVENTS:
            return
        # A full disk must not end the run: the stream still holds them, and the next segment takes them along.
        with contextlib.suppress(Unavailable):
            self._archive(task_id)

    def _segment(self, sha256: str, after: int) -> Iterator[EventRecord]:
        with self._blobs.open(sha256) as blob, gzip.open(blob, "rt", encoding="utf-8") as lines:
            for line in lines:
                record = EventRecord(**json.loads(line))
                if record.seq > after:
                    yield record


def encode(events: Sequence[Event]) -> list[str]:
    """Kind and data of each, as `append.lua` takes them."""
    pairs: list[str] = []
    for event in events:
        pairs += [event.type, compact(event_data(event))]
    return pairs


def _record(entry: bytes, fields: Mapping[bytes, bytes]) -> EventRecord:
    return EventRecord(
        seq=int(entry.split(b"-")[0]),
        time=rfc3339(int(fields[b"t"])),
        type=fields[b"k"].decode(),
        data=json.loads(fields[b"d"]),
    )


def _pack(records: Iterable[EventRecord]) -> list[bytes]:
    lines = "".join(
        compact({"seq": record.seq, "time": record.time, "type": record.type, "data": record.data}) + "\n"
        for record in records
    )
    return [gzip.compress(lines.encode(), mtime=0)]  # without a time, so that twins make the same blob


def _streams(answer: Any) -> Iterable[tuple[bytes, Any]]:
    """XREAD's answer in either shape redis-py gives it: a mapping (RESP3) or pairs."""
    return (answer.items() if isinstance(answer, dict) else answer) or ()
