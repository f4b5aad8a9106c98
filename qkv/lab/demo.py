"""Output of the demo: translations with their word alignments, and one alignment as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from qkv.api import Model
from qkv.batch import Batch
from qkv.evaluate.scores import read_sentences
from qkv.generate.alignment import Link, attention, token_spans, words_at
from qkv.look.figures import heatmap
from qkv.tasks.translation import REFERENCE, SOURCE

APPLE = ("I ate an apple.", "Ich habe einen Apfel gegessen.")
"""Past tense: "ate" becomes two words, one of them at the end."""


@dataclass(frozen=True)
class TranslatedExample:
    """A sentence and what the model makes of it."""

    source: str
    translation: str
    reference: str
    links: list[Link]

    @property
    def words(self) -> str:
        """I-Ich ate-habe ate-gegessen ..."""
        source, target = self.source.split(), self.translation.split()
        return "  ".join(f"{bare(source[i])}-{bare(target[j])}" for i, j in self.links)


def bare(word: str) -> str:
    return word.strip(".,?!") or word


def choose_examples(run: Path, count: int = 5) -> list[tuple[str, str]]:
    """The apple, and sentences of the run's test set: of all lengths that fit on a line, evenly spread."""
    pairs = list(zip(read_sentences(run / SOURCE), read_sentences(run / REFERENCE), strict=True))
    short = sorted((p for p in set(pairs) if len(p[0]) <= 60), key=lambda p: (len(p[0]), p)) or pairs
    return [APPLE, *(short[(2 * i + 1) * len(short) // (2 * count)] for i in range(min(count, len(short))))]


def translate_examples(model: Model, pairs: Sequence[tuple[str, str]]) -> list[TranslatedExample]:
    found = model.translate([source for source, _ in pairs], alignments=True)
    return [TranslatedExample(s, t.text, r, t.alignment or []) for (s, r), t in zip(pairs, found, strict=True)]


def alignment_picture(model: Model, text: str) -> str:
    """An SVG: the attention weights of the source words for each target word."""
    source, target, weights = word_weights(model, text)
    return heatmap(target, source, weights.tolist(), "Cross-attention: output to input")


def word_weights(model: Model, text: str) -> tuple[list[str], list[str], Tensor]:
    """Source words and the end, the translation's words, and (target words, source words): the attention between their
    tokens, added up over those of a source word, the mean over those of a target word. Every row sums to 1."""
    translator = model.translator(fast=False)
    found = model.translate([text], scores=True, fast=False)[0]
    ids = [translator.target.id_of(token) or 0 for token in found.tokens]
    ids += [] if ids and ids[-1] in model.config.eos_ids else [model.config.eos_ids[0]]  # one that was cut off
    source_ids, source_spans = translator.read(text)
    place = lambda row: Tensor([row]).long().to(model.device)  # noqa: E731
    batch = Batch(place([model.start_id(), *ids[:-1]]), source=place(source_ids))
    network: Any = translator.network
    weights = attention(network, batch)[0].cpu()  # (T, S)
    spans = token_spans(ids[:-1], translator.target)
    target_words = [*words_at(found.text, spans), None]  # the end token is no word
    source_words = words_at(text, source_spans)
    source, target = [*text.split(), "(end)"], found.text.split()
    table = weights.new_zeros(len(target), len(source))
    for t, j in enumerate(target_words):
        for s, i in enumerate(source_words):
            if j is not None:
                table[j, -1 if i is None else i] += weights[t, s] / target_words.count(j)
    return source, target, table
