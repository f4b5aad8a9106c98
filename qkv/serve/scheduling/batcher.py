"""Batching of requests that take one pass (classify, tag, fill, embed, inspect): those that wait for the same are computed together."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from qkv.errors import QkvError
from qkv.generate.free_cores import on_free_cores
from qkv.serve.http.errors import ApiError
from qkv.serve.http.metrics import Metrics
from qkv.serve.scheduling.queue import BoundedQueue

Work = Callable[[list[Any]], Iterable[Any]]
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
    results: Future[list[Any]] = field(default_factory=Future)
    """Cancelled when its result is no longer needed: the client disconnected, or the time is over."""

    @property
    def texts(self) -> int:
        return len(self.items)

    @property
    def cancelled(self) -> bool:
        return self.results.cancelled()


class AbandonedError(Exception):
    """Nobody waits for what is being computed."""


class CallQueue(BoundedQueue[Call]):
    """The calls that wait for one model."""

    purpose = "read"

    def take(self) -> list[Call]:
        """Wait for a call; return it with all others of the same key. None are left when the server ends."""
        with self.changed:
            self.changed.wait_for(lambda: self.remove_cancelled() or self.closing)
            if not self.waiting:
                return []
            first = self.waiting.popleft()
            taken, rest, count = [first], deque[Call](), len(first.items)
            for call in self.waiting:
                fits = call.key == first.key and count + len(call.items) <= BATCH_ITEMS
                (taken if fits else rest).append(call)
                count += len(call.items) if fits else 0
            self.waiting = rest
            self.count.set(sum(call.texts for call in rest))
            return taken


class Batcher(threading.Thread):
    """One thread that computes the calls to one model."""

    def __init__(self, name: str, queue: CallQueue, networks: Sequence[nn.Module], metrics: Metrics,
                 exclusive: AbstractContextManager[Any]):  # fmt: skip
        super().__init__(name=f"{name}-batcher", daemon=True)
        self.model, self.queue, self.metrics, self.exclusive = name, queue, metrics, exclusive
        self.modules = [module for network in networks for module in (network, *network.children())]

    async def submit(self, key: Hashable, work: Work, items: Sequence[Any]) -> list[Any]:
        """Return the results of `work` for these items, computed in the batcher's thread."""
        call = Call(key, work, list(items))
        self.queue.put([call])
        return await asyncio.wrap_future(call.results)

    def run(self) -> None:
        while calls := self.queue.take():
            with self.exclusive:
                self.compute(calls)
            self.metrics.record_batch(self.model, sum(call.texts for call in calls))

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
            with suppress(InvalidStateError):  # it was cancelled meanwhile
                calls[0].results.set_exception(error)
            return
        for call in calls:
            own, results = results[: call.texts], results[call.texts :]
            with suppress(InvalidStateError):
                call.results.set_result(own)


@contextmanager
def watch_for_abandonment(calls: Sequence[Call], modules: Sequence[nn.Module]) -> Iterator[None]:
    """Within the block, end the computation at the next pass of a module once no result of the calls is needed."""

    def check(*_: Any) -> None:
        if all(call.cancelled for call in calls):
            raise AbandonedError

    with ExitStack() as hooks:
        for module in modules:
            hooks.enter_context(module.register_forward_pre_hook(check))
        yield
