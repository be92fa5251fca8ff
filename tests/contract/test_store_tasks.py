"""Task records: what is submitted is read back, in order, without secrets; cancelling is decided in one step."""

from __future__ import annotations

import base64
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis
from store_kit import new_task

from service.contracts import (
    EnvValue,
    ExitReason,
    Limits,
    State,
    Task,
    Webhook,
    Workspace,
    WorkspaceRef,
    new_id,
)
from service.errors import Conflict, InvalidRequest, NotFound
from service.store import Store

Submit = Callable[..., Task]


def test_a_submitted_task_reads_back_whole(store: Store) -> None:
    task = new_task(
        prompt='über all ☂\n\t"quoted" \\ back',
        title="t",
        labels={"a": "1", "b": "ü"},
        setup=("pip list",),
        limits=Limits(max_cost_usd=0.1, max_tokens=123_456_789),
    ).model_copy(update={"parent": "task_p", "retry_of": "task_r"})
    answer = store.submit(task, sealed=None)
    assert answer == task.model_copy(update={"queue_position": 1})
    assert store.task(task.id) == answer


def test_an_unknown_task_is_none(store: Store) -> None:
    assert store.task(new_id("task")) is None
    assert store.task("") is None


def test_submitting_an_id_twice_changes_nothing(store: Store, submit: Submit) -> None:
    task = submit()
    with pytest.raises(Conflict) as refused:
        store.submit(new_task(prompt="another").model_copy(update={"id": task.id}), sealed=b"x")
    assert refused.value.code == "task_exists"
    assert store.task(task.id) == task
    assert store.sealed(task.id) is None
    assert len(store.events(task.id)) == 1


def test_the_first_event_says_queued(store: Store, submit: Submit) -> None:
    before = datetime.now(UTC) - timedelta(milliseconds=1)
    (event,) = store.events(submit().id)
    assert (event.seq, event.type) == (1, "state")
    assert event.data == {"state": "queued", "run": 0, "exit_reason": None, "error": None}
    assert event.time.endswith("Z")
    assert len(event.time) == len("2026-01-31T09:30:00.125Z")
    assert before <= datetime.fromisoformat(event.time) <= datetime.now(UTC)


def test_places_in_the_queue_are_counted_and_move_up(store: Store, submit: Submit) -> None:
    tasks = [submit() for _ in range(3)]
    assert [task.queue_position for task in tasks] == [1, 2, 3]
    store.claim("w")
    assert [store.task(task.id).queue_position for task in tasks] == [None, 1, 2]
    store.request_cancel(tasks[1].id)
    assert [store.task(task.id).queue_position for task in tasks] == [None, None, 1]


def test_secret_values_rest_sealed_only(store: Store, raw: redis.Redis, prefix: str) -> None:
    task = new_task(
        env={"PLAIN": "s3cret-one", "PHASED": EnvValue(value="s3cret-two", phases=("setup",))},
        webhook=Webhook(url="https://example.org", secret="s3cret-three"),
    )
    answer = store.submit(task, sealed=b"\x00\xffsealed\r\n")
    assert answer == store.task(task.id)
    assert answer.spec.env == {"PLAIN": "", "PHASED": EnvValue(value="", phases=("setup",))}
    assert answer.spec.webhook.secret is None
    assert store.sealed(task.id) == b"\x00\xffsealed\r\n"
    for key in raw.scan_iter(f"{prefix}*"):
        assert b"s3cret" not in (raw.dump(key) or b"")
        if raw.type(key) == b"hash":
            assert not any(b"s3cret" in value for value in raw.hvals(key))


def test_what_was_sealed_is_dropped_when_the_task_ends(store: Store, submit: Submit) -> None:
    cancelled, finished = submit(sealed=b"a"), submit(sealed=b"b")
    store.request_cancel(cancelled.id)
    assert store.sealed(cancelled.id) is None
    lease = store.claim("w")
    assert store.sealed(finished.id) == b"b"
    store.finish(lease, State.SUCCEEDED, ExitReason.COMPLETED)
    assert store.sealed(finished.id) is None


