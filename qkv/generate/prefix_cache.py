"""Cursor: one text, read as far as it is known. A text that begins as the last one did is read from where they part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from qkv.batch import Batch
from qkv.generate.logits_processor import Rules
from qkv.generate.sampling import Sampling, seeded
from qkv.generate.search import FREE, GREEDY, next_token
from qkv.models.decoder import Decoder
from qkv.parts.state import State


class Cursor:
    """What a decoder has read, and its state; each question reads only what is new (prefix caching)."""

    def __init__(self, network: Decoder):
        self.network, self.device = network, next(network.parameters()).device
        self.known: tuple[list[int], State] = [], State()
        """One value, so that whoever is interrupted between two steps leaves ids and state that belong together."""

    @torch.no_grad()
    def next(self, ids: Sequence[int]) -> Tensor:
        """Logits (1, V) of the token that follows these, of which there is at least one."""
        read, state = self.known
        shared = common(read, ids[:-1])  # the last one is read in any case: its vector is what is asked for
        past = state.first(shared)
        new = torch.tensor([ids[0 if past is None else shared :]], device=self.device)  # (1, T)
        hidden, state = self.network.step(new, self.network.start(Batch(inputs=new)) if past is None else past)
        self.known = list(ids), state
        return self.network.head(hidden[:, -1])  # type: ignore[no-any-return]


def common(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens two texts have in common at their beginning."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def slide(network: Decoder, prompt: Sequence[int], count: int, context: int, eos_ids: Sequence[int] = (),
          how: Sampling = GREEDY, seed: int = 0, rules: Rules = FREE) -> Iterator[int]:  # fmt: skip
    """Tokens that follow the prompt, further than the context reaches: where that is full, the network goes on from its
    last half, which it reads anew. The end token is the last one given."""
    cursor, known, streams = Cursor(network), list(prompt[-context:]), seeded(seed, 1)
    written: list[int] = []
    for _ in range(count):
        token = int(next_token(cursor.next(known), how, streams, rules, [written], [0]))
        written.append(token)
        yield token
        if token in eos_ids:
            return
        known = [*(known if len(known) < context else known[-(context // 2) :]), token]
