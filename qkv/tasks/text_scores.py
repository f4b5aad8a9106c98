"""Probabilities of texts: the chain rule of a decoder, a target given its source, or the pseudo-log-likelihood of a masked model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from qkv.batch import IGNORED, Batch, pad
from qkv.config import ModelConfig
from qkv.errors import QkvError
from qkv.evaluate.metrics import bits_per_byte, perplexity
from qkv.generate.translate import Translator
from qkv.models.inputs import carries
from qkv.parts.heads import ClassesWords, MaskedNext
from qkv.tasks.fill import Filler
from qkv.tasks.images import open_images
from qkv.tasks.losses import token_losses
from qkv.tasks.summary import Summarizer
from qkv.tasks.windows import by_length, encode_texts, windows
from qkv.text.tokenizer import Tokenizer

CHAIN, PSEUDO = "log-probability", "pseudo-log-likelihood"
GROUP = 16
"""Texts are prepared for about so many batches at a time: enough to sort them by length, and little memory."""


@dataclass(frozen=True)
class TextScore:
    """Score of one text under a model."""

    text: str
    measure: str = CHAIN
    """log-probability: sum of log p(token | tokens before it, source); pseudo-log-likelihood: sum of log p(token | all others), which
    is not the log-probability of the text (Salazar et al. 2020)."""
    tokens: list[str] = field(default_factory=list)
    """Scored tokens, as people read them."""
    token_log_probs: list[float] = field(default_factory=list)
    """Natural logarithms."""
    unscored: list[str] = field(default_factory=list)
    """First tokens that are only read: a model without a begin token has no probability for them."""
    bytes: int = 0
    """Bytes of the text if the scored tokens decode to exactly this text, otherwise 0."""
    problem: str = ""
    """Why there is no score."""

    @property
    def log_prob(self) -> float:
        return math.fsum(self.token_log_probs)

    @property
    def perplexity(self) -> float:
        """exp of the mean loss per token."""
        return perplexity(-self.log_prob, max(len(self.tokens), 1))

    @property
    def bits_per_byte(self) -> float | None:
        exact = self.bytes and self.measure == CHAIN
        return bits_per_byte(-self.log_prob, self.bytes) if exact else None

    def to_json(self, tokens: bool = False) -> dict[str, Any]:
        if self.problem or not self.tokens:
            return {"text": self.text, **({"problem": self.problem} if self.problem else {"tokens": 0})}
        found = {"text": self.text, **numbers(self)}
        each = [{"token": token, "log_prob": p} for token, p in zip(self.tokens, self.token_log_probs, strict=True)]
        return found | ({"unscored": self.unscored} if self.unscored else {}) | ({"scores": each} if tokens else {})


def numbers(one: TextScore) -> dict[str, Any]:
    """Return the measures of a score as JSON stores them."""
    pseudo = "pseudo_" if one.measure == PSEUDO else ""
    bits = {} if one.bits_per_byte is None else {"bits_per_byte": one.bits_per_byte}
    return {"measure": one.measure, "log_prob": one.log_prob, "tokens": len(one.tokens),
            f"{pseudo}perplexity": one.perplexity, **bits}  # fmt: skip


def total(scores: Sequence[TextScore]) -> TextScore:
    """Join the scores of several texts; the bytes are known only if they are known for all."""
    good = [one for one in scores if not one.problem and one.tokens]
    n_bytes = sum(one.bytes for one in good) if all(one.bytes for one in good) else 0
    return TextScore("", good[0].measure if good else CHAIN, [token for one in good for token in one.tokens],
                     [p for one in good for p in one.token_log_probs], bytes=n_bytes)  # fmt: skip


@dataclass(frozen=True)
class ScoredRow:
    """One row that the network reads, with the id to predict at each position; IGNORED where none is scored."""

    inputs: Sequence[int]
    targets: Sequence[int]
    source: Sequence[int] | Tensor | None = None
    """Ids of the source, or the pixels of an image (C, H, W)."""

    @property
    def length(self) -> int:
        return max(len(self.inputs), len(self.source) if isinstance(self.source, Sequence) else 0)


@dataclass(frozen=True)
class PreparedText:
    """A text as rows of the network; the targets of all rows, in order, are its scored tokens."""

    rows: list[ScoredRow]
    score: TextScore


class TextScorer:
    """Score texts with a network that predicts tokens; the scores do not depend on the batch."""

    def __init__(
        self, c: ModelConfig, network: nn.Module, source: Tokenizer | None, target: Tokenizer, task: str | None = None
    ):
        if c.head not in ("vocabulary", "masked", "masked-next", "classes-words"):
            raise QkvError(
                f"this model has no probabilities of tokens, its head is {c.head!r}: score texts with a language model, "
                "a translator or a masked model"
            )
        if c.head not in ("masked", "masked-next") and not c.is_causal:
            raise QkvError(
                "this model has no causal mask: it sees the tokens that it predicts, so its probabilities are meaningless"
            )
        self.config, self.network, self.source, self.target = c, network.eval(), source, target
        self.device = next(network.parameters()).device
        self.reader: Any = None
        if c.family == "encoder-decoder" and c.image_size is None and source is not None:
            self.reader = Translator(c, network, source, target)  # type: ignore[arg-type]
        elif c.family == "decoder" and task == "summary":
            self.reader = Summarizer(c, network, target, target)  # type: ignore[arg-type]
        self.needs_source = c.family == "encoder-decoder"
        self.filler = Filler(c, network, target) if c.family == "encoder" else None

    @torch.no_grad()
    def score(self, texts: Sequence[str], sources: Sequence[Any] | None = None, end: bool | None = None,
              batch_tokens: int = 4096) -> list[TextScore]:  # fmt: skip
        """Return the score of each text, in their order; one that cannot be read has the reason in `problem`.

        sources: for an encoder-decoder the source of each text, or the path of its image; for a decoder an optional context, after
            which the text is scored. end: score the end token too; None = only where there is a source and a target.
        """
        if sources is not None and len(sources) != len(texts):
            raise QkvError(f"{len(texts)} texts but {len(sources)} sources: give one for each")
        if self.needs_source and sources is None:
            raise QkvError("this model scores a text given its source: give the sources too")
        if self.filler is not None and sources is not None:
            raise QkvError("a masked model scores a text without a source")
        prepared = (self.prepare(text, None if sources is None else sources[i], end) for i, text in enumerate(texts))
        scores = []
        for group in groups(prepared, GROUP * batch_tokens):
            found = iter(self.run([row for one in group for row in one.rows], batch_tokens))
            for one in group:
                own = [p for _ in one.rows for p in next(found)]
                scores.append(replace(one.score, token_log_probs=own))
        return scores

    def run(self, rows: Sequence[ScoredRow], batch_tokens: int) -> list[list[float]]:
        """Return the log-probabilities of the targets of each row."""
        found: list[list[float]] = [[] for _ in rows]
        for some in by_length([row.length for row in rows], batch_tokens):
            batch = self.collate([rows[i] for i in some]).to(self.device)
            output = self.network(batch)
            head = output.head.words if isinstance(output.head, MaskedNext | ClassesWords) else output.head
            assert batch.targets is not None
            losses = token_losses(replace(output, head=head), batch.targets)
            for i, own in zip(some, losses.split(batch.row_counts.tolist()), strict=True):
                found[i] = (-own.double()).tolist()
        return found

    def collate(self, rows: Sequence[ScoredRow]) -> Batch:
        """Make a batch of rows, padded on the right."""
        c = self.config
        inputs, mask = pad([row.inputs for row in rows], c.pad_id if c.pad_id < c.target_size else 0)  # (B, T)
        targets, _ = pad([row.targets for row in rows], IGNORED)  # (B, T)
        sources: list[Any] = [row.source for row in rows]
        if sources[0] is None:
            return Batch(inputs, mask, targets)
        if isinstance(sources[0], Tensor):
            return Batch(inputs, mask, targets, images=torch.stack(sources))
        source, source_mask = pad(sources, c.pad_id if c.pad_id < c.vocab_size else 0)  # (B, S)
        return Batch(inputs, mask, targets, source, source_mask)

    # --- texts as rows

    def prepare(self, text: str, source: Any, end: bool | None) -> PreparedText:
        """Prepare one text, by the kind of model; an empty one has no rows, and one that cannot be read has a `problem`."""
        if not text.strip():
            return PreparedText([], TextScore(text))
        try:
            if self.filler is not None:
                return self.masked(text, self.filler)
            if self.needs_source or (self.reader is not None and source is not None):
                return self.pair(text, source, True if end is None else end)
            return self.chain(text, source, bool(end))
        except QkvError as error:
            return PreparedText([], TextScore(text, problem=str(error)))

    def chain(self, text: str, context: str | None, end: bool) -> PreparedText:
        """Prepare log p(text) = sum log p(token | tokens before it): rows of a decoder; a long text is several overlapping windows.

        After a context, from which a space separates the text, only the tokens of the text are scored.
        """
        before = (context or "").rstrip()
        whole, given = f"{before} {text.lstrip()}" if before else text, len(before)  # characters before the text
        (encoding,) = encode_texts(self.target, [whole])
        begin = [] if self.config.bos_id is None else [self.config.bos_id]
        ids = [*begin, *encoding.ids, *(self.end_token() if end else [])]
        # tokens that are not scored: the begin token and the context, or the first token
        known = max(len(begin) + sum(last <= given for _, last in encoding.offsets) if given else len(begin), 1)
        scored, own = ids[known:], whole[given:]
        if not scored:
            raise QkvError("one token, and this model has no begin token before it: there is nothing to predict")
        unscored = [] if given else ids[len(begin) : known]
        exact = not unscored and gives_back(self.target, encoding.ids, whole)
        return PreparedText(
            chain_rows(ids, known, self.context()),
            self.named(text, scored, unscored, len(own.encode()) if exact else 0),
        )

    def pair(self, text: str, source: Any, end: bool) -> PreparedText:
        """Prepare log p(text | source): one row of an encoder-decoder, or of a decoder that was trained on such pairs."""
        c = self.config
        (ids,) = self.target.plain([text])
        scored = [*ids, *(self.end_token() if end else [])]
        if not scored:
            raise QkvError("there is no token to score")
        start, read = self.start(source)
        room = c.max_length + 1 - len(start)
        if len(scored) > room:
            raise QkvError(f"{len(scored)} tokens, but this model writes at most {room}: split the text")
        row = ScoredRow([*start, *scored[:-1]], [*[IGNORED] * (len(start) - 1), *scored], read)
        exact = gives_back(self.target, ids, text)
        return PreparedText([row], self.named(text, scored, [], len(text.encode()) if exact else 0))

    def start(self, source: Any) -> tuple[list[int], Sequence[int] | Tensor | None]:
        """Return the tokens before the target, and what the encoder reads (None in a decoder)."""
        c = self.config
        forced = [] if c.forced_id is None else [c.forced_id]
        if c.image_size is not None:
            (image,) = open_images([source], c)  # (C, H, W)
            return [c.first_id or 0, *forced], image
        ids, _ = self.reader.read(source)
        if len(ids) > c.max_length:
            raise QkvError(
                f"the source has {len(ids)} tokens, but this model reads at most {c.max_length}: split the text"
            )
        start, read = self.reader.prompt(ids)
        return [*start, *forced], read

    def masked(self, text: str, filler: Filler) -> PreparedText:
        """Prepare sum log p(token | all other tokens): one row per token, in which it is masked."""
        (encoding,) = encode_texts(self.target, [text])
        begin, end = filler.around
        ids = encoding.ids
        if len(begin) + len(ids) + len(end) > self.config.max_length:
            raise QkvError(f"{len(ids)} tokens, but this model reads at most {self.config.max_length}: split the text")
        rows = []
        for at, token in enumerate(ids):
            inputs = [*begin, *ids[:at], filler.mask or 0, *ids[at + 1 :], *end]
            targets = [IGNORED] * len(inputs)
            targets[len(begin) + at] = token
            rows.append(ScoredRow(inputs, targets))
        return PreparedText(rows, self.named(text, ids, [], 0, PSEUDO))

    def named(
        self, text: str, scored: Sequence[int], unscored: Sequence[int], n_bytes: int, measure: str = CHAIN
    ) -> TextScore:
        """Return the score of a text without its log-probabilities, with its tokens as people read them."""
        show = self.target.display
        return TextScore(text, measure, [show(i) for i in scored], [], [show(i) for i in unscored], n_bytes)

    def end_token(self) -> list[int]:
        """Return the end token, as a list; raise a QkvError if the model has none."""
        if not self.config.eos_ids:
            raise QkvError("this model has no end token")
        return [self.config.eos_ids[0]]

    def context(self) -> int | None:
        """Return the longest row in tokens; None where the state has a fixed size, and so any length is possible."""
        return None if carries(self.config) else self.config.max_length


def groups(texts: Iterable[PreparedText], tokens: int) -> Iterator[list[PreparedText]]:
    """Yield texts in groups of at least `tokens` tokens; a masked model has as many rows as tokens in each text."""
    group, size = [], 0
    for one in texts:
        group.append(one)
        size += sum(row.length for row in one.rows)
        if size >= tokens:
            yield group
            group, size = [], 0
    yield group


def chain_rows(ids: Sequence[int], known: int, most: int | None) -> list[ScoredRow]:
    """Cut a text into rows of at most `most` tokens that overlap by half; every token after the first `known` is scored once."""
    inputs, targets = ids[:-1], [*[IGNORED] * (known - 1), *ids[known:]]
    rows, done = [], 0
    for window in windows(len(inputs), most or len(inputs), max(1, (most or 2) // 2)):
        fresh = [IGNORED if at < done else targets[at] for at in window]
        done = window.stop
        rows.append(ScoredRow(inputs[window.start : window.stop], fresh))
    return [row for row in rows if any(target != IGNORED for target in row.targets)]


def gives_back(tokenizer: Tokenizer, ids: Sequence[int], text: str) -> bool:
    """Whether the tokens decode to exactly this text; many tokenizers put a space before a text."""
    return tokenizer.decode(ids, special=True).removeprefix(" ") == text.removeprefix(" ")
