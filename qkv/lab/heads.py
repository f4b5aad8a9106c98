"""Compare attention heads with relations between words: how often does a head attend most to the related word?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

import qkv
from qkv.errors import QkvError
from qkv.lab.experiment import Experiment
from qkv.look.attention import Site, select_sites, visit
from qkv.models.inputs import batch_of

Relations = Mapping[str, Sequence[tuple[int, int]]]
"""Name of a relation -> pairs (from, to) of word indices."""


class ParsedSentence(NamedTuple):
    """Words and the relations between them."""

    words: Sequence[str]
    relations: Relations


class HeadScore(NamedTuple):
    """The head that fits a relation best: chosen on some sentences, scored on others."""

    layer: int
    head: int
    accuracy: float
    """Share of the words whose most attended word is the related one."""
    baseline: float
    """The same of the best fixed distance."""
    pairs: int


def minilm_folder(lab: Experiment) -> str:
    """Return the folder of the pre-trained encoder that the full versions read; raise QkvError where a file of it is missing."""
    folder = lab.require_data("all_minilm_l6_v2")
    if missing := [
        name for name in ("config.json", "tokenizer.json", "model.safetensors") if not (folder / name).is_file()
    ]:
        raise QkvError(
            f"{folder} has no {' and no '.join(missing)}: copy the files of all-MiniLM-L6-v2 there, "
            f"e.g. hf download sentence-transformers/all-MiniLM-L6-v2 --local-dir {folder}"
        )
    return str(folder)


@torch.no_grad()
def word_attention(model: qkv.Model, words: Sequence[str]) -> Tensor:
    """(layers, H, words, words): weights between words; to a word the sum over its pieces, from a word their mean (Clark et al. 2019)."""
    tokenizer = model.words()
    pieces = tokenizer.plain(list(words))
    before, after = around_text(model)
    ids = [*before, *(i for piece in pieces for i in piece), *after]
    word_of = torch.full((len(ids),), -1)
    word_of[len(before) : len(ids) - len(after)] = torch.tensor([w for w, piece in enumerate(pieces) for _ in piece])
    belongs = (word_of[:, None] == torch.arange(len(words))).float()  # (T, W); special tokens belong to no word
    maps: list[Tensor] = []

    def add(site: Site, rows: Tensor, weights: Tensor) -> None:
        to_words = weights[0] @ belongs  # (H, r, W)
        maps.append(torch.einsum("hrw,rv->hvw", to_words, belongs[rows]) / belongs.sum(0)[:, None].clamp(min=1))

    visit(model.network, batch_of(model.config, [ids]), own := select_sites(model.network, weighs=True), add)
    per_layer = torch.stack(maps).unflatten(0, (len(own), -1)) if len(maps) != len(own) else torch.stack(maps)[:, None]
    return per_layer.sum(1)  # (layers, H, W, W); a long map comes in several groups of rows


def around_text(model: qkv.Model) -> tuple[list[int], list[int]]:
    """Return the special tokens that the tokenizer puts before and after a text."""
    plain, ids = model.words().plain(["x"])[0], model.words().encode("x")
    first = next(i for i in range(len(ids)) if ids[i : i + len(plain)] == plain)
    return ids[:first], ids[first + len(plain) :]


class RelationCounts:
    """Counts over sentences: how often each head, and each fixed distance, points from a word to the related one."""

    def __init__(self) -> None:
        self.hits: dict[str, Tensor] = {}  # (layers, H) each
        self.distances: dict[str, Counter[int]] = {}
        self.total: Counter[str] = Counter()

    def add(self, weights: Tensor, relations: Relations) -> None:
        """weights: (layers, H, W, W)."""
        own = torch.eye(weights.size(-1), dtype=torch.bool)
        most = weights.masked_fill(own, -1).argmax(-1)  # (layers, H, W): another word than itself
        for name, arcs in relations.items():
            for start, end in arcs:
                self.hits[name] = self.hits.get(name, 0) + (most[..., start] == end).float()
                self.distances.setdefault(name, Counter())[end - start] += 1
                self.total[name] += 1


def best_heads(
    model: qkv.Model, chosen_on: Sequence[ParsedSentence], scored_on: Sequence[ParsedSentence]
) -> dict[str, HeadScore]:
    """Choose the best head and the best distance of each relation on some sentences, score both on others."""
    counts = RelationCounts(), RelationCounts()
    for counted, sentences in zip(counts, (chosen_on, scored_on), strict=True):
        for sentence in sentences:
            counted.add(word_attention(model, sentence.words), sentence.relations)
    known, new = counts
    found = {}
    for name in sorted(set(known.total) & set(new.total)):
        layer, head = divmod(int(known.hits[name].argmax()), known.hits[name].size(1))
        distance = known.distances[name].most_common(1)[0][0]
        total = new.total[name]
        found[name] = HeadScore(
            layer, head, float(new.hits[name][layer, head]) / total, new.distances[name][distance] / total, total
        )
    return found
