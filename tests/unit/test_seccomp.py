"""The seccomp profile says what scripts/seccomp.py means, and no filter is undone by the plain allow list."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "sandbox_image" / "seccomp.json").read_text(encoding="utf-8")
RULES: list[dict[str, Any]] = json.loads(TEXT)["syscalls"]
PLAIN = {
    name for rule in RULES if rule["action"] == "SCMP_ACT_ALLOW" and not rule.get("args") for name in rule["names"]
}
FILTERED = {name for rule in RULES if rule.get("args") for name in rule["names"]}


def filters(name: str) -> set[tuple[tuple[int, int], ...]]:
    """The allowed argument values of a call: for each rule its (position, value) pairs."""
    return {
        tuple((arg["index"], arg["value"]) for arg in rule["args"])
        for rule in RULES
        if name in rule["names"] and rule.get("args")
    }


def test_the_file_is_what_the_script_writes() -> None:
    assert runpy.run_path(str(ROOT / "scripts" / "seccomp.py"))["text"]() == TEXT


def test_a_filtered_call_is_not_allowed_plainly_as_well() -> None:
    assert not PLAIN & FILTERED


@pytest.mark.parametrize(
    "name", ["prlimit64", "sched_setaffinity", "sched_setscheduler", "sched_setparam", "sched_setattr"]
)
def test_limits_and_scheduling_only_of_the_caller(name: str) -> None:
    assert filters(name) == {((0, 0),)}


def test_priorities_only_of_the_caller() -> None:
    assert filters("setpriority") == {((0, 0), (1, 0))}
    assert filters("ioprio_set") == {((0, 1), (1, 0))}


def test_sockets_are_local_ip_and_route_netlink() -> None:
    ip = {((0, family), (2, protocol)) for family in (2, 10) for protocol in (0, 6, 17)}
    assert filters("socket") == {((0, 1),), ((0, 16), (2, 0)), *ip}
    assert filters("socketpair") == {((0, 1),)}


@pytest.mark.parametrize(
    "name",
    [
        "ptrace", "process_vm_readv", "process_vm_writev", "kcmp", "pidfd_getfd", "process_madvise", "bpf", "keyctl",
        "perf_event_open", "userfaultfd", "memfd_secret", "mount", "fsopen", "open_tree", "move_mount", "unshare",
        "setns", "chroot", "pivot_root", "open_by_handle_at", "name_to_handle_at", "io_uring_enter", "modify_ldt",
        "init_module", "finit_module", "kexec_load", "syslog", "vmsplice", "fanotify_init", "clone", "clone3",
    ],
)  # fmt: skip
def test_calls_that_are_not_simply_allowed(name: str) -> None:
    assert name not in PLAIN
