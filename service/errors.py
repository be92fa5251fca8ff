"""One error tree; each has a stable code and an HTTP status.

PatchyardError
├── RequestError                 the client's doing: 4xx
│   ├── InvalidRequest           422  (errors[] with JSON pointers)
│   │   └── NotAvailable         422  a mechanism this version does not have
│   ├── ArchiveUnsafe            422  names the member
│   ├── Unauthorized             401
│   ├── Forbidden                403
│   ├── NotFound                 404  task_not_found, workspace_not_found, no_patch …
│   ├── Stalled                  408  the body stopped coming
│   ├── Conflict                 409  not_finished, invalid_state …
│   ├── TooLarge                 413
│   └── TooMany                  429  has retry_after_s
├── Unavailable                  503  store_unavailable, no_catalogue; has retry_after_s
├── LeaseLost                    the run no longer owns its task: stop writing at once
└── RunError                     ends a run; carries the task's exit_reason
    ├── WorkspaceError           the stored workspace cannot be read or loaded
    ├── SandboxError             the box is gone, or what came out of it was not the protocol
    ├── ModelError               the provider failed for good
    │   └── ContextOverflow      the conversation does not fit, even compacted
    ├── ExportFailed             no patch could be proven
    │   └── PatchTooLarge        has the list of files
    └── Stopped                  cancelled or out of time, told from outside
"""

from __future__ import annotations

from typing import Any, ClassVar

from service.contracts import ExitReason


class PatchyardError(Exception):
    """Base of all: `code` is a stable machine word, `detail` a sentence that says what to do."""

    code: str = "internal_error"

    def __init__(self, detail: str, *, code: str | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        if code is not None:
            self.code = code


class RequestError(PatchyardError):
    status: ClassVar[int] = 400
    title: ClassVar[str] = "Bad request"
    code = "bad_request"

    def __init__(
        self,
        detail: str,
        *,
        code: str | None = None,
        errors: list[dict[str, str]] | None = None,
        extra: dict[str, Any] | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(detail, code=code)
        self.errors = errors
        """`[{"pointer": "/limits/max_turns", "detail": "…"}]`"""
        self.extra = extra or {}
        """More members of the problem document."""
        self.retry_after_s = retry_after_s


class InvalidRequest(RequestError):
    status, title, code = 422, "Invalid request", "invalid_request"


class NotAvailable(InvalidRequest):
    title, code = "Not available in this version", "not_available"


class ArchiveUnsafe(RequestError):
    status, title, code = 422, "Unsafe or unreadable archive", "archive_unsafe"


class Unauthorized(RequestError):
    status, title, code = 401, "Unauthorized", "unauthorized"


class Forbidden(RequestError):
    status, title, code = 403, "Forbidden", "forbidden"


class NotFound(RequestError):
    status, title, code = 404, "Not found", "not_found"


class Stalled(RequestError):
    status, title, code = 408, "Request timeout", "request_timeout"


class Conflict(RequestError):
    status, title, code = 409, "Conflict", "conflict"


class TooLarge(RequestError):
    status, title, code = 413, "Too large", "too_large"


class TooMany(RequestError):
    status, title, code = 429, "Too many requests", "too_many_requests"


class Unavailable(RequestError):
    status, title, code = 503, "Service unavailable", "store_unavailable"

    def __init__(self, detail: str, *, code: str | None = None, retry_after_s: int = 5) -> None:
        super().__init__(detail, code=code, retry_after_s=retry_after_s)


class LeaseLost(PatchyardError):
    code = "lease_lost"


class RunError(PatchyardError):
    """Ends a run: `exit_reason` becomes the task's, `retryable` says whether a new task may do better."""

    exit_reason: ExitReason = ExitReason.INTERNAL_ERROR
    retryable: bool = False

    def __init__(
        self,
        detail: str,
        *,
        code: str | None = None,
        exit_reason: ExitReason | None = None,
        retryable: bool | None = None,
    ) -> None:
        super().__init__(detail, code=code)
        if exit_reason is not None:
            self.exit_reason = exit_reason
        if retryable is not None:
            self.retryable = retryable
        if code is None:
            self.code = str(self.exit_reason)


class WorkspaceError(RunError):
    exit_reason = ExitReason.WORKSPACE_ERROR


class SandboxError(RunError):
    exit_reason, retryable = ExitReason.SANDBOX_ERROR, True


class ModelError(RunError):
    exit_reason, retryable = ExitReason.MODEL_ERROR, True


class ContextOverflow(ModelError):
    exit_reason, retryable = ExitReason.CONTEXT_OVERFLOW, False


class ExportFailed(RunError):
    exit_reason = ExitReason.EXPORT_FAILED


class PatchTooLarge(ExportFailed):
    exit_reason = ExitReason.PATCH_TOO_LARGE

    def __init__(self, detail: str, *, files: list[dict[str, Any]]) -> None:
        super().__init__(detail)
        self.files = files


class Stopped(RunError):
    """Someone outside the run ended it: `exit_reason` is cancelled or wall_time."""

    exit_reason = ExitReason.CANCELLED
