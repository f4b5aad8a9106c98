"""Memory: the largest tensor that a mixer forms, forward and backward, as the sequence grows."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from qkv.parts.linear_attention import Linear, Performer
from qkv.parts.masks import Mask
from qkv.parts.mixers import Window
from qkv.parts.scores import Dot
from qkv.parts.softmax import Softmax

SCALE = 0.4


class Largest(TorchDispatchMode):
    """Remembers how many elements the largest tensor formed within the block has."""

    elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, Tensor):  # a view costs nothing beyond its storage
                self.elements = max(self.elements, tensor.untyped_storage().nbytes() // tensor.element_size())
        return result


def largest(mixer: nn.Module, length: int, causal: bool, keys: Tensor | None = None, queries: int | None = None) -> int:
    q, k, v = (torch.randn(1, 1, length, 8).requires_grad_() for _ in range(3))
    with Largest() as watch:
        q = q[:, :, length - (queries or length) :]
        mask = Mask(q.size(2), keys, length, causal)
        mixed = mixer(q, k, v, mask)[0] if isinstance(mixer, Linear) else mixer(q, k, v, mask)
        mixed.sum().backward()
    return watch.elements


@pytest.mark.parametrize("causal", [False, True])
def test_the_window_needs_memory_for_the_window_alone(causal: bool) -> None:
    length, size = 8192, 32
    left_padded = torch.arange(length)[None] >= 100
    for keys, queries in ((None, None), (left_padded, None), (left_padded, length // 2)):
        assert largest(Window(SCALE, size, 4), length, causal, keys, queries) <= length * 4 * size
    readable = Window(SCALE, size, 4)
    readable.fast = False
    assert largest(readable, 1024, causal) == 1024**2  # the watch sees what it should


@pytest.mark.parametrize("make_mixer", [Linear, lambda: Performer(SCALE, 8, 16)], ids=["linear", "performer"])
@pytest.mark.parametrize("causal", [False, True])
def test_linear_attention_needs_memory_for_the_features_alone(make_mixer: Callable[[], Linear], causal: bool) -> None:
    assert largest(make_mixer(), 4096, causal) <= 4096 * 16  # n F; all running sums would be n F D


def test_causal_softmax_needs_no_table_of_all_pairs() -> None:
    """Attention at n = 8192 in memory O(n): the kernel's own causal flag, also when rows are padded on the right."""
    length = 8192
    padded = torch.arange(length)[None] < 8000
    for keys in (None, padded):
        assert largest(Softmax(Dot(SCALE)), length, True, keys) <= 64 * length
    readable = Softmax(Dot(SCALE))
    readable.fast = False
    assert largest(readable, 1024, True) == 1024**2
