"""The tool server: one process, one loop, PID 1 of its box. Speaks `wire` over two descriptors and never blocks.

It reads the worker's frames while commands run, so a cancel acts at once, and it ends itself (and with it the box)
when nobody has spoken to it for `SILENCE_S` after `claim`, when the task's deadline has passed, or unclaimed after
`UNCLAIMED_S`. What an operation does is in `operations`; here is who may speak, what runs when, and what is kept.
"""

from __future__ import annotations

import fcntl
import hmac
import os
import select
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from sandbox_image.toolserver import wire
from sandbox_image.toolserver.calls import OPS, STREAMED, Call
from sandbox_image.toolserver.failures import Failure, from_os_error
from sandbox_image.toolserver.operations import Operations, Running
from sandbox_image.toolserver.processes import Children, ChildSignal

SILENCE_S = 120
UNCLAIMED_S = 600
MAX_CALLS = 64
"""Open or kept; the oldest kept outcomes go first."""
MAX_KEPT_BYTES = 8 << 20
"""Of kept outcomes. In memory: the box's disk is memory too, and tools may fill it."""
_ACK_S = 0.3
"""What took less is acknowledged by its result; the worker asks again after 1 s."""
_OUT_LIMIT = 256 << 10
_READ = 64 << 10
"""Small enough that the allocator does not map and unmap memory for every read."""
_CREDIT_STEP = 128 << 10


