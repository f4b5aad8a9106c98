"""The queue of texts that wait for a place in a running batch, first come, first served."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from qkv.serve.http.errors import overload_error, shutting_down
from qkv.serve.http.limits import Limits, SharedCount
from qkv.serve.scheduling.scheduled_text import ScheduledText

PATIENCE = 4
"""Adding texts to a batch costs about as much as a step: a few new ones wait until so many steps have passed."""


class Queued(Protocol):
    """What waits in a queue."""

    @property
    def texts(self) -> int:
        """How many texts it has."""

    @property
    def cancelled(self) -> bool:
        """Whether its result is no longer needed."""


T = TypeVar("T", bound=Queued)


class BoundedQueue(Generic[T]):
    """What waits for the threads of one model: at most `limits.waiting` texts in all worker processes."""

    purpose = "generate"

    def __init__(self, limits: Limits, count: SharedCount | None = None):
        self.limits = limits
        self.waiting: deque[T] = deque()
        self.count = count or SharedCount()
        """Texts that wait for this model in all worker processes."""
        self.changed = threading.Condition()
        self.closing = False

    def put(self, items: Sequence[T]) -> None:
        """Add all of these items or none; raise an error if the queue is full."""
        new = sum(item.texts for item in items)
        self.limits.check("waiting", new, f"texts to {self.purpose} at once")
        with self.changed:
            if self.closing:
                raise shutting_down()
            waiting = sum(item.texts for item in self.remove_cancelled())
            if not self.count.try_set(waiting + new, self.limits.waiting):
                raise overload_error(f"the queue is full ({self.count.total()} texts)")
            self.waiting.extend(items)
            self.changed.notify_all()

    def close(self) -> None:
        """Accept nothing more; what is queued is still computed."""
        with self.changed:
            self.closing = True
            self.changed.notify_all()

    def remove_cancelled(self) -> deque[T]:
        """Return what waits, without what was cancelled."""
        if any(item.cancelled for item in self.waiting):
            self.waiting = deque(item for item in self.waiting if not item.cancelled)
            self.count.set(sum(item.texts for item in self.waiting))
        return self.waiting


class RequestQueue(BoundedQueue[ScheduledText]):
    """The texts that wait for one model, shared by its schedulers."""

    def __init__(self, limits: Limits, schedulers: int, count: SharedCount | None = None):
        super().__init__(limits, count)
        self.schedulers = schedulers
        self.running = [0] * schedulers
        """Texts in the batch of each scheduler."""

    def take(self, scheduler: int, active: Sequence[ScheduledText], turn: int) -> list[ScheduledText] | None:
        """Return the texts that join a scheduler's batch now: a fair share, as far as they fit.

        Blocks only while the scheduler has nothing to do. None: the queue is closed and empty.
        """
        with self.changed:
            self.running[scheduler] = len(active)
            self.changed.wait_for(lambda: self.remove_cancelled() or active or self.closing)
            if not active and not self.waiting:
                return None
            few = PATIENCE * len(self.waiting) < len(active)
            if (few and turn % PATIENCE) or not self.waiting:
                return []
            share = -(-(len(self.waiting) + sum(self.running)) // self.schedulers) - len(active)
            taken: list[ScheduledText] = []
            while len(taken) < share and self.waiting and self.fits([*active, *taken, self.waiting[0]]):
                taken.append(self.waiting.popleft())
            self.running[scheduler] += len(taken)
            self.count.set(len(self.waiting))
            return taken

    def fits(self, texts: Sequence[ScheduledText]) -> bool:
        """Return whether these texts fit into one batch; a single one always does."""
        rows = len(texts) * max(text.generation.max_rows for text in texts)
        tokens = rows * max(len(text.inputs) + text.generation.max_tokens for text in texts)
        return len(texts) == 1 or (rows <= self.limits.rows and tokens <= self.limits.batch_tokens)
