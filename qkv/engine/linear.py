"""Linear layers in the layout of the kernels: float32, int8 and int4 weights; embeddings and vocabularies of int8.

int8: w = scale_c q with one scale per output (column) c, or one per output and group of inputs (GGUF); each row of x is rounded to
int8 too, with its own scale, so that products are sums of integers (cpp/linear.h). The vocabulary and a tied embedding share one matrix.
"""

from __future__ import annotations

import ctypes
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.engine import native
from qkv.errors import QkvError

FLOAT32, INT8, INT4 = range(3)
"""Types of weights, as in cpp/linear.h."""
OFFSETS = {INT8: 128, INT4: 8}
"""Added to integer weights in panels, which are unsigned."""
MAX_GROUP = 2**16
"""Inputs of a group: the sum of more products might not fit into 32 bits."""
FEW_ROWS = {1: 64, 2: 256}
"""Threads (2 = two or more) -> rows up to which a product in oneDNN's blocked layout is faster (at 32 rows 1.6 x with two
threads, 1.15 x with one); beyond, and for a single row, MKL's plain one is (1.15 x at 4096)."""


class NativeLinear(nn.Module):
    """x W^T + b: (..., in) -> (..., out), W in panels for the kernels."""

    kind: int
    panels: Tensor
    scales: Tensor | None
    """Of integer weights: (out / 16, groups, 16)."""

    def __init__(self, shape: tuple[int, int], bias: Tensor | None, group: int):
        super().__init__()
        self.shape, self.group = shape, group
        self.bias: Tensor | None
        self.register_buffer("bias", None if bias is None else bias.detach())
        self.padded_bias = native.pad_rows(
            torch.zeros(shape[0]) if self.bias is None else self.bias.float()
        ).contiguous()

    @property
    def has_kernel(self) -> bool:
        """Whether the kernels support the weights as they are now: on the CPU, float32 or integers with scales of float32."""
        raise NotImplementedError

    def describe(self) -> native.LinearStruct:
        """Return the structure for the kernels; it holds addresses, which are valid as long as this module is."""
        at, (d_out, d_in) = native.address, self.shape
        return native.LinearStruct(
            at(self.panels), at(self.scales), at(self.padded_bias), d_in, d_out, self.kind, self.group
        )

    def forward(self, x: Tensor) -> Tensor:
        found = native.library() if x.device.type == "cpu" and self.has_kernel else None
        if found is None:
            return self.forward_without_native(x)
        assert x.size(-1) == self.shape[1], f"{tuple(x.shape)}: {self.shape}"
        x = x.float().contiguous()
        y = x.new_empty(*x.shape[:-1], self.shape[0])  # (..., out)
        rows = x.numel() // self.shape[1]
        found.linear(ctypes.byref(self.describe()), x.data_ptr(), rows, y.data_ptr(), torch.get_num_threads())
        return y

    def forward_without_native(self, x: Tensor) -> Tensor:
        raise NotImplementedError


class PackedLinear(NativeLinear):
    """float32 weights: panels (out / 16, in, 16). Without kernels W (out, in) is stored twice: in oneDNN's blocked layout for few
    rows, and plain for many."""

    kind, scales = FLOAT32, None

    def __init__(self, weight: Tensor, bias: Tensor | None):
        super().__init__((weight.size(0), weight.size(1)), bias, weight.size(1))
        weight = weight.detach()
        self.packed = native.supports(weight)
        if self.packed:
            self.panels = native.panels(weight)
        else:
            self.weight, self.blocks = weight, reorder(weight)

    @property
    def has_kernel(self) -> bool:
        return self.packed

    def forward_without_native(self, x: Tensor) -> Tensor:
        """Use oneDNN's blocked layout for a few rows, and the plain matrix for a single row or many."""
        rows = x.numel() // x.size(-1)
        if self.blocks is None or not 1 < rows <= FEW_ROWS[min(torch.get_num_threads(), 2)]:
            return F.linear(x, self.weight, self.bias)
        return torch.ops.mkldnn._linear_pointwise(x, self.blocks, self.bias, "none", [], "")

    @classmethod
    def join(cls, layers: Any) -> PackedLinear:
        """Return several projections of the same vectors as one: (..., in) -> (..., sum of their outputs)."""
        weight = torch.cat([layer.weight.detach() for layer in layers])
        return cls(weight, join_biases([(layer.bias, layer.out_features) for layer in layers]))


