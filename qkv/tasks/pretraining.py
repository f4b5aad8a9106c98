"""Pre-training: reconstruct corrupted text without labels. Masked words (BERT, Devlin et al. 2019), spans (T5, Raffel
et al. 2020), denoising (BART, Lewis et al. 2020).

Documents are cut into windows of at most data.max_length tokens. A window is corrupted anew each time it is read, with the
random numbers that checkpoints store, so that a run that stopped goes on with the very same masks.
"""

from __future__ import annotations

import math
import random
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from qkv.batch import IGNORED, Batch, Loss, pad
from qkv.config import CorpusConfig, ModelConfig, Recipe
from qkv.config.usage import Usage
from qkv.data import corrupt
from qkv.data.batching import Unusable
from qkv.data.corpora import corpus, plain_texts, training
from qkv.data.grammar_tasks import short_documents
from qkv.data.schema import Schema
from qkv.data.sources import Record
from qkv.errors import ConfigError, QkvError
from qkv.models.output import Output
from qkv.objectives import cross_entropy, masked_next
from qkv.shared_work import shared_sums
from qkv.tasks.base import Say, Task, Words, held_out, usable
from qkv.tasks.gaps import MASKS, SENTINELS, marks_of, mask_token, sentinels_of
from qkv.tasks.losses import window_losses
from qkv.tasks.translation import collate_pairs
from qkv.tasks.vocabulary import given_tokenizer, learn_tokenizer
from qkv.tasks.windows import by_length, frame_rows
from qkv.text.kinds import around, put_around
from qkv.text.train import BOS, EOS

STOPS = ".!?"
"""What ends a sentence."""
EVALUATED = 4096
"""Tokens that are read at once where nothing is learned."""


# --- what all of them share


