"""The numbers of a network from which plans are computed: parameters, operations and activations, of the blocks and of the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from qkv.config import ModelConfig, Recipe
from qkv.models.build import skeleton
from qkv.models.cost import PartCost, cost
from qkv.models.flops import Shape
from qkv.parts.attention import Attention
from qkv.parts.block import Block, ParallelBlock
from qkv.parts.feedforward import FeedForward
from qkv.parts.heads import Vocabulary
from qkv.parts.stack import Stack
from qkv.train.activation_memory import Kept, activation_memory
from qkv.train.training_cost import generator_cost, target_count

OUTSIDE = ("embeddings", "positions", "head", "generator")
"""Parts outside of the blocks. (Position schemes inside the blocks are also called positions; they are small.)"""


@dataclass(frozen=True)
class NetworkSize:
    """What a plan needs to know about a network. Operations and activations are those of one row of tokens."""

    tokens: int
    """Tokens of a row (of the target, where there are two sides)."""
    longest: int
    """Tokens of the longer side of a row."""
    width: int
    """C."""
    layers: int
    """Blocks, of encoder and decoder together."""
    parameters: int
    """P."""
    tensors: int
    """Number of parameter tensors."""
    inside: int
    """Parameters of the blocks; the rest are embeddings, head and final norms."""
    largest: int
    """Parameters of the largest block."""
    split: int
    """Parameters of the blocks that tensor parallelism divides."""
    output: int
    """Parameters of the output matrix, V C."""
    vocabulary: int
    """V."""
    forward: int
    """Operations of the blocks, forward pass."""
    training: int
    """Operations of the blocks, forward and backward pass."""
    rest: int
    """Operations of everything else (head), forward and backward pass."""
    kept: int
    """Bytes of activations that the blocks keep in float32."""
    kept_split: int
    """Those of them that tensor parallelism divides."""
    kept_outside: int
    """Bytes of activations that everything else keeps in float32."""
    stream: int
    """Numbers of the residual stream that enter a block, T C, on average over the blocks."""
    sums: tuple[int, int]
    """Sums over the workers of a tensor-parallel group, forward and backward: one for the output of each attention and feed-forward
    layer, and one for the gradient of each of its inputs, of which cross-attention has two."""
    summed: tuple[int, int]
    """Elements in all of these sums, forward and backward."""
    maps: int
    """Matrices of the blocks that tensor parallelism divides."""
    divisors: tuple[int, ...]
    """Numbers that a tensor-parallel degree must divide: heads, key heads, inner width; () = it is not possible."""

    def operations(self, recompute: bool = False) -> int:
        """Return the operations of an update for each row; activation checkpointing repeats the forward pass of the blocks."""
        return self.training + self.rest + self.forward * recompute


def network_size(c: ModelConfig, length: int, source: int = 0, recipe: Recipe | None = None,
                 table: bool = False) -> NetworkSize:  # fmt: skip
    """Measure a configuration for rows of `length` tokens, after `source` tokens of an encoder.

    `table`: attention with dropout keeps its (T, S) weights, as on a CPU; the kernels of a GPU do not.
    """
    shape: Shape = (1, length, source)
    targets = target_count(c, shape, recipe.corrupt if recipe is not None else None)
    parts = list(cost(c, shape, targets).parts)
    kept = activation_memory(c if table else c.changed(attention_dropout=0.0), shape, targets)
    if recipe is not None and recipe.task == "replaced":
        generator, kept["", "generator"] = generator_cost(recipe, shape)
        parts.append(generator)
    return NetworkSize(tokens=length, longest=max(length, source), width=c.d_model, vocabulary=c.target_size,
                       **weights(c), **sums(c, shape), **operations(parts), **activations(c, kept, shape))  # fmt: skip


def weights(c: ModelConfig) -> dict[str, Any]:
    """Count the parameters of the blocks, which sharding gathers one by one, and those that tensor parallelism divides."""
    network = skeleton(c)
    blocks = list(all_blocks(network))
    count = lambda modules: sum({p: p.numel() for module in modules for p in module.parameters()}.values())  # noqa: E731
    head = [module.weight.numel() for module in network.modules() if isinstance(module, Vocabulary)]
    return {
        "layers": len(blocks), "parameters": count([network]), "tensors": len([*network.parameters()]),
        "inside": count(blocks), "largest": max(count([b]) for b in blocks),
        "split": sum({p: p.numel() for b in blocks for p in divided_parameters(b)}.values()), "output": max(head, default=0),
        "divisors": divisors(c, blocks),
    }  # fmt: skip


def all_blocks(network: nn.Module) -> list[nn.Module]:
    """Return the blocks in the order of a pass; a recurrent stack is one block, a shared block appears as often as it is used."""
    names = ("stack", "encoder", "decoder")
    stacks = [getattr(network, name) for name in names if hasattr(network, name)] or [network]
    return [block for stack in stacks for block in (stack.blocks if isinstance(stack, Stack) else [stack])]


def sublayers(block: nn.Module) -> list[nn.Module]:
    """Return the attention and feed-forward layers of a block that tensor parallelism can divide."""
    if isinstance(block, ParallelBlock):
        found = [block.attention, block.feedforward]
    elif isinstance(block, Block):
        found = [slot.layer for slot in (block.attention, block.cross, block.feedforward) if slot is not None]
    else:
        found = []
    return [layer for layer in found if isinstance(layer, Attention | FeedForward) and only_linear(layer)]


def only_linear(layer: nn.Module) -> bool:
    """Whether all parameters of a layer are in its linear maps, which is not so in gated or compressed attention."""
    maps = {p for child in layer.children() if isinstance(child, nn.Linear) for p in child.parameters()}
    return maps == set(layer.parameters())


def sums(c: ModelConfig, shape: Shape) -> dict[str, Any]:
    """Count the matrices that tensor parallelism divides, its sums and the numbers in them: T C for each, S C for keys and values of
    the source."""
    forward: list[int] = []
    backward: list[int] = []
    count = 0
    _, length, source = shape
    network: Any = skeleton(c)
    encoder = {*all_blocks(network.encoder)} if hasattr(network, "encoder") else set()
    for block in all_blocks(network):
        tokens = source if block in encoder else length
        for layer in sublayers(block):
            maps = [module for module in layer.children() if isinstance(module, nn.Linear)]
            if not maps:  # attention without projections
                continue
            count += len(maps)
            forward.append(tokens * maps[-1].out_features)
            backward.append(tokens * maps[0].in_features)
            if isinstance(layer, Attention) and layer.cross:
                backward.append(source * layer.key.in_features)
    return {"sums": (len(forward), len(backward)), "summed": (sum(forward), sum(backward)), "maps": count}


def divided_parameters(block: nn.Module) -> list[nn.Parameter]:
    """Return the parameters of a block that tensor parallelism divides.

    Matrices of queries, keys, values and the first feed-forward layer by columns, with their biases; output and second matrices
    by rows, whose biases every worker has (Shoeybi et al. 2019, section 3).
    """
    named = (pair for layer in sublayers(block) for pair in layer.named_parameters())
    return [p for name, p in named if p.dim() > 1 or not name.startswith(("output", "down"))]


def divisors(c: ModelConfig, blocks: list[nn.Module]) -> tuple[int, ...]:
    """Return what a tensor-parallel degree must divide; () if a block has layers other than attention and feed-forward."""
    plain = all(len(sublayers(b)) == 2 + (getattr(b, "cross", None) is not None) for b in blocks)
    return (c.n_heads, c.kv_heads, c.d_ff) if plain else ()


def operations(parts: list[PartCost]) -> dict[str, Any]:
    """Add up operations inside and outside the blocks."""
    inside = [part for part in parts if part.part not in OUTSIDE]
    return {
        "forward": sum(part.forward for part in inside),
        "training": sum(part.training for part in inside),
        "rest": sum(part.training for part in parts if part.part in OUTSIDE),
    }


def activations(c: ModelConfig, kept: Kept, shape: Shape) -> dict[str, Any]:
    """Add up activations. Attention and the inside of feed-forward layers are divided by tensor parallelism; norms, the residual
    stream and the inputs of the first matrices are on every worker (Korthikanti et al. 2022, equation 2)."""
    _, length, source = shape
    encoder = c.n_layers if c.family == "encoder-decoder" else 0
    decoder = c.decoder_layers if c.family == "encoder-decoder" else c.n_layers
    numbers = encoder * source * (c.d_encoder or c.d_model) + decoder * length * c.d_model
    split = sum(size for (_, part), size in kept.items() if part.endswith(("attention scores", "feed-forward")))
    feeds = any(part == "feed-forward" for _, part in kept)
    return {
        "kept": sum(size for (_, part), size in kept.items() if part not in OUTSIDE),
        "kept_split": max(split - 4 * numbers * feeds, 0),
        "kept_outside": sum(size for (_, part), size in kept.items() if part in OUTSIDE),
        "stream": numbers // (encoder + decoder),
    }
