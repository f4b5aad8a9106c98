"""Worker processes: limits hold for all together, threads survive errors in metrics, restarts back off and give up."""

from __future__ import annotations

import asyncio
import multiprocessing
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")
from served import language_model, model, served

from qkv.errors import QkvError
from qkv.generate.sequence import Sampler
from qkv.serve.app import create_app
from qkv.serve.http.errors import ApiError
from qkv.serve.http.limits import Limits
from qkv.serve.scheduling import workers
from qkv.serve.scheduling.queue import RequestQueue
from qkv.serve.scheduling.scheduled_text import ScheduledText
from qkv.serve.scheduling.served_model import ServedModel
from qkv.serve.scheduling.workers import SharedCounts, StartFailed, Supervisor, Worker
from qkv.serve.server import create_service
from qkv.serve.settings import Settings

# --- limits of all workers together


def test_the_queue_limit_holds_for_all_workers_together() -> None:
    async def scene() -> None:
        counts, limits = SharedCounts(workers=2, models=1), Limits(waiting=4)
        first, second = (RequestQueue(limits, 1, counts.waiting_of(0, worker)[0]) for worker in (0, 1))
        text = lambda: ScheduledText([1], None, Sampler(5, ()))  # noqa: E731
        first.put([text() for _ in range(3)])
        with pytest.raises(ApiError, match=r"queue is full \(3 texts\)"):
            second.put([text(), text()])
        second.put([text()])
        with pytest.raises(ApiError, match="queue is full"):
            first.put([text()])
        first.take(0, [], 0)  # its batch has room for all of them
        second.put([text() for _ in range(3)])
        assert counts.waiting_of(0, 0)[0].total() == 4
        counts.reset(1)  # the second worker has died
        first.put([text() for _ in range(4)])

    asyncio.run(scene())


def test_a_worker_gets_its_cells_of_the_shared_counts(tmp_path: Path) -> None:
    """In the queue and the batcher of each model, and in the middleware."""
    language_model().save(tmp_path / "lm")
    counts = SharedCounts(workers=2, models=1)
    service = create_service(Settings([str(tmp_path / "lm")], limits=Limits(connections=3)), counts, 1)
    middleware = create_app(service)
    service.start()
    try:
        lm = service.models[0]
        lm.queue.count.set(5)
        lm.batcher.queue.count.set(7)
        middleware.count.set(2)
        assert list(counts.waiting[0]) == [0, 0, 5, 7] and list(counts.requests) == [0, 2]
    finally:
        service.close()


def test_counts_are_shared_with_processes() -> None:
    counts = SharedCounts(workers=2, models=1)
    process = multiprocessing.get_context("spawn").Process(target=fill, args=(counts,))
    process.start()
    process.join(60)
    assert counts.waiting_of(0, 0)[0].total() == 3 and not counts.waiting_of(0, 0)[0].try_set(2, limit=4)


def fill(counts: SharedCounts) -> None:
    assert counts.waiting_of(0, 1)[0].try_set(3, limit=4)


# --- threads


def broken(*_: Any) -> None:
    raise OSError("no space left on device")


def test_threads_survive_metrics_that_cannot_be_recorded(caplog: pytest.LogCaptureFixture) -> None:
    models = [ServedModel("lm", language_model()), ServedModel("tags", model("bert-base", head="tags"))]
    with served(models) as client:
        service = client.service  # type: ignore[attr-defined]
        service.metrics.sample(service.metrics.open, broken)
        for _ in range(2):
            assert client.post("/api/generate", json={"prompt": "the dog", "max_tokens": 3}).status_code == 200
            assert client.post("/api/tag", json={"texts": "the dog"}).status_code == 200
        assert all(thread.is_alive() for one in models for thread in one.threads)
        assert client.get("/health").json() == {"status": "ok"}
    assert sum("metrics cannot be recorded" in record.message for record in caplog.records) == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_health_reports_dead_threads() -> None:
    with served([ServedModel("lm", language_model(), batches=1)]) as client:
        (thread,) = client.service.models[0].schedulers  # type: ignore[attr-defined]
        thread.queue.take = broken
        with thread.queue.changed:
            thread.queue.changed.notify_all()
        client.post("/api/generate", json={"prompt": "the dog", "max_tokens": 1})  # the last that it takes
        thread.join(60)
        reply = client.get("/health")
        assert reply.status_code == 503 and reply.json() == {"status": "failed", "dead_threads": ["lm-0"]}


# --- restarts


def test_restarts_wait_longer_after_each_failure_until_a_worker_was_healthy() -> None:
    worker = Worker(0)
    delays = []
    for _ in range(9):
        worker.ready_since = 100.0
        delays.append(worker.ended(now=101.0))
    assert delays[:4] == [0.5, 1.0, 2.0, 4.0] and delays[-2:] == [30.0, 30.0] and worker.start_failures == 0
    worker.ready_since = 100.0
    assert worker.ended(now=100.0 + workers.HEALTHY) == 0.5
    assert worker.ended(now=200.0) == 1.0 and worker.start_failures == 1


class FakeProcess:
    pid, exitcode, sentinel = 0, 9, None

    def is_alive(self) -> bool:
        return False

    def join(self) -> None: ...


class FakeReports:
    def __init__(self, *messages: Any):
        self.messages = list(messages)

    def poll(self) -> bool:
        return bool(self.messages)

    def recv(self) -> Any:
        return self.messages.pop(0)


class Simulated(Supervisor):
    """Workers that report what the test says and end at once, on a clock that the waits move on."""

    def __init__(self, *starts: list[Any]):
        super().__init__(lambda number, reports: None, count=1)
        self.starts, self.clock, self.waits, self.lines = list(starts), 0.0, list[float](), list[str]()

    def now(self) -> float:
        return self.clock

    def wait_for_events(self) -> None:
        times = [worker.restart_at for worker in self.pending() if worker.restart_at is not None]
        if times and not self.running():
            self.waits.append(min(times) - self.clock)
            self.clock = min(times)

    def start(self, worker: Worker) -> None:
        worker.restart_at, worker.process, worker.reason = None, FakeProcess(), ""
        worker.reports = FakeReports(*(self.starts.pop(0) if self.starts else [StartFailed("no memory")]))  # type: ignore[assignment]

    def log(self, message: str) -> None:
        self.lines.append(message)


def test_a_worker_that_cannot_start_again_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "mark_process_dead", lambda *_: None)
    supervisor = Simulated([workers.Ready(["lm"])])
    with pytest.raises(QkvError, match=r"no worker is left: the last one failed to start 5 times \(no memory\)"):
        supervisor.run(lambda lines: None)
    assert supervisor.waits == [0.5, 1.0, 2.0, 4.0, 8.0] and not supervisor.starts
    assert supervisor.lines[0] == "worker 1 of 1 ended (exit code 9): next start in 0.5 s"
    assert supervisor.lines[1] == "worker 1 of 1 failed to start (no memory): next start in 1 s"


def test_the_first_worker_is_not_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its error is the user's: a folder that is no model."""
    monkeypatch.setattr(workers, "mark_process_dead", lambda *_: None)
    supervisor = Simulated([StartFailed("there is no model in this folder")])
    with pytest.raises(QkvError, match="there is no model in this folder"):
        supervisor.run(lambda lines: None)
    assert supervisor.waits == []