def reorder(weight: Tensor) -> Tensor | None:
    """Return W in oneDNN's blocked layout; None where it supports neither this device nor this dtype."""
    possible = weight.device.type == "cpu" and weight.dtype == torch.float32 and torch.backends.mkldnn.is_available()
    return torch.ops.mkldnn._reorder_linear_weight(weight.contiguous()) if possible else None


def join_biases(biases: list[tuple[Tensor | None, int]]) -> Tensor | None:
    """Concatenate biases, an absent one as that many zeros; None if all are absent."""
    if all(bias is None for bias, _ in biases):
        return None
    return torch.cat([torch.zeros(width) if bias is None else bias.detach() for bias, width in biases])


class QuantizedLinear(NativeLinear):
    """Weights of int8 or int4; its panels are the only copy of them."""

    def __init__(self, shape: tuple[int, int], panels: Tensor, scales: Tensor, bias: Tensor | None = None, group: int | None = None,
                 kind: int = INT8):  # fmt: skip
        group = shape[1] if group is None else group
        if group > MAX_GROUP or (group < shape[1] and group % 8):
            raise QkvError(f"int8 weights need groups of 8, 16, 24 ... inputs, at most {MAX_GROUP:,}, given {group:,}")
        super().__init__(shape, bias, group)
        self.kind = kind
        self.register_buffer("panels", panels)
        self.register_buffer("scales", scales.contiguous())

    @classmethod
    def of_float(cls, weight: Tensor, bias: Tensor | None = None) -> Self:
        """Round W (out, in) to int8 with one scale per output: q = round(w / scale), scale = max |w| / 127."""
        return cls.of_int8(*round_rows(weight.detach().float()), bias)

    @classmethod
    def of_int8(cls, weight: Tensor, scale: Tensor, bias: Tensor | None = None) -> Self:
        """Take int8 (out, in) and its scales (out,), or (out, groups) with groups of equally many inputs."""
        scale = scale.view(len(weight), -1)
        return cls((weight.size(0), weight.size(1)), native.panels_int8(weight), native.panel_scales(scale), bias,
                   weight.size(1) // scale.size(1))  # fmt: skip

    @classmethod
    def of_int4(cls, weight: Tensor, scale: Tensor) -> Self:
        """Take uint8 (out, in), q + 8 in 0 .. 15, and its scales (out, groups)."""
        return cls((weight.size(0), weight.size(1)), native.panels_int4(weight), native.panel_scales(scale), None,
                   weight.size(1) // scale.size(1), INT4)  # fmt: skip

    def share(self, bias: Tensor | None) -> QuantizedLinear:
        """Return another layer over the same integers and scales, with this bias."""
        assert self.scales is not None
        return QuantizedLinear(self.shape, self.panels, self.scales, bias, self.group, self.kind)

    @property
    def has_kernel(self) -> bool:
        assert self.scales is not None
        return self.panels.device.type == "cpu" and self.scales.dtype == torch.float32

    @property
    def in_features(self) -> int:
        return self.shape[1]

    @property
    def out_features(self) -> int:
        return self.shape[0]

    def integers(self) -> Tensor:
        """Return q, int8 (out, in)."""
        if self.kind == INT4:
            return native.weights_int4(self.panels, self.shape[0]).to(torch.int8) - 8
        return native.weights_int8(self.panels, *self.shape)

    @property
    def weight(self) -> Tensor:
        """W (out, in) as float32, computed each time."""
        assert self.scales is not None
        scales = native.weight_scales(self.scales, self.shape[0])[..., None]  # (out, groups, 1)
        return (self.integers().unflatten(1, (scales.size(1), -1)) * scales).flatten(1)

    def rows(self, ids: Tensor) -> Tensor:
        """Return rows of W in the type of the scales: ids (...) -> (..., in)."""
        assert self.scales is not None
        found = native.library() if ids.device.type == "cpu" and self.has_kernel else None
        if found is not None:
            y, ids = self.scales.new_empty(*ids.shape, self.shape[1]), ids.long().contiguous()
            description = ctypes.byref(self.describe())
            found.weight_rows(description, ids.data_ptr(), ids.numel(), y.data_ptr(), torch.get_num_threads())
            return y
        whole = self.panels[ids // native.PANEL_WIDTH, :, ids % native.PANEL_WIDTH]  # (..., in / 4 or in / 8, 4)
        if self.kind == INT4:
            whole = torch.stack([whole & 15, whole >> 4], -2).flatten(-2)  # (..., in / 8, 8)
        integers = whole.flatten(-2)[..., : self.shape[1]].float() - OFFSETS[self.kind]  # (..., in)
        scales = self.scales[ids // native.PANEL_WIDTH, :, ids % native.PANEL_WIDTH][..., None]  # (..., groups, 1)
        return (integers.unflatten(-1, (scales.size(-2), -1)) * scales).flatten(-2).to(scales.dtype)

    def forward_without_native(self, x: Tensor) -> Tensor:
        """Compute what the kernels do, x rounded as there, with products of float32."""
        groups = x.float().unflatten(-1, (-1, min(self.group, self.shape[1])))  # (..., groups, inputs)
        whole, scale = round_rows(groups)
        rounded = (whole * scale[..., None]).flatten(-2).to(x.dtype)
        return F.linear(rounded, self.weight.to(x.dtype), None if self.bias is None else self.bias.to(x.dtype))

    @staticmethod
    def join(layers: Any) -> QuantizedLinear:
        """Return several projections of the same vectors as one; without a copy where their panels already stand together."""
        first, shape = layers[0], (sum(layer.shape[0] for layer in layers), layers[0].shape[1])
        assert all(layer.kind == first.kind and layer.shape[0] % native.PANEL_WIDTH == 0 for layer in layers)
        bias = join_biases([(layer.bias, layer.shape[0]) for layer in layers])
        panels, scales = (adjacent([getattr(layer, name) for layer in layers]) for name in ("panels", "scales"))
        return QuantizedLinear(shape, panels, scales, bias, first.group, first.kind)


def adjacent(parts: list[Tensor]) -> Tensor:
    """Concatenate along the first dimension; a view where each part begins in memory where the one before it ends."""
    ends = [part.data_ptr() + part.numel() * part.element_size() for part in parts]
    if any(end != part.data_ptr() for end, part in zip(ends, parts[1:], strict=False)):
        return torch.cat(parts)
    return parts[0].as_strided((sum(map(len, parts)), *parts[0].shape[1:]), parts[0].stride())


def can_join(layers: list[Any]) -> bool:
    """Whether quantised layers can be one: same type and groups, and all panels are full."""
    kinds = {(layer.kind, layer.group, layer.shape[0] % native.PANEL_WIDTH) for layer in layers}
    return len(kinds) == 1 and next(iter(kinds))[2] == 0


def round_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Round (..., n) to int8 with one scale per row, max |x| / 127: the integers (..., n) and the scales (...)."""
    most = x.abs().amax(-1)
    rate = torch.where(most > 1e-30, 127 / most, 0.0)[..., None]  # 127 / most must be finite
    whole = (x * rate + torch.where(x < 0, -0.5, 0.5)).trunc()
    return whole.to(torch.int8), most / 127


class QuantizedEmbedding(nn.Module):
    """Rows of an int8 matrix, which may be that of the vocabulary: ids (...) -> (..., width)."""

    def __init__(self, matrix: QuantizedLinear):
        super().__init__()
        self.matrix = matrix
        self.num_embeddings, self.embedding_dim = matrix.shape

    @property
    def weight(self) -> Tensor:
        return self.matrix.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.matrix.rows(ids)


class NativeVocabulary(nn.Module):
    """Vocabulary whose matrix is a NativeLinear; `features`, `weight` and `bias` are those of the plain one, which the loss reads."""

    copies = False

    def __init__(self, plain: Any, linear: NativeLinear):
        super().__init__()
        self.project, self.scale, self.bias = plain.project, plain.scale, plain.bias
        self.linear = linear
        self.plain_weight = None if isinstance(linear, QuantizedLinear) else plain.weight

    @property
    def weight(self) -> Tensor:
        weight: Tensor = self.linear.weight if self.plain_weight is None else self.plain_weight  # type: ignore[assignment]
        return weight

    def features(self, x: Tensor) -> Tensor:
        """As Vocabulary.features: (..., C) -> (..., width)."""
        x = x if self.project is None else self.project(x)
        return x if self.scale == 1.0 else x * self.scale

    def forward(self, x: Tensor, keys: Tensor | None = None) -> Tensor:
        return self.linear(self.features(x))  # (..., V)

    def log_probs(self, x: Tensor) -> Tensor:
        """Return log-probabilities (..., V); the kernel overwrites the logits with them."""
        logits, found = self(x).float().contiguous(), native.library()  # (..., V)
        if found is None or logits.device.type != "cpu":
            return logits.log_softmax(-1)
        width = logits.size(-1)
        found.log_softmax(logits.data_ptr(), logits.numel() // width, width, torch.get_num_threads())
        return logits
