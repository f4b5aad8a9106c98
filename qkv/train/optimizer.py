"""Optimisers: how a gradient becomes a step. AdamW for everything, or Muon for the matrices within the blocks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from qkv.config import TrainConfig

POLYNOMIAL = (3.4445, -4.7750, 2.0315)
"""a x + b x^3 + c x^5, which drives singular values between 0 and 1 towards 1 quickly (Jordan et al. 2024)."""
ROUNDS = 5


def optimizer(network: nn.Module, c: TrainConfig) -> torch.optim.Optimizer:
    """AdamW; weight decay on matrices only (biases and norms are vectors)."""
    maps = [m for m in network.modules() if isinstance(m, nn.Linear | nn.RNNBase)]  # not tables of words or positions
    own = {p for m in maps for p in m.parameters()} if c.optimizer == "muon" else set()
    matrices = [p for p in network.parameters() if p.dim() > 1]
    inner, outer = [p for p in matrices if p in own], [p for p in matrices if p not in own]
    vectors = [p for p in network.parameters() if p.dim() <= 1]
    groups: list[dict[str, Any]] = [{"params": outer, "weight_decay": c.weight_decay, "orthogonal": False},
                                    {"params": vectors, "weight_decay": 0.0, "orthogonal": False},
                                    {"params": inner, "weight_decay": c.weight_decay, "orthogonal": True}]  # fmt: skip
    kept = [group for group in groups if group["params"]]
    return Muon(kept, lr=c.learning_rate, betas=(c.beta1, c.beta2), eps=1e-9, fused=True)


class Muon(torch.optim.AdamW):
    """AdamW, except in groups marked `orthogonal`: there the step is the momentum with all its singular values made 1.

    A gradient matrix has a few large directions and many small ones; made orthogonal, it moves all alike (Jordan et al.
    2024). Scaled by 0.2 sqrt(max(rows, columns)) a step is as long as one of AdamW, so both share a learning rate (Liu
    et al. 2025).
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        for group in self.param_groups:
            if group["orthogonal"]:
                for alike in by_shape(group["params"]).values():
                    self.orthogonal_step(alike, group)
        return super().step(closure)  # AdamW passes over parameters without a gradient

    def orthogonal_step(self, matrices: list[Tensor], group: dict[str, Any]) -> None:
        """N matrices of one shape (R, C) at once; takes their gradients away."""
        gradients = [p.grad for p in matrices if p.grad is not None]
        momenta = [self.momentum(p) for p in matrices]
        torch._foreach_lerp_(momenta, gradients, 1 - 0.95)
        ahead = torch._foreach_lerp(gradients, momenta, 0.95)  # Nesterov: look one step ahead
        updates = orthogonal(torch.stack(list(ahead)))  # (N, R, C)
        size = 0.2 * max(matrices[0].shape) ** 0.5
        torch._foreach_mul_(matrices, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(matrices, list(updates.unbind()), alpha=-group["lr"] * size)
        for p in matrices:
            p.grad = None

    def momentum(self, p: Tensor) -> Tensor:
        state = self.state[p]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(p)
            state["step"] = torch.zeros(())  # not used, but AdamW expects it in every state that it loads
        return state["momentum"]  # type: ignore[no-any-return]


def by_shape(parameters: list[Tensor]) -> dict[torch.Size, list[Tensor]]:
    """Matrices that have a gradient, those of one shape together: one batched product is faster than many."""
    groups: dict[torch.Size, list[Tensor]] = defaultdict(list)
    for p in parameters:
        if p.grad is not None:
            groups[p.shape].append(p)
    return groups


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
