"""Asks a model over Chat Completions: streamed, retried by one policy, always stoppable."""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import openai
import stamina

from service.contracts import ExitReason
from service.errors import ModelError, Stopped
from service.events import Notice, TextDelta
from worker.llm.assembler import Assembled, Assembler
from worker.llm.connection import Connection, connect
from worker.llm.failures import Transient, UnsupportedTokenField
from worker.llm.messages import Assistant, Message, Reply, Steps, TokenUsage, ToolSchema
from worker.llm.pricing import cost_usd
from worker.llm.profiles import Profile
from worker.llm.protocols.table import PROTOCOLS
from worker.llm.replay import ReplayServer
from worker.llm.transcript import Exchange, Recorder

ATTEMPTS = 8
WAIT_INITIAL_S, WAIT_MAX_S, JITTER_S = 1.0, 30.0, 1.0
"""1, 2, 4, 8, 16, 30, 30 s and up to one more each: longer than the minute over which providers count rates."""
COALESCE_S, COALESCE_CHARS = 0.05, 1024

_OTHER_FIELD = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}


@contextmanager
def open_model(
    profile: Profile, *, client: openai.OpenAI | None = None, record: Recorder | None = None
) -> Iterator[ChatModel]:
    """The model of one run. A replay profile gets its loopback endpoint for as long as the context lasts.

    `client` is one that `connect(profile)` made before the fork; without it one is made here. `record` takes
    every exchange, the failed ones too (`Transcript.exchange`). ModelError when a recording cannot be read.
    """
    own = connect(profile) if client is None else client
    try:
        if profile.replay is None:
            yield ChatModel(profile, own, record)
        else:
            with ReplayServer.of(profile.replay) as server:
                yield ChatModel(profile, own.with_options(base_url=server.base_url), record)
    finally:
        if client is None:
            own.close()


