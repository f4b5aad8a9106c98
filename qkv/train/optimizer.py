"""Optimizers: AdamW for everything, or Muon for the matrices of the blocks; and a moving average of the weights.

Which weights are trained, and with which share of the learning rate, depends on their layer: see `LayerPosition`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from qkv.config import TrainConfig, TuneConfig
from qkv.distributed import all_reduce, world_size
from qkv.errors import ConfigError

POLYNOMIAL = (3.4445, -4.7750, 2.0315)
"""a x + b x^3 + c x^5, which drives singular values between 0 and 1 towards 1 quickly (Jordan et al. 2024)."""
ROUNDS, MOMENTUM = 5, 0.95


def make_optimizer(network: nn.Module, c: TrainConfig, tune: TuneConfig = TuneConfig()) -> torch.optim.Optimizer:
    """Return AdamW, or MuonAdamW, with a group for each kind of weights.

    Weight decay applies to matrices only, not to biases and norms, nor to what a module lists as `undecayed` (rates and
    frequencies, for which 0 is not neutral). Frozen weights are in no group; the learning rate of a group is `scale` times
    that of the schedule.
    """
    scales = trained_parameters(network, tune)
    rows = hidden_matrices(network) if c.optimizer == "muon" else {}
    kept = {getattr(m, name) for m in network.modules() for name in getattr(m, "undecayed", ())}
    matrices = [p for p in scales if p.dim() > 1 and p not in kept]
    vectors = [p for p in scales if p.dim() <= 1 or p in kept]
    inner, outer = [p for p in matrices if p in rows], [p for p in matrices if p not in rows]
    kinds = ((outer, c.weight_decay, False), (vectors, 0.0, False), (inner, c.weight_decay, True))
    groups: list[dict[str, Any]] = [
        {"params": alike, "weight_decay": decay, "orthogonal": orthogonal, "scale": scale, "rows": stacked}
        for parameters, decay, orthogonal in kinds
        for (scale, stacked), alike in group_by(lambda p: (scales[p], rows.get(p, ())), parameters).items()
    ]
    kind = MuonAdamW if c.optimizer == "muon" else torch.optim.AdamW
    return kind(groups, lr=c.learning_rate, betas=(c.beta1, c.beta2), eps=c.eps, fused=True)


def hidden_matrices(network: nn.Module) -> dict[nn.Parameter, tuple[int, ...]]:
    """Return the matrices of the blocks, each with the row counts of the maps stacked in it (gates of a recurrent cell, what
    a module lists as `stacked`), or () for a single map.

    Embeddings and heads are excluded, since their rows represent words or classes; so are low-rank updates (LoRA), of which only
    the product is a map.
    """
    inside = [module for _, stack in halves(network) for module in stack.modules()]
    found: dict[nn.Parameter, tuple[int, ...]] = {}
    for module in inside:
        if isinstance(module, nn.Linear | nn.RNNBase):
            gates = module.hidden_size if isinstance(module, nn.RNNBase) else 0
            for p in module.parameters(recurse=False):  # without the tensors of parametrizations
                found[p] = (gates,) * (p.size(0) // gates) if gates else ()
    stacked = [(getattr(m, name), rows) for m in inside for name, rows in getattr(m, "stacked", {}).items()]
    return {p: r for p, r in (found | {linear.weight: rows for linear, rows in stacked}).items() if p.dim() > 1}


# --- layers


@dataclass(frozen=True)
class LayerPosition:
    """The layer of a parameter: 0 = embeddings, 1 to n = blocks from below. Encoder and decoder count separately; a recurrent
    stack is one layer."""

    level: int
    layers: int
    """n."""
    head: bool = False

    def scale(self, tune: TuneConfig) -> float:
        """Return decay^(layers above it, the head included) (Howard and Ruder 2018: 1/2.6 a layer); the head has its own rate."""
        return tune.head_rate if self.head else tune.layer_decay ** (self.layers - self.level + 1)

    def frozen(self, tune: TuneConfig) -> bool:
        return not self.head and (tune.freeze < 0 or (tune.freeze > 0 and self.level <= tune.freeze))


def trained_parameters(network: nn.Module, tune: TuneConfig) -> dict[nn.Parameter, float]:
    """Return the trained parameters with the share of the learning rate of each; freeze the others."""
    where = layer_positions(network)
    deepest = max((position.layers for position in where.values()), default=0)
    if tune.freeze > deepest:
        raise ConfigError(f"tune.freeze = {tune.freeze} layers, but the network has {deepest}: -1 = all but the head")
    for parameter, position in where.items():
        parameter.requires_grad_(parameter.requires_grad and not position.frozen(tune))
    found = {p: where[p].scale(tune) if p in where else 1.0 for p in network.parameters() if p.requires_grad}
    if not found:
        raise ConfigError(f"tune.freeze = {tune.freeze} leaves no weights to train: freeze fewer layers")
    return found


def layer_positions(network: nn.Module) -> dict[nn.Parameter, LayerPosition]:
    """Return the layer of every parameter. A shared one belongs to the lowest of its layers: word vectors that are also the
    output count as embeddings."""
    found: dict[nn.Parameter, LayerPosition] = {}
    for embed, stack in halves(network):
        parts = levels(embed, stack)
        for level, modules in enumerate(parts):
            for parameter in (p for module in modules for p in module.parameters()):
                found.setdefault(parameter, LayerPosition(level, len(parts) - 1))
    for head in (getattr(module, "head", None) for module in network.modules()):
        for parameter in head.parameters() if isinstance(head, nn.Module) else ():
            found.setdefault(parameter, LayerPosition(0, 0, head=True))
    return found


def levels(embed: nn.Module, stack: nn.Module) -> list[list[nn.Module]]:
    """Return the embeddings, then block after block; positions belong to the block that has its own (Shaw), or to level 0."""
    blocks, positions = list(getattr(stack, "blocks", [stack])), list(getattr(stack, "positions", []))
    found = [[embed], *([block] for block in blocks)]
    for index, position in enumerate(positions):
        found[index + 1 if len(positions) == len(blocks) else 0].append(position)
    found[-1].append(stack)  # its final norm
    return found


def halves(network: nn.Module) -> Iterator[tuple[nn.Module, nn.Module]]:
    """Yield the embeddings and the stack of each half, wherever they are in the module tree."""
    for module in network.modules():
        for embed, stack in (("embed", "stack"), ("source", "encoder"), ("target", "decoder")):
            pair = getattr(module, embed, None), getattr(module, stack, None)
            if isinstance(pair[0], nn.Module) and isinstance(pair[1], nn.Module):
                yield pair  # type: ignore[misc]


def group_by(key: Callable[[Any], Any], parameters: list[Any]) -> dict[Any, list[Any]]:
    """Group parameters by a key, in the order of the first of each."""
    groups: dict[Any, list[Any]] = defaultdict(list)
    for p in parameters:
        groups[key(p)].append(p)
    return groups


# --- Muon


class MuonAdamW(torch.optim.AdamW):
    """AdamW, except in groups marked `orthogonal`, whose matrices take Muon's step: the momentum with singular values near 1.

    A gradient matrix has a few large directions and many small ones; orthogonalised, it moves all alike (Jordan et al.
    2024). Scaled by 0.2 sqrt(max(rows, columns)) a step is as long as one of AdamW, so both share a learning rate (Liu
    et al. 2025). A matrix that contains several maps, with `rows` rows each, is orthogonalised map by map.
    Every worker orthogonalises the gathered momentum of a sharded matrix, and updates its own shard.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the orthogonal groups, then all others: AdamW skips parameters without a gradient."""
        for group in self.param_groups:
            if group["orthogonal"]:
                moving = [p for p in group["params"] if p.grad is not None]
                for alike in group_by(lambda p: p.shape, moving).values():  # one batched product is faster than many
                    self.orthogonal_step(alike, group)
        return super().step(closure)

    def orthogonal_step(self, matrices: list[Tensor], group: dict[str, Any]) -> None:
        """Update N matrices of one shape (R, C) at once; remove their gradients."""
        gradients = [local(p.grad) for p in matrices if p.grad is not None]
        momenta = [local(self.momentum(p)) for p in matrices]
        torch._foreach_lerp_(momenta, gradients, 1 - MOMENTUM)
        ahead = torch._foreach_lerp(gradients, momenta, MOMENTUM)  # Nesterov: one step ahead
        whole = torch.stack([gather_whole(x, p) for x, p in zip(ahead, matrices, strict=True)])  # (N, R, C)
        maps = whole.split(list(group["rows"]) or [whole.size(1)], 1)
        updates = torch.cat([0.2 * max(x.shape[1:]) ** 0.5 * orthogonalise(x) for x in maps], 1)  # (N, R, C)
        own, steps = [local(p) for p in matrices], [own_part(x, p) for x, p in zip(updates, matrices, strict=True)]
        torch._foreach_mul_(own, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(own, steps, alpha=-group["lr"])
        for p in matrices:
            p.grad = None

    def momentum(self, p: Tensor) -> Tensor:
        """Return the momentum of a matrix, zeros at first."""
        state = self.state[p]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(p)
            state["step"] = torch.zeros(())  # not used, but AdamW expects it in every state that it loads
        return state["momentum"]  # type: ignore[no-any-return]


def orthogonalise(x: Tensor) -> Tensor:
    """Return nearly U V^T of x = U S V^T, (N, R, C), by Newton and Schulz' iteration: products only, no decomposition."""
    a, b, c = POLYNOMIAL
    tall = x.size(1) > x.size(2)
    x = x.mT if tall else x  # the square of the shorter side is the smaller product
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)  # singular values between 0 and 1
    for _ in range(ROUNDS):
        square = x @ x.mT  # (N, R, R)
        x = a * x + (b * square + c * square @ square) @ x
    return x.mT if tall else x


