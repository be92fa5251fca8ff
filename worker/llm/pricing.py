"""What a model call cost."""

from __future__ import annotations

from dataclasses import dataclass

from worker.llm.messages import TokenUsage


@dataclass(frozen=True, slots=True)
class Price:
    """USD per million tokens."""

    input: float
    output: float
    cached: float
    """Of the part of the input that the provider had in its cache."""


def cost_usd(price: Price | None, usage: TokenUsage) -> float | None:
    """USD of one call; None, never 0, while the price or the usage is unknown."""
    if price is None or not usage.known:
        return None
    fresh = usage.input - usage.cached
    return (fresh * price.input + usage.cached * price.cached + usage.output * price.output) / 1_000_000
