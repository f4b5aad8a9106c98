"""Where a task's tokenizer comes from: the model it starts from, a given file or folder, or the training text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from qkv.config import DataConfig, Recipe
from qkv.convert.tokenizer_files import read_tokenizer
from qkv.data.sources import Corpus, Record
from qkv.errors import QkvError
from qkv.text.kinds import put_around
from qkv.text.tokenizer import Tokenizer
from qkv.text.train import BOS, EOS, PAD, sample, train_tokenizer

RECORDS, BYTES = 200_000, 30_000_000
"""A vocabulary is learned from about so many records, and from at most so many bytes of text: more changes it little."""


def given_tokenizer(recipe: Recipe) -> Tokenizer | None:
    """The tokenizer of the model that training starts from, or the one that the recipe names; None = learn one."""
    assert recipe.data is not None
    place = recipe.data.vocabulary or recipe.tune.start
    return read_tokenizer(place) if place else None


def learn_tokenizer(corpora: Sequence[Corpus], texts_of: Callable[[Record], Iterable[str]], data: DataConfig,
                    say: Callable[[str], None], special: Sequence[str] = ()) -> Tokenizer:  # fmt: skip
    """From the texts of the records; of a large corpus, from records spread evenly over it, always the same ones."""
    stride = max(1, round(sum(corpus.about() for corpus in corpora) / RECORDS))
    total = 0

    def lines() -> Iterator[str]:
        nonlocal total
        for corpus in corpora:
            behind = total
            for number, record in corpus.read(0, stride):
                texts = list(texts_of(record))
                total = behind + number * len(texts)
                yield from texts

    texts = list(sample(lines(), BYTES))
    if not any(text.strip() for text in texts):
        lost = sum((corpus.skipped for corpus in corpora), Counter[str]())
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in lost.items()) or "only blank lines"
        raise QkvError(f"the training text has no line to learn from: {reasons}")
    say(f"learning the vocabulary from {len(texts):,} of {'about ' if stride > 1 else ''}{total:,} lines")
    tokenizer = train_tokenizer(texts, data.tokenizer, data.vocab_size, lower=data.lower, special=special)
    if tokenizer.size < data.vocab_size:
        say(f"it has {tokenizer.size:,} entries, of {data.vocab_size:,} asked for: these lines have no more")
    return tokenizer


def end_only(tokenizer: Tokenizer) -> Tokenizer:
    """WordPiece as the others: an end token, and nothing before the text."""
    if tokenizer.id_of(EOS) is None and tokenizer.id_of("[SEP]") is not None:
        put_around(tokenizer.backend, None, "[SEP]")
    return tokenizer


def special_ids(tokenizer: Tokenizer) -> dict[str, Any]:
    """pad_id, bos_id and eos_id as a learned tokenizer names them."""
    names = (PAD, BOS, EOS) if tokenizer.id_of(EOS) is not None else ("[PAD]", "[CLS]", "[SEP]")  # WordPiece's
    pad, bos, eos = (tokenizer.id_of(name) for name in names)
    return {"pad_id": pad or 0, "bos_id": bos, "eos_id": eos, "start_id": None}
