"""Choosing the next token from its logits: the best one, or a draw from a sharpened, shortened distribution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.errors import QkvError

COLD = 1e-5
"""Below this temperature the best token is taken: logits divided by less overflow, and no other had a chance anyway."""


@dataclass(frozen=True)
class Sampling:
    """How to draw. Temperature 0 takes the best token always (greedy)."""

    temperature: float = 0.0
    """Logits are divided by it: below 1 sharper, above 1 flatter."""
    top_k: int = 0
    """Only the k best tokens stay; 0 = all."""
    top_p: float = 1.0
    """Only the best tokens that together reach this probability stay (nucleus sampling, Holtzman et al. 2020)."""
    min_p: float = 0.0
    """Only tokens stay that have at least this share of the best one's probability (Nguyen et al. 2024); 0 = all."""

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise QkvError(f"temperature is a number from 0 (greedy) upwards, given {self.temperature}")
        if self.top_k < 0:
            raise QkvError(f"top_k is 0 (all tokens) or a count of tokens, given {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise QkvError(f"top_p is a probability above 0 and at most 1, given {self.top_p}")
        if not 0 <= self.min_p <= 1:
            raise QkvError(f"min_p is a share from 0 (all tokens) to 1, given {self.min_p}")


def seeded(seed: int, count: int) -> list[torch.Generator]:
    """One stream of random numbers per row (seed, seed + 1, ...), so that a row draws the same in any batch."""
    if not 0 <= seed < 2**62:
        raise QkvError(f"a seed is a whole number from 0 to 2^62, given {seed}")
    return [torch.Generator().manual_seed(seed + row) for row in range(count)]


def choose(logits: Tensor, how: Sampling, generators: Sequence[torch.Generator] = ()) -> Tensor:
    """(B, V) -> (B,) token ids, with one generator per row unless greedy."""
    if how.temperature < COLD or how.top_k == 1:
        return best(logits, 1)[1].squeeze(-1)
    best_first, ids = (logits.float() / how.temperature).sort(dim=-1, descending=True, stable=True)  # (B, V)
    chances = best_first.softmax(-1)
    if how.top_k:
        chances[:, how.top_k :] = 0
        chances = chances / chances.sum(-1, keepdim=True)
    above = chances.cumsum(-1) - chances  # probability of all better tokens
    stays = (above < how.top_p) & (chances >= how.min_p * chances[:, :1])  # (B, V)
    stays[:, 0] = True  # the best one, however small top_p is: as a float32 it may be 0
    chances = chances * stays
    draws = torch.stack([torch.rand(1, generator=g) for g in generators]).to(logits.device)  # (B, 1)
    heights = chances.cumsum(-1)  # (B, V)
    index = (heights <= draws * heights[:, -1:]).sum(-1, keepdim=True)  # the first token whose height passes the draw
    last = (chances > 0).sum(-1, keepdim=True) - 1  # rounding must not reach a token of chance 0
    return ids.gather(-1, index.minimum(last).clamp(min=0)).squeeze(-1)  # -1: a broken network's scores are no numbers


def best(scores: Tensor, count: int, chunk: int = 64) -> tuple[Tensor, Tensor]:
    """The `count` best of each row and where they are, best first: (R, V) -> (R, count) twice, as torch.topk.

    The best ones are all within the chunks that have the best maxima, and a maximum is found far faster than an order:
    4 to 8 times as fast as topk over a whole vocabulary.
    """
    rows, size = scores.shape
    if rows == 1 or size < 8 * chunk * count:
        return scores.topk(min(count, size), -1)
    whole = size - size % chunk
    maxima = scores[:, :whole].unflatten(-1, (-1, chunk)).amax(-1)  # (R, V // chunk)
    chunks = maxima.topk(count, -1).indices  # (R, count)
    places = (chunks[..., None] * chunk + torch.arange(chunk, device=scores.device)).flatten(1)  # (R, count * chunk)
    rest = torch.arange(whole, size, device=scores.device).expand(rows, -1)
    places = torch.cat([places, rest], -1)
    values, found = scores.gather(-1, places).topk(count, -1)
    return values, places.gather(-1, found)