class ChatModel:
    """The `Model` of worker/llm/messages.py over HTTP; one run's, one `ask` at a time."""

    def __init__(self, profile: Profile, client: openai.OpenAI, record: Recorder | None = None) -> None:
        self.profile = profile
        self._client = client
        self._record = record
        self._protocol = PROTOCOLS[profile.protocol]
        self._token_field: str = profile.token_field
        self._token_limit = profile.max_output_tokens_limit
        self._stopped = threading.Event()
        self._connection: Connection | None = None
        self._cut: Exchange | None = None
        self._lock = threading.Lock()

    def abort(self) -> None:
        with self._lock:
            self._stopped.set()
            connection = self._connection
        if connection is not None:
            connection.close()

    def ask(self, messages: Sequence[Message], tools: Sequence[ToolSchema], *, max_seconds: float) -> Steps[Reply]:
        deadline = time.monotonic() + max_seconds
        taken = frozenset(call.id for m in messages if isinstance(m, Assistant) for call in m.calls)
        fresh = partial(Assembler, taken, self._protocol.grammar(tools) if tools else None)
        body = self._body(messages, tools)
        tokens = self.profile.max_output_tokens
        reply = yield from self._retried(body, tokens, fresh, deadline)
        while reply.truncated and (more := self._more_tokens(tokens)) is not None:
            yield Notice("model_truncated", f"The reply broke off at {tokens} tokens; asking again with {more}.")
            try:
                longer = yield from self._retried(body, more, fresh, deadline)
            except ModelError as error:
                # What there is, is kept, and no more is asked for: most likely the provider grants no longer reply.
                self._token_limit = tokens
                if self._record is not None and self._cut is not None:
                    self._record(replace(self._cut, outcome="used"))
                yield Notice("model_truncated", f"{_sentence(error.detail)}; keeping the reply that broke off.")
                return reply
            # The replies that were thrown away were paid for too.
            usage = _sum(reply.usage, longer.usage)
            reply = replace(longer, usage=usage, cost_usd=cost_usd(self.profile.price, usage))
            tokens = more
        return reply

    def _more_tokens(self, tokens: int) -> int | None:
        more = min(tokens * 2, self._token_limit)
        return more if more > tokens else None

    def _body(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> dict[str, Any]:
        body: dict[str, Any] = {"model": self.profile.model}
        body |= self._protocol.request(messages, tools, echo_reasoning=self.profile.echo_reasoning)
        if self.profile.streaming:
            body["stream"] = True
            if self.profile.usage_in_stream:
                body["stream_options"] = {"include_usage": True}
        return body

    def _retried(
        self, body: dict[str, Any], tokens: int, fresh: Callable[[], Assembler], deadline: float
    ) -> Steps[Reply]:
        """One whole reply, asked for again while the failure is transient and time is left."""
        policy = stamina.retry_context(
            # Zero: stamina cannot be woken from a sleep by `abort`, so it counts and computes; the waiting is ours.
            on=lambda error: 0.0 if isinstance(error, Transient) else False,
            attempts=ATTEMPTS,
            timeout=None,
            wait_initial=WAIT_INITIAL_S,
            wait_max=WAIT_MAX_S,
            wait_jitter=0,
        )
        for attempt in policy:
            try:
                return (yield from self._with_token_field(body, tokens, fresh, deadline))
            except Transient as error:
                failure = error
            if attempt.num < ATTEMPTS:
                pause = failure.retry_after_s
                if pause is None:
                    pause = attempt.next_wait + (random.uniform(0, JITTER_S) if attempt.next_wait else 0)  # noqa: S311
                if time.monotonic() + pause >= deadline:
                    raise ModelError(f"{failure.detail} (no time is left to ask again)") from failure
                yield Notice("model_retry", f"{_sentence(failure.detail)}; asking again in {pause:.0f} s.")
                self._pause(pause)
            with attempt:
                raise failure
        raise AssertionError("the last attempt raises")

    def _pause(self, seconds: float) -> None:
        if self._stopped.wait(seconds):
            raise Stopped("told to stop")

    def _with_token_field(
        self, body: dict[str, Any], tokens: int, fresh: Callable[[], Assembler], deadline: float
    ) -> Steps[Reply]:
        """The provider may know the length limit by its other name only: tried once, then remembered."""
        try:
            return (yield from self._once({**body, self._token_field: tokens}, fresh, deadline))
        except UnsupportedTokenField:
            if self._token_field != self.profile.token_field:
                raise
            self._token_field = _OTHER_FIELD[self._token_field]
        return (yield from self._once({**body, self._token_field: tokens}, fresh, deadline))

    def _once(self, body: dict[str, Any], fresh: Callable[[], Assembler], deadline: float) -> Steps[Reply]:
        assembler = fresh()
        started = time.time()
        outcome: Literal["used", "asked_again", "failed"] = "failed"
        error: str | None = "abandoned"
        try:
            assembled = yield from self._stream(body, assembler, deadline)
            outcome, error = "used", None
            if assembled.truncated and self._more_tokens(body[self._token_field]) is not None:
                outcome = "asked_again"
        except (ModelError, Stopped) as failure:
            failure.detail = error = self._without_key(failure.detail)
            failure.args = (error,)
            raise
        finally:
            duration_ms = round((time.time() - started) * 1000)
            lines, said = tuple(assembler.lines), assembler.said()
            exchange = Exchange(body, lines, outcome, error, said, started, duration_ms)
            if outcome == "asked_again":
                self._cut = exchange
            if self._record is not None:
                self._record(exchange)
        return Reply(
            message=assembled.message,
            usage=assembled.usage,
            cost_usd=cost_usd(self.profile.price, assembled.usage),
            truncated=assembled.truncated,
            prompt_tokens=assembled.usage.input,
            request=body,
            raw=tuple(assembler.lines),
        )

    def _stream(self, body: dict[str, Any], assembler: Assembler, deadline: float) -> Steps[Assembled]:
        connection = self._open(body)
        pending = _Pending()
        failure: ModelError | None = None
        try:
            while True:
                now = time.monotonic()
                if now >= deadline:
                    raise Stopped("the running time is used up", exit_reason=ExitReason.WALL_TIME)
                piece = connection.receive(min(deadline - now, pending.due_in(now)))
                if self._stopped.is_set():
                    raise Stopped("told to stop")
                if piece:
                    pending.add(assembler.feed(piece))
                elif piece is not None:
                    break
                if text := pending.ready():
                    yield TextDelta(text)
            rest, assembled = assembler.finish()
            pending.add(rest)
        except ModelError as error:
            failure = error
        finally:
            with self._lock:
                self._connection = None
            connection.close()
        # Also before a failure: what was said is shown whole, and the notice that follows closes it.
        if text := pending.take():
            yield TextDelta(text)
        if failure is not None:
            raise failure
        return assembled

    def _open(self, body: dict[str, Any]) -> Connection:
        with self._lock:
            if self._stopped.is_set():
                raise Stopped("told to stop")
            self._connection = Connection(self._client, body)
            return self._connection

    def _without_key(self, text: str) -> str:
        key = self.profile.api_key and self.profile.api_key.get_secret_value()
        return text.replace(key, "•••") if key else text


class _Pending:
    """Text that waits to be shown, so that a fast model costs one event per 50 ms or KB and not one per token."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._chars = 0
        self._due = math.inf

    def add(self, text: str) -> None:
        if text:
            self._due = min(self._due, time.monotonic() + COALESCE_S)
            self._pieces.append(text)
            self._chars += len(text)

    def due_in(self, now: float) -> float:
        """Seconds until the text wants to be shown; infinite while there is none."""
        return max(0.0, self._due - now)

    def ready(self) -> str:
        """The text, when there is a KB of it or it has waited long enough."""
        return self.take() if self._chars >= COALESCE_CHARS or time.monotonic() >= self._due else ""

    def take(self) -> str:
        text = "".join(self._pieces)
        self._pieces, self._chars, self._due = [], 0, math.inf
        return text


def _sum(first: TokenUsage, second: TokenUsage) -> TokenUsage:
    return TokenUsage(
        input=first.input + second.input,
        cached=first.cached + second.cached,
        output=first.output + second.output,
        known=first.known and second.known,
    )


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".")
