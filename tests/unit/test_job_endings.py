"""From what happened in a run to the task's final state."""

from __future__ import annotations

import pytest

from service.contracts import ExitReason, State, TaskSpec, Usage
from service.errors import (
    ContextOverflow,
    ExportFailed,
    ModelError,
    RunError,
    SandboxError,
    Stopped,
    Unavailable,
    WorkspaceError,
)
from worker.agent.loop import Outcome
from worker.job import ending_of, ending_of_error, no_patch
from worker.masking import MASK, Masker

SPEC = TaskSpec(prompt="x")
SECRET = "hunter2-hunter2"


@pytest.mark.parametrize(
    ("reason", "state"),
    [
        (ExitReason.COMPLETED, State.SUCCEEDED),
        (ExitReason.ANSWERED, State.SUCCEEDED),
        (ExitReason.TURN_LIMIT, State.FAILED),
        (ExitReason.COST_LIMIT, State.FAILED),
        (ExitReason.TOKEN_LIMIT, State.FAILED),
        (ExitReason.LOOP_DETECTED, State.FAILED),
    ],
)
def test_how_the_loop_ended_decides_the_state(reason: ExitReason, state: State) -> None:
    ending = ending_of(Outcome(reason, f"used {SECRET}", Usage()), SPEC, Masker([SECRET]))
    assert (ending.state, ending.reason, ending.summary) == (state, reason, f"used {MASK}")
    assert (ending.error is None) == (state is State.SUCCEEDED)


def test_a_limit_is_named_with_its_value() -> None:
    ending = ending_of(Outcome(ExitReason.TURN_LIMIT, "", Usage()), SPEC, Masker([]))
    assert ending.error is not None
    assert ending.error.code == "turn_limit"
    assert "max_turns = 100" in ending.error.message


@pytest.mark.parametrize(
    ("error", "state", "reason", "retryable"),
    [
        (Stopped("cancelled on request"), State.CANCELLED, ExitReason.CANCELLED, None),
        (Stopped("late", exit_reason=ExitReason.WALL_TIME), State.FAILED, ExitReason.WALL_TIME, False),
        (ModelError("provider down"), State.FAILED, ExitReason.MODEL_ERROR, True),
        (ContextOverflow("too long"), State.FAILED, ExitReason.CONTEXT_OVERFLOW, False),
        (SandboxError("gone"), State.FAILED, ExitReason.SANDBOX_ERROR, True),
        (WorkspaceError("unreadable"), State.FAILED, ExitReason.WORKSPACE_ERROR, False),
        (ExportFailed("not proven"), State.FAILED, ExitReason.EXPORT_FAILED, False),
        (RuntimeError(f"a bug with {SECRET}"), State.FAILED, ExitReason.INTERNAL_ERROR, True),
    ],
)
def test_what_an_exception_means(error: Exception, state: State, reason: ExitReason, retryable: bool | None) -> None:
    ending = ending_of_error(error, Masker([SECRET]))
    assert (ending.state, ending.reason) == (state, reason)
    assert (None if ending.error is None else ending.error.retryable) is retryable


def test_our_own_bug_tells_the_client_nothing_of_itself() -> None:
    ending = ending_of_error(RuntimeError("/secret/path"), Masker([]))
    assert ending.error is not None
    assert "/secret/path" not in ending.error.message


def test_the_message_of_an_error_is_masked_and_bounded() -> None:
    ending = ending_of_error(RunError(f"{SECRET} " + "x" * 5_000), Masker([SECRET]))
    assert ending.error is not None
    assert ending.error.message.startswith(MASK)
    assert len(ending.error.message) == 2_000


def test_no_patch_says_why_and_names_the_files_that_were_too_large() -> None:
    patch = no_patch(3, "too large", [{"path": "big.bin", "bytes": 7}])
    assert (patch.status, patch.as_of_turn, patch.reason, patch.sha256) == ("none", 3, "too large", None)
    assert [(file.path, file.bytes) for file in patch.file_list] == [("big.bin", 7)]


def test_a_disk_that_is_full_is_said_to_be() -> None:
    ending = ending_of_error(Unavailable("the disk of the service is full", code="storage_full"), Masker([]))
    assert (ending.state, ending.reason) == (State.FAILED, ExitReason.INTERNAL_ERROR)
    assert ending.error is not None
    assert (ending.error.code, ending.error.message, ending.error.retryable) == (
        "storage_full",
        "the disk of the service is full",
        True,
    )
