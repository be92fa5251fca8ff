"""When a model's provider fails for good, another profile answers for the rest of the run."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

import openai

from service.errors import ModelError
from service.events import Notice
from worker.llm.client import open_model
from worker.llm.messages import Message, Model, Reply, Steps, ToolSchema
from worker.llm.profiles import Profile
from worker.llm.transcript import Recorder


@contextmanager
def open_models(
    profiles: Sequence[Profile], *, clients: Mapping[str, openai.OpenAI], record: Recorder | None = None
) -> Iterator[Model]:
    """The model of one run: the first of `profiles`, and behind it those that stand in for it, in their order.

    `clients` by profile name and `record` are as for `open_model`.
    """
    with ExitStack() as stack:
        models = [
            stack.enter_context(open_model(profile, client=clients.get(profile.name), record=record))
            for profile in profiles
        ]
        yield FallbackModel(models)


class FallbackModel:
    """Asks the first model until it fails for good in a way another provider may not; then the next one, and so on.

    It does not go back: a run would pay the whole round of retries at every turn. What a request is refused for
    (the key, the content, a conversation that is too long) is refused here, too: `retryable` tells the two apart.
    """

    def __init__(self, models: Sequence[Model]) -> None:
        self._models = list(models)
        self._at = 0

    @property
    def profile(self) -> Profile:
        """Of the model that answers now."""
        return self._models[self._at].profile

    def ask(self, messages: Sequence[Message], tools: Sequence[ToolSchema], *, max_seconds: float) -> Steps[Reply]:
        deadline = time.monotonic() + max_seconds
        while True:
            try:
                left = deadline - time.monotonic()
                return (yield from self._models[self._at].ask(messages, tools, max_seconds=left))
            except ModelError as error:
                if not error.retryable or self._at + 1 == len(self._models):
                    raise
                failed, self._at = self.profile.name, self._at + 1
                reason = error.detail.rstrip(".")
                yield Notice("model_fallback", f"{failed} failed: {reason}; {self.profile.name} goes on in its place.")

    def abort(self) -> None:
        for model in self._models:
            model.abort()
