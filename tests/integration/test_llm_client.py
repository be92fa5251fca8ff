"""The client over real HTTP through the real SDK: retries, limits, quirks, stopping."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import stamina
from llm_provider import Answer, Provider, calls, chunk, date_in, refuses, says, serving, stream
from pydantic import SecretStr

from service.contracts import ExitReason
from service.errors import ContextOverflow, ModelError, Stopped
from service.events import Event, Notice, TextDelta
from worker.llm import client
from worker.llm.client import ATTEMPTS, ChatModel, open_model
from worker.llm.connection import connect, warm
from worker.llm.messages import Assistant, Message, Reply, TokenUsage, ToolCall, ToolResult, ToolSchema, User
from worker.llm.pricing import Price
from worker.llm.profiles import Profile, load_profiles
from worker.llm.replay import OVER
from worker.llm.transcript import Exchange, Transcript, responses

TOOLS = [ToolSchema("bash", "Runs a command.", {"type": "object"})]


@pytest.fixture(autouse=True)
def no_backoff() -> Iterator[None]:
    """The policy's own waits are nothing; what a provider asks for is still waited."""
    with stamina.set_testing(True, attempts=ATTEMPTS, cap=True):
        yield


@contextmanager
def model_of(
    provider: Provider, record: Callable[[Exchange], None] | None = None, **fields: Any
) -> Iterator[ChatModel]:
    given = {"name": "p", "base_url": provider.url, "model": "m1", "api_key": SecretStr("sk-the-key"), **fields}
    with open_model(Profile(**given), record=record) as model:
        yield model


def ask(model: ChatModel, *messages: Message, max_seconds: float = 20) -> tuple[list[Event], Reply]:
    steps = model.ask(messages or (User("go"),), TOOLS, max_seconds=max_seconds)
    events: list[Event] = []
    while True:
        try:
            events.append(next(steps))
        except StopIteration as done:
            return events, done.value


def once(*answers: Answer, **fields: Any) -> tuple[Provider, list[Event], Reply]:
    with serving(Provider(list(answers))) as provider, model_of(provider, **fields) as model:
        events, reply = ask(model)
    return provider, events, reply


def codes(events: Sequence[Event]) -> list[str]:
    return [event.code for event in events if isinstance(event, Notice)]