# --- shards


def local(x: Any) -> Any:
    """Return the part of a tensor that this worker stores: the shard of a DTensor, or an ordinary tensor itself. They share memory."""
    return x.detach().to_local() if is_shard(x) else x


def is_shard(x: Tensor) -> bool:
    return hasattr(x, "placements")  # a DTensor; importing the class takes a second


def gather_whole(part: Tensor, like: Any) -> Tensor:
    """Gather the full matrix of which this worker has `part`, sharded like `like`."""
    if not is_shard(like):
        return part
    placed = type(like.data).from_local(
        part, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )
    return placed.full_tensor()  # type: ignore[no-any-return]


def own_part(whole: Tensor, like: Any) -> Tensor:
    """Return this worker's part of a full matrix that is sharded like `like`."""
    if not is_shard(like):
        return whole
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(whole, like.device_mesh, like.placements, src_data_rank=None).to_local()


def clip_shards(parameters: Iterable[nn.Parameter], max_norm: float) -> Tensor:
    """Like torch's clip_grad_norm_, for sharded parameters: torch's requires all parameters to be on a single mesh."""
    moving = [p for p in parameters if p.grad is not None]
    gradients = [local(p.grad) for p in moving]
    # the square of a number that several workers store is divided by their number
    weights = [shard_count(p) / world_size() for p in moving]
    squares = torch.stack(torch._foreach_norm(gradients)).square()
    norm = all_reduce((squares * squares.new_tensor(weights)).sum()).sqrt()
    torch._foreach_mul_(gradients, (max_norm / (norm + 1e-6)).clamp(max=1.0))
    return norm


def shard_count(p: Any) -> int:
    """Return the number of parts into which a parameter is divided."""
    sizes = zip(p.device_mesh.shape, p.placements, strict=True)
    return math.prod(size for size, placement in sizes if not placement.is_replicate())


# --- moving average


def moving_average(network: nn.Module, decay: float) -> AveragedModel:
    """Return a copy of the network whose weights follow it: average = d average + (1 - d) weights.

    d = min(decay, (1 + n) / (10 + n)) in update n, so the average covers few updates at first and soon forgets the initial weights.
    """

    def update(averaged: Any, weights: Any, n: Tensor | int) -> None:
        d = min(decay, (1 + int(n)) / (10 + int(n)))
        get_ema_multi_avg_fn(d)([local(p) for p in averaged], [local(p) for p in weights], n)

    average = AveragedModel(network, multi_avg_fn=update).requires_grad_(False).eval()
    average.n_averaged.fill_(1)  # the average begins with the initial weights
    return average
