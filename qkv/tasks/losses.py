"""Losses of the parts of a test set, so that two models can be compared part by part.

A language model's text is cut into blocks of equal length in characters, whatever its tokens are: models with different
vocabularies have the same blocks. A masked model's parts are its windows, which depend on its vocabulary.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.batch import IGNORED, Batch
from qkv.convert.files import read_json, write_text
from qkv.errors import FileError
from qkv.models.output import Output
from qkv.objectives import copy_losses, real_rows
from qkv.shared_work import shared_map

FILE = "test.losses.json"
BLOCKS, SMALLEST = 1000, 50
"""A text has at most so many blocks, and a block at least so many characters."""
ROWS = 1024
"""Places whose logits are in memory at once."""


@dataclass(frozen=True)
class Losses:
    """The loss of every part of a test set, in their order."""

    text: str
    """SHA-256 of what was predicted: equal for two models that were asked the same."""
    bytes: int
    """Of the text, where all of it was predicted, and its tokens give it back; otherwise 0."""
    nats: tuple[float, ...]
    """-log p of all tokens of a part."""
    tokens: tuple[int, ...]
    right: tuple[int, ...] = ()
    """How many of them have the highest probability; of masked models."""

    def save(self, folder: Path) -> None:
        write_text(folder / FILE, json.dumps(asdict(self)) + "\n")

    @classmethod
    def open(cls, folder: Path) -> Losses:
        found = read_json(folder / FILE)
        try:
            numbers = (tuple(found[key]) for key in ("nats", "tokens", "right"))
            return cls(str(found["text"]), int(found["bytes"]), *numbers)
        except (KeyError, TypeError, ValueError):
            raise FileError(f"{folder / FILE} is not a file of losses: evaluate the run again") from None


@torch.no_grad()
def token_losses(output: Output, targets: Tensor) -> Tensor:
    """-log p of each target that counts, (B, T) -> (N,), in the order of rows and places."""
    head: Any = output.head
    if getattr(head, "copies", False):
        rows = torch.arange(len(targets), device=targets.device).split(max(1, ROWS // targets.size(1)))
        losses = torch.cat([copy_losses(output, output.hidden[some], targets[some], some) for some in rows])  # (B, T)
        return losses[targets != IGNORED].cpu()
    hidden, real = real_rows(output.hidden, targets)  # (N, C), (N,)
    parts = zip(hidden.split(ROWS), real.split(ROWS), strict=True)
    return torch.cat([F.cross_entropy(output.head(h).float(), t, reduction="none").cpu() for h, t in parts])


def blocks(nats: Sequence[np.ndarray], ends: Sequence[np.ndarray], text: str) -> Losses:
    """Token losses of documents, summed by blocks of characters of the whole `text`.

    nats, ends: of each document the loss of every token, and the character of the text behind which it ends.
    """
    size = max(SMALLEST, math.ceil(len(text) / BLOCKS))
    places = (np.maximum(np.concatenate(ends).astype(np.int64), 1) - 1) // size  # where each token's last character is
    count = math.ceil(len(text) / size)
    sums = np.bincount(places, np.concatenate(nats).astype(np.float64), count)
    tokens = np.bincount(places, minlength=count)
    data = text.encode()
    return Losses(hashlib.sha256(data).hexdigest(), len(data), tuple(sums.tolist()), tuple(tokens.tolist()))


@torch.no_grad()
def window_losses(network: nn.Module, batches: Sequence[Batch], for_words: Callable[[Output], Output]) -> Losses:
    """The loss of every row of some batches, and how many of its targets have the highest score."""
    device = next(network.parameters()).device

    def compute(batch: Batch) -> list[tuple[float, int, int]]:
        """Return (-log p, targets, correct predictions) of each row."""
        targets: Any = batch.targets
        output = for_words(network(batch.to(device)))
        counts = (targets != IGNORED).sum(1).tolist()  # (B,)
        rows = token_losses(output, targets.to(device)).split(counts)
        hidden, real = real_rows(output.hidden, targets.to(device))
        hits = torch.cat([output.head(h).argmax(-1) for h in hidden.split(ROWS)]).eq(real).cpu().split(counts)
        sums = ((float(row.double().sum()), int(hit.sum())) for row, hit in zip(rows, hits, strict=True))
        return [(nats, count, right) for count, (nats, right) in zip(counts, sums, strict=True)]

    digest = hashlib.sha256()
    for table in (table for batch in batches for table in (batch.inputs, batch.source, batch.targets)):
        digest.update(b"" if table is None else table.numpy().tobytes())
    found = [row for rows in shared_map(compute, batches) for row in rows]
    nats, tokens, right = zip(*found, strict=True)
    return Losses(digest.hexdigest(), 0, nats, tokens, right)
