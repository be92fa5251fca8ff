"""What a task is: the request, the answer, its states and limits. Frozen data, no I/O.

Field names, states and transitions are the fixed HTTP contract (docs/api.md); additions are welcome,
renames are not. Text that a client sends is checked here once (`Text`), so that nothing behind this
module ever meets a lone surrogate or a NUL.
"""

from __future__ import annotations

import json
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, model_validator
from ulid import ULID


def new_id(prefix: Literal["task", "ws", "apr", "key"]) -> str:
    """A new ULID with its kind in front: `task_01J…`."""
    return f"{prefix}_{ULID()}"


def _clean_text(value: str) -> str:
    if "\0" in value:
        raise ValueError("must not contain NUL characters")
    if not value.isascii() and any("\ud800" <= ch <= "\udfff" for ch in value):
        raise ValueError("must not contain lone surrogates; send valid Unicode")
    return value


Text = Annotated[str, AfterValidator(_clean_text)]
"""A string without NUL and lone surrogates."""
ShortText = Annotated[Text, StringConstraints(min_length=1, max_length=200)]
Command = Annotated[Text, StringConstraints(min_length=1, max_length=20_000)]
Name = Annotated[Text, StringConstraints(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
TeamName = Annotated[Text, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]{0,39}$")]
WorkspaceId = Annotated[Text, StringConstraints(max_length=64)]
EnvName = Annotated[Text, StringConstraints(max_length=128, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


class Frozen(BaseModel):
    """Base of every contract: immutable, and an unknown field is an error that names it."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


# ---------------------------------------------------------------------------------------------- states


class State(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


TERMINAL = frozenset({State.SUCCEEDED, State.FAILED, State.CANCELLED})

TRANSITIONS: dict[State, frozenset[State]] = {
    State.QUEUED: frozenset({State.RUNNING, State.CANCELLED, State.FAILED}),
    State.RUNNING: frozenset({State.WAITING, State.QUEUED, *TERMINAL}),
    State.WAITING: frozenset({State.QUEUED, State.RUNNING, State.FAILED, State.CANCELLED}),
    State.SUCCEEDED: frozenset(),
    State.FAILED: frozenset(),
    State.CANCELLED: frozenset(),
}
"""The only permitted transitions; terminal states never change."""

MAX_RUNS = 3
"""How often a task may be started before a lost worker ends it as `worker_lost` (docs/architecture.md)."""


class Phase(StrEnum):
    PREPARING = "preparing"
    SETUP = "setup"
    AGENT = "agent"
    VERIFYING = "verifying"
    EXPORTING = "exporting"
    ATTEMPTS = "attempts"


class ExitReason(StrEnum):
    COMPLETED = "completed"
    ANSWERED = "answered"
    TURN_LIMIT = "turn_limit"
    COST_LIMIT = "cost_limit"
    TOKEN_LIMIT = "token_limit"  # noqa: S105
    WALL_TIME = "wall_time"
    WAIT_TIMEOUT = "wait_timeout"
    VERIFY_FAILED = "verify_failed"
    LOOP_DETECTED = "loop_detected"
    MODEL_ERROR = "model_error"
    CONTEXT_OVERFLOW = "context_overflow"
    SETUP_FAILED = "setup_failed"
    WORKSPACE_ERROR = "workspace_error"
    SANDBOX_ERROR = "sandbox_error"
    EXPORT_FAILED = "export_failed"
    PATCH_TOO_LARGE = "patch_too_large"
    CANCELLED = "cancelled"
    WORKER_LOST = "worker_lost"
    INTERNAL_ERROR = "internal_error"


class Role(StrEnum):
    SUBMIT = "submit"
    REVIEW = "review"
    ADMIN = "admin"


# --------------------------------------------------------------------------------------------- request


class GitSource(Frozen):
    url: Annotated[Text, StringConstraints(min_length=1, max_length=2_000)]
    ref: Annotated[Text, StringConstraints(max_length=200)] | None = None
    depth: int | None = Field(default=None, ge=1)


class WorkspaceRef(Frozen):
    """Where the workspace comes from: exactly one of an upload, a git repository, another task's result."""

    id: WorkspaceId | None = None
    git: GitSource | None = None
    task: WorkspaceId | None = None

    @model_validator(mode="after")
    def _exactly_one(self) -> WorkspaceRef:
        if sum(source is not None for source in (self.id, self.git, self.task)) != 1:
            raise ValueError("give exactly one of id, git, task")
        return self


class Limits(Frozen):
    max_turns: int = Field(default=100, ge=1, le=10_000)
    max_cost_usd: float | None = Field(default=3.00, ge=0, le=10_000)
    max_tokens: int | None = Field(default=None, ge=1, le=1_000_000_000)
    wall_time_s: int = Field(default=3600, ge=1, le=86_400)
    command_timeout_s: int = Field(default=120, ge=1, le=600)
    verify_rounds: int = Field(default=2, ge=0, le=10)
    wait_timeout_s: int = Field(default=86_400, ge=1, le=604_800)


class Resources(Frozen):
    cpus: float = Field(default=1.0, ge=0.01, le=64)
    """At least what an engine can limit to: less rounds to 0, which it takes for no limit."""
    memory_mb: int = Field(default=2048, ge=128, le=262_144)
    disk_mb: int = Field(default=1024, ge=64, le=262_144)
    pids: int = Field(default=512, ge=32, le=32_768)


class EnvValue(Frozen):
    value: Annotated[Text, StringConstraints(max_length=32_768)]
    phases: tuple[Literal["setup", "agent", "verify"], ...] = ("setup", "agent", "verify")


class Network(Frozen):
    setup: Literal["none", "allowlist"] = "none"
    agent: Literal["none", "allowlist"] = "none"
    verify: Literal["none", "allowlist"] = "none"


class VerifyCommand(Frozen):
    command: Command
    gate: Literal["strict", "no_new_failures", "inform"] = "strict"
    timeout_s: int = Field(default=600, ge=1, le=3600)


class PermissionRule(Frozen):
    tool: ShortText
    match: Annotated[Text, StringConstraints(max_length=1_000)] | None = None
    action: Literal["allow", "ask", "deny"]


class Permissions(Frozen):
    default: Literal["allow", "ask", "deny"] = "allow"
    rules: tuple[PermissionRule, ...] = Field(default=(), max_length=200)


class Webhook(Frozen):
    url: Annotated[Text, StringConstraints(min_length=1, max_length=2_000)]
    secret: Annotated[Text, StringConstraints(max_length=1_000)] | None = None
    events: tuple[Literal["succeeded", "failed", "cancelled", "waiting", "review_pending"], ...] = ()


PathPattern = Annotated[Text, StringConstraints(min_length=1, max_length=1_024)]
Label = Annotated[Text, StringConstraints(max_length=200)]


class TaskSpec(Frozen):
    """A task as a client asks for it (`POST /v1/tasks`)."""

    prompt: Annotated[Text, StringConstraints(min_length=1, max_length=100_000)]
    title: ShortText | None = None
    labels: dict[Name, Label] = Field(default_factory=dict, max_length=50)
    priority: Literal["low", "normal", "high"] = "normal"
    workspace: WorkspaceRef | None = None
    model: Name = "default"
    image: ShortText | None = None
    setup: tuple[Command, ...] = Field(default=(), max_length=50)
    verify: tuple[VerifyCommand, ...] = Field(default=(), max_length=50)
    network: Network = Network()
    env: dict[EnvName, EnvValue | Annotated[Text, StringConstraints(max_length=32_768)]] = Field(
        default_factory=dict, max_length=100
    )
    limits: Limits = Limits()
    resources: Resources = Resources()
    permissions: Permissions = Permissions()
    dry_run_tools: bool = False
    attempts: int = Field(default=1, ge=1, le=16)
    protected_paths: tuple[PathPattern, ...] = Field(default=(), max_length=200)
    allowed_paths: tuple[PathPattern, ...] = Field(default=(), max_length=200)
    webhook: Webhook | None = None

    def env_for(self, phase: Literal["setup", "agent", "verify"]) -> dict[str, str]:
        """The variables a phase sees."""
        return {
            name: value if isinstance(value, str) else value.value
            for name, value in self.env.items()
            if isinstance(value, str) or phase in value.phases
        }

    def env_to_seal(self) -> bytes | None:
        """The `env` of the request as JSON, to be sealed; None without any."""
        return json.dumps(self.model_dump(mode="json", include={"env"})["env"]).encode("ascii") if self.env else None

    def without_env_values(self) -> TaskSpec:
        """The task as it rests in the store: names and phases of `env` stay, every value is empty."""
        blank: dict[str, EnvValue | str] = {
            name: "" if isinstance(value, str) else value.model_copy(update={"value": ""})
            for name, value in self.env.items()
        }
        return self.model_copy(update={"env": blank})

    def with_env(self, unsealed: bytes) -> TaskSpec:
        """The task with the values that `env_to_seal` gave."""
        return TaskSpec.model_validate({**self.model_dump(), "env": json.loads(unsealed)})


# ---------------------------------------------------------------------------------------------- answer


class Usage(Frozen):
    turns: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = None
    """None while the profile has no prices: unknown is never shown as 0."""
    unknown_calls: int = 0


class Flag(Frozen):
    """One deterministic finding about a patch; `path` is escaped as by service.names.escape_path."""

    kind: str
    path: str
    detail: str = ""


class PatchFile(Frozen):
    path: str
    status: Literal["added", "modified", "deleted", "type_changed"] | None = None
    """None, like all but `bytes`, in the list of a patch that was too large to be made."""
    additions: int | None = None
    """None for a binary file."""
    deletions: int | None = None
    old_mode: str | None = None
    new_mode: str | None = None
    bytes: int | None = None
    """Size of the new version, where the patch was too large."""


class PatchInfo(Frozen):
    status: Literal["complete", "salvaged", "none"]
    as_of_turn: int
    sha256: str | None
    bytes: int
    files: int
    additions: int
    deletions: int
    flags: tuple[Flag, ...] = ()
    applies_cleanly: bool = False
    reproduces_tree: bool = False
    base_tree: str | None = None
    result_tree: str | None = None
    file_list: tuple[PatchFile, ...] = ()
    """At most 1,000 entries; `files` has the whole count."""
    not_in_patch: tuple[Flag, ...] = ()
    """What git cannot carry or the ignore rules keep out (kinds: empty_dir, mode, hard_link, ignored,
    special, too_deep, unreadable). At most 1,000."""
    reason: str | None = None
    """Why there is no patch, when `status` is `none`."""


class Review(Frozen):
    state: Literal["none", "pending", "approved", "rejected", "changes_requested"] = "none"
    by: str | None = None
    at: datetime | None = None
    comment: str | None = None


class TaskError(Frozen):
    code: str
    message: str
    retryable: bool = False


class TodoItem(Frozen):
    text: str
    status: Literal["pending", "in_progress", "completed"] = "pending"


class Task(Frozen):
    """A task as the service answers it. `spec.env` keeps names only; values rest sealed in the store."""

    id: str
    team: str
    submitter: str
    """Id of the key that submitted it."""
    spec: TaskSpec
    state: State = State.QUEUED
    phase: Phase | None = None
    waiting_for: Literal["approval", "budget", "resume"] | None = None
    exit_reason: ExitReason | None = None
    queue_position: int | None = None
    eta_s: int | None = None
    created_at: datetime
    started_at: datetime | None = None
    finished_at: datetime | None = None
    run: int = 0
    summary: str | None = None
    todo: tuple[TodoItem, ...] = ()
    usage: Usage = Usage()
    patch: PatchInfo | None = None
    verification: tuple[dict[str, Any], ...] = ()
    review: Review = Review()
    parent: str | None = None
    retry_of: str | None = None
    children: tuple[str, ...] = ()
    error: TaskError | None = None

    def answer(self) -> dict[str, Any]:
        """The JSON object of the contract: the request's fields and the answer's on one level, env as names."""
        body = self.model_dump(mode="json", exclude={"spec"})
        request = self.spec.model_dump(mode="json", exclude={"env", "webhook"})
        webhook = self.spec.webhook
        request["env"] = sorted(self.spec.env)
        request["webhook"] = webhook and webhook.model_dump(mode="json", exclude={"secret"})
        return {**request, **body}


class Workspace(Frozen):
    """An accepted upload. `blob` is the canonical tar, `manifest` its index (see service/intake.py)."""

    id: str
    team: str
    sha256: str
    """Of the original upload."""
    size: int
    """Bytes of the original upload."""
    format: Literal["tar", "tar.gz", "tar.zst", "zip"]
    files: int
    unpacked_size: int
    """Sum of the regular files' bytes."""
    blob: str
    manifest: str
    notes: tuple[str, ...] = ()
    created_at: datetime


class Key(Frozen):
    id: str
    team: str
    roles: tuple[Role, ...]
    name: str
    created_at: datetime


class ModelCard(Frozen):
    """A model profile as the catalogue shows it: no address, no key."""

    name: str
    model: str
    context_window: int
    price: dict[str, float] | None
    """USD per million tokens: input, cached, output; None = unknown."""


class Catalogue(Frozen):
    """What one worker host can serve; published by its keeper."""

    host: str
    models: tuple[ModelCard, ...]
    images: tuple[str, ...]
    """Names a task may ask for; the first is the default."""
    maxima: Resources
    engine_ok: bool
    engine: str
    """Engine name and version, or why it does not answer."""
    workers: int
    at: datetime
