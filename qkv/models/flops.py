"""Floating-point operations of a network, counted from its modules and the shapes of a batch.

Counted are matrix products, 2 operations per multiply-add, as torch.utils.flop_counter counts them; padding and the masked half of
causal attention count as if they were real. Elementwise operations (norms, gates, softmax, dropout, the scan of a state space) and
Fourier transforms are left out, as in the figures of papers. products.py and mixer_products.py have a small function for each type
of module that multiplies.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch import nn

from qkv.config import ModelConfig
from qkv.models import mixer_products  # noqa: F401  adds its functions to `products`
from qkv.models.build import skeleton
from qkv.models.products import PassShape, Product, products

Shape = tuple[int, int, int]
"""Rows, tokens of each (of the target, where there are two sides), tokens of the source (0 = none)."""


def forward_flops(c: ModelConfig, batches: Iterable[Shape]) -> int:
    """Operations of one forward pass over each batch, logits included."""
    network = skeleton(c)
    return sum(2 * one.forward for shape in batches for *_, one in walk(network, PassShape(*shape)))


def training_flops(c: ModelConfig, batches: Iterable[Shape]) -> int:
    """Operations of an update from each batch: forward and backward pass."""
    network = skeleton(c)
    passes = (PassShape(*shape, training=True) for shape in batches)
    return sum(2 * (one.forward + one.backward) for at in passes for *_, one in walk(network, at))


Path = tuple[nn.Module, ...]
"""A module after all those around it, outermost first."""


def walk(module: nn.Module, at: PassShape, path: Path = ()) -> Iterator[tuple[Path, PassShape, Product]]:
    """Yield every product of `module` and its children, with the path of the module and the shapes of its pass."""
    path = (*path, module)
    for item in products(module, at):
        if isinstance(item, Product):
            yield path, at, item
        else:
            yield from walk(*item, path)
