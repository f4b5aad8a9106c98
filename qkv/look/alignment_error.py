"""Alignment error rate of every cross-attention head against gold alignments (claim C22).

The links are those of `translate --alignments` (generate/alignment.py), for each head and for the mean that it uses. The
alignment error rate (Och and Ney 2003) of links A against the gold G is 1 - 2 |A and G| / (|A| + |G|). Punctuation is left out.
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
from qkv.look.attention import Site, select_sites, visit
from qkv.look.pictures import Picture, head_heatmap
from qkv.look.result import LookResult
from qkv.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class AlignedSentence:
    """A source and its translation as input of a network (teacher forcing), the word of every token, and the gold links."""

    batch: Batch
    source: list[int | None]
    """For each source token the number of its word; None for punctuation and the end."""
    target: list[int | None]
    """For each row of the decoder the number of the word that it predicts."""
    gold: set[Link]


@dataclass(frozen=True)
class AlignmentErrors(LookResult):
    """The alignment error rate of every head; 0 = all links are right."""

    EXPLANATION: ClassVar[str] = "Alignment error rate of each cross-attention head: 0 = all links are correct."

    sentences: int
    layers: list[int]
    rates: Tensor
    """(layers, heads)."""
    mean: float
    """The rate of the mean over all heads of the upper half of the layers, which `translate --alignments` uses."""

    @property
    def best(self) -> tuple[int, int, float]:
        """Layer, head and error rate of the best head."""
        row, head = divmod(int(self.rates.argmin()), self.rates.size(1))
        return self.layers[row], head, float(self.rates[row, head])

    def picture(self) -> Picture:
        return head_heatmap("alignment error rate", {"": self.rates}, self.layers)


def alignment_errors(network: Any, sentences: Iterable[AlignedSentence]) -> AlignmentErrors:
    """Return the alignment error rates over all links of all sentences."""
    own = select_sites(network, None, "cross", weighs=True)
    right = torch.zeros(len(own) + 1, max(site.heads for site in own))
    total = torch.zeros_like(right)
    sentences, device = list(sentences), next(network.parameters()).device
    for one in sentences:
        for row, tables in enumerate(cross_attention(network, one.batch.to(device), own)):
            for head, weights in enumerate(tables):  # (T, S)
                found = set(links(weights, one.source, one.target))
                right[row, head] += len(found & one.gold)
                total[row, head] += len(found) + len(one.gold)
    rates = 1 - 2 * right / total.clamp(min=1)
    return AlignmentErrors(len(sentences), [site.layer for site in own], rates[:-1], float(rates[-1, 0]))


def cross_attention(network: Any, batch: Batch, own: Sequence[Site]) -> list[Tensor]:
    """Return the weights (H, T, S) of each layer, then their mean over the heads of the upper half of the layers, (1, T, S)."""
    parts: dict[int, list[Tensor]] = {}
    visit(network, batch, own, lambda site, rows, weights: parts.setdefault(site.layer, []).append(weights[0]))
    tables = [torch.cat(kept, 1) for kept in parts.values()]
    upper = tables[len(tables) // 2 :]
    return [*tables, torch.stack([table.mean(0, keepdim=True) for table in upper]).mean(0)]


# --- sentences of the grammar


def word_spans(text: str, words: Sequence[str]) -> list[Span]:
    """Return the span of each word in a text, in order, whatever the case of its letters."""
    found, at = [], 0
    for word in words:
        at = text.lower().index(word.lower(), at)
        found.append((at, at + len(word)))
        at += len(word)
    return found


def word_numbers(pieces: Sequence[Span], text: str, words: Sequence[Span]) -> list[int | None]:
    """Return for each token span the number of the word that contains its first visible character, or None."""
    at = {place: number for number, (begin, end) in enumerate(words) for place in range(begin, end)}
    return [next((at[p] for p in range(*piece) if p in at and not text[p].isspace()), None) for piece in pieces]


def align_pair(pair: Pair, source: Tokenizer, target: Tokenizer, start: int, end: int) -> AlignedSentence:
    """Tokenize a pair of the grammar and assign its words to tokens; a row of the decoder belongs to the word that it predicts."""
    both = []
    for text, tokens, tokenizer in ((pair.source, pair.english, source), (pair.target, pair.german, target)):
        found = tokenizer.literal.encode(text, add_special_tokens=False)
        own = word_numbers(found.offsets, text, word_spans(text, [token.text for token in tokens]))
        both.append((found.ids, [None if word is None or tokens[word].tag == "PUNCT" else word for word in own]))
    (source_ids, source_words), (ids, words) = both
    batch = Batch(torch.tensor([[start, *ids]]), source=torch.tensor([[*source_ids, end]]))
    gold = {(i, j) for i, j in pair.alignment if "PUNCT" not in (pair.english[i].tag, pair.german[j].tag)}
    return AlignedSentence(batch, [*source_words, None], [*words, None], gold)
