"""A workspace that its box does not take is the workspace's failure, told in the box's words, not ours."""

from __future__ import annotations

import io
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any, cast

import pytest
from store_kit import new_task

from service.errors import WorkspaceError
from worker.control import Control
from worker.job import Run
from worker.sandbox.base import ToolFailure


class Full:
    """A box of many small files more than it has pages for."""

    def claim(self, task: str, *, deadline_s: float) -> None: ...
    def close(self) -> None: ...
    def load(self, tar: object) -> None:
        raise ToolFailure("no_space", "a/b: no space left in the sandbox")


def test_a_workspace_that_does_not_fit_is_a_workspace_error(monkeypatch: pytest.MonkeyPatch) -> None:
    parts: Any = SimpleNamespace(
        blobs=None,
        store=SimpleNamespace(renew=lambda _: SimpleNamespace(cancel_requested=False)),
        provider=SimpleNamespace(open=lambda _: Full()),
        settings=SimpleNamespace(sandbox_image="none"),
    )
    control = cast("Control", SimpleNamespace(check=lambda: None, check_lease=lambda: None, remaining_s=lambda: 60.0))
    run = Run(parts, cast("Any", SimpleNamespace(run=1)), new_task("red"), control)
    run._tar = io.BytesIO(bytes(1024))
    monkeypatch.setattr(run, "_open_workspace", lambda _: None)
    with ExitStack() as stack, pytest.raises(WorkspaceError, match="no space left in the sandbox"):
        run._prepared_box(stack)
