"""Summaries: a long text in, a short one out. Three networks for it (Liu et al. 2018, Generating Wikipedia):

Transformer-ED     family "encoder-decoder": the encoder reads the text, the decoder writes the summary.
Transformer-D      family "decoder": one stack reads text, opening token and summary in a row, and learns to predict all of
                   it, as a language model does (4.2.3); train.source_weight says how much the text counts.
Transformer-DMCA   the same with mixer = ["window", "compressed"]: local and memory-compressed attention in turn.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from qkv.batch import IGNORED, Batch, pad
from qkv.config import ModelConfig, Recipe
from qkv.config.usage import Usage
from qkv.data.batching import Unusable
from qkv.data.grammar_tasks import summaries
from qkv.data.lines import MAX_ROW
from qkv.data.schema import SUMMARIES
from qkv.data.sources import Record
from qkv.errors import ConfigError, QkvError
from qkv.evaluate.rouge import rouge
from qkv.generate.continuous_batching import GenerativeNetwork
from qkv.generate.translate import EncodedText, TranslationParams, Translator
from qkv.tasks.base import usable
from qkv.tasks.translation import Ids, TranslationTask, beam_of, length, two_sides
from qkv.text.tokenizer import Tokenizer

ASKED = 500
"""Summaries of the held-out set that are written at each look during training; the loss is of all of it."""
NO_REPEAT = 3
"""No three tokens occur twice in a summary: small models like to repeat themselves (Paulus et al. 2018)."""


class Summarizer(Translator):
    """Writes summaries; a text that is too long is cut at its end, and the summary is of what was read."""

    def __init__(
        self,
        config: ModelConfig,
        network: GenerativeNetwork,
        source: Tokenizer,
        target: Tokenizer,
        longest: int | None = None,
    ):
        if config.family == "encoder" or config.head != "vocabulary" or config.image_size is not None:
            raise QkvError(
                f'this model writes no summaries, it is of family {config.family!r}: train one with task = "summary"'
            )
        if config.family == "decoder" and config.first_id is not None and config.eos_ids:
            self.config, self.network, self.source, self.target = config, network, source, target
        else:
            super().__init__(config, network, source, target)
        room = config.max_length // 2 if config.family == "decoder" else config.max_length
        self.most = min(longest or room, config.max_length)
        """Tokens of the text that are read."""

    def read(self, text: str) -> tuple[list[int], list[int | None]]:
        """As a translator reads, cut to fit; a decoder reads the text and an end token."""
        if self.config.family == "decoder":
            ids = [*self.source.plain([text])[0], self.config.eos_ids[0]]
        else:
            ids, _ = super().read(text)
        ids = ids[:-1][: self.most - 1] + ids[-1:]
        return ids, [None] * len(ids)

    def max_tokens(self, source: Sequence[int], params: TranslationParams) -> int:
        """A decoder has to have room for text and summary."""
        most = super().max_tokens(source, params)
        return min(most, self.config.max_length - len(source)) if self.config.family == "decoder" else most

    def prompt(self, text: EncodedText) -> tuple[list[int], list[int] | None]:
        """A decoder reads the text and then the token that opens the summary."""
        if self.config.family != "decoder":
            return super().prompt(text)
        return [*text.source, self.config.first_id or 0], None

    def make_batch(self, texts: Sequence[EncodedText]) -> Batch:
        if self.config.family != "decoder":
            return super().make_batch(texts)
        inputs, mask = pad([self.prompt(one)[0] for one in texts], self.config.pad_id)
        return Batch(inputs, mask)


class SummaryTask(TranslationTask):
    """Pairs of a text and its summary, cross-entropy of the summary's words (in a decoder also of the text's), ROUGE of the
    held-out set, and the loss of its summaries alone."""

    name, noun, hub_tag = "summary", "a writer of summaries", "summarization"
    metric, unit = "rougeL", "tokens"
    schema = replace(TranslationTask.schema, task="summary", columns=SUMMARIES, longest=MAX_ROW, from_grammar=summaries)

    @classmethod
    def possible(cls, recipe: Recipe) -> None:
        data, c = recipe.data, recipe.model
        if data is None or c.family == "encoder" or c.head != "vocabulary" or c.image_size is not None:
            raise ConfigError(f"summaries need [data] and a model that writes; this is of family {c.family!r}")
        two_sides(data)
        if not data.joint and (c.family == "decoder" or c.tie in ("embeddings", "all")):
            raise ConfigError(
                "data.joint = false has two vocabularies, and this model one word matrix: set data.joint = true"
            )
        if c.family != "decoder" and "source_weight" in recipe.train.model_fields_set:
            raise ConfigError(
                f"train.source_weight is for family 'decoder', whose row holds the text too; this is of family {c.family!r}: "
                "leave it out"
            )
        together = data.max_length + data.target_length + 2  # text </s> <s> summary
        needed = together if c.family == "decoder" else max(data.max_length, data.target_length) + 1
        if needed > c.max_length:
            raise ConfigError(
                f"data.max_length = {data.max_length} and data.target_length = {data.target_length} need model.max_length = "
                f"{needed}, not {c.max_length}"
            )

    def examples(self, records: Sequence[Record]) -> list[Any]:
        """Long texts are cut, for a summary of the beginning is better than none; a pair with an empty side is dropped."""
        rows = zip(*self.ids(records), strict=True)
        most, target = self.data.max_length, self.data.target_length
        return [
            (array("i", s[:most]), array("i", t[:target])) if s and t else Unusable("an empty side") for s, t in rows
        ]

    def readable(self, records: list[Record]) -> tuple[list[Record], Any]:
        return records, self.left_out

    def collate(self, examples: list[Any]) -> Batch:
        c = self.config
        return (
            one_row(examples, c, self.recipe.train.source_weight)
            if c.family == "decoder"
            else super().collate(examples)
        )

    def scored(self, examples: list[Any]) -> Batch:
        """The summary alone: comparable whatever the network has learned beside it."""
        return one_row(examples, self.config, 0.0) if self.config.family == "decoder" else super().scored(examples)

    # --- asking

    def evaluate(self, network: nn.Module) -> dict[str, float]:
        """ROUGE of greedy summaries of some, loss per token of all."""
        some = list(self.valid)[:: max(1, len(self.valid) // ASKED)]
        found = rouge(self.greedy_texts(network, [r[0] for r in some]), [r[1] for r in some])
        names = ("rouge1", "rouge2", "rougeL")
        return {**{name: one.value for name, one in zip(names, found, strict=False)}, "loss": self.loss(network)}

    def loss(self, network: nn.Module) -> float:
        rows, _ = usable(self.examples(list(self.valid)))
        return self.mean_loss(network, sorted(rows, key=length))

    def translator(self, network: Any) -> Translator:
        return Summarizer(self.config, network, self.source, self.target, self.data.max_length + 1)

    def request(self) -> TranslationParams:
        decode = self.recipe.decode
        longest = decode.max_length if "max_length" in decode.model_fields_set else self.data.target_length
        return TranslationParams(
            beam_of(decode), max_length=longest, no_repeat_ngram=NO_REPEAT, batch_tokens=decode.batch_tokens
        )

    def scores(self, written: list[str], references: list[str]) -> list[dict[str, Any]]:
        return [s.to_json() for s in rouge(written, references)]

    # --- telling

    def usage(self) -> Usage:
        return super().usage().model_copy(update={"source": None, "target": None})

    def title(self) -> str:
        return "A writer of summaries"

    def use(self, folder: str) -> tuple[str, str]:
        return f"qkv summarize {folder} FILE", 'model.summarize(["A long text."])'


def one_row(examples: Sequence[Ids], c: ModelConfig, source_weight: float) -> Batch:
    """text </s> <s> summary </s> as a decoder reads it, each token but the first predicted from those before it; what belongs
    to the text, <s> included, counts with `source_weight`, and is left out where that is 0."""
    end, first = c.eos_ids[0], c.first_id or 0
    rows = [[*s, end, first, *t, end] for s, t in examples]
    inputs, mask = pad([row[:-1] for row in rows], c.pad_id)  # (B, T)
    targets, _ = pad([row[1:] for row in rows], IGNORED)  # (B, T)
    lengths = torch.tensor([len(s) + 1 for s, _ in examples])  # targets of the text
    text = torch.arange(targets.size(1))[None] < lengths[:, None]  # (B, T)
    if source_weight == 0:
        targets = targets.masked_fill(text, IGNORED)
    weights = None if source_weight in (0, 1) else torch.where(text, source_weight, 1.0)
    return Batch(inputs, mask, targets, weights=weights)