# ------------------------------------------------------------------------------------------------- lists


def test_a_list_is_newest_first_and_its_pages_join(store: Store, submit: Submit) -> None:
    made = sorted((submit().id for _ in range(7)), reverse=True)
    seen, cursor, pages = [], None, 0
    while True:
        page, cursor = store.tasks("red", limit=3, cursor=cursor)
        seen += [task.id for task in page]
        pages += 1
        if cursor is None:
            break
    assert (seen, pages) == (made, 3)


def test_a_page_that_ends_the_list_has_no_cursor(store: Store, submit: Submit) -> None:
    for _ in range(3):
        submit()
    assert store.tasks("red", limit=3)[1] is None
    assert store.tasks("red", limit=2)[1] is not None


def test_a_page_does_not_shift_when_new_tasks_come(store: Store, submit: Submit) -> None:
    made = sorted((submit().id for _ in range(4)), reverse=True)
    _, cursor = store.tasks("red", limit=2)
    submit()
    page, _ = store.tasks("red", limit=2, cursor=cursor)
    assert [task.id for task in page] == made[2:]


def test_a_list_holds_its_team_only(store: Store, submit: Submit) -> None:
    red, blue = submit(), submit(team="blue")
    assert [task.id for task in store.tasks("red")[0]] == [red.id]
    assert [task.id for task in store.tasks("blue")[0]] == [blue.id]
    assert store.tasks("nobody") == ([], None)


@pytest.mark.parametrize(
    "cursor",
    ["x", "!!!", "ü", "+", "-", base64.urlsafe_b64encode(b"task_1").decode(), "AAAA", "a" * 10_000, "\udcff"],
)
def test_a_cursor_that_the_list_did_not_give_is_refused(store: Store, submit: Submit, cursor: str) -> None:
    submit()
    with pytest.raises(InvalidRequest) as refused:
        store.tasks("red", cursor=cursor)
    assert (refused.value.code, refused.value.status) == ("invalid_cursor", 422)


# ------------------------------------------------------------------------------------------------ cancel


def test_a_queued_task_is_cancelled_at_once(store: Store, submit: Submit) -> None:
    task = submit()
    assert store.request_cancel(task.id) is State.CANCELLED
    after = store.task(task.id)
    assert (after.state, after.exit_reason, after.run) == (State.CANCELLED, ExitReason.CANCELLED, 0)
    assert after.finished_at is not None
    assert after.queue_position is None
    assert store.events(task.id)[-1].data == {
        "state": "cancelled",
        "run": 0,
        "exit_reason": "cancelled",
        "error": None,
    }
    assert store.claim("w") is None


def test_a_running_task_is_asked_to_stop(store: Store, submit: Submit) -> None:
    task = submit()
    lease = store.claim("w")
    assert store.renew(lease).cancel_requested is False
    assert store.request_cancel(task.id) is State.RUNNING
    assert store.request_cancel(task.id) is State.RUNNING
    assert store.renew(lease).cancel_requested is True
    assert store.task(task.id).state is State.RUNNING


@pytest.mark.parametrize("state", [State.SUCCEEDED, State.FAILED, State.CANCELLED])
def test_an_ended_task_cannot_be_cancelled(store: Store, submit: Submit, state: State) -> None:
    task = submit()
    store.finish(store.claim("w"), state, ExitReason.COMPLETED)
    with pytest.raises(Conflict) as refused:
        store.request_cancel(task.id)
    assert (refused.value.code, refused.value.extra) == ("invalid_state", {"state": str(state)})


def test_cancelling_an_unknown_task_is_not_found(store: Store) -> None:
    with pytest.raises(NotFound) as refused:
        store.request_cancel(new_id("task"))
    assert refused.value.code == "task_not_found"


