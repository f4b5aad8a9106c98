"""The translation task: train an encoder-decoder, or a decoder on source and target in one row, on pairs of sentences; score by BLEU."""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch
from torch import nn

from qkv.batch import IGNORED, Batch, Loss, pad
from qkv.config import DataConfig, DecodeConfig, ModelConfig, Recipe
from qkv.config.usage import DecodingDefaults, Usage
from qkv.convert.files import write_text
from qkv.data.batching import Unusable
from qkv.data.corpora import corpus, training
from qkv.data.lines import MAX_LINE
from qkv.data.schema import TRANSLATIONS, Schema
from qkv.data.sources import Parallel, Record
from qkv.engine.pack import pack
from qkv.errors import ConfigError, QkvError
from qkv.evaluate.scores import METRICS, bleu, score
from qkv.generate.beam import BeamParams
from qkv.generate.translate import TranslationParams, Translator
from qkv.models.output import Output
from qkv.objectives import cross_entropy
from qkv.shared_work import shared_parts, shared_sums
from qkv.tasks.base import Say, Task, Words, held_out
from qkv.tasks.vocabulary import end_only, given_target, given_tokenizer, learn_tokenizer
from qkv.text.tokenizer import Tokenizer

SOURCE, REFERENCE, HYPOTHESIS = "test.src.txt", "test.ref.txt", "test.hyp.txt"
"""Files of a run: the test set, its reference translations, and those of the model. This command gives the same scores:
`sacrebleu test.ref.txt < test.hyp.txt`."""
EVALUATED = 64
"""Pairs per batch in evaluation."""


SCHEMA = Schema("translation", TRANSLATIONS, "give one table with source and target columns (.tsv, .csv, .jsonl), or two text "
                "files, line by line in step", lambda paths, _: Parallel(paths), n_files=2, longest=MAX_LINE)  # fmt: skip


def learn_tokenizers(
    data: DataConfig, say: Say = lambda _: None, schema: Schema = SCHEMA
) -> tuple[Tokenizer, Tokenizer]:
    """Train the source and the target tokenizer; one and the same where the vocabulary is joint."""
    corpora = [corpus(c, data, "train", schema) for c in data.train]  # each is read once, whatever its weight
    sides = [slice(0, 2)] if data.joint else [slice(0, 1), slice(1, 2)]
    nouns = "sentences" if schema is SCHEMA else "texts"
    learned = [end_only(learn_tokenizer(corpora, itemgetter(side), data, say, nouns=nouns)) for side in sides]
    return learned[0], learned[-1]


# --- from pairs of sentences to batches

Ids = tuple[Sequence[int], Sequence[int]]
"""Source and target ids; neither has special tokens yet."""


def drop_reason(source: Sequence[Any], target: Sequence[Any], data: DataConfig) -> str:
    """Return why a pair of these tokens is left out of training; "" where it is not."""
    short, long = sorted((len(source), len(target)))
    if short == 0:
        return "an empty side"
    if long > data.max_length:
        return f"more than {data.max_length} tokens"
    if long > data.max_ratio * short + 5:  # + 5: a short sentence may have a much longer translation
        return f"one side {data.max_ratio:g} times as long as the other"
    return ""


def length(pair: Ids) -> int:
    """Return the number of tokens of the longer side, with its end token."""
    return max(len(pair[0]), len(pair[1])) + 1


def collate_pairs(pairs: Sequence[Ids], c: ModelConfig) -> Batch:
    """Make a batch: source </s>, inputs <s> target, targets target </s>; padding on the right."""
    first, end = c.first_id, c.eos_ids[0]
    assert first is not None
    source, source_mask = pad([[*s, end] for s, _ in pairs], c.pad_id)  # (B, S)
    inputs, mask = pad([[first, *t] for _, t in pairs], c.pad_id)  # (B, T)
    targets, _ = pad([[*t, end] for _, t in pairs], IGNORED)  # (B, T)
    return Batch(inputs, mask, targets, source, source_mask)


