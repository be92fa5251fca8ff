"""What each operation of a box does: file tools answer at once, the rest is a `Running` for the server's loop."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Generator
from typing import Any

from sandbox_image.toolserver import changes, files, listing, patch, search, wire
from sandbox_image.toolserver.args import Args
from sandbox_image.toolserver.background import KEPT_BYTES, Backgrounds
from sandbox_image.toolserver.calls import Call
from sandbox_image.toolserver.failures import Failure
from sandbox_image.toolserver.ipc import remove_ipc
from sandbox_image.toolserver.jobs import Job, Work
from sandbox_image.toolserver.paths import Paths
from sandbox_image.toolserver.processes import Children, OomCounter
from sandbox_image.toolserver.spawn import PATH, Command, Request, base_env
from sandbox_image.toolserver.workspace import Baseline, Loader

MAX_HEAD = 4 << 20
MAX_TAIL = 1 << 20
MAX_TIMEOUT_S = 86_400
_TOOLS = ("git", "rg", "patch", "curl", "jq", "python3", "pip", "node", "npm", "gcc", "make", "go", "cargo", "java")
_LOOK_S = 40.0
"""For `search` and `glob`, below the patience of a worker: a FIFO called .gitignore holds ripgrep for ever."""
_JOB_BACKLOG = 256 << 10


class Running:
    """An operation in progress: descriptors to wait for, a deadline, and what to do when one of them is due."""

    deadline: float | None = None
    pid = -1

    def __init__(self, call: Call) -> None:
        self.call = call
        self.taken = 0
        """Bytes of the call's body that have been used, for which the worker gets credit."""

    @property
    def done(self) -> bool:
        return self.call.result is not None

    def reads(self) -> int:
        """The descriptor whose bytes it wants now, or -1."""
        return -1

    def writes(self) -> int:
        """The descriptor it wants to write to now, or -1."""
        return -1

    def readable(self) -> None: ...

    def writable(self) -> None: ...

    def body_arrived(self, data: bytes) -> None:
        """More of the request's body; `call.body_ended` says whether it is the last."""

    def child(self, status: int) -> None:
        """Its process ended or stopped."""

    def overdue(self) -> None: ...

    def cancel(self) -> None:
        """Ends it early; it is done afterwards."""

    def close(self) -> None: ...


class _Exec(Running):
    def __init__(
        self, call: Call, command: Command, children: Children, oom: OomCounter, tidy: Callable[[], None]
    ) -> None:
        """`tidy` clears what outlives processes."""
        super().__init__(call)
        self._command = command
        self._children = children
        self._oom = oom
        self._tidy = tidy
        self.pid = command.pid
        self.deadline = command.deadline

    def reads(self) -> int:
        return -1 if self._command.output_ended else self._command.fd

    def readable(self) -> None:
        self._command.read()
        if self._command.ended == "flood":
            self._kill("flood")

    def child(self, status: int) -> None:
        if os.WIFSTOPPED(status):
            self._command.at_end()
            return
        self._children.kill_all()
        self._finish(status)

    def overdue(self) -> None:
        self._kill("timeout")

    def cancel(self) -> None:
        self._kill("cancelled")

    def _kill(self, why: str) -> None:
        self._command.ended = why
        self._finish(self._children.kill_all().get(self.pid, 0))

    def _finish(self, status: int) -> None:
        """Once all it started is dead: nothing of it holds the box's memory or its folders either."""
        self._tidy()
        tail, answer = self._command.result(status, self._oom.grew())
        self.call.out.push(tail)
        self.call.succeed(answer)

    def close(self) -> None:
        self._command.close()


class _Job(Running):
    def __init__(self, call: Call, job: Job) -> None:
        super().__init__(call)
        self._job = job
        if call.op in ("search", "glob"):
            self.deadline = time.monotonic() + _LOOK_S
        self.pid = job.pid
        self.body_arrived(bytes(call.body))

    def reads(self) -> int:
        """Nothing while the worker does not take what the job has said: the job then waits too."""
        return self._job.fd if self.call.out.backlog < _JOB_BACKLOG else -1

    def writes(self) -> int:
        return self._job.input_fd if self._job.input_waiting else -1

    def readable(self) -> None:
        pieces, more = self._job.read()
        for piece in pieces:
            self.call.out.push(piece)
        if not more:
            self._end()

    def _end(self) -> None:
        if self._job.failure is not None:
            self.call.fail(self._job.failure)
        else:
            self.call.succeed(self._job.result or {})

    def writable(self) -> None:
        self._job.push()
        self._settle()

    def body_arrived(self, data: bytes) -> None:
        self._job.give(data, self.call.body_ended)
        self._settle()

    def _settle(self) -> None:
        self.taken = self.call.received - self._job.input_waiting

    def overdue(self) -> None:
        self.call.fail(Failure("io_error", f"{self.call.op} took longer than {_LOOK_S:.0f} s; look at less at once"))

    def cancel(self) -> None:
        self.call.fail(Failure("io_error", "the operation was cancelled"))

    def close(self) -> None:
        self._job.close()


class _Load(Running):
    def __init__(self, call: Call, loader: Loader) -> None:
        super().__init__(call)
        self._loader = loader
        self.body_arrived(bytes(call.body))

    def body_arrived(self, data: bytes) -> None:
        try:
            self._loader.feed(data)
            self.taken = self.call.received
            if self.call.body_ended:
                self.call.succeed(self._loader.finish())
        except Failure as failure:
            self.call.fail(failure)

    def cancel(self) -> None:
        self.call.fail(Failure("io_error", "the operation was cancelled"))

    def close(self) -> None:
        self._loader.close()