class Pretraining(Task):
    """Windows of text, spoiled; cross-entropy of what was there; the same, always spoiled alike, on the held-out text."""

    metric = "loss"
    family: ClassVar[str]
    heads: ClassVar[tuple[str, ...]]
    special: ClassVar[Sequence[str]] = ()
    """Tokens that a vocabulary learned for it has beside the usual ones."""
    least = 1
    """Tokens of a window at the least."""

    @classmethod
    def possible(cls, recipe: Recipe) -> None:
        data, c = recipe.data, recipe.model
        if data is None or c.family != cls.family or c.head not in cls.heads or c.image_size is not None:
            heads = " or ".join(map(repr, cls.heads))
            raise ConfigError(
                f"task {cls.name!r} needs [data] and a model of family {cls.family!r} with head {heads} that reads text; "
                f"this is of family {c.family!r} with head {c.head!r}"
            )
        cls.fits(recipe)

    @classmethod
    def prepare(cls, recipe: Recipe, say: Say) -> Words:
        assert recipe.data is not None
        tokenizer = given_tokenizer(recipe)
        if tokenizer is None:
            corpora = [corpus(c, recipe.data, "train", cls.schema_of(recipe)) for c in recipe.data.train]
            own = recipe.data.tokenizer == "wordpiece"  # which has [MASK]
            special = [name for name in cls.special if not (own and name in MASKS)]
            tokenizer = learn_tokenizer(corpora, lambda record: record[:1], recipe.data, say, special, "documents")
            if tokenizer.id_of(EOS) is not None and cls.family == "encoder":
                put_around(tokenizer.backend, BOS, EOS)  # as [CLS] and [SEP] in WordPiece
        return Words(tokenizer, tokenizer)

    def __init__(self, recipe: Recipe, config: ModelConfig, words: Words):
        super().__init__(recipe, config, words)
        assert words.source is not None
        self.tokenizer, self.corrupt = words.source, recipe.corrupt
        self.room = self.data.max_length - self.around()
        if self.room < 2:
            raise QkvError(f"data.max_length = {self.data.max_length} leaves no room for text between special tokens")
        self.batches = self.batched(training(self.data, self.schema), self.length)
        self.valid = self.held_out(self.data.valid, "valid")
        self.asked = self.spoiled(self.valid)

    def around(self) -> int:
        """How many special tokens a window has."""
        return 1  # the end token

    # --- learning

    def examples(self, records: Sequence[Record]) -> list[Any]:
        """The windows of each text, all about equally long: rests of a few words would teach little."""
        found: list[Any] = []
        for ids in self.tokenizer.plain([record[0] for record in records]):
            count = math.ceil(len(ids) / self.room)
            cuts = [len(ids) * i // max(count, 1) for i in range(count + 1)]
            windows = [array("i", ids[a:b]) for a, b in pairwise(cuts) if b - a >= self.least]
            found += windows or [Unusable("too short a text")]
        return found

    def length(self, example: Any) -> int:
        return len(example) + self.around()

    def spoil(self, examples: Sequence[Any], r: random.Random) -> Batch:
        """A batch of windows, spoiled as the random numbers have it."""
        raise NotImplementedError

    def collate(self, examples: list[Any]) -> Batch:
        return self.spoil(examples, random.Random(int(torch.randint(2**62, ()))))

    def objective(self, output: Output, batch: Batch) -> Loss:
        return cross_entropy(output, batch.targets, self.recipe.train.label_smoothing)

    # --- asking

    def held_out(self, c: CorpusConfig, name: str) -> list[Any]:
        source = corpus(c, self.data, name, self.schema)
        windows, dropped = usable(self.examples(held_out(source, name)))
        if name == "valid":
            self.left_out += source.skipped + dropped
        if not windows:
            reasons = ", ".join(f"{count:,} {reason}" for reason, count in dropped.items())
            raise QkvError(f"the {name} set has no usable example ({reasons}): give data.{name} longer texts")
        return windows

    def spoiled(self, windows: Sequence[Any]) -> list[Batch]:
        """The batches of every evaluation: each window is corrupted once, always in the same way."""
        r = random.Random("held out")
        rows = by_length([self.length(window) for window in windows], EVALUATED)
        return [self.spoil([windows[i] for i in some], r) for some in rows]

    def evaluate(self, network: nn.Module) -> dict[str, float]:
        return self.measure(network, self.asked)

    @torch.no_grad()
    def measure(self, network: nn.Module, batches: Sequence[Batch]) -> dict[str, float]:
        """Return the loss in nats per target token, exp(loss), and the percentage of these tokens that are predicted correctly."""
        device = next(network.parameters()).device

        def compute(batch: Batch) -> tuple[float, ...]:
            batch = batch.to(device)
            return self.counts(network(batch), batch)

        return self.scores(*shared_sums(compute, batches))

    def counts(self, output: Output, batch: Batch) -> tuple[float, ...]:
        """Return the loss of one batch, the number of targets, and the number of correct predictions."""
        assert batch.targets is not None
        words = self.for_words(output)
        found = cross_entropy(words, batch.targets)
        return found.sum.item(), found.count, int(hits(words, batch.targets))

    def scores(self, nats: float, count: float, right: float) -> dict[str, float]:
        """Return the scores, from the sums of `counts`."""
        loss = nats / max(count, 1)
        return {"loss": loss, "perplexity": math.exp(min(loss, 700.0)), "accuracy": 100 * right / max(count, 1)}

    def for_words(self, output: Output) -> Output:
        """The output whose head predicts words."""
        return output

    def test(self, network: nn.Module, folder: Path, say: Say) -> dict[str, Any] | None:
        if self.data.test is None:
            return None
        windows = self.held_out(self.data.test, "test")
        batches = self.spoiled(windows)
        found = self.measure(network, batches)
        window_losses(network, batches, self.for_words).save(folder)
        about = {"loss": "nats per token asked for", "perplexity": "exp(loss)", "accuracy": "per cent of these tokens"}
        scores = [{"name": name, "value": value, "signature": about.get(name, "")} for name, value in found.items()]
        how = f"windows of at most {self.data.max_length} tokens, {100 * self.corrupt.rate:g} % hidden, each once"
        return {"examples": len(windows), "how": how, "scores": scores}

    # --- telling

    def usage(self) -> Usage:
        return super().usage().model_copy(update={"corrupt": self.corrupt})

    def use(self, folder: str) -> tuple[str, str]:
        return f"qkv embed {folder} texts.txt", 'model.embed(["Two texts", "to compare"])'


def hits(output: Output, targets: Tensor) -> Tensor:
    """How many of the targets that count have the highest score."""
    asked = targets != IGNORED  # (B, T)
    return (output.head(output.hidden[asked]).argmax(-1) == targets[asked]).sum()


# --- BERT


@dataclass(frozen=True)
class SentenceGroup:
    """Two sentences or more that follow each other."""

    document: int
    sentences: list[array[int]]

    @property
    def length(self) -> int:
        return sum(map(len, self.sentences))


class MaskedTask(Pretraining):
    """Some words are hidden, and asked for. With head "masked-next" a document is a sentence per line; two parts of it, or of
    two documents, are read together, and whether they belong together is asked for too."""

    name, noun, hub_tag = "masked", "a reader of text with gaps", "fill-mask"
    schema = plain_texts("masked")
    family, heads, special = "encoder", ("masked", "masked-next"), ["<mask>"]

    @classmethod
    def schema_of(cls, recipe: Recipe) -> Schema:
        """With head "masked-next", documents of several sentences."""
        return plain_texts("masked", from_grammar=short_documents) if recipe.model.head == "masked-next" else cls.schema

    def __init__(self, recipe: Recipe, config: ModelConfig, words: Words):
        assert words.source is not None
        self.pairs = config.head == "masked-next"
        self.gaps = around(words.source, config, 2 if self.pairs else 1)
        self.marks = marks_of(words.source, recipe.corrupt.whole_words)
        if self.pairs and not self.gaps[1]:
            raise QkvError("this tokenizer has no special token to stand between two sentences")
        super().__init__(recipe, config, words)

    def around(self) -> int:
        return sum(map(len, self.gaps))

    # --- learning

    def examples(self, records: Sequence[Record]) -> list[Any]:
        if not self.pairs:
            return super().examples(records)
        documents = [[line for line in record[0].split("\n") if line.strip()] for record in records]
        ids = iter(self.tokenizer.plain([line for lines in documents for line in lines]))
        found: list[Any] = []
        first = self.read - len(records)  # which are counted already
        for number, lines in enumerate(documents):
            some = corrupt.groups([array("i", next(ids)) for _ in lines], self.room)
            groups = [SentenceGroup(first + number, list(one)) for one in some if len(one) > 1]  # type: ignore[arg-type]
            found += groups or [Unusable("a document of one sentence: there is no next one")]
        return found

    def length(self, example: Any) -> int:
        return (example.length if self.pairs else len(example)) + self.around()

    def spoil(self, examples: Sequence[Any], r: random.Random) -> Batch:
        if self.pairs:
            return self.spoil_pairs(examples, r)
        rows = [corrupt.mask_tokens(ids, r, self.corrupt.rate, self.marks) for ids in examples]
        return frame_rows(rows, self.gaps, self.config.pad_id)

    def spoil_pairs(self, groups: Sequence[SentenceGroup], r: random.Random) -> Batch:
        """[CLS] first [SEP] second [SEP]; answers 0 where the second follows the first."""
        pairs = corrupt.sentence_pairs([(g.document, g.sentences) for g in groups], r)
        begin, between, end = self.gaps
        rows, asked, segments = [], [], []
        for first, second, _ in pairs:
            ids, targets = corrupt.mask_tokens([*first, *second], r, self.corrupt.rate, self.marks)
            cut = len(first)
            rows.append([*begin, *ids[:cut], *between, *ids[cut:], *end])
            gaps = [[IGNORED] * len(gap) for gap in self.gaps]
            asked.append([*gaps[0], *targets[:cut], *gaps[1], *targets[cut:], *gaps[2]])
            lengths = len(begin) + cut + len(between), len(second) + len(end)
            segments.append([0] * lengths[0] + [min(1, max(self.config.n_segments - 1, 0))] * lengths[1])
        inputs, mask = pad(rows, self.config.pad_id)  # (B, T) each
        return Batch(
            inputs, mask, pad(asked, IGNORED)[0],
            segments=pad(segments, 0)[0] if self.config.n_segments else None,
            answers=torch.tensor([int(not pair.follows) for pair in pairs]),
        )  # fmt: skip

    def objective(self, output: Output, batch: Batch) -> Loss:
        if not self.pairs:
            return super().objective(output, batch)
        hidden = max(1.0, self.corrupt.rate * self.room)  # words of a window: an answer weighs as much as all of them
        return masked_next(output, batch, hidden, self.recipe.train.label_smoothing)

    # --- asking

    def for_words(self, output: Output) -> Output:
        head: Any = output.head
        return Output(output.hidden, head.words, output.keys) if self.pairs else output

    def counts(self, output: Output, batch: Batch) -> tuple[float, ...]:
        """With two sentences also return the number of pairs, and of correct predictions of the second sentence."""
        found = super().counts(output, batch)
        if not self.pairs:
            return found
        head: Any = output.head
        right = head.next(output.hidden, output.keys).argmax(-1) == batch.answers  # (B,)
        return *found, len(right), int(right.sum())

    def scores(self, nats: float, count: float, right: float, pairs: float = 0, follow: float = 0) -> dict[str, float]:
        found = super().scores(nats, count, right)
        return found | {"next_accuracy": 100 * follow / pairs} if self.pairs else found

    # --- telling

    def use(self, folder: str) -> tuple[str, str]:
        return f'qkv fill {folder} "A {mask_token(self.tokenizer)} is missing."', (
            f'model.fill(["A {mask_token(self.tokenizer)} is missing."])'
        )


# --- T5 and BART


class SpanTask(Pretraining):
    """Spans are taken out of the source, and written by the decoder, each behind its sentinel."""

    name, noun, hub_tag = "span-corruption", "a model that mends spans", "text2text-generation"
    schema = plain_texts("span-corruption")
    family, heads, special, writes = "encoder-decoder", ("vocabulary",), SENTINELS, True
    least = 2

    @classmethod
    def possible(cls, recipe: Recipe) -> None:
        super().possible(recipe)
        assert recipe.data is not None
        most, hidden = recipe.data.max_length, round(recipe.corrupt.rate * recipe.data.max_length)
        needed = hidden + min(round(hidden / recipe.corrupt.span), most - hidden) + 3  # spans; first, last and end
        if needed > recipe.model.max_length:
            raise ConfigError(
                f"corrupt.rate = {recipe.corrupt.rate:g} in spans of {recipe.corrupt.span:g} makes up to {needed} tokens to "
                f"write, over model.max_length = {recipe.model.max_length}: hide less, or in longer spans"
            )

    def __init__(self, recipe: Recipe, config: ModelConfig, words: Words):
        assert words.source is not None
        self.sentinels = sentinels_of(words.source)
        super().__init__(recipe, config, words)

    def spoil(self, examples: Sequence[Any], r: random.Random) -> Batch:
        c = self.corrupt
        pairs = [corrupt.spans(ids, r, c.rate, c.span, self.sentinels) for ids in examples]
        return collate_pairs(pairs, self.config)


class DenoisingTask(Pretraining):
    """Sentences change places and spans become a single mask each; the decoder writes the text as it was."""

    name, noun, hub_tag = "denoising", "a model that mends text", "text2text-generation"
    schema = plain_texts("denoising")
    family, heads, special, writes = "encoder-decoder", ("vocabulary",), ["<mask>"], True

    def __init__(self, recipe: Recipe, config: ModelConfig, words: Words):
        assert words.source is not None
        self.mask = marks_of(words.source).mask
        names = words.source.backend.get_vocab(with_added_tokens=False)
        self.stops = {i for name, i in names.items() if name.lstrip("".join(corrupt.SPACES)) in tuple(STOPS)}
        super().__init__(recipe, config, words)

    def spoil(self, examples: Sequence[Any], r: random.Random) -> Batch:
        fill = partial(corrupt.infill, r=r, rate=self.corrupt.rate, mean=self.corrupt.span, mask=self.mask)
        pairs = [(fill(corrupt.permute_sentences(ids, r, self.stops)), list(ids)) for ids in examples]
        return collate_pairs(pairs, self.config)
