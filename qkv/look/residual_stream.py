"""The residual stream: the vectors (B, T, C) that every sublayer reads and adds to, at each of its points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.batch import Batch
from qkv.errors import QkvError
from qkv.look.pictures import Heatmap, Picture, point_names
from qkv.look.result import LookResult
from qkv.parts.recurrent import RecurrentStack
from qkv.parts.state import State
from qkv.parts.tap import record


@dataclass(frozen=True)
class Point:
    """A point of the residual stream."""

    label: str
    """ "embedding", "0 attention", "0 feedforward" ..."""
    name: str
    """The module whose output it is."""
    layer: int
    """-1 for the embedding."""


@dataclass(frozen=True)
class ResidualStream(LookResult):
    """The length of each vector of the stream, and its cosine with the vector before."""

    EXPLANATION: ClassVar[str] = (
        "The residual stream of each token by layer: its norm, and its cosine similarity with the previous point (near 1 = hardly changed)."
    )

    points: list[str]
    tokens: list[str]
    norms: Tensor
    """(points, tokens)."""
    turned: Tensor
    """(points, tokens): the cosine with the vector at the point before; 1 = same direction."""

    def picture(self) -> Picture:
        panels = {"norm": self.norms, "cosine similarity with the previous point": self.turned}
        return Heatmap("residual stream", panels, point_names(self.points), self.tokens)


def side_modules(network: Any, source: bool = False) -> tuple[str, str]:
    """Return the names of embedding and stack: the decoder's (or the only ones), or with `source` the encoder's."""
    if not hasattr(network, "encoder"):
        return "embed", "stack"
    return ("source", "encoder") if source else ("target", "decoder")


def points(network: nn.Module, source: bool = False, blocks: bool = False) -> list[Point]:
    """Return the points of the stream: the embedding, and after every sublayer (or with `blocks` every block)."""
    embed, stack = side_modules(network, source)
    found = [Point("embedding", embed, -1)]
    for name, _ in network.named_modules(remove_duplicate=False):
        parts = name.split(".")
        if parts[0] == stack and parts[-1] == "tap_stream":
            label = " ".join([parts[2], *parts[3:-1]])  # stack.blocks.0.attention.tap_stream
            found.append(Point(label, name, int(parts[2])))
    if len(found) == 1:  # recurrent: no stream, only the output of the stack
        found.append(Point("recurrent", stack, 0))
    if not blocks:
        return found
    last = {point.layer: point for point in found}.values()
    return [Point(str(one.layer) if one.layer >= 0 else one.label, one.name, one.layer) for one in last]


def stream(network: Any, batch: Batch, where: Sequence[Point]) -> list[Tensor]:
    """Return the vectors (B, T, C) at each of these points, from one run."""
    with torch.no_grad(), record(network, [point.name for point in where]) as kept:
        network(batch)
    return [kept[point.name] for point in where]


def residual(network: Any, batch: Batch, tokens: list[str], source: bool = False) -> ResidualStream:
    """Return lengths and cosines for the first input of a batch; with `source` in the encoder of an encoder-decoder."""
    where = points(network, source)
    found = torch.stack([x[0].float() for x in stream(network, batch, where)]).cpu()  # (points, T, C)
    turned = F.cosine_similarity(found, torch.cat([found[:1], found[:-1]]), -1)
    return ResidualStream([point.label for point in where], list(tokens), found.norm(dim=-1), turned)


def layer_outputs(network: Any, batch: Batch, source_only: bool = False) -> list[Tensor]:
    """Return n + 1 tensors (B, T, C): the embeddings and the output of each block, the last one after the final norm. Of an
    encoder-decoder the decoder's, or with `source_only` the encoder's."""
    names = [point.name for point in points(network, source_only, blocks=True)]
    stack = side_modules(network, source_only)[1]
    with record(network, list(dict.fromkeys([*names, stack]))) as kept:
        network.encode(batch) if source_only else network(batch)
    return [*(kept[name] for name in names[:-1]), kept[stack]]


@torch.no_grad()
def hidden_states(network: Any, batch: Batch) -> dict[str, Tensor]:
    """Return the states of each layer of a recurrent decoder after each token: "hidden" and, in an LSTM, "cell": (L, B, T, C)."""
    if not isinstance(network.get_submodule(side_modules(network)[1]), RecurrentStack):
        raise QkvError("only recurrent models have hidden states: use the residual stream of this one")
    if side_modules(network)[0] == "embed" and not hasattr(network, "start") or batch.inputs is None:
        raise QkvError("a bidirectional recurrent encoder has no states after each token")
    state: State = network.start(batch)
    steps = []
    for t in range(batch.inputs.size(1)):
        real = None if batch.mask is None else batch.mask[:, t : t + 1]
        _, state = network.step(batch.inputs[:, t : t + 1], state, real)
        steps.append([{name: layer[name] for name in ("hidden", "cell") if name in layer} for layer in state.layers])
    return {
        name: torch.stack([torch.stack([step[i][name] for step in steps], 1) for i in range(len(steps[0]))])
        for name in steps[0][0]
    }  # (L, B, T, C)
