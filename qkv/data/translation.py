"""Translation data: pairs of sentences become pairs of ids, cleaned and counted, then Batches with shifts and masks."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from qkv.batch import IGNORED, Batch
from qkv.config import DataConfig, ModelConfig
from qkv.data.sources import Record

Pair = tuple[Sequence[int], Sequence[int]]
"""Source ids, target ids; neither has special tokens yet."""
Encode = Callable[[Sequence[str]], list[list[int]]]


@dataclass
class Encoder:
    """Records -> pairs of ids; what cleaning drops is None, and counted by reason."""

    source: Encode
    target: Encode
    data: DataConfig
    read: int = 0
    """Records so far, in all passes."""
    dropped: Counter[str] = field(default_factory=Counter)

    def __call__(self, records: Sequence[Record]) -> list[Pair | None]:
        self.read += len(records)
        sources, targets = self.source([r[0] for r in records]), self.target([r[1] for r in records])
        return [self.clean(*row) for row in zip(sources, targets, strict=True)]

    def clean(self, source: list[int], target: list[int]) -> Pair | None:
        problem = self.problem(source, target)
        if problem:
            self.dropped[problem] += 1
            return None
        return array("i", source), array("i", target)  # a tenth of the memory of lists

    def problem(self, source: list[int], target: list[int]) -> str:
        short, long = sorted((len(source), len(target)))
        if short == 0:
            return "an empty side"
        if long > self.data.max_length:
            return f"more than {self.data.max_length} tokens"
        if long > self.data.max_ratio * short + 5:  # a few words may well become many
            return f"one side {self.data.max_ratio:g} times as long as the other"
        return ""


def length(pair: Pair) -> int:
    """The longer side, with its end token."""
    return max(len(pair[0]), len(pair[1])) + 1


def collate(pairs: Sequence[Pair], c: ModelConfig) -> Batch:
    """source + </s>; target shifted right behind the start token; padding at the end. All masks are made here."""
    end = c.eos_ids[0]
    assert c.first_id is not None
    source, source_mask = padded([[*s, end] for s, _ in pairs], c.pad_id)
    inputs, mask = padded([[c.first_id, *t] for _, t in pairs], c.pad_id)
    targets, _ = padded([[*t, end] for _, t in pairs], IGNORED)
    return Batch(inputs, None if mask.all() else mask, targets, source, None if source_mask.all() else source_mask)


def sources(texts: Sequence[list[int]], c: ModelConfig) -> Batch:
    """Only the source side, and the start token: what a search begins with."""
    source, mask = padded([[*s, c.eos_ids[0]] for s in texts], c.pad_id)
    inputs = torch.full((len(texts), 1), c.first_id or 0)
    return Batch(inputs, source=source, source_mask=None if mask.all() else mask)


def padded(rows: Sequence[list[int]], filler: int) -> tuple[Tensor, Tensor]:
    """Ragged ids -> (B, T) with `filler` at the end, and which are real (B, T)."""
    width = max(map(len, rows))
    lengths = torch.tensor([len(row) for row in rows])
    table = torch.tensor([row + [filler] * (width - len(row)) for row in rows])
    return table, torch.arange(width)[None] < lengths[:, None]
