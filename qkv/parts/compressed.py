"""Memory-compressed attention: keys and values shortened by a strided convolution, then softmax attention on the short ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from qkv.parts.masks import Mask
from qkv.parts.mixers import arrange, masked_softmax, pack, packing, real_lengths
from qkv.parts.positions import PositionEncoding
from qkv.parts.softmax import attend, repeat_heads


class Compressed(nn.Module):
    """Attention on keys and values shortened by a strided convolution (Liu et al. 2018): O(n^2 / stride).

    Slot s holds the positions from s * stride to (s + 1) * stride - 1. Its vector is the sum of their vectors, each multiplied by
    the (D, D) matrix of its offset in the slot and of its head; initially this is the average of the slot's tokens.

    Without the causal mask a query sees every slot that holds a token. With it, a query sees the slots that are complete at its
    position, and the tokens after them up to itself, uncompressed: all of the past, nothing of the future.
    Rotary positions rotate the keys before the convolution, whose trained matrices mix the rotated channels: scores then depend
    on absolute positions too.
    """

    def __init__(self, scale: float, n_kv_heads: int, d_head: int, stride: int):
        super().__init__()
        self.scale, self.stride = scale, stride
        average = torch.eye(d_head).repeat(n_kv_heads, stride, 1, 1) / stride  # (H_kv, stride, D, D)
        self.key_kernel, self.value_kernel = nn.Parameter(average), nn.Parameter(average.clone())
        self.fast = True
        """False: always the readable path."""
        self.attend: Callable[..., Tensor] = attend
        """The kernel without the causal mask; engine/training_kernels.py puts a faster one here."""
        self.slot_kernel: type[SlotKernel] = SlotKernel
        """The kernel with the causal mask; as above."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask, encoding: PositionEncoding | None = None
                ) -> Tensor:  # fmt: skip
        """Attend: (B, H, T, D), (B, H_kv, S, D), (B, H_kv, S, D) -> (B, H, T, D)."""
        mask.forbid_packing("mixer 'compressed'")
        keys, values = self.slots(pack(key, mask)), self.slots(pack(value, mask))  # (B, H_kv, N, stride, D)
        # a few queries, such as one step of generation, and texts shorter than a slot take the readable path
        if self.fast and query.device.type == "cpu" and self.stride <= query.size(2) == mask.length:
            return (self.before if mask.causal else self.everywhere)(query, keys, values, mask)
        return self.readable(query, keys, values, mask)

    def slots(self, x: Tensor) -> Tensor:
        """Split tokens into slots: (B, H_kv, S, D) -> (B, H_kv, N, stride, D), the last slot filled up with zeros."""
        return F.pad(x, (0, 0, 0, -x.size(2) % self.stride)).unflatten(2, (-1, self.stride))

    def readable(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        """Form all weights (B, H, T, N) on slots and, with the causal mask, (B, H, T, stride) on the tokens of the next slot."""
        heads, device = query.size(1), query.device
        short_key = repeat_heads(convolve(key, self.key_kernel), heads)  # (B, H, N, D)
        short_value = repeat_heads(convolve(value, self.value_kernel), heads)
        query = query * self.scale
        scores = query @ short_key.transpose(-1, -2)  # (B, H, T, N)
        slots = torch.arange(key.size(2), device=device)
        if not mask.causal:
            filled = slots * self.stride < real_lengths(mask, device)[:, None, None, None]  # (1 or B, 1, 1, N)
            return masked_softmax(scores, filled) @ short_value

        positions = mask.positions.to(device)[:, None, :, None]  # (1 or B, 1, T, 1)
        complete = (positions + 1) // self.stride  # how many slots end at or before each query
        next_slot = complete.clamp(max=key.size(2) - 1)[..., None]  # (1 or B, 1, T, 1, 1)
        next_key = repeat_heads(key.take_along_dim(next_slot, 2), heads)  # (B, H, T, stride, D)
        next_value = repeat_heads(value.take_along_dim(next_slot, 2), heads)
        next_scores = (next_key * query[..., None, :]).sum(-1)  # (B, H, T, stride)
        begun = complete * self.stride + torch.arange(self.stride, device=device) <= positions  # (1 or B, 1, T, stride)
        allowed = torch.cat([slots < complete, begun], -1)  # (1 or B, 1, T, N + stride)
        weights = masked_softmax(torch.cat([scores, next_scores], -1), allowed)  # (B, H, T, N + stride)
        of_slots, of_tokens = weights.split([key.size(2), self.stride], -1)
        return of_slots @ short_value + (of_tokens[..., None] * next_value).sum(-2)  # (B, H, T, D)

    def everywhere(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        """Compute the same without the causal mask, by the kernel.

        The `stride` queries of a slot become heads: there are then as many queries as keys, as the faster kernel needs.
        """
        short_key, short_value = convolve(key, self.key_kernel), convolve(value, self.value_kernel)  # (B, H_kv, N, D)
        filled = None
        if mask.keys is not None:
            slots = torch.arange(key.size(2), device=query.device)
            filled = slots * self.stride < real_lengths(mask, query.device)[:, None]  # (B, N)
        queries = by_place(self.slots(query))  # (B, H * stride, N, D)
        mixed = self.attend(queries, short_key, short_value, Mask(key.size(2), filled, device=query.device), self.scale)
        return by_slot(mixed, self.stride).flatten(2, 3)[:, :, : query.size(2)]  # (B, H, N, stride, D) -> (B, H, T, D)

    def before(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        """Compute the same with the causal mask, by the kernel.

        Query t sees the slots before u = (t + 1) // stride and the first r = (t + 1) % stride tokens of slot u, the last of them
        itself. For each r there are as many queries as slots, u = 1 ... N', and the u-th sees the first u slots: the causal mask of
        a kernel. The first stride - 1 queries see no slot.
        """
        heads, lead = query.size(1), self.stride - 1
        order = packing(mask, query.device)
        query = arrange(query, order)
        queries = self.slots(query[:, :, lead:])  # (B, H, N', stride, D): row u - 1, column r; N' is the largest u
        number = queries.size(2)  # N'
        short_key, short_value = (  # (B, H_kv, N', D)
            convolve(x[:, :, :number], kernel) for x, kernel in ((key, self.key_kernel), (value, self.value_kernel))
        )
        # (B, H, N', stride, D): slot u of the queries u = 1 ... N'; where the last has none, zeros that no query sees
        next_key, next_value = (
            repeat_heads(F.pad(x, (0, 0, 0, 0, -1, number + 1 - x.size(2))), heads) for x in (key, value)
        )
        mixed = SlotsAndTokens.apply(
            queries, short_key, short_value, next_key, next_value, self.scale, self.slot_kernel
        )
        mixed = mixed.flatten(2, 3)[:, :, : query.size(2) - lead]  # (B, H, T - lead, D)
        if lead:
            own = query[:, :, :lead], key[:, :, 0, :lead], value[:, :, 0, :lead]
            mixed = torch.cat([attend(*own, Mask(lead, causal=True), self.scale), mixed], 2)
        return mixed if order is None else arrange(mixed, order.argsort(dim=-1))


def convolve(slots: Tensor, kernel: Tensor) -> Tensor:
    """Convolve by a matrix product: (B, H_kv, N, stride, D), (H_kv, stride, D, D) -> (B, H_kv, N, D)."""
    return slots.flatten(3) @ kernel.flatten(1, 2)  # (B, H_kv, N, stride * D) @ (H_kv, stride * D, D)


class SlotKernel:
    """Causal softmax attention that also returns its log-sums, and its gradients, by torch's flash kernel (never all pairs at once)."""

    @staticmethod
    def forward(query: Tensor, key: Tensor, value: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        """Attend: (B, H, N, D), (B, H_kv, N, D) twice -> averages (B, H, N, D) and log sum_j exp(scale q . k_j), (B, H, N)."""
        key, value = repeat_heads(key, query.size(1)), repeat_heads(value, query.size(1))
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        return kernel(query, key, value, 0.0, True, scale=scale)  # type: ignore[no-any-return]

    @staticmethod
    def backward(dout: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, sums: Tensor, scale: float
                 ) -> tuple[Tensor, ...]:  # fmt: skip
        """Return the gradients of query, key and value from that of `out`; the weights are exp(scale q . k - sums)."""
        heads, groups = query.size(1), key.size(1)
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
        key, value = repeat_heads(key, heads), repeat_heads(value, heads)
        dquery, *others = kernel(dout, query, key, value, out, sums, 0.0, True, scale=scale)
        return dquery, *(x.unflatten(1, (groups, -1)).sum(2) for x in others)  # (B, H, N, D) -> (B, H_kv, N, D)


class SlotsAndTokens(torch.autograd.Function):
    """One softmax over the first u slots, by a kernel, and over r tokens after them; u = 1 ... N, r = 0 ... R - 1, R the stride.

    Shapes: query (B, H, N, R, D); short_key and short_value (B, H_kv, N, D); next_key and next_value (B, H, N, R, D), of which a
    query sees the first r. The two parts are combined by their log-sums. In the backward pass the kernel gets the combined output
    and log-sum, with which its weights are those of the one softmax over both.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, short_key: Tensor, short_value: Tensor, next_key: Tensor, next_value: Tensor,
                scale: float, kernel: type[SlotKernel]) -> Tensor:  # fmt: skip
        places = query.size(3)  # R
        out, sums = kernel.forward(by_place(query), short_key, short_value, scale)  # (B, H * R, N, D), (B, H * R, N)
        out, sums = by_slot(out, places), by_slot(sums, places)  # (B, H, N, R, D), (B, H, N, R)
        scores = query @ next_key.transpose(-1, -2) * scale  # (B, H, N, R, R)
        seen = torch.ones(places, places, dtype=torch.bool, device=query.device).tril(-1)  # (R, R): the first r tokens
        scores = scores.masked_fill(~seen, float("-inf"))
        total = torch.logaddexp(sums, scores.logsumexp(-1))  # (B, H, N, R): log-sum over slots and tokens
        weights = (scores - total[..., None]).exp()
        out = (weights @ next_value).addcmul(out, (sums - total).exp()[..., None])  # rescales the slots' part
        ctx.save_for_backward(query, short_key, short_value, next_key, next_value, out, total, weights)
        ctx.scale, ctx.kernel = scale, kernel
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        query, short_key, short_value, next_key, next_value, out, total, weights = ctx.saved_tensors
        of_slots = (by_place(dout), by_place(query), short_key, short_value, by_place(out), by_place(total))
        dquery, dshort_key, dshort_value = ctx.kernel.backward(*of_slots, ctx.scale)
        # the softmax's gradient: dscores = weights (dweights - sum_j weights_j dweights_j), and that sum is dout . out
        dweights = dout @ next_value.transpose(-1, -2) - (dout * out).sum(-1, keepdim=True)  # (B, H, N, R, R)
        dscores = weights * dweights * ctx.scale
        dquery = by_slot(dquery, query.size(3)) + dscores @ next_key
        dnext = dscores.transpose(-1, -2) @ query, weights.transpose(-1, -2) @ dout
        return dquery, dshort_key, dshort_value, *dnext, None, None


def by_place(x: Tensor) -> Tensor:
    """Make the R offsets within a slot heads: (B, H, N, R, ...) -> (B, H, R, N, ...) -> (B, H * R, N, ...)."""
    return x.transpose(2, 3).flatten(1, 2)


def by_slot(x: Tensor, places: int) -> Tensor:
    """Undo `by_place`, R = `places`: (B, H * R, N, ...) -> (B, H, R, N, ...) -> (B, H, N, R, ...)."""
    return x.unflatten(1, (-1, places)).transpose(2, 3)
