"""Memory-compressed attention by kernels equals its readable form: outputs and gradients, padding, grouped heads, both kernels."""

from __future__ import annotations

import pytest
import torch
from conftest import needs_compiler
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from qkv.engine.training_kernels import NativeKernel, quicken
from qkv.parts.compressed import Compressed, SlotKernel
from qkv.parts.masks import Mask

HEADS, SCALE = 4, 0.4


def mixer_of(stride: int, kv_heads: int, width: int, kind: str) -> Compressed:
    mixer = Compressed(SCALE, kv_heads, width, stride)
    torch.nn.init.normal_(mixer.key_kernel, std=0.4)
    torch.nn.init.normal_(mixer.value_kernel, std=0.4)
    return quicken(mixer) if kind == "native" else mixer.double()


def both_ways(mixer: Compressed, length: int, mask: Mask) -> tuple[list[Tensor], list[Tensor]]:
    """Outputs of real queries and gradients of everything, by kernels and readable."""
    number, groups, width = mixer.key_kernel.dtype, mixer.key_kernel.size(0), mixer.key_kernel.size(-1)
    x = [torch.randn(2, h, length, width, dtype=number) for h in (HEADS, groups, groups)]
    real = torch.ones(2, length, dtype=torch.bool) if mask.keys is None else mask.keys
    weight = torch.randn(2, HEADS, length, width, dtype=number) * real[:, None, :, None]
    found = []
    for mixer.fast in (True, False):
        inputs = [one.clone().requires_grad_() for one in x]
        mixed = mixer(*inputs, mask)
        wanted = [*inputs, mixer.key_kernel, mixer.value_kernel]
        found.append([mixed.transpose(1, 2)[real], *torch.autograd.grad((mixed * weight).sum(), wanted)])
    return found[0], found[1]


CASES = given(
    seed=st.integers(0, 1000), length=st.integers(1, 40), stride=st.integers(1, 5), causal=st.booleans(),
    grouped=st.booleans(), padding=st.sampled_from(["none", "right", "left", "inside"]),
)  # fmt: skip


def mask_of(length: int, causal: bool, padding: str) -> Mask:
    keys = torch.ones(2, length, dtype=torch.bool)
    if padding == "none" or length < 4:
        return Mask(length, causal=causal)
    part = {"right": slice(length // 2, None), "left": slice(0, length // 2), "inside": slice(1, length // 2)}[padding]
    keys[1, part] = False
    return Mask(length, keys, causal=causal)


@settings(max_examples=60, deadline=None)
@CASES
def test_kernels_of_torch_equal_the_readable_form(
    seed: int, length: int, stride: int, causal: bool, grouped: bool, padding: str
) -> None:
    torch.manual_seed(seed)
    mixer = mixer_of(stride, 2 if grouped else HEADS, 6, "torch")
    for fast, readable in zip(*both_ways(mixer, length, mask_of(length, causal, padding)), strict=True):
        torch.testing.assert_close(fast, readable, atol=1e-10, rtol=1e-8)


@needs_compiler
@settings(max_examples=40, deadline=None)
@CASES
def test_kernels_in_cpp_equal_the_readable_form(
    seed: int, length: int, stride: int, causal: bool, grouped: bool, padding: str
) -> None:
    torch.manual_seed(seed)
    mixer = mixer_of(stride, 2 if grouped else HEADS, 16, "native")
    assert mixer.slot_kernel is NativeKernel
    for fast, readable in zip(*both_ways(mixer, length, mask_of(length, causal, padding)), strict=True):
        torch.testing.assert_close(fast, readable, atol=2e-5, rtol=1e-4)


@needs_compiler
def test_log_sums_of_both_kernels_are_the_same() -> None:
    query, key = torch.randn(2, 6, 9, 16), torch.randn(2, 2, 9, 16)
    for one, other in zip(
        SlotKernel.forward(query, key, key, SCALE), NativeKernel.forward(query, key, key, SCALE), strict=True
    ):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_no_table_of_all_pairs_is_kept_for_the_backward_pass() -> None:
    """1,200 tokens: the table of queries and slots would have 480,000 numbers per head, all that is kept has fewer."""
    mixer, length, kept = Compressed(SCALE, 1, 16, 3), 1200, dict[int, int]()
    x = torch.randn(1, 1, length, 16, requires_grad=True)

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes() // 4
        return tensor

    for causal in (False, True):
        kept.clear()
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            mixer(x, x, x, Mask(length, causal=causal))
        assert 0 < sum(kept.values()) < length * length // 6


def test_hidden_future_has_no_gradient() -> None:
    mixer = mixer_of(3, HEADS, 6, "torch")
    x = torch.randn(1, HEADS, 20, 6, dtype=torch.double, requires_grad=True)
    mixer(x, x, x, Mask(20, causal=True))[:, :, 10].sum().backward()
    assert x.grad[:, :, 11:].abs().max() == 0 < x.grad[:, :, :11].abs().amax((1, 3)).min()


@pytest.mark.parametrize("length", [1, 2])
def test_texts_shorter_than_a_slot(length: int) -> None:
    mixer = mixer_of(3, HEADS, 6, "torch")
    x = torch.randn(1, HEADS, length, 6, dtype=torch.double)
    mixed = mixer(x, x, x, Mask(length, causal=True))
    torch.testing.assert_close(mixed[:, :, 0], x[:, :, 0])
