"""Plans: every way to parallelise a run over N devices, with memory, traffic and time, and the recommended one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from qkv.config import TrainConfig
from qkv.config.rules import impossible_training
from qkv.errors import QkvError
from qkv.plan.job import Job
from qkv.plan.layout import Layout
from qkv.plan.memory import memory
from qkv.plan.speed import Machine, Times, times
from qkv.plan.traffic import traffic

NEAR = 1.05
"""A simpler plan is preferred unless another one is faster by at least this factor."""
KINDS = ("data", "sharded", "tensor x data", "tensor x sharded", "pipeline x data", "tensor x pipeline x data")
"""From the simplest to the most complex."""


class Cluster(Machine, Protocol):
    """A Machine and the memory of its devices."""

    @property
    def name(self) -> str: ...
    @property
    def per_machine(self) -> int: ...
    @property
    def default_workers(self) -> int: ...
    @property
    def ring(self) -> Mapping[str, int]: ...
    def precision(self, wanted: str, width: int) -> str: ...
    def peak(self, precision: str) -> float: ...
    def machines(self, workers: int) -> int: ...
    def usable_memory(self, workers: int) -> float: ...


@dataclass(frozen=True)
class TrainingPlan:
    """A layout with what it costs on each worker."""

    job: Job
    layout: Layout
    memory: dict[str, float]
    """Bytes by item."""
    traffic: dict[str, float]
    """Bytes sent in an update by item."""
    times: Times
    usable: float
    """Bytes that a worker may fill."""
    peak: float
    """Operations per second of a device's data sheet."""

    @property
    def bytes(self) -> float:
        return sum(self.memory.values())

    @property
    def fits(self) -> bool:
        return self.bytes <= self.usable

    @property
    def seconds(self) -> float:
        """Seconds of an update."""
        return self.times.total

    @property
    def tokens_per_second(self) -> float:
        return self.job.tokens / self.seconds

    @property
    def hours(self) -> float | None:
        """Hours of the whole run."""
        return None if self.job.updates is None else self.job.updates * self.seconds / 3600

    @property
    def utilisation(self) -> float:
        """Operations of the network, without recomputation, relative to the peak of all devices (Chowdhery et al. 2022: MFU)."""
        done = self.job.rows * self.job.network.operations()
        return done / (self.seconds * self.layout.workers * self.peak)

    def as_json(self) -> dict[str, Any]:
        hours = self.hours
        return {
            "name": self.layout.name, "kind": self.layout.kind, "executed_by_qkv": self.layout.runs, "fits": self.fits,
            "layout": asdict(self.layout),
            "memory_bytes": {**self.memory, "total": self.bytes, "usable": self.usable},
            "sent_bytes_per_update": {**self.traffic, "total": sum(self.traffic.values())},
            "seconds_per_update": {**asdict(self.times), "total": self.seconds},
            "tokens_per_second": self.tokens_per_second, "utilisation": self.utilisation,
            "hours": hours, "device_hours": None if hours is None else hours * self.layout.workers,
        }  # fmt: skip


def make_plan(job: Job, layout: Layout, cluster: Cluster) -> TrainingPlan:
    """Compute a plan."""
    usable, peak = cluster.usable_memory(layout.workers), cluster.peak(job.precision)
    return TrainingPlan(
        job, layout, memory(job, layout), traffic(job, layout, cluster.ring), times(job, layout, cluster), usable, peak
    )


def all_plans(job: Job, workers: int, cluster: Cluster) -> list[TrainingPlan]:
    """Return the best plan of each kind, starting with the simplest kind; QkvError if an update has too few rows for any."""
    found: dict[str, list[TrainingPlan]] = {}
    for layout in layouts(job, workers, cluster.per_machine):
        found.setdefault(layout.kind, []).append(best_rows(job, layout, cluster))
    if not found:
        raise QkvError(
            f"an update of {job.rows:,} x {job.network.tokens:,} tokens cannot be divided among {workers:,} workers: "
            "use fewer workers, or raise --batch-tokens"
        )
    return [best(found[kind]) for kind in KINDS if kind in found]


def layouts(job: Job, workers: int, per_machine: int) -> Iterator[Layout]:
    """Yield all degrees: tensor parallelism within a machine, pipelines of equal stages, rows for every data-parallel worker. Layouts
    that `qkv train` does not support for this network are left out."""
    for tensor in tensor_degrees(job, workers, per_machine):
        for pipeline in divisors_of(job.network.layers, workers // tensor):
            data = workers // tensor // pipeline
            if data > job.rows:
                continue
            for recompute in (False, True):
                found = [Layout(data, tensor, pipeline, False, recompute)]
                if pipeline == 1 and data > 1:
                    found.append(Layout(data, tensor, pipeline, True, recompute))
                yield from (layout for layout in found if not training_refuses(job, layout))


def training_refuses(job: Job, at: Layout) -> bool:
    """Whether `qkv train` rejects this layout for this network, such as sharding of a recurrent one."""
    if job.config is None or not at.runs:
        return False
    return bool(impossible_training(job.config, TrainConfig(**at.train_fields())))


def tensor_degrees(job: Job, workers: int, per_machine: int) -> list[int]:
    """Return the divisors of the number of workers that fit into one machine and divide heads, key heads and inner width."""
    most = min(workers, per_machine) if job.network.divisors else 1
    return [t for t in divisors_of(workers, most) if all(n % t == 0 for n in job.network.divisors)]


def divisors_of(number: int, multiple: int) -> list[int]:
    """Return the common divisors of two numbers."""
    return [n for n in range(1, min(number, multiple) + 1) if number % n == 0 and multiple % n == 0]


def best_rows(job: Job, layout: Layout, cluster: Cluster) -> TrainingPlan:
    """Return the fastest plan that fits, over the rows of a pass: 1, 2, 4, ... up to all rows of a worker; else the smallest."""
    most = -(-job.rows // layout.data)
    sizes = sorted({most, *(2**n for n in range(most.bit_length()))})
    return best([make_plan(job, layout.with_rows(job, rows), cluster) for rows in sizes])


def best(plans: list[TrainingPlan]) -> TrainingPlan:
    """Return the fastest plan that fits, or the one that needs the least memory; among equals, that with the fewest passes."""
    fitting = [plan for plan in plans if plan.fits]
    if fitting:
        return min(fitting, key=lambda plan: (plan.seconds, plan.layout.passes))
    return min(plans, key=lambda plan: plan.bytes)


def recommend(plans: list[TrainingPlan]) -> tuple[TrainingPlan | None, str]:
    """Return the recommended plan and the reason; None if none fits.

    The simplest of the plans that fit, that `qkv train` supports, and that are nearly as fast as the fastest of them.
    """
    fitting = [plan for plan in plans if plan.fits]
    running = [plan for plan in fitting if plan.layout.runs]
    if not fitting:
        need = min(plans, key=lambda plan: plan.bytes)
        return None, (
            f"none fits: {need.layout.name} needs the least memory, {need.bytes / 1e9:,.1f} GB per device; "
            "use more or larger devices"
        )
    if not running:
        plan = min(fitting, key=lambda plan: plan.seconds)
        return plan, "the fastest that fits; qkv train does not run pipelines, and nothing else fits"
    fastest = min(running, key=lambda plan: plan.seconds)
    plan = next(plan for plan in running if plan.seconds <= NEAR * fastest.seconds)
    if plan is not fastest:
        return plan, f"the simplest within {NEAR - 1:.0%} of the fastest that fits ({fastest.layout.name})"
    if len(running) == 1:
        return plan, "the only one that fits and that qkv train runs"
    return plan, "the fastest that fits and that qkv train runs"
