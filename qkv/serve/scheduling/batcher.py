"""Calls: questions that a model answers in one pass (classify, tag, fill, embed, look inside). Those that wait while
another is computed, and ask for the same in the same way, are answered together."""

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
from qkv.serve.http.errors import Refusal, busy
from qkv.serve.scheduling.limits import Limits
from qkv.serve.scheduling.metrics import Metrics

Work = Callable[[list[Any]], Sequence[Any]]
"""Items -> an answer for each, in their order."""
TOGETHER = 64
"""Items that are answered at once."""


@dataclass(eq=False)
class Call:
    key: Hashable
    """Calls with the same key may be answered together."""
    work: Work
    items: list[Any]
    answer: asyncio.Future[list[Any]]
    """Cancelled when nobody waits for it any more: the client has gone, or the time is over."""
    loop: asyncio.AbstractEventLoop


class GivenUp(Exception):
    """Nobody waits for what is being computed."""


class Caller(threading.Thread):
    """One thread that answers the calls to one model."""

    def __init__(self, name: str, networks: Sequence[nn.Module], limits: Limits, metrics: Metrics,
                 alone: Callable[[], AbstractContextManager[Any]]):  # fmt: skip
        super().__init__(name=f"{name}-calls", daemon=True)
        self.model, self.limits, self.metrics, self.alone = name, limits, metrics, alone
        self.halves = [module for network in networks for module in (network, *network.children())]
        self.waiting: deque[Call] = deque()
        self.changed = threading.Condition()
        self.closing = False

    async def ask(self, key: Hashable, work: Work, items: Sequence[Any]) -> list[Any]:
        """An answer for each item."""
        loop = asyncio.get_running_loop()
        call = Call(key, work, list(items), loop.create_future(), loop)
        self.limits.at_most("waiting", len(call.items), "texts to read at once")
        with self.changed:
            if self.closing:
                raise busy("this server is shutting down", retry=5)
            self.forget()
            count = sum(len(other.items) for other in self.waiting)
            if count + len(call.items) > self.limits.waiting:
                raise busy(f"the queue is full ({count} texts)")
            self.waiting.append(call)
            self.changed.notify()
        return await call.answer

    def close(self) -> None:
        with self.changed:
            self.closing = True
            self.changed.notify_all()

    def run(self) -> None:
        while calls := self.take():
            with self.alone():
                self.metrics.rows.labels(self.model).observe(sum(len(call.items) for call in calls))
                self.answer(calls)

    def take(self) -> list[Call]:
        """The first who waits, and all behind it who ask for the same; none at the end of the server."""
        with self.changed:
            while True:
                self.forget()
                if self.waiting:
                    break
                if self.closing:
                    return []
                self.changed.wait()
            first = self.waiting.popleft()
            taken, rest, count = [first], deque[Call](), len(first.items)
            for call in self.waiting:
                fits = call.key == first.key and count + len(call.items) <= TOGETHER
                (taken if fits else rest).append(call)
                count += len(call.items) if fits else 0
            self.waiting = rest
            return taken

    def forget(self) -> None:
        """Whoever has gone while waiting takes no place."""
        self.waiting = deque(call for call in self.waiting if not call.answer.cancelled())

    def answer(self, calls: list[Call]) -> None:
        """Together; if that fails each for itself, so that what is wrong with one is told to it alone."""
        try:
            with wanted(calls, self.halves), on_free_cores():
                found = list(calls[0].work([item for call in calls for item in call.items]))
        except GivenUp:
            return None
        except Exception as error:
            if len(calls) == 1:
                if not isinstance(error, QkvError | Refusal):
                    self.metrics.failures.labels(self.model).inc()
                return settle(calls[0], error)
            for call in calls:
                self.answer([call])
            return None
        for call in calls:
            own, found = found[: len(call.items)], found[len(call.items) :]
            settle(call, own)
        return None


@contextmanager
def wanted(calls: Sequence[Call], modules: Sequence[nn.Module]) -> Iterator[None]:
    """Within the block no pass of these modules begins once nobody waits for the calls."""

    def check(*_: Any) -> None:
        if all(call.answer.cancelled() for call in calls):
            raise GivenUp

    handles = [module.register_forward_pre_hook(check) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def settle(call: Call, outcome: list[Any] | Exception) -> None:
    def told() -> None:
        if call.answer.done():
            return
        if isinstance(outcome, Exception):
            call.answer.set_exception(outcome)
        else:
            call.answer.set_result(outcome)

    try:
        call.loop.call_soon_threadsafe(told)
    except RuntimeError:  # its loop has ended, and so has whoever waited in it
        return
