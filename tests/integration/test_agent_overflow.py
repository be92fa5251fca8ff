"""The agent over real HTTP against the providers of ../shared/cases/llm: pairing and every overflow shape."""

from __future__ import annotations

import importlib.util
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from service.contracts import ExitReason, Limits, new_id
from service.errors import ContextOverflow, ModelError
from service.events import Compacted, Event
from worker.agent.budget import Budget
from worker.agent.context import Conversation
from worker.agent.loop import Outcome, run_agent
from worker.llm.client import open_model
from worker.llm.profiles import Profile
from worker.llm.transcript import Transcript
from worker.sandbox.base import BoxSpec, Sandbox
from worker.sandbox.local import LocalProvider
from worker.tools.registry import build_toolbox

MOCK = Path(__file__).parents[2].parent / "shared" / "cases" / "llm" / "mock.py"


@pytest.fixture(scope="module")
def mock() -> Any:
    if not MOCK.exists():
        pytest.skip("the shared cases are not beside this checkout")
    spec = importlib.util.spec_from_file_location("llm_mock", MOCK)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["llm_mock"] = module
    spec.loader.exec_module(module)
    # It opens its log anew for every request and never closes it; a log of ours is written to as it is.
    vars(module)["open"] = lambda log, _mode: log
    return module


class Log:
    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []

    def write(self, line: str) -> None:
        self.requests.append(json.loads(line)["body"])


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Sandbox]:
    task = new_id("task")
    spec = BoxSpec(task=task, run=1, image="local", cpus=1.0, memory_mb=512, disk_mb=256, pids=200)
    opened = LocalProvider(tmp_path).open(spec)
    try:
        opened.claim(task, deadline_s=600)
        yield opened
    finally:
        opened.close()


@contextmanager
def provider(mock: Any, case: str, log: Log) -> Iterator[str]:
    """The case, served; every request is in `log`."""
    server_type, handler, _ = mock.make(case, log)
    server = server_type(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Play:
    """One run of the agent on a case: its events, and what the provider was asked."""

    def __init__(self, url: str, log: Log, box: Sandbox, folder: Path, window: int) -> None:
        self.url, self.box, self.folder, self.window = url, box, folder, window
        self.log = log
        self.events: list[Event] = []

    def run(self) -> Outcome:
        profile = Profile(name="p", base_url=self.url, model="m1", context_window=self.window)
        return self.follow(profile, (self.folder / "transcript").open("wb"))

    def follow(self, profile: Profile, file: BinaryIO) -> Outcome:
        toolbox = build_toolbox(self.box, env={}, command_timeout_s=30, store_artifact=lambda *_: None)
        with (
            Transcript(file) as transcript,
            open_model(profile, record=transcript.exchange) as model,
        ):
            chat = Conversation.start("You are an agent.", "Do it.")
            budget = Budget(Limits(), seconds_left=lambda: 600.0)
            steps = run_agent(model, toolbox, chat, budget, checkpoint=lambda: None, record=transcript)
            while True:
                try:
                    self.events.append(next(steps))
                except StopIteration as done:
                    outcome: Outcome = done.value
                    return outcome

    @property
    def requests(self) -> list[dict[str, Any]]:
        return self.log.requests

    @property
    def layers(self) -> list[str]:
        return [event.layer for event in self.events if isinstance(event, Compacted)]

    def recorded(self) -> list[list[Any]]:
        """The messages of every request, put together again from the transcript."""
        conversations: list[list[Any]] = [[]]
        for line in (self.folder / "transcript").read_text().splitlines():
            record = json.loads(line)
            if record["kind"] == "request":
                conversations.append(conversations[-1][: record["messages_before"]] + record["body"]["messages"])
        return conversations[1:]


@contextmanager
def playing(mock: Any, case: str, box: Sandbox, folder: Path, window: int = 128_000) -> Iterator[Play]:
    log = Log()
    with provider(mock, case, log) as url:
        yield Play(url, log, box, folder, window)


@pytest.mark.parametrize(("window", "summaries"), [(128_000, 0), (16_000, 2)])
def test_forty_rounds_of_two_calls_never_break_the_pairing(
    mock: Any, box: Sandbox, tmp_path: Path, window: int, summaries: int
) -> None:
    """C16. In a small window old turns are summed up on the way; those requests get answers out of the same row,
    and as these are calls without words, the calls are listed instead."""
    with playing(mock, "C16", box, tmp_path, window) as play:
        outcome = play.run()
    assert (outcome.exit_reason, outcome.summary) == (ExitReason.COMPLETED, "all done")
    assert len([body for body in play.requests if "tools" not in body]) == len(play.layers) >= summaries
    assert set(play.layers) == ({"auto"} if summaries else set())
    assert all(mock.broken("pairing", body) is None for body in play.requests)
    assert all({"role": "user", "content": "Do it."} in body["messages"] for body in play.requests if "tools" in body)
    assert play.recorded() == [body["messages"] for body in play.requests]


def test_a_run_with_summaries_replays_also_in_a_window_that_needs_none(mock: Any, box: Sandbox, tmp_path: Path) -> None:
    with playing(mock, "C16", box, tmp_path, 16_000) as play:
        recorded = play.run()
    profile = Profile(name="r", base_url="", model="r", replay=tmp_path / "transcript")
    again = Play("", Log(), box, tmp_path, 128_000)
    replayed = again.follow(profile, (tmp_path / "again").open("wb"))
    assert (replayed.summary, replayed.usage.turns) == (recorded.summary, recorded.usage.turns)
    assert (play.layers, again.layers) == (["auto", "auto"], [])


@pytest.mark.parametrize("case", ["C18a", "C18b", "C18c", "C18d", "C18e", "C18f"])
def test_an_overflow_of_any_shape_makes_the_next_request_smaller(
    mock: Any, box: Sandbox, tmp_path: Path, case: str
) -> None:
    with playing(mock, case, box, tmp_path) as play:
        outcome = play.run()
    assert (outcome.exit_reason, outcome.summary) == (ExitReason.COMPLETED, "all done")
    first, refused, again = (len(json.dumps(body)) for body in play.requests)
    assert first < again < refused
    assert play.layers == ["reactive"]
    assert play.recorded() == [body["messages"] for body in play.requests]


def test_an_overflow_without_end_fails_after_one_smaller_request(mock: Any, box: Sandbox, tmp_path: Path) -> None:
    status, body = mock.ERR["C18a"]
    mock.case("OVER", "", [mock.call('{"command":"seq 1 3000"}'), *[mock.J(status, body)] * 9], "")
    with playing(mock, "OVER", box, tmp_path) as play, pytest.raises(ContextOverflow, match="maximum context length"):
        play.run()
    assert len(play.requests) == 3
    assert len(json.dumps(play.requests[2])) < len(json.dumps(play.requests[1]))


def test_another_400_that_mentions_tokens_is_no_overflow(mock: Any, box: Sandbox, tmp_path: Path) -> None:
    with playing(mock, "C18x", box, tmp_path) as play, pytest.raises(ModelError, match="Invalid token in header"):
        play.run()
    assert (len(play.requests), play.layers) == (1, [])
