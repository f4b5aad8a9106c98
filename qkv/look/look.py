"""Look: one input inside one network, with the names of its tokens; each method is one of the files beside this one.

look = model.look("I ate an apple.")
look.attention(layer=1, head=2)        look.lens()        look.attribution("integrated")        look.taps()
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from qkv.batch import Batch
from qkv.config import ModelConfig
from qkv.errors import QkvError
from qkv.look import ablate, attribution, patch, rollout, taps
from qkv.look.answers import WHOLE, Answers, AttentionTo, TokenAnswers
from qkv.look.attention import AttentionMap, attends_before_reading, chosen, looks_at, maps, whole_numbers
from qkv.look.embedding_space import Positions, positions
from qkv.look.heads import HeadStatistics, head_statistics
from qkv.look.lens import Lens, lens
from qkv.look.residual_stream import ResidualStream, layers, residual
from qkv.look.target import Question, chances, measure, of_the_whole, probabilities, question
from qkv.look.walk import Walk, walk
from qkv.models.output import Output

START, NEXT = "(start)", "(next)"
"""Before any token is read, and the token behind the last."""


class Sides(NamedTuple):
    """Names of queries and keys."""

    rows: list[str]
    columns: list[str]
    after: list[str] = []
    """X of rows that are named "after X, predicting Y"."""
    predicting: list[str] = []
    """Y."""


@dataclass(frozen=True)
class Look:
    """One input of a network, ready to be looked into. Tokens, layers and heads count from 0, from the end with a minus."""

    config: ModelConfig
    network: Any
    batch: Batch
    """One row."""
    tokens: list[str]
    """What the network reads, piece by piece; of an encoder-decoder what it writes, as it reads it again: <s> first."""
    source: list[str]
    """The source of an encoder-decoder; else empty."""
    name: Callable[[int], str]
    """An answer's name: the word of an id, the label of a class."""
    place: int | None = None
    """The token at which is asked where none is named: the gap of a text with a gap; None = the last."""
    gap: str = ""
    """How a gap is written, in a model that guesses hidden words."""
    first: int = 0
    """The token from which on it writes: of a decoder that writes a summary behind its text the one that opens it."""

    # --- what it says

    def answers(self, position: int | None = None, k: int = 10, output: Output | None = None) -> Answers:
        """The likeliest next words (classes, tags); `output` is that of the network, where it is known already."""
        with torch.no_grad():
            output = self.network(self.batch) if output is None else output
            ask = self.question(position, output=output)
            found = chances(output, ask.position)[0]  # (n,)
        best = found.topk(min(k, len(found)))
        words = [self.name(i) for i in best.indices.tolist()]
        return Answers(self.at(ask), words, best.values.cpu(), measure(self.network.head))

    def everywhere(self, k: int = 3) -> TokenAnswers:
        """The likeliest answers at every token, of a head that has few of them (tags)."""
        if self.config.head not in ("tags", "replaced", "span"):
            raise QkvError(
                "only a head for tags answers at every token at once: ask at a position, or look through the lens"
            )
        with torch.no_grad():
            found = probabilities(self.network.head, self.network(self.batch).logits)[0]  # (T, n)
        best = found.topk(min(k, found.size(-1)), -1)
        return TokenAnswers(
            self.tokens, [[self.name(i) for i in row] for row in best.indices.tolist()], best.values.cpu()
        )

    def question(self, position: int | None = None, answer: int | None = None, instead: int | None = None,
                 output: Output | None = None) -> Question:  # fmt: skip
        """What is asked of the network: about its own answer at the last token (in the gap), unless said otherwise. A model that
        guesses hidden words is not asked at the end of a text, where none is hidden."""
        position = self.place if position is None else position
        if position is None and self.config.head in ("masked", "masked-next"):
            gap = f"write {self.gap} where a word is missing, or " if self.gap else ""
            raise QkvError(f"there is no gap in this text: {gap}say at which token is asked (--position)")
        return question(self.network, self.batch, position, answer, instead, output)

    def at(self, ask: Question) -> str:
        return WHOLE if ask.position is None else self.tokens[ask.position]

    # --- attention

    def attention(self, layer: int = -1, head: int | Sequence[int] | None = None, kind: str | None = None,
                  rows: Sequence[int] | None = None) -> AttentionMap:  # fmt: skip
        """Exact weights of one layer: all heads or some, all rows or some. `kind`: "encoder", "decoder" or "cross"."""
        (site,) = chosen(self.network, layer, kind, weighs=True)
        own = whole_numbers([head] if isinstance(head, int) else head, site.heads, "head").tolist()
        names = self.sides(site.kind)
        weights = maps(self.network, self.batch, site.layer, site.kind, own, rows)[0].cpu()  # (h, r, S)
        some = whole_numbers(rows, len(names.rows), "row").tolist()
        parts = ([part[i] for i in some] if part else [] for part in (names.rows, names.after, names.predicting))
        named, after, predicting = parts
        return AttentionMap(site.kind, site.layer, own, named, names.columns, weights, after, predicting)

    def sides(self, kind: str) -> Sides:
        """Names of rows and columns. A row of a decoder that reads a source belongs to the token that was read last, but what comes
        of it is the next one: "after X, predicting Y". RNNsearch's query is the state before the last token is read."""
        if kind == "encoder":
            return Sides(self.source, self.source)
        if not self.source:
            return Sides(self.tokens, self.tokens)
        early = kind == "cross" and attends_before_reading(self.network)
        after = [START, *self.tokens[:-1]] if early else self.tokens
        predicting = [*self.tokens[1:], NEXT]
        rows = [f"after {x}, predicting {y}" for x, y in zip(after, predicting, strict=True)]
        return Sides(rows, self.source if kind == "cross" else self.tokens, after, predicting)

    def looks_at(self, row: int, columns: Sequence[int], kind: str | None = None) -> AttentionTo:
        """What one token looks at among some others: "it" at "chicken" and "road", in every layer and head."""
        there = chosen(self.network, None, kind, weighs=True)
        names = self.sides(there[0].kind)
        own = whole_numbers(columns, len(names.columns), "token").tolist()
        weights = looks_at(self.network, self.batch, row, own, kind).cpu()
        return AttentionTo(names.rows[row], [names.columns[i] for i in own], weights, [site.layer for site in there])

    def walk(self, layer: int = -1, head: int = 0, kind: str | None = None) -> Walk:
        """One head step by step: queries, keys, values, scores, mask, weights, output."""
        found = walk(self.network, self.batch, layer, head, kind)
        return replace(found, **self.sides(found.kind)._asdict())

    def heads(self, kind: str | None = None) -> HeadStatistics:
        """Where each head looks on average, on this text."""
        return head_statistics(self.network, self.batch, kind)

    def rollout(self, kind: str | None = None) -> rollout.Rollout:
        """How much of each token is in each vector at the end, all layers together."""
        weights = rollout.rollout(self.network, self.batch, kind)[0].cpu()
        of_image = self.config.image_size is not None and kind != "decoder"
        names = self.tokens if kind == "decoder" or not self.source else self.source
        return rollout.Rollout(names, weights, rollout.on_the_grid(weights) if of_image else None)

    # --- the stream

    def lens(self, k: int = 5, columns: Sequence[int] | None = None) -> Lens:
        """What would be answered after every sublayer, at all tokens or some of them."""
        return lens(self.network, self.batch, self.tokens, self.name, k, columns)

    def hidden(self, source: bool = False) -> list[Tensor]:
        """n + 1 tensors (T, C): the embeddings, what each block gives, the last one after the final norm."""
        with torch.no_grad():
            return [x[0] for x in layers(self.network, self.batch, source)]

    def residual(self, source: bool = False) -> ResidualStream:
        """The stream itself: how long its vectors are at each point, and how far each sublayer turns them."""
        return residual(self.network, self.batch, self.source if source else self.tokens, source)

    def positions(self, length: int = 64, source: bool = False) -> Positions:
        """How order is told: the table of positions and how alike they are; with `source`, on the side that is read."""
        return positions(self.network, length, source)

    def taps(self) -> dict[str, tuple[int, ...]]:
        """Every tap, with the shape of what flows through it."""
        return taps.taps(self.network, self.batch)

    # --- what if

    @contextmanager
    def without(self, heads: Collection[ablate.Head] = (), layers: Collection[int] = (), kind: str | None = None,
                mean_of: Look | None = None) -> Iterator[Look]:  # fmt: skip
        """Within the block these heads and layers are switched off: 0, or their mean over another text."""
        with ablate.without(self.network, heads, layers, kind, None if mean_of is None else mean_of.batch):
            yield self

    def effect_of_heads(self, ask: Question | None = None, kind: str | None = None, layer: int | None = None
                        ) -> ablate.HeadEffects:  # fmt: skip
        """What each head, of one layer or of all, does for an answer: the answer's logit with that head switched off."""
        ask = ask or self.question()
        batch, short = self.up_to(ask)
        found = ablate.effect_of_heads(self.network, batch, short, kind, layer=layer)
        return replace(found, word=self.name(ask.answer))

    def up_to(self, ask: Question) -> tuple[Batch, Question]:
        """The input as far as an answer depends on it, and the question to that: a decoder reads nothing behind its position."""
        ids, mask = self.batch.inputs, self.batch.mask
        if self.config.family == "encoder" or ids is None or ask.position is None:
            return self.batch, ask
        end = ask.position % ids.size(1) + 1
        return replace(self.batch, inputs=ids[:, :end], mask=mask if mask is None else mask[:, :end]), replace(
            ask, position=-1
        )

    def patch(
        self,
        other: Look,
        ask: Question | None = None,
        what: str = "stream",
        source: bool = False,
        position: int | None = None,
    ) -> patch.Sweep:
        """Put what the network thinks of `other` into this run, one place at a time: what moves the answer over?
        Without a question: the logit of the other's answer (at `position`) minus that of this one's (alone, where both answer
        the same)."""
        if ask is None:
            own, others = self.question(position).answer, other.question(position).answer
            ask = self.question(position, others, None if own == others else own)
        columns = self.source if source else self.tokens
        return patch.sweep(self.network, self.batch, other.batch, ask, what, source, columns)

    def attribution(self, method: str = "integrated", positions: Sequence[int] | None = None,
                    asked: Sequence[Question] | None = None, blank: int | None = None) -> attribution.Attribution:  # fmt: skip
        """How much each token did for the answers at some positions (None = the last; of classes, the class). `blank` is the
        token that says nothing; None = padding."""
        if asked is None:
            whole = of_the_whole(self.network.head)
            asked = [self.question(at) for at in (positions if positions is not None and not whole else [None])]
        if not asked:
            raise QkvError("attribution explains an answer: ask for at least one position")
        token = self.config.pad_id if blank is None else blank
        smallest = min(x for x in (self.config.vocab_size or token + 1, self.config.target_size or token + 1))
        if not 0 <= token < smallest:
            raise QkvError(f"the blank token {token} is not in the vocabulary of {smallest} words: give another one")
        scores, differences = attribution.attribute(self.network, self.batch, asked, method, token)
        tokens = [*self.source, *self.tokens]
        return attribution.Attribution(
            method, [self.name(ask.answer) for ask in asked], tokens, len(self.source), scores, differences
        )
