"""What Prometheus reads from /metrics. Times are in seconds."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""Of the format that `Metrics.text` is in."""


class Metrics:
    """The figures of one server, in a registry of their own."""

    def __init__(self) -> None:
        own = self._registry = CollectorRegistry()
        self.requests = Counter("aot_requests", "Requests for inference.", ["protocol"], registry=own)
        self.failures = Counter(
            "aot_request_failures", "Requests not answered with outputs.", ["protocol", "reason"], registry=own
        )
        self.queue = Gauge("aot_queue_length", "Requests that wait.", registry=own)
        self.queue_seconds = Histogram("aot_queue_seconds", "Wait of a request.", buckets=SECONDS, registry=own)
        self.compute_seconds = Histogram(
            "aot_compute_seconds", "Computation of a batch.", buckets=SECONDS, registry=own
        )
        self.batch_requests = Histogram("aot_batch_requests", "Requests in a batch.", buckets=SIZES, registry=own)
        self.batch_rows = Histogram("aot_batch_rows", "Rows in a batch.", buckets=SIZES, registry=own)

    def batch(self, requests: int, rows: int, waited: Sequence[float]) -> None:
        """A batch is computed now. waited: seconds, of each of its requests."""
        self.batch_requests.observe(requests)
        self.batch_rows.observe(rows)
        for seconds in waited:
            self.queue_seconds.observe(seconds)

    def text(self) -> bytes:
        """All of them in Prometheus' text format."""
        return generate_latest(self._registry)
