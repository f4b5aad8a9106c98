"""Training: the state of a run between two updates, which its checkpoints store."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from torch import nn
from torch.distributed import ProcessGroup
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel

from qkv.data.batching import Position
from qkv.parts.state import State
from qkv.train.shard_files import Saving
from qkv.train.step import LossModule

RULES = 2
"""Version of the training rules, which define what settings do in an update; extend.py lists the changes since the first."""


@dataclass
class Progress:
    """Numbers that determine how training continues."""

    step: int = 0
    position: Position = field(default_factory=Position)
    best: float = -math.inf
    best_step: int = 0
    waited: int = 0
    """Evaluations since the best one."""
    seconds: float = 0.0
    """Time spent training, over all resumptions."""
    warmup: int = 0
    """Updates in which the learning rate was still rising."""
    evaluated: tuple[int, float, float] = (0, 0.0, 0.0)
    """The last evaluation: update, share of the run, minutes."""
    rules: int = RULES
    """Training rules that the run began with."""


@dataclass
class Sharded:
    """State of a sharded network besides its shards."""

    model: LossModule
    """The module to train: the network with its objective, which is set when training starts."""
    skeleton: nn.Module
    """The network without the values of its weights (meta device): the structure of whole networks."""
    group: ProcessGroup
    """A second group of the same workers, for messages while a checkpoint is written in the background."""
    saving: Saving | None = None
    """The checkpoint that is being written."""


@dataclass
class Training:
    """The contents of a checkpoint."""

    network: nn.Module
    optimizer: Optimizer
    average: AveragedModel | None = None
    """Moving average of the weights."""
    progress: Progress = field(default_factory=Progress)
    carried: list[State] = field(default_factory=list)
    """Carried states of the rows of each micro-batch; empty = no state is carried over."""
    words: dict[str, str] = field(default_factory=dict)
    data: dict[str, str] = field(default_factory=dict)
    """Checksums of the run's vocabulary and training data (input_checksums.py), on rank 0."""
    half: bool = False
    """Matrix products in bfloat16; not part of a checkpoint."""
    sharded: Sharded | None = None
    """Set if weights, gradients and optimiser state are divided among workers (sharding.py)."""
