"""Whom the end of a call spares, seen by a process of its own that plays the server."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[2]


def told(script: str) -> list[str]:
    """The lines of a process that plays the server."""
    begin = """
        import os, signal, subprocess, sys, time
        from sandbox_image.toolserver import processes
        from sandbox_image.toolserver.processes import Children, ChildSignal, adopt_orphans
        adopt_orphans()
        children = Children(ChildSignal())
        def sleeper():
            return subprocess.Popen(["sleep", "300"]).pid
        def alive(pid):
            return os.path.exists(f"/proc/{pid}")
    """
    code = textwrap.dedent(begin) + textwrap.dedent(script)
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    return ran.stdout.splitlines()


def test_a_spared_child_outlives_the_others_until_it_is_forsaken() -> None:
    assert told("""
        spared, other = sleeper(), sleeper()
        children.spare(spared)
        print(children.kill_all() == {other: signal.SIGKILL}, alive(spared), alive(other))
        print(children.spared_status(spared))
        children.forsake(spared)
        print(children.kill_all() == {spared: signal.SIGKILL}, alive(spared))
    """) == ["True True False", "None", "True False"]


def test_how_a_spared_child_ended_is_told_once_and_its_pid_is_free_again() -> None:
    assert told("""
        child = subprocess.Popen(["sh", "-c", "exit 3"])  # kept: Python reaps one it forgets
        spared = child.pid
        children.spare(spared)
        while (status := children.spared_status(spared)) is None:
            children.reap()
        print(os.waitstatus_to_exitcode(status), children.reap())
    """) == ["3 ({}, False)"]


def test_where_strays_cannot_be_picked_out_in_time_the_spared_go_too() -> None:
    assert told("""
        processes._KILL_WAIT_S = 0.4
        picked = Children._strays
        def always_one_more(self):
            return picked(self) or ([sleeper()] if self._spared else [])
        Children._strays = always_one_more
        spared = sleeper()
        children.spare(spared)
        children.kill_all()
        print(alive(spared), os.waitstatus_to_exitcode(children.spared_status(spared)))
    """) == ["False -9"]
