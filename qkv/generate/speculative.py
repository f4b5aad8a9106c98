"""Speculative decoding: a cheap draft proposes tokens, the network checks them all in one call; the result is exact.

Leviathan et al. 2023, Chen et al. 2023. With p the distribution of the next token by the network and q that by the draft, both
after temperature, top-k, top-p, min-p and penalties, a drafted token x is accepted with probability min(1, p(x) / q(x)). The
first one that is rejected is replaced by a draw from max(0, p - q), normalised; after n accepted ones, one more token is drawn
from p. So every text has the probability that it has without a draft; in greedy decoding the tokens are the same.

    n = 3, known ... t             one call of the network reads t a b c and gives p_1 ... p_4
    draft        a b c             a accepted, b accepted, c rejected: the text continues a b d, d from max(0, p_3 - q_3)

Shapes: n drafted tokens, V = vocabulary size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from qkv.config import ModelConfig
from qkv.errors import QkvError
from qkv.generate.prefill import common_prefix
from qkv.generate.sampling import is_greedy, token_probs, top_k
from qkv.generate.sequence import NextTokens, Sampler
from qkv.models.inputs import has_fixed_length
from qkv.parts.state import State
from qkv.text.tokenizer import Tokenizer

DRAFT_TOKENS = 4
"""Default number of tokens that are drafted for each call of the network."""
NGRAM_SIZES = (3, 2, 1)
"""n-gram lookup: number of last tokens that are searched for in the text before, the longest first."""


class Draft(NamedTuple):
    """Tokens that may come next."""

    tokens: list[int]
    probs: Tensor | None = None
    """(n, V): the distribution that each was drawn from; None = each had probability 1."""


class Drafter(Protocol):
    """Proposes tokens."""

    def propose(self, ids: Sequence[int], sampler: Sampler, count: int) -> Draft:
        """Return at most `count` tokens that may follow `ids`, the last of which `sampler` has generated."""


@dataclass
class SpeculationStats:
    """Counts of one or several texts."""

    drafted: int = 0
    accepted: int = 0
    """Drafted tokens that became part of the text."""
    tokens: int = 0
    """Tokens generated."""
    calls: int = 0
    """Calls of the network, that of the prompt included."""

    @property
    def acceptance_rate(self) -> float:
        return self.accepted / max(self.drafted, 1)

    def __str__(self) -> str:
        rate = f"{self.accepted:,} of {self.drafted:,} drafted tokens accepted ({100 * self.acceptance_rate:.0f} %)"
        return f"{rate}, {self.tokens / max(self.calls, 1):.2f} tokens per call of the network"


class SpeculativeDecoder:
    """Generates texts with a network and a drafter; a text that begins like the last one is read from where they differ.

    n_tokens: drafted tokens per call. context: most tokens that the network can read; None = any number.
    """

    def __init__(self, network: Any, drafter: Drafter, n_tokens: int = DRAFT_TOKENS, context: int | None = None):
        self.network, self.drafter, self.n_tokens, self.context = network, drafter, n_tokens, context
        self.device = next(network.parameters()).device
        self.stats = SpeculationStats()
        self.known: tuple[list[int], State] = [], State()
        """The tokens that the network has read, and its state after them."""

    def generate(self, prompt: Sequence[int], sampler: Sampler) -> Iterator[int]:
        """Yield the tokens that follow the prompt, the end token included."""
        ids, draft = list(prompt), Draft([])  # the prompt is read without a draft: the first token comes at once
        while sampler.live:
            read = common_prefix(
                self.known[0], ids[:-1]
            )  # the last one is read in any case: its vector predicts the next
            state = rewind(self.known[1], read)
            self.known = ids[:read], state  # what is read now overwrites the tokens behind them
            logits, state = self.read([*ids[read:], *draft.tokens], state, len(draft.tokens) + 1)
            new = choose(logits, draft, sampler)
            ids += new
            # one value, so that an interrupted reader leaves ids and state that belong together
            self.known = ids[:-1], rewind(state, len(ids) - 1)
            self.count(draft.tokens, new)
            yield from new
            draft = self.propose(ids, sampler)

    @torch.no_grad()
    def read(self, ids: Sequence[int], state: State, count: int) -> tuple[Tensor, State]:
        """Read tokens; return the logits after the last `count` of them, (count, V), and the new state."""
        hidden, state = self.network.step(torch.tensor([ids], device=self.device), state)  # (1, T, C)
        return self.network.head(hidden[0, -count:]).float(), state

    def propose(self, ids: Sequence[int], sampler: Sampler) -> Draft:
        """Draft as many tokens as the text may still have before its last one, and as fit into the context."""
        room = sampler.max_tokens - len(sampler.tokens) - 1
        room = room if self.context is None else min(room, self.context - len(ids))
        count = min(self.n_tokens, room)
        return self.drafter.propose(ids, sampler, count) if count > 0 and sampler.live else Draft([])

    def count(self, drafted: Sequence[int], new: Sequence[int]) -> None:
        s = self.stats
        s.drafted, s.accepted = s.drafted + len(drafted), s.accepted + common_prefix(drafted, new)
        s.tokens, s.calls = s.tokens + len(new), s.calls + 1


# --- accepting


@torch.no_grad()
def choose(logits: Tensor, draft: Draft, sampler: Sampler) -> list[int]:
    """Extend the sampler's text by the accepted tokens and one more; return these tokens.

    logits (n + 1, V): after the known tokens and each drafted one. Nothing follows an end token or the maximum length.
    """
    log_probs = logits.log_softmax(-1)
    scores = process(logits, [draft.tokens[:n] for n in range(len(logits))], sampler)  # (n + 1, V)
    chosen = verify_greedy(scores, draft.tokens) if is_greedy(sampler.params) else verify(scores, draft, sampler)
    new: list[int] = []
    for token, row in zip(chosen, log_probs, strict=False):
        log_prob = float(row[token])
        best = top_k(row[None], min(sampler.top, len(row)))[1][0].tolist() if sampler.top else []
        tokens, values = [token, *best], [log_prob, *(float(row[one]) for one in best)]
        sampler.advance([NextTokens(tokens, values, values)])
        new.append(token)
        if not sampler.live:
            break
    return new


def process(logits: Tensor, following: Sequence[Sequence[int]], sampler: Sampler) -> Tensor:
    """Return logits (R, V) edited by the sampler's processor: row r comes after its text and the tokens `following[r]`."""
    if sampler.processor.is_identity:
        return logits
    scores, before = logits.clone(), [*sampler.prefix, *sampler.ids]
    sampler.processor.process(scores, [[*before, *tokens] for tokens in following], [sampler.index] * len(following))
    return scores


