"""Translating texts: tokens, batches of similar length, search, text again, in the order of the texts.

A text that cannot be translated costs only itself: its translation is empty and says why in `problem`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from qkv.batch import Batch
from qkv.config import ModelConfig
from qkv.data.translation import padded
from qkv.errors import QkvError
from qkv.generate.alignment import Link, attention, links, taps, words_at, written_spans
from qkv.generate.beam import search
from qkv.generate.hypotheses import Beam, Hypothesis
from qkv.generate.logits_processor import Rules
from qkv.generate.parallel import one_by_one, share, streams
from qkv.generate.search import Writer
from qkv.text.tokenizer import Tokenizer, in_words

Alignment = list[Link] | None


@dataclass(frozen=True)
class Translation:
    """One translation of one text, and in `n_best` all that were asked for, itself the first."""

    text: str
    score: float = 0.0
    """log_prob / length^penalty (or what the length formula says), the end token counted."""
    log_prob: float = 0.0
    """Natural logarithm of the probability that the model gives this text."""
    tokens: list[str] = field(default_factory=list)
    token_log_probs: list[float] = field(default_factory=list)
    """One per token; their sum is log_prob."""
    alignment: Alignment = None
    """(source word, target word), where asked for; words are what stands between spaces, counted from 0."""
    n_best: list[Translation] = field(default_factory=list)
    problem: str = ""
    """Why there is no translation."""


BEAM = Beam()
WIDE = 256
"""Width of a network from which on a second thread makes a single sentence faster."""


@dataclass(frozen=True)
class Request:
    """How to translate. `prefixes` and `constraints` are per text, or empty."""

    beam: Beam = BEAM
    max_length: int | None = None
    """Longest translation in tokens; None = twice the source and 20 more."""
    min_length: int = 0
    """Shortest translation in tokens, the end token counted."""
    no_repeat_ngram: int = 0
    repetition_penalty: float = 1.0
    prefixes: Sequence[str] = ()
    """How each translation must begin."""
    constraints: Sequence[Sequence[str]] = ()
    """Words or phrases that must occur in each translation."""
    forced_end: bool = False
    """A translation that reaches its longest length ends there with the end token; otherwise it is cut."""
    alignments: bool = False
    alignment_layer: int | None = None
    """Which layer of the decoder shows them; None = the upper half together."""
    batch_tokens: int = 2048
    """Source tokens, with padding, that are translated at once."""
    extra_length: int | None = None
    """Longest translation: so many tokens more than the source, end tokens counted; with max_length, the smaller bound."""

    def __post_init__(self) -> None:
        if self.batch_tokens < 1 or (self.max_length is not None and self.max_length < 1):
            raise QkvError("batch_tokens and max_length are counts of tokens, 1 or more")
        if self.extra_length is not None and self.extra_length < 0:
            raise QkvError(f"extra_length is a count of tokens, 0 or more, given {self.extra_length}")


@dataclass(frozen=True)
class Job:
    """One text on its way, its target side in tokens."""

    index: int
    source: list[int]
    words: list[int | None]
    """Of each source token, the word it belongs to; None for special tokens."""
    prefix: list[int]
    phrases: list[list[int]]


class Translator:
    """An encoder-decoder with the tokenizers of its two sides.

    `network` may be a packed one. A source of more than `config.max_length` tokens is not translated: cutting it would
    lose text without anyone noticing.
    """

    def __init__(self, config: ModelConfig, network: Writer, source: Tokenizer, target: Tokenizer):
        if config.family != "encoder-decoder" or config.image_size is not None or config.head != "vocabulary":
            raise QkvError(
                f"translating needs an encoder-decoder of words, this is a model of family {config.family!r}"
            )
        if config.first_id is None or not config.eos_ids:
            raise QkvError(
                "this model does not say which tokens open and end a text: set bos_id (or start_id) and eos_id"
            )
        self.config, self.network, self.source, self.target = config, network, source, target

    def translate(self, texts: Sequence[str], how: Request) -> list[Translation]:
        """One translation per text, in their order."""
        for name, given in (("prefixes", how.prefixes), ("constraints", how.constraints)):
            if given and len(given) != len(texts):
                raise QkvError(f"{len(texts)} texts but {len(given)} {name}: give one per text")
        if how.alignments:
            taps(self.network, how.alignment_layer)  # say at once that there is nothing to align with
        found: dict[int, Translation] = {}
        jobs: list[Job] = []
        for index, text in enumerate(texts):
            try:
                job = self.job(index, text, how)
            except QkvError as error:
                found[index] = Translation("", problem=str(error))
            else:
                jobs += [] if job is None else [job]
        on_cpu = next(self.network.parameters()).device.type == "cpu"
        shared = on_cpu and not how.alignments  # who looks into a network has it for himself
        cut = list(batches(jobs, how.batch_tokens, share(len(jobs)) if shared else len(jobs)))
        work = partial(self.batch, how=how)
        for some, own in zip(
            cut, (streams if shared else one_by_one)(work, cut, self.config.d_model < WIDE), strict=True
        ):
            found.update(zip((job.index for job in some), own, strict=True))
        return [found.get(index, Translation("")) for index in range(len(texts))]

    def job(self, index: int, text: str, how: Request) -> Job | None:
        """A text in tokens; None where there is nothing to translate."""
        if not isinstance(text, str):
            raise QkvError(f"a text is a string, given {type(text).__name__}")
        if not text.strip():
            return None
        source, words = self.read(text)
        if len(source) > self.config.max_length:
            raise QkvError(
                f"{len(source)} tokens, but this model reads at most {self.config.max_length}: split the text"
            )
        prefix = self.target.plain([how.prefixes[index].strip()])[0] if how.prefixes and how.prefixes[index] else []
        phrases = [ids for phrase in (how.constraints[index] if how.constraints else ()) if (ids := self.inner(phrase))]
        needed, room = (
            (self.config.forced_id is not None) + len(prefix) + sum(map(len, phrases)) + 1,
            self.longest(source, how),
        )
        if needed > room:
            raise QkvError(
                f"prefix and constraints take {needed} tokens, a translation has at most {room}: raise max_length"
            )
        return Job(index, source, words, prefix, phrases)

    def read(self, text: str) -> tuple[list[int], list[int | None]]:
        """Ids that end with an end token, and the word of each. All of the text is text: "</s>" in it ends nothing.

        A tokenizer that puts its own end token (Hugging Face) does so; otherwise it is added here, as in training.
        """
        with in_words():
            found = self.source.literal.encode(text)
            if not found.ids or found.ids[-1] not in self.config.eos_ids:
                found = self.source.literal.encode(text, add_special_tokens=False)
        ids, words = list(found.ids), words_at(text, found.offsets)  # special tokens have no characters, so no word
        if max(ids, default=0) >= self.config.vocab_size:
            raise QkvError("the tokenizer gives ids that this model does not have: they do not belong together")
        if not ids or ids[-1] not in self.config.eos_ids:
            ids, words = [*ids, self.config.eos_ids[0]], [*words, None]
        return ids, words

    def inner(self, phrase: str) -> list[int]:
        """The tokens of a phrase within a text, where a space goes before it."""
        before, both = self.target.plain(["a", "a " + phrase.strip()])
        own = both[len(before) :] if both[: len(before)] == before else self.target.plain([phrase.strip()])[0]
        return own[1:] if len(own) > 1 and not self.target.decode(own[:1]).strip() else own

    def longest(self, source: Sequence[int], how: Request) -> int:
        """It depends on the text alone, so that a translation is the same in any batch."""
        bounds = [] if how.max_length is None else [how.max_length]
        bounds += [] if how.extra_length is None else [len(source) + how.extra_length]
        return min(*(bounds or [2 * len(source) + 20]), self.config.max_length)

    def batch(self, jobs: Sequence[Job], how: Request) -> list[Translation]:
        """Texts of similar length together."""
        batch = self.begin(jobs).to(next(self.network.parameters()).device)
        limits, phrases = [self.longest(job.source, how) for job in jobs], [job.phrases for job in jobs]
        rules = self.rules(how, [job.prefix for job in jobs], limits if how.forced_end else ())
        found = search(self.network, batch, limits, self.config.eos_ids, how.beam, rules, phrases)
        aligned: list[list[Alignment]] = [[None] * len(own) for own in found]
        if how.alignments:
            aligned = self.aligned(jobs, found, batch, how)
        return [gathered(list(map(self.written, *pair))) for pair in zip(found, aligned, strict=True)]

    def rules(self, how: Request, prefixes: Sequence[list[int]], limits: Sequence[int] = ()) -> Rules:
        """What a translation may consist of; `limits`: where each must end."""
        c = self.config
        own = prefixes if any(prefixes) else ()
        opening = () if c.forced_id is None else (c.forced_id,)
        return Rules(c.eos_ids, never_written(c), how.min_length, how.no_repeat_ngram, how.repetition_penalty,
                     prefixes=own, opening=opening, limits=limits)  # fmt: skip

    def opened(self, job: Job) -> tuple[list[int], list[int] | None]:
        """What a search starts from: the token that opens a target, and the source that is read beside it."""
        return [self.config.first_id or 0], job.source

    def begin(self, jobs: Sequence[Job]) -> Batch:
        """The same for several texts, as a batch."""
        c = self.config
        source, mask = padded([job.source for job in jobs], c.pad_id if c.pad_id < c.vocab_size else 0)
        inputs = source.new_full((len(jobs), 1), c.first_id or 0)
        return Batch(inputs, source=source, source_mask=None if mask.all() else mask)

    def written(self, h: Hypothesis, alignment: Alignment) -> Translation:
        text = self.target.decode(h.ids[:-1] if h.ended else h.ids)
        tokens = [self.target.backend.id_to_token(token) or "" for token in h.ids]
        return Translation(text, h.score, h.log_prob, tokens, h.log_probs, alignment)

    def aligned(self, jobs: Sequence[Job], found: list[list[Hypothesis]], batch: Batch, how: Request
                ) -> list[list[Alignment]]:  # fmt: skip
        """The links of every hypothesis, from one more pass over the source and what was written."""
        assert batch.source is not None
        pairs = [(row, h) for row, own in enumerate(found) for h in own]
        rows = batch.source.new_tensor([row for row, _ in pairs])
        inputs, mask = padded([[self.config.first_id or 0, *h.ids[:-1]] for _, h in pairs], 0)
        forced = Batch(inputs.to(rows.device), mask.to(rows.device), None, batch.source[rows],
                       None if batch.source_mask is None else batch.source_mask[rows])  # fmt: skip
        weights = attention(self.network, forced, how.alignment_layer)  # (hypotheses, T, S)
        result: list[list[Alignment]] = [[] for _ in found]
        for (row, h), looks in zip(pairs, weights, strict=True):
            ids = h.ids[:-1] if h.ended else h.ids
            target = words_at(self.target.decode(ids), written_spans(ids, self.target))
            result[row].append(links(looks[: len(ids), : len(jobs[row].words)], jobs[row].words, target))
        return result


def never_written(c: ModelConfig) -> tuple[int, ...]:
    """Padding and the token that opens a target."""
    return tuple(sorted(t for t in {c.pad_id, c.first_id or 0} - set(c.eos_ids) if t < c.target_size))


def gathered(own: list[Translation]) -> Translation:
    """The best one, with all of them in n_best."""
    if not own:
        return Translation("", problem="no token may follow: the rules forbid them all")
    return replace(own[0], n_best=own)


def batches(jobs: Sequence[Job], tokens: int, most: int) -> Iterator[list[Job]]:
    """At most `most` jobs of similar length, with padding at most `tokens`; the longest first: what is too large shows at
    once."""
    waiting = sorted(jobs, key=lambda job: len(job.source))
    while waiting:
        count = max(1, min(tokens // len(waiting[-1].source), most))
        yield waiting[-count:]
        del waiting[-count:]
