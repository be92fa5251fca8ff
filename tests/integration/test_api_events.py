"""The event stream: gapless from any point, live, ended by the terminal event, carried on by another process."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from api_kit import Api, serving, wait_until

from service.api import events as events_module
from service.contracts import ExitReason, Role, State
from service.events import Notice, TextDelta

SSE = {"Accept": "text/event-stream"}


@pytest.fixture
def api(redis_url: str, tmp_path: Path) -> Iterator[Api]:
    with serving(redis_url, tmp_path) as running:
        yield running


def read(
    client: httpx.Client, path: str, *, most: int | None = None, **headers: str
) -> tuple[list[dict[str, Any]], bool]:
    """The stream's events, checked for their form; whether the server ended it."""
    found: list[dict[str, Any]] = []
    frame: dict[str, str] = {}
    with client.stream("GET", path, headers={**SSE, **headers}) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-cache"
        for line in answer.iter_lines():
            if line:
                name, _, value = line.partition(": ")
                frame[name] = value
            elif "data" in frame:
                event = json.loads(frame["data"])
                assert frame["id"] == str(event["seq"])
                assert frame["event"] == event["type"]
                assert set(event) == {"seq", "time", "task", "type", "data"}
                found.append(event)
                frame = {}
                if most is not None and len(found) >= most:
                    return found, False
    return found, True


def finished_task(api: Api, texts: int) -> str:
    api.submit()
    lease = api.claim()
    api.store.append_many(lease, [TextDelta(f"line\n{number}\r\n: x") for number in range(texts)])
    api.finish(lease)
    return lease.task_id


def test_from_every_cut_the_stream_goes_on_without_a_gap(api: Api) -> None:
    path = f"/v1/tasks/{finished_task(api, 9)}/events"
    client = api.client()
    whole, ended = read(client, path)
    assert ended
    assert [event["seq"] for event in whole] == list(range(1, 13))
    assert [event["type"] for event in whole] == ["state", "state", *["text"] * 9, "state"]
    assert whole[-1]["data"]["state"] == "succeeded"
    for cut in range(13):
        for place in ({"Last_Event_ID": str(cut)}, {}):
            query = f"?after={0 if place else cut}"
            rest, ended = read(client, path + query, **{name.replace("_", "-"): value for name, value in place.items()})
            assert (rest, ended) == (whole[cut:], True)


def test_archived_segments_and_the_stream_are_one_sequence(api: Api) -> None:
    path = f"/v1/tasks/{finished_task(api, 2_500)}/events"
    for cut in (0, 1, 999, 1_000, 1_001, 2_000, 2_400):
        seqs = [event["seq"] for event in read(api.client(), path, **{"Last-Event-ID": str(cut)})[0]]
        assert seqs == list(range(cut + 1, 2_504))


def test_viewers_see_events_as_they_happen_each_once(api: Api) -> None:
    api.submit()
    lease = api.claim()
    path = f"/v1/tasks/{lease.task_id}/events"
    seen: dict[int, list[int]] = {}

    def view(number: int) -> None:
        time.sleep(number * 0.05)  # they join while events are written
        seen[number] = [event["seq"] for event in read(api.client(), path)[0]]

    viewers = [threading.Thread(target=view, args=(number,)) for number in range(6)]
    for viewer in viewers:
        viewer.start()
    for number in range(150):
        api.store.append_many(lease, [TextDelta(f"{number}-{part}") for part in range(10)])
        time.sleep(0.003)
    api.finish(lease)
    for viewer in viewers:
        viewer.join(timeout=20)
    assert seen == {number: list(range(1, 1_504)) for number in range(6)}


def test_a_live_event_arrives_within_a_second(api: Api) -> None:
    api.submit()
    lease = api.claim()
    written: list[float] = []

    def write() -> None:
        time.sleep(0.5)
        written.append(time.monotonic())
        api.store.append(lease, Notice("x", "y"))

    writer = threading.Thread(target=write)
    writer.start()
    found, _ = read(api.client(), f"/v1/tasks/{lease.task_id}/events", most=3)
    arrived = time.monotonic()
    writer.join()
    assert found[-1]["data"] == {"code": "x", "text": "y"}
    assert arrived - written[0] < 1


def test_silence_is_filled_with_comments(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events_module, "HEARTBEAT_S", 0.1)
    task = api.submit()
    with api.client().stream("GET", f"/v1/tasks/{task['id']}/events", headers=SSE) as answer:
        lines = answer.iter_lines()
        comments = 0
        while comments < 3:
            comments += next(lines).startswith(": ping")


def test_a_page_of_json_continues_where_it_says(api: Api) -> None:
    path = f"/v1/tasks/{finished_task(api, 9)}/events"
    client, found, after = api.client(), [], 0
    while True:
        page = client.get(f"{path}?after={after}&limit=5", headers={"Accept": "application/json"}).json()
        if not page["items"]:
            break
        found += page["items"]
        after = page["next_after"]
    assert [event["seq"] for event in found] == list(range(1, 13))
    assert after == 12


