"""Windows: documents of any length as rows of at most T tokens. Long ones are cut, short ones are packed together.

A document is <s> text </s>. A window reads the tokens a to b - 1 of it and predicts a + 1 to b, so consecutive windows
share one token, and every token but the first is predicted exactly once. Where the first cut falls is drawn anew in every
epoch: the windows of two epochs differ, and no token is always at the edge. All of it is a function of (seed, epoch, pool)
as in batching.py, so a run that stopped goes on with the very next row.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch

from qkv.batch import IGNORED, Batch
from qkv.data.batching import Batches

Ids = np.ndarray
"""(n,) int32."""
Row = list[Ids]
"""Windows that share a row; one of n + 1 tokens takes n places, as input and as target."""


class Chunk(NamedTuple):
    """Some tokens of a document: a pool holds chunks of at most T tokens, however long its documents are."""

    ids: Ids
    more: bool
    """The next chunk goes on with the same document."""


def chunks(ids: Sequence[int], size: int, more: bool = False) -> list[Chunk]:
    """A text in chunks of `size` tokens; `more` = the next text goes on after it."""
    table = np.array(ids, dtype=np.int32)
    cuts = [*range(0, len(table), size), len(table)]
    return [Chunk(table[a:b], more or b < len(table)) for a, b in pairwise(cuts)]


def documents(found: Sequence[Chunk], begin: int | None, end: int | None) -> Iterator[Ids]:
    """Whole again, with a begin and an end token where there are such; one that goes on behind the last chunk has no end."""
    around = [np.array([] if token is None else [token], dtype=np.int32) for token in (begin, end)]
    parts: list[Ids] = []
    for number, chunk in enumerate(found, 1):
        parts.append(chunk.ids)
        if not chunk.more or number == len(found):
            yield np.concatenate([around[0], *parts, *([] if chunk.more else around[1:])])
            parts = []


def windows(document: Ids, size: int, first: int) -> list[Ids]:
    """Windows of `size` targets, the first one of `first`; a document that fits is one window."""
    targets = len(document) - 1
    if targets <= size:
        return [document] if targets > 0 else []
    cuts = [0, *range(first, targets, size), targets]
    return [document[a : b + 1] for a, b in pairwise(cuts)]  # views, no copies


def length(row: Row) -> int:
    """Places that a row takes."""
    return sum(len(window) - 1 for window in row)


def pack_windows(short: Sequence[Ids], size: int) -> list[Row]:
    """Rows of at most `size` places, each window put where it fits best (best fit; what is left over is padding)."""
    rows: list[Row] = []
    by_room: list[list[Row]] = [[] for _ in range(size + 1)]
    for window in short:
        need = len(window) - 1
        room = next((room for room in range(need, size) if by_room[room]), size)
        row: Row = by_room[room].pop() if room < size else []
        if not row:
            rows.append(row)
        row.append(window)
        by_room[room - need].append(row)
    return rows


def rows_of(found: Iterator[Ids] | Sequence[Ids], size: int, pack: bool, r: random.Random | None = None) -> list[Row]:
    """All windows of some documents in rows; without random numbers `r`, always the same, cut from the beginning."""
    cut = [w for d in found for w in windows(d, size, r.randint(1, size) if r else size)]
    whole, short = [[w] for w in cut if len(w) > size], [w for w in cut if len(w) <= size]
    if r is not None:
        r.shuffle(short)
    return whole + (pack_windows(short, size) if pack else [[w] for w in short])


class StreamWindow(NamedTuple):
    """A window of a stream."""

    ids: Ids
    fresh: bool
    """What the row held before is another text, or nothing."""


class Windows(Batches[Any]):
    """Batches of rows. The pool holds chunks of documents; where they are cut, and which share a row, is drawn per epoch.

    A document that two pools share is two: what is read then depends on the pool alone.
    """

    begin: int | None = None
    end: int | None = None
    """The tokens before and after each document."""
    size: int
    """Places of a row, T."""
    pack: bool
    """Several documents in a row, where the network can keep them apart."""

    def cut(self, examples: list[Any], key: str) -> list[list[Any]]:
        whole = documents(examples, self.begin, self.end)
        return super().cut(rows_of(whole, self.size, self.pack, random.Random(f"{key}:windows")), key)


class Streams(Windows):
    """Batches whose rows go on: row i begins where row i of the batch before ended, so that a network may carry its state
    over (truncated back-propagation through time; Mikolov et al. 2010).

    All windows of a pool, document after document, are dealt in equal stretches to as many rows as a batch has; what is
    over, less than a window a row, waits for another epoch, which begins elsewhere. A row is fresh where a document begins
    and at the beginning of its stretch. Documents are in rows of their own, short ones with padding behind them.
    """

    together = 1
    """Batches that one update learns from (gradient accumulation): they have different rows, and the next so many go on."""

    def cut(self, examples: list[Any], key: str) -> list[list[Any]]:
        parts = self.in_order(examples, random.Random(f"{key}:streams"))
        rows = max(1, min(self.tokens // self.size, len(parts) // self.together))
        count = len(parts) // (rows * self.together)  # windows of each row
        stretches = [parts[at : at + count] for at in range(0, count * rows * self.together, max(count, 1))]
        steps = [[StreamWindow(part.ids, part.fresh or step == 0) for part in side] for step, side in
                 enumerate(zip(*stretches, strict=True))]  # fmt: skip
        return [side[at : at + rows] for side in steps for at in range(0, len(side), rows)]

    def in_order(self, examples: list[Any], r: random.Random) -> list[StreamWindow]:
        """The windows of all documents, which are shuffled, from a window on that is drawn; behind the last comes the first."""
        whole = list(documents(examples, self.begin, self.end))
        r.shuffle(whole)
        cuts = [windows(document, self.size, r.randint(1, self.size)) for document in whole]
        parts = [StreamWindow(window, number == 0) for cut in cuts for number, window in enumerate(cut)]
        first = r.randrange(max(len(parts), 1))
        return parts[first:] + parts[:first]


def side_by_side(found: Sequence[Ids], size: int) -> Iterator[list[Ids]]:
    """Some documents, the longest first, window after window: row i of each list goes on with row i of the one before.
    Those that have ended are the last rows, and leave."""
    cuts = [windows(document, size, size) for document in found]
    for number in range(max(map(len, cuts), default=0)):
        yield [cut[number] for cut in cuts if number < len(cut)]


def collate(rows: Sequence[Row], pad_id: int) -> Batch:
    """Inputs, targets one place further on, padding at the end; which document each token is of, where some row has several."""
    shape = len(rows), max(map(length, rows))
    inputs, targets, numbers = (np.full(shape, filler, dtype=np.int64) for filler in (pad_id, IGNORED, -1))
    for row, windows_of_row in enumerate(rows):
        at = 0
        for number, window in enumerate(windows_of_row):
            places = slice(at, at + len(window) - 1)
            inputs[row, places], targets[row, places], numbers[row, places] = window[:-1], window[1:], number
            at = places.stop
    real = torch.from_numpy(numbers >= 0)  # (B, T)
    # one document a row needs no table: the kernel's causal flag says it all
    several = any(len(row) > 1 for row in rows)
    return Batch(torch.from_numpy(inputs), None if real.all() else real, torch.from_numpy(targets),
                 documents=torch.from_numpy(numbers) if several else None)  # fmt: skip
