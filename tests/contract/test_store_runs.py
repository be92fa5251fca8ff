"""Runs: one owner at a time, every write fenced, lost workers made good, and no state the table does not allow."""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from service.contracts import (
    MAX_RUNS,
    TERMINAL,
    TRANSITIONS,
    ExitReason,
    PatchInfo,
    Phase,
    Review,
    State,
    Task,
    TaskError,
    TodoItem,
    Usage,
)
from service.errors import LeaseLost
from service.events import StateChanged, TextDelta
from service.store import Artifact, Lease, Store, SweepReport

Submit = Callable[..., Task]
Together = Callable[..., list[Any]]
REPOSITORY = Path(__file__).parents[2]


def states(store: Store, task_id: str) -> list[tuple[str, int]]:
    return [
        (event.data["state"], event.data["run"]) for event in store.events(task_id, 0, 10_000) if event.type == "state"
    ]


def lapse(raw: redis.Redis, prefix: str, *leases: Lease) -> None:
    """Makes the leases end a second ago, as if their workers had been silent."""
    for lease in leases:
        assert raw.zadd(f"{prefix}leases", {lease.task_id: time.time() * 1000 - 1_000}, xx=True, ch=True) == 1


# ------------------------------------------------------------------------------------------------- claim


def test_nothing_queued_is_nothing_to_claim(store: Store) -> None:
    assert store.claim("w") is None


def test_the_oldest_task_starts_first(store: Store, submit: Submit) -> None:
    made = [submit().id for _ in range(3)]
    leases = [store.claim(f"w{n}") for n in range(3)]
    assert leases == [Lease(task_id, 1, 1, f"w{n}") for n, task_id in enumerate(made)]
    assert store.claim("w") is None


def test_a_claimed_task_is_running(store: Store, submit: Submit) -> None:
    task = submit()
    store.claim("w")
    now = store.task(task.id)
    assert (now.state, now.run, now.queue_position) == (State.RUNNING, 1, None)
    assert now.started_at is not None
    assert states(store, task.id) == [("queued", 0), ("running", 1)]


def test_a_race_of_claims_gives_every_task_to_one(store: Store, submit: Submit, together: Together) -> None:
    made = {submit().id for _ in range(20)}
    leases = together(*[lambda n=n: store.claim(f"w{n}") for n in range(40)])
    won = [lease.task_id for lease in leases if lease is not None]
    assert sorted(won) == sorted(made)
    assert len({lease.worker for lease in leases if lease is not None}) == 20


CLAIMER = """
import sys
from pathlib import Path
from service.blobs import DiskBlobs
from service.store import Store
url, prefix, folder = sys.argv[1:4]
store = Store.connect(url, prefix=prefix, blobs=DiskBlobs(Path(folder)))
sys.stdin.readline()
while (lease := store.claim("w")) is not None:
    print(lease.task_id, flush=True)
"""


def test_processes_that_claim_at_once_share_the_queue(
    store: Store, submit: Submit, redis_url: str, prefix: str, tmp_path: Path
) -> None:
    made = [submit().id for _ in range(60)]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", CLAIMER, redis_url, prefix, str(tmp_path / "b")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY,
        )
        for _ in range(3)
    ]  # fmt: skip
    try:
        claimed = Counter(
            itertools.chain(*[process.communicate("go\n", timeout=30)[0].split() for process in processes])
        )
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert claimed == Counter(made)


def test_a_queue_entry_without_a_task_does_not_block_the_others(
    store: Store, submit: Submit, raw: redis.Redis, prefix: str
) -> None:
    gone, kept = submit(), submit()
    raw.delete(f"{prefix}task:{gone.id}")
    assert store.claim("w").task_id == kept.id
    assert store.counters().queued == 0


# ------------------------------------------------------------------------------------------------- fence


def writes(store: Store, lease: Lease) -> dict[str, Callable[[], Any]]:
    return {
        "renew": lambda: store.renew(lease),
        "append": lambda: store.append(lease, TextDelta("late")),
        "append_many": lambda: store.append_many(lease, [TextDelta("late"), TextDelta("later")]),
        "update": lambda: store.update(lease, summary="late", phase=Phase.AGENT),
        "add_artifact": lambda: store.add_artifact(lease, "late", "0" * 64, 1),
        "finish": lambda: store.finish(lease, State.SUCCEEDED, ExitReason.COMPLETED, summary="late"),
        "release": lambda: store.release(lease),
    }


WRITES = ("renew", "append", "append_many", "update", "add_artifact", "finish", "release")


