"""The worker's end against boxes that lie: whatever is not the protocol is a SandboxError, at once and for everyone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any

import pytest

from sandbox_image.toolserver import wire
from service.errors import SandboxError
from worker.sandbox import channel
from worker.sandbox.base import ToolFailure
from worker.sandbox.box import Box, connect

Say = Callable[..., None]
Script = Callable[["Liar", wire.Frame, dict[str, Any]], None]


class Liar:
    """A transport with a box behind it that greets well and then answers as `script` says."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.token = wire.ZERO
        self.said: SimpleQueue[bytes] = SimpleQueue()
        self.parser = wire.Parser()
        self.heard: list[tuple[int, str]] = []
        self.frames: list[wire.Frame] = []

    def send(self, data: bytes) -> None:
        for frame in self.parser.feed(data):
            self.frames.append(frame)
            request = wire.loads(frame.payload) if frame.kind == wire.REQUEST else {}
            op = request.get("op")
            if frame.kind == wire.REQUEST:
                self.heard.append((frame.call, str(op)))
            if op == "hello":
                self.answer(frame.call, {"secret": "s", "python": "3.13.0", "tools": ["git"]})
            elif op == "attach":
                self.token = self.parser.token = bytes.fromhex(request["args"]["token"])
                self.answer(frame.call, {})
            elif op != "ping":
                self.script(self, frame, request)

    def receive(self) -> bytes:
        return self.said.get()

    def close(self) -> None:
        self.said.put(b"")

    def say(self, kind: int, call: int, payload: bytes = b"", **fields: int) -> None:
        self.said.put(wire.encode(self.token, kind, call, payload, **fields))

    def answer(self, call: int, ok: dict[str, Any], offset: int = 0) -> None:
        self.say(wire.RESULT, call, wire.dumps({"ok": ok}), offset=offset)


@pytest.fixture
def boxes() -> Iterator[Callable[[Script], tuple[Box, Liar]]]:
    opened: list[Box] = []

    def make(script: Script) -> tuple[Box, Liar]:
        liar = Liar(script)
        box = connect(liar, image="i", runtime="r", remove=lambda: None)
        opened.append(box)
        return box, liar

    yield make
    for box in opened:
        box.close()


Boxes = Callable[[Script], tuple[Box, Liar]]


def result(call: bytes) -> Script:
    return lambda liar, frame, _: liar.say(wire.RESULT, frame.call, call)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b'{"ok": 1}',
        b'{"ok": {}}',
        b'{"ok": {"size": -1, "mode": 0, "stamp": ""}}',
        b'{"ok": {"size": true, "mode": 0, "stamp": ""}}',
        b'{"ok": {"size": 1e400, "mode": 0, "stamp": ""}}',
        b'{"ok": {"size": 1, "mode": 0, "stamp": 5}}',
        b'{"error": {"code": "made_up", "message": "m"}}',
        b'{"error": {"code": "not_found"}}',
        b'{"error": "not_found"}',
        b'{"in_body": true}',
        b"[" * 60_000,
    ],
)
def test_an_answer_that_makes_no_sense_ends_the_box(boxes: Boxes, payload: bytes) -> None:
    box, _ = boxes(result(payload))
    with pytest.raises(SandboxError):
        box.read("f")
    with pytest.raises(SandboxError):
        box.read("f")


def test_a_known_failure_is_told_in_one_line(boxes: Boxes) -> None:
    box, _ = boxes(result(wire.dumps({"error": {"code": "not_found", "message": "a\nb" * 2_000}})))
    with pytest.raises(ToolFailure) as caught:
        box.read("f")
    assert caught.value.code == "not_found"
    assert "\n" not in caught.value.message
    assert len(caught.value.message) == 2_000


def lies() -> dict[str, Script]:
    def gap(liar: Liar, frame: wire.Frame, _: dict[str, Any]) -> None:
        liar.say(wire.DATA, frame.call, b"x", offset=1)

    def past_window(liar: Liar, frame: wire.Frame, _: dict[str, Any]) -> None:
        for at in range(0, wire.WINDOW + 1, wire.SPLIT):
            liar.say(wire.DATA, frame.call, bytes(wire.SPLIT), offset=at)

    def incomplete(liar: Liar, frame: wire.Frame, _: dict[str, Any]) -> None:
        liar.answer(frame.call, {}, offset=1)

    def request(liar: Liar, frame: wire.Frame, _: dict[str, Any]) -> None:
        liar.say(wire.REQUEST, frame.call, b"{}")

    def noise(liar: Liar, frame: wire.Frame, _: dict[str, Any]) -> None:
        liar.said.put(b"Segmentation fault\n")

    def end(liar: Liar, frame: wire.Frame, _: dict[str, Any]) -> None:
        liar.close()

    def unasked(liar: Liar, frame: wire.Frame, _: dict[str, Any]) -> None:
        liar.say(wire.DATA, frame.call, bytes(11))
        liar.answer(frame.call, {"size": 11, "mode": 0, "stamp": ""}, offset=11)

    return {lie.__name__: lie for lie in (gap, past_window, incomplete, request, noise, end, unasked)}


