"""The translation task: two plain text files in, a scored translator out."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from qkv.batch import Batch
from qkv.config import DataConfig, DecodeConfig, ModelConfig, Recipe
from qkv.data import translation as pairs
from qkv.data.batching import Batches
from qkv.data.sources import Record, Source
from qkv.errors import QkvError
from qkv.evaluate.scores import bleu
from qkv.generate.search import greedy
from qkv.objectives import translation
from qkv.text.tokenizer import Tokenizer
from qkv.text.train import train_tokenizer
from qkv.train.step import Objective


def learn_tokenizers(data: DataConfig) -> tuple[Tokenizer, Tokenizer]:
    """Source and target tokenizers from the training text; one and the same where the vocabulary is joint."""
    learn = partial(train_tokenizer, kind=data.tokenizer, vocab_size=data.vocab_size)
    corpora = [pairs.source_of(c, data, "train") for c in data.train]  # one pass over each, whatever its weight
    side = lambda s: (text for corpus in corpora for text in pairs.texts(corpus, s))  # noqa: E731
    if data.joint:
        both = learn(side(None))
        return both, both
    return learn(side(0)), learn(side(1))


def fitted(c: ModelConfig, source: Tokenizer, target: Tokenizer) -> ModelConfig:
    """The model's configuration with the sizes and special ids of its tokenizers."""
    size = {"vocab_size": source.size, "target_vocab_size": None if target is source else target.size}
    return c.changed(**size, pad_id=0, bos_id=1, eos_id=2, start_id=None)  # type: ignore[no-any-return]


class TranslationTask:
    """Pairs of sentences, cross-entropy of the target words, BLEU of greedy translations of the held-out set."""

    metric = "bleu"

    def __init__(
        self, recipe: Recipe, c: ModelConfig, source: Tokenizer, target: Tokenizer, rank: int = 0, world: int = 1
    ):
        assert recipe.data is not None
        data = recipe.data
        self.config, self.decode, self.source, self.target = c, recipe.decode, source, target
        self.encode = pairs.Encoder(source.plain, target.plain, data)
        self.batches = Batches(
            pairs.training_source(data),
            self.encode,
            pairs.length,
            data.batch_tokens,
            data.pool,
            recipe.train.seed,
            rank,
            world,
        )
        self.objective: Objective = partial(translation, smoothing=recipe.train.label_smoothing)
        self.valid = held_out(pairs.source_of(data.valid, data, "valid"), "valid")

    def collate(self, examples: list[Any]) -> Batch:
        return pairs.collate(examples, self.config)

    def evaluate(self, network: nn.Module) -> dict[str, float]:
        """BLEU and loss per token, both on the held-out set."""
        written = greedy_texts(network, self.config, self.source, self.target, [r[0] for r in self.valid], self.decode)
        return {"bleu": bleu(written, [r[1] for r in self.valid]), "loss": self.loss(network)}

    @torch.no_grad()
    def loss(self, network: nn.Module) -> float:
        rows = list(
            zip(
                self.source.plain([r[0] for r in self.valid]),
                self.target.plain([r[1] for r in self.valid]),
                strict=True,
            )
        )
        total, count = 0.0, 0
        for batch in (self.collate(rows[at : at + 64]) for at in range(0, len(rows), 64)):
            found = translation(network(batch), batch, smoothing=0.0)
            total, count = total + found.sum.item(), count + found.count
        return total / max(count, 1)


def held_out(source: Source, name: str) -> list[Record]:
    """All records of a held-out set; an empty one cannot decide anything."""
    records = [record for _, record in source.read() if record[0].strip()]
    if not records:
        raise QkvError(f"the {name} set has no sentence: give data.{name} some text that is not in the training set")
    return records


def greedy_texts(network: Any, c: ModelConfig, source: Tokenizer, target: Tokenizer, texts: Sequence[str],
                 decode: DecodeConfig) -> list[str]:  # fmt: skip
    """Greedy translations, batched by length, in the order of the texts."""
    rows = source.plain(texts)
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
    found: dict[int, str] = {}
    while order:
        width = len(rows[order[-1]]) + 1  # the longest first: what does not fit in memory shows at once
        some, order = order[-max(1, decode.batch_tokens // width) :], order[: -max(1, decode.batch_tokens // width)]
        batch = pairs.sources([rows[i] for i in some], c)
        limit = min(decode.max_length, 2 * width + 10)
        for i, ids in zip(some, greedy(network, batch, limit, c.eos_ids), strict=True):
            found[i] = target.decode([t for t in ids if t not in c.eos_ids])
    return [found[i] for i in range(len(rows))]