@pytest.mark.parametrize("name", WRITES)
def test_a_run_that_was_replaced_writes_nothing(
    store: Store, submit: Submit, raw: redis.Redis, prefix: str, name: str
) -> None:
    task = submit()
    old = store.claim("old")
    lapse(raw, prefix, old)
    store.sweep()
    new = store.claim("new")
    assert (new.task_id, new.run, new.fence) == (task.id, 2, 2)
    before = (store.task(task.id), store.events(task.id), store.artifacts(task.id))
    with pytest.raises(LeaseLost):
        writes(store, old)[name]()
    assert (store.task(task.id), store.events(task.id), store.artifacts(task.id)) == before
    assert store.renew(new).cancel_requested is False


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("how", ["swept", "finished", "released", "unknown"])
def test_a_run_that_lost_its_task_writes_nothing(
    store: Store, submit: Submit, raw: redis.Redis, prefix: str, name: str, how: str
) -> None:
    task = submit()
    lease = store.claim("w")
    match how:
        case "swept":
            lapse(raw, prefix, lease)
            store.sweep()
        case "finished":
            store.finish(lease, State.FAILED, ExitReason.MODEL_ERROR)
        case "released":
            store.release(lease)
        case "unknown":
            lease = Lease("task_unknown", 1, 1, "w")
    before = (store.task(task.id), store.events(task.id), store.artifacts(task.id), store.counters())
    with pytest.raises(LeaseLost):
        writes(store, lease)[name]()
    assert (store.task(task.id), store.events(task.id), store.artifacts(task.id), store.counters()) == before


def test_a_renewal_moves_the_end_of_the_lease(connect: Callable[..., Store], submit: Submit) -> None:
    store = connect(lease_s=0.6)
    submit()
    lease = store.claim("w")
    for _ in range(4):
        time.sleep(0.3)
        store.renew(lease)
        assert store.sweep().queued == ()
    time.sleep(0.7)
    assert store.sweep().queued == (lease.task_id,)


# ------------------------------------------------------------------------------------------------ writes


def test_a_run_writes_the_fields_of_its_task(store: Store, submit: Submit) -> None:
    task = submit()
    lease = store.claim("w")
    fields = {
        "summary": 'ünïcode "quoted"\n',
        "todo": (TodoItem(text="one"), TodoItem(text="two", status="completed")),
        "usage": Usage(turns=3, input_tokens=10, cached_tokens=4, output_tokens=5, cost_usd=0.1, unknown_calls=1),
        "patch": PatchInfo(
            status="complete", as_of_turn=3, sha256="a" * 64, bytes=10, files=1, additions=2, deletions=3
        ),
        "verification": ({"command": "make", "after": {"exit_code": 0}},),
        "review": Review(state="pending"),
    }
    store.update(lease, phase=Phase.AGENT, **fields)
    now = store.task(task.id)
    assert now.phase is Phase.AGENT
    assert {name: getattr(now, name) for name in fields} == fields
    store.update(lease, summary=None, patch=None)
    assert (store.task(task.id).summary, store.task(task.id).patch) == (None, None)


def test_a_phase_is_told_when_it_changes(store: Store, submit: Submit) -> None:
    task = submit()
    lease = store.claim("w")
    for phase in (Phase.PREPARING, Phase.PREPARING, Phase.AGENT, "agent", "exporting"):
        store.update(lease, phase=phase)
    told = [event.data for event in store.events(task.id) if event.type == "phase"]
    assert told == [{"phase": "preparing"}, {"phase": "agent"}, {"phase": "exporting"}]


@pytest.mark.parametrize(
    "fields", [{"state": "succeeded"}, {"team": "blue"}, {"seq": 1}, {"phase": "odd"}, {"usage": 3}]
)
def test_a_run_cannot_write_what_is_not_its_own(store: Store, submit: Submit, fields: dict[str, Any]) -> None:
    task = submit()
    lease = store.claim("w")
    before = store.task(task.id)
    with pytest.raises(ValueError):  # noqa: PT011 - pydantic's is one too
        store.update(lease, **fields)
    assert store.task(task.id) == before


def test_artifacts_are_listed_by_name_and_replaced(store: Store, submit: Submit) -> None:
    task = submit()
    lease = store.claim("w")
    assert store.artifacts(task.id) == []
    store.add_artifact(lease, "transcript.jsonl", "a" * 64, 10)
    store.add_artifact(lease, "a b/ü", "b" * 64, 1 << 40)
    store.add_artifact(lease, "transcript.jsonl", "c" * 64, 20)
    assert store.artifacts(task.id) == [
        Artifact("a b/ü", "b" * 64, 1 << 40),
        Artifact("transcript.jsonl", "c" * 64, 20),
    ]