def one_row(examples: Sequence[Ids], c: ModelConfig, source_weight: float) -> Batch:
    """Make a batch for a decoder: source </s> <s> target </s> in one row, each token but the first predicted from those before it.

    What belongs to the source, <s> included, counts with `source_weight`, and is left out where that is 0.
    """
    end, first = c.eos_ids[0], c.first_id or 0
    rows = [[*s, end, first, *t, end] for s, t in examples]
    inputs, mask = pad([row[:-1] for row in rows], c.pad_id)  # (B, T)
    targets, _ = pad([row[1:] for row in rows], IGNORED)  # (B, T)
    lengths = torch.tensor([len(s) + 1 for s, _ in examples])  # (B,): the first targets, source[1:] </s> <s>
    of_source = torch.arange(targets.size(1))[None] < lengths[:, None]  # (B, T)
    if source_weight == 0:
        targets = targets.masked_fill(of_source, IGNORED)
    weights = None if source_weight in (0, 1) else torch.where(of_source, source_weight, 1.0)
    return Batch(inputs, mask, targets, weights=weights)


def weight_of_source(recipe: Recipe) -> float:
    """Return how much the source counts in the loss of a decoder: train.source_weight, or its default.

    A ConfigError if there is no such loss: in family 'encoder-decoder', or where the prefix mask shows each source token those that
    it should predict.
    """
    given, c = "source_weight" in recipe.train.model_fields_set, recipe.model
    if given and c.family != "decoder":
        raise ConfigError(
            f"train.source_weight is for family 'decoder', whose row holds the text too; this is of family {c.family!r}: "
            "leave it out"
        )
    if given and c.prefix_mask and recipe.train.source_weight > 0:
        raise ConfigError(
            f"train.source_weight = {recipe.train.source_weight:g}: with model.prefix_mask = true the source is visible in both "
            "directions, so it cannot be predicted: set 0 or leave it out"
        )
    usual = 1.0 if recipe.task == "summary" and not c.prefix_mask else 0.0
    return recipe.train.source_weight if given else usual


def one_vocabulary(recipe: Recipe) -> None:
    """Raise a ConfigError if the model has one word matrix, or copies, but the data have two vocabularies."""
    assert recipe.data is not None
    if not recipe.data.joint and recipe.model.copy_source:
        raise ConfigError(
            "model.copy_source = true copies source tokens, which need the target's vocabulary: set data.joint = true"
        )
    if not recipe.data.joint and (recipe.model.family == "decoder" or recipe.model.tie in ("embeddings", "all")):
        raise ConfigError(
            "data.joint = false has two vocabularies, and this model one word matrix: set data.joint = true"
            + ("" if recipe.model.family == "decoder" else ' or model.tie = "output"')
        )


# --- the task


