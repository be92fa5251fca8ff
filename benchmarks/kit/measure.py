"""Contenders measured in turn in one run, and what their medians say about the goals.

The machine is shared and noisy, so an absolute time proves nothing: each round gives every contender a turn, in an
order that moves on by one, and a verdict is a ratio of medians. Nobody pays for what the contender before has left
behind: a watch starts in a moment in which nothing else runs (on a busy machine that wait is given up), and where a
turn has several calls, the first is not counted: it finds the processor's caches full of somebody else's data.
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
from pathlib import Path
from typing import Any, Literal

QUIET_LOOKS = 5
LOOK_S = 0.001
MAX_WAIT_S = 10.0
"""For all quiet moments of one figure together."""
MAX_FIGURE_S = 28.0
"""A machine too busy for all rounds in this time gives fewer, so that `make bench` ends within three minutes."""


class QuietMoments:
    """Finds them in the number of runnable threads (proc(5), loadavg), within a budget of waiting for all turns."""

    def __init__(self, turns: int) -> None:
        self._budget = MAX_WAIT_S
        self._ahead = turns
        self._turns = self._missed = 0

    def wait(self) -> None:
        """Returns when only we have run for a few looks, or when this turn's share of the budget is used up."""
        deadline = time.monotonic() + self._budget / self._ahead
        start = time.monotonic()
        calm = 0
        while calm < QUIET_LOOKS and time.monotonic() < deadline:
            time.sleep(LOOK_S)
            calm = calm + 1 if _runnable() == 1 else 0
        self._turns += 1
        self._missed += calm < QUIET_LOOKS
        self._budget -= time.monotonic() - start
        self._ahead -= 1

    def __str__(self) -> str:
        return f"quiet at the start of {self._turns - self._missed} of {self._turns} turns"


def _runnable() -> int:
    return int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0])


class Stopwatch:
    """Adds up the time spent in its `with` blocks, so that preparation and tidying stay out."""

    def __init__(self, moments: QuietMoments | None = None) -> None:
        """With `moments` it waits for a quiet one before it starts."""
        self.seconds = 0.0
        self._moments = moments

    @contextmanager
    def running(self) -> Iterator[None]:
        if self._moments is not None:
            self._moments.wait()
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


@dataclass(frozen=True, slots=True)
class Figure:
    """What one interleaved run found."""

    title: str
    samples: dict[str, Sample]
    quiet: str


def interleave(title: str, contenders: Sequence[Contender], *, rounds: int, calls: int = 1) -> Figure:
    """`rounds` turns of `calls` for every contender; with more than one the first of a turn is not counted.

    Nor is the first round. `rounds` ≥ 2; on a busy machine they become fewer.
    """
    deadline = time.monotonic() + MAX_FIGURE_S
    seconds: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    moments = QuietMoments((1 + rounds) * len(contenders))
    for turn in range(1 + rounds):
        if turn > 2 and time.monotonic() > deadline:
            break
        first = turn % len(contenders)
        for contender in (*contenders[first:], *contenders[:first]):
            for call in range(calls):
                watch = Stopwatch(None if call else moments)
                contender.once(watch)
                if turn and (call or calls == 1):
                    seconds[contender.name].append(watch.seconds)
    return Figure(title, {name: Sample(name, tuple(taken)) for name, taken in seconds.items()}, str(moments))


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


def table(figure: Figure) -> Iterator[str]:
    """The medians, in milliseconds, with the middle half of the rounds."""
    samples = list(figure.samples.values())
    width = max(len(sample.name) for sample in samples)
    yield f"{figure.title}  (ms: median, middle half; {len(samples[0].seconds)} times; {figure.quiet})"
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


def document(about: dict[str, Any], figures: Sequence[Figure], found: Sequence[Verdict]) -> dict[str, Any]:
    """The run for `--json`: seconds of every round, and the verdicts."""
    return {
        "machine": about,
        "figures": [
            {
                "title": figure.title,
                "quiet": figure.quiet,
                "seconds": {sample.name: sample.seconds for sample in figure.samples.values()},
            }
            for figure in figures
        ],
        "verdicts": [{**asdict(verdict), "met": verdict.met} for verdict in found],
    }


def say(lines: Iterator[str]) -> None:
    """Prints at once, so that a long run shows that it goes on."""
    for line in lines:
        print(line)
    sys.stdout.flush()
