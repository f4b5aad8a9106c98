"""Quantised weights in files: an int8 matrix `X.weight` and its scales, `X.weight_scale` (out,) or (out, groups)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from qkv.config import ModelConfig
from qkv.convert.files import some
from qkv.convert.folder_weights import copy_into
from qkv.engine.linear import QuantizedLinear
from qkv.engine.quantize import SCALE, quantize_with
from qkv.errors import FileError
from qkv.models.build import Network, NoDraws, build

MakeMatrix = Callable[[str, Tensor | None], QuantizedLinear | None]
"""The name of a weight and the bias beside it -> its quantised matrix, None if it is float32."""
PRECISIONS = ("float32", "int8")


def plain_shapes(shapes: dict[str, tuple[int, ...]], where: str) -> dict[str, tuple[int, ...]]:
    """Return the shapes without those of scales, each of which must belong to a matrix and divide its inputs into groups."""
    plain = {name: shape for name, shape in shapes.items() if not name.endswith(SCALE)}
    for name in shapes.keys() - plain.keys():
        matrix, scale = plain.get(name.removesuffix(SCALE), ()), shapes[name]
        groups = scale[1] if len(scale) == 2 else 1
        fits = (
            len(matrix) == 2 and scale[:1] == matrix[:1] and len(scale) <= 2 and groups > 0 and matrix[1] % groups == 0
        )
        if not fits or (groups > 1 and matrix[1] // groups % 8):
            wanted = "(out,), or (out, groups) with groups of 8, 16, 24 ... inputs"
            raise FileError(f"{where}: {name} has the shape {scale}, expected {wanted}; download the model again")
    return plain


def check_scales(tensors: dict[str, Tensor], where: str) -> None:
    """Raise a FileError for weights that are not int8 with finite scales."""
    for name in tensors:
        if not name.endswith(SCALE):
            continue
        weight, scale = tensors[name.removesuffix(SCALE)], tensors[name].float()
        if weight.dtype != torch.int8 or not scale.isfinite().all():
            raise FileError(f"{where}: {name.removesuffix(SCALE)} must be int8 with finite scales: the file is damaged")


def dequantize(tensors: dict[str, Tensor], where: str) -> dict[str, Tensor]:
    """Return all weights as float32: q scale."""
    check_scales(tensors, where)
    found = {}
    for name, tensor in tensors.items():
        if name.endswith(SCALE):
            continue
        scale = tensors.get(name + SCALE)
        if scale is not None:
            groups = scale.view(len(tensor), -1, 1)  # (out, groups, 1)
            tensor = (tensor.unflatten(1, (groups.size(1), -1)) * groups).flatten(1)
        found[name] = tensor
    return found


def build_with_integers(config: ModelConfig, tensors: dict[str, Tensor], where: str) -> Network:
    """Return the network of `config` with these weights: int8 matrices with scales, the others float32."""
    check_scales(tensors, where)

    def make(name: str, bias: Tensor | None) -> QuantizedLinear | None:
        scale = tensors.get(name + SCALE)
        return None if scale is None else QuantizedLinear.of_int8(tensors[name], scale.float(), bias)

    quantized = [name for name in tensors if name + SCALE in tensors]
    return fill_with(config, tensors, quantized, make, where)


def fill_with(
    config: ModelConfig, tensors: dict[str, Tensor], quantized: Iterable[str], make: MakeMatrix, where: str
) -> Network:
    """Build a network: float32 weights from `tensors`, those named in `quantized` by `make`.

    Memory for float32 versions of the quantised ones is reserved but never touched, and freed at the end.
    """
    quantized = set(quantized)
    with NoDraws():
        network = build(config)
    copy_into(network, tensors, where, quantized)
    names = {id(weight): name for name, weight in network.named_parameters()}
    used: set[str] = set()

    def matrix(module: object, weight: Tensor) -> QuantizedLinear | None:
        name = names[id(weight)]
        used.add(name)
        return make(name, getattr(module, "bias", None))

    found = quantize_with(network, matrix)
    if unused := sorted(quantized - used):
        raise FileError(f"{where}: {some(unused)} cannot be int8 in this network: load it with precision float32")
    return found