# ------------------------------------------------------------------------------------------------- end


@pytest.mark.parametrize("state", sorted(TERMINAL))
def test_a_finished_task_stays_as_it_ended(
    store: Store, submit: Submit, raw: redis.Redis, prefix: str, state: State
) -> None:
    task = submit(sealed=b"x")
    lease = store.claim("w")
    store.update(lease, phase=Phase.EXPORTING)
    problem = TaskError(code="model_error", message='it "said" no\n', retryable=True)
    store.finish(lease, state, ExitReason.MODEL_ERROR, error=problem, summary="the end")
    now = store.task(task.id)
    assert (now.state, now.exit_reason, now.error, now.summary, now.phase, now.run) == (
        state, ExitReason.MODEL_ERROR, problem, "the end", None, 1,
    )  # fmt: skip
    assert now.started_at <= now.finished_at
    last = store.events(task.id)[-1]
    assert (last.type, last.data) == (
        "state",
        {"state": state, "run": 1, "exit_reason": "model_error", "error": problem.model_dump()},
    )
    assert set(last.data) == {field for field in StateChanged.__dataclass_fields__ if field != "type"}
    assert store.counters().running == 0
    assert store.sealed(task.id) is None
    assert raw.zscore(f"{prefix}retention", task.id) > (time.time() + 29 * 86_400) * 1000
    assert store.sweep() == SweepReport((), (), (), 0)


@pytest.mark.parametrize("state", sorted(set(State) - TERMINAL))
def test_a_run_ends_in_a_terminal_state_only(store: Store, submit: Submit, state: State) -> None:
    task = submit()
    lease = store.claim("w")
    with pytest.raises(ValueError, match="not a state in which"):
        store.finish(lease, state, ExitReason.COMPLETED, summary="x")
    assert store.task(task.id).state is State.RUNNING
    assert store.task(task.id).summary is None


def test_the_scripts_follow_the_table_of_transitions(
    store: Store, submit: Submit, raw: redis.Redis, prefix: str
) -> None:
    """Every pair of states, asked of the one function that changes them."""
    move = store._head + (REPOSITORY / "service/store/lua/common.lua").read_text()
    move += "return move(ARGV[1], ARGV[2], 'completed', nil, now_ms()) and 1 or 0"
    for before, after in itertools.product(State, State):
        task = submit()
        raw.hset(f"{prefix}task:{task.id}", "state", before)
        allowed = raw.eval(move, 1, prefix, task.id, after)
        assert bool(allowed) == (after in TRANSITIONS[before]), (before, after)
        assert raw.hget(f"{prefix}task:{task.id}", "state").decode() == (after if allowed else before)


# ------------------------------------------------------------------------------------------- lost workers


def test_a_lost_worker_s_task_starts_over(store: Store, submit: Submit, raw: redis.Redis, prefix: str) -> None:
    lost, waiting = submit(sealed=b"x"), submit()
    lease = store.claim("w")
    store.update(lease, phase=Phase.AGENT, summary="half", todo=(TodoItem(text="x"),), usage=Usage(turns=2))
    assert store.sweep() == SweepReport((), (), (), 0)
    lapse(raw, prefix, lease)
    assert store.sweep() == SweepReport(queued=(lost.id,), failed=(), cancelled=(), bells=0)
    now = store.task(lost.id)
    assert (now.state, now.run, now.phase, now.summary, now.todo) == (State.QUEUED, 1, None, None, ())
    assert now.usage == Usage(turns=2)
    assert (now.queue_position, store.task(waiting.id).queue_position) == (1, 2)
    assert store.sealed(lost.id) == b"x"
    again = store.claim("w2")
    assert (again.task_id, again.run) == (lost.id, 2)
    assert store.task(lost.id).started_at == now.started_at
    assert states(store, lost.id) == [("queued", 0), ("running", 1), ("queued", 1), ("running", 2)]


def test_a_task_is_not_started_more_often_than_allowed(
    store: Store, submit: Submit, raw: redis.Redis, prefix: str
) -> None:
    task = submit(sealed=b"x")
    for run in range(1, MAX_RUNS + 1):
        lease = store.claim("w")
        assert lease.run == run
        lapse(raw, prefix, lease)
        report = store.sweep()
    assert report == SweepReport(queued=(), failed=(task.id,), cancelled=(), bells=0)
    now = store.task(task.id)
    assert (now.state, now.exit_reason, now.run) == (State.FAILED, ExitReason.WORKER_LOST, MAX_RUNS)
    assert now.error == TaskError(
        code="worker_lost", message="The worker was lost 3 times; the task is not started again.", retryable=True
    )
    assert store.claim("w") is None
    assert store.sealed(task.id) is None
    assert store.counters().finished == {"worker_lost": 1}


