"""Image augmentation: random variations of the training images, different in each epoch, for a whole batch at once.

All draws come from torch's own random numbers, which a checkpoint stores: a resumed run sees exactly the same images.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.config import AugmentConfig


def augment(images: Tensor, c: AugmentConfig) -> Tensor:
    """(B, C, H, W) -> the same, each turned, scaled, moved, mirrored and partly erased as `c` says; outside is 0 (black)."""
    if c.shift or c.rotate or c.scale or c.flip:
        grid = F.affine_grid(maps(len(images), c), list(images.shape), align_corners=False)  # (B, H, W, 2)
        images = F.grid_sample(images, grid, align_corners=False)
    return erase(images, c.erase) if c.erase else images


def maps(count: int, c: AugmentConfig) -> Tensor:
    """(B, 2, 3): affine maps from positions in the new image, from -1 to 1, to positions in the old one."""
    angle = between(count, -c.rotate, c.rotate) * (math.pi / 180)
    zoom = 1 / between(count, 1 - c.scale, 1 + c.scale)
    mirror = torch.where(torch.rand(count) < 0.5, -1.0, 1.0) if c.flip else torch.ones(count)
    cos, sin = zoom * angle.cos(), zoom * angle.sin()
    rows = [torch.stack([cos * mirror, -sin, between(count, -2 * c.shift, 2 * c.shift)], 1),
            torch.stack([sin * mirror, cos, between(count, -2 * c.shift, 2 * c.shift)], 1)]  # fmt: skip
    return torch.stack(rows, 1)


def between(count: int, low: float, high: float) -> Tensor:
    return low + (high - low) * torch.rand(count)


def erase(images: Tensor, chance: float) -> Tensor:
    """Some images with a rectangle of noise, an eighth to a half of the side each way."""
    count, _, height, width = images.shape
    inside = (torch.rand(count) < chance)[:, None, None]  # (B, 1, 1)
    for axis, side in ((1, height), (2, width)):
        length = side * between(count, 1 / 8, 1 / 2)
        first = (side - length) * torch.rand(count)
        at = torch.arange(side)[None]  # (1, side)
        within = (at >= first[:, None]) & (at < (first + length)[:, None])  # (B, side)
        inside = inside & within.unsqueeze(3 - axis)  # (B, H, W) in the end
    return torch.where(inside[:, None], 255 * torch.rand_like(images), images)
