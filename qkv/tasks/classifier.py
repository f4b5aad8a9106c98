"""Text classifier: encode a text or a pair as one row of tokens, and return a class with its probabilities or a number."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from qkv.batch import Batch, pad
from qkv.config import ModelConfig
from qkv.errors import QkvError
from qkv.tasks.windows import map_by_length
from qkv.text.kinds import around
from qkv.text.tokenizer import Tokenizer

HEADS = ("classes", "classes-words")
Text = str | tuple[str, str]
"""One text, or two that are compared."""


# --- from texts to batches


class TextRow(NamedTuple):
    """One text or pair, encoded."""

    ids: Sequence[int]
    segments: Sequence[int]
    """0 for the first text and what stands around it, 1 for the second."""
    cut: bool
    """It was too long, and its end is missing."""
    target: float = 0.0
    """The number of the right class, or the right number."""


class TextEncoder:
    """Texts and pairs -> rows of at most `most` tokens, with the special tokens that the tokenizer puts around them."""

    def __init__(self, c: ModelConfig, tokenizer: Tokenizer, most: int):
        self.tokenizer, self.most, self.n_segments = tokenizer, most, c.n_segments
        self.clip = starts if c.keep == "start" else ends
        self.around = {n: around(tokenizer, c, n) for n in (1, 2)}
        if sum(map(len, self.around[2])) + 2 > most:
            raise QkvError(f"{most} tokens leave no room for two texts: raise max_length")

    def __call__(self, texts: Sequence[Text]) -> list[TextRow]:
        parts = [(text,) if isinstance(text, str) else tuple(text) for text in texts]
        pieces = iter(self.tokenizer.plain([part for some in parts for part in some]))
        return [self.row([next(pieces) for _ in some]) for some in parts]

    def row(self, texts: list[list[int]]) -> TextRow:
        gaps = self.around[len(texts)]
        if len(texts) == 2 and not gaps[1]:
            raise QkvError("this tokenizer has no special token to stand between two texts: give one text at a time")
        kept = shares([len(text) for text in texts], self.most - sum(map(len, gaps)))
        ids, segments = list(gaps[0]), [0] * len(gaps[0])
        for number, (text, keep, gap) in enumerate(zip(texts, kept, gaps[1:], strict=True)):
            ids += [*self.clip(text, keep), *gap]
            segments += [min(number, max(self.n_segments - 1, 0))] * (keep + len(gap))
        if not ids:
            raise QkvError("an empty text, and this tokenizer puts nothing around it: there is nothing to read")
        return TextRow(array("i", ids), array("b", segments), sum(kept) < sum(map(len, texts)))


def starts(text: list[int], keep: int) -> list[int]:
    return text[:keep]


def ends(text: list[int], keep: int) -> list[int]:
    """As many tokens from the start as from the end, where reviews often say what they think."""
    return text if len(text) <= keep else text[: keep // 2] + text[len(text) - (keep - keep // 2) :]


def shares(lengths: Sequence[int], room: int) -> list[int]:
    """How many tokens of each text stay: the longer one is cut first, then both alike (Hugging Face's longest_first)."""
    if len(lengths) == 1:
        return [min(lengths[0], room)]
    short, long = sorted((0, 1), key=lambda i: lengths[i])
    kept = [0, 0]
    kept[short] = min(lengths[short], room // 2)
    kept[long] = min(lengths[long], room - kept[short])
    return kept


def collate(rows: Sequence[TextRow], c: ModelConfig) -> Batch:
    """Stack rows, padded on the right; targets (B,) are class indices, or real numbers in regression."""
    inputs, mask = pad([list(row.ids) for row in rows], c.pad_id)  # (B, T) each
    segments = pad([list(row.segments) for row in rows], 0)[0] if c.n_segments else None
    targets = torch.tensor([row.target for row in rows])  # (B,)
    targets = targets if c.n_classes == 1 else targets.long()
    if c.family == "encoder-decoder":
        shifted = pad([decoder_ids(row.ids, c) for row in rows], c.pad_id)[0]  # (B, T)
        return Batch(shifted, mask, targets, source=inputs, source_mask=mask)
    return Batch(inputs, mask, targets, segments=segments)


def decoder_ids(ids: Sequence[int], c: ModelConfig) -> list[int]:
    """Return what the decoder half of a classifier reads: the start token and the text without its last token (BART)."""
    if c.first_id is None:
        raise QkvError(
            "this model does not define the start token of the target: set start_id or bos_id in its configuration"
        )
    return [c.first_id, *ids[:-1]]


# --- predictions


@dataclass(frozen=True)
class Classification:
    """The prediction for one text or pair."""

    label: str | None = None
    """The most likely class; None of a regression."""
    probability: float | None = None
    probabilities: dict[str, float] = field(default_factory=dict)
    """Of every class, the most likely first."""
    score: float | None = None
    """The number that a regression gives."""
    cut: bool = False
    """The text was too long, and only a part of it was read."""

    def to_json(self) -> dict[str, Any]:
        if self.score is not None:
            return {"score": self.score, "cut": self.cut}
        return {"label": self.label, "probability": self.probability, "probabilities": self.probabilities,
                "cut": self.cut}  # fmt: skip


class Classifier:
    """Classify texts with a network that has a classification or regression head."""

    def __init__(self, c: ModelConfig, network: nn.Module, tokenizer: Tokenizer, most: int | None = None):
        if c.head not in HEADS:
            raise QkvError(f'this model has no classes, its head is {c.head!r}: train it with task = "classification"')
        self.config, self.network = c, network
        self.read = TextEncoder(c, tokenizer, min(most or c.max_length, c.max_length))
        self.labels = c.labels or tuple(f"LABEL_{i}" for i in range(c.n_classes))

    def classify(
        self, texts: Sequence[Text], top_k: int | None = None, batch_tokens: int = 4096
    ) -> list[Classification]:
        """Return a prediction for each text or pair, in order; `top_k` limits the probabilities to the most likely classes."""
        if isinstance(texts, str):
            raise QkvError("classify takes a list of texts, given one text: pass [text]")
        rows = self.read(texts)
        logits = self.logits(rows, batch_tokens)  # (N, n_classes)
        if self.config.n_classes == 1:
            return [
                Classification(score=score, cut=row.cut) for score, row in zip(logits[:, 0].tolist(), rows, strict=True)
            ]
        best, order = logits.softmax(-1).topk(min(top_k or len(self.labels), len(self.labels)))
        return [
            Classification(
                self.labels[which[0]], p[0], {self.labels[i]: q for i, q in zip(which, p, strict=True)}, cut=row.cut
            )
            for p, which, row in zip(best.tolist(), order.tolist(), rows, strict=True)
        ]

    @torch.no_grad()
    def logits(self, rows: Sequence[TextRow], batch_tokens: int = 4096) -> Tensor:
        """Return a score for each class, (N, n_classes), or the number of a regression, (N, 1)."""
        device = next(self.network.parameters()).device

        def compute(numbers: list[int]) -> list[Tensor]:
            batch = collate([rows[i] for i in numbers], self.config).to(device)
            return list(self.network(batch).logits.float().cpu())

        found = map_by_length(compute, [len(row.ids) for row in rows], batch_tokens)
        return torch.stack(found) if found else torch.zeros(0, self.config.n_classes)
