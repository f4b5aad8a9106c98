"""Scheduler threads for continuous batching (generate/continuous_batching.py): texts join and leave a running batch between two steps.

A step of a small network on two threads is hardly faster than on one; two schedulers with one thread each are. The event loop
never waits for a scheduler: it puts a ScheduledText into the queue, and tokens come back between two steps.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from qkv.generate.beam import BeamSearch
from qkv.generate.continuous_batching import ContinuousBatch, make_batch
from qkv.generate.prefill import PromptCache
from qkv.generate.sequence import Generation
from qkv.serve.http.errors import ApiError
from qkv.serve.http.metrics import Metrics
from qkv.serve.scheduling.queue import RequestQueue
from qkv.serve.scheduling.scheduled_text import ScheduledText, Update, deliver

log = logging.getLogger(__name__)
PREFILL = 2048
"""Most prompt tokens, padding included, that are read in one forward pass when texts join."""


class Scheduler(threading.Thread):
    """A thread with one running batch: takes texts from the queue, and generates a token of each per step.

    number: the scheduler's index; a queue and a prompt cache are shared by several.
    exclusive: context manager around each step: a lock where the batcher uses the same network (not on a CPU).
    """

    def __init__(self, number: int, queue: RequestQueue, network: Any, pad_id: int, threads: int, name: str,
                 metrics: Metrics, exclusive: AbstractContextManager[Any], prompt_cache: PromptCache | None = None
                 ):  # fmt: skip
        super().__init__(name=f"{name}-{number}", daemon=True)
        self.number, self.queue, self.pad_id, self.threads = number, queue, pad_id, threads
        self.model, self.metrics, self.exclusive = name, metrics, exclusive
        self.device = next(network.parameters()).device
        self.batch = ContinuousBatch(network, prompt_cache=prompt_cache)
        self.active: dict[Generation, ScheduledText] = {}

    def run(self) -> None:
        """Take new texts and take a step, until the queue is closed and empty."""
        torch.set_num_threads(self.threads)
        turn = 0
        while (new := self.queue.take(self.number, list(self.active.values()), turn)) is not None:
            turn += 1
            try:
                with self.exclusive:
                    self.step(new)
            except Exception as error:  # fail the texts of this batch; the thread must survive
                self.fail(list({*self.active.values(), *new}), error)
                self.batch = ContinuousBatch(self.batch.network, prompt_cache=self.batch.prompt_cache)
                self.active = {}

    def step(self, new: list[ScheduledText]) -> None:
        """Remove cancelled texts, add new ones, and generate one token of each."""
        # read once: a client may disconnect at any moment
        cancelled = [generation for generation, text in self.active.items() if text.cancelled]
        self.batch.remove(cancelled)
        for generation in cancelled:
            del self.active[generation]
        for group in group_by_length(new):
            self.admit(group)
        running = len(self.batch.running)
        if running:
            self.metrics.record_batch(self.model, running, self.deliver(self.batch.step()))

    def admit(self, texts: list[ScheduledText]) -> None:
        """Add texts to the batch; if they cannot be read together, one by one, so that a bad one fails alone."""
        sources = [text.source for text in texts if text.source is not None]
        try:
            batch = make_batch([text.inputs for text in texts], sources, self.pad_id).to(self.device)
            self.batch.join(batch, [text.generation for text in texts])
        except Exception as error:
            if len(texts) == 1:
                return self.fail(texts, error)
            for text in texts:
                self.admit([text])
        else:
            self.active |= {text.generation: text for text in texts}
        return None

    def deliver(self, ended: list[Generation]) -> int:
        """Send new tokens, and the end of texts that ended, to the event loops; return the number of tokens."""
        new = [(text, tokens) for text in self.active.values() if (tokens := text.undelivered())]
        updates: list[tuple[ScheduledText, Update]] = [*new]
        count = sum(len(tokens) for _, tokens in new)
        for generation in ended:
            if isinstance(generation, BeamSearch):
                count += sum(len(best.ids) for best in generation.results()[:1])
            if generation in self.active:
                updates.append((self.active.pop(generation), None))
        deliver(updates)
        return count

    def fail(self, texts: Sequence[ScheduledText], error: Exception) -> None:
        """End these texts with an internal error."""
        response = internal_error(error, self.model, self.metrics)
        deliver([(text, response) for text in texts])


def internal_error(error: Exception, model: str, metrics: Metrics) -> ApiError:
    """Log and count an internal error; return the error for the client."""
    log.error("internal error while %s generates a text", model, exc_info=error)
    metrics.record_failure(model)
    return ApiError(500, f"internal error ({type(error).__name__}): the server's log has the details")


def group_by_length(texts: list[ScheduledText]) -> list[list[ScheduledText]]:
    """Split into groups of similar length, each short enough to be read at once."""
    groups: list[list[ScheduledText]] = []
    size = lambda text: len(text.inputs) + len(text.source or ())  # noqa: E731
    for text in sorted(texts, key=size, reverse=True):
        if groups and (len(groups[-1]) + 1) * size(groups[-1][0]) <= PREFILL:
            groups[-1].append(text)
        else:
            groups.append([text])
    return groups
