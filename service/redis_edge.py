"""The one map from a failure of Redis to ours, for the store and the queue alike.

Raised as it is stays only what says that we asked wrongly: that is a defect.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import redis

from service.errors import Unavailable

_CANNOT_NOW = (
    redis.exceptions.OutOfMemoryError,
    redis.exceptions.ReadOnlyError,
    redis.exceptions.NoPermissionError,
    redis.exceptions.ExecAbortError,
)
_CANNOT_NOW_CODES = ("MISCONF", "NOREPLICAS", "MASTERDOWN", "BUSY ")
"""Answers by which Redis says that it cannot serve us now, rather than that we asked wrongly."""


@contextlib.contextmanager
def redis_edge(part: str) -> Iterator[None]:
    """Unavailable when Redis does not answer, or answers that it cannot do this now; `part` is who says so."""
    try:
        yield
    except (redis.ConnectionError, redis.TimeoutError) as error:
        raise Unavailable(f"the {part} does not answer; try again") from error
    except redis.ResponseError as error:
        if not isinstance(error, _CANNOT_NOW) and not any(code in str(error) for code in _CANNOT_NOW_CODES):
            raise
        raise Unavailable(f"the {part} cannot accept this now; try again") from error
