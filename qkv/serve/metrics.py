"""Metrics: what a server counts, in Prometheus' format."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128)


class Metrics:
    """In a registry of its own: several servers in one process do not mix."""

    def __init__(self) -> None:
        self.registry = r = CollectorRegistry()
        self.requests = Counter("qkv_requests", "Answered requests", ("route", "status"), registry=r)
        self.seconds = Histogram(
            "qkv_request_seconds", "From arrival to the last byte", ("route",), registry=r, buckets=SECONDS
        )
        self.open = Gauge("qkv_open_requests", "Requests that are being answered", registry=r)
        self.queue = Gauge("qkv_queue_length", "Texts that wait for a place", ("model",), registry=r)
        self.going = Gauge("qkv_running_texts", "Texts that are being written", ("model",), registry=r)
        self.rows = Histogram(
            "qkv_batch_texts", "Texts that were computed together, at each step", ("model",), registry=r, buckets=ROWS
        )
        self.tokens = Counter("qkv_tokens", "Tokens that were written", ("model",), registry=r)
        self.failures = Counter("qkv_failures", "Batches that failed for reasons of our own", ("model",), registry=r)

    def watch(self, model: str, queue: Callable[[], float], going: Callable[[], float]) -> None:
        """Two numbers that are read when somebody asks."""
        self.queue.labels(model).set_function(queue)
        self.going.labels(model).set_function(going)

    def text(self) -> bytes:
        return generate_latest(self.registry)
