"""Translator: encode texts, batch them by length, search with a beam, decode, and return the translations in the order of the texts.

A text that cannot be translated does not affect the others: its translation is empty, with the reason in `problem`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch

from qkv.batch import Batch, pad
from qkv.config import ModelConfig
from qkv.errors import QkvError
from qkv.generate.alignment import Link, Span, attention, links, taps, token_spans, words_at
from qkv.generate.beam import BeamParams
from qkv.generate.continuous_batching import GenerativeNetwork
from qkv.generate.logits_processor import LogitsProcessor
from qkv.generate.parallel import MIN_SHARE, REFILL_ROWS, TextQueue, decode_queue
from qkv.generate.search import make_searches
from qkv.generate.sequence import Hypothesis
from qkv.text.tokenizer import Tokenizer, in_words

Alignment = list[Link] | None


@dataclass(frozen=True)
class Translation:
    """One translation of one text, and in `n_best` all requested ones, itself the first."""

    text: str
    score: float = 0.0
    """log_prob / length^penalty (or as the length formula says), the end token counted."""
    log_prob: float = 0.0
    """Natural logarithm of the probability that the model gives this text."""
    tokens: list[str] = field(default_factory=list)
    token_log_probs: list[float] = field(default_factory=list)
    """One per token; their sum is log_prob."""
    alignment: Alignment = None
    """(source word, target word) pairs, if requested; words are separated by spaces and counted from 0."""
    n_best: list[Translation] = field(default_factory=list)
    problem: str = ""
    """Why there is no translation."""


BEAM = BeamParams()
MIN_WIDTH = 256
"""Width of a network from which on a second thread makes a single text faster."""


@dataclass(frozen=True)
class TranslationParams:
    """Settings of a translation. `prefixes` and `constraints` are per text, or empty."""

    beam: BeamParams = BEAM
    max_length: int | None = None
    """Longest translation in tokens; None = twice the source and 20 more."""
    min_length: int = 0
    """Shortest translation in tokens, the end token counted."""
    no_repeat_ngram: int = 0
    repetition_penalty: float = 1.0
    prefixes: Sequence[str] = ()
    """Text that each translation begins with."""
    constraints: Sequence[Sequence[str]] = ()
    """Words or phrases that must occur in each translation."""
    forced_end: bool = False
    """End a translation that reaches its maximum length with the end token; otherwise it is cut."""
    alignments: bool = False
    alignment_layer: int | None = None
    """Layer of the decoder that alignments are read from; None = the mean of the upper half."""
    batch_tokens: int = 2048
    """Source tokens per batch, padding included."""
    extra_length: int | None = None
    """Maximum length relative to the source, in tokens, end tokens counted; with max_length, the smaller bound applies."""

    def __post_init__(self) -> None:
        if self.batch_tokens < 1 or (self.max_length is not None and self.max_length < 1):
            raise QkvError("batch_tokens and max_length are counts of tokens, 1 or more")
        if self.extra_length is not None and self.extra_length < 0:
            raise QkvError(f"extra_length is a count of tokens, 0 or more, given {self.extra_length}")


@dataclass(frozen=True)
class EncodedText:
    """A text to translate, in tokens, with the prefix and the constraints of its translation."""

    index: int
    text: str
    source: list[int]
    spans: list[Span]
    """Characters of `text` that each source token stands for; none for special tokens."""
    prefix: list[int]
    phrases: list[list[int]]


class Translator:
    """An encoder-decoder with the tokenizers of its two sides, or a decoder that reads source </s> <s> and continues.

    `network` may be packed. A source of more than `max_source` tokens is not translated: truncating it would lose text
    silently.
    """

    def __init__(self, config: ModelConfig, network: GenerativeNetwork, source: Tokenizer, target: Tokenizer):
        if config.family == "encoder" or config.image_size is not None or config.head != "vocabulary":
            raise QkvError(
                "translating needs an encoder-decoder or decoder of words, this is a model of family "
                f"{config.family!r} with head {config.head!r}"
            )
        if config.first_id is None or not config.eos_ids:
            raise QkvError(
                "this model does not say which tokens open and end a text: set bos_id (or start_id) and eos_id"
            )
        self.config, self.network, self.source, self.target = config, network, source, target
        self.one_row = config.family == "decoder"
        """Whether source and target are one sequence."""
        self.max_source = config.max_length // 2 if self.one_row else config.max_length
        """Longest source in tokens, with its end token; a decoder needs as much room for the target."""

    @cached_property
    def suppressed(self) -> tuple[int, ...]:
        """Tokens that no target text contains."""
        return suppressed_tokens(self.config)

    def translate(self, texts: Sequence[str], params: TranslationParams) -> list[Translation]:
        """Translate each text; return the translations in the same order."""
        for name, given in (("prefixes", params.prefixes), ("constraints", params.constraints)):
            if given and len(given) != len(texts):
                raise QkvError(f"{len(texts)} texts but {len(given)} {name}: give one per text")
        if params.alignments:
            taps(self.network, params.alignment_layer)  # a model without cross-attention is an error before any work
        found: dict[int, Translation] = {}
        encoded: list[EncodedText] = []
        for index, text in enumerate(texts):
            try:
                one = self.encode(index, text, params)
            except QkvError as error:
                found[index] = Translation("", problem=str(error))
            else:
                encoded += [] if one is None else [one]
        encoded.sort(key=lambda one: len(one.source))
        hypotheses = self.search(encoded, params)
        alignments: list[list[Alignment]] = [[None] * len(own) for own in hypotheses]
        if params.alignments:
            alignments = self.align_all(encoded, hypotheses, params)
        for one, own, aligned in zip(encoded, hypotheses, alignments, strict=True):
            found[one.index] = with_n_best(list(map(self.decode, own, aligned)))
        return [found.get(index, Translation("")) for index in range(len(texts))]

    def encode(self, index: int, text: str, params: TranslationParams) -> EncodedText | None:
        """Encode a text and its prefix and constraints as tokens; None if the text is empty."""
        if not isinstance(text, str):
            raise QkvError(f"a text is a string, given {type(text).__name__}")
        if not text.strip():
            return None
        source, spans = self.read(text)
        if len(source) > self.max_source:
            raise QkvError(f"{len(source)} tokens, but this model reads at most {self.max_source}: split the text")
        prefix = (
            self.target.plain([params.prefixes[index].strip()])[0] if params.prefixes and params.prefixes[index] else []
        )
        phrases = [
            ids
            for phrase in (params.constraints[index] if params.constraints else ())
            if (ids := self.encode_phrase(phrase))
        ]
        needed, room = (
            (self.config.forced_id is not None) + len(prefix) + sum(map(len, phrases)) + 1,
            self.max_tokens(source, params),
        )
        if needed > room:
            raise QkvError(
                f"prefix and constraints take {needed} tokens, a translation has at most {room}: raise max_length"
            )
        return EncodedText(index, text, source, spans, prefix, phrases)

    def read(self, text: str) -> tuple[list[int], list[Span]]:
        """Return ids that end with an end token, and the characters (start, end) of each.

        Special tokens in the text, such as "</s>", are read as plain text. An end token that the tokenizer does not add itself is
        added here, as in training.
        """
        with in_words():
            encoding = self.source.literal.encode(text)
            if self.one_row or not encoding.ids or encoding.ids[-1] not in self.config.eos_ids:
                encoding = self.source.literal.encode(text, add_special_tokens=False)
        ids, spans = list(encoding.ids), list(encoding.offsets)
        if max(ids, default=0) >= self.config.vocab_size:
            raise QkvError("the tokenizer gives ids that this model does not have: they do not belong together")
        if not ids or ids[-1] not in self.config.eos_ids:
            ids, spans = [*ids, self.config.eos_ids[0]], [*spans, (0, 0)]
        return ids, spans

    def encode_phrase(self, phrase: str) -> list[int]:
        """Return the tokens that a phrase has inside a text, after a space; at the start of a text they may differ."""
        before, both = self.target.plain(["a", "a " + phrase.strip()])
        own = both[len(before) :] if both[: len(before)] == before else self.target.plain([phrase.strip()])[0]
        return own[1:] if len(own) > 1 and not self.target.decode(own[:1]).strip() else own

    def max_tokens(self, source: Sequence[int], params: TranslationParams) -> int:
        """Return the length limit, which depends on the text alone: a translation is the same in any batch."""
        bounds = [] if params.max_length is None else [params.max_length]
        bounds += [] if params.extra_length is None else [len(source) + params.extra_length]
        room = self.config.max_length - (len(source) if self.one_row else 0)
        return min(*(bounds or [2 * len(source) + 20]), room)

    def search(self, texts: Sequence[EncodedText], params: TranslationParams) -> list[list[Hypothesis]]:
        """Return the hypotheses of each text, the shortest text first; on a CPU, one batch per thread is computed at a time."""
        limits = [self.max_tokens(one.source, params) for one in texts]
        processor = self.processor(params, [one.prefix for one in texts], limits if params.forced_end else ())
        phrases = [one.phrases for one in texts]
        searches = make_searches(limits, self.config.eos_ids, params.beam, processor, phrases)
        device, small = next(self.network.parameters()).device, self.config.d_model < MIN_WIDTH
        batches = min(torch.get_num_threads(), -(-len(texts) // MIN_SHARE)) if device.type == "cpu" else 1
        queue = TextQueue([len(one.source) for one in texts], params.batch_tokens, params.beam.size, max(batches, 1),
                          0 if small else REFILL_ROWS)  # fmt: skip
        make_batch = lambda some: self.make_batch(texts[some.start : some.stop]).to(device)  # noqa: E731
        decode_queue(self.network, queue, make_batch, searches, small)
        return [each.results() for each in searches]

    def processor(self, params: TranslationParams, prefixes: Sequence[list[int]] = (), end_at: Sequence[int] = ()
                  ) -> LogitsProcessor:  # fmt: skip
        """Make the logits processor of translations; `end_at`: length at which each must end."""
        c = self.config
        return LogitsProcessor(c.eos_ids, self.suppressed, params.min_length, params.no_repeat_ngram,
                               params.repetition_penalty, prefixes=prefixes if any(prefixes) else (),
                               forced_first=() if c.forced_id is None else (c.forced_id,), forced_end_at=end_at)  # fmt: skip

    def prompt(self, source: list[int]) -> tuple[list[int], list[int] | None]:
        """Return the first decoder tokens and the encoder's source; a decoder-only model reads both in one row (source None)."""
        first = self.config.first_id or 0
        return ([*source, first], None) if self.one_row else ([first], source)

    def make_batch(self, texts: Sequence[EncodedText]) -> Batch:
        """Return the prompts of several texts as a batch."""
        c = self.config
        if self.one_row:
            return Batch(*pad([self.prompt(one.source)[0] for one in texts], c.pad_id))
        source, mask = pad([one.source for one in texts], c.pad_id if c.pad_id < c.vocab_size else 0)
        inputs = source.new_full((len(texts), 1), c.first_id or 0)
        return Batch(inputs, source=source, source_mask=mask)

    def decode(self, h: Hypothesis, alignment: Alignment = None) -> Translation:
        """Turn a hypothesis into text."""
        text = self.target.decode(h.ids[:-1] if h.ended else h.ids)
        tokens = [self.target.backend.id_to_token(token) or "" for token in h.ids]
        return Translation(text, h.score, h.log_prob, tokens, h.log_probs, alignment)

    def align_all(self, texts: Sequence[EncodedText], found: list[list[Hypothesis]], params: TranslationParams
                  ) -> list[list[Alignment]]:  # fmt: skip
        """Align the words of all hypotheses, in batches of texts of similar length."""
        alignments: dict[int, list[Alignment]] = {}
        own = dict(zip((one.index for one in texts), found, strict=True))
        for some in make_batches(texts, params.batch_tokens, len(texts)):
            batch = self.make_batch(some).to(next(self.network.parameters()).device)
            aligned = self.align(some, [own[one.index] for one in some], batch, params)
            alignments.update(zip((one.index for one in some), aligned, strict=True))
        return [alignments[one.index] for one in texts]

    def align(self, texts: Sequence[EncodedText], found: list[list[Hypothesis]], batch: Batch, params: TranslationParams
              ) -> list[list[Alignment]]:  # fmt: skip
        """Align the words of every hypothesis, by one more pass over source and target."""
        assert batch.source is not None
        pairs = [(row, h) for row, own in enumerate(found) for h in own]
        rows = batch.source.new_tensor([row for row, _ in pairs])
        inputs, mask = pad([[self.config.first_id or 0, *h.ids[:-1]] for _, h in pairs], 0)
        source_mask = None if batch.source_mask is None else batch.source_mask[rows]
        forced = replace(Batch(inputs, mask).to(rows.device), source=batch.source[rows], source_mask=source_mask)
        weights = attention(self.network, forced, params.alignment_layer)  # (hypotheses, T, S)
        result: list[list[Alignment]] = [[] for _ in found]
        for (row, h), own in zip(pairs, weights, strict=True):
            ids = h.ids[:-1] if h.ended else h.ids
            source = words_at(texts[row].text, texts[row].spans)
            target = words_at(self.target.decode(ids), token_spans(ids, self.target))
            result[row].append(links(own[: len(ids), : len(source)], source, target))
        return result


def suppressed_tokens(c: ModelConfig) -> tuple[int, ...]:
    """Return the tokens that no target text contains: padding and the first decoder token."""
    return tuple(sorted(t for t in {c.pad_id, c.first_id or 0} - set(c.eos_ids) if t < c.target_size))


def with_n_best(own: list[Translation]) -> Translation:
    """Return the best translation, with all of them in n_best."""
    if not own:
        return Translation("", problem="no token is allowed: the settings forbid all")
    return replace(own[0], n_best=own)


def make_batches(texts: Sequence[EncodedText], tokens: int, most: int) -> Iterator[list[EncodedText]]:
    """Yield batches of at most `most` texts of similar length and at most `tokens` source tokens, padding included.

    The longest come first: a batch too large for the memory then fails at once.
    """
    remaining = sorted(texts, key=lambda one: len(one.source))
    while remaining:
        count = max(1, min(tokens // len(remaining[-1].source), most))
        yield remaining[-count:]
        del remaining[-count:]
