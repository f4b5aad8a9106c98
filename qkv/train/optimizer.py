"""Optimisers: how a gradient becomes a step. AdamW for everything, or Muon for the matrices within the blocks.

Which weights may change, and how fast, is a matter of their place in the network: see `Place`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from qkv.config import TrainConfig, TuneConfig
from qkv.errors import ConfigError

POLYNOMIAL = (3.4445, -4.7750, 2.0315)
"""a x + b x^3 + c x^5, which drives singular values between 0 and 1 towards 1 quickly (Jordan et al. 2024)."""
ROUNDS = 5


def optimizer(network: nn.Module, c: TrainConfig, tune: TuneConfig = TuneConfig()) -> torch.optim.Optimizer:
    """AdamW; weight decay on matrices only (biases and norms are vectors, what a module lists as `undecayed` is no matrix: rates and
    frequencies, whose 0 means nothing). Weights that stay as they are have no group;
    a group's learning rate is `scale` times that of the schedule."""
    scales = learned(network, tune)
    rows = hidden_matrices(network) if c.optimizer == "muon" else {}
    kept = {getattr(m, name) for m in network.modules() for name in getattr(m, "undecayed", ())}
    matrices = [p for p in scales if p.dim() > 1 and p not in kept]
    vectors = [p for p in scales if p.dim() <= 1 or p in kept]
    inner, outer = [p for p in matrices if p in rows], [p for p in matrices if p not in rows]
    kinds = ((outer, c.weight_decay, False), (vectors, 0.0, False), (inner, c.weight_decay, True))
    groups: list[dict[str, Any]] = [
        {"params": alike, "weight_decay": decay, "orthogonal": orthogonal, "scale": scale, "rows": stacked}
        for parameters, decay, orthogonal in kinds
        for (scale, stacked), alike in by(lambda p: (scales[p], rows.get(p, ())), parameters).items()
    ]
    return Muon(groups, lr=c.learning_rate, betas=(c.beta1, c.beta2), eps=c.eps, fused=True)