class TranslationTask(Task):
    """Pairs of sentences, cross-entropy of the target words, BLEU of greedy translations of the held-out set."""

    name, noun, hub_tag = "translation", "a translator", "translation"
    schema = SCHEMA
    metric, how, writes = "bleu", "greedy", True
    unit = "target tokens"

    @classmethod
    def possible(cls, recipe: Recipe) -> None:
        """Raise a ConfigError if the recipe cannot train a translator."""
        data, c = recipe.data, recipe.model
        if data is None or c.family == "encoder" or c.head != "vocabulary" or c.image_size is not None:
            raise ConfigError(
                "translation needs [data] and a model of family 'encoder-decoder' or 'decoder', which reads one text and writes "
                f"another; this is of family {c.family!r} (another task? set task = ... in the recipe)"
            )
        two_sides(data)
        one_vocabulary(recipe)
        weight_of_source(recipe)
        if c.family == "decoder" and 2 * data.max_length + 2 > c.max_length:  # source </s> <s> target
            raise ConfigError(
                f"source and target of up to data.max_length = {data.max_length} tokens each do not fit model.max_length = "
                f"{c.max_length} in one row: it must be at least {2 * data.max_length + 2}"
            )
        if data.max_length >= c.max_length:
            raise ConfigError(
                f"data.max_length = {data.max_length} tokens and the end token do not fit model.max_length = "
                f"{c.max_length}: lower the one or raise the other"
            )

    @classmethod
    def prepare(cls, recipe: Recipe, say: Say) -> Words:
        assert recipe.data is not None
        given = given_tokenizer(recipe)
        if given is None:
            return Words(*learn_tokenizers(recipe.data, say, cls.schema))
        return Words(given, given_target(recipe) or given)

    def __init__(self, recipe: Recipe, config: ModelConfig, words: Words):
        super().__init__(recipe, config, words)
        assert words.source is not None and words.target is not None
        self.source, self.target = words.source, words.target
        self.batches = self.batched(training(self.data, self.schema), length)
        valid = corpus(self.data.valid, self.data, "valid", self.schema)
        self.valid, self.left_out = self.readable(held_out(valid, "valid"))
        self.left_out += valid.skipped

    # --- training

    def examples(self, records: Sequence[Record]) -> list[Any]:
        """Encode pairs of texts as examples."""
        return [self.example(source, target) for source, target in zip(*self.ids(records), strict=True)]

    def example(self, source: list[int], target: list[int]) -> Ids | Unusable:
        """Return a pair as an example, or why it is left out of training."""
        reason = drop_reason(source, target, self.data)
        # arrays take a tenth of the memory of lists
        return Unusable(reason) if reason else (array("i", source), array("i", target))

    def ids(self, records: Sequence[Record]) -> tuple[list[list[int]], list[list[int]]]:
        return self.source.plain([r[0] for r in records]), self.target.plain([r[1] for r in records])

    def readable(self, records: list[Record]) -> tuple[list[Record], Counter[str]]:
        """Return the records that fit model.max_length, and counts of those that do not."""
        most = (self.config.max_length - 2) // 2 if self.config.family == "decoder" else self.config.max_length - 1
        fits = [max(map(len, row)) <= most for row in zip(*self.ids(records), strict=True)]
        if not any(fits):
            raise QkvError(f"every sentence of the valid set has more than {most} tokens: give data.valid shorter ones")
        left_out = Counter({f"more than {most} tokens": fits.count(False)} if not all(fits) else {})
        return [record for record, fit in zip(records, fits, strict=True) if fit], left_out

    def collate(self, examples: list[Any]) -> Batch:
        c, r = self.config, self.recipe
        return collate_pairs(examples, c) if c.family != "decoder" else one_row(examples, c, weight_of_source(r))

    def objective(self, output: Output, batch: Batch) -> Loss:
        return cross_entropy(output, batch.targets, self.recipe.train.label_smoothing, batch.weights)

    # --- evaluation

    def evaluate(self, network: nn.Module) -> dict[str, float]:
        """Return BLEU of greedy translations and loss per token, both on the held-out set."""
        written = self.greedy_texts(network, [r[0] for r in self.valid])
        return {"bleu": bleu(written, [r[1] for r in self.valid]), "loss": self.loss(network)}

    def greedy_texts(self, network: Any, texts: Sequence[str]) -> list[str]:
        """Translate greedily, with the same length limits as `qkv translate`: a translation is the same in any batch."""
        fast = pack(network) if next(network.parameters()).device.type == "cpu" else network
        params = replace(self.request(), beam=BeamParams(1))
        return [text for text, _ in self.write(fast, texts, params)]

    def write(self, network: Any, texts: Sequence[str], params: TranslationParams) -> list[tuple[str, str]]:
        """Translate texts, shared by the workers; return each translation, and the problem where there is none."""
        translator = self.translator(network)
        return shared_parts(lambda some: [(one.text, one.problem) for one in translator.translate(some, params)], texts)

    def loss(self, network: nn.Module) -> float:
        """Return the loss per target token of the whole held-out set."""
        return self.mean_loss(network, list(zip(*self.ids(list(self.valid)), strict=True)))

    def scored(self, examples: list[Any]) -> Batch:
        """Make a batch for the held-out loss: of the target side alone, so that it is comparable whatever `source_weight` is."""
        return one_row(examples, self.config, 0.0) if self.config.family == "decoder" else self.collate(examples)

    @torch.no_grad()
    def mean_loss(self, network: nn.Module, rows: list[Any]) -> float:
        """Return the loss per target of some rows."""
        device = next(network.parameters()).device

        def compute(some: list[Any]) -> tuple[float, int]:
            batch = self.scored(some).to(device)
            loss = cross_entropy(network(batch), batch.targets, weights=batch.weights)
            return loss.sum.item(), loss.count

        total, count = shared_sums(compute, [rows[at : at + EVALUATED] for at in range(0, len(rows), EVALUATED)]) or (
            0.0,
            0,
        )
        return total / max(count, 1)

    def test(self, network: nn.Module, folder: Path, say: Say) -> dict[str, Any] | None:
        """Translate the test set with the search that [decode] sets, write files of one sentence per line, and return the scores."""
        if self.data.test is None:
            return None
        records, left_out = self.test_records(say)
        sources, references = ([one_line(record[side]) for record in records] for side in (0, 1))
        written = self.translate(network, sources, say)
        for name, texts in ((SOURCE, sources), (REFERENCE, references), (HYPOTHESIS, written)):
            write_text(folder / name, "".join(text + "\n" for text in texts))
        return {"examples": len(sources), "left_out": dict(left_out), "how": describe_search(self.recipe.decode),
                **settings(self.recipe.decode), "scores": self.scores(written, references)}  # fmt: skip

    def scores(self, written: list[str], references: list[str]) -> list[dict[str, Any]]:
        return [s.to_json() for s in score(written, references, METRICS)]

    def translate(self, network: Any, texts: list[str], say: Say) -> list[str]:
        """Translate texts with the search that [decode] sets; return each translation as one line."""
        say(f"reading the test set: {len(texts):,} texts, {describe_search(self.recipe.decode)}")
        device = next(network.parameters()).device
        network = pack(network) if device.type == "cpu" else network
        found = self.write(network, texts, self.request())
        for problem, count in Counter(problem for _, problem in found if problem).most_common():
            say(f"not read, and scored as empty: {count:,} of {problem}")
        return [one_line(text) for text, _ in found]

    def translator(self, network: Any) -> Translator:
        return Translator(self.config, network, self.source, self.target)

    def request(self) -> TranslationParams:
        return request(self.recipe.decode)

    # --- the model folder and its card

    def usage(self) -> Usage:
        languages = {"source": self.data.source, "target": self.data.target}
        return super().usage().model_copy(update={**languages, "decoding": decoding_defaults(self.request())})

    def title(self) -> str:
        return f"A translator from `{self.data.source}` to `{self.data.target}`"

    def use(self, folder: str) -> tuple[str, str]:
        return f'echo "A sentence." | qkv translate {folder}', 'model.translate(["A sentence."])'