@pytest.mark.parametrize("given", ["x", "-1", "1-0", "1.0", "", "9" * 16, "\u00b2".encode("latin-1")])
def test_a_bad_last_event_id_is_refused_before_the_stream(api: Api, given: str | bytes) -> None:
    task = api.submit()
    answer = api.client().get(f"/v1/tasks/{task['id']}/events", headers={**SSE, "Last-Event-ID": given})
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("query", ["after=-1", "after=x", "after=1&after=2", "limit=0", "from=1"])
def test_a_bad_query_is_refused_before_the_stream(api: Api, query: str) -> None:
    task = api.submit()
    assert api.client().get(f"/v1/tasks/{task['id']}/events?{query}", headers=SSE).status_code == 422


def test_a_viewer_that_leaves_is_forgotten(api: Api) -> None:
    task = api.submit()
    read(api.client(), f"/v1/tasks/{task['id']}/events", most=1)
    hub = api.app.state.parts.hub
    wait_until(lambda: not hub._watched)


def test_a_revoked_key_loses_its_open_stream(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events_module, "HEARTBEAT_S", 0.2)
    api.submit()
    lease = api.claim()
    key, secret = api.store.create_key("default", [Role.REVIEW], "reader")
    revoked = threading.Timer(0.5, api.store.revoke_key, ("default", key.id))
    revoked.start()
    found, ended = read(api.client(secret), f"/v1/tasks/{lease.task_id}/events")
    revoked.join()
    assert ended
    assert [event["type"] for event in found] == ["state", "state"]
    assert api.client(secret).get(f"/v1/tasks/{lease.task_id}").status_code == 401


def test_a_finished_task_read_past_its_end_ends_at_once(api: Api) -> None:
    path = f"/v1/tasks/{finished_task(api, 1)}/events"
    assert read(api.client(), path, **{"Last-Event-ID": "4"}) == ([], True)


def test_a_reader_that_is_ahead_of_a_running_task_is_told_of_its_end(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Redis that lost its last second knows fewer events than its readers: they must not wait for ever."""
    monkeypatch.setattr("service.api.events.HEARTBEAT_S", 0.2)
    task = api.submit()["id"]
    lease = api.claim()
    done: list[tuple[list[dict[str, Any]], bool]] = []
    reader = threading.Thread(
        target=lambda: done.append(read(api.client(), f"/v1/tasks/{task}/events", **{"Last-Event-ID": "99"}))
    )
    reader.start()
    wait_until(lambda: api.app.state.parts.hub._watched)
    api.finish(lease)
    reader.join(timeout=5)
    assert done == [([], True)]


@pytest.fixture
def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def api_process(redis_url: str, prefix: str, folder: Path, port: int) -> subprocess.Popen[bytes]:
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PATCHYARD_")},
        "PATCHYARD_REDIS_URL": redis_url,
        "PATCHYARD_REDIS_PREFIX": prefix,
        "PATCHYARD_DATA_DIR": str(folder),
        "PATCHYARD_PORT": str(port),
        "PATCHYARD_ADMIN_KEY": "pyd_admin-key-of-the-tests",
    }
    with (folder / "api.log").open("ab") as log:
        return subprocess.Popen([sys.executable, "-m", "service.api"], env=environment, stdout=log, stderr=log)


def answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/healthz", timeout=1).status_code == 200
    except httpx.TransportError:
        return False


def test_a_stream_cut_by_a_killed_api_goes_on_at_the_next(
    api: Api, redis_url: str, tmp_path: Path, unused_port: int
) -> None:
    """The API process is killed in mid-stream; its successor continues from the last event that was read."""
    api.submit()
    lease = api.claim()
    url = f"http://127.0.0.1:{unused_port}"
    path = f"{url}/v1/tasks/{lease.task_id}/events"
    process = api_process(redis_url, api.settings.redis_prefix, tmp_path, unused_port)
    try:
        wait_until(lambda: answers(url), 20)
        api.store.append_many(lease, [TextDelta(str(number)) for number in range(20)])
        first, _ = read(api.client(), path, most=10)
        process.kill()
        process.wait(10)
        api.store.append_many(lease, [TextDelta(str(number)) for number in range(20)])
        process = api_process(redis_url, api.settings.redis_prefix, tmp_path, unused_port)
        wait_until(lambda: answers(url), 20)
        threading.Timer(0.3, api.store.finish, (lease, State.SUCCEEDED, ExitReason.COMPLETED)).start()
        rest, ended = read(api.client(), path, **{"Last-Event-ID": str(first[-1]["seq"])})
        assert ended
        assert [event["seq"] for event in first + rest] == list(range(1, 44))
    finally:
        process.kill()
        process.wait(10)


def test_a_stop_ends_open_streams_at_once(api: Api, redis_url: str, tmp_path: Path, unused_port: int) -> None:
    task = api.submit()
    url = f"http://127.0.0.1:{unused_port}"
    process = api_process(redis_url, api.settings.redis_prefix, tmp_path, unused_port)
    try:
        wait_until(lambda: answers(url), 20)
        with api.client().stream("GET", f"{url}/v1/tasks/{task['id']}/events", headers=SSE) as answer:
            lines = answer.iter_lines()
            next(lines)
            process.send_signal(signal.SIGTERM)
            began = time.monotonic()
            for _ in lines:
                pass
        assert process.wait(10) in (0, -signal.SIGTERM)
        assert time.monotonic() - began < 3
    finally:
        process.kill()
        process.wait(10)
    for line in (tmp_path / "api.log").read_text().splitlines():
        json.loads(line)
