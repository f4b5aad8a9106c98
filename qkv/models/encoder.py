"""Encoder-only models: BERT and its variants, and with patches the Vision Transformer."""

from __future__ import annotations

from torch import nn

from qkv.batch import Batch
from qkv.models.output import Output
from qkv.parts.masks import Mask


class Encoder(nn.Module):
    """Every position attends to all others (unless `causal`); the head turns the last vectors into classes, tags, words or spans."""

    def __init__(self, embed: nn.Module, stack: nn.Module, head: nn.Module, n_patches: int = 0, causal: bool = False):
        super().__init__()
        self.embed = embed
        self.stack = stack
        self.head = head
        self.n_patches = n_patches
        self.causal = causal

    def forward(self, batch: Batch) -> Output:
        """Compute the vectors of all positions (B, T, C), of tokens or of [class] and the patches of an image (T = 1 + patches)."""
        x = batch.images if batch.inputs is None else batch.inputs
        assert x is not None
        length = 1 + self.n_patches if batch.inputs is None else x.size(1)
        mask = Mask(length, batch.mask, causal=self.causal, device=x.device, documents=batch.documents)
        hidden, _ = self.stack(self.embed(x, mask, batch.segments), mask)
        return Output(hidden, self.head, batch.mask)
