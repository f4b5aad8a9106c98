"""SentencePiece `.model` files (Kudo and Richardson 2018), unigram and BPE, become our Tokenizer: same ids, same text.

The file is a protobuf message: pieces with score and type, how they were trained, how text is normalised. Only the wire
format is needed to read it: a field is a varint key (number << 3 | kind) and then a varint, 8 bytes, a length and so many
bytes, or 4 bytes.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from qkv.errors import FileError
from qkv.text.kinds import merges_of
from qkv.text.tokenizer import Tokenizer, add_special, check_charsmap, in_words

MAX_BYTES = 100_000_000
MAX_PIECES = 2_000_000
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)
UNIGRAM, BPE = 1, 2
SPACE = "\u2581"
UNKNOWN_TEXT = " \u2047 "
"""What an unknown piece is decoded to, where the file does not say."""


# --- the wire format


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(number, value) of each field of a protobuf message; integers for varints, bytes for all else."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, at = varint(data, at)
            yield number, value
            continue
        if kind == 2:
            length, at = varint(data, at)
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
        else:
            raise ValueError(f"field kind {kind}")
        if length > len(data) - at or number == 0:
            raise ValueError("a field goes beyond the end")
        yield number, data[at : at + length]
        at += length


def varint(data: bytes, at: int) -> tuple[int, int]:
    """An integer, seven bits per byte, lowest first; and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise ValueError("it ends within a number")
        value |= (data[at] & 127) << shift
        at += 1
        if data[at - 1] < 128:
            return value, at
    raise ValueError("a number of more than 64 bits")


def message(data: bytes, known: dict[int, tuple[str, Any]]) -> dict[str, Any]:
    """The known fields of a message by name; each is of the type of its default, which stands in for an absent one."""
    found = dict(known.values())
    for number, value in fields(data):
        if number not in known:
            continue
        name, default = known[number]
        if isinstance(default, (bool, int)) != isinstance(value, int):
            raise ValueError(f"{name} has another type than expected")
        match default, value:
            case float(), bytes():
                found[name] = struct.unpack("<f", value)[0]
            case str(), bytes():
                found[name] = value.decode("utf-8")
            case bool(), _:
                found[name] = bool(value)
            case _:
                found[name] = value
    return found


PIECE: dict[int, tuple[str, Any]] = {1: ("text", ""), 2: ("score", 0.0), 3: ("type", NORMAL)}
TRAINER: dict[int, tuple[str, Any]] = {
    3: ("kind", UNIGRAM), 24: ("suffix", False), 35: ("byte_fallback", False), 44: ("unknown_text", UNKNOWN_TEXT),
    41: ("bos_id", 1), 42: ("eos_id", 2), 43: ("pad_id", 2**64 - 1),
}  # fmt: skip
NORMALIZER: dict[int, tuple[str, Any]] = {
    1: ("name", ""), 2: ("charsmap", b""), 3: ("prefix", True), 4: ("squeeze", True), 5: ("escape", True),
}  # fmt: skip


# --- the model


@dataclass(frozen=True)
class ModelPiece:
    text: str
    score: float
    type: int


@dataclass(frozen=True)
class SentencePiece:
    """What a .model file says."""

    pieces: list[ModelPiece]
    trainer: dict[str, Any]
    normalizer: dict[str, Any]

    def named(self, *types: int) -> list[str]:
        return [p.text for p in self.pieces if p.type in types]


def read_sentencepiece(path: str | Path, settings: dict[str, Any] | None = None) -> Tokenizer:
    """The tokenizer of a SentencePiece .model file. Like SentencePiece, it puts no token around a text by itself."""
    model = parse(path)
    unknown = check(model, path)
    if model.normalizer["charsmap"]:
        check_charsmap(model.normalizer["charsmap"], str(path))
    with in_words(f"{path} holds no usable vocabulary", FileError):
        backend = tokenizers.Tokenizer((unigram if model.trainer["kind"] == UNIGRAM else bpe)(model, unknown))
        backend.normalizer = normalizer(model)
        if (cuts := cutter(model)) is not None:
            backend.pre_tokenizer = cuts
        backend.decoder = decoder(model, unknown)
        add_special(backend, model.named(CONTROL))
    return Tokenizer(backend, names(model, unknown) | (settings or {}))