def test_a_race_of_cancel_and_claim_has_one_winner(
    store: Store, submit: Submit, together: Callable[..., list[Any]]
) -> None:
    for _ in range(20):
        task = submit()
        lease, answer = together(lambda: store.claim("w"), lambda task=task: store.request_cancel(task.id))
        if lease is None:
            assert answer is State.CANCELLED
            assert store.task(task.id).state is State.CANCELLED
        else:
            assert answer is State.RUNNING
            assert store.renew(lease).cancel_requested is True
            store.finish(lease, State.CANCELLED, ExitReason.CANCELLED)


def test_a_race_of_cancel_and_finish_ends_in_one_state(
    store: Store, submit: Submit, together: Callable[..., list[Any]]
) -> None:
    for _ in range(20):
        task = submit()
        lease = store.claim("w")
        finished, cancelled = together(
            lambda lease=lease: store.finish(lease, State.SUCCEEDED, ExitReason.COMPLETED),
            lambda task=task: store.request_cancel(task.id),
        )
        assert finished is None
        assert cancelled is State.RUNNING or isinstance(cancelled, Conflict)
        assert store.task(task.id).state is State.SUCCEEDED
        assert [event.data["state"] for event in store.events(task.id)] == ["queued", "running", "succeeded"]


# -------------------------------------------------------------------------------------------- workspaces


def workspace(team: str = "red", sha256: str = "a" * 64) -> Workspace:
    return Workspace(
        id=new_id("ws"), team=team, sha256=sha256, size=10, format="tar.gz", files=2, unpacked_size=20,
        blob="b" * 64, manifest="c" * 64, notes=("a note",), created_at=datetime.now(UTC),
    )  # fmt: skip


def test_the_same_bytes_in_the_same_team_are_one_workspace(store: Store) -> None:
    first = store.put_workspace(workspace())
    assert store.put_workspace(workspace()) == first
    assert store.workspace("red", first.id) == first
    other = store.put_workspace(workspace(sha256="d" * 64))
    assert other.id != first.id


def test_a_workspace_belongs_to_its_team(store: Store) -> None:
    red = store.put_workspace(workspace())
    blue = store.put_workspace(workspace(team="blue"))
    assert blue.id != red.id
    assert store.workspace("blue", red.id) is None
    assert store.workspace("red", "a" * 64) is None


def test_twin_uploads_agree_on_one_workspace(store: Store, together: Callable[..., list[Any]]) -> None:
    made = together(*[lambda: store.put_workspace(workspace())] * 8)
    assert len({one.id for one in made}) == 1


def test_a_workspace_is_kept_from_its_last_use_on(store: Store, raw: redis.Redis, prefix: str) -> None:
    known = store.put_workspace(workspace())
    keys = [f"{prefix}ws:red:{known.id}", f"{prefix}uploads:red:{known.sha256}"]
    month = 30 * 86_400
    assert all(month - 10 < raw.ttl(key) <= month for key in keys)
    for key in keys:
        raw.expire(key, 100)
    store.submit(new_task(workspace=WorkspaceRef(id=known.id)), sealed=None)
    assert all(month - 10 < raw.ttl(key) <= month for key in keys)


def test_no_key_is_without_a_retention_plan(store: Store, submit: Submit, raw: redis.Redis, prefix: str) -> None:
    """The key map at the head of the store names every key there is."""
    store.put_workspace(workspace())
    store.create_key("red", [], "k")
    store.ensure_admin_key("secret")
    store.heartbeat_worker("w")
    store.heartbeat_keeper("host", {})
    submit(sealed=b"x")
    submit()
    lease = store.claim("w")
    store.add_artifact(lease, "a", "0" * 64, 1)
    store.finish(lease, State.FAILED, ExitReason.MODEL_ERROR)
    names = {key.decode().removeprefix(prefix).split(":")[0] for key in raw.scan_iter(f"{prefix}*")}
    assert names <= {
        "task", "queue", "arrivals", "leases", "finished", "retention", "tasks", "ws", "uploads", "teams", "key",
        "keys", "admin", "catalogues", "keepers", "workers", "keeper",
    }  # fmt: skip
