"""Job: what is trained, from a recipe or a preset."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from qkv.config import ModelConfig, Recipe, TrainConfig
from qkv.errors import ConfigError
from qkv.plan.network import NetworkSize, network_size
from qkv.train.training_cost import PUBLISHED, check_length, default_shape, update_shape

PER_WORKER = 4096
"""Default number of tokens of an update per worker."""


@dataclass(frozen=True)
class Job:
    """What is trained."""

    network: NetworkSize
    precision: str
    """float32 or bfloat16."""
    rows: int
    """Rows of an update, all workers together."""
    states: float = 2.0
    """Numbers that the optimiser keeps for each parameter: AdamW 2, Muon 1 for the matrices of the blocks."""
    average: bool = False
    """Whether a moving average of the weights is kept."""
    updates: int | None = None
    """Updates of the whole run, if known."""
    config: ModelConfig | None = None
    """Configuration of the network; None = no layout is excluded."""

    @property
    def tokens(self) -> int:
        """Tokens of an update (of the target, where there are two sides)."""
        return self.rows * self.network.tokens

    @property
    def bytes(self) -> int:
        """Bytes of a number in matrix products and in messages of activations."""
        return 2 if self.precision == "bfloat16" else 4


@dataclass(frozen=True)
class Request:
    """The options of `qkv plan`; None = as in the recipe, or a default."""

    name: str
    config: ModelConfig
    recipe: Recipe | None
    workers: int
    length: int | None = None
    source: int | None = None
    batch_tokens: int | None = None
    """Tokens of an update on the longer side, all workers together."""
    tokens: float | None = None
    """Tokens of the whole run."""


def make_job(asked: Request, precision: str, table: bool) -> Job:
    """Measure the size of the network, and take the batch and the number of updates from the recipe, the options or the paper of a preset.

    `table`: see network_size.
    """
    recipe, paper = asked.recipe, PUBLISHED.get(asked.name)
    if recipe is not None and recipe.tune.lora_rank:
        raise ConfigError("qkv plan covers training of all weights: leave out tune.lora_rank")
    if recipe is not None:
        rows, length, source = update_shape(recipe, asked.length, None, asked.source)
        tokens = rows * max(length, source) * recipe.train.accumulate
    else:
        short = asked.length or (32 if paper is not None else None)
        _, length, source = default_shape(asked.config, short, 1, asked.source)
        tokens = paper.tokens if paper is not None else max(PER_WORKER, length, source) * asked.workers
    check_length(asked.config, asked.name, (1, length, source))
    network = network_size(with_learned_vocabulary(asked.config, recipe), length, source, recipe, table)
    rows = max(1, (asked.batch_tokens or tokens) // network.longest)
    c = recipe.train if recipe is not None else TrainConfig()
    muon = network.inside / network.parameters if c.optimizer == "muon" else 0
    updates = c.steps if recipe is not None else None if paper is None else paper.updates
    updates = ceil(asked.tokens / (rows * network.tokens)) if asked.tokens else updates
    return Job(network, precision, rows, 2 - muon, bool(c.ema), updates, asked.config)


def with_learned_vocabulary(c: ModelConfig, recipe: Recipe | None) -> ModelConfig:
    """Return the configuration with the vocabulary that the run will learn, if it is smaller than that of a preset."""
    if recipe is None or recipe.data is None or recipe.data.vocabulary or recipe.tune.start:
        return c
    size = min(c.vocab_size, recipe.data.vocab_size)
    return c.changed(vocab_size=size, target_vocab_size=c.target_vocab_size and min(c.target_vocab_size, size))
