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
from qkv.look.question import of_the_whole
from qkv.look.result import Result
from qkv.look.stream import halves, hidden_states, points, stream
from qkv.parts.recurrent import RecurrentStack


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
    """(points, tokens): in nats."""


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


@torch.no_grad()
def lens_logits(network: Any, batch: Batch) -> Iterator[tuple[str, Tensor]]:
    """Label and logits, one point after the other: (B, T, V) words or tags, (B, n) classes."""
    of_the_whole(network.head)  # or say that it has no answers
    for label, x in vectors(network, batch):
        yield label, network.head(x, batch.mask)


def lens(network: Any, batch: Batch, tokens: list[str], name: Callable[[int], str], k: int = 5) -> Lens:
    """The lens on the first input of a batch; `name` gives the words of ids, or the classes."""
    labels, logs, columns = [], [], tokens
    for label, logits in lens_logits(network, batch):
        if of_the_whole(network.head):
            logits, columns = logits[:, None], ["(all)"]
        logits = logits[..., None] if logits.dim() == 2 else logits
        labels.append(label)
        logs.append(logits[0].float().log_softmax(-1))  # (T, V)
    answer = logs[-1].argmax(-1, keepdim=True)  # (T, 1)
    tops = [log.topk(min(k, log.size(-1)), -1) for log in logs]
    return Lens(
        labels,
        list(columns),
        [[[name(i) for i in row] for row in top.indices.tolist()] for top in tops],
        torch.stack([top.values.exp() for top in tops]),
        torch.stack([log.gather(-1, answer)[:, 0].exp() for log in logs]),
        torch.stack([-(log.exp() * log.clamp(min=-1e9)).sum(-1) for log in logs]),
    )
