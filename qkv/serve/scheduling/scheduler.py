"""Lanes: threads that write texts, each with a running batch of its own (generate/continuous_batching.py), and the desk where
texts wait for a place in one.

A step of a small network on two threads is hardly faster than on one; two lanes with a thread each are. The event loop
never waits for a lane: it hands over a Ticket, and the lane's news come back between two steps.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch

from qkv.generate.beam import BeamSearch
from qkv.generate.continuous_batching import ContinuousBatch, make_batch
from qkv.generate.sequence import GeneratedToken, Generation, Sampler
from qkv.serve.http.errors import Refusal, busy
from qkv.serve.scheduling.limits import Limits
from qkv.serve.scheduling.metrics import Metrics

log = logging.getLogger(__name__)
PATIENCE = 4
"""To take somebody in costs about as much as a step: a few newcomers wait until so many steps have gone by."""
PREFILL = 2048
"""Tokens with padding that are read at once when texts join."""


@dataclass(eq=False)
class Ticket:
    """One text on its way."""

    inputs: list[int]
    """What is known of it: the prompt of a decoder, what opens the target of an encoder-decoder."""
    source: list[int] | None
    text: Generation
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    news: asyncio.Queue[list[GeneratedToken] | Exception | None] = field(default_factory=asyncio.Queue)
    """Tokens as they come; an error, or None at the end."""
    gone: bool = False
    """Nobody waits for it any more: it leaves at the next step."""
    told: int = 0

    async def steps(self) -> AsyncIterator[list[GeneratedToken]]:
        """New tokens, as they are written."""
        try:
            while (some := await self.news.get()) is not None:
                if isinstance(some, Exception):
                    raise some
                yield some
        finally:
            self.gone = True

    async def written(self) -> Generation:
        """The text when it has ended."""
        async for _ in self.steps():
            pass
        return self.text

    def fresh(self) -> list[GeneratedToken]:
        """Steps that were not told yet."""
        if not isinstance(self.text, Sampler):
            return []
        some = self.text.tokens[self.told :]
        self.told += len(some)
        return some

    @property
    def length(self) -> int:
        """The most tokens that it can come to."""
        return len(self.inputs) + self.text.max_tokens


class Desk:
    """Where texts wait for a lane, in the order in which they came."""

    def __init__(self, limits: Limits, lanes: int):
        self.limits, self.lanes = limits, lanes
        self.waiting: deque[Ticket] = deque()
        self.changed = threading.Condition()
        self.going = [0] * lanes
        """Texts in each lane."""
        self.closing = False

    def put(self, tickets: Sequence[Ticket]) -> None:
        """All of them or none; who comes when many wait already is sent away."""
        self.limits.at_most("waiting", len(tickets), "texts to write at once")
        with self.changed:
            if self.closing:
                raise busy("this server is shutting down", retry=5)
            self.forget()
            if len(self.waiting) + len(tickets) > self.limits.waiting:
                raise busy(f"the queue is full ({len(self.waiting)} texts)")
            self.waiting.extend(tickets)
            self.changed.notify_all()

    def close(self) -> None:
        """What is here is still done; nothing else is taken in."""
        with self.changed:
            self.closing = True
            self.changed.notify_all()

    def take(self, lane: int, going: Sequence[Ticket], turn: int) -> list[Ticket] | None:
        """Who joins this lane now: a fair share of all, as far as there is room. Waits only in a lane that has nothing to
        do; None = there will be no more."""
        with self.changed:
            self.going[lane] = len(going)
            self.forget()
            while not going and not self.waiting:
                if self.closing:
                    return None
                self.changed.wait()
                self.forget()
            few = PATIENCE * len(self.waiting) < len(going)
            if (few and turn % PATIENCE) or not self.waiting:
                return []
            share = -(-(len(self.waiting) + sum(self.going)) // self.lanes) - len(going)
            taken: list[Ticket] = []
            while len(taken) < share and self.waiting and self.fits([*going, *taken, self.waiting[0]]):
                taken.append(self.waiting.popleft())
            self.going[lane] += len(taken)
            return taken

    def forget(self) -> None:
        """Whoever has gone while waiting, wherever it stood, takes no place."""
        if any(ticket.gone for ticket in self.waiting):
            self.waiting = deque(ticket for ticket in self.waiting if not ticket.gone)

    def fits(self, tickets: Sequence[Ticket]) -> bool:
        """Whether these can be written together; one alone always can."""
        rows = len(tickets) * max(ticket.text.max_rows for ticket in tickets)
        tokens = rows * max(ticket.length for ticket in tickets)
        return len(tickets) == 1 or (rows <= self.limits.rows and tokens <= self.limits.batch_tokens)


class Lane(threading.Thread):
    """One running batch."""

    def __init__(self, number: int, desk: Desk, network: Any, pad_id: int, threads: int, name: str, metrics: Metrics,
                 alone: Callable[[], AbstractContextManager[Any]]):  # fmt: skip
        super().__init__(name=f"{name}-{number}", daemon=True)
        self.number, self.desk, self.pad_id, self.threads = number, desk, pad_id, threads
        self.model, self.metrics, self.alone = name, metrics, alone
        self.device = next(network.parameters()).device
        self.running = ContinuousBatch(network)
        self.tickets: dict[Generation, Ticket] = {}

    def run(self) -> None:
        torch.set_num_threads(self.threads)
        turn = 0
        while (new := self.desk.take(self.number, list(self.tickets.values()), turn)) is not None:
            turn += 1
            with self.alone():
                self.turn(new)

    def turn(self, new: list[Ticket]) -> None:
        """Whoever is gone leaves, whoever is new joins, and all get a token."""
        try:
            # read once: whether somebody has gone can change at any moment
            gone = [text for text, ticket in self.tickets.items() if ticket.gone]
            self.running.remove(gone)
            for text in gone:
                del self.tickets[text]
            for some in similar(new):
                self.enter(some)
            if self.running.running:
                self.metrics.rows.labels(self.model).observe(len(self.running.running))
                self.tell(self.running.step())
        except Exception as error:  # a lane must not die: whoever was in it is told, and it goes on with the next
            self.fail(list({*self.tickets.values(), *new}), error)
            self.running, self.tickets = ContinuousBatch(self.running.network), {}
        self.metrics.refresh()

    def enter(self, tickets: list[Ticket]) -> None:
        """Take some in; if they cannot be read together, one by one, so that one costs only itself."""
        sources = [ticket.source for ticket in tickets if ticket.source is not None]
        try:
            batch = make_batch([ticket.inputs for ticket in tickets], sources, self.pad_id).to(self.device)
            self.running.join(batch, [ticket.text for ticket in tickets])
        except Exception as error:
            if len(tickets) == 1:
                return self.fail(tickets, error)
            for ticket in tickets:
                self.enter([ticket])
        else:
            self.tickets |= {ticket.text: ticket for ticket in tickets}
        return None

    def tell(self, ended: list[Generation]) -> None:
        """New tokens, and to those that have ended that they have."""
        news: list[tuple[Ticket, Any]] = []
        for ticket in self.tickets.values():
            if steps := ticket.fresh():
                news.append((ticket, steps))
        news += [(self.tickets.pop(text), None) for text in ended if text in self.tickets]
        searched = [text.results() for text in ended if isinstance(text, BeamSearch)]
        count = sum(len(own) for _, own in news if own) + sum(len(found[0].ids) for found in searched if found)
        self.metrics.tokens.labels(self.model).inc(count)
        send(news)

    def fail(self, tickets: Sequence[Ticket], error: Exception) -> None:
        refusal = failed(error, self.model, self.metrics)
        send([(ticket, refusal) for ticket in tickets])


def failed(error: Exception, model: str, metrics: Metrics) -> Refusal:
    """Log and count an internal error; the error message for the client."""
    log.error("internal error while %s generates a text", model, exc_info=error)
    metrics.failures.labels(model).inc()
    return Refusal(500, f"internal error ({type(error).__name__}): the server's log has the details")


def similar(tickets: list[Ticket]) -> list[list[Ticket]]:
    """Groups that are read together: of similar length, and not too much at once."""
    groups: list[list[Ticket]] = []
    size = lambda ticket: len(ticket.inputs) + len(ticket.source or ())  # noqa: E731
    for ticket in sorted(tickets, key=size, reverse=True):
        if groups and (len(groups[-1]) + 1) * size(groups[-1][0]) <= PREFILL:
            groups[-1].append(ticket)
        else:
            groups.append([ticket])
    return groups


def send(news: Sequence[tuple[Ticket, Any]]) -> None:
    """To the event loops of those who wait, in one go for each."""
    for loop in {ticket.loop for ticket, _ in news}:
        own = [(ticket, some) for ticket, some in news if ticket.loop is loop]
        try:
            loop.call_soon_threadsafe(deliver, own)
        except RuntimeError:  # its loop has ended, and so has whoever waited in it
            for ticket, _ in own:
                ticket.gone = True


def deliver(news: Sequence[tuple[Ticket, Any]]) -> None:
    for ticket, some in news:
        ticket.news.put_nowait(some)
