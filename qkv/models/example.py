"""A random batch of the kind that a network reads and is trained on, for tests and measurements."""

from __future__ import annotations

import torch
from torch import Tensor

from qkv.batch import IGNORED, Batch
from qkv.config import ModelConfig


def example(c: ModelConfig, rows: int = 3, draw: torch.Generator | None = None, length: int | None = None) -> Batch:
    """Words, segments, images, targets: what this model has, without padding; long enough for a window to move."""
    length = length or (3 * c.window + 2 if "window" in c.mixer else 7)
    length = min(length, max(1, c.max_length - 4))  # a few words more can be written
    side = lambda size: torch.randint(size, (rows, length), generator=draw)  # noqa: E731
    image = c.image_size is not None
    shape = (rows, c.n_channels, c.image_size or 1, c.image_size or 1)
    inputs = None if image and c.family == "encoder" else side(c.target_size)
    if c.prefix_mask and inputs is not None and c.first_id is not None:
        inputs[:, length // 2] = c.first_id  # source and target
    return Batch(
        inputs=inputs,
        targets=targets(c, rows, length, draw),
        answers=torch.randint(2, (rows,), generator=draw) if c.head == "masked-next" else None,
        source=side(c.vocab_size) if c.family == "encoder-decoder" and not image else None,
        segments=side(c.n_segments) if c.n_segments else None,
        images=torch.randn(shape, generator=draw) if image else None,
    )


def targets(c: ModelConfig, rows: int, length: int, draw: torch.Generator | None = None) -> Tensor | None:
    """Targets of the head: a class, score or span per row, or a word or tag per token; None if it has none."""
    if c.head in ("pooled", "none"):
        return None
    if c.head in ("classes", "classes-words"):
        classes = torch.randint(max(c.n_classes, 2), (rows,), generator=draw)
        return classes if c.n_classes > 1 else classes.float()
    if c.head == "span":
        return torch.randint(length, (rows, 2), generator=draw)
    size = {"tags": c.n_classes, "replaced": 2}.get(c.head, c.target_size)
    answers = torch.randint(size, (rows, length), generator=draw)
    # rows of unequal count are what accumulation gets wrong
    answers[torch.rand(rows, length, generator=draw) < 0.3] = IGNORED
    answers[:, 0] = 0
    return answers