def text_of(events: Sequence[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def test_what_is_sent() -> None:
    provider, events, reply = once(says("hi"), price=Price(input=1.0, cached=0.5, output=2.0))
    assert provider.requests == [
        {
            "model": "m1",
            "messages": [{"role": "user", "content": "go"}],
            "tools": [
                {
                    "type": "function",
                    "function": {"name": "bash", "description": "Runs a command.", "parameters": {"type": "object"}},
                }
            ],
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": 8192,
        }
    ]
    assert provider.headers[0]["authorization"] == "Bearer sk-the-key"
    assert provider.headers[0]["path"] == "/v1/chat/completions"
    assert events == [TextDelta("hi")]
    assert (reply.message, reply.usage) == (Assistant("hi"), TokenUsage(input=10, output=5))
    assert reply.cost_usd == pytest.approx(20e-6)
    assert reply.request == provider.requests[0]
    assert reply.raw[-1] == "[DONE]"


def test_without_streaming_and_without_usage_in_the_stream() -> None:
    body = {"choices": [{"finish_reason": "stop", "message": {"content": "hi"}}]}
    plain = Answer(json.dumps(body).encode(), type="application/json")
    provider, events, reply = once(plain, streaming=False)
    assert not {"stream", "stream_options"} & provider.requests[0].keys()
    assert (events, reply.message.text) == ([TextDelta("hi")], "hi")
    provider, _, _ = once(says("hi"), usage_in_stream=False)
    assert provider.requests[0]["stream"] is True
    assert "stream_options" not in provider.requests[0]


def test_a_json_body_although_a_stream_was_asked_for() -> None:
    call = {"id": "a", "function": {"name": "bash", "arguments": {"command": "pwd"}}}
    body = {"choices": [{"finish_reason": "tool_calls", "message": {"content": None, "tool_calls": [call]}}]}
    _, _, reply = once(Answer(json.dumps(body).encode(), type="application/json"))
    assert reply.message.calls == (ToolCall("a", "bash", '{"command": "pwd"}'),)


def test_one_byte_per_packet() -> None:
    text = "h\u00e9llo 日本 🚀"
    body = f": ping\r\n\r\nevent: message\r\ndata:{json.dumps(chunk({'content': text}), ensure_ascii=False)}\r\n\r\n"
    end = f"data: {json.dumps(chunk(finish='stop'))}\r\n\r\ndata: [DONE]\r\n\r\n"
    _, events, reply = once(Answer((body + end).encode(), piece=1))
    assert text_of(events) == reply.message.text == text


def test_a_fast_stream_costs_few_events() -> None:
    pieces = [chunk({"content": "word "}) for _ in range(2_000)]
    _, events, reply = once(stream(*pieces, chunk(finish="stop")))
    assert text_of(events) == reply.message.text == "word " * 2_000
    assert len(events) <= 40


def test_a_call_that_the_server_left_in_the_text_goes_back_as_a_call() -> None:
    said = 'I look.\n<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>'
    with serving(Provider([says(said)])) as provider, model_of(provider) as model:
        events, reply = ask(model)
        ask(model, User("go"), reply.message, ToolResult(reply.message.calls[0].id, "bash", "x"))
    assert (text_of(events), reply.message.calls) == ("I look.", (ToolCall("c00000001", "bash", '{"command": "ls"}'),))
    assert provider.requests[1]["messages"][1]["tool_calls"][0]["function"] == {
        "name": "bash",
        "arguments": '{"command": "ls"}',
    }


RETRIED = {
    "overloaded twice": [refuses(503, "overloaded"), refuses(529, "overloaded")],
    "an error object in a 200 stream": [stream({"error": {"message": "upstream overloaded", "code": 502}})],
    "the end after half a text": [stream(chunk({"content": "The answer is"}), done=False)],
    "the end after half a call": [Answer(calls('{"command":"rm').body.rpartition(b'data: {"choices"')[0])],
    "fewer bytes than announced": [stream(chunk({"content": "The ans"}), done=False, length=5_000)],
    "an answer without content": [stream()],
    "damaged JSON": [Answer(b'data: {"choices": [\n\n')],
}


@pytest.mark.parametrize("name", RETRIED)
def test_asked_again_whole(name: str) -> None:
    provider, events, reply = once(*RETRIED[name], says("fine"))
    assert reply.message == Assistant("fine")
    assert codes(events) == ["model_retry"] * len(RETRIED[name])
    assert provider.requests == [provider.requests[0]] * (len(RETRIED[name]) + 1)


def test_a_broken_text_is_closed_by_a_notice() -> None:
    _, events, _ = once(stream(chunk({"content": "The answer is"}), done=False), says("42"))
    assert events == [
        TextDelta("The answer is"),
        Notice("model_retry", "The model's answer broke off; asking again in 0 s."),
        TextDelta("42"),
    ]


def test_a_provider_that_never_answers_well_ends_it() -> None:
    with serving(Provider([refuses(503, "overloaded")] * 50)) as provider, model_of(provider) as model:
        with pytest.raises(ModelError, match="answered 503: overloaded") as caught:
            ask(model)
        assert len(provider.requests) == ATTEMPTS
        assert (caught.value.exit_reason, caught.value.retryable) == (ExitReason.MODEL_ERROR, True)


def test_without_a_pause_asked_for_the_waits_double(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "WAIT_INITIAL_S", 1.0)
    monkeypatch.setattr(client, "JITTER_S", 0.0)
    with stamina.set_testing(False):
        provider, events, _ = once(refuses(503, "overloaded"), refuses(503, "overloaded"), says("fine"))
    first, second, third = provider.times
    assert 1.0 <= second - first < 1.9
    assert 2.0 <= third - second < 3.8
    assert codes(events) == ["model_retry", "model_retry"]


@pytest.mark.parametrize(("header", "at_least"), [("1", 1.0), (lambda: date_in(2), 0.9)])
def test_the_pause_a_provider_asks_for_is_kept(header: Any, at_least: float) -> None:
    value = header if isinstance(header, str) else header()
    provider, _, reply = once(refuses(429, "slow down", Retry_After=value), says("fine"))
    assert reply.message.text == "fine"
    assert at_least <= provider.times[1] - provider.times[0] < 8


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (refuses(429, "weekly limit reached", Retry_After="86400"), "at most 120 s are waited"),
        (refuses(429, "You exceeded your current quota", "insufficient_quota"), "quota or credit used up"),
        (refuses(400, "Invalid token in header"), "Invalid token in header"),
        (refuses(401, "Incorrect API key provided: sk-the-key"), "Incorrect API key provided: •••"),
        (refuses(404, "no such model"), "no such model"),
        (Answer(b"<html>Sign in</html>", type="text/html"), "web page"),
        (Answer(b"", 302, headers={"Location": "http://127.0.0.1:9/"}), "302"),
    ],
)
def test_what_will_not_pass_is_asked_once(answer: Answer, message: str) -> None:
    with serving(Provider([answer] * 9)) as provider, model_of(provider) as model:
        with pytest.raises(ModelError, match=message) as caught:
            ask(model)
        assert len(provider.requests) == 1
        assert "sk-the-key" not in repr(caught.value)