class Operations:
    """The operations over one set of roots."""

    def __init__(self, paths: Paths, children: Children, protocol_fds: tuple[int, ...]) -> None:
        self._paths = paths
        self._children = children
        self._protocol_fds = protocol_fds
        self._oom = OomCounter()
        self._env = base_env(paths)
        self.backgrounds = Backgrounds(paths, children, self._env)
        self._baseline: Baseline | None = None

    def about(self) -> dict[str, Any]:
        """For `hello`: the interpreter and which well-known programs are here."""
        folders = PATH.split(":")
        found = [tool for tool in _TOOLS if any(os.access(f"{folder}/{tool}", os.X_OK) for folder in folders)]
        return {"python": ".".join(map(str, sys.version_info[:3])), "tools": found}

    def start(self, call: Call) -> Running | None:
        """Answers the call, or starts what will. Failure, also for arguments of the wrong shape."""
        args = Args(call.args)
        match call.op:
            case "exec":
                return self._exec(call)
            case "read":
                data, answer = files.read(self._paths, args.text("path"), args.number("limit", 0, files.MAX_READ))
                call.out.push(data)
                call.succeed(answer)
            case "write":
                overwrite = args.flag("overwrite")
                call.succeed(files.write(self._paths, args.text("path"), bytes(call.body), overwrite))
            case "edit":
                old_size = args.number("old_size", 0, len(call.body))
                old, new = bytes(call.body[:old_size]), bytes(call.body[old_size:])
                call.succeed(files.edit(self._paths, args.text("path"), old, new, args.flag("replace_all")))
            case "list":
                limit = args.number("limit", 0, listing.MAX_LIMIT)
                call.succeed(listing.list_directory(self._paths, args.text("path"), limit))
            case "load":
                return self._load(call)
            case "background" | "output" | "kill":
                self._background(call)
            case _:
                work = self._work(call.op, args)
                return _Job(call, Job(work, self._protocol_fds, tools_alive=self.backgrounds.running))
        return None

    def _background(self, call: Call) -> None:
        args = _args(call)
        if call.op == "background":
            call.succeed({"id": self.backgrounds.start(args.text("command"), args.text("cwd"), args.texts("env"))})
            return
        number = args.number("id", 0, 1 << 31)
        if call.op == "kill":
            self.backgrounds.kill(number)
            self._tidy()
            call.succeed({})
            return
        offset, limit = args.number("offset", 0, 1 << 62), args.number("limit", 0, KEPT_BYTES)
        said = self.backgrounds.output(number, offset, limit)._asdict()
        call.out.push(said.pop("data"))
        call.succeed(said)

    def _tidy(self) -> None:
        """What no process holds any more goes; while one may, it is not ours to take away."""
        if not self.backgrounds.running:
            remove_ipc()
        self._paths.keep_open()

    def _exec(self, call: Call) -> Running:
        args = _args(call)
        request = Request(
            command=os.fsencode(args.text("command")) + b"\n",  # a line's end, also after a last backslash
            cwd=args.text("cwd"),
            env=args.texts("env"),
            timeout_s=args.seconds("timeout_s", MAX_TIMEOUT_S),
            head_bytes=args.number("head_bytes", 0, MAX_HEAD),
            tail_bytes=args.number("tail_bytes", 0, MAX_TAIL),
            flood_bytes=args.number("flood_bytes", 0, 1 << 62),
        )
        self._oom.grew()  # what was killed before is not this command's
        command = Command(request, self._paths, self._env, call.out.push)
        return _Exec(call, command, self._children, self._oom, self._tidy)

    def _load(self, call: Call) -> Running:
        root = self._paths.workspace.fd
        if self._baseline is not None or os.listdir(self._paths.workspace.folder):
            raise Failure("bad_request", "the workspace is not empty")
        loader = Loader(root)
        self._baseline = loader.baseline
        return _Load(call, loader)

    def _work(self, op: str, args: Args) -> Work:
        paths = self._paths
        root = os.fsdecode(paths.workspace.folder)
        if op == "glob":
            pattern, limit = args.text("pattern"), args.number("limit", 0, listing.MAX_LIMIT)
            return lambda _: _answer(lambda: listing.glob(paths, pattern, limit))
        if op == "search":
            pattern, limit = args.text("pattern"), args.number("limit", 0, search.MAX_LIMIT)
            path = args.text("path")
            return lambda _: _answer(lambda: search.search(paths, pattern, path, limit))
        if op == "changes":
            self.backgrounds.kill_all()  # what is hashed must not change meanwhile
            self._tidy()
            baseline = self._baseline if self._baseline is not None else Baseline()
            return lambda _: _changes(root, baseline)
        tmp = os.fsdecode(paths.folder(b"/tmp"))
        return lambda job: patch.run(job, root, tmp)


def _args(call: Call) -> Args:
    """The arguments of a command, which come as the body when they are too long for a frame."""
    return Args(wire.loads(bytes(call.body)) if call.body else call.args)


def _answer(work: Callable[[], dict[str, Any]]) -> Generator[bytes, None, dict[str, Any]]:
    """A result without a body as a job's steps."""
    yield from ()
    return work()


def _changes(root: str, baseline: Baseline) -> Generator[bytes, None, dict[str, Any]]:
    yield from changes.stream(root, baseline)
    return {}
