from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from service.errors import ModelError, Stopped
from worker.llm.messages import Assistant, Reply, User
from worker.llm.replay import OVER, ReplayServer
from worker.llm.scripted import ScriptedModel
from worker.llm.summaries import SUMMARY_HEAD
from worker.llm.transcript import Exchange, Transcript, responses


def exchange(messages: list[Any], *lines: str, **fields: Any) -> Exchange:
    given = {"outcome": "used", "error": None, "said": "", "started": 1000.0, "duration_ms": 1500, **fields}
    return Exchange(body={"model": "m", "messages": messages}, lines=lines, **given)


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_run_is_recorded_and_only_what_is_new_of_a_conversation(tmp_path: Path) -> None:
    path = tmp_path / "transcript.jsonl"
    first, second = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}
    with Transcript(path.open("wb")) as transcript:
        transcript.exchange(exchange([first], "{}", "[DONE]"))
        transcript.tool(id="c", tool="bash", arguments="{}", ok=True, result="x", duration_ms=3)
        transcript.exchange(exchange([first, second], outcome="failed", error="gone"))
    request, response, tool, request_2, response_2 = records(path)
    assert request == {
        "kind": "request", "time": 1000.0, "n": 1, "messages_before": 0, "body": {"model": "m", "messages": [first]}
    }  # fmt: skip
    assert response == {
        "kind": "response", "time": 1001.5, "n": 1, "duration_ms": 1500, "outcome": "used", "error": None,
        "lines": ["{}", "[DONE]"],
    }  # fmt: skip
    assert {**tool, "time": 0} == {
        "kind": "tool", "time": 0, "duration_ms": 3, "id": "c", "tool": "bash", "arguments": "{}", "ok": True,
        "result": "x",
    }  # fmt: skip
    assert (request_2["messages_before"], request_2["body"]["messages"]) == (1, [second])
    assert (response_2["outcome"], response_2["error"], response_2["lines"]) == ("failed", "gone", [])
    assert list(responses(path.read_text().splitlines())) == [("{}", "[DONE]")]


def test_what_differs_from_the_request_before_is_recorded_also_when_the_conversation_shrank(tmp_path: Path) -> None:
    asked = [["a", "b", "c"], ["a", "c"], ["a", "c"], ["x"], []]
    path = tmp_path / "t"
    with Transcript(path.open("wb")) as transcript:
        for messages in asked:
            transcript.exchange(exchange(messages))
    written = [(r["messages_before"], r["body"]["messages"]) for r in records(path)[::2]]
    assert written == [(0, ["a", "b", "c"]), (1, ["c"]), (2, []), (0, ["x"]), (0, [])]
    rebuilt: list[list[str]] = [[]]
    for before, new in written:
        rebuilt.append(rebuilt[-1][:before] + new)
    assert rebuilt[1:] == asked


def test_summaries_are_told_from_turns_and_replayed_in_a_row_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "t"
    asks = {"role": "system", "content": f"{SUMMARY_HEAD}\nrules"}
    with Transcript(path.open("wb")) as transcript:
        transcript.exchange(exchange([{"role": "system", "content": "rules"}], "turn 1"))
        transcript.exchange(exchange([asks], "lost", outcome="failed"))
        transcript.exchange(exchange([asks], "sum"))
        transcript.exchange(exchange([], "turn 2"))
    lines = path.read_text().splitlines()
    assert list(responses(lines)) == [("turn 1",), ("turn 2",)]
    assert list(responses(lines, summaries=True)) == [("sum",)]
    server = ReplayServer.of(path)
    assert server.take(summary=False) == ("turn 1",)
    assert server.take(summary=False) == ("turn 2",)
    assert server.take(summary=True) == ("sum",)
    assert OVER in server.take(summary=True)[0]


def test_a_secret_split_over_two_chunks_keeps_the_lines_back(tmp_path: Path) -> None:
    path = tmp_path / "t"
    with Transcript(path.open("wb"), mask=lambda text: text.replace("hunter22", "•••")) as transcript:
        transcript.exchange(exchange(["is it hunter22?"], '{"c":"hunt"}', '{"c":"er22"}', said="yes, hunter22"))
        transcript.tool(id="c", tool="bash", arguments="hunter22", ok=True, result="hunter22", duration_ms=0)
    request, response, tool = records(path)
    assert request["body"]["messages"] == ["is it •••?"]
    assert (response["lines"], response["withheld"]) == ([], "yes, •••")
    assert (tool["arguments"], tool["result"]) == ("•••", "•••")


def test_it_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "t"
    with Transcript(path.open("wb"), max_bytes=1_000) as transcript:
        for _ in range(30):
            transcript.tool(id="c", tool="bash", arguments="{}", ok=True, result="x" * 100, duration_ms=0)
    assert path.stat().st_size <= 1_000
    assert transcript.dropped == 30 - len(records(path))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("nonsense", "line 2 is no record of a transcript: Invalid JSON"),
        ("[]", "line 2 is no record"),
        ('{"kind": "response", "lines": [1]}', "line 2 is no record of a transcript: Input should be a valid string"),
    ],
)
def test_a_damaged_recording_names_the_line(line: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        list(responses(["", line]))
    path = tmp_path / "run.jsonl"
    path.write_text("\n" + line)
    with pytest.raises(ModelError, match=r"the recording run\.jsonl cannot be read: line 2"):
        ReplayServer.of(path)


def test_a_scripted_model_says_its_script_and_keeps_what_it_was_asked() -> None:
    model = ScriptedModel([Assistant("hi"), ModelError("gone")])
    steps = model.ask([User("a")], [], max_seconds=1)
    assert next(steps).text == "hi"  # type: ignore[union-attr]
    with pytest.raises(StopIteration) as done:
        next(steps)
    reply: Reply = done.value.value
    assert (reply.message, reply.usage.input, reply.cost_usd) == (Assistant("hi"), 100, None)
    with pytest.raises(ModelError, match="gone"):
        next(model.ask([User("a"), User("b")], [], max_seconds=1))
    assert model.asked == [(User("a"),), (User("a"), User("b"))]
    model.abort()
    with pytest.raises(Stopped):
        next(model.ask([], [], max_seconds=1))