def two_sides(data: DataConfig) -> None:
    """Raise a ConfigError if a corpus does not have two sides, a source and a target."""
    for one in (*data.train, data.valid, *data.extra_valid.values(), *([data.test] if data.test else [])):
        given = one.files or one.columns or (0, 1)
        if len(given) != 2:
            raise ConfigError(
                f"a translation corpus has two files or columns, source and target; given {list(given)}"
                + (f'; if both sides are in its rows: {{ table = "{given[0]}" }}' if len(one.files) == 1 else "")
            )


def request(decode: DecodeConfig) -> TranslationParams:
    """Return the search that [decode] sets; without decode.max_length the limit depends on the source, as in `qkv translate`."""
    longest = decode.max_length if "max_length" in decode.model_fields_set else None
    return TranslationParams(
        beam_of(decode), longest, batch_tokens=decode.batch_tokens, extra_length=decode.extra_length
    )


def beam_of(decode: DecodeConfig) -> BeamParams:
    return BeamParams(decode.beam, decode.length_penalty, length_formula=decode.length_formula)


def decoding_defaults(how: TranslationParams) -> DecodingDefaults:
    """Return the settings of a search as a model folder stores them."""
    return DecodingDefaults(beam=how.beam.size, length_penalty=how.beam.length_penalty, length_formula=how.beam.length_formula,
                            max_length=how.max_length, extra_length=how.extra_length,
                            no_repeat_ngram=how.no_repeat_ngram)  # fmt: skip


def settings(decode: DecodeConfig) -> dict[str, Any]:
    """Return the settings of the search as results.json stores them."""
    return {name: getattr(decode, name) for name in ("beam", "length_penalty", "length_formula", "extra_length")}


def describe_search(decode: DecodeConfig) -> str:
    """Describe the search in words, such as "beam 4, length penalty 0.6"."""
    if decode.beam == 1:
        return "greedy"
    formula = "" if decode.length_formula == "power" else f" ({decode.length_formula})"
    plain = decode.length_penalty == 1 and not formula
    return f"beam {decode.beam}" + ("" if plain else f", length penalty {decode.length_penalty:g}{formula}")


def one_line(text: str) -> str:
    """Replace line breaks by spaces: a file has one sentence per line."""
    return re.sub(r"[\r\n]+", " ", text).rstrip()
