"""Metrics of the server in Prometheus' format.

Recording never raises: a full disk under the files that worker processes share must not fail a request or end a thread.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

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
        gauge = partial(Gauge, registry=r, multiprocess_mode="livesum")
        histogram = partial(Histogram, registry=r)
        self.requests = Counter("qkv_requests", "Answered requests", ("route", "status"), registry=r)
        self.seconds = histogram("qkv_request_seconds", "From arrival to the last byte", ("route",), buckets=SECONDS)
        self.open = gauge("qkv_open_requests", "Requests in progress")
        self.queued = gauge("qkv_queue_length", "Texts waiting in the queue", ("model",))
        self.running = gauge("qkv_running_texts", "Texts being generated", ("model",))
        self.rows = histogram("qkv_batch_texts", "Texts per computed batch", ("model",), buckets=ROWS)
        self.tokens = Counter("qkv_tokens", "Generated tokens", ("model",), registry=r)
        self.failures = Counter("qkv_failures", "Internal errors", ("model",), registry=r)
        self.sampled: list[tuple[Gauge, Callable[[], float]]] = []
        self.broken = False
        """Whether recording has failed; it is logged once."""

    def sample(self, gauge: Gauge, value: Callable[[], float]) -> None:
        """Register a function whose value goes into a gauge with every record, since other processes cannot call it."""
        self.sampled.append((gauge, value))

    def record_request(self, route: str, status: int, seconds: float) -> None:
        with self.recording():
            self.requests.labels(route, status).inc()
            self.seconds.labels(route).observe(seconds)

    def record_batch(self, model: str, texts: int, tokens: int = 0) -> None:
        """Record that `texts` were computed together, which gave so many tokens."""
        with self.recording():
            self.rows.labels(model).observe(texts)
            self.tokens.labels(model).inc(tokens)

    def record_failure(self, model: str) -> None:
        with self.recording():
            self.failures.labels(model).inc()

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Refresh the sampled gauges after the block; log the first error instead of raising it."""
        try:
            yield
            for gauge, value in self.sampled:
                gauge.set(value())
        except Exception:
            if not self.broken:
                self.broken = True
                log.exception("metrics cannot be recorded; requests are answered without them")

    def text(self) -> bytes:
        with self.recording():
            pass  # only the gauges
        if SHARED_FOLDER not in os.environ:
            return generate_latest(self.registry)
        every = CollectorRegistry()
        MultiProcessCollector(every)  # type: ignore[no-untyped-call]
        return generate_latest(every)
