"""The logit lens: the answer that the output head gives at every point of the residual stream.

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
from qkv.look.attention import to_index
from qkv.look.pictures import Heatmap, Picture, point_names
from qkv.look.residual_stream import hidden_states, points, side_modules, stream
from qkv.look.result import LookResult
from qkv.look.target import answers_whole_input, measure, probabilities
from qkv.parts.heads import Span
from qkv.parts.recurrent import RecurrentStack

ROWS = 64
"""Vectors per pass through the head: with fewer, reading the output matrix dominates; the logits of all points and tokens at once
would take gigabytes."""


@dataclass(frozen=True)
class Lens(LookResult):
    """The most probable answers at each point of the stream, for each token (or one column for the whole input)."""

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
    """(points, tokens, k): the most probable answers, best first."""
    probabilities: Tensor
    """(points, tokens, k): their probabilities."""
    final: Tensor
    """(points, tokens): the probability of the final answer."""
    entropy: Tensor
    """(points, tokens): in nats; of a span, over the tokens at which it may start or end."""
    measure: str = "probability"
    """What the numbers are: "score" for a regression."""
    columns: list[int] = field(default_factory=list)
    """Positions of `tokens` in the input; empty where one column stands for the whole input."""

    def picture(self) -> Picture:
        title, table = "logit lens: prediction at each layer", self.probabilities[..., 0]
        words = [[tops[0] for tops in row] for row in self.words]
        if self.measure == "score":
            title, table = "score at each layer", self.final
            words = [[f"{value:.2f}" for value in row] for row in self.final.tolist()]
        return Heatmap(title, {"": table}, point_names(self.points), self.tokens, words=words)

    def since(self, first: int) -> Lens:
        """Return the columns from token `first` on; a single column is returned unchanged."""
        if first == 0 or len(self.tokens) <= first:
            return self
        likeliest, final, entropy = (table[:, first:] for table in (self.probabilities, self.final, self.entropy))
        words = [row[first:] for row in self.words]
        columns = self.columns[first:]
        return Lens(self.points, self.tokens[first:], words, likeliest, final, entropy, self.measure, columns)


def vectors(network: Any, batch: Batch) -> Iterator[tuple[str, Tensor]]:
    """Yield the label and the normalised vectors (B, T, C) of each point."""
    stack = network.get_submodule(side_modules(network)[1])
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
    """Yield the probabilities (r, n) of all answers for one input's vectors x (P, T, C) at P points, some rows at a time; of
    classes one row for each point."""
    head = network.head
    if answers_whole_input(head):
        yield from (probabilities(head, head(one[None], mask)) for one in x)
    elif isinstance(head, Span):  # one distribution over all tokens of a point
        yield from (probabilities(head, head(one[None], None))[0] for one in x)
    else:
        yield from (probabilities(head, head(rows[None], None))[0] for rows in x.flatten(0, 1).split(ROWS))


@torch.no_grad()
def lens(network: Any, batch: Batch, tokens: list[str], name: Callable[[int], str], k: int = 5,
         columns: Sequence[int] | None = None) -> Lens:  # fmt: skip
    """Apply the lens to the first input of a batch; `name` maps ids to words or classes. With `columns`, only at these tokens."""
    whole, span = answers_whole_input(network.head), isinstance(network.head, Span)  # an error where there is no head
    mask = None if batch.mask is None else batch.mask[:1]
    labels, found = zip(*((label, x[0]) for label, x in vectors(network, batch)), strict=True)
    x = torch.stack(found)  # (P, T, C)
    some = [] if whole else to_index(columns, x.size(1), "token").tolist()
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
    """Reduce probabilities (t, n) to the k most probable answers (t, k), their probabilities (t, k), those of the final answers
    (t,) and the entropy (t,). The entropy of a span is over the tokens; a regression has none (0)."""
    top = p.topk(min(k, p.size(-1)), -1)
    # p log p, 0 where p = 0; torch.special.entr is half as fast
    parts = -p * p.clamp(min=torch.finfo(p.dtype).tiny).log() if p.size(-1) > 1 else torch.zeros_like(p)
    entropy = parts.sum(0)[answer] if span else parts.sum(-1)
    return top.indices, top.values, p.gather(-1, answer[:, None])[:, 0], entropy
