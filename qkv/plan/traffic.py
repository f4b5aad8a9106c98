"""Traffic of one update: the collectives of every worker and the bytes that it sends.

A ring over N workers sends (N - 1) / N of a tensor in an all-gather or a reduce-scatter, and twice that in an all-reduce, which is
one of each (Patarasuk and Yuan 2009).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Literal

from qkv.plan.job import Job
from qkv.plan.layout import Layout
from qkv.plan.memory import local_parameters

Kind = Literal["all_reduce", "all_gather", "reduce_scatter", "send"]
Phase = Literal["forward", "backward", "blocking"]
RING = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}
"""How many times every worker sends (N - 1) / N of a tensor."""
BUCKET = 25 * 2**20
"""Bytes of gradients that DistributedDataParallel sums at once."""


@dataclass(frozen=True)
class Message:
    """Equal collectives of an update."""

    item: str
    kind: Kind
    size: float
    """Bytes of the full tensor."""
    count: float
    """Number of such collectives in an update."""
    group: int
    """Workers that take part."""
    stride: int = 1
    """Distance of their ranks."""
    phase: Phase = "blocking"
    """The pass that overlaps with it; blocking = the next layer waits for it."""

    def sent(self, ring: Mapping[str, int] = RING) -> float:
        """Bytes that one worker sends in one of them."""
        return self.size if self.kind == "send" else ring[self.kind] * (self.group - 1) / self.group * self.size


def messages(job: Job, at: Layout) -> list[Message]:
    """Return the collectives of an update."""
    parallel = sharded_messages(job, at) if at.sharded else gradient_messages(job, at)
    return [*scalar_messages(at), *parallel, *tensor_messages(job, at), *pipeline_messages(job, at)]


def scalar_messages(at: Layout) -> Iterator[Message]:
    """The sum of the losses, where workers compute different rows, and that of the squared norms of divided gradients."""
    if at.data > 1:
        yield Message("loss", "all_reduce", 4, 1, at.data * at.tensor)
    if at.fsdp:
        yield Message("norm", "all_reduce", 4, 1, at.data * at.tensor)


def gradient_messages(job: Job, at: Layout) -> Iterator[Message]:
    """Data parallelism: one all-reduce of the float32 gradients for each update, 2 (d - 1) / d 4 P bytes, in the buckets of
    DistributedDataParallel, or by block where FSDP2 divides the layers."""
    if at.data == 1:
        return
    size, group = 4 * local_parameters(job, at), (at.data, at.tensor)
    if at.fsdp:
        outside = 4 * (job.network.parameters - job.network.inside)
        count = job.network.layers
        yield Message("gradients", "all_reduce", (size - outside) / count, count, *group, "backward")
        yield Message("gradients", "all_reduce", outside, 1, *group, "backward")
    else:
        buckets = ceil(size / BUCKET)
        yield Message("gradients", "all_reduce", 4 * job.network.tensors, 1, *group)  # which have one
        yield Message("gradients", "all_reduce", size / buckets, buckets, *group, "backward")


def sharded_messages(job: Job, at: Layout) -> Iterator[Message]:
    """Fully sharded: every pass gathers the parameters of each block in the forward and again in the backward pass, and the last one
    reduces and scatters the gradients: 3 (d - 1) / d P numbers (Rajbhandari et al. 2020, section 7.2.2).

    Blocks are gathered in the precision of the products, what is outside them once and in float32, and gradients are in float32.
    """
    if at.data == 1:
        return
    n, group = job.network, (at.data, at.tensor)
    outside = n.parameters - n.inside
    block = (local_parameters(job, at) - outside) / n.layers
    yield Message("parameters", "all_gather", job.bytes * block, at.passes * n.layers, *group, "forward")
    yield Message("parameters", "all_gather", 4 * outside, at.passes, *group, "forward")
    yield Message("parameters", "all_gather", job.bytes * block, at.passes * n.layers, *group, "backward")
    yield Message("gradients", "reduce_scatter", 4 * block, n.layers, *group, "backward")
    yield Message("gradients", "reduce_scatter", 4 * outside, 1, *group, "backward")


def tensor_messages(job: Job, at: Layout) -> Iterator[Message]:
    """Tensor parallelism: all-reduces of the residual stream, one forward for each attention and feed-forward layer (Shoeybi et al.
    2019, figure 4), and one backward, in float32, for the gradient of each of their inputs. A checkpointed block repeats those of
    the forward pass, the last one only where dropout or a norm follows it."""
    if at.tensor == 1:
        return
    n, share = job.network, at.passes / at.pipeline
    forward, backward = (at.rows * numbers / max(count, 1) for numbers, count in zip(n.summed, n.sums, strict=True))
    yield Message("activations", "all_reduce", job.bytes * forward, (1 + at.recompute) * n.sums[0] * share, at.tensor)
    yield Message("activations", "all_reduce", 4 * backward, n.sums[1] * share, at.tensor)


def pipeline_messages(job: Job, at: Layout) -> Iterator[Message]:
    """Pipeline: every pass sends the stream to the next stage and its gradient back, divided among the tensor workers, which gather
    it after arrival (Narayanan et al. 2021, section 4.1)."""
    if at.pipeline > 1:
        size = at.rows * job.network.stream * job.bytes
        yield Message("stages", "send", size / at.tensor, 2 * at.passes, 2, at.tensor * at.data)
        if at.tensor > 1:
            yield Message("stages", "all_gather", size, 2 * at.passes, at.tensor)


def traffic(job: Job, at: Layout, ring: Mapping[str, int] = RING) -> dict[str, float]:
    """Return the bytes that one worker sends in an update, by item."""
    found: dict[str, float] = {}
    for message in messages(job, at):
        found[message.item] = found.get(message.item, 0) + message.sent(ring) * message.count
    return found
