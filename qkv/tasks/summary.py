"""The summary task: three networks for summarisation (Liu et al. 2018, Generating Wikipedia):

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

from torch import nn

from qkv.config import ModelConfig, Recipe
from qkv.config.usage import Usage
from qkv.data.batching import Unusable
from qkv.data.grammar_tasks import summaries
from qkv.data.lines import MAX_ROW
from qkv.data.schema import SUMMARIES
from qkv.data.sources import Record
from qkv.errors import ConfigError, QkvError
from qkv.evaluate.rouge import rouge
from qkv.generate.alignment import Span
from qkv.generate.continuous_batching import GenerativeNetwork
from qkv.generate.translate import TranslationParams, Translator
from qkv.tasks.base import usable
from qkv.tasks.translation import TranslationTask, beam_of, length, one_vocabulary, two_sides, weight_of_source
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
                f'this model cannot summarise, it is of family {config.family!r}: train one with task = "summary"'
            )
        super().__init__(config, network, source, target)
        self.max_source = min(longest or self.max_source, config.max_length)

    def read(self, text: str) -> tuple[list[int], list[Span]]:
        """Encode as a translator does, cut to the maximum length."""
        ids, _ = super().read(text)
        ids = ids[:-1][: self.max_source - 1] + ids[-1:]
        return ids, [(0, 0)] * len(ids)


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
        one_vocabulary(recipe)
        weight_of_source(recipe)
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
