"""Control: what stops a run, how soon, and what may still be done afterwards."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import pytest

from service.contracts import ExitReason
from service.errors import LeaseLost, Stopped, Unavailable
from worker import control as control_module
from worker.control import Control, HandedBack


@dataclass
class Signals:
    cancel_requested: bool = False


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_module, "POLL_S", 0.01)


def blocked_until_interrupted(control: Control) -> None:
    released = threading.Event()
    with control.interrupting(released.set):
        assert released.wait(5)


def test_a_cancel_interrupts_what_blocks_and_ends_the_run() -> None:
    signals = Signals()
    with Control(lambda: signals, wall_time_s=60, drain=threading.Event()) as control:
        control.check()
        signals.cancel_requested = True
        blocked_until_interrupted(control)
        with pytest.raises(Stopped) as stopped:
            control.check()
        assert stopped.value.exit_reason is ExitReason.CANCELLED
        control.check_lease()


def test_the_wall_time_interrupts_too() -> None:
    with Control(lambda: Signals(), wall_time_s=0.05, drain=threading.Event()) as control:
        blocked_until_interrupted(control)
        with pytest.raises(Stopped) as stopped:
            control.check()
        assert stopped.value.exit_reason is ExitReason.WALL_TIME
        assert control.remaining_s() == 0


def test_a_drain_hands_the_task_back() -> None:
    drain = threading.Event()
    with Control(lambda: Signals(), wall_time_s=60, drain=drain) as control:
        drain.set()
        blocked_until_interrupted(control)
        with pytest.raises(HandedBack):
            control.check()


def test_a_lost_lease_forbids_even_the_salvage() -> None:
    def lost() -> Signals:
        raise LeaseLost("another run owns it")

    with Control(lost, wall_time_s=60, drain=threading.Event()) as control:
        blocked_until_interrupted(control)
        with pytest.raises(LeaseLost):
            control.check()
        with pytest.raises(LeaseLost):
            control.check_lease()


def test_a_lost_lease_overrules_an_earlier_cancel() -> None:
    answers = iter([Signals(cancel_requested=True)])

    def renew() -> Signals:
        try:
            return next(answers)
        except StopIteration:
            raise LeaseLost("gone") from None

    with Control(renew, wall_time_s=60, drain=threading.Event()) as control:
        control._thread.join(5)
        with pytest.raises(LeaseLost):
            control.check_lease()


def test_a_store_that_is_away_is_tolerated_until_the_lease_nears_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def away() -> Signals:
        raise Unavailable("redis is down")

    monkeypatch.setattr(control_module, "STOP_WRITING_S", 0.1)
    with Control(away, wall_time_s=60, drain=threading.Event()) as control:
        control.check()
        blocked_until_interrupted(control)
        with pytest.raises(LeaseLost, match="has not answered in time"):
            control.check()


def test_a_stop_that_came_before_interrupts_at_once() -> None:
    with Control(lambda: Signals(), wall_time_s=0, drain=threading.Event()) as control:
        with pytest.raises(Stopped):
            control.check()
        blocked_until_interrupted(control)
