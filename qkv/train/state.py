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
"""Version of how settings become updates; extend.py lists what has changed since the first."""


@dataclass
class Progress:
    """Numbers that decide how training goes on."""

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
    """Those that the run began with."""


@dataclass
class Sharded:
    """What a network that is divided among workers needs besides its shards."""

    model: LossModule
    """The module to train: the network with its objective, which is set when training starts."""
    skeleton: nn.Module
    """The network without the values of its weights (meta device): the structure of whole networks."""
    group: ProcessGroup
    """The workers again, for the messages of those that write a checkpoint while training continues."""
    saving: Saving | None = None
    """The checkpoint that is being written."""


@dataclass
class Training:
    """All that a checkpoint holds."""

    network: nn.Module
    optimizer: Optimizer
    average: AveragedModel | None = None
    """Moving average of the weights."""
    progress: Progress = field(default_factory=Progress)
    carried: list[State] = field(default_factory=list)
    """What the rows of each micro-batch remember of the text before it; empty = nothing is carried over."""
    words: dict[str, str] = field(default_factory=dict)
    data: dict[str, str] = field(default_factory=dict)
    """Checksums of the run's vocabulary and training data (input_checksums.py), on rank 0."""
    half: bool = False
    """Products in bfloat16; not part of a checkpoint."""
    sharded: Sharded | None = None
    """Where weights, gradients and optimiser state are divided among workers (sharding.py)."""
