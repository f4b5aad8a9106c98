"""Inputs of a network as users give them: validated and converted to a Batch; unsuitable inputs are an error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from qkv.batch import Batch, pad
from qkv.config import ModelConfig
from qkv.config.rules import ABSOLUTE, CARRIED
from qkv.errors import QkvError
from qkv.models.build import n_patches

Ids = Tensor | Sequence[int] | Sequence[Sequence[int]]
"""(B, T) ids, or lists of them; rows of different length are padded on the right. One row alone is a batch of one."""


def batch_of(c: ModelConfig, ids: Ids, target_ids: Ids | None = None, mask: Ids | None = None,
             segments: Ids | None = None, source_mask: Ids | None = None, encoding: bool = False) -> Batch:  # fmt: skip
    """What the network of `c` reads; with `encoding`, what the encoder of an encoder-decoder reads: no target."""
    two = c.family == "encoder-decoder"
    if (target_ids is not None) != (two and not encoding):
        raise QkvError(
            f"a model of family {c.family!r} takes " + ("(source_ids, target_ids)" if target_ids is None else "ids")
        )
    if (source_mask is not None and not two) or (mask is not None and encoding):
        raise QkvError("source_mask goes with the source of an encoder-decoder, mask with all other ids")
    image = c.image_size is not None
    given = source_mask if two else mask
    first, real = images(ids, given, c) if image else words(ids, given, c.vocab_size, c)
    kind = "images" if image else "source" if two else "inputs"
    batch = Batch(**{kind: first, "source_mask" if two else "mask": real})  # type: ignore[arg-type]
    if segments is not None:
        batch = replace(batch, segments=segment_numbers(segments, batch, c))
    if target_ids is None:
        return batch
    target, own = words(target_ids, mask, c.target_size, c)
    if target.size(0) != first.size(0):
        raise QkvError(f"{first.size(0)} sources but {target.size(0)} targets")
    return replace(batch, inputs=target, mask=own)


def has_fixed_length(c: ModelConfig) -> bool:
    """Whether max_length is a wall (learned positions, Linformer) and not only what the model was trained on."""
    return c.position == "learned" or "linformer" in (*c.mixer, c.cross_mixer)


def packs(c: ModelConfig) -> bool:
    """Whether several documents can share a row without seeing each other; other mixers and cells would mix them."""
    alone = c.family == "encoder-decoder" or c.recurrent is not None or c.prefix_mask
    return not alone and set(c.mixer) <= {"softmax", "window"}


def carries(c: ModelConfig) -> bool:
    """Whether what is remembered of a text is of fixed size, however long it was, and no place in it is counted: the state
    after it can then be carried to the next text."""
    if c.recurrent is not None:
        return c.position not in ABSOLUTE  # the others act in attention blocks alone
    return c.position == "none" and CARRIED.issuperset(c.mixer)


def words(ids: Ids, mask: Ids | None, vocab_size: int, c: ModelConfig) -> tuple[Tensor, Tensor | None]:
    """Ids as (B, T), and which are real (B, T); None where all are."""
    table, own = pad_ids(ids, c.pad_id if c.pad_id < vocab_size else 0)
    if table.dim() != 2 or table.numel() == 0 or (own is not None and not own.any(1).all()):
        raise QkvError("ids are rows of at least one token each; an empty one was given")
    if int(table.min()) < 0 or int(table.max()) >= vocab_size:
        wrong = int(table.min()) if int(table.min()) < 0 else int(table.max())
        raise QkvError(
            f"token id {wrong} is not in the vocabulary, which has {vocab_size} words (0 to {vocab_size - 1})"
        )
    if has_fixed_length(c) and table.size(1) > c.max_length:
        raise QkvError(f"{table.size(1)} tokens, but this model reads at most {c.max_length}: shorten the text")
    return table, real_places(mask, tuple(table.shape), own)


def images(given: Any, mask: Ids | None, c: ModelConfig) -> tuple[Tensor, Tensor | None]:
    """(B, channels, height, width), and which of the [class] vector and the patches are seen (B, 1 + patches)."""
    shape = (c.n_channels, c.image_size, c.image_size)
    if not isinstance(given, Tensor) or tuple(given.shape[1:]) != shape or not given.is_floating_point():
        raise QkvError(f"this model reads images: a float tensor (batch, {', '.join(map(str, shape))})")
    return given, real_places(mask, (given.size(0), 1 + n_patches(c)))


def real_places(mask: Any, shape: tuple[int, ...], own: Tensor | None = None) -> Tensor | None:
    """A mask as bools of this shape: True, or 1, where a token is real. `own` are the places that were not padded here."""
    if mask is None:
        return own
    try:
        table = torch.as_tensor(mask)
    except (TypeError, ValueError, RuntimeError):
        table = torch.empty(0)
    if tuple(table.shape) != shape or not ((table == 0) | (table == 1)).all():
        raise QkvError(f"a mask has a True (or 1) for each real token and is here of shape {shape}")
    table = table.bool() if own is None else table.bool() & own.to(table.device)
    if not table.any(1).all():
        raise QkvError("a mask has a row without any real token")
    return table


def segment_numbers(segments: Ids, batch: Batch, c: ModelConfig) -> Tensor:
    """(B, T) segment numbers of the inputs."""
    if c.n_segments == 0 or c.family != "encoder" or batch.inputs is None:
        raise QkvError("this model has no segments: leave them out")
    table, _ = pad_ids(segments, 0)
    if table.shape != batch.inputs.shape or int(table.min()) < 0 or int(table.max()) >= c.n_segments:
        raise QkvError(f"segments are numbers from 0 to {c.n_segments - 1}, one for each of the ids")
    return table


def pad_ids(ids: Any, pad_id: int) -> tuple[Tensor, Tensor | None]:
    """(B, T), and which places are not padding (B, T); None where all are not."""
    if isinstance(ids, Tensor):
        if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
            raise QkvError(f"ids are whole numbers, given a tensor of {ids.dtype}")
        return (ids[None] if ids.dim() == 1 else ids).long(), None
    rows: Any = [ids] if is_row(ids) else ids
    if not isinstance(rows, Sequence) or not all(map(is_row, rows)):
        raise QkvError("ids are whole numbers, in a list, a list of lists or a tensor")
    return pad(rows, pad_id) if any(map(len, rows)) else (torch.zeros(len(rows), 0, dtype=torch.long), None)


def is_row(ids: Any) -> bool:
    return isinstance(ids, Sequence) and all(isinstance(i, int) and abs(i) < 2**62 for i in ids)
