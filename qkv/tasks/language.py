"""The language task: predict the next token of plain text at every position (GPT, LLaMA, RNN)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from qkv.batch import Batch, Loss
from qkv.config import CorpusConfig, DataConfig, ModelConfig, Recipe
from qkv.config.rules import CARRIED
from qkv.data.corpora import corpus, plain_texts, training
from qkv.data.sources import Corpus, PartialRecord, Record
from qkv.data.windows import (
    Chunk,
    Ids,
    Row,
    Streams,
    StreamWindow,
    Windows,
    chunks,
    collate,
    documents,
    length,
    rows_of,
    side_by_side,
)
from qkv.errors import ConfigError, QkvError
from qkv.evaluate.metrics import bits_per_byte, perplexity
from qkv.models.inputs import carries, packs
from qkv.models.output import Output
from qkv.objectives import cross_entropy
from qkv.parts.state import State
from qkv.shared_work import shared_map, shared_sums
from qkv.tasks.base import Say, Task, Words
from qkv.tasks.losses import Losses, blocks, token_losses
from qkv.tasks.vocabulary import given_tokenizer, learn_tokenizer
from qkv.tasks.windows import encode_texts
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
    records: Sequence[Record] = ()
    """The texts themselves; a long document is several."""
    lossy: bool = False
    """The tokens do not give the text back (it was lowercased or normalised, or characters are unknown): it is one of many with
    these tokens, so that it is less probable than they are, and takes more bits."""

    def numbers(self, nats: float, tokens: int) -> dict[str, float]:
        """Loss in nats per token, its exponential, and bits per byte of the text, or what they are at the least."""
        name = "bits_per_byte_at_least" if self.lossy else "bits_per_byte"
        return {
            "loss": nats / tokens,
            "perplexity": perplexity(nats, tokens),
            name: bits_per_byte(nats, max(self.bytes, 1)),
        }


class LanguageTask(Task):
    """Documents in windows of data.max_length tokens, cross-entropy of the next token, loss of the whole held-out text.

    With data.carry a window goes on with the state of the one before, in training and in the held-out text.
    """

    name, noun, hub_tag = "language", "a language model", "text-generation"
    schema = plain_texts("language", by="file")
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
        cls.fits(recipe)
        if data.carry and not carries(c):
            raise ConfigError(
                "data.carry = true passes the state after each window to the next one, which requires a state of fixed "
                f"size (recurrent cells, or mixers {', '.join(sorted(CARRIED))} alone) and position = 'none'"
            )

    @classmethod
    def prepare(cls, recipe: Recipe, say: Say) -> Words:
        """The vocabulary; where beginnings of documents are often seen, prompts get the begin token too."""
        assert recipe.data is not None
        tokenizer = given_tokenizer(recipe)
        if tokenizer is None:
            corpora = [corpus(c, recipe.data, "train", cls.schema) for c in recipe.data.train]
            tokenizer = learn_tokenizer(corpora, lambda record: record[:1], recipe.data, say, nouns="documents")
            if tokenizer.id_of(BOS) is None:
                put_around(tokenizer.backend, "[CLS]")  # WordPiece would end every prompt with [SEP]
            elif short_documents(corpora[0], tokenizer, recipe.data):
                put_around(tokenizer.backend, BOS)
        return Words(tokenizer, tokenizer)

    def __init__(self, recipe: Recipe, config: ModelConfig, words: Words):
        super().__init__(recipe, config, words)
        assert words.source is not None
        data, source = self.data, training(self.data, self.schema)
        self.tokenizer, self.packs = words.source, packs(config)
        self.begin, self.end = config.bos_id, config.eos_ids[0] if config.eos_ids else None
        self.carries = data.carry
        kind = Streams if data.carry else Windows
        windows = kind(source, self.encode, length, data.batch_tokens, data.pool, recipe.train.seed)
        windows.begin, windows.end, windows.size, windows.pack = self.begin, self.end, data.max_length, self.packs
        if isinstance(windows, Streams):
            windows.together = recipe.train.accumulate
        self.batches = windows
        self.text = self.held_out(data.valid, "valid")
        self.valid, self.how = self.text.documents, self.measured(self.text)

    # --- learning

    def encode(self, records: Sequence[Record]) -> list[Chunk]:
        """The tokens of some records, in chunks, and counted."""
        self.read += len(records)
        return self.in_chunks(records, self.tokenizer.plain([record[0] for record in records]))

    def in_chunks(self, records: Sequence[Record], rows: Sequence[Sequence[int]]) -> list[Chunk]:
        """The ids of each record, cut."""
        return [chunk for record, ids in zip(records, rows, strict=True)
                for chunk in chunks(ids, self.data.max_length, isinstance(record, PartialRecord))]  # fmt: skip

    def collate(self, examples: list[Row] | list[StreamWindow]) -> Batch:
        if not self.carries:
            return collate(examples, self.config.pad_id)  # type: ignore[arg-type]
        windows, fresh = zip(*examples, strict=True)
        return replace(collate([[window] for window in windows], self.config.pad_id), fresh=torch.tensor(fresh))

    def objective(self, output: Output, batch: Batch) -> Loss:
        return cross_entropy(output, batch.targets, self.recipe.train.label_smoothing)

    # --- asking

    def held_out(self, c: CorpusConfig, name: str) -> Text:
        source = corpus(c, self.data, name, self.schema)
        records = [record for _, record in source.read()]
        self.left_out += source.skipped
        texts = [record[0] for record in records]
        rows = self.tokenizer.plain(texts)
        found = list(documents(self.in_chunks(records, rows), self.begin, self.end))
        if not any(len(document) > 1 for document in found):
            raise QkvError(f"the {name} set has no text: give data.{name} some that is not in the training set")
        back = (
            self.tokenizer.decode(ids, special=True).removeprefix(" ") for ids in rows
        )  # many put a space before a text
        lossy = any(a != b.removeprefix(" ") for a, b in zip(back, texts, strict=True))
        return Text(found, sum(len(text.encode()) for text in texts), records, lossy)

    def measured(self, text: Text) -> str:
        """How the loss of a text is measured, and what is missing from its bits per byte."""
        how = (
            "every token predicted once, from all that stands before it in its document: the state is carried on"
            if self.carries
            else f"windows of {self.data.max_length} tokens that do not overlap, every token predicted once"
        )
        return f"{how}; bits per byte of the tokens alone, which do not decode to the text" if text.lossy else how

    def evaluate(self, network: nn.Module) -> dict[str, float]:
        return self.measure(network, self.text)

    @torch.no_grad()
    def measure(self, network: nn.Module, text: Text) -> dict[str, float]:
        """The whole text in windows of data.max_length that do not overlap: every token, the end token too, is predicted
        once, from what stands before it in its window (with data.carry: in its document)."""

        def compute(group: list[Any]) -> tuple[float, int]:
            losses = [cross_entropy(output, batch.targets) for output, batch, _ in self.outputs(network, group)]
            return sum(loss.sum.item() for loss in losses), sum(loss.count for loss in losses)

        total, targets = shared_sums(compute, self.groups(text))
        return text.numbers(total, int(targets))

    def groups(self, text: Text) -> list[list[Any]]:
        """Divide a text into groups that are computed independently: rows of windows of similar length; with data.carry, documents
        of similar length, each from its beginning to its end."""
        rows: list[Any] = sorted(text.documents, key=len, reverse=True)
        if not self.carries:
            rows = sorted(rows_of(text.documents, self.data.max_length, self.packs), key=length)
        count = max(1, EVALUATED // self.data.max_length)
        return [rows[at : at + count] for at in range(0, len(rows), count)]

    def outputs(self, network: nn.Module, group: list[Any]) -> Iterator[tuple[Output, Batch, list[Ids]]]:
        """Yield the output for every batch of a group, the batch, and its windows in the order of the batch's targets."""
        device = next(network.parameters()).device
        if not self.carries:
            batch = collate(group, self.config.pad_id).to(device)
            yield network(batch), batch, [window for row in group for window in row]
            return
        state = State()
        for rows in side_by_side(group, EVALUATED // len(group)):  # how it is cut changes nothing
            batch = collate([[row] for row in rows], self.config.pad_id).to(device)
            output = network(batch, state.select(torch.arange(len(rows), device=device)))
            state = output.state.carried()
            yield output, batch, rows

    @torch.no_grad()
    def losses(self, network: nn.Module, text: Text) -> Losses:
        """The loss of every block of a text."""
        nats = [np.zeros(len(document) - 1, np.float32) for document in text.documents]
        number = {document.ctypes.data: i for i, document in enumerate(text.documents)}

        def compute(group: list[Any]) -> list[tuple[int, int, Tensor]]:
            """Return (document, first token, losses) of each window."""
            found = []
            for output, batch, windows in self.outputs(network, group):
                assert batch.targets is not None
                losses = token_losses(output, batch.targets).split([len(window) - 1 for window in windows])
                for window, own in zip(windows, losses, strict=True):
                    document = window if window.base is None else window.base  # a window is a view of its document
                    start = (window.ctypes.data - document.ctypes.data) // window.itemsize
                    found.append((number[document.ctypes.data], start, own))
            return found

        for windows in shared_map(compute, self.groups(text)):
            for i, start, own in windows:
                nats[i][start : start + len(own)] = own.numpy()
        found = blocks(nats, self.ends(text), "".join(record[0] for record in text.records))
        return replace(found, bytes=0) if text.lossy else found

    def ends(self, text: Text) -> list[np.ndarray]:
        """Of each document, behind which character of the whole text each predicted token ends; an end token ends where
        the token before it does. Cut and joined as the ids are, so that both have the same shape."""
        found, start = [], 0
        for record, pieces in zip(
            text.records, encode_texts(self.tokenizer, [r[0] for r in text.records]), strict=True
        ):
            places = [start + end for _, end in pieces.offsets]
            found += chunks(places, self.data.max_length, isinstance(record, PartialRecord))
            start += len(record[0])
        marks = (None if token is None else -1 for token in (self.begin, self.end))
        return [np.maximum.accumulate(document)[1:] for document in documents(found, *marks)]

    def test(self, network: nn.Module, folder: Path, say: Say) -> dict[str, Any] | None:
        if self.data.test is None:
            return None
        text = self.held_out(self.data.test, "test")
        say(f"reading the test set: {text.bytes:,} bytes")
        losses = self.losses(network, text)
        losses.save(folder)
        found = text.numbers(math.fsum(losses.nats), sum(losses.tokens))
        about = {"loss": "nats per token", "perplexity": "exp(loss)"}
        scores = [{"name": name, "value": value, "signature": about.get(name, "bits per byte of UTF-8")}
                  for name, value in found.items()]  # fmt: skip
        return {"examples": len(text.documents), "how": self.measured(text), "scores": scores}

    # --- telling

    def use(self, folder: str) -> tuple[str, str]:
        return f'qkv generate {folder} "How it begins" --temperature 0.8', '"".join(model.generate("How it begins"))'


def short_documents(source: Corpus, tokenizer: Tokenizer, data: DataConfig) -> bool:
    """Whether many windows are the beginning of a document: of long ones, such as books, a model sees a beginning too
    rarely to learn what the begin token means, and prompts go without."""
    records = [record for _, record in islice(source.read(), 1000)]
    tokens = sum(map(len, tokenizer.plain([record[0] for record in records])))
    ends = sum(not isinstance(record, PartialRecord) for record in records)
    return tokens < 10 * data.max_length * ends
