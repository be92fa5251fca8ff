"""A model that says what it was told to: for tests of everything above this room."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

from service.errors import RunError, Stopped
from service.events import TextDelta
from worker.llm.messages import Assistant, Message, Reply, Steps, TokenUsage, ToolSchema
from worker.llm.pricing import cost_usd
from worker.llm.profiles import Profile


class ScriptedModel:
    """Answers request N with the script's N-th entry: a message, a whole reply, or an error to raise.

    `asked` keeps the conversation of each request. A script that is used up ends in an AssertionError: the
    test asked for more than it foresaw.
    """

    def __init__(
        self,
        script: Iterable[Assistant | Reply | RunError],
        *,
        profile: Profile | None = None,
        usage: TokenUsage | None = None,
    ) -> None:
        self.profile = profile or Profile(name="scripted", base_url="", model="scripted")
        self._script = iter(script)
        self._usage = usage or TokenUsage(input=100, output=10)
        self._stopped = threading.Event()
        self.asked: list[tuple[Message, ...]] = []

    def abort(self) -> None:
        self._stopped.set()

    def ask(self, messages: Sequence[Message], tools: Sequence[ToolSchema], *, max_seconds: float) -> Steps[Reply]:
        if self._stopped.is_set() or max_seconds <= 0:
            raise Stopped("told to stop")
        self.asked.append(tuple(messages))
        entry = next(self._script, None)
        if entry is None:
            raise AssertionError(f"the script has no reply for request {len(self.asked)}")
        if isinstance(entry, RunError):
            raise entry
        reply = entry if isinstance(entry, Reply) else self._reply(entry)
        if reply.message.text:
            yield TextDelta(reply.message.text)
        return reply

    def _reply(self, message: Assistant) -> Reply:
        cost = cost_usd(self.profile.price, self._usage)
        return Reply(message, self._usage, cost, truncated=message.finish == "length")
