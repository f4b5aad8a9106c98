"""Worker processes behind one port, and the supervisor that starts, restarts and ends them.

Python computes in one thread at a time, and of a small model most of the work is Python's: two processes answer nearly twice as
many requests as one process with two threads. Each has its own models, batches, queues and socket; the kernel distributes
connections among them. Limits hold for all processes together (SharedCounts). The supervisor serves no requests.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.sharedctypes import RawArray
from types import FrameType
from typing import Any

from prometheus_client.multiprocess import mark_process_dead

from qkv.errors import QkvError
from qkv.serve.http.limits import SharedCount
from qkv.serve.http.metrics import SHARED_FOLDER

END_SIGNALS = (signal.SIGTERM, signal.SIGINT)
FIRST_DELAY, LONGEST_DELAY = 0.5, 30.0
"""Seconds before a worker that ended is started again: twice as long after each failure, up to the longest."""
HEALTHY = 60.0
"""Seconds for which a worker must have answered requests for its failures to be forgotten."""
START_FAILURES = 5
"""A worker that fails to start so many times in a row is given up."""


class SharedCounts:
    """Counts that all worker processes share, in memory that they inherit."""

    def __init__(self, workers: int, models: int):
        self.requests = RawArray("l", workers)
        self.waiting = [RawArray("l", 2 * workers) for _ in range(models)]

    def requests_of(self, worker: int) -> SharedCount:
        return SharedCount(self.requests, worker)

    def waiting_of(self, model: int, worker: int) -> tuple[SharedCount, SharedCount]:
        """The counts of a model's queue and of its batcher."""
        return SharedCount(self.waiting[model], 2 * worker), SharedCount(self.waiting[model], 2 * worker + 1)

    def reset(self, worker: int) -> None:
        """Forget the contribution of a worker that died."""
        self.requests[worker] = 0
        for cells in self.waiting:
            cells[2 * worker] = cells[2 * worker + 1] = 0


@dataclass(frozen=True)
class Ready:
    """Sent by a worker that answers requests now."""

    description: list[str]


@dataclass(frozen=True)
class StartFailed:
    """Sent by a worker that cannot start."""

    reason: str


Target = Callable[[int, Connection], None]
"""What a worker process runs: its number, and the pipe to which it sends Ready or StartFailed. It must be picklable."""


# --- in the worker process


def enter_worker() -> None:
    """Prepare the process: signals come from the supervisor alone, and the process ends when the supervisor is gone."""
    if hasattr(os, "setpgrp"):
        os.setpgrp()  # Ctrl-C goes to the supervisor, which passes it on
    mask_end_signals(signal.SIG_UNBLOCK)
    threading.Thread(target=end_with_parent, daemon=True).start()


