"""What operators see: one JSON line per log record whatever its text, and Prometheus text from the store's counters.

A record is written with every character above ASCII and every control character escaped, so that hostile text can
neither start a second record nor reach the terminal of whoever reads the log. The figures of `/metrics` are computed
from the store on each scrape: workers fork, a counter inside one process would count one process.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import structlog
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from structlog.typing import EventDict, Processor, WrappedLogger

METRICS_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

bound = structlog.contextvars.bound_contextvars
"""`with bound(request_id=…)`: every record inside it carries these members."""


def logger(name: str) -> structlog.stdlib.BoundLogger:
    """A logger of this process: `log.info("task_submitted", task=…)`."""
    log: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(name)
    return log


def configure_logging(level: str = "INFO", *, service: str) -> None:
    """Sends structlog's and the standard library's records to standard error, one JSON object a line."""

    def name_service(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
        event["service"] = service
        return event

    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        name_service,
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.PositionalArgumentsFormatter(), *shared],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(serializer=json.dumps, ensure_ascii=True),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())


@dataclass(frozen=True, slots=True)
class Family:
    """One family of `/metrics`; `samples` maps label values, in the order of `labels`, to the figure."""

    name: str
    help: str
    kind: Literal["gauge", "counter"]
    samples: Mapping[tuple[str, ...], float]
    labels: Sequence[str] = ()


class _Snapshot(Collector):
    def __init__(self, metrics: Iterable[Family]) -> None:
        self._metrics = list(metrics)

    def collect(self) -> Iterator[Metric]:
        for metric in self._metrics:
            family_class = GaugeMetricFamily if metric.kind == "gauge" else CounterMetricFamily
            family = family_class(metric.name, metric.help, labels=list(metric.labels))
            for values, figure in metric.samples.items():
                family.add_metric(list(values), figure)
            yield family


def metrics_text(metrics: Iterable[Family]) -> bytes:
    """The Prometheus text format of these families."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Snapshot(metrics))
    return generate_latest(registry)
