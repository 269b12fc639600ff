"""Metrics of a running service, for Prometheus."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from nearwise.serve.service import Service

_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096)
_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


class Monitoring:
    """Counters of one service, and gauges that are computed on request."""

    def __init__(self, service: "Service") -> None:
        self._registry = CollectorRegistry()
        self.requests = Counter(
            "nearwise_requests",
            "Requests, by route and status.",
            ["method", "route", "status"],
            registry=self._registry,
        )
        self.seconds = Histogram(
            "nearwise_request_seconds",
            "Seconds from a request to its answer.",
            ["route"],
            buckets=_SECONDS,
            registry=self._registry,
        )
        self.rows = Counter("nearwise_rows", "Rows that were predicted.", registry=self._registry)
        self.batch_rows = Histogram(
            "nearwise_batch_rows",
            "Rows that were predicted together.",
            buckets=_ROWS,
            registry=self._registry,
        )
        self._registry.register(_Gauges(service))

    def text(self) -> bytes:
        """All metrics, in Prometheus' text format."""
        return generate_latest(self._registry)


class _Gauges(Collector):
    def __init__(self, service: "Service") -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        """Yield the present values."""
        now = self._service.live.now
        n_waiting = self._service.predictions.n_waiting
        yield GaugeMetricFamily("nearwise_memory_rows", "Remembered rows.", now.fitted.n_remembered)
        yield GaugeMetricFamily("nearwise_memory_version", "Changes since the fit.", now.number)
        about = {"task": self._service.task.TASK, "target": now.fitted.target_name}
        yield InfoMetricFamily("nearwise_model", "What is predicted.", value=about)
        yield GaugeMetricFamily("nearwise_waiting", "Predictions that wait.", n_waiting)
