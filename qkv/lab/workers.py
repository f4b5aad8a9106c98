"""MeasurementPool: processes with one thread each that take measurements of one experiment in parallel."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context
from types import TracebackType
from typing import Any

from qkv.device import cores
from qkv.errors import QkvError
from qkv.train.launch import one_thread

Job = tuple[Callable[..., Any], tuple[Any, ...]]
"""A module-level function and its arguments."""


@contextmanager
def report_killed_process() -> Iterator[None]:
    """Turn the error of a pool whose process was killed into one line."""
    try:
        yield
    except BrokenProcessPool:
        raise QkvError(
            "a measurement process was killed, perhaps for lack of memory: run the same command again, with --jobs 1 if necessary"
        ) from None


def run_job(work: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Run a measurement with one thread, so that its results do not depend on how many run in parallel."""
    with one_thread():
        return work(*arguments)


def run_in_process(work: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Run a measurement in a process of the pool; Ctrl-C ends the process, so that it takes no further one."""
    try:
        return run_job(work, arguments)
    except KeyboardInterrupt:
        os._exit(130)


class MeasurementPool:
    """`count` processes (default: one per core), started at the first use; with one, measurements run in this process.

    The processes are spawned: a fork would copy locks of torch's threads, some of which may be held.
    """

    def __init__(self, count: int | None = None):
        self.count = count or cores()
        self.executor: ProcessPoolExecutor | None = None

    def run(self, jobs: Mapping[str, Job]) -> Iterator[tuple[str, Any]]:
        """Yield the name and value of each job as it completes."""
        if self.count < 2 or len(jobs) < 2:
            for name, (work, arguments) in jobs.items():
                yield name, run_job(work, arguments)
            return
        if self.executor is None:
            self.executor = ProcessPoolExecutor(self.count, get_context("spawn"))
        names: dict[Future[Any], str] = {
            self.executor.submit(run_in_process, work, arguments): name for name, (work, arguments) in jobs.items()
        }
        try:
            with report_killed_process():
                for future in as_completed(names):
                    yield names[future], future.result()
        except QkvError:
            self.close()  # the other jobs would slow down those of the next experiment
            raise

    def close(self) -> None:
        if self.executor is not None:
            self.executor.shutdown(wait=True, cancel_futures=True)
            self.executor = None

    def __enter__(self) -> MeasurementPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
