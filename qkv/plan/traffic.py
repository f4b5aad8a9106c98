"""Traffic of one update: the collectives of every worker and the bytes that it sends.

A ring over N workers sends (N - 1) / N of a tensor in an all-gather or a reduce-scatter, and twice that in an all-reduce, which is
one of each (Patarasuk and Yuan 2009).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from typing import Literal

from qkv.plan.layout import Job, Layout
from qkv.plan.memory import local_parameters

Kind = Literal["all_reduce", "all_gather", "reduce_scatter", "send"]
Phase = Literal["forward", "backward", "blocking"]
BUCKET = 25 * 2**20
"""Bytes of gradients that DistributedDataParallel sums at once."""


@dataclass(frozen=True)
class Message:
    """A number of equal collectives."""

    item: str
    kind: Kind
    size: float
    """Bytes of the full tensor."""
    count: float
    """How many of them an update has."""
    group: int
    """Workers that take part."""
    stride: int = 1
    """Distance of their ranks."""
    phase: Phase = "blocking"
    """The pass that goes on meanwhile; blocking = the next layer waits for it."""

    @property
    def sent(self) -> float:
        """Bytes that one worker sends in one of them."""
        share = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "send": 0.0}[self.kind]
        return self.size if self.kind == "send" else share * (self.group - 1) / self.group * self.size


def messages(job: Job, at: Layout) -> list[Message]:
    """Return the collectives of an update."""
    parallel = sharded_messages(job, at) if at.sharded else gradient_messages(job, at)
    return [*parallel, *tensor_messages(job, at), *pipeline_messages(job, at)]


def gradient_messages(job: Job, at: Layout) -> Iterator[Message]:
    """Data parallelism: one all-reduce of the float32 gradients for each update, 2 (d - 1) / d 4 P bytes, in buckets."""
    size = 4 * local_parameters(job, at)
    if at.data > 1:
        buckets = ceil(size / BUCKET)
        yield Message("gradients", "all_reduce", size / buckets, buckets, at.data, at.tensor, "backward")


def sharded_messages(job: Job, at: Layout) -> Iterator[Message]:
    """Fully sharded: every pass gathers the parameters of each block forward and again backward, and scatters the sum of the
    gradients: 3 (d - 1) / d P numbers (Rajbhandari et al. 2020, section 7.2.2). Those outside the blocks stay gathered."""
    if at.data == 1:
        return
    n, local = job.network, local_parameters(job, at)
    outside = n.parameters - n.inside
    block = (local - outside) / n.layers
    forward = Message("parameters", "all_gather", job.bytes * block, at.passes * n.layers, at.data, at.tensor, "forward")
    yield forward
    yield Message("parameters", "all_gather", job.bytes * outside, at.passes, at.data, at.tensor, "forward")
    yield Message("parameters", "all_gather", forward.size, forward.count, at.data, at.tensor, "backward")
    yield Message("gradients", "reduce_scatter", forward.size, forward.count, at.data, at.tensor, "backward")
    yield Message("gradients", "reduce_scatter", job.bytes * outside, at.passes, at.data, at.tensor, "backward")


def tensor_messages(job: Job, at: Layout) -> Iterator[Message]:
    """Tensor parallelism: an all-reduce of the residual stream for every attention and feed-forward layer, forward and backward,
    four for each layer (Shoeybi et al. 2019, figure 4); a checkpointed block repeats those of its forward pass."""
    n = job.network
    if at.tensor > 1:
        size = at.rows * n.stream * job.bytes
        count = (2 + at.recompute) * n.sublayers / at.pipeline * at.passes
        yield Message("activations", "all_reduce", size, count, at.tensor)


def pipeline_messages(job: Job, at: Layout) -> Iterator[Message]:
    """Pipeline: every pass sends the stream to the next stage and its gradient back, divided among the tensor workers, which gather
    it after arrival (Narayanan et al. 2021, section 4.1)."""
    if at.pipeline > 1:
        size = at.rows * job.network.stream * job.bytes
        yield Message("stages", "send", size / at.tensor, 2 * at.passes, 2, at.tensor * at.data)
        if at.tensor > 1:
            yield Message("stages", "all_gather", size, 2 * at.passes, at.tensor)


def traffic(job: Job, at: Layout) -> dict[str, float]:
    """Return the bytes that one worker sends in an update, by item."""
    found: dict[str, float] = {}
    for message in messages(job, at):
        found[message.item] = found.get(message.item, 0) + message.sent * message.count
    return found
