"""Layout: how a training run is divided among workers."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any

from qkv.config import TrainConfig
from qkv.plan.job import Job


@dataclass(frozen=True)
class Layout:
    """Degrees of parallelism, whose product is the number of workers, and how much of a batch is computed at once."""

    data: int = 1
    """Workers that share the rows of a batch."""
    tensor: int = 1
    """Workers that share every attention and feed-forward layer; ranks next to each other."""
    pipeline: int = 1
    """Stages of consecutive blocks."""
    sharded: bool = False
    """Whether parameters, gradients and optimiser state are divided among the `data` workers (FSDP2, ZeRO-3)."""
    recompute: bool = False
    """Activation checkpointing: recompute the activations of each block in the backward pass."""
    rows: int = 1
    """Rows of one pass on each worker."""
    passes: int = 1
    """Passes (micro-batches) of an update."""

    @property
    def workers(self) -> int:
        return self.data * self.tensor * self.pipeline

    @property
    def runs(self) -> bool:
        """Whether `qkv train` executes this layout; it has no pipeline parallelism."""
        return self.pipeline == 1

    @property
    def fsdp(self) -> bool:
        """Whether `qkv train` runs it by FSDP2: shards, or tensor parallelism, where each worker is a shard of its own."""
        return self.sharded or (self.tensor > 1 and self.pipeline == 1)

    @property
    def kind(self) -> str:
        """Name the way to divide the run, without numbers."""
        names = ["tensor"] * (self.tensor > 1) + ["pipeline"] * (self.pipeline > 1)
        return " x ".join([*names, "sharded" if self.sharded else "data"])

    @property
    def name(self) -> str:
        """Name the layout with its degrees."""
        parts = [
            f"{kind} {degree}" for kind, degree in (("tensor", self.tensor), ("pipeline", self.pipeline)) if degree > 1
        ]
        if self.data > 1 or not parts:
            parts.append(f"{'sharded' if self.sharded else 'data'} {self.data}")
        return " x ".join(parts)

    def train_fields(self) -> dict[str, Any]:
        """Return the fields of [train] that select the layout, where they are not the defaults."""
        chosen = {"sharding": "full" if self.sharded else "none", "tensor_parallel": self.tensor,
                  "activation_checkpointing": self.recompute, "accumulate": self.passes}  # fmt: skip
        return {name: value for name, value in chosen.items() if value != TrainConfig.model_fields[name].default}

    def with_rows(self, job: Job, rows: int) -> Layout:
        """Return the layout with passes of so many rows."""
        return Layout(
            self.data, self.tensor, self.pipeline, self.sharded, self.recompute, rows, ceil(job.rows / self.data / rows)
        )
