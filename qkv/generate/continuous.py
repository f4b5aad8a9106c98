"""Continuous batching: texts join a running batch between two steps, and leave it at the step at which they end.

No row sees another, so a text becomes what it would become alone, whoever comes and goes. A beam search over a fixed batch
(beam.py) is the case in which nobody joins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from qkv.batch import Batch
from qkv.data.translation import padded
from qkv.generate.hypotheses import Beam, Continuations, Hypothesis, Sentence
from qkv.generate.logits_processor import Rules
from qkv.generate.sampling import Sampling, best, choose, seeded
from qkv.generate.search import FREE, GREEDY, Writer, last_real
from qkv.parts.state import State

PADDED = 8
"""Once 1 / PADDED of all places hold no token of any text, because the longest ones have gone, the state is cut. Cutting copies
it; padding costs memory and work at every step: with 1 / 2 a busy batch held nearly twice what its texts needed."""


class Step(NamedTuple):
    """A token that was written, its log-probability, and the likeliest ones that could have stood there."""

    token: int
    log_prob: float
    top: list[tuple[int, float]]


class Body(Protocol):
    """What decides how a text goes on: Sentence, a beam, or Drawn."""

    @property
    def live(self) -> list[Hypothesis]: ...

    def advance(self, rows: Sequence[Continuations]) -> list[int]: ...


class Drawn:
    """A text of one row: the likeliest token each time, or a draw from a stream of random numbers of its own."""

    def __init__(self, longest: int, ends: Sequence[int], how: Sampling = GREEDY, seed: int = 0, top: int = 0):
        self.longest, self.ends, self.how, self.top = longest, ends, how, top
        (self.stream,) = seeded(seed, 1)
        self.live = [Hypothesis([], [])]
        self.steps: list[Step] = []
        """All that was written so far, its end token included."""

    def advance(self, rows: Sequence[Continuations]) -> list[int]:
        """One token further, the first of its row; the others of it are those that could have stood there."""
        token, *tokens = rows[0].tokens
        log_prob, *log_probs = rows[0].log_probs
        self.steps.append(Step(token, log_prob, list(zip(tokens, log_probs, strict=True))[: self.top]))
        going = token not in self.ends and len(self.steps) < self.longest
        self.live = [Hypothesis([step.token for step in self.steps], [])] if going else []
        return [0] if going else []


@dataclass(eq=False)
class Text:
    """One text of a batch."""

    body: Sentence | Drawn
    rules: Rules = FREE
    number: int = 0
    """Which of the rules' prefixes is its own."""
    given: Sequence[int] = ()
    """Its first tokens, where they were read with the prompt: penalties count them as written."""

    @property
    def live(self) -> list[Hypothesis]:
        return self.body.live

    @property
    def rows(self) -> int:
        """The most rows that it can take."""
        return self.body.beam.size if isinstance(self.body, Sentence) else 1

    def together(self, other: Text) -> bool:
        """Whether the next tokens of both can be chosen in one go."""
        a, b = self.body, other.body
        if isinstance(a, Drawn) or isinstance(b, Drawn):
            alike = isinstance(a, Drawn) and isinstance(b, Drawn) and a.how == b.how
        else:
            alike = a.count == b.count
        return alike and (self.rules is other.rules or self.rules == other.rules)


@dataclass
class Continuous:
    """A running batch of N texts with K rows each, which the network computes together."""

    network: Writer
    going: list[Text] = field(default_factory=list)
    width: int = 1
    """K: a text with fewer live beginnings fills its rows with copies that nobody looks at."""
    state: State = field(default_factory=State)
    last: Tensor = field(default_factory=lambda: torch.empty(0))
    """(N * K, C): the vector of each row's last token, from which the next one is chosen."""

    @torch.no_grad()
    def join(self, batch: Batch, texts: Sequence[Text]) -> None:
        """Read what is known of some texts, a row of the batch each, and take them in."""
        assert batch.inputs is not None
        hidden, state = self.network.step(batch.inputs, self.network.start(batch), batch.mask)  # (B, T, C)
        width = max(len(text.live) for text in [*self.going, *texts])
        rows = torch.arange(len(texts), device=hidden.device).repeat_interleave(width)
        last, state = last_real(hidden, batch.mask)[rows], state.move(rows)  # (B * K, C)
        if self.going:
            self.move(range(len(self.going)), [list(range(len(text.live))) for text in self.going], width)
            last, state = torch.cat([self.last, last]), self.state.join(state)
        self.last, self.state, self.width = last, state, width
        self.going += texts

    @torch.no_grad()
    def step(self) -> list[Text]:
        """One token more for every text; those that end with it leave, and are given back."""
        # only the last vector goes through the head: the vocabulary is the widest matrix of all
        scores = self.network.head.log_probs(self.last)  # type: ignore[operator]  # (N * K, V)
        before, moves = self.going, self.advance(scores)
        kept = [at for at, text in enumerate(before) if text.live]
        if not self.keep(kept, [moves[at] for at in kept]):
            return before
        written = [token for text in self.going for token in filled([h.ids[-1] for h in text.live], self.width)]
        hidden, self.state = self.network.step(torch.tensor(written, device=scores.device)[:, None], self.state)
        self.last = hidden[:, -1]
        return [text for text in before if not text.live]

    @torch.no_grad()
    def drop(self, texts: Sequence[Text]) -> None:
        """Let some go that nobody waits for any more."""
        kept = [at for at, text in enumerate(self.going) if text not in texts]
        if len(kept) < len(self.going):
            self.keep(kept, [list(range(len(self.going[at].live))) for at in kept])

    # --- which tokens

    def advance(self, scores: Tensor) -> list[list[int]]:
        """The next token of every text; which of its rows each of its new beginnings goes on from."""
        moves: list[list[int]] = [[] for _ in self.going]
        for places in self.alike():
            rows = [at * self.width + k for at in places for k in range(len(self.going[at].live))]
            own = scores if len(rows) == len(scores) else scores[rows]
            texts = [self.going[at] for at in places]
            # a penalty on what is drawn needs the logits: the log-probabilities have lost their signs
            penalised = texts[0].rules.reweigh and isinstance(texts[0].body, Drawn)
            logits = self.network.head(self.last[rows]).float() if penalised else None  # type: ignore[operator]  # (R, V)
            for at, found in zip(places, continuations(own, texts, logits), strict=True):
                moves[at] = self.going[at].body.advance(found)
        return moves

    def alike(self) -> list[list[int]]:
        """The places of the texts, those together whose tokens are chosen in the same way."""
        groups: list[list[int]] = []
        for at, text in enumerate(self.going):
            own = next((group for group in groups if text.together(self.going[group[0]])), None)
            groups += [[at]] if own is None else []
            if own is not None:
                own.append(at)
        return groups

    # --- which rows

    def keep(self, kept: Sequence[int], origins: Sequence[list[int]]) -> bool:
        """Only these texts go on, each from some of its rows; whether there are any."""
        if not kept:
            self.going, self.state, self.last = [], State(), torch.empty(0)
            return False
        self.move(kept, origins, max(map(len, origins)))
        if len(kept) < len(self.going):
            self.going = [self.going[at] for at in kept]
            if self.state.padding > self.state.length // PADDED:
                self.state = self.state.trimmed()
        return True

    def move(self, kept: Sequence[int], origins: Sequence[list[int]], width: int) -> None:
        rows = [
            at * self.width + origin for at, own in zip(kept, origins, strict=True) for origin in filled(own, width)
        ]
        if rows == list(range(len(self.last))):  # as with drawn texts of which none has ended
            return
        stay = None if len(kept) == len(self.going) else torch.tensor(kept, device=self.last.device)
        index = torch.tensor(rows, device=self.last.device)
        self.last, self.state, self.width = self.last[index], self.state.move(index, stay), width


