"""What a run may still spend: turns, tokens, money; with a warning when four fifths of one are gone."""

from __future__ import annotations

from collections.abc import Callable

from service.contracts import ExitReason, Limits, Usage
from worker.llm.messages import Reply

WARN_AT = 0.8


class Budget:
    """Counts one run against its limits. Wall time is ended from outside (worker/control.py), warned of here.

    `seconds_left` = running time that is left.
    """

    def __init__(self, limits: Limits, *, seconds_left: Callable[[], float]) -> None:
        self.usage = Usage()
        self.seconds_left = seconds_left
        self._limits = limits
        self._guessed_tokens = 0
        self._warned: set[str] = set()

    def charge(self, reply: Reply, estimate: int, *, turn: bool = True) -> None:
        """Adds one model call. Where the provider counted nothing, `estimate` (tokens) counts for the limit.

        `turn` is False for a call beside the conversation: it costs, but is no turn.
        """
        used, known = self.usage, reply.usage
        cost = used.cost_usd if reply.cost_usd is None else (used.cost_usd or 0.0) + reply.cost_usd
        if not known.known:
            self._guessed_tokens += estimate
        self.usage = Usage(
            turns=used.turns + turn,
            input_tokens=used.input_tokens + known.input,
            cached_tokens=used.cached_tokens + known.cached,
            output_tokens=used.output_tokens + known.output,
            cost_usd=cost,
            unknown_calls=used.unknown_calls + (not known.known),
        )

    @property
    def _tokens(self) -> int:
        return self.usage.input_tokens + self.usage.output_tokens + self._guessed_tokens

    def exhausted(self) -> ExitReason | None:
        """The limit that forbids another model call."""
        limits, cost = self._limits, self.usage.cost_usd or 0.0
        if self.usage.turns >= limits.max_turns:
            return ExitReason.TURN_LIMIT
        # A limit of 0 permits what costs nothing.
        if limits.max_cost_usd is not None and cost > 0 and cost >= limits.max_cost_usd:
            return ExitReason.COST_LIMIT
        if limits.max_tokens is not None and self._tokens >= limits.max_tokens:
            return ExitReason.TOKEN_LIMIT
        return None

    @property
    def last_turn(self) -> bool:
        return self.usage.turns == self._limits.max_turns - 1

    def warnings(self) -> list[str]:
        """One sentence for each limit that has come near since the last call."""
        limits = self._limits
        cost = self.usage.cost_usd or 0.0
        wall = limits.wall_time_s - self.seconds_left()
        shares: list[tuple[str, float, float | None, str]] = [
            ("turns", self.usage.turns, limits.max_turns, f"{self.usage.turns} of {limits.max_turns} turns"),
            ("tokens", self._tokens, limits.max_tokens, f"{self._tokens:,} of {limits.max_tokens or 0:,} tokens"),
            ("cost", cost, limits.max_cost_usd, f"${cost:.2f} of ${limits.max_cost_usd or 0:.2f}"),
            ("time", wall, limits.wall_time_s, f"{wall:.0f} of {limits.wall_time_s} seconds"),
        ]
        near = [
            (kind, text)
            for kind, used, limit, text in shares
            if limit and used >= WARN_AT * limit and kind not in self._warned
        ]
        self._warned.update(kind for kind, _ in near)
        return [f"{text} are used; the run ends at the limit." for _, text in near]
