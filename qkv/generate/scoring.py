"""Log-probabilities of given continuations, for multiple choice: each prompt is read once, its continuations start from its state."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from qkv.batch import pad
from qkv.generate.continuous_batching import make_batch
from qkv.generate.prefill import PromptCache, prefill
from qkv.models.decoder import Decoder

ROWS = 1024
"""Positions whose logits are in memory at once."""


@torch.no_grad()
def continuation_log_probs(
    network: Decoder, prompts: Sequence[list[int]], continuations: Sequence[Sequence[list[int]]], pad_id: int = 0,
    cache: PromptCache | None = None,
) -> list[list[float]]:  # fmt: skip
    """Compute log p(continuation | prompt) = sum_t log p(c_t | prompt, c_1 ... c_t-1) of each continuation of each prompt.

    prompts: B lists of ids, none of them empty. continuations: for each prompt some lists of ids, none of them empty, R in all.
    cache: states of earlier prompts; beginnings that are in it, or that prompts share, are read once.
    """
    device = next(network.parameters()).device
    batch = make_batch(prompts, pad_id=pad_id).to(device)
    last, state = prefill(network, batch, cache)  # (B, C)
    rows = torch.tensor([i for i, each in enumerate(continuations) for _ in each], device=device)  # (R,): its prompt
    flat = [ids for each in continuations for ids in each]  # R lists
    ids, real = (None if x is None else x.to(device) for x in pad(flat, pad_id))  # (R, L) each
    assert ids is not None
    vectors = last[rows][:, None]  # (R, 1, C): predicts the first token of a continuation
    if ids.size(1) > 1:
        more, _ = network.step(ids[:, :-1], state.select(rows), None if real is None else real[:, :-1])
        vectors = torch.cat([vectors, more], 1)  # (R, L, C)
    parts = zip(vectors.flatten(0, 1).split(ROWS), ids.flatten().split(ROWS), strict=True)
    losses = torch.cat([F.cross_entropy(network.head(x).float(), y, reduction="none") for x, y in parts])  # (R * L,)
    losses = losses.double().view_as(ids)
    sums = iter((-losses if real is None else -losses * real).sum(1).tolist())
    return [[next(sums) for _ in each] for each in continuations]
