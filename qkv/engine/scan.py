"""quick_scan: the recurrence of a selective state space model, computed by cpp/scan.cpp, for training or inference."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from qkv.engine.native import ScanStruct, address, library
from qkv.parts.state_space import scan

STRETCH = 16
"""Tokens between two marks, as in cpp/scan.cpp."""


def quick_scan(u: Tensor, step: Tensor, decay: Tensor, enter: Tensor, leave: Tensor, hidden: Tensor
               ) -> tuple[Tensor, Tensor]:  # fmt: skip
    """As state_space.scan; what cpp/scan.cpp does not know, such as float64 or another device, goes the plain way."""
    inputs = u, step, decay, enter, leave, hidden
    suits = u.size(2) % 8 == 0 and all(x.device.type == "cpu" and x.dtype == torch.float32 for x in inputs)
    if not suits or library() is None:
        return scan(*inputs)
    return Scan.apply(*inputs)  # type: ignore[no-any-return]


class Scan(torch.autograd.Function):
    """u, dt (B, T, I), A (N, I), B and C (B, T, N), x (B, N, I) before -> y (B, T, I) and x after."""

    @staticmethod
    def forward(ctx: Any, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        inputs = tuple(x.contiguous() for x in inputs)
        u, hidden = inputs[0], inputs[-1]
        y, last = torch.empty_like(u), torch.empty_like(hidden)
        marks = u.new_empty(u.size(0), -(-u.size(1) // STRETCH), *hidden.shape[1:])  # (B, T / STRETCH, N, I)
        arguments = scan_of(inputs, y, last, marks)
        library().scan(ctypes.byref(arguments))  # type: ignore[union-attr]
        ctx.save_for_backward(*inputs, marks)
        return y, last

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor, dlast: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        *inputs, marks = ctx.saved_tensors
        hidden, dy, dlast = inputs[-1], dy.contiguous(), dlast.contiguous()
        gradients = [torch.empty_like(x) for x in inputs]
        gradients[2] = torch.empty_like(hidden)  # (B, N, I): A's, of each row by itself
        arguments = scan_of(inputs, None, None, marks)
        arguments.dy, arguments.dlast = dy.data_ptr(), dlast.data_ptr()
        arguments.du, arguments.dstep, arguments.ddecay, arguments.denter, arguments.dleave, arguments.dfirst = (
            x.data_ptr() for x in gradients
        )
        library().scan_back(ctypes.byref(arguments))  # type: ignore[union-attr]
        gradients[2] = gradients[2].sum(0)
        return tuple(gradients)


def scan_of(inputs: Any, y: Tensor | None, last: Tensor | None, marks: Tensor) -> ScanStruct:
    u, decay = inputs[0], inputs[2]
    return ScanStruct(*map(address, (*inputs, y, last, marks)), *u.shape, decay.size(0))
