"""The residual stream: the vectors (B, T, C) that every sublayer reads from and adds to, at each of its points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.batch import Batch
from qkv.errors import QkvError
from qkv.look.pictures import Heatmap, Picture
from qkv.look.result import LookResult
from qkv.parts.recurrent import RecurrentStack
from qkv.parts.state import State
from qkv.parts.tap import record


@dataclass(frozen=True)
class Point:
    """A place in the stream."""

    label: str
    """ "embedding", "0 attention", "0 feedforward" ..."""
    name: str
    """The module that gives it."""
    layer: int
    """-1 for the embedding."""


@dataclass(frozen=True)
class ResidualStream(LookResult):
    """The vectors of the stream in two numbers each: how long they are, and how far each sublayer turns them."""

    EXPLANATION: ClassVar[str] = (
        "The residual stream of each token by layer: its norm, and its cosine similarity with the previous point (near 1 = hardly changed)."
    )

    points: list[str]
    tokens: list[str]
    norms: Tensor
    """(points, tokens)."""
    turned: Tensor
    """(points, tokens): the cosine with the vector at the point before; 1 = not turned at all."""

    def picture(self) -> Picture:
        panels = {"norm": self.norms, "cosine similarity with the previous point": self.turned}
        return Heatmap("residual stream", panels, self.points, self.tokens)


def halves(network: Any, source: bool = False) -> tuple[str, str]:
    """The names of embedding and stack: of what is written, or with `source` of what an encoder-decoder reads."""
    if not hasattr(network, "encoder"):
        return "embed", "stack"
    return ("source", "encoder") if source else ("target", "decoder")


def points(network: nn.Module, source: bool = False, blocks: bool = False) -> list[Point]:
    """Where the stream can be read and patched: the embedding, and after every sublayer (or with `blocks` every block)."""
    embed, stack = halves(network, source)
    found = [Point("embedding", embed, -1)]
    for name, _ in network.named_modules(remove_duplicate=False):
        parts = name.split(".")
        if parts[0] == stack and parts[-1] == "tap_stream":
            label = " ".join([parts[2], *parts[3:-1]])  # stack.blocks.0.attention.tap_stream
            found.append(Point(label, name, int(parts[2])))
    if len(found) == 1:  # recurrent: no stream, but what the stack gives
        found.append(Point("recurrent", stack, 0))
    last = {point.layer: point for point in found}
    return (
        [Point(str(p.layer) if p.layer >= 0 else p.label, p.name, p.layer) for p in last.values()] if blocks else found
    )


def stream(network: Any, batch: Batch, where: Sequence[Point]) -> list[Tensor]:
    """(B, T, C) at each of these points, from one run."""
    with torch.no_grad(), record(network, [point.name for point in where]) as kept:
        network(batch)
    return [kept[point.name] for point in where]


def residual(network: Any, batch: Batch, tokens: list[str], source: bool = False) -> ResidualStream:
    """Of the first input of a batch; with `source` on the side that an encoder-decoder reads."""
    where = points(network, source)
    found = torch.stack([x[0].float() for x in stream(network, batch, where)]).cpu()  # (points, T, C)
    turned = F.cosine_similarity(found, torch.cat([found[:1], found[:-1]]), -1)
    return ResidualStream([point.label for point in where], list(tokens), found.norm(dim=-1), turned)


def layers(network: Any, batch: Batch, source_only: bool = False) -> list[Tensor]:
    """n + 1 tensors (B, T, C): the embeddings, what each block gives, the last one after the final norm. Of an
    encoder-decoder the decoder's, or with `source_only` the encoder's."""
    names = [point.name for point in points(network, source_only, blocks=True)]
    stack = halves(network, source_only)[1]
    with record(network, list(dict.fromkeys([*names, stack]))) as kept:
        network.encode(batch) if source_only else network(batch)
    return [*(kept[name] for name in names[:-1]), kept[stack]]


@torch.no_grad()
def hidden_states(network: Any, batch: Batch) -> dict[str, Tensor]:
    """What each layer of a recurrent decoder remembers after each token: "hidden" and, in an LSTM, "cell": (L, B, T, C)."""
    if not isinstance(network.get_submodule(halves(network)[1]), RecurrentStack):
        raise QkvError("hidden states go from token to token in recurrent models; others have a residual stream")
    if halves(network)[0] == "embed" and not hasattr(network, "start") or batch.inputs is None:
        raise QkvError("a recurrent encoder reads a text as a whole, either way: it has no states to step through")
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
