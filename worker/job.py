"""One run of one task: its phases, and the only map from what happened to the task's final state.

RQ calls `answer_bell` in a forked child. The child claims whatever task the store gives it, opens a box, lets the
agent work in it, has the patch made and proven, and ends the task in one transaction with its last event.
"""

from __future__ import annotations

import signal
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from types import FrameType
from typing import Any, BinaryIO, TypeVar

import structlog

from service.contracts import ExitReason, PatchFile, PatchInfo, Phase, State, Task, TaskError, TaskSpec, Workspace
from service.errors import (
    LeaseLost,
    NotFound,
    PatchTooLarge,
    RunError,
    SandboxError,
    Stopped,
    Unavailable,
    WorkspaceError,
)
from service.intake import Entry, Manifest
from service.seal import SealError
from service.store import Lease
from worker.agent.budget import Budget
from worker.agent.context import Conversation
from worker.agent.loop import Outcome, run_agent
from worker.agent.project import look_at
from worker.agent.prompt import build
from worker.control import Control, HandedBack
from worker.export import ExportLimits, export
from worker.journal import Journal, patiently
from worker.llm.fallback import open_models
from worker.llm.profiles import with_fallbacks
from worker.llm.transcript import Transcript
from worker.masking import Masker
from worker.parts import Parts
from worker.sandbox.base import BoxSpec, Sandbox, ToolFailure
from worker.sandbox.docker import engine_health
from worker.sink import Sink
from worker.tools.registry import build_toolbox

EXPORT_GRACE_S = 600.0
"""A box may outlive its task's wall time by this, for the change set to be taken out."""
_READ = 256 * 1024

T = TypeVar("T")

log = structlog.get_logger()
_warm: Parts | None = None


def warm(parts: Parts) -> None:
    """Gives the process its parts, once, before RQ forks: RQ calls a function by name, and a bell carries nothing."""
    global _warm
    _warm = parts


def answer_bell() -> None:
    """What a bell means: run the task whose turn it is, if there is one and the engine can open a box for it."""
    parts = _warm
    if parts is None:
        raise RuntimeError("worker.job.warm was not called in this process")
    drain = threading.Event()

    def hand_back(_sign: int, _frame: FrameType | None) -> None:
        drain.set()

    signal.signal(signal.SIGTERM, hand_back)
    settings = parts.settings
    health = engine_health(settings.docker_url, runtime=settings.sandbox_runtime, image=settings.sandbox_image)
    if not health.ok:
        log.warning("engine_away", reason=health.engine)
        return  # tasks wait; the keeper rings again when the engine is back
    lease = parts.store.claim(settings.worker_host)
    if lease is None:
        return
    with structlog.contextvars.bound_contextvars(task=lease.task_id, run=lease.run):
        run_task(parts, lease, drain)
    if parts.store.counters().queued and not drain.is_set():
        parts.doorbell.ring()


def run_task(parts: Parts, lease: Lease, drain: threading.Event) -> None:
    """Runs the leased task to its end, or gives it back; whatever happens, its box is removed."""
    task = parts.store.task(lease.task_id)
    if task is None:
        raise LeaseLost(f"{lease.task_id} is not in the store")
    renew = partial(parts.store.renew, lease)
    with Control(renew, wall_time_s=task.spec.limits.wall_time_s, drain=drain) as control:
        try:
            ending = Run(parts, lease, task, control).go()
            control.check_lease()
            finish = partial(parts.store.finish, lease, ending.state, ending.reason, error=ending.error)
            patiently(control.check_lease, partial(finish, **ending.fields()))
            log.info("task_ended", state=ending.state, exit_reason=ending.reason)
        except HandedBack as back:
            log.info("task_handed_back", reason=back.detail, state=parts.store.release(lease))
        except LeaseLost as lost:
            log.warning("lease_lost", reason=lost.detail)


@dataclass(frozen=True, slots=True)
class Ending:
    state: State
    reason: ExitReason
    summary: str | None = None
    error: TaskError | None = None
    patch: PatchInfo | None = None

    def fields(self) -> dict[str, Any]:
        return {"summary": self.summary, "patch": self.patch}


_FINISHED = frozenset({ExitReason.COMPLETED, ExitReason.ANSWERED})
_LIMITS = {
    ExitReason.TURN_LIMIT: "max_turns",
    ExitReason.COST_LIMIT: "max_cost_usd",
    ExitReason.TOKEN_LIMIT: "max_tokens",
}


def ending_of(outcome: Outcome, spec: TaskSpec, masker: Masker) -> Ending:
    """What the loop's own ending means for the task."""
    summary = masker.text(outcome.summary) or None
    reason = outcome.exit_reason
    if reason in _FINISHED:
        return Ending(State.SUCCEEDED, reason, summary)
    if name := _LIMITS.get(reason):
        message = f"the limit {name} = {getattr(spec.limits, name)} was reached; raise it to let the task go on longer"
    else:
        message = "the agent repeated itself and did not stop when told"
    return Ending(State.FAILED, reason, summary, TaskError(code=reason, message=message))


