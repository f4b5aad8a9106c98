"""The logit lens: what the network would answer if it stopped here, at every point of the residual stream.

logits_i = head(norm(x_i)), with the network's own final norm and head (nostalgebraist 2020). After the last sublayer it is
the output itself. In a recurrent decoder the points are the hidden vectors of its layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar

import torch
from torch import Tensor

from qkv.batch import Batch
from qkv.look.attention import whole_numbers
from qkv.look.pictures import Heatmap, Picture
from qkv.look.residual_stream import halves, hidden_states, points, stream
from qkv.look.result import LookResult
from qkv.look.target import measure, of_the_whole, probabilities
from qkv.parts.heads import Span
from qkv.parts.recurrent import RecurrentStack

ROWS = 64
"""Vectors that go through the head at a time. Fewer would read the whole word matrix for a few products each; the table of all
points, tokens and words would be gigabytes."""


@dataclass(frozen=True)
class Lens(LookResult):
    """The likeliest answers at each point of the stream, for each token (or for all of the input: one column)."""

    EXPLANATION: ClassVar[str] = (
        "The output head applied at every layer: rows go from the embedding to the last layer, the colour is the "
        "probability of the prediction in the cell. See at which layer the final prediction appears."
    )
    SCORE: ClassVar[str] = (
        "The output head applied at every layer: the score from the embedding (first row) to the last layer."
    )

    points: list[str]
    tokens: list[str]
    words: list[list[list[str]]]
    """(points, tokens, k): the likeliest answers, best first."""
    probabilities: Tensor
    """(points, tokens, k): theirs."""
    final: Tensor
    """(points, tokens): the probability of what is answered in the end."""
    entropy: Tensor
    """(points, tokens): in nats; of a span, how open it is among all tokens where it begins and ends."""
    measure: str = "probability"
    """What the numbers are: of a regression not probabilities, but its score."""
    columns: list[int] = field(default_factory=list)
    """Positions of `tokens` in the input; empty where there is one column for all of it."""

    def explain(self) -> str:
        return self.SCORE if self.measure == "score" else self.EXPLANATION

    def picture(self) -> Picture:
        if self.measure == "score":
            words = [[f"{value:.2f}" for value in row] for row in self.final.tolist()]
            return Heatmap("score at each layer", {"": self.final}, self.points, self.tokens, words=words)
        words = [[tops[0] for tops in row] for row in self.words]
        title = "logit lens: prediction at each layer"
        return Heatmap(title, {"": self.probabilities[..., 0]}, self.points, self.tokens, words=words)

    def since(self, first: int) -> Lens:
        """The columns from one token on; of one column for all of the input, that."""
        if first == 0 or len(self.tokens) <= first:
            return self
        likeliest, final, entropy = (table[:, first:] for table in (self.probabilities, self.final, self.entropy))
        words = [row[first:] for row in self.words]
        columns = self.columns[first:]
        return Lens(self.points, self.tokens[first:], words, likeliest, final, entropy, self.measure, columns)


def vectors(network: Any, batch: Batch) -> Iterator[tuple[str, Tensor]]:
    """Label and (B, T, C), ready for the head, at each point."""
    stack = network.get_submodule(halves(network)[1])
    where = points(network)
    if not isinstance(stack, RecurrentStack):
        for point, x in zip(where, stream(network, batch, where), strict=True):
            yield point.label, stack.norm(x)
        return
    first, last = stream(network, batch, where)
    yield where[0].label, first
    if not stack.cells.bidirectional and not stack.reverse and hasattr(network, "start"):
        hidden = hidden_states(network, batch)["hidden"]  # (L, B, T, C)
        for layer, x in enumerate(hidden if stack.feed is not None else hidden[:-1]):
            yield f"{layer} hidden", x
    yield "output", last


def tables(network: Any, x: Tensor, mask: Tensor | None) -> Iterator[Tensor]:
    """The probabilities (r, n) of all answers for one input's vectors x (P, T, C) at P points, row by row and some rows at a time;
    of classes a row for each point."""
    head = network.head
    if of_the_whole(head):
        yield from (probabilities(head, head(one[None], mask)) for one in x)
    elif isinstance(head, Span):  # all tokens of a point are one choice
        yield from (probabilities(head, head(one[None], None))[0] for one in x)
    else:
        yield from (probabilities(head, head(rows[None], None))[0] for rows in x.flatten(0, 1).split(ROWS))


@torch.no_grad()
def lens(network: Any, batch: Batch, tokens: list[str], name: Callable[[int], str], k: int = 5,
         columns: Sequence[int] | None = None) -> Lens:  # fmt: skip
    """The lens on the first input of a batch; `name` gives the words of ids, or the classes. With `columns` at these tokens alone:
    the head, most of the work where there are many words, reads no others."""
    whole, span = of_the_whole(network.head), isinstance(network.head, Span)  # or say that it has no answers
    mask = None if batch.mask is None else batch.mask[:1]
    labels, found = zip(*((label, x[0]) for label, x in vectors(network, batch)), strict=True)
    x = torch.stack(found)  # (P, T, C)
    some = [] if whole else whole_numbers(columns, x.size(1), "token").tolist()
    x = x if whole or span else x[:, some]
    answers = torch.cat([p.argmax(-1) for p in tables(network, x[-1:], mask)])  # (T,), or (1,) of classes
    wanted, seen = answers.repeat(len(x)), []
    for p in tables(network, x, mask):
        seen.append(read(p, wanted[: len(p)], k, span))
        wanted = wanted[len(p) :]
    ids, likeliest, final, entropy = (torch.cat(parts).unflatten(0, (len(x), -1)) for parts in zip(*seen, strict=True))
    if span:
        ids, likeliest, final, entropy = (table[:, some] for table in (ids, likeliest, final, entropy))
    word = cache(name)
    words = [[[word(i) for i in best] for best in row] for row in ids.tolist()]
    names = ["(all)"] if whole else [tokens[i] for i in some]
    likeliest, final, entropy = likeliest.cpu(), final.cpu(), entropy.cpu()
    return Lens(list(labels), names, words, likeliest, final, entropy, measure(network.head), some)


def read(p: Tensor, answer: Tensor, k: int, span: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of probabilities (t, n) what is kept: the k likeliest answers (t, k) and theirs, those of the final answers (t,), and the
    entropy (t,), of a span over the tokens; a score is no distribution and has none."""
    top = p.topk(min(k, p.size(-1)), -1)
    # p log p, with 0 for p = 0; torch.special.entr takes twice as long
    parts = -p * p.clamp(min=torch.finfo(p.dtype).tiny).log() if p.size(-1) > 1 else torch.zeros_like(p)
    entropy = parts.sum(0)[answer] if span else parts.sum(-1)
    return top.indices, top.values, p.gather(-1, answer[:, None])[:, 0], entropy
