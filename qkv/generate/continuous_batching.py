"""Continuous batching, the decoding loop of all generation: texts join a running batch between two steps, leave it when they end.

No row attends to another, so a text does not depend on what else is in the batch. Greedy decoding, sampling and beam search
(sequence.py, beam.py) differ only in how the next token is chosen. Shapes: N texts with K rows each (K = 1 except in beam
search), C = d_model, V = vocabulary size.

    batch.join(make_batch(prompts), generations)
    while batch.running:
        ended = batch.step()
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from qkv.batch import Batch, pad
from qkv.generate.prefill import PromptCache, last_token, pad_start, prefill
from qkv.generate.sequence import Generation, NextTokens, Sampler
from qkv.models.decoder import Decoder
from qkv.models.encoder_decoder import EncoderDecoder
from qkv.parts.state import State

GenerativeNetwork = Decoder | EncoderDecoder
MAX_PADDING = 8
"""When 1 / MAX_PADDING of all positions hold no token of any text, because the longest ones have left, the state is trimmed.
Trimming copies it; padding costs memory and work at every step: with 1 / 2 a busy batch held nearly twice what its texts
needed."""


@dataclass
class ContinuousBatch:
    """A running batch of N texts with K rows each, which the network computes together."""

    network: GenerativeNetwork
    running: list[Generation] = field(default_factory=list)
    n_rows: int = 1
    """K: a text with fewer live hypotheses fills its rows with copies that are ignored."""
    state: State = field(default_factory=State)
    """The KV cache (or recurrent state) of all rows."""
    hidden: Tensor = field(default_factory=lambda: torch.empty(0))
    """(N * K, C): the vector of each row's last token, from which the next one is predicted."""
    pending: Tensor | None = None
    """(N * K, 1) tokens that were chosen and are not read yet; None = `hidden` is up to date. They are read when another
    token is wanted: a stream gets each token as soon as it is known, and the last one is never read."""
    prompt_cache: PromptCache | None = None
    """States of earlier prompts of a decoder, reused for prompts with the same prefix."""

    @torch.no_grad()
    def join(self, batch: Batch, generations: Sequence[Generation], state: State | None = None) -> None:
        """Add texts: read their prompts, a row of `batch` each; a prefix that prompts of a decoder share is computed once (prefill.py).

        `state` holds tokens that were read before, such as a cached prefix.
        """
        assert batch.inputs is not None
        self.read_pending()
        if state is None:
            last, state = prefill(self.network, batch, self.prompt_cache)  # (B, C)
        else:
            hidden, state = self.network.step(batch.inputs, state, batch.mask)  # (B, T, C)
            last = hidden[:, -1] if batch.mask is None else last_token(hidden, batch.mask)
        n_rows = max(len(each.live) for each in [*self.running, *generations])
        rows = torch.arange(len(generations), device=last.device).repeat_interleave(n_rows)
        if n_rows > 1:
            last, state = last[rows], state.move(rows)  # (B * K, C)
        if self.running:
            self.move(range(len(self.running)), [list(range(len(each.live))) for each in self.running], n_rows)
            last, state = torch.cat([self.hidden, last]), self.state.join(state)
        self.hidden, self.state, self.n_rows = last, state, n_rows
        self.running += generations

    @torch.no_grad()
    def step(self) -> list[Generation]:
        """Extend every text by a token; remove and return those that end with it."""
        self.read_pending()
        before, parents = self.running, self.advance()
        kept = [at for at, each in enumerate(before) if each.live]
        if not self.keep(kept, [parents[at] for at in kept]):
            return before
        last = [id_ for each in self.running for id_ in fill_rows([h.ids[-1] for h in each.live], self.n_rows)]
        self.pending = torch.tensor(last, device=self.hidden.device)[:, None]
        return [each for each in before if not each.live]

    @torch.no_grad()
    def remove(self, generations: Sequence[Generation]) -> None:
        """Remove some texts before their end."""
        kept = [at for at, each in enumerate(self.running) if each not in generations]
        if len(kept) < len(self.running):
            self.keep(kept, [list(range(len(self.running[at].live))) for at in kept])

    def read_pending(self) -> None:
        """Let the network read the tokens that were chosen last."""
        if self.pending is not None:
            hidden, self.state = self.network.step(self.pending, self.state)  # (N * K, 1, C)
            self.hidden, self.pending = hidden[:, -1], None

    # --- tokens

    def advance(self) -> list[list[int]]:
        """Choose the next token of every text; return for each text the parents of its new hypotheses: which of its rows each extends."""
        head: Any = self.network.head
        if head.copies:
            head = head.bind(self.state.memory)
        # penalties in greedy decoding and sampling need the logits: log-probabilities have lost their signs
        penalised = any(each.processor.has_penalties and isinstance(each, Sampler) for each in self.running)
        # only the last vector goes through the head: the vocabulary is the widest matrix of all
        logits = head(self.hidden).float() if penalised else None  # (N * K, V)
        log_probs = head.log_probs(self.hidden) if logits is None else logits.log_softmax(-1)
        parents: list[list[int]] = [[] for _ in self.running]
        for group in self.group():
            rows = [at * self.n_rows + k for at in group for k in range(len(self.running[at].live))]
            everything = len(rows) == len(log_probs)  # then no copy is needed
            group_log_probs = log_probs if everything else log_probs[rows]  # (R, V)
            group_logits = logits if everything or logits is None else logits[rows]
            candidates = next_tokens(group_log_probs, group_logits, [self.running[at] for at in group])
            for at, tokens in zip(group, candidates, strict=True):
                parents[at] = self.running[at].advance(tokens)
        return parents

    def group(self) -> list[list[int]]:
        """Return lists of indices of texts whose next tokens are chosen in the same way, so that one call handles each list."""
        groups: list[tuple[Generation, object, list[int]]] = []
        for at, each in enumerate(self.running):
            key = each.batch_key()
            for first, first_key, members in groups:
                if first_key == key and (first.processor is each.processor or first.processor == each.processor):
                    members.append(at)
                    break
            else:
                groups.append((each, key, [at]))
        return [members for _, _, members in groups]

    # --- rows

    def keep(self, kept: Sequence[int], parents: Sequence[list[int]]) -> bool:
        """Keep only these texts, with copies of the rows that their hypotheses extend; return whether any text is left."""
        if not kept:
            self.running, self.state, self.hidden, self.pending = [], State(), torch.empty(0), None
            return False
        self.move(kept, parents, max(map(len, parents)))
        if len(kept) < len(self.running):
            self.running = [self.running[at] for at in kept]
            if self.state.padding > self.state.length // MAX_PADDING:
                self.state = self.state.trimmed()
        return True

    def move(self, kept: Sequence[int], parents: Sequence[list[int]], n_rows: int) -> None:
        """Rearrange the rows: `n_rows` for each text that is kept, each a copy of its parent row."""
        rows = [
            at * self.n_rows + parent
            for at, own in zip(kept, parents, strict=True)
            for parent in fill_rows(own, n_rows)
        ]
        if rows == list(range(len(self.running) * self.n_rows)):  # as in sampling, while no text ends
            return
        stay = None if len(kept) == len(self.running) else torch.tensor(kept, device=self.hidden.device)
        index = torch.tensor(rows, device=self.hidden.device)
        self.hidden, self.state, self.n_rows = self.hidden[index], self.state.move(index, stay), n_rows
        self.pending = None if self.pending is None else self.pending[index]


