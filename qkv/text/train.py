"""Train a tokenizer from raw text: bytes, characters, words, BPE, byte-level BPE, WordPiece, unigram."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from qkv.errors import QkvError
from qkv.text.kinds import CHARACTER
from qkv.text.tokenizer import Tokenizer, add_special

KINDS = ("bpe", "byte-bpe", "unigram", "wordpiece", "words", "characters", "bytes")
PAD, BOS, EOS, UNK = "<pad>", "<s>", "</s>", "<unk>"
SPECIAL = [PAD, BOS, EOS, UNK]
"""The first ids of every vocabulary trained here: 0 pad, 1 begin, 2 end, 3 unknown."""
BERT_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def train_tokenizer(texts: Iterable[str], kind: str, vocab_size: int, sample_bytes: int = 100_000_000, seed: int = 0,
                    lower: bool = True, special: Sequence[str] = ()) -> Tokenizer:  # fmt: skip
    """A tokenizer of that kind with at most `vocab_size` entries, learned from at most `sample_bytes` of the texts.

    WordPiece lower-cases, as bert-base-uncased does; a translator has to write capital letters, so it can be told not to.
    `special` tokens, such as <mask>, come on top of it and stand for themselves alone.
    """
    if kind not in KINDS:
        raise QkvError(f"no tokenizer kind {kind!r}: one of {', '.join(KINDS)}")
    backend, trainer, options = MAKERS[kind]()
    texts = list(sample(texts, sample_bytes, seed))
    first = SPECIAL
    if kind == "wordpiece":
        backend.normalizer = normalizers.BertNormalizer(lowercase=lower)
        first = BERT_SPECIAL + inner_characters(texts, backend)
    options = {"vocab_size": vocab_size, "special_tokens": first, "show_progress": False, **options}
    backend.train_from_iterator(texts, trainer(**options))
    if kind in ("wordpiece", "unigram"):
        backend = always_alike(backend, BERT_SPECIAL if kind == "wordpiece" else SPECIAL)
    if backend.get_vocab_size() <= len(SPECIAL):
        raise QkvError("there is no text to learn a vocabulary from")
    add_special(backend, special)
    if kind == "wordpiece":
        sep, cls = ((name, backend.token_to_id(name) or 0) for name in ("[SEP]", "[CLS]"))
        backend.post_processor = processors.BertProcessing(sep, cls)
        return Tokenizer(backend, {"pad_token": "[PAD]", "unk_token": "[UNK]", "mask_token": "[MASK]"})
    return Tokenizer(backend, {"pad_token": PAD, "bos_token": BOS, "eos_token": EOS, "unk_token": UNK})


def inner_characters(texts: Sequence[str], backend: tokenizers.Tokenizer) -> list[str]:
    """##a, ##b ...: the commonest characters within words. The library would number them in the order of a hash table,
    another one in each run, and break ties between pieces by these numbers."""
    counted = Counter(c for text in texts for c in text)
    common = {backend.normalizer.normalize_str(c).strip() for c, _ in counted.most_common(1000)}
    whole = lambda c: len(backend.pre_tokenizer.pre_tokenize_str(f"a{c}")) == 1  # noqa: E731
    return sorted(f"##{c}" for c in common if len(c) == 1 and whole(c))


def always_alike(backend: tokenizers.Tokenizer, special: Sequence[str]) -> tokenizers.Tokenizer:
    """The same vocabulary: its special tokens are these alone, and the pieces of unigram, whose scores differ in their last
    digits from run to run, stand in the order of letters."""
    table = json.loads(backend.to_str())
    model = table["model"]
    if model["type"] == "Unigram":
        first = len(special)
        model["vocab"][first:] = sorted(model["vocab"][first:], key=lambda piece: piece[0])
    table["added_tokens"] = [token for token in table["added_tokens"] if token["content"] in special]
    return tokenizers.Tokenizer.from_str(json.dumps(table))


def sample(texts: Iterable[str], most: int, seed: int = 0) -> Iterator[str]:
    """The texts, or, beyond `most` bytes, an even sample of them in bounded memory.

    Lines are kept with a chance that halves each time the sample is full, and as many of those kept are dropped.
    """
    r, chance, kept, size = random.Random(seed), 1.0, [], 0
    for text in texts:
        if chance < 1 and r.random() >= chance:
            continue
        kept.append(text)
        size += len(text)
        if size > most:
            kept = [t for t in kept if r.random() < 0.5]
            size, chance = sum(map(len, kept)), chance / 2
    yield from kept


def _metaspace(model: Any) -> tokenizers.Tokenizer:
    """Spaces are written as U+2581 at the front of words, so that decoding gives the text back."""
    backend = tokenizers.Tokenizer(model)
    backend.normalizer = normalizers.NFC()
    pieces = [pre_tokenizers.Metaspace(), pre_tokenizers.Punctuation("isolated")]
    backend.pre_tokenizer = pre_tokenizers.Sequence(pieces)
    backend.decoder = decoders.Metaspace()
    return backend


Maker = tuple[tokenizers.Tokenizer, Callable[..., Any], dict[str, Any]]
"""An untrained tokenizer, its trainer, and the options of the trainer beside the size and the special tokens."""


def _bpe() -> Maker:
    """Merge the most frequent pair, again and again (Sennrich et al. 2016)."""
    return _metaspace(models.BPE(unk_token=UNK)), trainers.BpeTrainer, {"limit_alphabet": 1000}


def _byte_bpe() -> Maker:
    """The same over bytes: nothing is ever unknown (Radford et al. 2019)."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return backend, trainers.BpeTrainer, {"initial_alphabet": pre_tokenizers.ByteLevel.alphabet()}


def _unigram() -> Maker:
    """Pieces of a unigram language model (Kudo 2018)."""
    return _metaspace(models.Unigram()), trainers.UnigramTrainer, {"unk_token": UNK}


def _wordpiece() -> Maker:
    """BERT's pieces, ## inside words (Devlin et al. 2019)."""
    backend = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##")
    return backend, trainers.WordPieceTrainer, {}


def _words() -> Maker:
    """Whole words and single marks; a rare word is unknown."""
    return _metaspace(models.WordLevel(unk_token=UNK)), trainers.WordLevelTrainer, {}


def _characters() -> Maker:
    """One id per character, spaces and line ends included."""
    backend = tokenizers.Tokenizer(models.WordLevel(unk_token=UNK))
    backend.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex(CHARACTER), "isolated")
    backend.decoder = decoders.Fuse()
    return backend, trainers.WordLevelTrainer, {}


def _bytes() -> Maker:
    """One id per byte, whatever size is asked for: nothing is learned, and nothing is ever unknown."""
    backend, trainer, options = _byte_bpe()
    return backend, trainer, {**options, "vocab_size": len(SPECIAL) + 256}


MAKERS = dict(zip(KINDS, (_bpe, _byte_bpe, _unigram, _wordpiece, _words, _characters, _bytes), strict=True))
