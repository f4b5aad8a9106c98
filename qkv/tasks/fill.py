"""Fill masks: predict the words under the masks of a text (BERT, and the generator of ELECTRA)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import nn

from qkv.batch import Batch, pad
from qkv.config import ModelConfig
from qkv.errors import QkvError
from qkv.tasks.gaps import MASKS, mask_token
from qkv.tasks.windows import by_length
from qkv.text.kinds import around
from qkv.text.tokenizer import Tokenizer


class Guess(NamedTuple):
    """A word for a gap."""

    word: str
    probability: float


@dataclass(frozen=True)
class Filled:
    """What a model puts into the gaps of one text."""

    text: str = ""
    """The text with the likeliest word in each gap."""
    gaps: list[list[Guess]] = field(default_factory=list)
    """For each gap in order, its likeliest words; every gap for itself, the others being gaps still."""
    problem: str = ""
    """Why nothing was filled."""
    displays: list[list[str]] = field(default_factory=list)
    """Of each guess, its token with visible word boundaries."""

    def to_json(self) -> dict[str, Any]:
        gaps = [
            [{"word": word, "probability": round(p, 6), "display": own} for (word, p), own in zip(*both, strict=True)]
            for both in zip(self.gaps, self.displays, strict=True)
        ]
        return {"text": self.text, "gaps": gaps} | ({"problem": self.problem} if self.problem else {})


class Filler:
    """A network with a head for masked words at work."""

    def __init__(self, c: ModelConfig, network: nn.Module, tokenizer: Tokenizer):
        if c.family != "encoder" or c.head not in ("masked", "masked-next"):
            raise QkvError(f'this model cannot fill masks, its head is {c.head!r}: train one with task = "masked"')
        self.config, self.network, self.tokenizer = c, network, tokenizer
        self.name = mask_token(tokenizer)
        self.mask = tokenizer.id_of(self.name)
        self.around = around(tokenizer, c)

    def fill(self, texts: Sequence[str], top_k: int = 5, batch_tokens: int = 4096) -> list[Filled]:
        """Of each text, in their order; a text without a gap, or that is too long, says so in `problem`."""
        if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
            raise QkvError("fill takes a list of texts, given one text: pass [text]")
        if top_k < 1:
            raise QkvError(f"top_k = {top_k}: at least one word is needed")
        rows = [self.read(text) for text in texts]
        found = [Filled(problem=self.problem(row)) for row in rows]
        good = [i for i, one in enumerate(found) if not one.problem]
        for some in by_length([len(rows[i]) for i in good], batch_tokens):
            numbers = [good[i] for i in some]
            for i, filled in zip(numbers, self.guess([rows[i] for i in numbers], top_k), strict=True):
                found[i] = filled
        return found

    def read(self, text: str) -> list[int]:
        """Ids with the special tokens around them. [MASK] and <mask> are gaps in any model; the space before one belongs to
        the word that is missing."""
        for name in (*MASKS, self.name):
            *before, last = text.split(name)
            text = "\0".join([*(part.rstrip() for part in before), last])
        text = text.replace("\0", self.name)
        begin, end = self.around
        return [*begin, *self.tokenizer.encode(text, special=False), *end]

    def problem(self, row: list[int]) -> str:
        if self.mask not in row:
            return f"there is no gap: write {self.name} where a word is missing"
        most = self.config.max_length
        return f"{len(row)} tokens, but this model reads at most {most}" if len(row) > most else ""

    @torch.no_grad()
    def guess(self, rows: list[list[int]], top_k: int) -> list[Filled]:
        inputs, mask = pad(rows, self.config.pad_id)  # (B, T) each
        batch = Batch(inputs, mask).to(next(self.network.parameters()).device)
        output = self.network(batch)
        assert self.mask is not None
        hidden = inputs.eq(self.mask) if mask is None else inputs.eq(self.mask) & mask  # (B, T)
        scores = output.head(output.hidden[hidden.to(output.hidden.device)]).float().cpu()  # (N, V)
        best = scores.softmax(-1).topk(min(top_k, scores.size(-1)))
        gaps = [
            [Guess(self.word(i), p) for i, p in zip(ids, probabilities, strict=True)]
            for ids, probabilities in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]
        displays = [[self.tokenizer.display(i) for i in ids] for ids in best.indices.tolist()]
        whole = inputs.masked_scatter(hidden, best.indices[:, 0])
        counts = hidden.sum(1).tolist()
        ends = torch.tensor(counts).cumsum(0).tolist()
        return [
            Filled(
                self.tokenizer.decode(whole[i, : len(row)].tolist()),
                gaps[end - count : end],
                "",
                displays[end - count : end],
            )
            for i, (row, count, end) in enumerate(zip(rows, counts, ends, strict=True))
        ]

    def word(self, token: int) -> str:
        """A piece as text: "sleeps", or "##ing" within a word."""
        return self.tokenizer.decode([token], special=True).strip() or str(self.tokenizer.backend.id_to_token(token))