def parse(path: str | Path) -> SentencePiece:
    """Read the file, bounded; anything that is not what it should be is a FileError."""
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}; correct the path") from None
    if len(data) > MAX_BYTES:
        raise FileError(f"{path} is larger than {MAX_BYTES:,} bytes: it is not a SentencePiece model")
    pieces: list[ModelPiece] = []
    parts = {2: b"", 3: b""}  # how the pieces were trained, and how text is normalised
    try:
        for number, value in fields(data):
            if number in (1, 2, 3) and not isinstance(value, bytes):
                raise ValueError("a message is missing")
            if number == 1 and len(pieces) < MAX_PIECES:
                pieces.append(ModelPiece(**message(value, PIECE)))  # type: ignore[arg-type]
            elif number in parts:
                parts[number] += value  # type: ignore[operator]
        return SentencePiece(pieces, message(parts[2], TRAINER), message(parts[3], NORMALIZER))
    except (ValueError, struct.error) as error:
        raise FileError(f"{path} is not a SentencePiece model ({error}); download it again") from None


def check(model: SentencePiece, path: str | Path) -> str:
    """Refuse what would give other ids than SentencePiece does; the name of the unknown piece."""
    texts = [p.text for p in model.pieces]
    unknown = model.named(UNKNOWN)
    if len(unknown) != 1 or len(set(texts)) != len(texts) or "" in texts or len(texts) >= MAX_PIECES:
        raise FileError(
            f"{path} is not a SentencePiece model (no pieces, one twice, or not one unknown piece); download it again"
        )
    if not all(abs(p.score) < 1e30 and NORMAL <= p.type <= BYTE for p in model.pieces):
        raise FileError(f"{path} has a piece without a proper score or type; download it again")
    if model.trainer["kind"] not in (UNIGRAM, BPE):
        raise FileError(f"{path} is neither unigram nor BPE; of SentencePiece's kinds only these two are read")
    if model.trainer["suffix"] or not model.normalizer["escape"] or UNUSED in {p.type for p in model.pieces}:
        raise FileError(f"{path} writes spaces at the end of words, or has unused pieces; such models are not read")
    fallback = {f"<0x{byte:02X}>" for byte in range(256)}
    if model.trainer["byte_fallback"] != (set(model.named(BYTE)) == fallback) or not set(model.named(BYTE)) <= fallback:
        raise FileError(f"{path} lacks some of the 256 byte pieces; download it again")
    return unknown[0]


def unigram(model: SentencePiece, unknown: str) -> Any:
    """The likeliest way to cut a text into pieces. A user's own piece scores as SentencePiece scores it: it wins."""
    scores = [p.score for p in model.pieces if p.type == NORMAL] or [0.0]
    least, best = min(scores), max(scores)

    def score(p: ModelPiece) -> float:
        return best * len(p.text.encode()) - 0.1 if p.type == USER else p.score if p.type == NORMAL else least

    index = [p.text for p in model.pieces].index(unknown)
    return models.Unigram([(p.text, score(p)) for p in model.pieces], index, model.trainer["byte_fallback"])


def bpe(model: SentencePiece, unknown: str) -> Any:
    """Merge the pair whose result scores best, again and again."""
    vocab = {p.text: index for index, p in enumerate(model.pieces)}
    mergeable = {p.text: index for index, p in enumerate(model.pieces) if p.type == NORMAL}
    merges = merges_of(mergeable, [p.score for p in model.pieces])
    return models.BPE(
        vocab=vocab, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=model.trainer["byte_fallback"],
        ignore_merges=bool(model.named(USER)),
    )  # fmt: skip


