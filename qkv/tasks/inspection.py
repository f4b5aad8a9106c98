"""Inspection of inputs: a text, a pair of texts, ids or an image becomes a Look; nearest neighbours and senses of words. Inputs are
preprocessed as the task does: masks, tags, pairs, questions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from qkv.batch import Batch
from qkv.config import ModelConfig
from qkv.data.grammar import Pair
from qkv.errors import QkvError
from qkv.generate.logits_processor import LogitsProcessor
from qkv.generate.search import greedy
from qkv.generate.translate import TranslationParams, Translator, suppressed_tokens
from qkv.look.alignment_error import AlignmentErrors, align_pair, alignment_errors
from qkv.look.embedding_space import Neighbours, nearest, static_vectors, word_vectors
from qkv.look.look import Look
from qkv.look.probe import Contexts, contexts
from qkv.look.residual_stream import layer_outputs
from qkv.models.inputs import batch_of, has_fixed_length
from qkv.tasks import answering, classifier
from qkv.tasks.fill import Filler
from qkv.tasks.summary import NO_REPEAT, Summarizer
from qkv.tasks.tagging import WORD, Tagger
from qkv.text.tokenizer import Tokenizer, in_words

UNKNOWN = ("<unk>", "[UNK]")
LONGEST_SUMMARY = 64
"""Maximum tokens of a summary that is generated because none is given."""
OF_TOKENS = {"span": ("begins here", "ends here"), "replaced": ("original", "replaced")}
"""Names of the predictions of heads that predict for each token."""


class Reading(NamedTuple):
    """What a network reads of one input."""

    first: Any
    """One row of ids, or an image (1, channels, height, width)."""
    names: list[str]
    """Names of its tokens."""
    segments: Sequence[int] | None = None
    """Segment of each token, in a network that has segments: 0, or 1 in the second text."""
    place: int | None = None
    """The default token at which to predict."""


class Looker:
    """A network to inspect, with its tokenizers if it has any."""

    def __init__(self, c: ModelConfig, network: Any, source: Tokenizer | None, target: Tokenizer | None,
                 task: str | None = None):  # fmt: skip
        self.config, self.network, self.source, self.target = c, network, source, target
        self.task = task
        """The task that it was trained for, if known."""
        self.device = next(network.parameters()).device

    def look(self, given: Any, target: str | Sequence[int] | None = None, pair: str | None = None, summary: bool = False
             ) -> Look:  # fmt: skip
        """Make a Look of a text, of ids, or of an image (path, Pillow image, array, or a tensor as the network reads it). For an
        encoder-decoder `target` is its output, by default its own greedy one. For a classifier of pairs `pair` is the second text;
        for question answering it is the question about the text. (first, second) is a pair too, in the order in which the network
        reads it: a question comes before its text. A decoder that was trained to generate a summary or translation after its text
        (`summary`, or its task) reads the text followed by `target` or its own greedy output; if ids are given, they end with the
        start token of the output, and `target` follows them."""
        if isinstance(given, tuple) and len(given) == 2 and all(isinstance(text, str) for text in given):
            given, pair = given if self.config.head != "span" else reversed(given)
        decodes = self.config.family == "decoder" and self.config.head == "vocabulary" and pair is None
        if decodes and isinstance(given, str) and (summary or self.task in ("summary", "translation")):
            return self.behind_source(given, target, summary or self.task == "summary")
        read = self.read(given, pair)
        if decodes and target is not None and not isinstance(given, str):
            return self.behind(read.first[0], self.target_ids(target))
        if self.config.family != "encoder-decoder":
            if target is not None:
                raise QkvError(
                    "only an encoder-decoder, or a writer of summaries or translations, has a target: leave it out"
                )
            segments = [list(read.segments)] if read.segments is not None and self.config.n_segments else None
            batch = batch_of(self.config, read.first, segments=segments).to(self.device)
            gap = "" if self.filler is None else self.filler.name
            return Look(self.config, self.network, batch, read.names, [], self.answer, read.place, gap)
        if self.config.head in classifier.HEADS:
            shifted = classifier.decoder_ids(read.first[0], self.config)
            batch = batch_of(self.config, read.first, [shifted]).to(self.device)
            return Look(self.config, self.network, batch, self.displayed(shifted), read.names, self.answer)
        start = self.config.first_id
        if start is None:
            raise QkvError(
                "this model does not define the start token of the target: set start_id or bos_id in its configuration"
            )
        ids = self.written(read.first, start, 2 * len(read.names) + 20) if target is None else self.target_ids(target)
        batch = batch_of(self.config, read.first, [[start, *ids]]).to(self.device)
        return Look(self.config, self.network, batch, self.displayed([start, *ids]), read.names, self.answer)

    def behind_source(self, text: str, target: str | Sequence[int] | None, summary: bool) -> Look:
        """Make a Look of a decoder on text </s> <s> and its summary or translation: `target`, or its own output."""
        c = self.config
        kind = Summarizer if summary else Translator
        writer = kind(c, self.network, self.words(), self.target or self.words())
        opened = [*writer.read(text)[0], c.first_id or 0]
        if target is not None:
            return self.behind(opened, self.target_ids(target))
        how = (
            TranslationParams(max_length=LONGEST_SUMMARY, no_repeat_ngram=NO_REPEAT) if summary else TranslationParams()
        )
        most = min(writer.max_tokens(opened[:-1], how), c.max_length - len(opened))  # what is written is also read
        (found,) = greedy(self.network, batch_of(c, [opened]).to(self.device), most, c.eos_ids, writer.processor(how))
        return self.behind(opened, [token for token in found if token not in c.eos_ids])

    def behind(self, read: Sequence[int], written: Sequence[int]) -> Look:
        """Make a Look of a decoder on some tokens and the output after them."""
        ids = [*read, *written]
        batch = batch_of(self.config, [ids]).to(self.device)
        return Look(
            self.config, self.network, batch, self.displayed(ids, self.source), [], self.answer, first=len(read) - 1
        )

    # --- what is given

    def read(self, given: Any, pair: str | None = None) -> Reading:
        """Return the input of the network, as one row, and the names of its tokens."""
        c = self.config
        if pair is not None and (c.head not in (*classifier.HEADS, "span") or not isinstance(given, str)):
            raise QkvError(
                "this model reads one text: only a classifier of pairs, or a reader of questions, has a second"
            )
        if c.image_size is not None:
            side = c.image_size // (c.patch_size or 1)
            names = ["[class]", *(f"{y},{x}" for y in range(side) for x in range(side))]
            return Reading(self.picture(given), names)
        if not isinstance(given, str):
            ids = given[0] if isinstance(given, list | tuple) and given and isinstance(given[0], list) else given
            ids = ids.reshape(-1).tolist() if isinstance(ids, Tensor) else list(ids)
            return Reading([ids], self.displayed(ids, self.source), None, self.gap(ids))
        if c.family == "encoder-decoder" and c.head == "vocabulary":
            ids, _ = Translator(c, self.network, self.words(), self.target or self.words()).read(given)
            return Reading([ids], self.displayed(ids, self.words()))
        return self.as_the_task_reads(given, pair) or self.plainly(given)

    def as_the_task_reads(self, text: str, pair: str | None) -> Reading | None:
        """With the special tokens, segments and gaps of its task; None where there is no task, but words that follow."""
        c, words = self.config, self.words()
        segments: Sequence[int] | None = None
        place: int | None = None
        if self.filler is not None:
            ids = self.filler.read(text)
            place = self.gap(ids)
        elif c.head in classifier.HEADS:
            reader = classifier.TextEncoder(c, words, c.max_length)
            row = reader([text if pair is None else (text, pair)])[0]
            ids, segments = list(row.ids), row.segments
        elif c.head == "span" and pair is not None:
            window = answering.QuestionAnswerer(c, self.network, words).cut([(pair, text)])[0][0]
            ids = list(window.ids)
            segments, place = [int(i >= window.first) for i in range(len(ids))], window.first
        elif c.head == "tags" and WORD.search(text):
            first = Tagger(c, self.network, words).cut([WORD.findall(text)])[0][0]
            ids, place = list(first.ids), first.places[0]
        else:
            return None
        return Reading([ids], self.displayed(ids, words), segments, place)

    def plainly(self, text: str) -> Reading:
        """With what the tokenizer puts around it."""
        ids = self.words().encode(text)
        if not ids and self.config.bos_id is not None:
            ids = [self.config.bos_id]
        return Reading([ids], self.displayed(ids, self.source))

    @cached_property
    def filler(self) -> Filler | None:
        """What reads texts with gaps, where the head guesses words and the vocabulary has a name for a gap."""
        if self.source is None or self.config.head not in ("masked", "masked-next"):
            return None
        try:
            return Filler(self.config, self.network, self.source)
        except QkvError:
            return None

    def gap(self, ids: Sequence[int]) -> int | None:
        """Where the first gap of a text is."""
        mask = None if self.filler is None else self.filler.mask
        return next((place for place, token in enumerate(ids) if token == mask), None)

    def picture(self, given: Any) -> Tensor:
        """(1, channels, height, width)."""
        from qkv.tasks.images import open_images

        if isinstance(given, Tensor) and given.is_floating_point():
            return given if given.dim() == 4 else given[None]
        return open_images([given], self.config)

    def words(self) -> Tokenizer:
        if self.source is None:
            raise QkvError(
                "this model has no tokenizer: pass token ids instead of text, or add tokenizer.json to its folder"
            )
        return self.source

    def target_ids(self, target: str | Sequence[int]) -> list[int]:
        """Of a text that is written, without its end token."""
        if not isinstance(target, str):
            return list(target)
        return (self.target or self.words()).plain([target])[0]

    def written(self, first: Any, start: int, most: int) -> list[int]:
        """What the network itself writes, greedily and by the rules of every search, without its end token."""
        most = min(most, self.config.max_length - 1) if has_fixed_length(self.config) else most
        batch = batch_of(self.config, first, [[start]]).to(self.device)
        (found,) = greedy(self.network, batch, most, self.config.eos_ids, self.rules())
        return [token for token in found if token not in self.config.eos_ids]

    def rules(self) -> LogitsProcessor:
        """What no encoder-decoder writes: padding, and the token that opens a target."""
        c = self.config
        if c.image_size is None and c.eos_ids:
            return Translator(c, self.network, self.source, self.target).processor(TranslationParams())  # type: ignore[arg-type]
        return LogitsProcessor(c.eos_ids, suppressed_tokens(c))

    # --- names

    def displayed(self, ids: Sequence[int], tokenizer: Tokenizer | None = None) -> list[str]:
        """Each token as it is displayed; without a tokenizer by its number."""
        tokenizer = tokenizer or self.target
        return [str(i) if tokenizer is None else tokenizer.display(i) for i in ids]

    def answer(self, number: int) -> str:
        """What an answer of the head is called."""
        c = self.config
        if c.head in ("classes", "classes-words") and c.n_classes == 1:
            return c.labels[0] if c.labels else "score"
        if c.head in ("classes", "classes-words", "tags"):
            return c.labels[number] if c.labels else f"LABEL_{number}"
        if c.head in OF_TOKENS:
            return OF_TOKENS[c.head][number]
        return self.displayed([number])[0]

    # --- words among words

    def neighbours(self, word: str, k: int = 10) -> Neighbours:
        """The entries of the vocabulary whose vectors are nearest to that of a word (the mean of its pieces)."""
        word = word.strip()
        table, ids = word_vectors(self.network), self.pieces(word)
        near, cosines = nearest(table, table[ids].mean(0), k + len(ids))
        kept = [(i, c) for i, c in zip(near.tolist(), cosines.tolist(), strict=True) if i not in ids][:k]
        names, pieces = (self.displayed(some, self.source) for some in ([i for i, _ in kept], ids))
        return Neighbours(word, names, torch.tensor([c for _, c in kept]), pieces)

    def pieces(self, word: str) -> list[int]:
        """Of a word within a text, where a space goes before it; a space that is a piece of its own is none of the word's."""
        before, both = self.words().plain(["a", "a " + word])
        ids = both[len(before) :] if both[: len(before)] == before else self.words().plain([word])[0]
        ids = ids[1:] if len(ids) > 1 and not self.words().decode(ids[:1]).strip() else ids
        if not word or set(ids) <= self.unknown():
            raise QkvError(f"{word!r} is not in this vocabulary, nor is any piece of it")
        return ids

    def unknown(self) -> set[int]:
        """The tokens that stand for what is not in the vocabulary."""
        words = self.words()
        named = words.special_names().get("unk_token"), getattr(words.backend.model, "unk_token", None)
        ids = (words.id_of(name) for name in {*named, *UNKNOWN} if name)
        return {i for i in ids if i is not None}

    def vectors(self, word: str, texts: Sequence[str], layer: int = -1) -> Tensor:
        """(texts, C): the word in each of them, at some layer; the mean of its pieces where it stands first."""
        both, found = self.config.family == "encoder-decoder", []
        for ids, own in self.found(word, texts):
            batch: Batch = batch_of(self.config, [ids], encoding=both).to(self.device)
            with torch.no_grad():
                every = layer_outputs(self.network, batch, both)
            if not -len(every) <= layer < len(every):
                raise QkvError(f"there is no layer {layer}: they go from 0, the embeddings, to {len(every) - 1}")
            found.append(every[layer][0, own].float().mean(0).cpu())
        return torch.stack(found)

    def found(self, word: str, texts: Sequence[str]) -> list[tuple[list[int], list[int]]]:
        """Of each text its ids, and which of them are the word's: a whole word, not a part of one; apple is also found as Apple,
        where it is not written small."""
        rows, word = [], word.strip()
        for number, text in enumerate(texts, 1):
            whole = rf"(?<!\w){re.escape(word)}(?!\w)"
            at = re.search(whole, text) or re.search(whole, text, re.IGNORECASE)
            with in_words():
                read = self.words().backend.encode(text)
            start, stop = at.span() if at is not None else (-1, -1)
            own = [i for i, (b, e) in enumerate(read.offsets) if b < stop and e > start and e > b]
            if not own:
                raise QkvError(f"text {number} does not contain {word!r}: {text[:80]!r}")
            rows.append((list(read.ids), own))
        return rows

    def contexts(self, word: str, texts: Sequence[str], layer: int = -1) -> Contexts:
        """How alike a word's vectors are in several texts, and to that of the word itself."""
        own = [torch.tensor([ids[i] for i in places], device=self.device) for ids, places in self.found(word, texts)]
        static = torch.stack([static_vectors(self.network, ids).float().mean(0).cpu() for ids in own])
        return contexts(word, texts, self.vectors(word, texts, layer), static)

    # --- known alignments

    def alignment_errors(self, pairs: Sequence[Pair]) -> AlignmentErrors:
        """The error rate of every head on sentences of the grammar."""
        c, source = self.config, self.words()
        if c.family != "encoder-decoder" or c.first_id is None or not c.eos_ids:
            raise QkvError("aligning words needs an encoder-decoder that says which tokens open and end a text")
        made = (align_pair(pair, source, self.target or source, c.first_id, c.eos_ids[0]) for pair in pairs)
        return alignment_errors(self.network, made)
