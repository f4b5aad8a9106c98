"""Texts of any length for a network with room for so many tokens: special tokens around them, overlapping windows, batches."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tokenizers

from qkv.batch import IGNORED, Batch, pad
from qkv.shared_work import shared_map
from qkv.text.tokenizer import Tokenizer, in_words


def encode_texts(tokenizer: Tokenizer, texts: Sequence[str]) -> list[tokenizers.Encoding]:
    """Pieces with their places in the text, and nothing around them. All of it is text: "[SEP]" is five characters."""
    with in_words():
        return tokenizer.literal.encode_batch(list(texts), add_special_tokens=False)


def pieces_of_words(tokenizer: Tokenizer, sentences: Sequence[Sequence[str]]) -> list[list[list[int]]]:
    """sentence -> word -> ids. A sentence is read as one text, its words joined by spaces, for that is how a vocabulary was
    learned (GPT-2's has other pieces behind a space); a piece belongs to the word in which it ends. A word of which
    nothing is left (a lone control character) is the unknown token, so that every word has a piece."""
    unknown = [unknown_id(tokenizer)]
    found = []
    for words, text in zip(sentences, encode_texts(tokenizer, [" ".join(words) for words in sentences]), strict=True):
        ends: list[int] = []  # of each word, in characters
        for word in words:
            ends.append((ends[-1] + 1 if ends else 0) + len(word))
        pieces: list[list[int]] = [[] for _ in words]
        for token, (_, end) in zip(text.ids, text.offsets, strict=True):
            pieces[min(bisect_right(ends, end - 1), len(words) - 1)].append(token)
        found.append([one or unknown for one in pieces])
    return found


def unknown_id(tokenizer: Tokenizer) -> int:
    """The unknown token; in a vocabulary where nothing is unknown, the first one."""
    return next((i for name in ("[UNK]", "<unk>") if (i := tokenizer.id_of(name)) is not None), 0)


def frame_rows(
    rows: Sequence[tuple[Sequence[int], Sequence[int]]], gaps: Sequence[Sequence[int]], pad_id: int
) -> Batch:
    """(ids, targets) side by side, each with the special tokens `gaps` before and after it, which are not targets."""
    begin, end = gaps
    inputs, mask = pad([[*begin, *ids, *end] for ids, _ in rows], pad_id)  # (B, T) each
    before, behind = ([IGNORED] * len(gap) for gap in gaps)
    targets, _ = pad([[*before, *asked, *behind] for _, asked in rows], IGNORED)
    return Batch(inputs, mask, targets)


def windows(length: int, room: int, step: int) -> list[range]:
    """So many places in windows of at most `room`, each `step` further on than the last; the last one ends where the text
    ends and is as long as the others."""
    if length <= room:
        return [range(length)]
    starts = [*range(0, length - room, step), length - room]
    return [range(start, start + room) for start in starts]


def by_length(lengths: Sequence[int], tokens: int) -> Iterator[list[int]]:
    """The numbers of some rows in batches of at most `tokens` padded tokens, similar lengths together; the longest first,
    so that what does not fit in memory shows at once."""
    order = sorted(range(len(lengths)), key=lambda i: lengths[i])
    while order:
        some = max(1, tokens // max(1, lengths[order[-1]]))
        yield order[-some:]
        order = order[:-some]


def map_by_length(compute: Callable[[list[int]], Sequence[Any]], lengths: Sequence[int], tokens: int) -> list[Any]:
    """Return the result of every row, in order. `compute` takes the numbers of the rows of a batch, which has at most `tokens` padded
    tokens, and returns a result for each; workers that share their work (shared_work.py) compute some of the batches each."""
    batches = list(by_length(lengths, tokens))
    found: list[Any] = [None] * len(lengths)
    for numbers, results in zip(batches, shared_map(compute, batches), strict=True):
        for number, result in zip(numbers, results, strict=True):
            found[number] = result
    return found
