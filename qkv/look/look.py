"""Look: one input of one network with the names of its tokens; each method is one of the analyses in this package.

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
from qkv.look import ablate, attention, attribution, patch, rollout, taps
from qkv.look.answers import WHOLE, Answers, AttentionTo, TokenAnswers
from qkv.look.embedding_space import Positions, positions
from qkv.look.heads import HeadStatistics, head_statistics
from qkv.look.lens import Lens, lens
from qkv.look.residual_stream import ResidualStream, layer_outputs, residual
from qkv.look.target import Target, answers_whole_input, find_target, measure, probabilities, probabilities_at
from qkv.look.walk import Walk, walk
from qkv.models.output import Output

START, NEXT = "(start)", "(next)"
"""Names of the state before the first token, and of the token after the last."""


class Sides(NamedTuple):
    """Names of queries and keys."""

    rows: list[str]
    columns: list[str]
    after: list[str] = []
    """X of rows that are named "after X, predicting Y"."""
    predicting: list[str] = []
    """Y of these rows."""


@dataclass(frozen=True)
class Look:
    """One input of a network. Tokens, layers and heads are numbered from 0; negative numbers count from the end."""

    config: ModelConfig
    network: Any
    batch: Batch
    """A batch of one row."""
    tokens: list[str]
    """Input tokens; of an encoder-decoder the decoder's input: <s>, then the target."""
    source: list[str]
    """Source tokens of an encoder-decoder; otherwise empty."""
    name: Callable[[int], str]
    """The name of an answer: the word of an id, the label of a class."""
    place: int | None = None
    """The default position: the mask token of a masked language model; None = the last token."""
    gap: str = ""
    """The mask token of a masked language model, as text."""
    first: int = 0
    """The first generated position; in a decoder that appends a summary to its text, the separator."""

    # --- predictions

    def answers(self, position: int | None = None, k: int = 10, output: Output | None = None) -> Answers:
        """Return the most probable next words (classes, tags); `output` is the network's output, where it is known already."""
        with torch.no_grad():
            output = self.network(self.batch) if output is None else output
            target = self.target(position, output=output)
            found = probabilities_at(output, target.position)[0]  # (n,)
        best = found.topk(min(k, len(found)))
        words = [self.name(i) for i in best.indices.tolist()]
        return Answers(self.at(target), words, best.values.cpu(), measure(self.network.head))

    def token_answers(self, k: int = 3) -> TokenAnswers:
        """Return the most probable answers at every token, for a head with few answers (tags)."""
        if self.config.head not in ("tags", "replaced", "span"):
            raise QkvError("this model does not label each token: choose a position, or use the logit lens")
        with torch.no_grad():
            found = probabilities(self.network.head, self.network(self.batch).logits)[0]  # (T, n)
        best = found.topk(min(k, found.size(-1)), -1)
        words = [[self.name(i) for i in row] for row in best.indices.tolist()]
        return TokenAnswers(self.tokens, words, best.values.cpu())

    def target(self, position: int | None = None, answer: int | None = None, contrast: int | None = None,
                 output: Output | None = None) -> Target:  # fmt: skip
        """Return the target to explain: by default the network's own answer at the last token, or at the mask token. A masked
        language model has no default in a text without a mask token."""
        position = self.place if position is None else position
        if position is None and self.config.head in ("masked", "masked-next"):
            gap = f"put {self.gap} in place of a word, or " if self.gap else ""
            raise QkvError(f"this text has no mask token: {gap}choose a token with --position")
        return find_target(self.network, self.batch, position, answer, contrast, output)

    def at(self, target: Target) -> str:
        return WHOLE if target.position is None else self.tokens[target.position]

    # --- attention

    def attention(self, layer: int = -1, head: int | Sequence[int] | None = None, kind: str | None = None,
                  rows: Sequence[int] | None = None) -> attention.AttentionMap:  # fmt: skip
        """Return the exact weights of one layer, of all or some heads and rows. `kind`: "encoder", "decoder" or "cross"."""
        (site,) = attention.select_sites(self.network, layer, kind, weighs=True)
        own = attention.to_index([head] if isinstance(head, int) else head, site.heads, "head").tolist()
        names = self.sides(site.kind)
        maps = attention.attention_maps(self.network, self.batch, site.layer, site.kind, own, rows)  # (1, h, r, S)
        some = attention.to_index(rows, len(names.rows), "row").tolist()
        parts = ([part[i] for i in some] if part else [] for part in (names.rows, names.after, names.predicting))
        named, after, predicting = parts
        weights = maps[0].cpu()
        return attention.AttentionMap(site.kind, site.layer, own, named, names.columns, weights, after, predicting)

    def sides(self, kind: str) -> Sides:
        """Return the names of rows and columns. A row of a decoder with a source has read X and predicts the next token Y: "after
        X, predicting Y". RNNsearch's query is the state before the last token is read."""
        if kind == "encoder":
            return Sides(self.source, self.source)
        if not self.source:
            return Sides(self.tokens, self.tokens)
        early = kind == "cross" and attention.queries_before_reading(self.network)
        after = [START, *self.tokens[:-1]] if early else self.tokens
        predicting = [*self.tokens[1:], NEXT]
        rows = [f"after {x}, predicting {y}" for x, y in zip(after, predicting, strict=True)]
        return Sides(rows, self.source if kind == "cross" else self.tokens, after, predicting)

    def attention_to(self, row: int, columns: Sequence[int], kind: str | None = None) -> AttentionTo:
        """Return the attention of one token to some others ("it" to "chicken" and "road"), in every layer and head."""
        there = attention.select_sites(self.network, None, kind, weighs=True)
        names = self.sides(there[0].kind)
        own = attention.to_index(columns, len(names.columns), "token").tolist()
        weights = attention.weights_between(self.network, self.batch, row, own, kind).cpu()
        return AttentionTo(names.rows[row], [names.columns[i] for i in own], weights, [site.layer for site in there])

    def walk(self, layer: int = -1, head: int = 0, kind: str | None = None) -> Walk:
        """Return one head step by step: queries, keys, values, scores, mask, weights, output."""
        found = walk(self.network, self.batch, layer, head, kind)
        return replace(found, **self.sides(found.kind)._asdict())

    def heads(self, kind: str | None = None) -> HeadStatistics:
        """Return where each head attends on average over this text."""
        return head_statistics(self.network, self.batch, kind)

    def rollout(self, kind: str | None = None) -> rollout.Rollout:
        """Return how much of each input token is in each final vector, through all layers."""
        weights = rollout.rollout(self.network, self.batch, kind)[0].cpu()
        of_image = self.config.image_size is not None and kind != "decoder"
        names = self.tokens if kind == "decoder" or not self.source else self.source
        return rollout.Rollout(names, weights, rollout.patch_grid(weights) if of_image else None)

    # --- the residual stream

    def lens(self, k: int = 5, columns: Sequence[int] | None = None) -> Lens:
        """Return the answer that the head gives after every sublayer, at all tokens or some of them."""
        return lens(self.network, self.batch, self.tokens, self.name, k, columns)

    def hidden(self, source: bool = False) -> list[Tensor]:
        """Return n + 1 tensors (T, C): the embeddings and the output of each block, the last one after the final norm."""
        with torch.no_grad():
            return [x[0] for x in layer_outputs(self.network, self.batch, source)]

    def residual(self, source: bool = False) -> ResidualStream:
        """Return the length of the residual vectors at each point, and how far each sublayer turns them."""
        return residual(self.network, self.batch, self.source if source else self.tokens, source)

    def positions(self, length: int = 64, source: bool = False) -> Positions:
        """Return the position vectors and their similarity; with `source`, those of the encoder."""
        return positions(self.network, length, source)

    def taps(self) -> dict[str, tuple[int, ...]]:
        """Return every tap with the shape of its tensor."""
        return taps.taps(self.network, self.batch)

    # --- interventions

    @contextmanager
    def without(self, heads: Collection[ablate.Head] = (), layers: Collection[int] = (), kind: str | None = None,
                mean_of: Look | None = None) -> Iterator[Look]:  # fmt: skip
        """Ablate these heads and layers within the block: 0, or their mean over another text."""
        with ablate.without(self.network, heads, layers, kind, None if mean_of is None else mean_of.batch):
            yield self

    def effect_of_heads(self, target: Target | None = None, kind: str | None = None, layer: int | None = None
                        ) -> ablate.HeadEffects:  # fmt: skip
        """Return the target with each head ablated in turn, in one layer or in all."""
        target = target or self.target()
        batch, short = self.up_to(target)
        found = ablate.effect_of_heads(self.network, batch, short, kind, layer=layer)
        return replace(found, word=self.name(target.answer))

    def up_to(self, target: Target) -> tuple[Batch, Target]:
        """Return the input as far as the target depends on it: a decoder reads nothing after its position."""
        ids, mask, c = self.batch.inputs, self.batch.mask, self.config
        if c.family == "encoder" or not c.is_causal or ids is None or target.position is None:
            return self.batch, target
        end = target.position % ids.size(1) + 1
        if c.prefix_mask and c.first_id not in ids[0, :end].tolist():  # within the source, which is read as a whole
            return self.batch, target
        start = replace(self.batch, inputs=ids[:, :end], mask=None if mask is None else mask[:, :end])
        return start, replace(target, position=-1)

    def patch(self, other: Look, target: Target | None = None, what: str = "stream", source: bool = False,
              position: int | None = None) -> patch.Sweep:  # fmt: skip
        """Patch activations of `other` into this run, one place at a time, and measure how far the target follows.
        Default target: the logit of the other's answer (at `position`) minus that of this one's (alone, where both are the
        same)."""
        if target is None:
            own, others = self.target(position).answer, other.target(position).answer
            target = self.target(position, others, None if own == others else own)
        columns = self.source if source else self.tokens
        return patch.sweep(self.network, self.batch, other.batch, target, what, source, columns)

    def attribution(self, method: str = "integrated", positions: Sequence[int] | None = None,
                    targets: Sequence[Target] | None = None, blank: int | None = None) -> attribution.Attribution:  # fmt: skip
        """Return how much each token contributed to the answers at some positions (None = the last; of classes, the class).
        `blank` is the token of the baseline input; None = padding."""
        if targets is None:
            whole = answers_whole_input(self.network.head)
            targets = [self.target(at) for at in (positions if positions is not None and not whole else [None])]
        if not targets:
            raise QkvError("attribution explains an answer: give at least one position")
        token = self.config.pad_id if blank is None else blank
        smallest = min(self.config.vocab_size or token + 1, self.config.target_size or token + 1)
        if not 0 <= token < smallest:
            raise QkvError(f"the blank token {token} is not in the vocabulary: choose an id from 0 to {smallest - 1}")
        scores, differences = attribution.attribute(self.network, self.batch, targets, method, token)
        names, tokens = [self.name(target.answer) for target in targets], [*self.source, *self.tokens]
        return attribution.Attribution(method, names, tokens, len(self.source), scores, differences)
