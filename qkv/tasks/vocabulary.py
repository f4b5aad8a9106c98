"""Where a task's tokenizer comes from: the model it starts from, a given file or folder, or the training text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from qkv.config import DataConfig, Recipe
from qkv.convert.tokenizer_files import open_target_tokenizer, read_tokenizer
from qkv.data.sources import Corpus, Record
from qkv.errors import ConfigError, QkvError
from qkv.text.kinds import kind_of, put_around
from qkv.text.tokenizer import Tokenizer
from qkv.text.train import BOS, EOS, PAD, sample, train_tokenizer
from qkv.text.wording import plural

RECORDS, BYTES = 200_000, 30_000_000
"""A vocabulary is learned from about so many records, and from at most so many bytes of text: more changes it little."""


def given_tokenizer(recipe: Recipe) -> Tokenizer | None:
    """The tokenizer of the model that training starts from, or the one that the recipe names; None = learn one."""
    assert recipe.data is not None
    place = recipe.data.vocabulary or recipe.tune.start
    return read_tokenizer(place) if place else None


def given_target(recipe: Recipe) -> Tokenizer | None:
    """The same for the target language, where that has a vocabulary of its own."""
    assert recipe.data is not None
    place = recipe.data.vocabulary or recipe.tune.start
    return open_target_tokenizer(place) if place else None


TOKENS = {
    "bpe": "BPE tokens",
    "byte-bpe": "byte-level BPE tokens",
    "wordpiece": "WordPiece tokens",
    "unigram": "unigram tokens",
}
"""How the entries of a vocabulary are called; those of other kinds are words, characters or bytes."""


def describe_vocabulary(source: Tokenizer, target: Tokenizer | None = None) -> str:
    """Describe a vocabulary: "8,000 BPE tokens"; both where source and target have vocabularies of their own."""
    own = target is not None and target.to_json() != source.to_json()
    sizes = [source, target] if own and target is not None else [source]
    found = [f"{one.size:,} {TOKENS.get(kind_of(one), kind_of(one))}" for one in sizes]
    return f"{found[0]} for the source, {found[1]} for the target" if own else found[0]


def learn_tokenizer(corpora: Sequence[Corpus], texts_of: Callable[[Record], Iterable[str]], data: DataConfig,
                    say: Callable[[str], None], special: Sequence[str] = (), nouns: str = "texts") -> Tokenizer:  # fmt: skip
    """From the texts of the records, which are called `nouns`; of a large corpus, from records spread evenly over it, always
    the same ones."""
    if data.lower and data.tokenizer != "wordpiece":
        raise ConfigError(f"data.lower is for data.tokenizer = 'wordpiece', this is {data.tokenizer!r}: leave it out")
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
        raise QkvError(f"the training text has nothing to learn from: {reasons}")
    some = f"{len(texts):,} of {'about ' if stride > 1 else ''}" if stride > 1 or len(texts) < total else ""
    say(f"Training the tokenizer on {some}{plural(total, nouns)}")
    tokenizer = train_tokenizer(texts, data.tokenizer, data.vocab_size, lower=data.lower, special=special)
    if tokenizer.size < data.vocab_size:
        say(f"it has {tokenizer.size:,} entries, of {data.vocab_size:,} requested: the text has no more")
    return tokenizer


def end_only(tokenizer: Tokenizer) -> Tokenizer:
    """WordPiece as the others: an end token, and nothing before the text."""
    if tokenizer.id_of(EOS) is None and tokenizer.id_of("[SEP]") is not None:
        put_around(tokenizer.backend, None, "[SEP]")
    return tokenizer


def special_ids(tokenizer: Tokenizer) -> dict[str, Any]:
    """pad_id, bos_id and eos_id as the tokenizer's settings name them, or by the names that learned ones have; GPT-2's has
    one for both ends. Where no token begins a text, a decoder begins with padding, as T5's does."""
    named = tokenizer.special_names()
    roles = {"pad": (PAD, "[PAD]"), "bos": (BOS, "[CLS]", "<|endoftext|>"), "eos": (EOS, "[SEP]", "<|endoftext|>")}
    found: dict[str, int | None] = {}
    for role, usual in roles.items():
        ids = (tokenizer.id_of(name) for name in (named.get(f"{role}_token", ""), *usual) if name)
        found[role] = next((i for i in ids if i is not None), None)
    start = found["pad"] if found["bos"] is None else None
    return {"pad_id": found["pad"] or 0, "bos_id": found["bos"], "eos_id": found["eos"], "start_id": start}
