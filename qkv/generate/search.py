"""Greedy decoding, sampling and beam search over a batch of prompts, all by the same decoding loop (continuous_batching.py).

The inputs of a batch are the prompts of a decoder, or the first target token(s) of an encoder-decoder.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from qkv.batch import Batch
from qkv.generate.beam import BeamParams, BeamSearch, length_divisors
from qkv.generate.constraints import Phrase
from qkv.generate.continuous_batching import ContinuousBatch, GenerativeNetwork
from qkv.generate.logits_processor import NO_PROCESSING, LogitsProcessor
from qkv.generate.sampling import GREEDY, PURE_SAMPLING, SamplingParams
from qkv.generate.sequence import Generation, Hypothesis, Sampler

G = TypeVar("G", bound=Generation)


def decode(network: GenerativeNetwork, batch: Batch, generations: Sequence[G]) -> Sequence[G]:
    """Generate the text of each row to its end."""
    running = ContinuousBatch(network)
    running.join(batch, generations)
    while running.running:
        running.step()
    return generations


def make_samplers(batch: Batch, max_new_tokens: int | Sequence[int], eos_ids: Sequence[int] = (),
                  params: SamplingParams = GREEDY, seed: int = 0, processor: LogitsProcessor = NO_PROCESSING
                  ) -> list[Sampler]:  # fmt: skip
    """Make a sampler for each row, row i with the seed `seed` + i; `max_new_tokens` is one limit, or one per row."""
    limits = [max_new_tokens] * batch.size if isinstance(max_new_tokens, int) else max_new_tokens
    return [Sampler(limit, eos_ids, params, seed + row, 0, processor, row) for row, limit in enumerate(limits)]


def greedy(network: GenerativeNetwork, batch: Batch, max_new_tokens: int | Sequence[int], eos_ids: Sequence[int] = (),
           processor: LogitsProcessor = NO_PROCESSING) -> list[list[int]]:  # fmt: skip
    """Take the most probable token each time; return the new ids of each row, its end token included."""
    return sample(network, batch, max_new_tokens, eos_ids, GREEDY, processor=processor)


def sample(network: GenerativeNetwork, batch: Batch, max_new_tokens: int | Sequence[int], eos_ids: Sequence[int] = (),
           params: SamplingParams = PURE_SAMPLING, seed: int = 0, processor: LogitsProcessor = NO_PROCESSING
           ) -> list[list[int]]:  # fmt: skip
    """Draw tokens; return the new ids of each row, its end token included. Row i of seed s equals row 0 of seed s + i."""
    samplers = make_samplers(batch, max_new_tokens, eos_ids, params, seed, processor)
    return [each.ids for each in decode(network, batch, samplers)]


def stream(network: GenerativeNetwork, batch: Batch, samplers: Sequence[Sampler]) -> Iterator[list[int | None]]:
    """Yield the next token of every row, step by step, its end token included; None for a row that has ended."""
    running = ContinuousBatch(network)
    running.join(batch, samplers)
    while running.running:
        before = [bool(each.live) for each in samplers]
        running.step()
        yield [each.tokens[-1].token if live else None for each, live in zip(samplers, before, strict=True)]


def beam_search(network: GenerativeNetwork, batch: Batch, max_new_tokens: int | Sequence[int], eos_ids: Sequence[int],
                params: BeamParams, processor: LogitsProcessor = NO_PROCESSING, phrases: Sequence[Sequence[Phrase]] = ()
                ) -> list[list[Hypothesis]]:  # fmt: skip
    """Return the `n_best` hypotheses of each row, best first: those that ended, then those cut at `max_new_tokens`.

    `phrases` has for each row the token sequences that must occur in its text. A beam of 1 is greedy decoding.
    """
    limits = [max_new_tokens] * batch.size if isinstance(max_new_tokens, int) else max_new_tokens
    searches = make_searches(limits, eos_ids, params, processor, phrases)
    return [each.results() for each in decode(network, batch, searches)]


def make_searches(limits: Sequence[int], eos_ids: Sequence[int], params: BeamParams,
                  processor: LogitsProcessor = NO_PROCESSING, phrases: Sequence[Sequence[Phrase]] = ()
                  ) -> Sequence[BeamSearch | GreedySearch]:  # fmt: skip
    """Make a search for each text, with its limit and its phrases; a beam of 1 without phrases is greedy decoding."""
    if params.size == 1 and not any(phrases):
        return [GreedySearch(params, limit, eos_ids, processor, row) for row, limit in enumerate(limits)]
    return [
        BeamSearch(params, limit, eos_ids, phrases[row] if phrases else (), processor, row)
        for row, limit in enumerate(limits)
    ]


class GreedySearch(Sampler):
    """Beam search with a beam of 1."""

    def __init__(
        self, beam: BeamParams, max_tokens: int, eos_ids: Sequence[int], processor: LogitsProcessor, index: int
    ):
        super().__init__(max_tokens, eos_ids, processor=processor, index=index)
        self.beam = beam

    def results(self) -> list[Hypothesis]:
        """Return the text as beam search would, with its score."""
        log_probs = [token.log_prob for token in self.tokens]
        total = sum(log_probs)
        divisor = length_divisors(self.beam, self.max_tokens)[len(log_probs)]
        return [Hypothesis(self.ids, log_probs, total, total / divisor, self.ids[-1] in self.eos_ids)]