def filled(own: list[int], width: int) -> list[int]:
    """`width` entries; a text with fewer rows repeats its first."""
    return own + own[:1] * (width - len(own))


def continuations(log_probs: Tensor, texts: Sequence[Text], logits: Tensor | None = None) -> list[list[Continuations]]:
    """For each live beginning of each of these texts, which are all alike, the tokens that may follow it; of a drawn text
    the one that does, and those that could. The rules edit the logits where they are given, else the log-probabilities, both
    (R, V)."""
    rules = texts[0].rules
    scores = logits if logits is not None else log_probs.clone() if rules.reweigh else log_probs
    if not rules.idle:
        written = [[*t.given, *h.ids] if t.given else h.ids for t in texts for h in t.live]
        rules.apply(scores, written, [t.number for t in texts for _ in t.live])
    first = texts[0].body
    if isinstance(first, Drawn):
        tokens, gains = drawn(scores, log_probs, [text.body for text in texts if isinstance(text.body, Drawn)])
    else:
        gains, tokens = best(scores, first.count)  # (R, count)
    own = log_probs.gather(-1, tokens) if rules.reweigh else gains
    found = iter([Continuations(*row) for row in zip(tokens.tolist(), gains.tolist(), own.tolist(), strict=True)])
    rows = [[next(found) for _ in text.live] for text in texts]
    wish(scores, log_probs, texts, rows)
    return rows


def drawn(scores: Tensor, log_probs: Tensor, texts: Sequence[Drawn]) -> tuple[Tensor, Tensor]:
    """The chosen token of each row and behind it the likeliest ones, as many as anybody asked for: ids and log-probabilities,
    (R, 1 + top)."""
    ids = choose(scores, texts[0].how, [text.stream for text in texts])[:, None]  # (R, 1)
    most = min(max(text.top for text in texts), scores.size(-1))
    if most:
        ids = torch.cat([ids, best(log_probs, most)[1]], 1)
    return ids, log_probs.gather(-1, ids)


def wish(scores: Tensor, log_probs: Tensor, texts: Sequence[Text], rows: list[list[Continuations]]) -> None:
    """Add the tokens that bring a constraint of a beam nearer, even where they are not among the best."""
    at = 0
    for text, own in zip(texts, rows, strict=True):
        for index, token in text.body.wishes() if isinstance(text.body, Sentence) else ():
            own[index].tokens.append(token)
            own[index].gains.append(scores[at + index, token].item())
            own[index].log_probs.append(log_probs[at + index, token].item())
        at += len(own)


def opened(inputs: Sequence[list[int]], sources: Sequence[list[int]] = (), pad_id: int = 0) -> Batch:
    """What is known of some texts as a batch: what they begin with is padded on the left, where it can be cut off once the
    longer ones have gone, their sources on the right."""
    ids, mask = (table.flip(1) for table in padded([row[::-1] for row in inputs], pad_id))  # (B, T) each
    own = None if mask.all() else mask
    if not sources:
        return Batch(ids, own)
    source, real = padded(sources, pad_id)  # (B, S) each
    return Batch(ids, own, source=source, source_mask=None if real.all() else real)


def text_of(how: Sampling | Beam, longest: int, ends: Sequence[int], rules: Rules = FREE, seed: int = 0, top: int = 0,
            given: Sequence[int] = ()) -> Text:  # fmt: skip
    """A text that is searched for with a beam, or drawn."""
    body = Sentence(how, longest, ends) if isinstance(how, Beam) else Drawn(longest, ends, how, seed, top)
    return Text(body, rules, given=given)
