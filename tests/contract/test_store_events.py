"""A task's events: numbered from 1 without gaps, whoever reads, whenever they are archived."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis

from service.blobs import DiskBlobs
from service.contracts import ExitReason, Phase, State, Task
from service.errors import LeaseLost, NotFound, Unavailable
from service.events import Notice, TextDelta, ToolFinished, ToolOutput, ToolStarted
from service.store import EventRecord, Lease, Store

Submit = Callable[..., Task]


@pytest.fixture
def lease(store: Store, submit: Submit) -> Lease:
    """Of a running task that has events 1 (queued) and 2 (running)."""
    submit()
    claimed = store.claim("w")
    assert claimed is not None
    return claimed


def seqs(records: list[EventRecord]) -> list[int]:
    return [record.seq for record in records]


def blob_files(tmp_path: Path) -> list[Path]:
    return [path for path in (tmp_path / "blobs").glob("??/*") if path.is_file()]


def test_an_event_is_read_as_it_was_written(store: Store, lease: Lease) -> None:
    event = ToolStarted(
        call_id="c1", tool="bash", arguments={"command": 'echo "ü"\n\x1b[0m', "n": [1.5, None, True]}, turn=1
    )
    assert store.append(lease, event) == 3
    (record,) = store.events(lease.task_id, 2)
    assert (record.seq, record.type) == (3, "tool_started")
    assert record.data == {
        "call_id": "c1",
        "tool": "bash",
        "arguments": {"command": 'echo "ü"\n\x1b[0m', "n": [1.5, None, True]},
        "turn": 1,
    }


def test_a_batch_is_numbered_in_order(store: Store, lease: Lease) -> None:
    assert store.append_many(lease, [TextDelta(str(n)) for n in range(5)]) == 7
    assert [record.data["text"] for record in store.events(lease.task_id, 2)] == ["0", "1", "2", "3", "4"]


def test_a_batch_of_nothing_is_refused(store: Store, lease: Lease) -> None:
    with pytest.raises(ValueError, match="at least one"):
        store.append_many(lease, [])


def test_a_page_starts_after_and_ends_at_the_limit(store: Store, lease: Lease) -> None:
    store.append_many(lease, [TextDelta("x")] * 8)
    assert seqs(store.events(lease.task_id)) == list(range(1, 11))
    assert seqs(store.events(lease.task_id, 4, 3)) == [5, 6, 7]
    assert seqs(store.events(lease.task_id, 10)) == []
    assert seqs(store.events(lease.task_id, 999)) == []
    assert store.events("task_unknown") == []


# --------------------------------------------------------------------------------------------- segments


def test_every_thousand_events_are_archived_and_read_on(
    store: Store, lease: Lease, raw: redis.Redis, prefix: str, tmp_path: Path
) -> None:
    for n in range(250):
        store.append_many(lease, [TextDelta(f"{n}.{m}") for m in range(10)])
    assert raw.xlen(f"{prefix}task:{lease.task_id}:events") == 502
    assert len(blob_files(tmp_path)) == 2
    whole = store.events(lease.task_id, 0, 10_000)
    assert seqs(whole) == list(range(1, 2_503))
    assert [record.data["text"] for record in whole[2:]] == [f"{n}.{m}" for n in range(250) for m in range(10)]
    for after in (0, 1, 998, 999, 1_000, 1_001, 1_999, 2_000, 2_001, 2_501, 2_502):
        assert seqs(store.events(lease.task_id, after, 7)) == list(range(after + 1, min(after + 8, 2_503)))


def test_what_is_read_is_the_same_before_and_after_archiving(store: Store, lease: Lease) -> None:
    store.append_many(lease, [TextDelta("ü \u2028 \x1b")] * 900)
    before = store.events(lease.task_id, 0, 10_000)
    store.append_many(lease, [TextDelta("x")] * 200)
    assert store.events(lease.task_id, 0, 902) == before


def test_one_great_batch_is_archived_in_segments(store: Store, lease: Lease, raw: redis.Redis, prefix: str) -> None:
    store.append_many(lease, [TextDelta("x")] * 3_500)
    assert raw.zcard(f"{prefix}task:{lease.task_id}:segments") == 3
    assert seqs(store.events(lease.task_id, 0, 10_000)) == list(range(1, 3_503))


def test_a_full_disk_ends_no_run_and_loses_no_event(
    store: Store, lease: Lease, monkeypatch: pytest.MonkeyPatch, raw: redis.Redis, prefix: str
) -> None:
    def full(self: DiskBlobs, chunks: Any) -> None:
        raise Unavailable("no room", code="storage_full")

    with monkeypatch.context() as patch:
        patch.setattr(DiskBlobs, "put", full)
        store.append_many(lease, [TextDelta("x")] * 1_500)
        assert raw.xlen(f"{prefix}task:{lease.task_id}:events") == 1_502
    store.append_many(lease, [TextDelta("x")] * 1_000)
    assert raw.xlen(f"{prefix}task:{lease.task_id}:events") == 502
    assert seqs(store.events(lease.task_id, 0, 10_000)) == list(range(1, 2_503))


def test_a_crash_between_storing_and_binding_a_segment_shows_no_gap(
    store: Store, lease: Lease, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    put = DiskBlobs.put

    def crash(self: DiskBlobs, chunks: Any) -> None:
        put(self, chunks)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(DiskBlobs, "put", crash)
        with pytest.raises(KeyboardInterrupt):
            store.append_many(lease, [TextDelta("x")] * 1_500)
    assert seqs(store.events(lease.task_id, 0, 10_000)) == list(range(1, 1_503))
    store.append_many(lease, [TextDelta("x")] * 600)
    assert seqs(store.events(lease.task_id, 0, 10_000)) == list(range(1, 2_103))
    assert len(blob_files(tmp_path)) == 2


def test_a_missing_segment_is_an_error_and_never_a_gap(store: Store, lease: Lease, tmp_path: Path) -> None:
    store.append_many(lease, [TextDelta("x")] * 1_500)
    for path in blob_files(tmp_path):
        path.unlink()
    with pytest.raises(NotFound) as refused:
        store.events(lease.task_id)
    assert refused.value.code == "blob_missing"
    assert seqs(store.events(lease.task_id, 1_000, 2)) == [1_001, 1_002]


def write_many(store: Store, lease: Lease, writer: int) -> None:
    for n in range(150):
        store.append_many(lease, [TextDelta(f"{writer}.{n}.{m}") for m in range(10)])


def read_over_and_over(store: Store, task_id: str, done: threading.Event) -> str | None:
    while not done.is_set():
        found = seqs(store.events(task_id, 0, 10_000))
        if found != list(range(1, len(found) + 1)):
            return f"a gap in {len(found)} events"
    return None


def follow(store: Store, task_id: str, last: int) -> str | None:
    seen = 0
    while seen < last:
        found = seqs(store.wait_events({task_id: seen}, 5_000).get(task_id, []))
        if not found or found != list(range(seen + 1, seen + 1 + len(found))):
            return f"after {seen} came {found[:3]}"
        seen = found[-1]
    return None


def test_readers_never_see_a_gap_while_writers_append_and_archive(
    store: Store, connect: Callable[..., Store], lease: Lease
) -> None:
    """Four threads append 6,000 events while two read from the start over and over, and one follows."""
    done, task_id = threading.Event(), lease.task_id
    with ThreadPoolExecutor(7) as pool:
        readers = [pool.submit(read_over_and_over, connect(), task_id, done) for _ in range(2)]
        readers.append(pool.submit(follow, connect(), task_id, 6_002))
        writers = [pool.submit(write_many, connect(), lease, writer) for writer in range(4)]
        try:
            assert [writer.result(60) for writer in writers] == [None] * 4
        finally:
            done.set()
        assert [reader.result(60) for reader in readers] == [None] * 3
    whole = store.events(task_id, 0, 10_000)
    assert seqs(whole) == list(range(1, 6_003))
    texts = [record.data["text"] for record in whole if record.type == "text"]
    for writer in range(4):
        own = [text for text in texts if text.startswith(f"{writer}.")]
        assert own == [f"{writer}.{n}.{m}" for n in range(150) for m in range(10)]


# ------------------------------------------------------------------------------------------------- wait


def test_waiting_for_nothing_returns_at_once(store: Store) -> None:
    assert store.wait_events({}, 10_000) == {}


def test_what_is_there_comes_at_once_and_nothing_after_the_time_out(store: Store, lease: Lease) -> None:
    found = store.wait_events({lease.task_id: 0, "task_unknown": 0}, 10_000)
    assert {task_id: seqs(records) for task_id, records in found.items()} == {lease.task_id: [1, 2]}
    began = time.monotonic()
    assert store.wait_events({lease.task_id: 2}, 150) == {}
    assert 0.1 < time.monotonic() - began < 2


@pytest.mark.parametrize("block_ms", [0, -1])
def test_no_wait_is_for_ever(store: Store, lease: Lease, block_ms: int) -> None:
    began = time.monotonic()
    assert store.wait_events({lease.task_id: 2}, block_ms) == {}
    assert time.monotonic() - began < 1


def test_one_wait_hears_of_any_of_many_tasks(store: Store, submit: Submit) -> None:
    tasks = [submit() for _ in range(50)]
    heard: dict[str, list[EventRecord]] = {}

    def wait() -> None:
        heard.update(store.wait_events({task.id: 1 for task in tasks}, 10_000))

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.2)
    store.request_cancel(tasks[37].id)
    waiting.join(5)
    assert {task_id: seqs(records) for task_id, records in heard.items()} == {tasks[37].id: [2]}
    assert heard[tasks[37].id][0].data["state"] == "cancelled"


def test_a_late_follower_gets_the_archived_events_first(store: Store, lease: Lease) -> None:
    store.append_many(lease, [TextDelta("x")] * 2_500)
    seen = 0
    while seen < 2_502:
        found = seqs(store.wait_events({lease.task_id: seen}, 1_000)[lease.task_id])
        assert found[0] == seen + 1
        seen = found[-1]
    assert seen == 2_502


# -------------------------------------------------------------------------------------------------- cap


def test_past_its_share_tool_output_is_dropped_first_with_one_notice(
    connect: Callable[..., Store], submit: Submit
) -> None:
    """Of 200 events: tool output up to 160, deltas up to 180, the rest up to 180 (20 are kept for states)."""
    store = connect(max_events=200)
    task = submit()
    lease = store.claim("w")
    output, delta = ToolOutput(call_id="c", text="x"), TextDelta("y")
    assert store.append_many(lease, [output] * 158) == 160
    assert store.append(lease, output) == 161
    assert store.append(lease, output) == 161
    assert store.append_many(lease, [output, delta, output]) == 162
    assert store.append_many(lease, [delta] * 100) == 180
    assert store.append_many(lease, [ToolFinished("c", "bash", True, "", 1)] * 100) == 180
    store.update(lease, phase=Phase.EXPORTING)
    assert store.task(task.id).phase is Phase.EXPORTING
    store.finish(lease, State.SUCCEEDED, ExitReason.COMPLETED)
    whole = store.events(task.id)
    assert seqs(whole) == list(range(1, 182))
    notices = [record for record in whole if record.type == "notice"]
    assert [(notice.seq, notice.data["code"]) for notice in notices] == [(161, "events_dropped")]
    assert set(notices[0].data) == {field for field in Notice.__dataclass_fields__ if field != "type"}
    assert (whole[-1].type, whole[-1].data["state"]) == ("state", "succeeded")


def test_no_task_has_more_events_than_allowed_whatever_it_does(connect: Callable[..., Store], submit: Submit) -> None:
    store = connect(max_events=100)
    task = submit()
    for _ in range(3):
        lease = store.claim("w")
        store.append_many(lease, [ToolFinished("c", "bash", True, "", 1)] * 200)
        store.release(lease)
    whole = store.events(task.id)
    assert len(whole) <= 100
    assert whole[-1].data["exit_reason"] == "worker_lost"


def test_the_contract_s_cap_is_fifty_thousand(store: Store, lease: Lease) -> None:
    for _ in range(45):
        store.append_many(lease, [ToolOutput("c", "x")] * 1_000)
    assert store.append(lease, ToolOutput("c", "x")) == 40_001
    assert store.append(lease, TextDelta("x")) == 40_002
    assert seqs(store.events(lease.task_id, 39_998)) == [39_999, 40_000, 40_001, 40_002]


def test_an_event_of_a_lost_run_takes_no_number(store: Store, lease: Lease) -> None:
    store.release(lease)
    with pytest.raises(LeaseLost):
        store.append(lease, TextDelta("x"))
    assert seqs(store.events(lease.task_id)) == [1, 2, 3]
