"""The language task: plain text in, a model that goes on with it out. The next token at every place (GPT, LLaMA, RNN)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import nn

from qkv.batch import Batch, Loss
from qkv.config import CorpusConfig, DataConfig, ModelConfig, Recipe
from qkv.data.corpora import corpus, training
from qkv.data.sources import Corpus, Piece, Record
from qkv.data.windows import Chunk, Ids, Row, Windows, chunks, collate, documents, length, rows_of
from qkv.errors import ConfigError, QkvError
from qkv.models.inputs import packs
from qkv.models.output import Output
from qkv.objectives import cross_entropy, wanted
from qkv.tasks.base import Say, Task, Words
from qkv.tasks.vocabulary import given_tokenizer, learn_tokenizer
from qkv.text.kinds import put_around
from qkv.text.tokenizer import Tokenizer
from qkv.text.train import BOS

EVALUATED = 8192
"""Tokens that are read at once where nothing is learned."""


@dataclass(frozen=True)
class Text:
    """Held-out documents, and how many bytes their text has."""

    documents: list[Ids]
    bytes: int


class LanguageTask(Task):
    """Documents in windows of data.max_length tokens, cross-entropy of the next token, loss of the whole held-out text."""

    name, noun, hub_tag = "language", "a language model", "text-generation"
    metric = "loss"

    @classmethod
    def possible(cls, recipe: Recipe) -> None:
        """Say at once what can never become a language model."""
        data, c = recipe.data, recipe.model
        if data is None or c.family != "decoder" or c.head != "vocabulary":
            raise ConfigError(
                "a language model needs [data] and a model of family 'decoder' with head 'vocabulary'; this is of family "
                f"{c.family!r} with head {c.head!r}"
            )
        if data.max_length > c.max_length:
            raise ConfigError(
                f"data.max_length = {data.max_length} tokens do not fit model.max_length = {c.max_length}: lower the one or "
                "raise the other"
            )

    @classmethod
    def prepare(cls, recipe: Recipe, say: Say) -> Words:
        """The vocabulary; where beginnings of documents are often seen, prompts get the begin token too."""
        assert recipe.data is not None
        tokenizer = given_tokenizer(recipe)
        if tokenizer is None:
            corpora = [corpus(c, recipe.data, "train", cls.name) for c in recipe.data.train]
            tokenizer = learn_tokenizer(corpora, lambda record: record[:1], recipe.data, say)
            if tokenizer.id_of(BOS) is None:
                put_around(tokenizer.backend, "[CLS]")  # WordPiece would end every prompt with [SEP]
            elif short_documents(corpora[0], tokenizer, recipe.data):
                put_around(tokenizer.backend, BOS)
        return Words(tokenizer, tokenizer)

    def __init__(self, recipe: Recipe, config: ModelConfig, words: Words, rank: int = 0, world: int = 1):
        super().__init__(recipe, config, words, rank, world)
        assert words.source is not None
        data, source = self.data, training(self.data, self.name)
        self.tokenizer, self.packs = words.source, packs(config)
        self.begin, self.end = config.bos_id, config.eos_ids[0] if config.eos_ids else None
        windows = Windows(source, self.encode, length, data.batch_tokens, data.pool, recipe.train.seed, rank, world)
        windows.begin, windows.end, windows.size, windows.pack = self.begin, self.end, data.max_length, self.packs
        self.batches = windows
        self.how = f"windows of {data.max_length} tokens that do not overlap, every token predicted once"
        self.text = self.held_out(data.valid, "valid")
        self.valid = self.text.documents

    # --- learning

    def encode(self, records: Sequence[Record]) -> list[Chunk]:
        """The tokens of some records, in chunks, and counted."""
        self.read += len(records)
        return self.in_chunks(records)

    def in_chunks(self, records: Sequence[Record]) -> list[Chunk]:
        rows = zip(records, self.tokenizer.plain([record[0] for record in records]), strict=True)
        return [chunk for record, ids in rows for chunk in chunks(ids, self.data.max_length, isinstance(record, Piece))]

    def collate(self, examples: list[Row]) -> Batch:
        return collate(examples, self.config.pad_id)

    def objective(self, output: Output, batch: Batch) -> Loss:
        return cross_entropy(output, wanted(batch), self.recipe.train.label_smoothing)

    # --- asking

    def held_out(self, c: CorpusConfig, name: str) -> Text:
        source = corpus(c, self.data, name, self.name)
        records = [record for _, record in source.read()]
        self.left_out += source.skipped
        found = list(documents(self.in_chunks(records), self.begin, self.end))
        if not any(len(document) > 1 for document in found):
            raise QkvError(f"the {name} set has no text: give data.{name} some that is not in the training set")
        return Text(found, sum(len(record[0].encode()) for record in records))

    def evaluate(self, network: nn.Module) -> dict[str, float]:
        return self.measure(network, self.text)

    @torch.no_grad()
    def measure(self, network: nn.Module, text: Text) -> dict[str, float]:
        """The whole text in windows of data.max_length that do not overlap: every token, the end token too, is predicted
        once, from what stands before it in its window. Loss in nats per token; bits per byte of the text."""
        rows = rows_of(text.documents, self.data.max_length, self.packs)
        rows.sort(key=length)
        count = max(1, EVALUATED // self.data.max_length)
        total, targets, device = 0.0, 0, next(network.parameters()).device
        for at in range(0, len(rows), count):
            batch = self.collate(rows[at : at + count]).to(device)
            found = cross_entropy(network(batch), wanted(batch))
            total, targets = total + found.sum.item(), targets + found.count
        loss = total / targets
        return {"loss": loss, "perplexity": math.exp(min(loss, 700.0)),
                "bits_per_byte": total / math.log(2) / max(text.bytes, 1)}  # fmt: skip

    def test(self, network: nn.Module, folder: Path, say: Say) -> dict[str, Any] | None:
        if self.data.test is None:
            return None
        text = self.held_out(self.data.test, "test")
        say(f"reading the test set: {text.bytes:,} bytes")
        found = self.measure(network, text)
        about = {"loss": "nats per token", "perplexity": "exp(loss)", "bits_per_byte": "bits per byte of UTF-8"}
        scores = [{"name": name, "value": found[name], "signature": unit} for name, unit in about.items()]
        return {"examples": len(text.documents), "how": self.how, "scores": scores}

    # --- telling

    def use(self, folder: str) -> tuple[str, str]:
        return f'qkv generate {folder} "How it begins" --temperature 0.8', '"".join(model.generate("How it begins"))'


def short_documents(source: Corpus, tokenizer: Tokenizer, data: DataConfig) -> bool:
    """Whether many windows are the beginning of a document: of long ones, such as books, a model sees a beginning too
    rarely to learn what the begin token means, and prompts go without."""
    records = [record for _, record in islice(source.read(), 1000)]
    tokens = sum(map(len, tokenizer.plain([record[0] for record in records])))
    ends = sum(not isinstance(record, Piece) for record in records)
    return tokens < 10 * data.max_length * ends