def ending_of_error(error: Exception, masker: Masker) -> Ending:
    """What an exception means for the task; an unknown one is ours, is logged, and tells nothing to the client."""
    if not isinstance(error, RunError):
        log.error("internal_error", exc_info=error)
        code, message = "internal_error", "the worker failed; its log has the reason under this task's id"
        if isinstance(error, Unavailable):  # the disk: what the store cannot do is waited for
            code, message = error.code, error.detail
        problem = TaskError(code=code, message=message, retryable=True)
        return Ending(State.FAILED, ExitReason.INTERNAL_ERROR, error=problem)
    if error.exit_reason is ExitReason.CANCELLED:
        return Ending(State.CANCELLED, ExitReason.CANCELLED)
    problem = TaskError(code=error.code, message=masker.text(error.detail)[:2_000], retryable=error.retryable)
    return Ending(State.FAILED, error.exit_reason, error=problem)


class Run:
    """The phases of one run. `go` raises only HandedBack and LeaseLost; all else becomes an ending."""

    def __init__(self, parts: Parts, lease: Lease, task: Task, control: Control) -> None:
        self._parts = parts
        self._lease = lease
        self._task = task
        self._control = control
        self._spec = task.spec
        self._masker = Masker([])
        self._journal = Journal(parts.store, parts.blobs, lease, control.check_lease)
        self._sink = Sink(self._journal, self._masker, control.check_lease)
        self._tar: BinaryIO | None = None
        self._manifest: dict[bytes, Entry] | Manifest = {}

    def go(self) -> Ending:
        with ExitStack() as stack:
            box: Sandbox | None = None
            try:
                self._unseal()
                self._journal.update(phase=Phase.PREPARING)
                box = self._prepared_box(stack)
                self._journal.update(phase=Phase.AGENT)
                ending = ending_of(self._agent(box), self._spec, self._masker)
            except (HandedBack, LeaseLost):
                raise
            except Exception as error:  # noqa: BLE001 - the one place where any failure becomes a final state
                ending = ending_of_error(self._cause(error), self._masker)
            self._control.check_lease()
            return self._exported(box, ending)

    def _cause(self, error: Exception) -> Exception:
        """Why it really ended: what a stop interrupts fails in its own way, only Control knows the reason."""
        try:
            self._control.check()
        except (HandedBack, LeaseLost):
            raise
        except Stopped as stopped:
            return stopped
        return error

    def _asked(self, call: Callable[[], T]) -> T:
        """What the store answers, as soon as it does."""
        return patiently(self._control.check_lease, call)

    def _unseal(self) -> None:
        """Brings the env values back; from here on they, and the model's key, are masked wherever people look."""
        sealed = self._asked(partial(self._parts.store.sealed, self._task.id))
        if sealed is not None:
            try:
                self._spec = self._spec.with_env(self._parts.sealer.open(self._task.id, sealed))
            except SealError as error:
                raise RunError(error.detail, code=error.code) from error
        values = {value for phase in ("setup", "agent", "verify") for value in self._spec.env_for(phase).values()}
        keys = {p.api_key.get_secret_value() for p in self._parts.profiles.values() if p.api_key is not None}
        self._masker = Masker(values | keys)
        self._sink = Sink(self._journal, self._masker, self._control.check_lease)

    def _prepared_box(self, stack: ExitStack) -> Sandbox:
        """A started box that holds the workspace."""
        workspace = self._open_workspace(stack)
        # Asked once more before anything is started: a task cancelled since its claim never gets a container.
        if self._asked(partial(self._parts.store.renew, self._lease)).cancel_requested:
            raise RunError("cancelled on request", exit_reason=ExitReason.CANCELLED)
        self._control.check()
        try:
            box = self._parts.provider.open(self._box_spec())
        except SandboxError as error:
            settings = self._parts.settings
            if not engine_health(
                settings.docker_url, runtime=settings.sandbox_runtime, image=settings.sandbox_image
            ).ok:
                raise HandedBack(f"the engine went away: {error.detail}") from error
            raise
        stack.callback(box.close)
        box.claim(self._task.id, deadline_s=self._control.remaining_s() + EXPORT_GRACE_S)
        if self._tar is not None:
            try:
                report = box.load(self._workspace_chunks(self._tar))
            except ToolFailure as failure:
                raise WorkspaceError(f"the workspace could not be loaded: {failure.message}") from failure
            if workspace is not None and report.bytes != workspace.unpacked_size:
                raise WorkspaceError("the workspace did not arrive whole in the sandbox")
        return box

    def _open_workspace(self, stack: ExitStack) -> Workspace | None:
        ref = self._spec.workspace
        if ref is None or ref.id is None:
            return None
        workspace = self._asked(partial(self._parts.store.workspace, self._task.team, ref.id))
        if workspace is None:
            raise WorkspaceError(f"the workspace {ref.id} is no longer kept; upload it again")
        try:
            self._tar = stack.enter_context(self._parts.blobs.open(workspace.blob))
            with self._parts.blobs.open(workspace.manifest) as blob:
                self._manifest = Manifest.load(blob)
        except (NotFound, Unavailable, ValueError, OSError) as error:
            raise WorkspaceError(f"the workspace {ref.id} cannot be read from the blob store: {error}") from error
        return workspace

    def _workspace_chunks(self, tar: BinaryIO) -> Iterator[bytes]:
        while data := tar.read(_READ):
            self._control.check()
            yield data

    def _box_spec(self) -> BoxSpec:
        return BoxSpec(
            task=self._task.id,
            run=self._lease.run,
            image=self._spec.image or self._parts.settings.sandbox_image,
            **self._spec.resources.model_dump(),
        )

    def _agent(self, box: Sandbox) -> Outcome:
        if self._spec.model not in self._parts.profiles:
            raise RunError(
                f"this worker has no model {self._spec.model!r}; its catalogue has changed since the task was accepted",
                exit_reason=ExitReason.MODEL_ERROR,
            )
        with ExitStack() as stack:
            # Without a name: a run that is killed leaves nothing behind.
            file = stack.enter_context(tempfile.TemporaryFile())
            transcript = stack.enter_context(Transcript(file, mask=self._masker.text))
            stack.callback(self._store_transcript, file)
            profiles = with_fallbacks(self._spec.model, self._parts.profiles)
            models = open_models(profiles, clients=self._parts.clients, record=transcript.exchange)
            model = stack.enter_context(models)
            project = look_at(box)
            toolbox = build_toolbox(
                box,
                env=self._spec.env_for("agent"),
                command_timeout_s=self._spec.limits.command_timeout_s,
                store_artifact=self._sink.artifact,
                dry_run=self._spec.dry_run_tools,
                skills=project.skills,
            )
            stack.enter_context(self._control.interrupting(model.abort))
            stack.enter_context(self._control.interrupting(box.cancel))
            return self._sink.drain(
                run_agent(
                    model,
                    toolbox,
                    Conversation.start(build(self._spec, box.info, toolbox, project), self._spec.prompt),
                    Budget(self._spec.limits, seconds_left=self._control.remaining_s),
                    checkpoint=self._control.check,
                    record=transcript,
                )
            )

    def _store_transcript(self, file: BinaryIO) -> None:
        self._control.check_lease()
        file.seek(0)
        self._journal.add_artifact("transcript.jsonl", iter(partial(file.read, _READ), b""))

    def _exported(self, box: Sandbox | None, ending: Ending) -> Ending:
        """The ending with its patch; a finished task whose patch cannot be proven has failed after all."""
        turn = self._sink.usage.turns
        if box is None:
            reason = "the task ended before its workspace was loaded into a sandbox"
            return replace(ending, patch=no_patch(turn, reason))
        try:
            self._journal.update(phase=Phase.EXPORTING)
            patch = self._patch(box)
        except LeaseLost:
            raise
        except Exception as error:  # noqa: BLE001 - as in `go`: any failure becomes a final state
            failed = ending_of_error(error, self._masker)
            problem = failed.error
            files = error.files if isinstance(error, PatchTooLarge) else []
            none = no_patch(turn, problem.message if problem else "the export was stopped", files)
            if ending.state is not State.SUCCEEDED:
                return replace(ending, patch=none)
            return replace(failed, summary=ending.summary, patch=none)
        status = "complete" if ending.reason in _FINISHED else "salvaged"
        return replace(ending, patch=patch.model_copy(update={"status": status, "as_of_turn": turn}))

    def _patch(self, box: Sandbox) -> PatchInfo:
        settings = self._parts.settings
        with ExitStack() as stack:
            tar = self._tar or stack.enter_context(tempfile.TemporaryFile())
            if self._tar is None:
                tar.write(bytes(1024))  # an empty canonical tar
            return export(
                box,
                self._parts.provider,
                replace(self._box_spec(), image=settings.sandbox_image),
                self._manifest,
                tar,
                self._parts.blobs,
                ExportLimits(max_files=settings.max_patch_files, max_patch_bytes=settings.max_patch_bytes),
            )


def no_patch(turn: int, reason: str, files: Iterable[Any] = ()) -> PatchInfo:
    """Says why there is none, with the largest files where that is the reason."""
    return PatchInfo(
        status="none",
        as_of_turn=turn,
        sha256=None,
        bytes=0,
        files=0,
        additions=0,
        deletions=0,
        file_list=tuple(PatchFile.model_validate(file) for file in files),
        reason=reason,
    )
