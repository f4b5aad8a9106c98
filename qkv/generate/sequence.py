"""Sequences in generation: hypotheses, generated tokens, and the Sampler, which extends one hypothesis token by token."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from qkv.generate.logits_processor import NO_PROCESSING, LogitsProcessor
from qkv.generate.sampling import GREEDY, SamplingParams, make_generators, sample_tokens, top_k


@dataclass(frozen=True)
class Hypothesis:
    """A generated text, finished or not."""

    ids: list[int]
    """Tokens, with the end token where it `ended`."""
    log_probs: list[float]
    """The model's log-probability of each of them."""
    total: float = 0.0
    """What the search adds up: log-probabilities, and penalties where there are any."""
    score: float = 0.0
    """total / length^penalty."""
    ended: bool = False

    @property
    def log_prob(self) -> float:
        return math.fsum(self.log_probs)


@dataclass(frozen=True)
class NextTokens:
    """Candidates for the next token of one hypothesis, best first."""

    tokens: list[int]
    scores: list[float]
    """What the search adds for each: log-probabilities, edited by the logits processor."""
    log_probs: list[float]
    """The model's log-probabilities."""


class GeneratedToken(NamedTuple):
    """A token, its log-probability, and the most probable tokens at its position."""

    token: int
    log_prob: float
    top: list[tuple[int, float]]


class Generation(ABC):
    """One text while it is generated: its live hypotheses, each a row of the batch, and how they are extended."""

    max_rows = 1
    """The most hypotheses that it can have."""

    def __init__(self, max_tokens: int, eos_ids: Sequence[int], processor: LogitsProcessor = NO_PROCESSING,
                 index: int = 0, prefix: Sequence[int] = ()):  # fmt: skip
        self.max_tokens, self.eos_ids = max_tokens, eos_ids
        self.processor, self.index = processor, index
        """`index`: which of the processor's prompts, prefixes and limits belong to this text."""
        self.prefix = prefix
        """Its first tokens, where they were read with the prompt: penalties count them as generated."""
        self.live = [Hypothesis([], [])]
        """Hypotheses that are not finished; none = the text is complete."""

    @abstractmethod
    def batch_key(self) -> object:
        """Texts with equal keys and processors have their next tokens chosen together."""

    @abstractmethod
    def select(self, scores: Tensor, log_probs: Tensor, batch: Sequence[Generation]) -> tuple[Tensor, Tensor]:
        """Candidates for the next tokens of all rows of `batch`, which have the same key: (R, V) twice -> tokens and scores
        (R, count)."""

    @abstractmethod
    def advance(self, candidates: Sequence[NextTokens]) -> list[int]:
        """Extend the live hypotheses by a token; of each new one, return the index of the old one that it extends."""

    def required_tokens(self) -> Iterator[tuple[int, int]]:
        """(live hypothesis, token) pairs that are candidates even where they are not among the best."""
        return iter(())


class Sampler(Generation):
    """One hypothesis, extended by the most probable token or by a random draw from its own generator."""

    def __init__(self, max_tokens: int, eos_ids: Sequence[int], params: SamplingParams = GREEDY, seed: int | torch.Generator = 0,
                 top: int = 0, processor: LogitsProcessor = NO_PROCESSING, index: int = 0, prefix: Sequence[int] = ()
                 ):  # fmt: skip
        super().__init__(max_tokens, eos_ids, processor, index, prefix)
        self.params, self.top = params, top
        """`top`: how many alternatives are reported with each token."""
        self.generator = make_generators(seed, 1)[0] if isinstance(seed, int) else seed
        self.tokens: list[GeneratedToken] = []
        """All tokens so far, the end token included."""

    @property
    def ids(self) -> list[int]:
        return [token.token for token in self.tokens]

    def batch_key(self) -> object:
        return self.params

    def select(self, scores: Tensor, log_probs: Tensor, batch: Sequence[Generation]) -> tuple[Tensor, Tensor]:
        """The chosen token of each row, followed by the most probable ones, as many as any of them reports."""
        samplers = [each for each in batch if isinstance(each, Sampler)]
        tokens = sample_tokens(scores, self.params, [each.generator for each in samplers])[:, None]  # (R, 1)
        if count := min(max(each.top for each in samplers), scores.size(-1)):
            tokens = torch.cat([tokens, top_k(log_probs, count)[1]], 1)  # (R, 1 + top)
        return tokens, log_probs.gather(-1, tokens)

    def advance(self, candidates: Sequence[NextTokens]) -> list[int]:
        token, *tokens = candidates[0].tokens
        log_prob, *log_probs = candidates[0].log_probs
        self.tokens.append(GeneratedToken(token, log_prob, list(zip(tokens, log_probs, strict=True))[: self.top]))
        self.live[0].ids.append(token)
        if token in self.eos_ids or len(self.tokens) == self.max_tokens:
            self.live = []
        return [0] * len(self.live)
