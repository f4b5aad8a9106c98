"""Vanishing and exploding gradients: the gradient of the last output with respect to every input vector (claim C3)."""

from __future__ import annotations

import torch
from torch import Tensor

from qkv.models.decoder import Decoder
from qkv.parts.masks import Mask


def gradient_by_distance(network: Decoder, ids: Tensor, directions: Tensor) -> Tensor:
    """Return |d (u . out_T) / d x_(T-k)| for k = 0, 1, ..., T - 1: ids (B, T), u = directions (B, C) -> (B, T).

    x is the input of the stack (embeddings with positions), out its output. For a random unit vector u the expected square is
    |d out_T / d x_(T-k)|^2 / C, that of the whole Jacobian. In an Elman network it is a product of k matrices,
    diag(1 - hidden^2) U, which vanishes or explodes (Bengio et al. 1994; Pascanu et al. 2013).
    """
    mask = Mask(ids.size(1), causal=network.causal, device=ids.device)
    with torch.enable_grad():
        x = network.embed(ids, mask).detach().requires_grad_()  # (B, T, C)
        out, _ = network.stack(x, mask)
        (gradient,) = torch.autograd.grad((out[:, -1] * directions).sum(), x)  # (B, T, C): rows are independent
    return gradient.norm(dim=-1).flip(1)  # (B, T)
