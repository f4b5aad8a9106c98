"""Embeddings: tokens (with segments and absolute positions) and image patches become vectors (B, T, C)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from qkv.parts.dropout import Dropout
from qkv.parts.masks import Mask


class TokenEmbed(nn.Module):
    """dropout(project(norm(word [* sqrt(C)] + segment + position))); absent parts are skipped.

    `position` is a Sinusoidal or Learned scheme, added or, with `concat`, put beside the word vector.
    """

    def __init__(self, tokens: nn.Embedding, d_model: int, position: nn.Module | None = None, concat: bool = False,
                 n_segments: int = 0, scale: bool = False, norm: nn.Module | None = None, project: nn.Module | None = None,
                 dropout: float = 0.0):  # fmt: skip
        super().__init__()
        self.tokens = tokens
        self.segments = nn.Embedding(n_segments, tokens.embedding_dim) if n_segments else None
        self.position = position
        self.concat = concat
        self.scale = math.sqrt(d_model) if scale else 1.0
        self.norm = norm or nn.Identity()
        self.project = project or nn.Identity()
        self.dropout = Dropout(dropout)

    def forward(self, ids: Tensor, mask: Mask, segments: Tensor | None = None) -> Tensor:
        """ids (B, T), segments (B, T) or None = all 0 -> (B, T, C)."""
        x = self.tokens(ids) * self.scale if self.scale != 1.0 else self.tokens(ids)  # (B, T, d_embed)
        if self.segments is not None:
            x = x + self.segments(torch.zeros_like(ids) if segments is None else segments)
        if self.position is not None:
            where = self.position.vectors(mask).to(x.dtype)  # type: ignore[operator]  # (B or 1, T, d_position)
            x = torch.cat([x, where.expand(x.size(0), -1, -1)], -1) if self.concat else x + where
        return self.dropout(self.project(self.norm(x)))


class PatchEmbed(nn.Module):
    """Cut an image into P x P patches, project each, put a learned [class] vector first (Dosovitskiy et al. 2021)."""

    def __init__(self, patch_size: int, n_channels: int, d_model: int, position: nn.Module | None,
                 norm: nn.Module | None = None, dropout: float = 0.0):  # fmt: skip
        super().__init__()
        # a convolution whose stride is its size is one matrix product per patch
        self.patches = nn.Conv2d(n_channels, d_model, patch_size, patch_size)
        self.cls = nn.Parameter(torch.zeros(d_model))
        self.position = position
        self.norm = norm or nn.Identity()
        self.dropout = Dropout(dropout)

    def forward(self, images: Tensor, mask: Mask, segments: Tensor | None = None) -> Tensor:
        """(B, channels, height, width) -> (B, 1 + patches, C)."""
        x = self.patches(images).flatten(2).transpose(1, 2)  # (B, patches, C)
        x = torch.cat([self.cls.expand(x.size(0), 1, -1), x], 1)  # (B, 1 + patches, C)
        if self.position is not None:
            x = x + self.position.vectors(mask).to(x.dtype)  # type: ignore[operator]
        return self.dropout(self.norm(x))