def test_an_overflow_is_told_apart() -> None:
    with serving(Provider([refuses(400, "too long", "context_length_exceeded")] * 9)) as provider:
        with model_of(provider) as model, pytest.raises(ContextOverflow):
            ask(model)
        assert len(provider.requests) == 1


def test_a_pause_longer_than_the_time_left_fails_at_once() -> None:
    with serving(Provider([refuses(429, "slow down", Retry_After="60")])) as provider, model_of(provider) as model:
        began = time.monotonic()
        with pytest.raises(ModelError, match="no time is left to ask again"):
            ask(model, max_seconds=5)
        assert time.monotonic() - began < 3


class WantsOtherField(Provider):
    def __init__(self, refused: str) -> None:
        super().__init__([])
        self.refused = refused

    def refusal(self, body: dict[str, Any]) -> str | None:
        return f"Unsupported parameter: '{self.refused}' is not supported" if self.refused in body else None


@pytest.mark.parametrize(
    ("refused", "other"), [("max_tokens", "max_completion_tokens"), ("max_completion_tokens", "max_tokens")]
)
def test_the_other_name_of_the_token_field_is_tried_once_and_remembered(refused: str, other: str) -> None:
    with serving(WantsOtherField(refused)) as provider, model_of(provider, token_field=refused) as model:
        ask(model)
        ask(model)
    assert [[key for key in body if "tokens" in key] for body in provider.requests] == [[refused], [other], [other]]


def test_both_names_refused_fails() -> None:
    with serving(WantsOtherField("tokens")) as provider, model_of(provider) as model:
        provider.refusal = lambda body: "Unsupported parameter: max_tokens, max_completion_tokens"  # type: ignore[method-assign]
        with pytest.raises(ModelError, match="Unsupported parameter"):
            ask(model)
        assert len(provider.requests) == 2


