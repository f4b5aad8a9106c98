"""Batching of requests that take one pass (classify, tag, fill, embed, inspect): those that wait for the same are computed together."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from torch import nn

from qkv.errors import QkvError
from qkv.generate.free_cores import on_free_cores
from qkv.serve.http.errors import ApiError, overload_error, shutting_down
from qkv.serve.http.limits import Limits, SharedCount
from qkv.serve.http.metrics import Metrics

Work = Callable[[list[Any]], Sequence[Any]]
"""Items -> a result for each, in their order."""
BATCH_ITEMS = 64
"""Most items of one batch."""


@dataclass(eq=False)
class Call:
    """Items to compute, and the future of their results."""

    key: Hashable
    """Calls with the same key may be computed together."""
    work: Work
    items: list[Any]
    results: asyncio.Future[list[Any]]
    """Cancelled when nobody waits for it any more: the client disconnected, or the time is over."""
    loop: asyncio.AbstractEventLoop


class AbandonedError(Exception):
    """Nobody waits for what is being computed."""


class Batcher(threading.Thread):
    """One thread that computes the calls to one model."""

    def __init__(self, name: str, networks: Sequence[nn.Module], limits: Limits, metrics: Metrics,
                 exclusive: Callable[[], AbstractContextManager[Any]], count: SharedCount | None = None):  # fmt: skip
        super().__init__(name=f"{name}-batcher", daemon=True)
        self.model, self.limits, self.metrics, self.exclusive = name, limits, metrics, exclusive
        self.modules = [module for network in networks for module in (network, *network.children())]
        self.waiting: deque[Call] = deque()
        self.count = count or SharedCount()
        """Items that wait for this model in all worker processes."""
        self.changed = threading.Condition()
        self.closing = False

    async def submit(self, key: Hashable, work: Work, items: Sequence[Any]) -> list[Any]:
        """Return the results of `work` for these items, computed in the batcher's thread."""
        loop = asyncio.get_running_loop()
        call = Call(key, work, list(items), loop.create_future(), loop)
        self.limits.check("waiting", len(call.items), "texts to read at once")
        with self.changed:
            if self.closing:
                raise shutting_down()
            self.remove_cancelled()
            if not self.count.try_set(items_of(self.waiting) + len(call.items), self.limits.waiting):
                raise overload_error(f"the queue is full ({self.count.total()} texts)")
            self.waiting.append(call)
            self.changed.notify()
        return await call.results

    def close(self) -> None:
        with self.changed:
            self.closing = True
            self.changed.notify_all()

    def run(self) -> None:
        while calls := self.take():
            with self.exclusive():
                self.compute(calls)
            self.metrics.record_batch(self.model, items_of(calls))

    def take(self) -> list[Call]:
        """Wait for a call; return it with all others of the same key. None are left when the server ends."""
        with self.changed:
            while True:
                self.remove_cancelled()
                if self.waiting:
                    break
                if self.closing:
                    return []
                self.changed.wait()
            first = self.waiting.popleft()
            taken, rest, count = [first], deque[Call](), len(first.items)
            for call in self.waiting:
                fits = call.key == first.key and count + len(call.items) <= BATCH_ITEMS
                (taken if fits else rest).append(call)
                count += len(call.items) if fits else 0
            self.waiting = rest
            self.count.set(items_of(rest))
            return taken

    def remove_cancelled(self) -> None:
        self.waiting = deque(call for call in self.waiting if not call.results.cancelled())
        self.count.set(items_of(self.waiting))

    def compute(self, calls: list[Call]) -> None:
        """Compute calls together; if that fails each by itself, so that an error reaches only the call that caused it."""
        try:
            with watch_for_abandonment(calls, self.modules), on_free_cores():
                results = list(calls[0].work([item for call in calls for item in call.items]))
        except AbandonedError:
            return
        except Exception as error:
            if len(calls) > 1:
                for call in calls:
                    self.compute([call])
                return
            if not isinstance(error, QkvError | ApiError):
                self.metrics.record_failure(self.model)
            settle(calls[0], error)
            return
        for call in calls:
            own, results = results[: len(call.items)], results[len(call.items) :]
            settle(call, own)


def items_of(calls: Sequence[Call] | deque[Call]) -> int:
    """Count the items of all calls."""
    return sum(len(call.items) for call in calls)


@contextmanager
def watch_for_abandonment(calls: Sequence[Call], modules: Sequence[nn.Module]) -> Iterator[None]:
    """Within the block, end the computation at the next pass of a module once nobody waits for the calls."""

    def check(*_: Any) -> None:
        if all(call.results.cancelled() for call in calls):
            raise AbandonedError

    handles = [module.register_forward_pre_hook(check) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def settle(call: Call, outcome: list[Any] | Exception) -> None:
    """Set the results of a call, or its error, in its event loop."""

    def set_outcome() -> None:
        if call.results.done():
            return
        if isinstance(outcome, Exception):
            call.results.set_exception(outcome)
        else:
            call.results.set_result(outcome)

    try:
        call.loop.call_soon_threadsafe(set_outcome)
    except RuntimeError:  # the loop is closed, and with it whoever was waiting
        return
