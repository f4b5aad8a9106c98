"""The translation task: two plain text files in, a scored translator out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from qkv.batch import Batch
from qkv.config import DataConfig, DecodeConfig, ModelConfig, Recipe
from qkv.data import translation as pairs
from qkv.data.batching import Batches
from qkv.data.sources import Record, Source
from qkv.errors import ConfigError, QkvError
from qkv.evaluate.scores import bleu
from qkv.generate.search import greedy
from qkv.objectives import translation
from qkv.text.kinds import put_around
from qkv.text.tokenizer import Tokenizer
from qkv.text.train import BOS, EOS, PAD, sample, train_tokenizer
from qkv.train.step import Objective

VOCABULARY_PAIRS, VOCABULARY_BYTES = 200_000, 30_000_000
"""A vocabulary is learned from about so many pairs, and from at most so many bytes of text: more changes it little."""


def learn_tokenizers(data: DataConfig, say: Callable[[str], None] = lambda _: None) -> tuple[Tokenizer, Tokenizer]:
    """Source and target tokenizers from the training text; one and the same where the vocabulary is joint."""
    sides = [slice(0, 2)] if data.joint else [slice(0, 1), slice(1, 2)]
    learned = [learn_tokenizer(data, side, say) for side in sides]
    return learned[0], learned[-1]


def learn_tokenizer(data: DataConfig, side: slice, say: Callable[[str], None]) -> Tokenizer:
    """From the text of one side or both; of a large corpus, from lines spread evenly over it, always the same ones."""
    corpora = [pairs.source_of(c, data, "train") for c in data.train]  # one pass over each, whatever its weight
    stride = max(1, round(sum(corpus.about() for corpus in corpora) / VOCABULARY_PAIRS))
    total = 0

    def lines() -> Iterator[str]:
        nonlocal total
        for corpus in corpora:
            behind = total
            for number, record in corpus.read(0, stride):
                total = behind + number * (side.stop - side.start)
                yield from record[side]

    texts = list(sample(lines(), VOCABULARY_BYTES))
    if not any(text.strip() for text in texts):
        lost = sum((corpus.skipped for corpus in corpora), Counter[str]())
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in lost.items()) or "only blank lines"
        raise QkvError(f"the training text has no line to learn from: {reasons}")
    say(f"learning the vocabulary from {len(texts):,} of {'about ' if stride > 1 else ''}{total:,} lines")
    tokenizer = train_tokenizer(texts, data.tokenizer, data.vocab_size, lower=False)
    if tokenizer.size < data.vocab_size:
        say(f"it has {tokenizer.size:,} entries, of {data.vocab_size:,} asked for: these lines have no more")
    if data.tokenizer == "wordpiece":
        put_around(tokenizer.backend, None, "[SEP]")  # as the others: an end token, and nothing before the text
    return tokenizer


def fitted(c: ModelConfig, source: Tokenizer, target: Tokenizer) -> ModelConfig:
    """The model's configuration with the sizes and special ids of its tokenizers."""
    size = {"vocab_size": source.size, "target_vocab_size": None if target is source else target.size}
    names = (PAD, BOS, EOS) if source.id_of(EOS) is not None else ("[PAD]", "[CLS]", "[SEP]")  # WordPiece's
    pad, bos, eos = (source.id_of(name) for name in names)
    return c.changed(**size, pad_id=pad, bos_id=bos, eos_id=eos, start_id=None)  # type: ignore[no-any-return]


def possible(r: Recipe) -> None:
    """Say at once what can never become a translator."""
    data, c = r.data, r.model
    if data is None or c.family != "encoder-decoder" or c.image_size is not None:
        raise ConfigError(
            f"training needs [data] and a model of family 'encoder-decoder', which translates; this is a {c.family!r}"
        )
    for corpus in (*data.train, data.valid, *([data.test] if data.test else [])):
        given = corpus.files or (corpus.columns if corpus.table else (0, 1))
        if len(given) != 2:
            raise ConfigError(
                f"a translation corpus has two files or columns, source and target; given {list(given)}"
                + (f'; if both sides are in its rows: {{ table = "{given[0]}" }}' if len(corpus.files) == 1 else "")
            )
    if not data.train:
        raise ConfigError("data.train is empty: name a corpus to learn from")
    if not data.joint and c.tie in ("embeddings", "all"):
        raise ConfigError(
            f"model.tie = {c.tie!r} shares one word matrix, and data.joint = false has two vocabularies: set "
            'model.tie = "output", or data.joint = true'
        )
    if data.max_length >= c.max_length:
        raise ConfigError(
            f"data.max_length = {data.max_length} tokens and the end token do not fit model.max_length = {c.max_length}: "
            "lower the one or raise the other"
        )


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
        valid = pairs.source_of(data.valid, data, "valid")
        self.valid, self.left_out = self.readable(held_out(valid, "valid"))
        self.left_out += valid.skipped

    def readable(self, records: list[Record]) -> tuple[list[Record], Counter[str]]:
        """Those that the network has room for, and why the others are left out."""
        most = self.config.max_length - 1
        rows = zip(*(t.plain([r[i] for r in records]) for i, t in enumerate((self.source, self.target))), strict=True)
        fits = [max(map(len, row)) <= most for row in rows]
        if not any(fits):
            raise QkvError(f"every sentence of the valid set has more than {most} tokens: give data.valid shorter ones")
        left_out = Counter({f"more than {most} tokens": fits.count(False)} if not all(fits) else {})
        return [record for record, fit in zip(records, fits, strict=True) if fit], left_out

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
        total, count, device = 0.0, 0, next(network.parameters()).device
        for batch in (self.collate(rows[at : at + 64]).to(device) for at in range(0, len(rows), 64)):
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
        batch = pairs.sources([rows[i] for i in some], c).to(next(network.parameters()).device)
        limit = min(decode.max_length, 2 * width + 10, c.max_length)
        for i, ids in zip(some, greedy(network, batch, limit, c.eos_ids), strict=True):
            found[i] = target.decode([t for t in ids if t not in c.eos_ids])
    return [found[i] for i in range(len(rows))]
