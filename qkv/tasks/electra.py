"""ELECTRA (Clark et al. 2020): a small generator fills the masks of a text, and a network learns to detect which tokens it
replaced. Every token is a training target then, not only the masked ones, so that less text is needed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, nn

from qkv.batch import IGNORED, Batch, Loss
from qkv.config import ModelConfig, Recipe
from qkv.data import corrupt
from qkv.data.corpora import plain_texts
from qkv.device import isolate_random_state
from qkv.errors import ConfigError, QkvError
from qkv.models.build import build
from qkv.models.output import Output
from qkv.objectives import masked_lm, replaced_token_detection
from qkv.shared_work import shared_sums
from qkv.tasks.base import Words
from qkv.tasks.gaps import marks_of
from qkv.tasks.pretraining import Pretraining, hits
from qkv.tasks.windows import frame_rows
from qkv.text.kinds import around

WEIGHT = 50.0
"""How much the discriminator's mean loss counts beside the generator's."""


def generator_config(c: ModelConfig, size: float) -> ModelConfig:
    """A narrow network of the same depth over the same word vectors, that answers with a word. Its width, heads and inner width
    are `size` times those of `c` (Clark et al. 2020, table 6), rounded down."""
    share = Fraction(size).limit_denominator(64)  # 0.3333 is a third
    heads = max(1, int(c.n_heads * share))
    step = heads * (2 if c.position.startswith("rotary") else 1)  # rotary positions turn pairs of channels
    width = max(1, int(c.d_model * share) // step) * step
    return c.changed(  # type: ignore[no-any-return]
        head="masked", tie="output", output_bias=True, d_embed=c.d_embed or c.d_model, d_model=width, n_heads=heads,
        n_kv_heads=None, d_head=None, d_ff=max(1, int(c.d_ff * share)),
    )  # fmt: skip


@dataclass(frozen=True)
class Both:
    """The outputs of the two networks, and the batch of the discriminator."""

    generator: Output
    discriminator: Output
    batch: Batch


class Electra(nn.Module):
    """Generator and discriminator with one table of words (and of positions and segments, where they are learned)."""

    def __init__(self, c: ModelConfig, generator_size: float):
        super().__init__()
        discriminator: Any = build(c)
        generator: Any = build(generator_config(c, generator_size))
        mine, its = discriminator.embed, generator.embed
        its.tokens, its.position, its.segments = mine.tokens, mine.position, mine.segments
        generator.head.words.weight = mine.tokens.weight
        self.discriminator, self.generator = discriminator, generator

    def forward(self, batch: Batch) -> Both:
        """`batch` has masks in its inputs, and the words under them as targets."""
        assert batch.inputs is not None and batch.targets is not None
        output = self.generator(batch)
        hidden = batch.targets != IGNORED  # (B, T)
        written = batch.inputs.masked_scatter(hidden, sample_tokens(output, hidden))
        wrong = hidden & (written != batch.targets)  # a lucky guess is the original word
        answers = wrong.long() if batch.mask is None else wrong.long().masked_fill(~batch.mask, IGNORED)
        asked = replace(batch, inputs=written, targets=answers)
        return Both(output, self.discriminator(asked), asked)


@torch.no_grad()
def sample_tokens(output: Output, hidden: Tensor) -> Tensor:
    """(N,) a word for each hidden place, drawn from the generator's probabilities; no gradient goes through a choice."""
    return output.head(output.hidden[hidden]).float().softmax(-1).multinomial(1).squeeze(1)


class ReplacedTask(Pretraining):
    """The loss is the generator's, of masked words, and WEIGHT times the discriminator's; the discriminator is kept."""

    schema = plain_texts("replaced")
    name, noun, hub_tag = "replaced", "a reader that sees which words were exchanged", "feature-extraction"
    family, heads, special = "encoder", ("replaced",), ["<mask>"]

    @classmethod
    def possible(cls, recipe: Recipe) -> None:
        super().possible(recipe)
        given = [name for name in ("test", "extra_valid") if recipe.data is not None and getattr(recipe.data, name)]
        if given:
            raise ConfigError(
                f"data.{given[0]}: the inputs of a discriminator come from its generator, which is not stored; leave it out"
            )

    def __init__(self, recipe: Recipe, config: ModelConfig, words: Words):
        assert words.source is not None
        self.gaps = around(words.source, config)
        self.marks = marks_of(words.source, recipe.corrupt.whole_words)
        super().__init__(recipe, config, words)

    def around(self) -> int:
        return sum(map(len, self.gaps))

    def network(self) -> nn.Module:
        return Electra(self.config, self.corrupt.generator_size)

    def kept(self, network: nn.Module) -> nn.Module:
        return network.discriminator  # type: ignore[return-value]

    def spoil(self, examples: Sequence[Any], r: random.Random) -> Batch:
        """[CLS] text [SEP], every hidden word a mask."""
        rows = [corrupt.mask_tokens(ids, r, self.corrupt.rate, self.marks, kept=0, random_words=0) for ids in examples]
        return frame_rows(rows, self.gaps, self.config.pad_id)

    def objective(self, output: Both, batch: Batch) -> Loss:  # type: ignore[override]
        """Divided by the number of masks, which are `rate` of the tokens: that makes it the sum of the two means."""
        words, wrong = masked_lm(output.generator, batch), replaced_token_detection(output.discriminator, output.batch)
        return Loss(words.sum + WEIGHT * self.corrupt.rate * wrong.sum, words.count)

    @torch.no_grad()
    def measure(self, network: nn.Module, batches: Sequence[Batch]) -> dict[str, float]:
        """The joint loss; how many of the masked words the generator guesses; how many of the exchanged words the
        discriminator finds, and how many of those that it names were exchanged."""
        if not isinstance(network, Electra):
            raise QkvError(
                "the inputs of a discriminator come from its generator, which is not stored: its scores are in log.jsonl"
            )
        device = next(network.parameters()).device

        def compute(numbered: tuple[int, Batch]) -> tuple[float, ...]:
            number, batch = numbered[0], numbered[1].to(device)
            with isolate_random_state(device):
                torch.manual_seed(number)  # the generator draws alike at every evaluation
                both = network(batch)
            loss, hit = self.objective(both, batch), hits(both.generator, batch.targets)  # type: ignore[arg-type]
            flagged, replaced = both.discriminator.logits > 0, both.batch.targets == 1
            real = both.batch.targets != IGNORED
            return (
                loss.sum.item(),
                loss.count,
                *(int(x.sum()) for x in (hit, flagged & replaced, flagged & real, replaced)),
            )

        nats, count, right, found, named, true = shared_sums(compute, list(enumerate(batches)))
        return {"loss": nats / max(count, 1), "generator_accuracy": 100 * right / max(count, 1),
                "recall": 100 * found / max(true, 1), "precision": 100 * found / max(named, 1)}  # fmt: skip
