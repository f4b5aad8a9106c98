"""The logit lens: what the network would answer if it stopped here, at every point of the residual stream.

logits_i = head(norm(x_i)), with the network's own final norm and head (nostalgebraist 2020). After the last sublayer it is
the output itself. In a recurrent decoder the points are the hidden vectors of its layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from qkv.batch import Batch
from qkv.look.question import measure, of_the_whole, probabilities
from qkv.look.result import Result
from qkv.look.stream import halves, hidden_states, points, stream
from qkv.parts.heads import Span
from qkv.parts.recurrent import RecurrentStack

ROWS = 64
"""Tokens whose words are weighed at a time: the table of all tokens and all words, at every point, would be gigabytes."""


@dataclass(frozen=True)
class Lens(Result):
    """The likeliest answers at each point of the stream, for each token (or for all of the input: one column)."""

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

    def since(self, first: int) -> Lens:
        """The columns from one token on; of one column for all of the input, that."""
        if first == 0 or len(self.tokens) <= first:
            return self
        likeliest, final, entropy = (table[:, first:] for table in (self.probabilities, self.final, self.entropy))
        words = [row[first:] for row in self.words]
        return Lens(self.points, self.tokens[first:], words, likeliest, final, entropy, self.measure)


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
    """The probabilities (t, n) of all answers for one input's vectors x (1, T, C), some tokens at a time; of classes (1, n)."""
    head = network.head
    if of_the_whole(head):
        yield probabilities(head, head(x, mask))
        return
    for part in [x] if isinstance(head, Span) else x.split(ROWS, 1):  # of a span, all tokens are one choice
        yield probabilities(head, head(part, None))[0]


@torch.no_grad()
def lens(network: Any, batch: Batch, tokens: list[str], name: Callable[[int], str], k: int = 5) -> Lens:
    """The lens on the first input of a batch; `name` gives the words of ids, or the classes."""
    whole = of_the_whole(network.head)  # or say that it has no answers
    mask = None if batch.mask is None else batch.mask[:1]
    found = [(label, x[:1]) for label, x in vectors(network, batch)]
    answers = [p.argmax(-1) for p in tables(network, found[-1][1], mask)]  # (t,) each
    words: list[list[list[str]]] = []
    kept: list[list[Tensor]] = []
    for _, x in found:
        parts = zip(tables(network, x, mask), answers, strict=True)
        seen = [read(p, answer, k, isinstance(network.head, Span)) for p, answer in parts]
        ids, *numbers = (torch.cat(some) for some in zip(*seen, strict=True))
        words.append([[name(i) for i in row] for row in ids.tolist()])
        kept.append(numbers)
    likeliest, final, entropy = (torch.stack(some).cpu() for some in zip(*kept, strict=True))
    labels, columns = [label for label, _ in found], ["(all)"] if whole else list(tokens)
    return Lens(labels, columns, words, likeliest, final, entropy, measure(network.head))


def read(p: Tensor, answer: Tensor, k: int, span: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of probabilities (t, n) what is kept: the k likeliest answers (t, k) and theirs, those of the final answers (t,), and the
    entropy (t,), of a span over the tokens; a score is no distribution and has none."""
    top = p.topk(min(k, p.size(-1)), -1)
    parts = torch.special.entr(p) if p.size(-1) > 1 else torch.zeros_like(p)
    entropy = parts.sum(0)[answer] if span else parts.sum(-1)
    return top.indices, top.values, p.gather(-1, answer[:, None])[:, 0], entropy
