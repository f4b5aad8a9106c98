"""Search: token after token on `network.step`, the same for attention and recurrent networks, with or without a source.

A batch holds what is known: `inputs` is the prompt of a decoder, or the first target token(s) of an encoder-decoder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from qkv.batch import Batch
from qkv.generate.logits_processor import Rules, Written
from qkv.generate.sampling import Sampling, choose, seeded
from qkv.models.decoder import Decoder
from qkv.models.encoder_decoder import EncoderDecoder

Writer = Decoder | EncoderDecoder
GREEDY, PLAIN, FREE = Sampling(), Sampling(temperature=1.0), Rules()
Choice = Callable[[Tensor, list[int]], Tensor]
"""Scores (R, V) of the rows still being written, and which rows of the batch they are -> ids (R,)."""


@torch.no_grad()
def write(network: Writer, batch: Batch, max_new_tokens: int | Sequence[int], choice: Choice,
          eos_ids: Sequence[int] = (), log_probs: bool = False) -> Iterator[list[int | None]]:  # fmt: skip
    """The next token of every row, step by step; None for a row that has ended. An end token is given, then the row
    leaves the batch, as one at its own limit does: the rest goes on with a smaller state. `choice` sees logits or
    log-probabilities."""
    assert batch.inputs is not None
    rows = list(range(batch.inputs.size(0)))
    limits = [max_new_tokens] * len(rows) if isinstance(max_new_tokens, int) else max_new_tokens
    hidden, state = network.step(batch.inputs, network.start(batch), batch.mask)  # (B, T, C)
    last = last_real(hidden, batch.mask)  # (B, C)
    for length in range(1, max(limits) + 1):
        # only the last vector goes through the head: the vocabulary is the widest matrix of all
        ids = choice(network.head.log_probs(last) if log_probs else network.head(last), rows)  # type: ignore[operator]  # (R,)
        tokens = ids.tolist()
        written: list[int | None] = [None] * len(limits)
        for row, token in zip(rows, tokens, strict=True):
            written[row] = token
        yield written
        going = [i for i, token in enumerate(tokens) if token not in eos_ids and length < limits[rows[i]]]
        if not going:
            return
        if len(going) < len(rows):
            kept = torch.tensor(going, device=ids.device)
            rows, ids, state = [rows[i] for i in going], ids[kept], state.select(kept)
        hidden, state = network.step(ids[:, None], state)  # (R, 1, C)
        last = hidden[:, -1]


def last_real(hidden: Tensor, mask: Tensor | None) -> Tensor:
    """The vector of each row's last real token: (B, T, C) -> (B, C)."""
    if mask is None:
        return hidden[:, -1]
    places = torch.arange(mask.size(1), device=mask.device) * mask  # (B, T), 0 at padding
    return hidden[torch.arange(hidden.size(0), device=hidden.device), places.argmax(1)]


def steps(network: Writer, batch: Batch, max_new_tokens: int | Sequence[int], eos_ids: Sequence[int] = (),
          how: Sampling = GREEDY, seed: int = 0, rules: Rules = FREE) -> Iterator[list[int | None]]:  # fmt: skip
    """`write` with greedy choice, or sampling with one stream of random numbers per row."""
    assert batch.inputs is not None
    streams = seeded(seed, batch.inputs.size(0))
    texts: list[list[int]] = [[] for _ in streams]

    def choice(logits: Tensor, rows: list[int]) -> Tensor:
        ids = next_token(logits, how, [streams[row] for row in rows], rules, [texts[row] for row in rows], rows)  # (R,)
        if not rules.idle:
            for row, token in zip(rows, ids.tolist(), strict=True):
                texts[row].append(token)
        return ids

    return write(network, batch, max_new_tokens, choice, eos_ids)


def next_token(logits: Tensor, how: Sampling, streams: Sequence[torch.Generator], rules: Rules, written: Written,
               sentences: Sequence[int]) -> Tensor:  # fmt: skip
    """Edit the logits (R, V) as the rules say, then take the best token or draw one: ids (R,)."""
    if not rules.idle:
        logits = logits.float().clone()
        rules.apply(logits, written, sentences)
    return choose(logits, how, streams)


def rows_of(written: Iterator[list[int | None]], count: int) -> list[list[int]]:
    """Steps of tokens -> the tokens of each row, its end token included."""
    texts: list[list[int]] = [[] for _ in range(count)]
    for step in written:
        for text, token in zip(texts, step, strict=True):
            if token is not None:
                text.append(token)
    return texts


def greedy(network: Writer, batch: Batch, max_new_tokens: int | Sequence[int], eos_ids: Sequence[int] = (),
           rules: Rules = FREE) -> list[list[int]]:  # fmt: skip
    """The most probable token each time: the new ids of each row, its end token included."""
    assert batch.inputs is not None
    return rows_of(steps(network, batch, max_new_tokens, eos_ids, rules=rules), batch.inputs.size(0))


def sample(network: Writer, batch: Batch, max_new_tokens: int | Sequence[int], eos_ids: Sequence[int] = (),
           how: Sampling = PLAIN, seed: int = 0, rules: Rules = FREE) -> list[list[int]]:  # fmt: skip
    """Drawn tokens: the new ids of each row, its end token included. Row i of seed s draws like row 0 of seed s + i."""
    assert batch.inputs is not None
    return rows_of(steps(network, batch, max_new_tokens, eos_ids, how, seed, rules), batch.inputs.size(0))