def verify_greedy(scores: Tensor, tokens: Sequence[int]) -> list[int]:
    """Return the most probable token of each row of scores (n + 1, V), up to the first that is not the drafted one."""
    best = top_k(scores, 1)[1].squeeze(-1).tolist()
    accepted = common_prefix(best, tokens)
    return best[: accepted + 1]


def verify(scores: Tensor, draft: Draft, sampler: Sampler) -> list[int]:
    """Return the accepted tokens and one more, drawn so that each follows the distribution of its row of scores (n + 1, V)."""
    probs = token_probs(scores, sampler.params)  # (n + 1, V)
    for at, token in enumerate(draft.tokens):
        p, q = probs[at], None if draft.probs is None else draft.probs[at].to(probs.device)
        if float(torch.rand(1, generator=sampler.generator)) * (1.0 if q is None else float(q[token])) < float(
            p[token]
        ):
            continue
        left = p.clone() if q is None else (p - q).clamp(min=0)
        if q is None:
            left[token] = 0
        # rounding may leave nothing where p and q are equal
        return [*draft.tokens[:at], draw(left if float(left.sum()) > 0 else p, sampler.generator)]
    return [*draft.tokens, draw(probs[-1], sampler.generator)]


def draw(weights: Tensor, generator: torch.Generator) -> int:
    """Draw an index with probability proportional to its weight, (V,)."""
    heights = weights.double().cumsum(0)  # (V,)
    height = torch.rand(1, generator=generator, dtype=torch.float64).to(heights.device) * heights[-1]
    # the first one above: an index of weight 0 is not higher than the one before
    return min(int(torch.searchsorted(heights, height, right=True)), len(weights) - 1)


def rewind(state: State, length: int) -> State:
    """Return the state after its first `length` tokens. This state must not be used afterwards: the next tokens overwrite the others."""
    earlier = state.first(length)
    assert earlier is not None, "a recurrent state has no earlier tokens"
    for layer in earlier.layers:
        if "cache" in layer:
            layer["cache"].buffer.used = length
    return earlier


# --- drafting