def test_a_cancelled_run_whose_worker_is_lost_is_cancelled(
    store: Store, submit: Submit, raw: redis.Redis, prefix: str
) -> None:
    task = submit()
    lease = store.claim("w")
    store.request_cancel(task.id)
    lapse(raw, prefix, lease)
    assert store.sweep() == SweepReport(queued=(), failed=(), cancelled=(task.id,), bells=0)
    assert store.task(task.id).exit_reason is ExitReason.CANCELLED


def test_a_drained_run_goes_back_to_the_queue(store: Store, submit: Submit) -> None:
    task = submit()
    assert store.release(store.claim("w")) is State.QUEUED
    assert store.task(task.id).queue_position == 1
    store.release(store.claim("w"))
    assert store.release(store.claim("w")) is State.FAILED
    assert states(store, task.id)[-1] == ("failed", 3)


def test_a_drained_run_that_was_to_be_cancelled_is_cancelled(store: Store, submit: Submit) -> None:
    task = submit()
    lease = store.claim("w")
    store.request_cancel(task.id)
    assert store.release(lease) is State.CANCELLED


def test_sweepers_that_meet_do_everything_once(
    store: Store, submit: Submit, together: Together, raw: redis.Redis, prefix: str
) -> None:
    made = {submit().id for _ in range(10)}
    lapse(raw, prefix, *[store.claim("w") for _ in made])
    reports = together(*[store.sweep] * 5)
    assert sorted(itertools.chain(*[report.queued for report in reports])) == sorted(made)
    assert all(len(states(store, task_id)) == 3 for task_id in made)


def test_a_race_of_sweep_and_finish_has_one_winner(
    store: Store, submit: Submit, together: Together, raw: redis.Redis, prefix: str
) -> None:
    for _ in range(20):
        task = submit()
        lease = store.claim("w")
        lapse(raw, prefix, lease)
        report, finished = together(
            store.sweep, lambda lease=lease: store.finish(lease, State.SUCCEEDED, ExitReason.COMPLETED)
        )
        if report.queued:
            assert isinstance(finished, LeaseLost)
            store.request_cancel(task.id)
        else:
            assert store.task(task.id).state is State.SUCCEEDED


def test_a_sweep_says_how_often_to_ring(store: Store, submit: Submit) -> None:
    for _ in range(5):
        submit()
    assert store.sweep().bells == 0
    for name in ("a", "b", "c"):
        store.heartbeat_worker(name)
    assert store.sweep().bells == 3
    assert store.sweep(bells_out=2).bells == 1
    assert store.sweep(bells_out=7).bells == 0
    for _ in range(4):
        store.claim("a")
    assert store.sweep().bells == 1


def test_only_the_present_run_holds_its_task(store: Store, submit: Submit) -> None:
    task = submit()
    assert store.holds(task.id, 0) is False
    lease = store.claim("w")
    assert [store.holds(task.id, run) for run in (0, 1, 2)] == [False, True, False]
    store.release(lease)
    assert store.holds(task.id, 1) is False
    store.finish(store.claim("w"), State.SUCCEEDED, ExitReason.COMPLETED)
    assert store.holds(task.id, 2) is False
    assert store.holds("task_unknown", 1) is False


def test_an_ended_task_is_forgotten_when_its_time_has_come(
    store: Store, submit: Submit, raw: redis.Redis, prefix: str, tmp_path: Path
) -> None:
    old, kept = submit(), submit()
    lease = store.claim("w")
    store.append_many(lease, [TextDelta("x")] * 1_100)
    store.add_artifact(lease, "a", "0" * 64, 1)
    store.finish(lease, State.SUCCEEDED, ExitReason.COMPLETED)
    assert len([path for path in (tmp_path / "blobs").glob("??/*") if path.is_file()]) == 1
    raw.zadd(f"{prefix}retention", {old.id: 1})
    store.sweep()
    assert store.task(old.id) is None
    assert [task.id for task in store.tasks("red")[0]] == [kept.id]
    assert not [key for key in raw.scan_iter(f"{prefix}*") if old.id.encode() in key]
    assert [path for path in (tmp_path / "blobs").glob("??/*") if path.is_file()] == []
    assert store.counters().finished == {"completed": 1}
