"""How many floating-point operations learning takes, from the network and the shapes of its batches.

Counted are the matrix products, 2 operations for each multiply-add, padding and the masked half of causal attention as if
they were real. What is done number by number (norms, gates, softmax, dropout, the optimiser) is little beside them and left
out, as in the figures of papers.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from qkv.config import ModelConfig
from qkv.errors import QkvError
from qkv.models.build import skeleton
from qkv.parts.attention import Attention
from qkv.parts.heads import Vocabulary
from qkv.parts.recurrent import RecurrentStack, StepAttention

Shape = tuple[int, int, int]
"""Rows, tokens of each (of the target, where there are two sides), tokens of the source (0 = none)."""


def training_flops(c: ModelConfig, batches: Iterable[Shape]) -> int:
    """Of an update from each batch. The way back has two products for each one of the way forth: one for the gradient of
    what went in, one for that of the matrix."""
    return 3 * forward_flops(c, batches)


def forward_flops(c: ModelConfig, batches: Iterable[Shape]) -> int:
    """Of the words' logits for each batch."""
    if set(c.mixer) != {"softmax"} or c.position == "relative" or c.head != "vocabulary" or c.image_size is not None:
        raise QkvError(
            "operations are counted of recurrent networks and softmax attention over words, and not of this one"
        )
    network = skeleton(c)
    return sum(2 * rows * multiplications(network, target, source) for rows, target, source in batches)


def multiplications(network: nn.Module, target: int, source: int) -> int:
    """Multiply-adds of one row: every matrix once for each token that it sees, and every query with every key."""
    total, seen = 0, dict[nn.Module, int]()  # how many tokens, where it is not those of its half
    for name, module in network.named_modules(remove_duplicate=False):
        own = source if name.startswith(("source", "encoder")) else target
        if isinstance(module, Attention):
            read = source if module.cross else own
            seen |= {module.key: read, module.value: read}
            total += own * (2 * read * module.query.out_features + matrices(module.mixer))  # scores, average
        elif isinstance(module, StepAttention):
            seen[module.key] = source
            total += own * (2 * source * module.query.out_features + matrices(module.score))
        elif isinstance(module, RecurrentStack):
            seen |= dict.fromkeys(module.bridge or (), 1)
        elif isinstance(module, nn.Linear | nn.RNNBase):
            total += seen.get(module, own) * matrices(module)
        elif isinstance(module, Vocabulary):
            total += own * module.weight.numel()
    return total


def matrices(module: nn.Module) -> int:
    """The numbers in its matrices, each of which is multiplied once for a token: of a linear map, of a cell with all its
    gates, of a score that changes the query (H, D, D); additive attention's v (H, D) belongs to the pairs."""
    least = 2 if isinstance(module, nn.Linear | nn.RNNBase) else 3
    return sum(p.numel() for p in module.parameters() if p.dim() >= least)
