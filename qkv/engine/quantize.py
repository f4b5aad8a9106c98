"""quantize(network): a copy of a network whose matrices are int8, with one scale per output: a quarter of the size.

Projections and feed-forward layers of its stacks, token embeddings and the vocabulary become int8; norms, biases, position tables and
small heads stay float32. Such a network is used as any other, but cannot be trained. Its weights are stored by the names of the plain
one: `X.weight` (int8) and `X.weight_scale` (float32), as vLLM's compressed-tensors has them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from qkv.engine.linear import NativeVocabulary, QuantizedEmbedding, QuantizedLinear, can_join
from qkv.engine.native import weight_scales
from qkv.engine.rebuild import Rebuild
from qkv.engine.weight_memory import place
from qkv.parts.attention import Attention
from qkv.parts.feedforward import FeedForward
from qkv.parts.heads import Vocabulary
from qkv.parts.stack import Stack

M = TypeVar("M", bound=nn.Module)
SCALE = "_scale"
"""Ending of the name of a weight's scales."""


def quantize(network: M) -> M:
    """Return a copy of `network` with matrices of int8; other weights are shared with it."""
    return quantize_with(
        network, lambda module, weight: QuantizedLinear.of_float(weight, getattr(module, "bias", None))
    )


def quantize_with(network: M, make: Callable[[Any, Tensor], QuantizedLinear | None]) -> M:
    """Return a copy of `network` in which make(module, weight) replaces its matrices; those for which it returns None stay."""
    matrices: dict[int, QuantizedLinear | None] = {}  # by the id of the plain weight: a tied one is made once

    def matrix(module: Any) -> QuantizedLinear | None:
        weight = module.weight
        if id(weight) not in matrices:
            matrices[id(weight)] = make(module, weight)
        return matrices[id(weight)]

    words = {id(module) for name, module in network.named_modules() if name.endswith("tokens")}
    inside = {id(linear) for stack in network.modules() if isinstance(stack, Stack) for linear in linears_of(stack)}

    def replace(module: Any, rebuild: Rebuild) -> nn.Module | None:
        if id(module) in inside:
            return matrix(module)
        if type(module) is Vocabulary:
            own, copied = matrix(module), rebuild.copy(module)
            return copied if own is None else NativeVocabulary(copied, own.share(module.bias))
        if type(module) is nn.Embedding and id(module) in words:
            own = matrix(module)
            return None if own is None else QuantizedEmbedding(own)
        return None

    found: M = Rebuild(replace)(network).eval()
    place_integers(found)
    return found


def linears_of(stack: nn.Module) -> list[nn.Linear]:
    return [module for module in stack.modules() if type(module) is nn.Linear and min(module.weight.shape) >= 8]


def joined_layers(module: Any) -> list[Any]:
    """Return the layers that a packed attention or feed-forward layer computes as one."""
    if isinstance(module, FeedForward):
        return [] if module.gate is None else [module.gate, module.up]
    return [module.key, module.value] if module.cross else [module.query, module.key, module.value]


def place_integers(network: nn.Module) -> None:
    """Move the integers and their scales into huge pages, those of layers that are computed as one next to each other, so that they are
    read as one matrix without a copy."""
    for name in ("panels", "scales"):
        place_buffers(network, name)


def place_buffers(network: nn.Module, name: str) -> None:
    """Move the buffers called `name` of all quantised layers."""
    placed: dict[int, Tensor] = {}  # by their address before: an embedding and a vocabulary may share them
    for module in network.modules():
        layers = joined_layers(module) if type(module) in (Attention, FeedForward) else []
        if layers and all(isinstance(layer, QuantizedLinear) for layer in layers) and can_join(layers):
            parts = [getattr(layer, name) for layer in layers]
            whole = place(torch.cat(parts))
            for layer, own in zip(layers, whole.split([len(part) for part in parts]), strict=True):
                setattr(layer, name, own)
                placed[own.data_ptr()] = own
    for module in network.modules():
        if isinstance(module, QuantizedLinear):
            before = getattr(module, name)  # kept until the end of this round: its address must not be used again
            own = placed.get(before.data_ptr())
            if own is None:
                own = placed[before.data_ptr()] = place(before)
                placed[own.data_ptr()] = own
            setattr(module, name, own)


def parameter_count(network: nn.Module) -> int:
    """Return the number of weights, quantised ones included, each matrix once."""
    matrices = {module.panels.data_ptr(): module for module in network.modules() if isinstance(module, QuantizedLinear)}
    integers = sum(module.shape[0] * module.shape[1] for module in matrices.values())
    biases = sum(0 if module.bias is None else module.bias.numel() for module in matrices.values())
    return sum(parameter.numel() for parameter in network.parameters()) + integers + biases


def has_integers(network: nn.Module) -> bool:
    return any(isinstance(module, QuantizedLinear) for module in network.modules())


# --- weights to store


def quantized_weights(network: nn.Module, names: list[str]) -> dict[str, Tensor]:
    """Return the weights of a quantised network by the names of the plain one: int8 ones with their scales."""
    found = {}
    for name in names:
        owner, _, last = name.rpartition(".")
        module: Any = network.get_submodule(owner)
        matrix = matrix_of(module) if last == "weight" else None
        if matrix is None:
            found[name] = getattr(module, last)
        else:
            assert matrix.scales is not None
            found[name] = matrix.integers()
            found[name + SCALE] = weight_scales(matrix.scales, matrix.shape[0]).squeeze(1).contiguous()
    return found


def matrix_of(module: Any) -> QuantizedLinear | None:
    """Return the quantised matrix that a module holds as its weight; None if it has none."""
    owned = {QuantizedEmbedding: "matrix", NativeVocabulary: "linear"}.get(type(module))
    found = module if owned is None else getattr(module, owned)
    return found if isinstance(found, QuantizedLinear) else None
