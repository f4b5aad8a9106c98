"""Looking inside with words: a text, ids or a picture becomes a Look; words find their neighbours and their senses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from qkv.batch import Batch
from qkv.config import ModelConfig
from qkv.data.grammar import Pair
from qkv.errors import QkvError
from qkv.generate.alignment import written_spans
from qkv.generate.choose import Sampling
from qkv.generate.search import steps
from qkv.generate.translate import Translator
from qkv.look.aligned import AlignmentErrors, errors, sentence
from qkv.look.probe import Contexts, contexts
from qkv.look.space import Neighbours, nearest, word_vectors
from qkv.look.stream import layers
from qkv.look.view import Look
from qkv.models.inputs import batch_of, bounded
from qkv.tasks.embed import pieces_of
from qkv.text.tokenizer import Tokenizer, in_words

SPACES = "Ġ▁"
"""How byte-level BPE and SentencePiece write the space before a word."""


class Looker:
    """A network that is looked into, with its tokenizers where it has some."""

    def __init__(self, c: ModelConfig, network: Any, source: Tokenizer | None, target: Tokenizer | None):
        self.config, self.network, self.source, self.target = c, network, source, target
        self.device = next(network.parameters()).device

    def look(self, given: Any, target: str | Sequence[int] | None = None) -> Look:
        """A text, the ids of one, or a picture (path, Pillow image, array, or a tensor as the network reads it). Of an
        encoder-decoder also what it writes: `target`, or without one its own greedy answer."""
        first, names = self.read(given)
        if self.config.family != "encoder-decoder":
            if target is not None:
                raise QkvError("only an encoder-decoder has a target: leave it out")
            return Look(self.config, self.network, batch_of(self.config, first).to(self.device), names, [], self.answer)
        start = self.config.first_id
        if start is None:
            raise QkvError(
                "this model does not say which token opens the target: set start_id or bos_id in its configuration"
            )
        ids = self.written(first, start, 2 * len(names) + 20) if target is None else self.target_ids(target)
        batch = batch_of(self.config, first, [[start, *ids]]).to(self.device)
        return Look(self.config, self.network, batch, [self.word(start), *self.spelled(ids)], names, self.answer)

    # --- what is given

    def read(self, given: Any) -> tuple[Any, list[str]]:
        """What the network reads, as one row, and the names of its tokens."""
        c = self.config
        if c.image_size is not None:
            side = c.image_size // (c.patch_size or 1)
            names = ["[class]", *(f"{y},{x}" for y in range(side) for x in range(side))]
            return self.picture(given), names
        if not isinstance(given, str):
            ids = given[0] if isinstance(given, list | tuple) and given and isinstance(given[0], list) else given
            ids = ids.reshape(-1).tolist() if isinstance(ids, Tensor) else list(ids)
            return [ids], [self.word(i, self.source) for i in ids]
        if c.family == "encoder-decoder":
            ids, _ = Translator(c, self.network, self.words(), self.target or self.words()).read(given)
            return [ids], self.spelled(ids, self.words())
        with in_words():
            found = self.words().backend.encode(given)
        ids, names = list(found.ids), pieces_of(given, found)
        if not ids and c.bos_id is not None:
            return [[c.bos_id]], [self.word(c.bos_id, self.source)]
        return [ids], names

    def picture(self, given: Any) -> Tensor:
        """(1, channels, height, width)."""
        from qkv.tasks.images import read

        if isinstance(given, Tensor) and given.is_floating_point():
            return given if given.dim() == 4 else given[None]
        return next(iter(read([given], self.config)))

    def words(self) -> Tokenizer:
        if self.source is None:
            raise QkvError(
                "this model came without a tokenizer: give ids instead of text, or put tokenizer.json beside it"
            )
        return self.source

    def target_ids(self, target: str | Sequence[int]) -> list[int]:
        """Of a text that is written, without its end token."""
        if not isinstance(target, str):
            return list(target)
        return (self.target or self.words()).plain([target])[0]

    def written(self, first: Any, start: int, most: int) -> list[int]:
        """What the network itself writes, greedily, without its end token."""
        most = min(most, self.config.max_length - 1) if bounded(self.config) else most
        batch = batch_of(self.config, first, [[start]]).to(self.device)
        found = [token for (token,) in steps(self.network, batch, most, self.config.eos_ids, Sampling(), 0)]
        return [token for token in found if token is not None and token not in self.config.eos_ids]

    # --- names

    def word(self, token: int, tokenizer: Tokenizer | None = None) -> str:
        """One entry of the vocabulary as it looks in a text."""
        tokenizer = tokenizer or self.target
        raw = None if tokenizer is None else tokenizer.backend.id_to_token(token)
        if tokenizer is None or raw is None:
            return str(token)
        decoded = tokenizer.decode([token]).strip()
        return (" " if raw[0] in SPACES else "") + decoded if decoded else raw

    def spelled(self, ids: Sequence[int], tokenizer: Tokenizer | None = None) -> list[str]:
        """Each token of a text as the characters that it wrote; a special one by its name."""
        tokenizer = tokenizer or self.target
        if tokenizer is None:
            return [str(i) for i in ids]
        text = tokenizer.decode(ids)
        return [text[begin:end] or self.word(i, tokenizer)
                for i, (begin, end) in zip(ids, written_spans(ids, tokenizer), strict=True)]  # fmt: skip

    def answer(self, number: int) -> str:
        """What an answer of the head is called."""
        c = self.config
        if c.head in ("classes", "classes-words", "tags"):
            return c.labels[number] if c.labels else f"LABEL_{number}"
        if c.head in ("span", "replaced"):
            return ("begins here", "ends here")[number] if c.head == "span" else "replaced"
        return self.word(number)

    # --- words among words

    def neighbours(self, word: str, k: int = 10) -> Neighbours:
        """The entries of the vocabulary whose vectors are nearest to that of a word (the mean of its pieces)."""
        table, ids = word_vectors(self.network), self.pieces(word)
        near, cosines = nearest(table, table[ids].mean(0), k + len(ids))
        kept = [(i, c) for i, c in zip(near.tolist(), cosines.tolist(), strict=True) if i not in ids][:k]
        return Neighbours(word, [self.word(i, self.source) for i, _ in kept], torch.tensor([c for _, c in kept]))

    def pieces(self, word: str) -> list[int]:
        """Of a word within a text, where a space goes before it."""
        before, both = self.words().plain(["a", "a " + word])
        ids = both[len(before) :] if both[: len(before)] == before else self.words().plain([word])[0]
        if not ids:
            raise QkvError(f"{word!r} has no token in this vocabulary")
        return ids

    def vectors(self, word: str, texts: Sequence[str], layer: int = -1) -> Tensor:
        """(texts, C): the word in each of them, at some layer; the mean of its pieces where it stands first."""
        found = []
        for number, text in enumerate(texts, 1):
            at = text.find(word)
            with in_words():
                read = self.words().backend.encode(text)
            own = [i for i, (b, e) in enumerate(read.offsets) if at >= 0 and b < at + len(word) and e > at and e > b]
            if not own:
                raise QkvError(f"text {number} does not contain {word!r}: {text[:80]!r}")
            both = self.config.family == "encoder-decoder"
            batch: Batch = batch_of(self.config, [list(read.ids)], encoding=both).to(self.device)
            with torch.no_grad():
                found.append(layers(self.network, batch, both)[layer][0, own].float().mean(0).cpu())
        return torch.stack(found)

    def contexts(self, word: str, texts: Sequence[str], layer: int = -1) -> Contexts:
        """How alike a word's vectors are in several texts, and to the one it enters the network with."""
        return contexts(word, texts, self.vectors(word, texts, layer), self.vectors(word, texts, 0))

    # --- known alignments

    def alignment_errors(self, pairs: Sequence[Pair]) -> AlignmentErrors:
        """The error rate of every head on sentences of the grammar."""
        c, source = self.config, self.words()
        if c.family != "encoder-decoder" or c.first_id is None or not c.eos_ids:
            raise QkvError("aligning words needs an encoder-decoder that says which tokens open and end a text")
        made = (sentence(pair, source, self.target or source, c.first_id, c.eos_ids[0]) for pair in pairs)
        return errors(self.network, made)
