"""Contenders measured in turn in one run, and what their medians say about the goals.

The machine is shared and noisy, so an absolute time proves nothing: each round runs every contender once, in an order
that moves on by one, and a verdict is a ratio of medians.
"""

from __future__ import annotations

import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Literal


class Stopwatch:
    """Adds up the time spent in its `with` blocks, so that preparation and tidying stay out."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - start


@dataclass(frozen=True, slots=True)
class Contender:
    name: str
    once: Callable[[Stopwatch], None]
    """Does it one time under the watch; raises when what came out is not right."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The seconds of one contender."""

    name: str
    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def quartiles(self) -> tuple[float, float]:
        low, _, high = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return low, high


def interleave(contenders: Sequence[Contender], *, rounds: int, warmups: int = 1) -> dict[str, Sample]:
    """Every contender once a round; the first `warmups` rounds are not counted. `rounds` ≥ 2."""
    seconds: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    for turn in range(warmups + rounds):
        first = turn % len(contenders)
        for contender in (*contenders[first:], *contenders[:first]):
            watch = Stopwatch()
            contender.once(watch)
            if turn >= warmups:
                seconds[contender.name].append(watch.seconds)
    return {name: Sample(name, tuple(taken)) for name, taken in seconds.items()}


@dataclass(frozen=True, slots=True)
class Verdict:
    """One line of goals.md against what was measured."""

    figure: str
    """P1, P2, …"""
    what: str
    value: float
    sense: Literal["at most", "at least"]
    goal: float
    unit: str

    @property
    def met(self) -> bool:
        return self.value <= self.goal if self.sense == "at most" else self.value >= self.goal


def at_most(figure: str, ours: Sample, peer: Sample, goal: float) -> Verdict:
    """Ours costs at most `goal` times what the peer does."""
    return Verdict(figure, f"{ours.name} / {peer.name}", ours.median / peer.median, "at most", goal, "×")


def faster(figure: str, ours: Sample, peer: Sample, goal: float) -> Verdict:
    """Ours is at least `goal` times faster than the peer."""
    return Verdict(figure, f"{ours.name} vs {peer.name}", peer.median / ours.median, "at least", goal, "× faster")


def growth(figure: str, what: str, grown_bytes: int, goal_mb: float) -> Verdict:
    """Memory grew by at most `goal_mb` MiB."""
    return Verdict(figure, what, grown_bytes / (1 << 20), "at most", goal_mb, "MiB")


def machine() -> dict[str, Any]:
    """What the run took place on; no name of a host, user or path."""
    return {
        "cpus": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load": [round(value, 1) for value in os.getloadavg()],
    }


def table(title: str, samples: Sequence[Sample]) -> Iterator[str]:
    """The medians, in milliseconds, with the middle half of the rounds."""
    width = max(len(sample.name) for sample in samples)
    yield f"{title}  (ms: median, middle half; {len(samples[0].seconds)} rounds)"
    for sample in samples:
        low, high = sample.quartiles
        yield f"  {sample.name:<{width}}  {sample.median * 1e3:9.2f}   {low * 1e3:.2f}–{high * 1e3:.2f}"


def verdicts(found: Sequence[Verdict]) -> Iterator[str]:
    width = max(len(verdict.what) for verdict in found)
    for verdict in found:
        said = f"{verdict.value:.2f} {verdict.unit}"
        wanted = f"goal {verdict.sense} {verdict.goal:g}"
        met = "met" if verdict.met else "MISSED"
        yield f"  {verdict.figure:<4}{verdict.what:<{width}}  {said:>16}  {wanted:<19}{met}"


def document(about: dict[str, Any], samples: dict[str, Sequence[Sample]], found: Sequence[Verdict]) -> dict[str, Any]:
    """The run for `--json`: seconds of every round, and the verdicts."""
    return {
        "machine": about,
        "seconds": {title: {sample.name: sample.seconds for sample in group} for title, group in samples.items()},
        "verdicts": [{**asdict(verdict), "met": verdict.met} for verdict in found],
    }


def say(lines: Iterator[str]) -> None:
    """Prints at once, so that a long run shows that it goes on."""
    for line in lines:
        print(line)
    sys.stdout.flush()
