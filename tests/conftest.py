"""Shared fixtures: the real Redis and the real engine. A missing part fails in CI and skips elsewhere."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

IN_CI = os.environ.get("CI", "") not in ("", "0", "false")


def missing(part: str) -> None:
    """A part that a test needs is not there: a failure where it must be, a reason elsewhere."""
    if IN_CI:
        pytest.fail(f"CI must have it: {part}")
    pytest.skip(part)


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """A real Valkey of this test process; tests use their own key prefix or flush what they made."""
    from service.embedded import EmbeddedRedis

    folder = Path(tempfile.mkdtemp(prefix="py-redis-"))  # short: a socket path holds 107 bytes
    try:
        with EmbeddedRedis(folder) as server:
            yield server.url
    finally:
        shutil.rmtree(folder, ignore_errors=True)