def test_a_truncated_reply_is_asked_again_with_twice_the_tokens_and_paid_for() -> None:
    cut = calls('{"command":"echo li', finish="length")
    usage = {"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 100}}
    cut.body = cut.body.replace(b"data: [DONE]", b"data: " + json.dumps(usage).encode() + b"\n\ndata: [DONE]")
    provider, events, reply = once(
        cut, cut, says("whole"), max_output_tokens=100, max_output_tokens_limit=300, price=Price(1.0, 1.0, 1.0)
    )
    assert [body["max_tokens"] for body in provider.requests] == [100, 200, 300]
    assert codes(events) == ["model_truncated", "model_truncated"]
    assert (reply.message.text, reply.truncated) == ("whole", False)
    assert reply.usage == TokenUsage(input=30, output=205)
    assert reply.cost_usd == pytest.approx(235e-6)


def test_at_the_limit_a_truncated_reply_is_kept_and_its_call_marked() -> None:
    cut = calls('{"path":"big.py","content":"line1\\nli', finish="length", name="write_file")
    provider, _, reply = once(cut, cut, cut, max_output_tokens=100, max_output_tokens_limit=200)
    assert len(provider.requests) == 2
    assert (reply.truncated, reply.message.finish) == (True, "length")
    assert reply.message.calls == (
        ToolCall("k1", "write_file", '{"path":"big.py","content":"line1\\nli', complete=False),
    )


def test_where_no_longer_reply_is_granted_the_truncated_one_is_kept_and_it_is_not_tried_again(tmp_path: Path) -> None:
    cut = says("half an ans", finish="length")
    answers = [cut, refuses(400, "max_tokens is too large"), cut]
    with (
        Transcript((tmp_path / "t").open("wb")) as transcript,
        serving(Provider(answers)) as provider,
        model_of(provider, record=transcript.exchange) as model,
    ):
        events, first = ask(model)
        _, second = ask(model)
    assert codes(events) == ["model_truncated", "model_truncated"]
    assert (first.message.text, first.truncated) == ("half an ans", True)
    assert (second.message.text, second.truncated) == ("half an ans", True)
    assert [body["max_tokens"] for body in provider.requests] == [8192, 16384, 8192]
    assert len(list(responses((tmp_path / "t").read_text().splitlines()))) == 2


def test_a_call_cut_by_a_provider_that_hides_it_is_not_complete() -> None:
    _, _, reply = once(calls('{"path":"big.py","content":"line1\\nli', name="write_file"))
    assert [call.complete for call in reply.message.calls] == [False]


@pytest.mark.parametrize("echo", [True, False])
def test_reasoning_goes_back_only_where_the_profile_says_so(echo: bool) -> None:
    thinks = stream(
        chunk({"reasoning_content": "need a listing"}),
        chunk({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "bash", "arguments": "{}"}}]}),
        chunk(finish="tool_calls"),
    )
    with serving(Provider([thinks])) as provider, model_of(provider, echo_reasoning=echo) as model:
        _, reply = ask(model)
        ask(model, User("go"), reply.message, ToolResult("a", "bash", "x"))
    sent = [body.get("reasoning_content") for body in provider.requests[1]["messages"]]
    assert sent == [None, "need a listing" if echo else None, None]


def test_ids_stay_unique_over_the_turns_of_a_conversation() -> None:
    with serving(Provider([calls("{}"), calls("{}")])) as provider, model_of(provider) as model:
        _, first = ask(model)
        _, second = ask(model, User("go"), first.message, ToolResult("k1", "bash", "x"))
    assert [first.message.calls[0].id, second.message.calls[0].id] == ["k1", "c00000002"]


def test_a_silent_stream_is_given_up_and_asked_again() -> None:
    silent = stream(chunk({"content": "hm"}), done=False, stall=True)
    began = time.monotonic()
    _, events, reply = once(silent, says("fine"), idle_timeout_s=0.5)
    assert reply.message.text == "fine"
    assert codes(events) == ["model_retry"]
    assert 0.4 < time.monotonic() - began < 10


def test_text_is_shown_while_the_stream_pauses() -> None:
    silent = stream(chunk({"content": "hm"}), done=False, stall=True)
    with serving(Provider([silent])) as provider, model_of(provider) as model:
        steps = model.ask([User("go")], [], max_seconds=20)
        assert next(steps) == TextDelta("hm")
        steps.close()


@pytest.mark.parametrize("answer", [stream(chunk({"content": "hm"}), done=False, stall=True), says("x")])
def test_the_time_that_is_left_ends_it(answer: Answer) -> None:
    answer.before_s = 0.0 if answer.stall else 30.0
    with serving(Provider([answer])) as provider, model_of(provider) as model:
        began = time.monotonic()
        with pytest.raises(Stopped) as caught:
            ask(model, max_seconds=0.5)
        assert caught.value.exit_reason == ExitReason.WALL_TIME
        assert time.monotonic() - began < 5