def mask_end_signals(how: int) -> None:
    """Block or unblock termination signals."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(how, END_SIGNALS)


def end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGTERM)


# --- in the supervisor


@dataclass(eq=False)
class Worker:
    """One worker process, and when to start it again."""

    number: int
    process: Any = None
    reports: Connection | None = None
    ready_since: float | None = None
    reason: str = ""
    """Why it could not start, if it said so."""
    failures: int = 0
    """How often in a row it ended before it was healthy."""
    start_failures: int = 0
    """How often in a row it ended before it was ready."""
    restart_at: float | None = None

    def ended(self, now: float) -> float:
        """Count a failure; return the seconds to wait before the next start."""
        healthy = self.ready_since is not None and now - self.ready_since >= HEALTHY
        self.failures = 1 if healthy else self.failures + 1
        self.start_failures = 0 if self.ready_since is not None else self.start_failures + 1
        self.process = self.reports = self.ready_since = None
        return min(LONGEST_DELAY, FIRST_DELAY * 2 ** (self.failures - 1))


class Supervisor:
    """Keeps `count` workers running; `run` returns when they have ended."""

    def __init__(self, target: Target, count: int, counts: SharedCounts | None = None):
        self.target, self.counts = target, counts
        self.spawn = multiprocessing.get_context("spawn")  # forking a process with running threads may deadlock
        self.workers = [Worker(number) for number in range(count)]
        self.started = self.closing = False

    def run(self, on_ready: Callable[[list[str]], None]) -> None:
        """Start a worker, and the others once it is ready: an invalid model is reported once. Then call `on_ready`."""
        before = {number: signal.signal(number, self.end) for number in END_SIGNALS}
        try:
            with tempfile.TemporaryDirectory(prefix="qkv-") as folder:
                os.environ[SHARED_FOLDER] = folder
                self.supervise(folder, on_ready)
        finally:
            os.environ.pop(SHARED_FOLDER, None)
            for number, handler in before.items():
                signal.signal(number, handler)

    def supervise(self, folder: str, on_ready: Callable[[list[str]], None]) -> None:
        try:
            self.start(self.workers[0])
            while self.running() or self.pending():
                self.wait_for_events()
                for worker in self.running():
                    if worker.reports is not None and worker.reports.poll():
                        self.receive(worker, on_ready)
                    elif not worker.process.is_alive():
                        mark_process_dead(worker.process.pid, folder)  # type: ignore[no-untyped-call]
                        self.handle_exit(worker)
                for worker in self.pending():
                    if worker.restart_at is not None and worker.restart_at <= self.now():
                        self.start(worker)
        finally:  # whatever went wrong here, no worker is left behind
            self.end(signal.SIGTERM)
            for worker in self.running():
                worker.process.join()

    def running(self) -> list[Worker]:
        return [worker for worker in self.workers if worker.process is not None]

    def pending(self) -> list[Worker]:
        """Workers that are to be started again."""
        return [] if self.closing else [worker for worker in self.workers if worker.restart_at is not None]

    def now(self) -> float:
        return time.monotonic()

    def wait_for_events(self) -> None:
        """Wait until a worker sends a report or ends, or one may be started again; a pending start looks out for signals."""
        running = self.running()
        times = [worker.restart_at for worker in self.pending() if worker.restart_at is not None]
        timeout = min(1.0, max(0.0, min(times) - self.now())) if times else None
        pipes = [worker.reports for worker in running if worker.reports is not None]
        wait([*(worker.process.sentinel for worker in running), *pipes], timeout)

    def start(self, worker: Worker) -> None:
        """Start a worker unless the server is shutting down; a signal that arrives meanwhile reaches it."""
        mask_end_signals(signal.SIG_BLOCK)
        try:
            worker.restart_at = None
            if self.closing:
                return
            reading, writing = self.spawn.Pipe(duplex=False)
            process = self.spawn.Process(target=self.target, args=(worker.number, writing))
            process.start()  # it inherits the blocked signals, until it can handle them
            writing.close()
            worker.process, worker.reports, worker.reason = process, reading, ""
        finally:
            mask_end_signals(signal.SIG_UNBLOCK)

    def receive(self, worker: Worker, on_ready: Callable[[list[str]], None]) -> None:
        assert worker.reports is not None
        try:
            report = worker.reports.recv()
        except EOFError:  # it is about to end
            worker.reports = None
            return
        if isinstance(report, StartFailed):
            worker.reason = report.reason
            return
        worker.ready_since = self.now()
        if not self.started and not self.closing:
            self.started = True
            on_ready(report.description)
            for other in self.workers[1:]:
                self.start(other)

    def handle_exit(self, worker: Worker) -> None:
        """Schedule the next start of a worker that ended; give it up if it failed to start too often."""
        was_ready, code = worker.ready_since is not None, worker.process.exitcode
        if self.counts is not None:
            self.counts.reset(worker.number)
        delay = worker.ended(self.now())
        if self.closing:
            return
        reason = worker.reason or f"exit code {code}"
        if not self.started:
            raise QkvError(
                worker.reason or f"a worker ended while it started (exit code {code}): is there enough memory?"
            )
        name = f"worker {worker.number + 1} of {len(self.workers)}"
        if worker.start_failures >= START_FAILURES:
            if not self.running() and not self.pending():
                raise QkvError(f"no worker is left: the last one failed to start {START_FAILURES} times ({reason})")
            self.log(f"{name} failed to start {START_FAILURES} times ({reason}): it is not started again")
            return
        worker.restart_at = self.now() + delay
        self.log(f"{name} {'ended' if was_ready else 'failed to start'} ({reason}): next start in {delay:g} s")

    def log(self, message: str) -> None:
        print(message, file=sys.stderr, flush=True)

    def end(self, number: int, frame: FrameType | None = None) -> None:
        """Pass a signal on: workers that answer requests finish them, those that are still starting end at once."""
        self.closing = True
        for worker in self.running():
            if worker.process.is_alive():
                os.kill(worker.process.pid, number if worker.ready_since is not None else signal.SIGTERM)
