"""Prefill: read the prompts of a batch. A prefix that several of them share is computed once, and cached for later ones in a PromptCache.

    prompts    S S S S a b         S is read in one row; its keys and values are then the past of all rows,
               S S S S c           which are read together, padded on the left: a b, . c, d e
               S S S S d e

Works for every decoder: the state after S is a KV cache, or the hidden vectors of a recurrent network. Shapes: B prompts,
C = d_model.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from qkv.batch import Batch, pad
from qkv.models.decoder import Decoder
from qkv.models.encoder_decoder import EncoderDecoder
from qkv.parts.state import State

MIN_SHARED = 16
"""Minimum length of a shared prefix: it takes a separate call of the network, which must pay off."""
MIN_ALONE = 48
"""Minimum tokens of a prompt that is read by itself, to be kept in a cache, although others could be read together with it: so many
tokens use the processor as well as more would."""


class PromptCache:
    """States of the prompts that were read last, at most `max_tokens` tokens together; the least recently used leave first.

    Threads may share it. What it returns is never modified: callers that read more tokens after it copy its keys and values.
    """

    def __init__(self, max_tokens: int):
        self.max_tokens = max_tokens
        self.states: OrderedDict[tuple[int, ...], State] = OrderedDict()
        """Prompt -> state after it, the last used one at the end."""
        self.lock = threading.Lock()

    def find(self, ids: Sequence[int]) -> tuple[int, State]:
        """Return the number of first tokens of `ids` that were read before, and the state after them; 0 if there are none."""
        with self.lock:
            matches = sorted(((common_prefix(known, ids), known) for known in self.states), reverse=True)
            for length, known in matches:
                if length >= MIN_SHARED and (state := self.states[known].first(length)) is not None:
                    self.states.move_to_end(known)
                    return length, state
        return 0, State()

    def store(self, ids: Sequence[int], state: State) -> None:
        """Keep a copy of the state after `ids`, a batch of one row, unless a prompt in the cache begins with them. It replaces those
        that `ids` begin with, where its state can go back to them."""
        key = tuple(ids)
        if not MIN_SHARED <= len(key) <= self.max_tokens:
            return
        with self.lock:
            longer = [kept for known, kept in self.states.items() if known[: len(key)] == key]
        if any(kept.first(len(key)) is not None for kept in longer):
            return
        state = copy_row(state)
        with self.lock:
            for known in [known for known in self.states if key[: len(known)] == known]:
                if state.first(len(known)) is not None:
                    del self.states[known]
            self.states[key] = state
            while sum(map(len, self.states)) > self.max_tokens:
                self.states.popitem(last=False)


def copy_row(state: State) -> State:
    """Return a copy of the state of a batch of one row. Its KV caches are marked as full: the next tokens go into another copy."""

    def copied(kept: Any) -> Any:
        if isinstance(kept, Tensor):
            return kept.clone()
        new = kept.copy(1, kept.length)
        new.buffer.used = -1
        return new

    layers = tuple({name: copied(kept) for name, kept in layer.items()} for layer in state.layers)
    return State(layers, state.length)


# --- reading


@torch.no_grad()
def prefill(network: Decoder | EncoderDecoder, batch: Batch, cache: PromptCache | None = None) -> tuple[Tensor, State]:
    """Read the prompts of a batch, (B, T) with its mask; return the vectors of their last tokens (B, C) and the state."""
    assert batch.inputs is not None
    # a source is read in both directions, so at once
    if isinstance(network, Decoder) and network.separator is None and (batch.size > 1 or cache is not None):
        masks = [slice(None)] * batch.size if batch.mask is None else batch.mask
        prompts = [row[mask].tolist() for row, mask in zip(batch.inputs, masks, strict=True)]
        groups = group_prompts(prompts, None if cache is None else [cache.find(prompt)[0] for prompt in prompts])
        if groups[0][0]:
            return read_groups(network, prompts, groups, cache)
    hidden, state = network.step(batch.inputs, network.start(batch), batch.mask)  # (B, T, C)
    return hidden[:, -1] if batch.mask is None else last_token(hidden, batch.mask), state


def read_groups(network: Decoder, prompts: Sequence[list[int]], groups: Sequence[tuple[int, list[int]]],
                cache: PromptCache | None) -> tuple[Tensor, State]:  # fmt: skip
    """Read groups of prompts: vectors (B, C) and the state, in the order of the prompts."""
    vectors, state = torch.empty(0), State()
    for length, rows in groups:
        more, other = read_group(network, [prompts[row] for row in rows], length, cache)
        vectors, state = (torch.cat([vectors, more]), state.join(other)) if len(vectors) else (more, other)
    order = [row for _, rows in groups for row in rows]
    if order == sorted(order):
        return vectors, state
    places = torch.tensor(order, device=vectors.device).argsort()
    return vectors[places], state.move(places)


def group_prompts(prompts: Sequence[list[int]], cached: Sequence[int] | None = None) -> list[tuple[int, list[int]]]:
    """Return groups of prompts: how many first tokens they share, and which ones they are; 0: they are read without sharing.

    Neighbours in alphabetical order are merged, those with the longest common beginning first, where fewer tokens are read then.
    With a cache, `cached` is the number of first tokens in it: a prompt does not join a group that shares fewer; one that joins
    none is read by itself if it is cached or long. The last token of a prompt is never shared: its vector predicts the next one.
    """
    order = sorted(range(len(prompts)), key=lambda row: prompts[row])
    groups = {row: (len(prompts[row]) - 1, [row]) for row in order}  # each member -> its group
    pairs = [(common_prefix(prompts[a], prompts[b]), a, b) for a, b in pairwise(order)]
    for common, a, b in sorted(pairs, reverse=True):
        (m, left), (n, right) = groups[a], groups[b]
        length = min(common, m, n)
        known = 0 if cached is None else max(min(cached[row], len(prompts[row]) - 1) for row in (*left, *right))
        saved = (len(left) - 1) * m + (len(right) - 1) * n
        if length >= max(MIN_SHARED, known) and (len(left) + len(right) - 1) * length >= saved:
            groups |= dict.fromkeys([*left, *right], (length, [*left, *right]))
    unique = list({id(group): group for group in groups.values()}.values())
    single = sorted(rows[0] for _, rows in unique if len(rows) == 1)
    least = 1 if len(single) == 1 else MIN_ALONE
    alone = [row for row in single if cached is None or (cached[row] == 0 and len(prompts[row]) <= least)]
    return [group for group in unique if group[1][0] not in alone] + ([(0, alone)] if alone else [])


def read_group(network: Decoder, prompts: Sequence[list[int]], length: int, cache: PromptCache | None
               ) -> tuple[Tensor, State]:  # fmt: skip
    """Read prompts whose first `length` tokens are the same: vectors (B, C) and the state."""
    if len(prompts) == 1 and length:
        return read_row(network, prompts[0], cache)
    state = State()
    if length:
        _, state = read_row(network, prompts[0][:length], cache, whole=True)
        state = state.select(torch.zeros(len(prompts), dtype=torch.long, device=next(network.parameters()).device))
    ids, mask = pad_start([prompt[length:] for prompt in prompts], 0)  # (B, T) each
    device = next(network.parameters()).device
    hidden, state = network.step(ids.to(device), state, None if mask is None else mask.to(device))  # (B, T, C)
    return hidden[:, -1], state


def read_row(network: Decoder, ids: list[int], cache: PromptCache | None, whole: bool = False) -> tuple[Tensor, State]:
    """Read one row, from where the cache ends: the vector of its last token (1, C), and the state.

    whole: the vector is not needed, so that all of it may come from the cache.
    """
    length, state = (0, State()) if cache is None else cache.find(ids if whole else ids[:-1])
    if length == len(ids):
        return torch.empty(0), state
    device = next(network.parameters()).device
    hidden, state = network.step(torch.tensor([ids[length:]], device=device), state)  # (1, T, C)
    if cache is not None:
        cache.store(ids, state)
    return hidden[:, -1], state


def last_token(hidden: Tensor, mask: Tensor) -> Tensor:
    """Return the vector of each row's last real token: (B, T, C), (B, T) -> (B, C)."""
    positions = torch.arange(mask.size(1), device=mask.device) * mask  # (B, T), 0 at padding
    return hidden[torch.arange(hidden.size(0), device=hidden.device), positions.argmax(1)]


def pad_start(rows: Sequence[list[int]], pad_id: int) -> tuple[Tensor, Tensor | None]:
    """Return rows as one table (B, T), padded on the left, and a mask (B, T) of the real tokens; None = all."""
    ids, mask = pad([row[::-1] for row in rows], pad_id)
    return ids.flip(1), None if mask is None else mask.flip(1)


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Count the tokens that two texts have in common at their beginning."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
