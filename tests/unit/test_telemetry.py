"""Log lines and figures: one JSON line per record whatever its text; Prometheus reads what we write."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from service import telemetry

HOSTILE = 'a\nb\r\n{"event": "forged"}\x1b[31m\x9b\x00\u202e\u2028 \ud800 end'


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    out = io.StringIO()
    monkeypatch.setattr(sys, "stderr", out)
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    telemetry.configure_logging("INFO", service="api")
    yield out
    root.handlers, root.level = handlers, level


@pytest.mark.parametrize("standard", [True, False])
def test_hostile_text_stays_inside_one_ascii_json_line(lines: io.StringIO, standard: bool) -> None:
    with telemetry.bound(request_id="req_1"):
        if standard:
            logging.getLogger("uvicorn.error").warning("said %s", HOSTILE)
        else:
            telemetry.logger("x").warning("said", text=HOSTILE)
    written = lines.getvalue()
    assert written.count("\n") == 1
    assert written.endswith("\n")
    assert written[:-1].isascii()
    assert written[:-1].isprintable()
    record = json.loads(written)
    assert (record["event"], record.get("text")) == (
        f"said {HOSTILE}" if standard else "said",
        None if standard else HOSTILE,
    )
    assert (record["request_id"], record["service"], record["level"]) == ("req_1", "api", "warning")


def test_an_exception_is_one_line_too(lines: io.StringIO) -> None:
    try:
        int("x\ny" + "1")
    except ValueError:
        telemetry.logger("x").exception("failed")
    assert lines.getvalue().count("\n") == 1
    assert "ValueError: invalid literal" in json.loads(lines.getvalue())["exception"]


def test_figures_are_prometheus_text() -> None:
    text = telemetry.metrics_text(
        [
            telemetry.Family("py_queued", "Waiting", "gauge", {(): 3}),
            telemetry.Family("py_done", "Ended", "counter", {("completed",): 2, ('a"b\n',): 1}, labels=["exit_reason"]),
        ]
    )
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }
    assert samples == {("py_queued",): 3.0, ("py_done_total", "completed"): 2.0, ("py_done_total", 'a"b\n'): 1.0}