def normalizer(model: SentencePiece) -> Any:
    """The file's own character table; spaces squeezed, and written as U+2581, one more before the text."""
    n, squeeze = model.normalizer, model.normalizer["squeeze"]
    steps: list[Any] = []
    if n["charsmap"]:
        steps += characters(n["charsmap"]) if "nfkc" in n["name"] else [normalizers.Precompiled(n["charsmap"])]
    if squeeze:
        steps += [replace("^ +", ""), replace(" {2,}", " ")]
    steps.append(normalizers.Replace(" ", SPACE))
    if squeeze:
        steps.append(replace(f"{SPACE}+$", ""))
    if n["prefix"]:
        steps.append(normalizers.Prepend(SPACE))
    return normalizers.Sequence(steps)


def characters(charsmap: bytes) -> list[Any]:
    """SentencePiece's NFKC tables. The library looks up a letter with its marks as one and drops the marks where only the
    letter is in the table; so each mark is parted from its letter by NUL, and composed with it afterwards."""
    part, join = replace(r"(?<=[\s\S])(?=\p{M})", "\0"), normalizers.Replace("\0", "")
    return [part, normalizers.Precompiled(charsmap), join, normalizers.NFC()]


def replace(pattern: str, text: str) -> Any:
    return normalizers.Replace(tokenizers.Regex(pattern), text)


def cutter(model: SentencePiece) -> Any:
    """A user's own pieces stand alone in BPE. Text that reads like a control piece ("</s>") is cut within, so that it
    stays text: the library's model would take it for the piece itself."""
    cuts: list[Any] = []
    own = sorted(model.named(USER), key=len, reverse=True)
    if own and model.trainer["kind"] == BPE:
        cuts.append(pre_tokenizers.Split(tokenizers.Regex("|".join(map(re.escape, own))), "isolated"))
    if model.trainer["kind"] == UNIGRAM:
        hidden = [within(name, model) for name in model.named(UNKNOWN, CONTROL) if len(name) > 1]
        hidden += ["<(?=0x[0-9A-F]{2}>)"] if model.trainer["byte_fallback"] else []
        if hidden:
            cuts.append(pre_tokenizers.Split(tokenizers.Regex("|".join(hidden)), "merged_with_previous"))
    return pre_tokenizers.Sequence(cuts) if cuts else None


def within(name: str, model: SentencePiece) -> str:
    """A pattern for the front part of a name, up to where a cut does not part two unknown characters (they make one
    unknown piece)."""
    known = {p.text for p in model.pieces if p.type == NORMAL and len(p.text) == 1}
    cut = next((i for i in range(1, len(name)) if {name[i - 1], name[i]} & known), 1)
    return f"{re.escape(name[:cut])}(?={re.escape(name[cut:])})"


def decoder(model: SentencePiece, unknown: str) -> Any:
    """U+2581 is a space again, and the one before the text goes. The space before an unknown piece's text is held as
    NUL meanwhile: it is not one of those at the front."""
    n = model.normalizer
    steps: list[Any] = [decoders.Replace(unknown, model.trainer["unknown_text"].replace(" ", "\0"))]
    steps += [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if n["prefix"] or n["squeeze"]:
        steps.append(decoders.Strip(" ", 1000 if n["squeeze"] else 1, 0))
    return decoders.Sequence([*steps, decoders.Replace("\0", " ")])


def names(model: SentencePiece, unknown: str) -> dict[str, Any]:
    """bos_token, eos_token ... where the file has them."""
    found = {"unk_token": unknown}
    for name in ("bos", "eos", "pad"):
        index = model.trainer[f"{name}_id"]
        if index < len(model.pieces) and model.pieces[index].type == CONTROL:
            found[f"{name}_token"] = model.pieces[index].text
    return found
