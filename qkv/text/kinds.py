"""The kinds of tokenizers that trained models use, each built from its plain tables: vocabulary, merges, scores."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from qkv.config import ModelConfig
from qkv.errors import FileError
from qkv.text.tokenizer import Tokenizer, add_special, in_words

LLAMA3_SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
BYTES = pre_tokenizers.ByteLevel
SPLITS = {
    "gpt-2": lambda: BYTES(add_prefix_space=False),
    "smollm": lambda: pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), BYTES(add_prefix_space=False)]),
    "llama-bpe": lambda: pre_tokenizers.Sequence(
        [pre_tokenizers.Split(tokenizers.Regex(LLAMA3_SPLIT), "isolated"), BYTES(add_prefix_space=False, use_regex=False)]
    ),
}  # fmt: skip
"""How byte-level BPE cuts text into words before merging, by the names that GGUF uses."""
CHARACTER = r"[\s\S]"
"""The pattern at which a tokenizer of characters splits."""


def byte_level_bpe(vocab: Mapping[str, int], merges: Sequence[tuple[str, str]], special: Iterable[str] = (),
                   split: str = "gpt-2", settings: dict[str, Any] | None = None) -> Tokenizer:  # fmt: skip
    """GPT-2's tokenizer (Radford et al. 2019): merges of bytes, each byte shown as a printable character."""
    absent = next((pair for pair in merges if "".join(pair) not in vocab), None)
    if absent is not None:  # the library panics on this, with a page of its own on standard error
        raise FileError(f"this is no vocabulary for BPE: it lacks {''.join(absent)!r}, which a merge makes")
    backend = tokenizers.Tokenizer(_make(models.BPE, vocab=dict(vocab), merges=list(merges)))
    backend.pre_tokenizer = SPLITS[split]()
    backend.decoder = decoders.ByteLevel()
    add_special(backend, special)
    return Tokenizer(backend, settings)


def wordpiece(words: Sequence[str], lower: bool = True, strip_accents: bool | None = None, chinese: bool = True,
              settings: dict[str, Any] | None = None) -> Tokenizer:  # fmt: skip
    """BERT's tokenizer (Devlin et al. 2019): the longest known piece first, ## inside words, [CLS] text [SEP]."""
    vocab = {word: index for index, word in enumerate(words)}
    missing = [word for word in ("[UNK]", "[CLS]", "[SEP]") if word not in vocab]
    if missing:
        raise FileError(f"this vocabulary lacks {', '.join(missing)}: it is not a BERT vocabulary")
    model = _make(models.WordPiece, vocab=vocab, unk_token="[UNK]", max_input_chars_per_word=100)
    backend = tokenizers.Tokenizer(model)
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=chinese, strip_accents=strip_accents, lowercase=lower
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.BertProcessing(("[SEP]", vocab["[SEP]"]), ("[CLS]", vocab["[CLS]"]))
    backend.decoder = decoders.WordPiece(prefix="##")
    add_special(backend, [word for word in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]") if word in vocab])
    return Tokenizer(backend, settings)


def scored_bpe(pieces: Sequence[str], scores: Sequence[float], special: Iterable[str] = (), bos: str | None = None,
               unknown: str | None = "<unk>", prefix: bool = True, settings: dict[str, Any] | None = None
               ) -> Tokenizer:  # fmt: skip
    """LLaMA's tokenizer (SentencePiece BPE): merge the pair whose result scores best; spaces are written as U+2581,
    unknown characters as bytes <0xNN>."""
    vocab = {piece: index for index, piece in enumerate(pieces)}
    merges = merges_of(vocab, scores)
    model = _make(models.BPE, vocab=vocab, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    backend = tokenizers.Tokenizer(model)
    steps = [normalizers.Prepend("\u2581")] if prefix else []
    backend.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "\u2581")])
    join = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*join, decoders.Strip(" ", 1, 0)] if prefix else join)
    add_special(backend, special)
    put_around(backend, bos)
    return Tokenizer(backend, settings)


def merges_of(vocab: Mapping[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """All pairs of pieces that make a piece, best result first."""
    ranked = sorted(vocab, key=lambda piece: (-scores[vocab[piece]], vocab[piece]))
    cuts = ((piece[:cut], piece[cut:]) for piece in ranked for cut in range(1, len(piece)))
    return [(left, right) for left, right in cuts if left in vocab and right in vocab]


def kind_of(tokenizer: Tokenizer) -> str:
    """Return the name of this kind in data.tokenizer: bpe, byte-bpe, unigram, wordpiece, words, characters or bytes."""
    table = json.loads(tokenizer.to_json())
    model, split = table["model"], json.dumps(table["pre_tokenizer"])
    if model["type"] == "BPE" and '"ByteLevel"' in split:
        return "byte-bpe" if model["merges"] else "bytes"
    if model["type"] == "WordLevel":
        return "characters" if json.dumps(CHARACTER)[1:-1] in split else "words"
    return str(model["type"]).lower()


def lowercases(tokenizer: Tokenizer) -> bool:
    """Tell whether it lowercases the text, as bert-base-uncased does."""
    normalizer = tokenizer.backend.normalizer
    return normalizer is not None and normalizer.normalize_str("A") == "a"


def put_around(backend: tokenizers.Tokenizer, bos: str | None, eos: str | None = None) -> None:
    """Put the begin-of-sentence token before every text and the end-of-sentence token after it, where there is one."""
    before, after = [bos] if bos is not None else [], [eos] if eos is not None else []
    ids = {token: backend.token_to_id(token) for token in before + after}
    if absent := [token for token, index in ids.items() if index is None]:
        raise FileError(f"{absent[0]!r} should stand around each text, but is not in the vocabulary")
    if ids:
        single, second = [*before, "$A", *after], [f"{part}:1" for part in [*before, "$B", *after]]
        backend.post_processor = processors.TemplateProcessing(single, [*single, *second], list(ids.items()))


def around(tokenizer: Tokenizer, c: ModelConfig, texts: int = 1) -> list[list[int]]:
    """The special tokens before, between and after one text or two: [CLS] text [SEP], or [CLS] one [SEP] two [SEP].

    They are those that the tokenizer puts there by itself; where it puts none, the model's begin and end tokens.
    """
    found = tokenizer.backend.encode("a", "a" if texts == 2 else None)
    gaps: list[list[int]] = [[] for _ in range(texts + 1)]
    behind = 0  # how many of the texts have begun
    for token, text in zip(found.ids, found.sequence_ids, strict=True):
        if text is None:
            gaps[behind].append(token)
        else:
            behind = text + 1
    begin = [] if c.bos_id is None else [c.bos_id]
    return gaps if any(gaps) else [begin, *[list(c.eos_ids[:1])] * texts]


def _make(kind: Any, **tables: Any) -> Any:
    """The library's model, or why these tables make none (a merge of unknown pieces ...)."""
    with in_words(f"this is no vocabulary for {kind.__name__}", FileError):
        return kind(**tables)
