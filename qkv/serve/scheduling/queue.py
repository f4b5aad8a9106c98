"""The queue of texts that wait for a place in a running batch, first come, first served."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

from qkv.serve.http.errors import overload_error, shutting_down
from qkv.serve.http.limits import Limits, SharedCount
from qkv.serve.scheduling.scheduled_text import ScheduledText

PATIENCE = 4
"""Adding texts to a batch costs about as much as a step: a few new ones wait until so many steps have passed."""


class RequestQueue:
    """The texts that wait for one model, shared by its schedulers."""

    def __init__(self, limits: Limits, schedulers: int, count: SharedCount | None = None):
        self.limits, self.schedulers = limits, schedulers
        self.waiting: deque[ScheduledText] = deque()
        self.count = count or SharedCount()
        """Texts that wait for this model in all worker processes."""
        self.changed = threading.Condition()
        self.running = [0] * schedulers
        """Texts in the batch of each scheduler."""
        self.closing = False

    def put(self, texts: Sequence[ScheduledText]) -> None:
        """Add all of these texts or none; raise an error if the queue is full."""
        self.limits.check("waiting", len(texts), "texts to generate at once")
        with self.changed:
            if self.closing:
                raise shutting_down()
            self.remove_cancelled()
            if not self.count.try_set(len(self.waiting) + len(texts), self.limits.waiting):
                raise overload_error(f"the queue is full ({self.count.total()} texts)")
            self.waiting.extend(texts)
            self.changed.notify_all()

    def close(self) -> None:
        """Accept nothing more; what is queued is still generated."""
        with self.changed:
            self.closing = True
            self.changed.notify_all()

    def take(self, scheduler: int, active: Sequence[ScheduledText], turn: int) -> list[ScheduledText] | None:
        """Return the texts that join a scheduler's batch now: a fair share, as far as they fit.

        Blocks only while the scheduler has nothing to do. None: the queue is closed and empty.
        """
        with self.changed:
            self.running[scheduler] = len(active)
            self.remove_cancelled()
            while not active and not self.waiting:
                if self.closing:
                    return None
                self.changed.wait()
                self.remove_cancelled()
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

    def remove_cancelled(self) -> None:
        if any(text.cancelled for text in self.waiting):
            self.waiting = deque(text for text in self.waiting if not text.cancelled)
            self.count.set(len(self.waiting))

    def fits(self, texts: Sequence[ScheduledText]) -> bool:
        """Return whether these texts fit into one batch; a single one always does."""
        rows = len(texts) * max(text.generation.max_rows for text in texts)
        tokens = rows * max(len(text.inputs) + text.generation.max_tokens for text in texts)
        return len(texts) == 1 or (rows <= self.limits.rows and tokens <= self.limits.batch_tokens)
