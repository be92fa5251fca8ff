"""A box that wears its worker down: floods of frames, busy signals for ever, a pipe that takes nothing, odd text."""

from __future__ import annotations

import threading
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from test_channel import Liar, Script

from sandbox_image.toolserver import wire
from service.errors import SandboxError
from worker.sandbox import box as box_module
from worker.sandbox import channel
from worker.sandbox.base import ToolFailure
from worker.sandbox.box import Box, connect

FRAMES = 30_000


def opened(script: Script, make: Callable[[Script], Liar] = Liar) -> Box:
    return connect(make(script), image="i", runtime="r", remove=lambda: None)


@pytest.mark.parametrize("kind", [wire.ACK, wire.CREDIT, wire.DATA, wire.RESULT])
def test_frames_that_nobody_waits_for_cost_no_memory(kind: int) -> None:
    """The consumer is busy elsewhere (an export asks its own box meanwhile) while the task's box goes on talking."""
    read = threading.Event()

    def flood(liar: Liar, frame: wire.Frame, request: dict[str, Any]) -> None:
        if request.get("op") != "changes":
            return
        liar.say(wire.DATA, frame.call, b"x")
        liar.said.put(wire.encode(liar.token, kind, frame.call, b"{}" if kind == wire.RESULT else b"", offset=1))
        liar.said.put(b"flood")

    class Flood(Liar):
        left = FRAMES // 1_000

        def receive(self) -> bytes:
            chunk = super().receive()
            if chunk != b"flood":
                self.last = chunk
                return chunk
            self.left -= 1
            if self.left:
                self.said.put(chunk)
            else:
                read.set()
            return self.last * 1_000

    box = opened(flood, Flood)
    tracemalloc.start()
    try:
        stream = box.changes()
        assert next(iter(stream)) == b"x"
        before = tracemalloc.get_traced_memory()[0]
        assert read.wait(30)
        time.sleep(0.2)
        assert tracemalloc.get_traced_memory()[0] - before < 1 << 20
    finally:
        tracemalloc.stop()
        box.close()


def test_a_box_that_is_busy_for_ever_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(box_module, "GRACE_S", 0.2)

    def busy(liar: Liar, frame: wire.Frame, request: dict[str, Any]) -> None:
        def talk() -> None:
            for _ in range(50):
                time.sleep(0.05)
                liar.say(wire.ACK, frame.call)
                liar.say(wire.DATA, frame.call)

        if request.get("op") == "exec":
            threading.Thread(target=talk, daemon=True).start()

    box = opened(busy)
    started = time.monotonic()
    with pytest.raises(SandboxError, match="did not answer in time"):
        list(box.exec("true", timeout_s=0.1))
    assert time.monotonic() - started < 2
    box.close()


def test_a_send_that_stands_still_is_noticed_by_the_pings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "PING_S", 0.1)
    stuck = threading.Event()

    class Full(Liar):
        def send(self, data: bytes) -> None:
            if stuck.is_set() or b'"op":"write"' in data:
                stuck.set()
                if self.closed.wait(10):
                    raise SandboxError("closed")
            super().send(data)

        def close(self) -> None:
            self.closed.set()
            super().close()

        closed = threading.Event()

    box = opened(lambda *_: None, Full)
    started = time.monotonic()
    canceller = threading.Thread(target=lambda: (stuck.wait(5), box.cancel()))
    canceller.start()
    with pytest.raises(SandboxError, match="does not answer"):
        box.write("f", b"x", overwrite=True)
    canceller.join(5)
    assert time.monotonic() - started < 3
    box.close()


FINE = {"exit_code": 0, "ended": "exited", "oom_killed": False, "cwd": "/", "total_bytes": 0, "duration_ms": 1}


@pytest.mark.parametrize(
    ("ask", "ok"),
    [
        (lambda box: list(box.exec("x")), {**FINE, "cwd": "/\ud800"}),
        (lambda box: box.list(), {"entries": [["\ud800", "file", 1, 1]], "total": 1}),
        (lambda box: box.glob("*"), {"entries": [["\udc00", "file", 1, 1]], "total": 1}),
        (lambda box: box.search("x"), {"matches": [["\ud800", 1, "t"]], "total_matches": 1, "total_files": 1}),
        (lambda box: box.search("x"), {"matches": [["p", 1, "\ud800"]], "total_matches": 1, "total_files": 1}),
    ],
)
def test_text_that_stands_for_no_bytes_is_refused(ask: Callable[[Box], object], ok: dict[str, Any]) -> None:
    box = opened(lambda liar, frame, _: liar.answer(frame.call, ok))
    with pytest.raises(SandboxError):
        ask(box)
    box.close()


def test_a_refusal_is_text_that_can_be_written_down() -> None:
    said = wire.dumps({"error": {"code": "not_found", "message": "no \ud800 \udcff"}})
    box = opened(lambda liar, frame, _: liar.say(wire.RESULT, frame.call, said))
    with pytest.raises(ToolFailure) as caught:
        box.read("f")
    assert caught.value.message == "no \\ud800 \\udcff"
    box.close()


def test_an_answer_right_before_the_end_arrives() -> None:
    def last_words(liar: Liar, frame: wire.Frame, _: dict[str, Any]) -> None:
        liar.said.put(
            wire.encode(liar.token, wire.DATA, frame.call, b"out")
            + wire.encode(liar.token, wire.RESULT, frame.call, wire.dumps({"ok": {**FINE, "total_bytes": 3}}), offset=3)
        )
        liar.close()

    box = opened(last_words)
    assert list(box.exec("x")) == [b"out"]
    box.close()


def test_a_box_that_cannot_be_removed_now_is_left_to_the_reaper() -> None:
    def away() -> None:
        raise SandboxError("removing: the Docker engine does not answer")

    box = connect(Liar(lambda *_: None), image="i", runtime="r", remove=away)
    box.close()
    box.close()
