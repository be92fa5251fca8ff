"""Another provider goes on where one fails for good."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
import stamina
from llm_provider import Answer, Provider, calls, refuses, says, serving

from service.contracts import ExitReason
from service.errors import ContextOverflow, ModelError, Stopped
from service.events import Event, Notice
from worker.llm.client import ATTEMPTS
from worker.llm.fallback import open_models
from worker.llm.messages import Message, Model, Reply, ToolResult, ToolSchema, User
from worker.llm.pricing import Price
from worker.llm.profiles import Profile

TOOLS = [ToolSchema("bash", "Runs a command.", {"type": "object"})]
DOWN = refuses(503, "overloaded")


@pytest.fixture(autouse=True)
def no_backoff() -> Iterator[None]:
    with stamina.set_testing(True, attempts=ATTEMPTS, cap=True):
        yield


@contextmanager
def chain(*answers: list[Answer]) -> Iterator[tuple[Model, list[Provider]]]:
    """A model with profiles p0, p1 …, each at a provider of its own; output costs $ 1, 2 … per million tokens."""
    with ExitStack() as stack:
        providers = [stack.enter_context(serving(Provider(each))) for each in answers]
        profiles = [
            Profile(name=f"p{at}", base_url=provider.url, model=f"m{at}", price=Price(0.0, float(at + 1), 0.0))
            for at, provider in enumerate(providers)
        ]
        yield stack.enter_context(open_models(profiles, clients={})), providers


def ask(model: Model, *messages: Message, max_seconds: float = 20) -> tuple[list[Event], Reply]:
    steps = model.ask(messages or (User("go"),), TOOLS, max_seconds=max_seconds)
    events: list[Event] = []
    while True:
        try:
            events.append(next(steps))
        except StopIteration as done:
            return events, done.value


def test_when_the_retries_are_used_up_the_next_profile_answers_at_its_own_price_and_goes_on() -> None:
    with chain([DOWN] * 50, [calls("{}"), says("done")]) as (model, providers):
        events, first = ask(model)
        assert [event.code for event in events if isinstance(event, Notice)] == [
            *["model_retry"] * (ATTEMPTS - 1),
            "model_fallback",
        ]
        assert events[-1] == Notice(
            "model_fallback", "p0 failed: the model's provider answered 503: overloaded; p1 goes on in its place."
        )
        _, second = ask(model, User("go"), first.message, ToolResult("k1", "bash", "x"))
        assert (second.message.text, second.cost_usd) == ("done", pytest.approx(5 * 2e-6))
        assert [len(provider.requests) for provider in providers] == [ATTEMPTS, 2]
        assert [body["model"] for body in providers[1].requests] == ["m1", "m1"]
        assert model.profile.name == "p1"


def test_each_fallback_in_turn_and_the_last_one_s_failure_is_the_run_s() -> None:
    with chain([DOWN] * 50, [DOWN] * 50, [refuses(500, "broken")] * 50) as (model, providers):
        with pytest.raises(ModelError, match="answered 500: broken") as caught:
            ask(model)
        assert caught.value.exit_reason is ExitReason.MODEL_ERROR
        assert [len(provider.requests) for provider in providers] == [ATTEMPTS] * 3


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (refuses(401, "bad key"), ModelError),
        (refuses(429, "You exceeded your current quota", "insufficient_quota"), ModelError),
        (refuses(400, "too long", "context_length_exceeded"), ContextOverflow),
    ],
)
def test_what_is_no_failure_of_the_provider_is_not_taken_elsewhere(answer: Answer, error: type[ModelError]) -> None:
    with chain([answer] * 9, [says("fine")]) as (model, providers):
        with pytest.raises(error):
            ask(model)
        assert [len(provider.requests) for provider in providers] == [1, 0]


def test_a_pause_nobody_waits_for_is_a_reason_to_go_elsewhere_at_once() -> None:
    with chain([refuses(429, "weekly limit", Retry_After="86400")], [says("fine")]) as (model, _):
        assert ask(model)[1].message.text == "fine"


def test_the_time_that_is_left_is_one_for_all() -> None:
    with chain([refuses(503, "slow", Retry_After="60")], [Answer(b"", before_s=30.0)]) as (model, _):
        with pytest.raises(Stopped) as caught:
            ask(model, max_seconds=0.7)
        assert caught.value.exit_reason is ExitReason.WALL_TIME


def test_abort_reaches_the_one_that_answers_now_and_those_behind_it() -> None:
    with chain([DOWN] * 50, [says("fine")]) as (model, providers):
        model.abort()
        with pytest.raises(Stopped):
            ask(model)
        assert [provider.requests for provider in providers] == [[], []]
