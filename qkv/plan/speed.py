"""Time of one update: computation, communication that is not hidden by computation, and idle stages of a pipeline.

A worker computes at a share of its peak and communicates at the bandwidth of its connections (devices.py). If the device can overlap
both, gradients and gathered parameters are communicated while other layers are computed; all-reduces of activations cannot be hidden, since
the next layer needs them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from qkv.plan.job import Job
from qkv.plan.layout import Layout
from qkv.plan.memory import local_parameters
from qkv.plan.traffic import Message, messages

UPDATE_BYTES = 40
"""Bytes of memory traffic for each parameter in an update: AdamW reads parameter, gradient and two moments and writes three of them,
clipping reads the gradient twice and writes it once, in float32."""

ACCESSES = 8
"""Memory accesses of norms and residual sums for each element, in both passes: two reads and two writes in the forward pass, and as many
in the backward pass."""


class Machine(Protocol):
    """What the time of an update depends on: an Accelerator, or ThisMachine as measured."""

    @property
    def overlap(self) -> bool: ...
    def rate(self, precision: str, width: int, workers: int) -> float: ...
    def memory_rate(self, workers: int) -> float: ...
    def overhead(self, kind: str, workers: int) -> float: ...
    def collective(self, kind: str, size: float, sent: float, group: int, stride: int = 1) -> float: ...


@dataclass(frozen=True)
class Times:
    """Seconds of one update on each worker."""

    compute: float
    """Matrix products and everything between them."""
    optimiser: float
    """Clipping and the optimiser."""
    communication: float
    """Communication, hidden or not."""
    exposed: float
    """Communication that is not hidden."""
    bubble: float
    """Idle time of pipeline stages."""
    overhead: float = 0.0
    """Overhead of sharding where nothing is hidden: Python code of FSDP2 and DTensor, copies, and parts that are not divided."""

    @property
    def total(self) -> float:
        return self.compute + self.optimiser + self.exposed + self.bubble + self.overhead


def times(job: Job, at: Layout, machine: Machine) -> Times:
    """Return the time of an update."""
    forward, backward = passes_seconds(job, at, machine)
    sent = messages(job, at)
    seconds = {m: m.count * machine.collective(m.kind, m.size, m.sent(), m.group, m.stride) for m in sent}
    exposed = sum(time for m, time in seconds.items() if m.phase == "blocking" or not machine.overlap)
    if machine.overlap:
        exposed += hidden_rest(seconds, "forward", forward) + hidden_rest(seconds, "backward", window(at, backward))
    shards = at.data if at.sharded else 1
    update = UPDATE_BYTES * local_parameters(job, at) / shards / machine.memory_rate(at.workers)
    compute = forward + backward
    bubble = compute * bubble_share(at.pipeline, at.passes)
    return Times(compute, update, sum(seconds.values()), exposed, bubble, division_overhead(job, at, machine))


def division_overhead(job: Job, at: Layout, machine: Machine) -> float:
    """Return the overhead of FSDP2 and DTensor in seconds, where it is not hidden: Python code for every parameter and every divided
    matrix in each pass, and memory traffic."""
    if machine.overlap or not at.fsdp:
        return 0.0
    tensors, maps = job.network.tensors * machine.overhead("sharded", at.workers), 0.0
    if at.tensor > 1:
        maps = job.network.maps * machine.overhead("tensor", at.workers)
    return at.passes * (tensors + maps) + division_bytes(job, at) / machine.memory_rate(at.workers)


def division_bytes(job: Job, at: Layout) -> float:
    """Return the bytes that a worker reads and writes because the network is divided.

    FSDP2 copies what it gathers, the blocks twice in a pass and the rest once, and the gradients that it scatters. Norms and
    residual sums are not divided by tensor parallelism.
    """
    n = job.network
    outside = n.parameters - n.inside
    blocks = local_parameters(job, at) - outside
    copied = at.passes * (2 * job.bytes * blocks + 4 * outside) + 4 * (blocks + outside)
    whole = at.rows * at.passes * (n.kept - n.kept_split) * job.bytes / 4
    return 2 * copied + ACCESSES * whole * (1 - 1 / at.tensor)


def passes_seconds(job: Job, at: Layout, machine: Machine) -> tuple[float, float]:
    """Return the seconds of all forward and of all backward passes of a worker, recomputation included in the latter.

    Tensor parallelism divides the blocks, a pipeline the layers; the head is computed by every worker of a tensor group, or divided
    among them in the last stage of a pipeline, which is then the slowest.
    """
    n = job.network
    rate = machine.rate(job.precision, n.width, at.workers)
    rows, share = at.rows * at.passes, at.tensor * at.pipeline
    head = n.rest / (at.tensor if at.pipeline > 1 else 1)
    forward = rows * (n.forward / share + head / 3) / rate
    total = rows * (n.training / share + head + at.recompute * n.forward / share) / rate
    return forward, total - forward


def window(at: Layout, backward: float) -> float:
    """Return the seconds of backward passes that overlap with communication: with DistributedDataParallel only the last pass."""
    return backward if at.sharded else backward / at.passes


def hidden_rest(seconds: dict[Message, float], phase: str, computed: float) -> float:
    """Return the communication of a phase that its computation does not hide: the excess over it, and at least one message, the first
    gather or the last bucket, during which nothing is computed."""
    found = {m: time for m, time in seconds.items() if m.phase == phase}
    if not found:
        return 0.0
    alone = max(time / m.count for m, time in found.items())
    return max(sum(found.values()) - computed, alone)


def bubble_share(stages: int, passes: int) -> float:
    """Idle time of a pipeline relative to its computation, (p - 1) / m (Huang et al. 2019, section 2.3; Narayanan et al. 2021)."""
    return (stages - 1) / passes