STOPPED_IN = {
    "before the first byte": Answer(b"", before_s=30.0),
    "in the middle": stream(chunk({"content": "hm"}), done=False, stall=True),
    "in a pause": refuses(503, "overloaded", Retry_After="60"),
}


@pytest.mark.parametrize("phase", STOPPED_IN)
def test_abort_from_another_thread_ends_it_at_once(phase: str) -> None:
    with serving(Provider([STOPPED_IN[phase]])) as provider, model_of(provider) as model:

        def stop() -> None:
            provider.arrived.wait(10)
            time.sleep(0.2)
            model.abort()

        thread = threading.Thread(target=stop)
        thread.start()
        with pytest.raises(Stopped) as caught:
            ask(model, max_seconds=100)
        thread.join()
        assert caught.value.exit_reason == ExitReason.CANCELLED
        assert time.monotonic() - provider.times[0] < 5
        with pytest.raises(Stopped):
            ask(model)
        assert len(provider.requests) == 1


def test_no_reader_is_left_behind() -> None:
    silent = stream(chunk({"content": "hm"}), done=False, stall=True)
    with serving(Provider([silent])) as provider, model_of(provider) as model:
        steps = model.ask([User("go")], [], max_seconds=20)
        next(steps)
        reader = next(thread for thread in threading.enumerate() if thread.name == "model-request")
        steps.close()
        reader.join(5)
        assert not reader.is_alive()


def test_a_provider_that_is_not_there_is_named() -> None:
    with serving(Provider([])) as provider:
        url = provider.url
    with open_model(Profile(name="p", base_url=url, model="m")) as model, pytest.raises(ModelError, match="reached"):
        ask(model)


def test_every_exchange_is_recorded_in_order(tmp_path: Path) -> None:
    path = tmp_path / "transcript.jsonl"
    answers = [refuses(503, "overloaded"), says("half", finish="length"), says("whole")]
    with (
        Transcript(path.open("wb")) as transcript,
        serving(Provider(answers)) as provider,
        model_of(provider, record=transcript.exchange) as model,
    ):
        ask(model)
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert [record["kind"] for record in records] == ["request", "response"] * 3
    assert [record["outcome"] for record in records[1::2]] == ["failed", "asked_again", "used"]
    assert "overloaded" in records[1]["error"]


def test_a_recorded_run_replays_the_same(tmp_path: Path) -> None:
    path = tmp_path / "transcript.jsonl"
    body = {"choices": [{"finish_reason": "stop", "message": {"content": "as\nJSON"}}]}
    answers = [
        calls('{"command":"ls"}'),
        stream(chunk({"content": "brok"}), done=False),
        says("first", finish="length"),
        says("second"),
        Answer(json.dumps(body, indent=1).encode(), type="application/json"),
    ]
    with (
        Transcript(path.open("wb")) as transcript,
        serving(Provider(answers)) as provider,
        model_of(provider, record=transcript.exchange) as model,
    ):
        replies = [ask(model)[1] for _ in range(3)]
    profile = load_profiles({"again": {"replay": path.name}}, api_key=lambda name: None, folder=tmp_path)["again"]
    with open_model(profile) as model:
        again = [ask(model)[1] for _ in range(4)]
    assert [reply.message for reply in again[:3]] == [reply.message for reply in replies]
    assert again[3].message == Assistant(OVER)


def test_the_demo_works_beside_a_proxy_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    with open_model(load_profiles({}, api_key=lambda name: None, folder=Path())["demo"]) as model:
        _, reply = ask(model)
    assert [call.name for call in reply.message.calls] == ["todo", "bash"]
    assert reply.cost_usd == 0.0


def test_a_client_made_and_warmed_before_is_used_and_left_open() -> None:
    with serving(Provider([])) as provider:
        profile = Profile(name="p", base_url=provider.url, model="m")
        warm(profile)
        shared = connect(profile)
        assert provider.requests == []
        for _ in range(2):
            with open_model(profile, client=shared) as model:
                assert ask(model)[1].message.text == "all done"
        assert not shared.is_closed()
        shared.close()
