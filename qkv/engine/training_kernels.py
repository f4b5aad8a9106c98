"""quicken(network): the same network with attention, GELU and selective scans computed in C++, for training or inference.

Nothing but a few slots changes: the kernels of Softmax and Compressed, `FeedForward.activation`, `Selective.scan` (scan.py). Weights, names
and results (to rounding) are as before, so a quickened network is saved, loaded, packed and inspected like any other. What the C++
does not know, such as a mask that is a table, half precision or another device, goes the way it went.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from qkv.engine import native
from qkv.engine.scan import quick_scan
from qkv.parts.compressed import Compressed, SlotKernel
from qkv.parts.feedforward import ACTIVATIONS, FeedForward
from qkv.parts.masks import Mask
from qkv.parts.softmax import Softmax, attend
from qkv.parts.state_space import Selective

M = TypeVar("M", bound=nn.Module)


def quicken(network: M) -> M:
    """The network itself, with fast slots where there is a compiler."""
    if native.library() is not None:
        for module in network.modules():
            if isinstance(module, Softmax):
                module.attend = quick_attend
            elif isinstance(module, Compressed):
                module.attend, module.slot_kernel = quick_attend, NativeKernel
            elif isinstance(module, FeedForward) and module.activation is slow_gelu:
                module.activation = quick_gelu
            elif isinstance(module, Selective):
                module.scan = quick_scan
    return network


# --- attention


def quick_attend(query: Tensor, key: Tensor, value: Tensor, mask: Mask, scale: float, dropout: float = 0.0) -> Tensor:
    """As softmax.attend."""
    spans = mask.spans(query.size(0)) if query.size(2) == key.size(2) else None
    if spans is None or dropout or not suits(query, key, value) or query.size(3) % native.PANEL_WIDTH:
        return attend(query, key, value, mask, scale, dropout)
    return Attend.apply(query, key, value, spans, scale, mask.causal)  # type: ignore[no-any-return]


def suits(*tensors: Tensor) -> bool:
    return all(x.device.type == "cpu" and x.dtype == torch.float32 and x.stride(-1) == 1 for x in tensors)


class Attend(torch.autograd.Function):
    """softmax(Q K^T scale) V within each span, by cpp/training.cpp: (B, H, T, D), (B, H_kv, T, D) twice -> (B, H, T, D)."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, spans: Tensor, scale: float, causal: bool
    ) -> Tensor:
        """`spans` (n, 3): row, first token and end; together they hold every token."""
        sums = query.new_empty(query.shape[:3])  # (B, H, T)
        (out,) = run_kernel("attend", (query, key, value), (query,), sums, spans, scale, causal)
        ctx.save_for_backward(query, key, value, out, sums, spans)
        ctx.scale, ctx.causal = scale, causal
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        query, key, value, out, sums, spans = ctx.saved_tensors
        dout = dout if dout.stride(-1) == 1 else dout.contiguous()
        inputs, like = (query, key, value, out, dout), (query, key, value)
        gradients = run_kernel("attend_back", inputs, like, sums, spans, ctx.scale, ctx.causal)
        return *gradients, None, None, None


def run_kernel(name: str, inputs: Sequence[Tensor], like: Sequence[Tensor], sums: Tensor, spans: Tensor, scale: float,
               causal: bool) -> list[Tensor]:  # fmt: skip
    """Call a kernel with `inputs` (B, H, T, D), queries and keys first, and return its outputs, of the shapes of `like`.

    An output lies in memory as (B, T, H, D), so that joining its heads is no copy.
    """
    lying = [torch.empty_like(x.transpose(1, 2), memory_format=torch.contiguous_format) for x in like]
    outputs = [x.transpose(1, 2) for x in lying]
    heads = [native.Heads(x.data_ptr(), *x.stride()[:3]) for x in (*inputs, *outputs)]
    query, key = inputs[:2]
    arguments = native.AttentionStruct(*heads[:4], sums.data_ptr(), spans.data_ptr(), len(spans), query.size(2), query.size(1),
                                       key.size(1), query.size(3), scale, causal, 0, None, 0, *heads[4:])  # fmt: skip
    getattr(native.library(), name)(ctypes.byref(arguments))
    return outputs


class NativeKernel(SlotKernel):
    """Causal attention on slots by cpp/training.cpp."""

    @staticmethod
    def forward(query: Tensor, key: Tensor, value: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        """As SlotKernel.forward."""
        if not suits(query, key, value) or query.size(3) % native.PANEL_WIDTH:
            return SlotKernel.forward(query, key, value, scale)
        sums, spans = query.new_empty(query.shape[:3]), Mask(query.size(2)).spans(len(query))  # (B, H, N), (B, 3)
        assert spans is not None
        (out,) = run_kernel("attend", (query, key, value), (query,), sums, spans, scale, True)
        return out, sums

    @staticmethod
    def backward(dout: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, sums: Tensor, scale: float
                 ) -> tuple[Tensor, ...]:  # fmt: skip
        """As SlotKernel.backward."""
        if not suits(query, key, value, dout, out) or query.size(3) % native.PANEL_WIDTH:
            return SlotKernel.backward(dout, query, key, value, out, sums, scale)
        spans, inputs = Mask(query.size(2)).spans(len(query)), (query, key, value, out, dout)
        assert spans is not None
        return tuple(run_kernel("attend_back", inputs, inputs[:3], sums.contiguous(), spans, scale, True))


# --- GPT-2's activation: torch takes two to three times as long for its tanh (but not for its erf, which is left alone)

slow_gelu = ACTIVATIONS["gelu-tanh"]


class Gelu(torch.autograd.Function):
    """gelu-tanh by cpp/training.cpp; x is kept, and its sigmoid formed again on the way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.contiguous()
        ctx.save_for_backward(x)
        y = torch.empty_like(x)
        native.library().gelu_tanh(x.data_ptr(), y.data_ptr(), x.numel())  # type: ignore[union-attr]
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Tensor:  # type: ignore[override]
        (x,), dy = ctx.saved_tensors, dy.contiguous()
        dx = torch.empty_like(x)
        native.library().gelu_tanh_back(x.data_ptr(), dy.data_ptr(), dx.data_ptr(), x.numel())  # type: ignore[union-attr]
        return dx


def quick_gelu(x: Tensor) -> Tensor:
    return Gelu.apply(x) if suits(x) else slow_gelu(x)  # type: ignore[no-any-return]