def hidden_matrices(network: nn.Module) -> dict[nn.Parameter, tuple[int, ...]]:
    """The matrices that map hidden vectors to hidden vectors, those of the blocks; and of one that holds several maps, one
    above the other (gates of a recurrent cell, what a module lists as `stacked`), how many rows each has, else ().

    Embeddings and heads are not among them, for their rows stand for words or classes; nor are low-rank updates (LoRA), of
    which only the product is a map.
    """
    inside = [module for _, stack in halves(network) for module in stack.modules()]
    found: dict[nn.Parameter, tuple[int, ...]] = {}
    for module in inside:
        if isinstance(module, nn.Linear | nn.RNNBase):
            gates = module.hidden_size if isinstance(module, nn.RNNBase) else 0
            for p in module.parameters(recurse=False):  # without what parametrizations hold
                found[p] = (gates,) * (p.size(0) // gates) if gates else ()
    stacked = [(getattr(m, name), rows) for m in inside for name, rows in getattr(m, "stacked", {}).items()]
    return {p: r for p, r in (found | {linear.weight: rows for linear, rows in stacked}).items() if p.dim() > 1}


# --- places


@dataclass(frozen=True)
class Place:
    """Where a parameter is: the embeddings are level 0, the blocks 1 to n from below. Each half of an encoder-decoder
    counts for itself; a recurrent stack is one layer."""

    level: int
    layers: int
    """n, of its stack."""
    head: bool = False

    def scale(self, tune: TuneConfig) -> float:
        """decay^(layers above it, the head included) (Howard and Ruder 2018: 1/2.6 a layer); the head has a rate of its own."""
        return tune.head_rate if self.head else tune.layer_decay ** (self.layers - self.level + 1)

    def frozen(self, tune: TuneConfig) -> bool:
        return not self.head and (tune.freeze < 0 or (tune.freeze > 0 and self.level <= tune.freeze))


def learned(network: nn.Module, tune: TuneConfig) -> dict[nn.Parameter, float]:
    """The parameters that change, and the share of the learning rate of each; the others are told to want no gradient."""
    where = places(network)
    deepest = max((place.layers for place in where.values()), default=0)
    if tune.freeze > deepest:
        raise ConfigError(f"tune.freeze = {tune.freeze} layers, but the network has {deepest}: -1 = all but the head")
    for parameter, place in where.items():
        parameter.requires_grad_(parameter.requires_grad and not place.frozen(tune))
    found = {p: where[p].scale(tune) if p in where else 1.0 for p in network.parameters() if p.requires_grad}
    if not found:
        raise ConfigError(f"tune.freeze = {tune.freeze} leaves no weight that could learn: freeze fewer layers")
    return found


def places(network: nn.Module) -> dict[nn.Parameter, Place]:
    """Of every parameter below the head and in it. One that is shared belongs to the lowest of its places: word vectors
    that are also the output stay with the embeddings."""
    found: dict[nn.Parameter, Place] = {}
    for embed, stack in halves(network):
        parts = levels(embed, stack)
        for level, modules in enumerate(parts):
            for parameter in (p for module in modules for p in module.parameters()):
                found.setdefault(parameter, Place(level, len(parts) - 1))
    for head in (getattr(module, "head", None) for module in network.modules()):
        for parameter in head.parameters() if isinstance(head, nn.Module) else ():
            found.setdefault(parameter, Place(0, 0, head=True))
    return found


def levels(embed: nn.Module, stack: nn.Module) -> list[list[nn.Module]]:
    """The embeddings, then block after block; positions are with the block that has them for itself (Shaw), or below."""
    blocks, positions = list(getattr(stack, "blocks", [stack])), list(getattr(stack, "positions", []))
    found = [[embed], *([block] for block in blocks)]
    for index, position in enumerate(positions):
        found[index + 1 if len(positions) == len(blocks) else 0].append(position)
    found[-1].append(stack)  # what is left of it, its last norm
    return found


def halves(network: nn.Module) -> Iterator[tuple[nn.Module, nn.Module]]:
    """Embeddings and the stack above them, wherever they are in the tree."""
    for module in network.modules():
        for embed, stack in (("embed", "stack"), ("source", "encoder"), ("target", "decoder")):
            pair = getattr(module, embed, None), getattr(module, stack, None)
            if isinstance(pair[0], nn.Module) and isinstance(pair[1], nn.Module):
                yield pair  # type: ignore[misc]


def by(key: Callable[[Any], Any], parameters: list[Any]) -> dict[Any, list[Any]]:
    """Those of one key together, in the order of their first."""
    groups: dict[Any, list[Any]] = defaultdict(list)
    for p in parameters:
        groups[key(p)].append(p)
    return groups


# --- Muon


class Muon(torch.optim.AdamW):
    """AdamW, except in groups marked `orthogonal`: there the step is the momentum with all its singular values made 1.

    A gradient matrix has a few large directions and many small ones; made orthogonal, it moves all alike (Jordan et al.
    2024). Scaled by 0.2 sqrt(max(rows, columns)) a step is as long as one of AdamW, so both share a learning rate (Liu
    et al. 2025). Maps that stand one above the other in one matrix, of so many `rows` each, are each made orthogonal for
    themselves.
    """

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            group.setdefault("scale", 1.0)  # a checkpoint from before there were scales,
            group.setdefault("rows", ())  # and maps apart

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        for group in self.param_groups:
            if group["orthogonal"]:
                moving = [p for p in group["params"] if p.grad is not None]
                for alike in by(lambda p: p.shape, moving).values():  # one batched product is faster than many
                    self.orthogonal_step(alike, group)
        return super().step(closure)  # AdamW passes over parameters without a gradient

    def orthogonal_step(self, matrices: list[Tensor], group: dict[str, Any]) -> None:
        """N matrices of one shape (R, C) at once; takes their gradients away."""
        gradients = [p.grad for p in matrices if p.grad is not None]
        momenta = [self.momentum(p) for p in matrices]
        torch._foreach_lerp_(momenta, gradients, 1 - 0.95)
        ahead = torch._foreach_lerp(gradients, momenta, 0.95)  # Nesterov: look one step ahead
        whole = torch.stack(list(ahead))  # (N, R, C)
        maps = whole.split(list(group["rows"]) or [whole.size(1)], 1)
        updates = torch.cat([0.2 * max(x.shape[1:]) ** 0.5 * orthogonal(x) for x in maps], 1)  # (N, R, C)
        torch._foreach_mul_(matrices, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(matrices, list(updates.unbind()), alpha=-group["lr"])
        for p in matrices:
            p.grad = None

    def momentum(self, p: Tensor) -> Tensor:
        state = self.state[p]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(p)
            state["step"] = torch.zeros(())  # not used, but AdamW expects it in every state that it loads
        return state["momentum"]  # type: ignore[no-any-return]


def orthogonal(x: Tensor) -> Tensor:
    """Nearly U V^T of x = U S V^T, (N, R, C), by Newton and Schulz' iteration: products only, no decomposition."""
    a, b, c = POLYNOMIAL
    tall = x.size(1) > x.size(2)
    x = x.mT if tall else x  # the square of the shorter side is the smaller product
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)  # singular values between 0 and 1
    for _ in range(ROUNDS):
        square = x @ x.mT  # (N, R, R)
        x = a * x + (b * square + c * square @ square) @ x
    return x.mT if tall else x
