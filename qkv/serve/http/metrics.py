"""Metrics of the server in Prometheus' format.

Recording never raises: a full disk under the files that worker processes share must not fail a request or end a thread.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

log = logging.getLogger(__name__)
SHARED_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""Environment variable with the folder in which worker processes keep their values, so that each can report the sums."""
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128)


class Metrics:
    """Counters of one server in a registry of their own, so that several servers in one process do not mix."""

    def __init__(self) -> None:
        self.registry = r = CollectorRegistry()
        self.requests = Counter("qkv_requests", "Answered requests", ("route", "status"), registry=r)
        self.seconds = Histogram(
            "qkv_request_seconds", "From arrival to the last byte", ("route",), registry=r, buckets=SECONDS
        )
        self.open = Gauge("qkv_open_requests", "Requests in progress", registry=r, multiprocess_mode="livesum")
        self.queued = Gauge(
            "qkv_queue_length", "Texts waiting in the queue", ("model",), registry=r, multiprocess_mode="livesum"
        )
        self.running = Gauge(
            "qkv_running_texts", "Texts being generated", ("model",), registry=r, multiprocess_mode="livesum"
        )
        self.rows = Histogram("qkv_batch_texts", "Texts per computed batch", ("model",), registry=r, buckets=ROWS)
        self.tokens = Counter("qkv_tokens", "Generated tokens", ("model",), registry=r)
        self.failures = Counter("qkv_failures", "Internal errors", ("model",), registry=r)
        self.sampled: list[tuple[Gauge, Callable[[], float]]] = []
        self.broken = False
        """Whether recording has failed; it is logged once."""

    def sample(self, gauge: Gauge, value: Callable[[], float]) -> None:
        """Register a function that every refresh reads into a gauge, since other processes cannot call it."""
        self.sampled.append((gauge, value))

    def refresh(self) -> None:
        for gauge, value in self.sampled:
            gauge.set(value())

    def record_request(self, route: str, status: int, seconds: float) -> None:
        try:
            self.requests.labels(route, status).inc()
            self.seconds.labels(route).observe(seconds)
            self.refresh()
        except Exception:
            self.report()

    def record_batch(self, model: str, texts: int, tokens: int = 0) -> None:
        """Record that `texts` were computed together, which gave so many tokens."""
        try:
            self.rows.labels(model).observe(texts)
            self.tokens.labels(model).inc(tokens)
            self.refresh()
        except Exception:
            self.report()

    def record_failure(self, model: str) -> None:
        try:
            self.failures.labels(model).inc()
        except Exception:
            self.report()

    def report(self) -> None:
        if not self.broken:
            self.broken = True
            log.exception("metrics cannot be recorded; requests are answered without them")

    def text(self) -> bytes:
        self.refresh()
        if SHARED_FOLDER not in os.environ:
            return generate_latest(self.registry)
        every = CollectorRegistry()
        MultiProcessCollector(every)  # type: ignore[no-untyped-call]
        return generate_latest(every)
