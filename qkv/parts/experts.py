"""Mixture of experts: several feed-forward layers, of which a router chooses a few for each token."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from qkv.parts.masks import Mask
from qkv.parts.tap import Tap


class Experts(nn.Module):
    """y = sum over the k chosen experts i of w_i expert_i(x), chosen for each token by the router logits r = W x (B, T, n).

    The experts with the k largest logits are chosen. Their weights w are the softmax over these k logits (Shazeer et al. 2017,
    Mixtral) or, with `softmax` "all", their entries in the softmax over all n (Switch Transformer, Fedus et al. 2021: for k = 1
    the softmax over the chosen one is always 1, so the router would get no gradient). There is no capacity limit, and no token
    is dropped. Padding is not routed; its output is 0.
    """

    def __init__(self, experts: Sequence[nn.Module], d_model: int, per_token: int, softmax: str = "chosen",
                 balance_weight: float = 0.0):  # fmt: skip
        super().__init__()
        self.router = nn.Linear(d_model, len(experts), bias=False)
        self.experts = nn.ModuleList(experts)
        self.per_token, self.softmax = per_token, softmax
        self.balance_weight = balance_weight
        """Weight of the load-balancing loss in the training loss (train/step.py)."""
        self.tap_router, self.tap_balance = Tap(), Tap()

    def forward(self, x: Tensor, mask: Mask | None = None) -> Tensor:
        """Route and mix: (B, T, C) -> (B, T, C); `mask` marks the real tokens, None = all."""
        logits = self.tap_router(self.router(x)).float()  # (B, T, n)
        largest, chosen = logits.topk(self.per_token, -1)  # (B, T, k) each
        weights = largest.softmax(-1) if self.softmax == "chosen" else logits.softmax(-1).gather(-1, chosen)
        real = None if mask is None else mask.real
        if self.tap_balance._forward_hooks:  # computed only while the training loss reads it
            self.tap_balance(self.balance(logits, chosen, real))
        if real is None:
            mixed = self.mix(x.flatten(0, 1), chosen.flatten(0, 1), weights.flatten(0, 1))  # (B * T, C)
            return mixed.unflatten(0, x.shape[:2])
        mixed = self.mix(x[real], chosen[real], weights[real])  # (N, C): the N real tokens
        return mixed.new_zeros(x.shape).masked_scatter(real[..., None], mixed)

    def mix(self, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """Apply to N tokens x (N, C) their `chosen` experts (N, k), and return the sums (N, C) weighted by `weights` (N, k).

        Each expert runs once, on all its tokens together: sort the choices by expert, split, run, and undo the sorting.
        """
        choices = chosen.flatten()  # (N * k,): choice i belongs to token i // k
        by_expert = choices.argsort(stable=True)  # (N * k,)
        counts = choices.bincount(minlength=len(self.experts)).tolist()
        parts = x.index_select(0, by_expert // self.per_token).split(counts)  # n of (tokens of this expert, C)
        # in training an expert without tokens runs on an empty batch: its gradient is then 0, not None, in every batch
        outputs = [
            expert(part) if len(part) or torch.is_grad_enabled() else part
            for expert, part in zip(self.experts, parts, strict=True)
        ]
        by_token = torch.cat(outputs).index_select(0, by_expert.argsort()).unflatten(0, chosen.shape)  # (N, k, C)
        return (weights.to(by_token.dtype)[..., None] * by_token).sum(1)

    def balance(self, logits: Tensor, chosen: Tensor, real: Tensor | None) -> Tensor:
        """Return the load-balancing loss of each row, (B,): n sum_i f_i P_i (Fedus et al. 2021, eq. 4).

        f_i is the share of the row's choices that fall on expert i, P_i the mean of its probability. The loss is 1 for an even
        load and at most n. Both are means over one row, not over the batch (as in DeepSeek-V3): a product of two means over
        a batch is not the sum of those over its parts, so micro-batches and workers would change the gradient.
        """
        real = torch.ones_like(logits[..., 0]) if real is None else real.to(logits.dtype)  # (B, T)
        share = (real / real.sum(-1, keepdim=True).clamp(min=1))[..., None]  # (B, T, 1): of a token in its row
        load = torch.zeros_like(logits).scatter_(-1, chosen, 1 / self.per_token)  # (B, T, n)
        f, p = (load * share).sum(1), (logits.softmax(-1) * share).sum(1)  # (B, n) each
        return len(self.experts) * (f * p).sum(-1)
