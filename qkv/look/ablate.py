"""Ablation: replace the output of heads or layers, and measure what the network does without them.

A head is ablated at `tap_mixed`, before heads are summed; a layer at `tap_out`, its contribution to the residual stream. The
replacement is 0, or the mean over the tokens of another text, which removes only what depends on this input.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from qkv.batch import Batch
from qkv.errors import QkvError
from qkv.look.attention import Site, select_sites, to_index
from qkv.look.pictures import Picture, head_heatmap, quote
from qkv.look.residual_stream import side_modules
from qkv.look.result import LookResult
from qkv.look.target import Target, measure, repeat
from qkv.parts.recurrent import StepAttention
from qkv.parts.tap import Change, edit, record

Head = tuple[int, int]
"""Layer and head, both numbered from 0."""


@contextmanager
def without(network: nn.Module, heads: Collection[Head] = (), layers: Collection[int] = (), kind: str | None = None,
            mean_of: Batch | None = None) -> Iterator[None]:  # fmt: skip
    """Ablate these heads and layers within the block, in every pass (also of generation) and with every kernel.

    In an encoder-decoder `kind` selects the attention: "encoder", "decoder" or (the default for heads) "cross"; layers are the
    decoder's unless it is "encoder". With `mean_of` the replacement is the mean over the real tokens of that batch, not 0.
    """
    cut = {**head_taps(network, heads, kind), **dict.fromkeys(layer_taps(network, layers, kind))}
    means = dict.fromkeys(cut) if mean_of is None else mean_activations(network, mean_of, list(cut), kind)
    with edit(network, {name: replace_heads(off, means[name]) for name, off in cut.items()}):
        yield


def replace_heads(off: Tensor | None, mean: Tensor | None) -> Change:
    """Return an edit that replaces the heads where `off` is true, (H,) or in each row (B, H), by 0 or by the mean; None = all of the
    tensor."""

    def change(x: Tensor) -> Tensor:
        new = torch.zeros_like(x) if mean is None else mean.to(x.dtype).expand_as(x)
        return new if off is None else torch.where(off.to(x.device)[..., None, None], new, x)  # (B, H, T, D)

    return change


def head_taps(network: nn.Module, heads: Collection[Head], kind: str | None) -> dict[str, Tensor]:
    """Return the taps to edit, with the heads at each as a mask (H,)."""
    off: dict[str, Tensor] = {}
    for layer, head in heads:  # -1 and 5 may name the same layer
        for site in select_sites(network, layer, kind):
            mask = off.setdefault(tap_of(network, site), torch.zeros(site.heads, dtype=torch.bool))
            mask[to_index([head], site.heads, "head")] = True
    return off


def tap_of(network: nn.Module, site: Site) -> str:
    """Return the tap at which the heads of a layer are separate; in a recurrent decoder, the weights of its steps."""
    stepwise = isinstance(network.get_submodule(site.name), StepAttention)
    return f"{site.name}.{'tap_step' if stepwise else 'tap_mixed'}"


def layer_taps(network: nn.Module, layers: Collection[int], kind: str | None) -> list[str]:
    """Return the taps of what each sublayer of these layers adds to the stream."""
    _, stack = side_modules(network, source=kind == "encoder")
    blocks = getattr(network.get_submodule(stack), "blocks", None)
    if layers and blocks is None:
        raise QkvError("a recurrent layer cannot be ablated: the layers above it have no other input")
    wanted = to_index(sorted(layers), len(blocks or ()), "layer").tolist() if layers else []
    names = [name for name, _ in network.named_modules(remove_duplicate=False) if name.endswith(".tap_out")]
    return [name for index in wanted for name in names if name.startswith(f"{stack}.blocks.{index}.")]


@torch.no_grad()
def mean_activations(network: Any, batch: Batch, names: list[str], kind: str | None) -> dict[str, Tensor]:
    """Return the mean over the real tokens at each tap: (1, H, 1, D) for heads, (1, 1, C) for sublayers."""
    if any(name.endswith("tap_step") for name in names):
        raise QkvError(
            "the attention of a recurrent decoder has no mean over texts of different lengths: leave mean_of out"
        )
    real = batch.source_mask if kind == "encoder" else batch.mask  # (B, T)
    with record(network, names) as kept:
        network(batch)
    found = {}
    for name, x in kept.items():
        rows = x.transpose(1, 2) if x.dim() == 4 else x  # (B, T, H, D) or (B, T, C)
        rows = rows.flatten(0, 1) if real is None else rows[real]
        found[name] = rows.mean(0)[None, :, None] if x.dim() == 4 else rows.mean(0)[None, None]
    return found


@dataclass(frozen=True)
class HeadEffects(LookResult):
    """The target with each head ablated alone."""

    EXPLANATION: ClassVar[str] = (
        "Decrease of the logit when one head is ablated: blue heads support the prediction, orange heads oppose it, pale ones have "
        "little effect on this input."
    )
    SCORE: ClassVar[str] = "Decrease of the score when one head is ablated: blue heads raise it, orange heads lower it."

    kind: str
    layers: list[int]
    whole: float
    """With all heads."""
    alone: Tensor
    """(layers, heads): without this one."""
    word: str = ""
    """The answer whose logit is measured."""
    measure: str = "logit"
    """What is measured: "score" for a regression."""

    def picture(self) -> Picture:
        name = f" of {quote(self.word)}" if self.word and self.measure == "logit" else ""
        title = f"head ablation: decrease of the {self.measure}{name}"
        return head_heatmap(title, {"": self.whole - self.alone}, self.layers, True)


@torch.no_grad()
def effect_of_heads(
    network: Any, batch: Batch, target: Target, kind: str | None = None, layer: int | None = None
) -> HeadEffects:
    """Ablate each head in turn, in one layer or in all: one pass per layer, in which each row has another head ablated."""
    own = select_sites(network, layer, kind)
    table = torch.zeros(len(own), max(site.heads for site in own))
    for row, site in enumerate(own):
        with edit(network, {tap_of(network, site): replace_heads(torch.eye(site.heads, dtype=torch.bool), None)}):
            table[row, : site.heads] = target(network(repeat(batch, site.heads))).cpu()
    whole, kind = float(target(network(batch))[0]), own[0].kind
    number = "score" if measure(network.head) == "score" else "logit"
    return HeadEffects(kind, [site.layer for site in own], whole, table, measure=number)