class DraftModel:
    """A smaller network with the same vocabulary, which draws its tokens with the settings of the text.

    context: most tokens that it can read; None = any number.
    """

    def __init__(self, network: Any, context: int | None = None):
        self.network, self.context = network, context
        self.device = next(network.parameters()).device
        self.known: tuple[list[int], State] = [], State()
        """The tokens that it has read, and its state after them."""

    @torch.no_grad()
    def propose(self, ids: Sequence[int], sampler: Sampler, count: int) -> Draft:
        """Draw up to `count` tokens, one call of the network each; fewer where its context is full or the text ends."""
        count = count if self.context is None else min(count, self.context - len(ids) + 1)
        tokens, rows = list[int](), list[Tensor]()
        while len(tokens) < count and not (tokens and tokens[-1] in sampler.eos_ids):
            scores = process(self.logits([*ids, *tokens]), [tokens], sampler)  # (1, V)
            if is_greedy(sampler.params):
                tokens.append(int(top_k(scores, 1)[1]))
            else:
                rows.append(token_probs(scores, sampler.params)[0])
                tokens.append(draw(rows[-1], sampler.generator))
        return Draft(tokens, torch.stack(rows) if rows else None)

    def logits(self, ids: list[int]) -> Tensor:
        """Return the logits after `ids`, (1, V); only what is new since the last call is read."""
        length = common_prefix(self.known[0], ids[:-1])
        new = torch.tensor([ids[length:]], device=self.device)  # (1, T)
        self.known = ids[:length], rewind(self.known[1], length)  # what is read now overwrites the tokens behind them
        hidden, state = self.network.step(new, self.known[1])
        self.known = list(ids), state
        return self.network.head(hidden[:, -1]).float()


class NgramLookup:
    """Proposes what followed the last tokens where they occurred before, in the prompt or in the text (prompt lookup decoding)."""

    def __init__(self, sizes: Sequence[int] = NGRAM_SIZES):
        self.sizes = sizes
        self.ids: list[int] = []
        self.ends: dict[tuple[int, ...], int] = {}
        """n-gram -> index of the token that followed its last occurrence."""

    def propose(self, ids: Sequence[int], sampler: Sampler, count: int) -> Draft:
        """Return the tokens after the last earlier occurrence of the longest n-gram that `ids` ends with; none if there is none."""
        self.index(list(ids))
        at = next((self.ends[key] for n in self.sizes if (key := tuple(ids[-n:])) in self.ends), None)
        if at is None:
            return Draft([])
        text = list(ids)
        for step in range(count):  # beyond the end of the text its repetition goes on
            text.append(text[at + step])
        return Draft(text[len(ids) :])

    def index(self, ids: list[int]) -> None:
        """Add the n-grams that a token follows; a text that does not continue the last one begins anew."""
        if ids[: len(self.ids)] != self.ids:
            self.ids, self.ends = [], {}
        for end in range(max(len(self.ids), 1), len(ids)):
            for n in self.sizes:
                if n <= end:
                    self.ends[tuple(ids[end - n : end])] = end
        self.ids = ids


# --- which models


def check_model(c: ModelConfig, name: str = "the model") -> None:
    """Raise an error for a model that cannot go back to an earlier token of its text."""
    if c.family != "decoder" or c.head != "vocabulary":
        raise QkvError(f"speculative decoding needs a decoder that generates text; {name} is of family {c.family!r}")
    other = [c.recurrent or "", *({*c.mixer} - {"softmax", "window", "compressed"}), "prefix_mask" * c.prefix_mask]
    if any(other):
        raise QkvError(
            f"speculative decoding needs a KV cache, from which rejected tokens can be removed; {name} has "
            f"{', '.join(filter(None, other))}"
        )


def check_vocabulary(c: ModelConfig, tokenizer: Tokenizer | None, draft: ModelConfig, own: Tokenizer | None) -> None:
    """Raise an error if the draft model, with the tokenizer `own`, has a different vocabulary."""
    if c.vocab_size != draft.vocab_size:
        raise QkvError(
            f"the draft model has a vocabulary of {draft.vocab_size:,} tokens, the model one of {c.vocab_size:,}: they must be equal"
        )
    if tokenizer is not None and own is not None and tokenizer.backend.get_vocab() != own.backend.get_vocab():
        raise QkvError("the draft model has a different tokenizer: the ids of its tokens mean other words")


def readable_tokens(c: ModelConfig) -> int | None:
    """Return the most tokens that a model can read; None = any number."""
    return c.max_length if has_fixed_length(c) else None