class Server:
    """One box's server over the descriptors `source` and `sink`; `run` returns at the box's end."""

    def __init__(
        self, source: int, sink: int, operations: Operations, children: Children, child_signal: ChildSignal
    ) -> None:
        self._source = source
        self._sink = sink
        self._operations = operations
        self._children = children
        self._signal = child_signal
        self._parser = wire.Parser()
        self._secret: str | None = None
        self._generation = 0
        self._calls: dict[int, Call] = {}
        self._waiting: deque[Call] = deque()
        self._running: dict[int, Running] = {}
        self._acks: dict[int, float] = {}
        self._credited: dict[int, int] = {}
        self._out = bytearray()
        self._task: str | None = None
        self._ending = False
        self._deadline = self._last_frame = time.monotonic()
        self._deadline += UNCLAIMED_S
        with suppress(OSError):  # a pipe holds 64 KiB unless told otherwise; nothing depends on it
            fcntl.fcntl(source, fcntl.F_SETPIPE_SZ, wire.WINDOW)
        os.set_blocking(source, False)
        os.set_blocking(sink, False)

    def run(self) -> None:
        while True:
            self._send()
            if self._ending and not self._out:
                return
            self._wait()
            if self._past_guard():
                return
            self._schedule()

    # ------------------------------------------------------------------------------------------ the loop

    def _wait(self) -> None:
        """Sleeps until something is due and lets whoever waited for it act."""
        poll = select.poll()
        poll.register(self._source, select.POLLIN)
        poll.register(self._signal.fd, select.POLLIN)
        if self._out:
            poll.register(self._sink, select.POLLOUT)
        acts: dict[int, Callable[[], None]] = {self._source: self._receive, self._signal.fd: self._children_changed}
        for running in self._running.values():
            for fd, event in ((running.reads(), select.POLLIN), (running.writes(), select.POLLOUT)):
                if fd >= 0:
                    poll.register(fd, event)
                    acts[fd] = partial(_go_on, running, fd)
        for fd, act in self._operations.backgrounds.descriptors().items():
            poll.register(fd, select.POLLIN)
            acts[fd] = act
        for fd, _ in poll.poll(self._patience_ms()):
            if fd in acts:
                acts[fd]()
        self._timers()
        self._settle()

    def _patience_ms(self) -> int:
        due = [self._deadline, *self._acks.values()]
        due += [running.deadline for running in self._running.values() if running.deadline is not None]
        if self._task is not None:
            due.append(self._last_frame + SILENCE_S)
        return max(0, int((min(due) - time.monotonic()) * 1000) + 1)

    def _timers(self) -> None:
        now = time.monotonic()
        for running in list(self._running.values()):
            if running.deadline is not None and now >= running.deadline and not running.done:
                running.overdue()
        for number in [number for number, due in self._acks.items() if now >= due]:
            del self._acks[number]
            self._emit(wire.ACK, number)

    def _past_guard(self) -> bool:
        now = time.monotonic()
        return now >= self._deadline or (self._task is not None and now >= self._last_frame + SILENCE_S)

    def _children_changed(self) -> None:
        self._signal.clear()
        statuses, left = self._children.reap()
        for running in list(self._running.values()):
            if running.pid in statuses and not running.done:
                running.child(statuses[running.pid])
        if left and not self._running:
            self._children.kill_all()

    def _settle(self) -> None:
        """Closes what is done, gives credit for bodies that were used."""
        for number, running in list(self._running.items()):
            if running.done:
                del self._running[number]
                running.close()
                if not self._running:
                    self._children.kill_all()
            elif running.taken - self._credited.get(number, 0) >= _CREDIT_STEP:
                self._credit(number, running.taken)

    def _schedule(self) -> None:
        """Starts what may start: in order, alone if it changes anything."""
        while self._waiting and not (self._running and (self._waiting[0].exclusive or self._exclusive())):
            call = self._waiting.popleft()
            try:
                running = self._operations.start(call)
            except Failure as failure:
                call.fail(failure)
            except OSError as error:
                call.fail(from_os_error(error, call.op))
            except Exception as error:  # noqa: BLE001 (the tool boundary: a strange call must not end the box)
                call.fail(Failure("io_error", f"{call.op} failed: {type(error).__name__}: {error}"))
            else:
                if running is not None:
                    self._running[call.id] = running
                    self._settle()

    def _exclusive(self) -> bool:
        return any(running.call.exclusive for running in self._running.values())

    # ----------------------------------------------------------------------------------------- speaking

    def _emit(self, kind: int, number: int, payload: bytes = b"", *, offset: int = 0, anonymous: bool = False) -> None:
        token = wire.ZERO if anonymous or self._parser.token is None else self._parser.token
        self._out += wire.encode(token, kind, number, payload, offset=offset)

    def _send(self) -> None:
        """Writes as much as the pipe takes of what may be said."""
        while True:
            self._fill()
            if not self._out:
                return
            try:
                written = os.write(self._sink, self._out)
            except BlockingIOError:
                return
            del self._out[:written]

    def _fill(self) -> None:
        for call in list(self._calls.values()):
            if call.answered or call.muted:
                continue
            while len(self._out) < _OUT_LIMIT and (chunk := call.out.next()):
                self._emit(wire.DATA, call.id, chunk[1], offset=chunk[0])
                self._acks.pop(call.id, None)
            if call.result is not None and not call.out.backlog:
                self._emit(wire.RESULT, call.id, call.result, offset=call.out.size)
                call.answered = True
                self._forget(call.id, keep=call.kept)

    def _forget(self, number: int, *, keep: bool = False) -> None:
        self._acks.pop(number, None)
        self._credited.pop(number, None)
        if not keep:
            self._calls.pop(number, None)

    def _credit(self, number: int, taken: int) -> None:
        self._credited[number] = taken
        self._acks.pop(number, None)
        self._emit(wire.CREDIT, number, offset=taken)

    def _refuse(self, number: int, failure: Failure, *, anonymous: bool = False) -> None:
        said = wire.dumps({"error": {"code": failure.code, "message": failure.message}})
        self._emit(wire.RESULT, number, said, anonymous=anonymous)

    # ----------------------------------------------------------------------------------------- listening

    def _receive(self) -> None:
        try:
            data = os.read(self._source, _READ)
        except BlockingIOError:
            return
        if not data:
            self._ending = True  # nobody can ever speak to us again
            self._out.clear()
            return
        for frame in self._parser.feed(data):
            self._last_frame = time.monotonic()
            if frame.kind == wire.REQUEST:
                self._request(frame)
            elif (call := self._calls.get(frame.call)) is None or frame.anonymous:
                continue
            elif frame.kind == wire.DATA:
                self._body(call, frame)
            elif frame.kind == wire.CREDIT:
                call.out.credit(frame.offset)
            elif frame.kind == wire.DONE and call.answered:
                self._forget(call.id)
            elif frame.kind == wire.DONE:
                self._cancel(call.id)  # asked again when its first answer was on its way: nobody waits for this one

    def _request(self, frame: wire.Frame) -> None:
        try:
            op, args = _parsed(frame.payload)
            if frame.anonymous:
                self._introduction(frame.call, op, args)
            elif op in OPS:
                self._operation(frame, op, args)
            else:
                self._emit(wire.RESULT, frame.call, wire.dumps({"ok": self._control(op, args)}))
        except Failure as failure:
            self._refuse(frame.call, failure, anonymous=frame.anonymous)

    def _introduction(self, number: int, op: str, args: dict[str, Any]) -> None:
        """`hello` and `attach`, the only words without a token."""
        if op == "hello":
            if self._secret is not None:
                return  # answered once; asked again only because the answer was slow
            self._secret = os.urandom(32).hex()
            answer = {"secret": self._secret, **self._operations.about()}
            self._emit(wire.RESULT, number, wire.dumps({"ok": answer}), anonymous=True)
            return
        if op != "attach":
            raise Failure("unknown_request", "attach first")
        secret, generation, token = args.get("secret"), args.get("generation"), args.get("token")
        if not (isinstance(secret, str) and isinstance(generation, int) and isinstance(token, str)):
            raise Failure("bad_request", "attach needs secret, generation and token")
        if self._secret is None or not hmac.compare_digest(secret.encode(), self._secret.encode()):
            raise Failure("bad_request", "a wrong secret")
        if generation == self._generation and token == (self._parser.token or b"").hex():
            self._emit(wire.RESULT, number, wire.dumps({"ok": {}}))  # asked again because the answer was slow
            return
        if generation <= self._generation:
            raise Failure("bad_request", f"generation {generation} is over, {self._generation} is attached")
        if len(token) != 32 or token == wire.ZERO.hex():
            raise Failure("bad_request", "a token is 16 bytes in hexadecimal, not all zero")
        self._parser.token = bytes.fromhex(token)
        self._generation = generation
        self._part_from_last_worker()
        self._emit(wire.RESULT, number, wire.dumps({"ok": {}}))

    def _part_from_last_worker(self) -> None:
        """What it asked for and cannot be asked twice goes on in silence; the rest is dropped."""
        self._out.clear()
        for running in list(self._running.values()):
            if not running.call.kept or not running.call.body_ended:
                running.cancel()
        self._settle()
        for call in list(self._calls.values()):
            if not call.kept or not call.body_ended or call.muted:
                self._drop(call.id)
            else:
                call.muted = True
                call.answered = False
                call.out.rewind()

    def _control(self, op: str, args: dict[str, Any]) -> dict[str, Any]:
        match op:
            case "ping":
                return {}
            case "claim":
                return self._claim(args)
            case "cancel":
                self._cancel(args.get("call"))
                return {}
            case "shutdown":
                self._ending = True
                return {}
            case _:
                raise Failure("unknown_request", "no such request")

    def _claim(self, args: dict[str, Any]) -> dict[str, Any]:
        task, deadline = args.get("task"), args.get("deadline_s")
        if not isinstance(task, str) or not isinstance(deadline, (int, float)) or deadline <= 0:
            raise Failure("bad_request", "claim needs task and deadline_s")
        if self._task not in (None, task):
            raise Failure("bad_request", "this box has another task")
        self._task = task
        self._deadline = time.monotonic() + min(float(deadline), 1e9)
        return {}

    def _cancel(self, number: object) -> None:
        """Ends the command in flight, or the call of this number, whose answer nobody waits for any more."""
        for running in list(self._running.values()):
            if not running.done and (running.call.id == number if number is not None else running.call.op == "exec"):
                running.cancel()
        self._settle()
        if isinstance(number, int):
            self._drop(number)

    def _drop(self, number: int) -> None:
        call = self._calls.get(number)
        if call is not None:
            self._forget(number)
            with suppress(ValueError):
                self._waiting.remove(call)

    def _operation(self, frame: wire.Frame, op: str, args: dict[str, Any]) -> None:
        known = self._calls.get(frame.call)
        if known is not None:
            known.muted = False  # asked again: by a successor, or because we were slow
            self._emit(wire.ACK, frame.call)
            return
        if self._task is None:
            raise Failure("not_claimed", "this box is not claimed")
        kept = [call for call in self._calls.values() if call.answered]
        if len(self._calls) - len(kept) >= MAX_CALLS:
            raise Failure("too_many", "too many requests at once")
        size = sum(call.out.size for call in kept)
        for call in kept:
            if len(self._calls) < MAX_CALLS and size <= MAX_KEPT_BYTES:
                break
            size -= call.out.size
            self._forget(call.id)
        call = self._calls[frame.call] = Call(frame.call, op, args, bool(frame.flags & wire.BODY))
        self._acks[call.id] = time.monotonic() + _ACK_S
        if call.body_ended or op in STREAMED:
            self._waiting.append(call)

    def _body(self, call: Call, frame: wire.Frame) -> None:
        if call.body_ended or call.result is not None:
            return  # sent again, or no longer of use
        running = self._running.get(call.id)
        try:
            call.arrived(frame.offset, len(frame.payload), bool(frame.flags & wire.FIN))
        except Failure as failure:
            if running is not None:
                running.cancel()
            call.fail(failure)
            with suppress(ValueError):
                self._waiting.remove(call)
            return
        if running is not None:
            running.body_arrived(frame.payload)
            return
        call.body += frame.payload
        if call.op not in STREAMED:
            if call.body_ended:
                self._waiting.append(call)
            elif call.received - self._credited.get(call.id, 0) >= _CREDIT_STEP:
                self._credit(call.id, call.received)


def _go_on(running: Running, fd: int) -> None:
    """Lets it read or write, unless what happened since the descriptor was ready has ended it."""
    if running.done:
        return
    if fd == running.reads():
        running.readable()
    else:
        running.writable()


def _parsed(payload: bytes) -> tuple[str, dict[str, Any]]:
    try:
        request = wire.loads(payload)
    except ValueError as error:
        raise Failure("bad_request", f"not a request: {error}") from error
    op, args = request.get("op"), request.get("args", {})
    if not isinstance(op, str) or not isinstance(args, dict):
        raise Failure("bad_request", "a request has op and args")
    return op, args
