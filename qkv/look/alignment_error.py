"""How well attention aligns words (claim C22): the error rate of every head against alignments that are known to be right.

The links are those of `translate --alignments` (generate/alignment.py), of each head alone and of the mean that it reads. The
alignment error rate (Och and Ney 2003) of links A against the gold G is 1 - 2 |A and G| / (|A| + |G|). Words count, marks
(. , ?) do not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from qkv.batch import Batch
from qkv.data.grammar import Pair
from qkv.generate.alignment import Link, Span, links
from qkv.look.attention import Site, chosen, visit
from qkv.look.pictures import Picture, head_heatmap
from qkv.look.result import LookResult
from qkv.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Sentence:
    """A source and its translation as a network reads them (teacher forcing), the word of every token, and the gold links."""

    batch: Batch
    source: list[int | None]
    """For each source token the number of its word; None for marks and the end."""
    target: list[int | None]
    """For each row of the decoder the number of the word it is to write."""
    gold: set[Link]


@dataclass(frozen=True)
class AlignmentErrors(LookResult):
    """The alignment error rate of every head, 0 = all links right."""

    EXPLANATION: ClassVar[str] = "Alignment error rate of each cross-attention head: 0 = all links are correct."

    sentences: int
    layers: list[int]
    rates: Tensor
    """(layers, heads)."""
    mean: float
    """Of the mean over all heads of the upper half of the layers, which `translate --alignments` reads."""

    @property
    def best(self) -> tuple[int, int, float]:
        """Layer, head and rate of the best head."""
        row, head = divmod(int(self.rates.argmin()), self.rates.size(1))
        return self.layers[row], head, float(self.rates[row, head])

    def picture(self) -> Picture:
        return head_heatmap("alignment error rate", {"": self.rates}, self.layers)


def errors(network: Any, sentences: Iterable[Sentence]) -> AlignmentErrors:
    """Over all links of all sentences together."""
    own = chosen(network, None, "cross", weighs=True)
    right = torch.zeros(len(own) + 1, max(site.heads for site in own))
    total = torch.zeros_like(right)
    sentences, device = list(sentences), next(network.parameters()).device
    for one in sentences:
        for row, tables in enumerate(looks(network, one.batch.to(device), own)):
            for head, weights in enumerate(tables):  # (T, S)
                found = set(links(weights, one.source, one.target))
                right[row, head] += len(found & one.gold)
                total[row, head] += len(found) + len(one.gold)
    rates = 1 - 2 * right / total.clamp(min=1)
    return AlignmentErrors(len(sentences), [site.layer for site in own], rates[:-1], float(rates[-1, 0]))


def looks(network: Any, batch: Batch, own: Sequence[Site]) -> list[Tensor]:
    """(H, T, S) of each layer, and at last (1, T, S), the mean over the heads of the upper half of the layers."""
    parts: dict[int, list[Tensor]] = {}
    visit(network, batch, own, lambda site, rows, weights: parts.setdefault(site.layer, []).append(weights[0]))
    tables = [torch.cat(kept, 1) for kept in parts.values()]
    upper = tables[len(tables) // 2 :]
    return [*tables, torch.stack([table.mean(0, keepdim=True) for table in upper]).mean(0)]


# --- sentences of the grammar


def spans(text: str, words: Sequence[str]) -> list[Span]:
    """Where each word of a text stands in it, in their order; the first letter may have become large."""
    found, at = [], 0
    for word in words:
        at = text.lower().index(word.lower(), at)
        found.append((at, at + len(word)))
        at += len(word)
    return found


def words_of(pieces: Sequence[Span], text: str, words: Sequence[Span]) -> list[int | None]:
    """For each piece (a stretch of the text) the number of the word that its first visible character stands in."""
    at = {place: number for number, (begin, end) in enumerate(words) for place in range(begin, end)}
    return [next((at[p] for p in range(*piece) if p in at and not text[p].isspace()), None) for piece in pieces]


def sentence(pair: Pair, source: Tokenizer, target: Tokenizer, start: int, end: int) -> Sentence:
    """A pair of the grammar in the tokens of two tokenizers; a row of the decoder is the word that it is to write."""
    both = []
    for text, tokens, tokenizer in ((pair.source, pair.english, source), (pair.target, pair.german, target)):
        found = tokenizer.literal.encode(text, add_special_tokens=False)
        own = words_of(found.offsets, text, spans(text, [token.text for token in tokens]))
        both.append((found.ids, [None if word is None or tokens[word].tag == "PUNCT" else word for word in own]))
    (source_ids, source_words), (ids, words) = both
    batch = Batch(torch.tensor([[start, *ids]]), source=torch.tensor([[*source_ids, end]]))
    gold = {(i, j) for i, j in pair.alignment if "PUNCT" not in (pair.english[i].tag, pair.german[j].tag)}
    return Sentence(batch, [*source_words, None], [*words, None], gold)
