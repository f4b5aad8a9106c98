"""PrefixCache: the state of the last text that was read; a text with a common prefix is read from where they differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from qkv.batch import Batch
from qkv.generate.continuous_batching import ContinuousBatch, GenerativeNetwork
from qkv.generate.prefill import common_prefix
from qkv.generate.sequence import Sampler
from qkv.parts.state import State


class PrefixCache:
    """The tokens of one text that a decoder has read, and its state after them."""

    def __init__(self, network: GenerativeNetwork):
        self.network, self.device = network, next(network.parameters()).device
        self.known: tuple[list[int], State] = [], State()
        """One value, so that an interrupted reader leaves ids and state that belong together."""

    def generate(self, prompt: Sequence[int], sampler: Sampler) -> Iterator[int]:
        """Yield the tokens that follow the prompt, the end token included; read only what is new since the last call."""
        ids, state = self.known
        length = common_prefix(ids, prompt[:-1])  # the last token is read in any case: its vector predicts the next
        whole = (
            getattr(self.network, "separator", None) is not None
        )  # a source is read in both directions, so always anew
        past = None if whole else state.first(length)
        new = torch.tensor([prompt[0 if past is None else length :]], device=self.device)  # (1, T)
        running = ContinuousBatch(self.network)
        running.join(Batch(inputs=new), [sampler], past)
        while running.running:
            running.read_pending()
            self.known = [*prompt, *sampler.ids], running.state
            running.step()
            yield sampler.tokens[-1].token


def slide(network: GenerativeNetwork, prompt: Sequence[int], context: int, sampler: Sampler) -> Iterator[int]:
    """Yield tokens that follow the prompt, the end token included, beyond the context: when that is full, the network
    continues from its last half, which it reads anew."""
    known = list(prompt[-context:])
    while sampler.live:
        running = ContinuousBatch(network)
        running.join(Batch(torch.tensor([known], device=next(network.parameters()).device)), [sampler])
        while sampler.live and len(known) <= context:
            running.step()
            known.append(sampler.tokens[-1].token)
            yield known[-1]
        known = known[-(context // 2) - 1 :]