def fill_rows(entries: list[int], n_rows: int) -> list[int]:
    """Repeat the first entry up to `n_rows` entries."""
    return entries + entries[:1] * (n_rows - len(entries))


def next_tokens(log_probs: Tensor, logits: Tensor | None, generations: Sequence[Generation]) -> list[list[NextTokens]]:
    """Return the candidate tokens for each live hypothesis (R in all) of texts that choose in the same way.

    The processor edits log_probs (R, V), or with penalties in sampling the logits (R, V).
    """
    processor = generations[0].processor
    scores = log_probs
    if processor.has_penalties:
        sampling = isinstance(generations[0], Sampler) and logits is not None
        scores = logits.clone() if sampling else log_probs.clone()  # type: ignore[union-attr]
    if processor.suppressed or processor.uses_history:
        generated = [[*each.prefix, *h.ids] if each.prefix else h.ids for each in generations for h in each.live]
        processor.process(scores, generated, [each.index for each in generations for _ in each.live])
    tokens, best = generations[0].select(scores, log_probs, generations)  # (R, count)
    unpenalised = log_probs.gather(-1, tokens) if processor.has_penalties else best
    rows = iter([NextTokens(*row) for row in zip(tokens.tolist(), best.tolist(), unpenalised.tolist(), strict=True)])
    result, at = [[next(rows) for _ in each.live] for each in generations], 0
    for each, candidates in zip(generations, result, strict=True):
        for index, token in each.required_tokens():
            candidates[index].tokens.append(token)
            candidates[index].scores.append(scores[at + index, token].item())
            candidates[index].log_probs.append(log_probs[at + index, token].item())
        at += len(candidates)
    return result


def make_batch(prompts: Sequence[list[int]], sources: Sequence[list[int]] = (), pad_id: int = 0) -> Batch:
    """Make a batch of prompts (B, T), padded on the left, and of sources (B, S), padded on the right.

    Padding on the left of a prompt is trimmed from the state once the longer prompts have left the batch.
    """
    ids, mask = pad_start(prompts, pad_id)  # (B, T) each
    if not sources:
        return Batch(ids, mask)
    source, source_mask = pad(sources, pad_id)  # (B, S) each
    return Batch(ids, mask, source=source, source_mask=source_mask)
