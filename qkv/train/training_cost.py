"""Operations of a whole training run, from its recipe, and the published figures of 2017."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from qkv.config import ModelConfig, Recipe
from qkv.config.task import CorruptConfig
from qkv.errors import QkvError
from qkv.models.build import n_patches
from qkv.models.cost import Cost, PartCost, cost
from qkv.models.flops import Shape
from qkv.models.inputs import has_fixed_length
from qkv.tasks.electra import generator_config
from qkv.train.activation_memory import activation_memory

WINDOWS = ("language", "masked", "replaced", "span-corruption", "denoising")
"""Tasks whose training rows are windows of data.max_length tokens."""
SENTENCE = 32
"""Assumed length for tasks on sentences, as only the data have their true lengths."""


@dataclass(frozen=True)
class RunCost:
    """Operations of a run: those of an update times the number of updates."""

    updates: int
    limit: str
    """What else may end the run earlier: epochs, time_budget, patience; empty where the number of updates is exact."""
    accumulate: int
    per_update: int
    """Operations of one update, all micro-batches together."""

    @property
    def operations(self) -> int:
        return self.updates * self.per_update

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "operations": self.operations}


@dataclass(frozen=True)
class Published:
    """Training cost as Vaswani et al. (2017, table 2) estimate it: time x GPUs x sustained operations per second of a GPU."""

    hours: float
    gpus: int
    per_second: float
    updates: int
    tokens: int
    """Tokens per side and batch."""

    @property
    def operations(self) -> float:
        return self.hours * 3600 * self.gpus * self.per_second


P100 = 9.5e12
"""Sustained single-precision operations per second of a P100 (Vaswani et al. 2017, footnote 5)."""
PUBLISHED = {
    "transformer-base": Published(12, 8, P100, 100_000, 25_000),
    "transformer-big": Published(3.5 * 24, 8, P100, 300_000, 25_000),
}
"""Preset -> training run of the paper: 12 hours and 3.5 days on 8 GPUs (section 5.2)."""


def default_shape(c: ModelConfig, length: int | None = None, rows: int = 1, source: int | None = None) -> Shape:
    """Return the shape of the batch on which a network without a recipe is counted: rows of max_length tokens."""
    patches = 0 if c.image_size is None else 1 + n_patches(c)
    if patches and c.family == "encoder":
        return rows, patches, 0
    length = length or (SENTENCE if patches else c.max_length)
    return rows, length, (patches or source or length) if c.family == "encoder-decoder" else 0


def update_shape(
    recipe: Recipe, length: int | None = None, rows: int | None = None, source: int | None = None
) -> Shape:
    """Return rows, tokens and source tokens of one batch of a run.

    A batch has data.batch_tokens, counted on the longer side. Without `length`, windows have data.max_length tokens, summaries
    data.target_length after data.max_length of text, and sentences SENTENCE tokens.
    """
    c, data = recipe.model, recipe.data
    if data is None:
        return default_shape(c, length, rows or 1, source)
    both = c.family == "encoder-decoder"
    if recipe.task == "summary":
        text = source or min(data.max_length, c.max_length)
        length = length or data.target_length
        length, source = (length, text) if both else (text + length, 0)
    elif recipe.task == "span-corruption":
        source = source or length or data.max_length
        length = round(recipe.corrupt.rate * source * (1 + 1 / recipe.corrupt.span))
    elif recipe.task in WINDOWS:
        length = length or data.max_length
    else:
        length = length or min(SENTENCE, data.max_length)
    _, length, source = default_shape(c, length, 1, source)
    return rows or max(1, data.batch_tokens // max(length, source)), length, source


def check_length(c: ModelConfig, name: str, shape: Shape) -> None:
    """QkvError for rows that are longer than the network can read."""
    longest = max(shape[1:])
    if has_fixed_length(c) and longest > c.max_length:
        raise QkvError(
            f"{longest:,} tokens, but {name} reads at most {c.max_length:,}: lower --length, or add --set model.max_length={longest}"
        )


def target_count(c: ModelConfig, shape: Shape, corrupt: CorruptConfig | None = None) -> int | None:
    """Return how many positions of a batch have a target: of masked language models the masked ones; None = all."""
    if c.head not in ("masked", "masked-next"):
        return None
    return max(1, round(shape[0] * shape[1] * (corrupt or CorruptConfig()).rate))


def run_cost(recipe: Recipe, update: Cost, updates: int | None = None) -> RunCost:
    """Return the cost of a run, from that of an update; `updates` is the number of a run that has ended, None = train.steps."""
    limits = [name for name in ("epochs", "time_budget", "patience") if getattr(recipe.train, name)]
    limit = "" if updates is not None else " or ".join(f"train.{name}" for name in limits)
    accumulate = recipe.train.accumulate
    return RunCost(updates or recipe.train.steps, limit, accumulate, accumulate * update.total.training)


def generator_cost(recipe: Recipe, shape: Shape) -> tuple[PartCost, int]:
    """Return the cost of ELECTRA's generator, drawing tokens for the masked positions included, and the bytes of its activations.

    It shares the embeddings of the discriminator, which therefore do not count as its parameters.
    """
    config = generator_config(recipe.model, recipe.corrupt.generator_size)
    targets = target_count(config, shape, recipe.corrupt)
    whole = cost(config, shape, targets)
    own = sum(part.parameters for part in whole.parts if part.part not in ("embeddings", "positions"))
    (head,) = (part for part in cost(config, (1, targets or 1, 0)).parts if part.part == "head")
    part = PartCost("", "generator", own, whole.total.forward, whole.total.training + head.forward)
    return part, sum(activation_memory(config, shape, targets).values())


def published_updates(c: ModelConfig, paper: Published, length: int = SENTENCE) -> RunCost:
    """Count the operations of the paper's training run: its updates, each of a batch with its number of tokens per side."""
    rows = round(paper.tokens / length)
    return RunCost(paper.updates, "", 1, cost(c, (rows, length, length)).total.training)
