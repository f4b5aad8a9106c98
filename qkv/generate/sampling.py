"""Sampling: choose the next token from its logits, the most probable one or a random draw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.errors import QkvError

MIN_TEMPERATURE = 1e-5
"""Below this temperature decoding is greedy: logits divided by less overflow, and no other token had a chance anyway."""

FIRST = 64
"""Number of most probable tokens that are ranked at first."""
GROWTH = 16
"""So many times as many are ranked where they are not enough, all of them where that is not far from all."""


@dataclass(frozen=True)
class SamplingParams:
    """Settings of sampling; temperature 0 is greedy decoding."""

    temperature: float = 0.0
    """Divide the logits by it: below 1 sharper, above 1 flatter."""
    top_k: int = 0
    """Sample from the k most probable tokens; 0 = all."""
    top_p: float = 1.0
    """Sample from the fewest tokens that together reach this probability (nucleus sampling, Holtzman et al. 2020)."""
    min_p: float = 0.0
    """Sample from tokens with at least this share of the top token's probability (Nguyen et al. 2024); 0 = all."""

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise QkvError(f"temperature is a number from 0 (greedy) upwards, given {self.temperature}")
        if self.top_k < 0:
            raise QkvError(f"top_k is 0 (all tokens) or a count of tokens, given {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise QkvError(f"top_p is a probability above 0 and at most 1, given {self.top_p}")
        if not 0 <= self.min_p <= 1:
            raise QkvError(f"min_p is a share from 0 (all tokens) to 1, given {self.min_p}")

    @property
    def truncates(self) -> bool:
        """Whether top-p or min-p excludes tokens."""
        return self.top_p < 1 or self.min_p > 0


GREEDY, PURE_SAMPLING = SamplingParams(), SamplingParams(temperature=1.0)


def make_generators(seed: int, count: int) -> list[torch.Generator]:
    """Make one random generator per row (seed, seed + 1, ...), so that a row draws the same tokens in any batch."""
    if not 0 <= seed < 2**62:
        raise QkvError(f"a seed is a whole number from 0 to 2^62, given {seed}")
    return [torch.Generator().manual_seed(seed + row) for row in range(count)]


def is_greedy(params: SamplingParams) -> bool:
    """Return whether the most probable token is always chosen."""
    return params.temperature < MIN_TEMPERATURE or params.top_k == 1


def sample_tokens(logits: Tensor, params: SamplingParams, generators: Sequence[torch.Generator] = ()) -> Tensor:
    """Choose a token of each row, (B, V) -> (B,), with one generator per row unless greedy.

    A draw between 0 and 1 selects the first token, counted from the most probable one, at which the sum of the probabilities
    passes it. So only the most probable tokens are ranked: FIRST of them, and more where the draw or top-p needs them.
    """
    if is_greedy(params):
        return top_k(logits, 1)[1].squeeze(-1)
    scaled = logits.float() / params.temperature
    draws = torch.stack([torch.rand(1, generator=g) for g in generators]).to(logits.device)  # (B, 1)
    tokens, done = draw_tokens(scaled, draws, params, FIRST)
    rows, count = (~done).nonzero().flatten(), FIRST
    while len(rows):
        count *= GROWTH
        tokens[rows], done = draw_tokens(scaled[rows], draws[rows], params, count)
        rows = rows[~done]
    return tokens


def token_probs(logits: Tensor, params: SamplingParams) -> Tensor:
    """Return the probabilities with which `sample_tokens` chooses each token: (B, V) -> (B, V)."""
    if is_greedy(params):
        return torch.zeros_like(logits, dtype=torch.float32).scatter(-1, top_k(logits, 1)[1], 1.0)
    scaled, count = logits.float() / params.temperature, FIRST
    if not (params.top_k or params.truncates):
        return scaled.softmax(-1)
    probs, ids = rank_tokens(scaled, params, count)  # (B, n)
    while not params.top_k and probs.size(1) < scaled.size(1) and bool((truncate(probs, params)[:, -1] > 0).any()):
        count *= GROWTH
        probs, ids = rank_tokens(scaled, params, count)
    probs = truncate(probs, params)
    return torch.zeros_like(scaled).scatter(-1, ids, probs / probs.sum(-1, keepdim=True))


def draw_tokens(scaled: Tensor, draws: Tensor, params: SamplingParams, count: int) -> tuple[Tensor, Tensor]:
    """Return the drawn token of each row, (B,), and whether `count` ranked tokens were enough for it, (B,).

    scaled (B, V): logits divided by the temperature. draws (B, 1): random numbers from 0 to 1.
    """
    probs, ids = rank_tokens(scaled, params, count)  # (B, n)
    whole = bool(params.top_k) or probs.size(1) == scaled.size(1)
    probs = truncate(probs, params)
    heights = probs.cumsum(-1)  # (B, n)
    total = heights[:, -1:] if whole or params.truncates else torch.ones_like(draws)
    passed = heights > draws * total  # (B, n)
    # with a truncation, the sum of all kept tokens must be known: one that is not kept must be among the ranked ones
    enough = probs[:, -1] == 0 if params.truncates else passed[:, -1]  # (B,)
    index = (~passed).sum(-1, keepdim=True)  # the first token whose height passes the draw
    last = (probs > 0).sum(-1, keepdim=True) - 1  # rounding must not reach a token of probability 0
    index = index.minimum(last).clamp(min=0)  # -1: logits that are NaN
    return ids.gather(-1, index).squeeze(-1), torch.ones_like(enough) if whole else enough


def rank_tokens(scaled: Tensor, params: SamplingParams, count: int) -> tuple[Tensor, Tensor]:
    """Return probabilities and ids, (B, n) each, of the n = `top_k` or else `count` most probable tokens, best first.

    The probabilities are those among all tokens, or with top-k among these k. Equal ones are in the order of their ids.
    """
    values, ids = best_first(scaled, params.top_k or count)  # (B, n)
    if params.top_k:
        return values[:, : params.top_k].softmax(-1), ids[:, : params.top_k]
    return scaled.softmax(-1).gather(-1, ids), ids


def best_first(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return at least `count` largest values of each row and their indices, in descending order: (B, V) -> (B, n) twice.

    Equal values are in the order of their indices. Where `count` is not far below V, all V are sorted, which is faster.
    """
    if GROWTH * count >= scores.size(1):
        values, ids = scores.sort(dim=-1, descending=True, stable=True)
        return values, ids
    ids = top_k(scores, count)[1].sort(-1).values  # (B, n)
    values, order = scores.gather(-1, ids).sort(dim=-1, descending=True, stable=True)
    return values, ids.gather(-1, order)


def truncate(probs: Tensor, params: SamplingParams) -> Tensor:
    """Set the probabilities (B, n), best first, that top-p and min-p exclude to 0."""
    above = probs.cumsum(-1) - probs  # probability of all better tokens
    kept = (above < params.top_p) & (probs >= params.min_p * probs[:, :1])  # (B, n)
    kept[:, 0] = True  # the best one, however small top_p is: as a float32 it may be 0
    return probs * kept


def top_k(scores: Tensor, count: int, chunk: int = 64) -> tuple[Tensor, Tensor]:
    """Return the `count` largest values of each row and their indices, (R, V) -> (R, count) twice, as torch.topk.

    They are all within the chunks that have the largest maxima, and a maximum is found far faster than an order:
    4 to 8 times as fast as topk over a whole vocabulary.
    """
    rows, size = scores.shape
    if rows == count == 1:
        return scores.max(-1, keepdim=True)
    if rows == 1 or size < 8 * chunk * count:
        return scores.topk(min(count, size), -1)
    whole = size - size % chunk
    maxima = scores[:, :whole].unflatten(-1, (-1, chunk)).amax(-1)  # (R, V // chunk)
    chunks = maxima.topk(count, -1).indices  # (R, count)
    indices = (chunks[..., None] * chunk + torch.arange(chunk, device=scores.device)).flatten(1)  # (R, count * chunk)
    rest = torch.arange(whole, size, device=scores.device).expand(rows, -1)
    indices = torch.cat([indices, rest], -1)
    values, selected = scores.gather(-1, indices).topk(count, -1)
    return values, indices.gather(-1, selected)