@pytest.mark.parametrize("lie", lies())
def test_what_is_not_the_protocol_ends_the_box(boxes: Boxes, lie: str) -> None:
    box, _ = boxes(lies()[lie])
    started = time.monotonic()
    with pytest.raises(SandboxError):
        box.read("f", limit=10)
    assert time.monotonic() - started < 2


def test_everyone_who_waits_is_told(boxes: Boxes) -> None:
    box, liar = boxes(lambda *_: None)
    told: list[str] = []

    def wait() -> None:
        with pytest.raises(SandboxError) as caught:
            box.read("f")
        told.append(caught.value.detail)

    threads = [threading.Thread(target=wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    while len([op for _, op in liar.heard if op == "read"]) < 3:
        time.sleep(0.01)
    liar.close()
    for thread in threads:
        thread.join(5)
    assert told == ["the sandbox has ended"] * 3


def test_a_request_without_any_answer_is_asked_again_under_the_same_number(
    boxes: Boxes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "RESEND_S", 0.05)

    def deaf(liar: Liar, frame: wire.Frame, _: dict[str, Any]) -> None:
        if sum(op == "read" for _, op in liar.heard) == 3:
            liar.answer(frame.call, {"size": 0, "mode": 0, "stamp": ""})

    box, liar = boxes(deaf)
    assert box.read("f").size == 0
    numbers = [number for number, op in liar.heard if op == "read"]
    assert len(numbers) == 3
    assert len(set(numbers)) == 1


def test_a_box_that_answers_no_ping_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "PING_S", 0.05)
    liar = Liar(lambda *_: None)
    box = connect(liar, image="i", runtime="r", remove=lambda: None)
    with pytest.raises(SandboxError, match="does not answer"):
        box.read("f")
    assert [op for _, op in liar.heard].count("ping") == channel.MAX_UNANSWERED_PINGS
    box.close()


def test_a_box_that_never_greets_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "RESEND_S", 0.02)

    class Mute(Liar):
        def send(self, data: bytes) -> None:
            self.heard.append((0, "something"))

    removed: list[int] = []
    mute = Mute(lambda *_: None)
    with pytest.raises(SandboxError, match="did not answer in time"):
        connect(mute, image="i", runtime="r", remove=lambda: removed.append(1), hello_timeout_s=0.1)
    assert removed == [1]
    assert len(mute.heard) > 2


def test_results_are_acknowledged_with_the_next_request(boxes: Boxes) -> None:
    def fine(liar: Liar, frame: wire.Frame, _: dict[str, Any]) -> None:
        if frame.kind == wire.REQUEST:
            liar.answer(frame.call, {"size": 0, "mode": 0, "stamp": ""})

    box, liar = boxes(fine)
    box.read("a")
    first = liar.heard[-1][0]
    assert not [frame for frame in liar.frames if frame.kind == wire.DONE]
    box.read("b")
    assert [frame.call for frame in liar.frames if frame.kind == wire.DONE] == [first]


def test_a_long_body_waits_for_credit(boxes: Boxes) -> None:
    size = 3 * wire.WINDOW
    taken: list[int] = []

    def stingy(liar: Liar, frame: wire.Frame, _: dict[str, Any]) -> None:
        if frame.kind != wire.DATA:
            return
        taken.append(len(frame.payload))
        if frame.flags & wire.FIN:
            liar.answer(frame.call, {"created": True, "size": sum(taken), "stamp": ""})
        elif sum(taken) % wire.WINDOW == 0:
            liar.say(wire.CREDIT, frame.call, offset=sum(taken))

    box, _ = boxes(stingy)
    assert box.write("f", bytes(size), overwrite=True).size == size


def test_an_exec_result_of_impossible_shape_is_refused(boxes: Boxes) -> None:
    fine = {"exit_code": 0, "ended": "exited", "oom_killed": False, "cwd": "/", "total_bytes": 0, "duration_ms": 1}
    for wrong in ({"exit_code": 256}, {"ended": "gone"}, {"oom_killed": 0}, {"cwd": None}, {"total_bytes": -1}):
        box, _ = boxes(result(wire.dumps({"ok": {**fine, **wrong}})))
        with pytest.raises(SandboxError):
            list(box.exec("true"))
    box, _ = boxes(result(wire.dumps({"ok": fine})))
    assert list(box.exec("true")) == []


def test_rows_beyond_the_limit_are_refused(boxes: Boxes) -> None:
    rows = [["p", "file", 1, 2]] * 3
    box, _ = boxes(result(wire.dumps({"ok": {"entries": rows, "total": 3}})))
    assert len(box.list(limit=3).entries) == 3
    with pytest.raises(SandboxError):
        box.list(limit=2)
    for row in (["p", "file", 1], ["p", "disk", 1, 2], [1, "file", 1, 2], "row"):
        box, _ = boxes(result(wire.dumps({"ok": {"entries": [row], "total": 1}})))
        with pytest.raises(SandboxError):
            box.list()
