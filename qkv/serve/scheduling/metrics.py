"""Metrics: what a server counts, in Prometheus' format."""

from __future__ import annotations

import os
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from qkv.serve.scheduling.workers import SHARED

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128)


class Metrics:
    """In a registry of its own: several servers in one process do not mix. Several workers of one server keep their numbers in
    files, and each tells the sums."""

    def __init__(self) -> None:
        self.registry = r = CollectorRegistry()
        self.requests = Counter("qkv_requests", "Answered requests", ("route", "status"), registry=r)
        self.seconds = Histogram(
            "qkv_request_seconds", "From arrival to the last byte", ("route",), registry=r, buckets=SECONDS
        )
        self.open = Gauge(
            "qkv_open_requests", "Requests that are being answered", registry=r, multiprocess_mode="livesum"
        )
        self.queue = Gauge(
            "qkv_queue_length", "Texts that wait for a place", ("model",), registry=r, multiprocess_mode="livesum"
        )
        self.going = Gauge(
            "qkv_running_texts", "Texts that are being written", ("model",), registry=r, multiprocess_mode="livesum"
        )
        self.rows = Histogram(
            "qkv_batch_texts", "Texts that were computed together, at each step", ("model",), registry=r, buckets=ROWS
        )
        self.tokens = Counter("qkv_tokens", "Tokens that were written", ("model",), registry=r)
        self.failures = Counter("qkv_failures", "Internal errors", ("model",), registry=r)

        self.watched: list[tuple[Gauge, Callable[[], float]]] = []

    def watch(self, model: str, queue: Callable[[], float], going: Callable[[], float]) -> None:
        """Two numbers that are read whenever they may have changed: another worker cannot ask for them."""
        self.watched += [(self.queue.labels(model), queue), (self.going.labels(model), going)]

    def refresh(self) -> None:
        for gauge, now in self.watched:
            gauge.set(now())

    def text(self) -> bytes:
        self.refresh()
        if SHARED not in os.environ:
            return generate_latest(self.registry)
        every = CollectorRegistry()
        MultiProcessCollector(every)  # type: ignore[no-untyped-call]
        return generate_latest(every)
