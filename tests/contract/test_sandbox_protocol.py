"""The tool server seen from its pipe, without the worker's channel: who may speak, what is kept, what is odd."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sandbox_image.toolserver import wire

BOOT = Path(__file__).parents[2] / "sandbox_image" / "boot.py"


class Raw:
    """A worker that says exactly what it is told to."""

    def __init__(self, folder: Path) -> None:
        roots = [folder / name for name in ("workspace", "home", "tmp", "skills")]
        for root in roots:
            root.mkdir()
        command = [sys.executable, "-I", "-S", "-B", str(BOOT), *map(str, roots)]
        self.server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={})
        self.token = wire.ZERO
        self.parser = wire.Parser()
        self.frames: list[wire.Frame] = []

    def send(self, data: bytes) -> None:
        assert self.server.stdin is not None
        self.server.stdin.write(data)
        self.server.stdin.flush()

    def request(self, number: int, op: str, args: dict[str, Any] | None = None, *, flags: int = 0) -> None:
        payload = wire.dumps({"op": op, "args": args or {}})
        self.send(wire.encode(self.token, wire.REQUEST, number, payload, flags=flags))

    def next(self, timeout_s: float = 5) -> wire.Frame | None:
        """The next frame, or None when none comes in time or ever again."""
        assert self.server.stdout is not None
        deadline = time.monotonic() + timeout_s
        while not self.frames:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.server.stdout], [], [], left)[0]:
                return None
            data = os.read(self.server.stdout.fileno(), 1 << 16)
            if not data:
                return None
            self.frames += self.parser.feed(data)
        return self.frames.pop(0)

    def result(self, number: int) -> dict[str, Any]:
        while (frame := self.next()) is not None:
            if frame.kind == wire.RESULT and frame.call == number:
                return wire.loads(frame.payload)
        raise AssertionError("no result")

    def ask(self, number: int, op: str, args: dict[str, Any] | None = None) -> dict[str, Any]:
        self.request(number, op, args)
        return self.result(number)

    def hello(self) -> str:
        return str(self.ask(1, "hello")["ok"]["secret"])

    def attach(self, secret: str, generation: int, token: bytes) -> dict[str, Any]:
        self.token = wire.ZERO
        self.parser.token = token
        answer = self.ask(
            generation << 32, "attach", {"secret": secret, "generation": generation, "token": token.hex()}
        )
        self.token = token
        return answer

    def end(self) -> None:
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        self.server.stdin.close()
        self.server.wait(15)
        self.server.stdout.close()


FIRST, SECOND = b"1" * 16, b"2" * 16


@pytest.fixture
def raw(tmp_path: Path) -> Iterator[Raw]:
    made = Raw(tmp_path)
    try:
        yield made
    finally:
        made.end()


@pytest.fixture
def secret(raw: Raw) -> str:
    """Attached as the first generation and claimed."""
    said = raw.hello()
    assert raw.attach(said, 1, FIRST) == {"ok": {}}
    assert raw.ask(2, "claim", {"task": "t", "deadline_s": 60}) == {"ok": {}}
    return said


def exec_args(command: str) -> dict[str, Any]:
    return {
        "command": command,
        "cwd": "/workspace",
        "env": {},
        "timeout_s": 20,
        "head_bytes": 1 << 20,
        "tail_bytes": 100,
        "flood_bytes": 1 << 30,
    }


def code(answer: dict[str, Any]) -> str:
    return str(answer["error"]["code"])


def test_hello_is_answered_once(raw: Raw) -> None:
    raw.hello()
    raw.request(2, "hello")
    assert raw.next(0.5) is None


def test_only_hello_and_attach_go_without_a_token(raw: Raw) -> None:
    assert code(raw.ask(1, "ping")) == "unknown_request"
    assert code(raw.ask(2, "exec", exec_args("true"))) == "unknown_request"


def test_attach_needs_the_secret_and_a_higher_generation(raw: Raw, secret: str) -> None:
    assert code(raw.attach("0" * 64, 2, SECOND)) == "bad_request"
    assert code(raw.attach(secret, 1, SECOND)) == "bad_request"
    assert code(raw.attach(secret, 2, wire.ZERO)) == "bad_request"
    raw.token = FIRST
    raw.parser.token = FIRST
    assert raw.ask(9, "ping") == {"ok": {}}


def test_a_worker_of_a_lower_generation_cannot_write(raw: Raw, secret: str, tmp_path: Path) -> None:
    raw.attach(secret, 2, SECOND)
    raw.token = FIRST
    raw.request(9, "exec", exec_args("touch here"))
    assert raw.next(0.5) is None
    raw.token = SECOND
    assert raw.ask(10, "ping") == {"ok": {}}
    assert not (tmp_path / "workspace" / "here").exists()


def test_the_outcome_of_a_call_in_flight_survives_its_worker(raw: Raw, secret: str, tmp_path: Path) -> None:
    """The successor asks under the same number and gets the outcome; the command ran once."""
    raw.request(20, "exec", exec_args("echo out; echo ran >>log; sleep 0.5; echo end"))
    first = raw.next()
    assert first is not None
    raw.attach(secret, 2, SECOND)
    time.sleep(1)
    assert raw.next(0.1) is None
    raw.request(20, "exec", exec_args("echo something else"))
    body = b""
    while (frame := raw.next()) is not None and frame.kind != wire.RESULT:
        body += frame.payload if frame.kind == wire.DATA else b""
    assert frame is not None
    assert body == b"out\nend\n"
    assert wire.loads(frame.payload)["ok"]["exit_code"] == 0
    assert (tmp_path / "workspace" / "log").read_text() == "ran\n"


def test_a_request_asked_twice_runs_once(raw: Raw, secret: str, tmp_path: Path) -> None:
    raw.request(20, "exec", exec_args("echo ran >>log; sleep 0.2"))
    raw.request(20, "exec", exec_args("echo ran >>log; sleep 0.2"))
    assert raw.result(20)["ok"]["exit_code"] == 0
    raw.request(20, "exec", exec_args("echo ran >>log"))
    assert raw.ask(21, "ping") == {"ok": {}}
    assert (tmp_path / "workspace" / "log").read_text() == "ran\n"


def test_a_slow_request_is_acknowledged_within_a_second(raw: Raw, secret: str) -> None:
    raw.request(20, "exec", exec_args("sleep 1.2"))
    started = time.monotonic()
    frame = raw.next()
    assert frame is not None
    assert (frame.kind, frame.call) == (wire.ACK, 20)
    assert time.monotonic() - started < 1


@pytest.mark.parametrize("cut", [1, 30, 50, 200, 20_000, 32_000])
def test_a_successor_gets_through_after_a_chunk_that_was_cut(raw: Raw, secret: str, cut: int) -> None:
    raw.request(30, "write", {"path": "f", "overwrite": True}, flags=wire.BODY)
    raw.send(wire.encode(FIRST, wire.DATA, 30, os.urandom(32_000))[:cut])
    raw.send(wire.PAD)
    assert raw.attach(secret, 2, SECOND) == {"ok": {}}
    assert code(raw.ask(40, "read", {"path": "f", "limit": 9})) == "not_found"


def test_noise_between_frames_is_skipped(raw: Raw, secret: str) -> None:
    raw.send(os.urandom(100_000))
    assert raw.ask(9, "ping") == {"ok": {}}


def test_no_more_than_a_window_is_sent_without_credit(raw: Raw, secret: str) -> None:
    raw.request(20, "exec", exec_args("head -c 1000000 /dev/zero"))
    got = 0
    while (frame := raw.next(1)) is not None:
        got += len(frame.payload) if frame.kind == wire.DATA else 0
        assert frame.kind != wire.RESULT
    assert got == wire.WINDOW
    raw.send(wire.encode(FIRST, wire.CREDIT, 20, offset=wire.WINDOW * 9))  # more than was sent: no credit at all
    assert raw.next(0.3) is None
    raw.send(wire.encode(FIRST, wire.CREDIT, 20, offset=wire.WINDOW))
    assert raw.result(20)["ok"]["exit_code"] == 0


def test_a_gap_in_a_body_is_refused(raw: Raw, secret: str) -> None:
    raw.request(20, "write", {"path": "f", "overwrite": True}, flags=wire.BODY)
    raw.send(wire.encode(FIRST, wire.DATA, 20, b"tail", offset=5, flags=wire.FIN))
    assert code(raw.result(20)) == "bad_request"


@pytest.mark.parametrize("op", ["checkpoint", "restore", "net_open", "nonsense"])
def test_what_is_not_here_is_an_unknown_request(raw: Raw, secret: str, op: str) -> None:
    assert code(raw.ask(20, op)) == "unknown_request"


@pytest.mark.parametrize(
    ("op", "args"),
    [
        ("exec", {}),
        ("exec", {"command": 5}),
        ("exec", {**exec_args("true"), "env": {"A": 1}}),
        ("exec", {**exec_args("true"), "timeout_s": -1}),
        ("read", {"path": "a"}),
        ("read", {"path": ["a"], "limit": 1}),
        ("list", {"path": "a", "limit": "many"}),
        ("glob", {"pattern": None, "limit": 1}),
    ],
)
def test_arguments_of_the_wrong_shape_are_refused(raw: Raw, secret: str, op: str, args: dict[str, Any]) -> None:
    assert code(raw.ask(20, op, args)) == "bad_request"


def test_a_request_that_is_no_json_is_refused(raw: Raw, secret: str) -> None:
    for number, payload in enumerate((b"", b"\xff", b"[]", b'{"op": 1}', b"[" * 30_000), 20):
        raw.send(wire.encode(FIRST, wire.REQUEST, number, payload))
        assert code(raw.result(number)) == "bad_request"


def test_shutdown_ends_the_server(raw: Raw, secret: str) -> None:
    assert raw.ask(20, "shutdown") == {"ok": {}}
    assert raw.server.wait(5) == 0


def test_reads_overlap_and_writes_wait_their_turn(raw: Raw, secret: str) -> None:
    raw.request(20, "exec", exec_args("sleep 0.4; echo 1 >f"))
    raw.request(21, "read", {"path": "f", "limit": 10})
    raw.request(22, "ping")
    assert raw.result(22) == {"ok": {}}  # at once, although a command runs
    assert raw.result(20)["ok"]["exit_code"] == 0
    assert raw.result(21)["ok"]["size"] == 2


def test_too_many_requests_at_once_are_refused(raw: Raw, secret: str) -> None:
    raw.request(20, "exec", exec_args("sleep 1"))
    for number in range(21, 90):
        raw.request(number, "read", {"path": "f", "limit": 10})
    assert code(raw.result(89)) == "too_many"


def test_an_attach_asked_twice_is_answered_with_the_token(raw: Raw) -> None:
    """A worker asks again after a second; a refusal without the token would be noise to it and end the box."""
    secret = raw.hello()
    raw.parser.token = FIRST
    payload = wire.dumps({"op": "attach", "args": {"secret": secret, "generation": 1, "token": FIRST.hex()}})
    raw.send(wire.encode(wire.ZERO, wire.REQUEST, 9, payload) * 2)
    answers = [raw.next(), raw.next()]
    assert [(frame.anonymous, wire.loads(frame.payload)) for frame in answers if frame] == [(False, {"ok": {}})] * 2


def test_an_answer_that_nobody_waits_for_is_dropped_when_told_so(raw: Raw, secret: str, tmp_path: Path) -> None:
    """A request sent again just before its answer came runs again; its second answer must not stay for ever."""
    (tmp_path / "workspace" / "f").write_bytes(bytes(2 * wire.WINDOW))
    for number in range(100, 170):
        raw.request(number, "read", {"path": "f", "limit": 2 * wire.WINDOW})
        raw.send(wire.encode(FIRST, wire.DONE, number))
    assert raw.ask(200, "read", {"path": "f", "limit": 1})["ok"]["size"] == 2 * wire.WINDOW
