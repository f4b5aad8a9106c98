"""Rewrite a network as another one with the same outputs, in parts that a foreign family has.

A family of Hugging Face has fixed parts: Blenderbot learns its positions, GPT-2 has every bias. A network without them is
still one of that family when the part is filled in: sinusoids are a table, an absent bias is a zero. Each Rewrite changes
one field of the configuration and the weights that go with it; outputs stay the same up to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.config import ModelConfig
from qkv.convert.tables import Weights
from qkv.models.build import skeleton
from qkv.models.weights import weights
from qkv.parts.positions import sinusoids


@dataclass(frozen=True)
class Rewrite:
    """One change of configuration and weights that changes no output."""

    does: str
    """What changes, in a few words."""
    config: Callable[[ModelConfig], ModelConfig | None]
    """The configuration afterwards; None where there is nothing to change."""
    weights: Callable[[ModelConfig, Weights], Weights] = lambda c, tensors: tensors
    """(configuration before, its weights) -> the weights afterwards; those that it does not name become zeros."""


def apply(rewrites: tuple[Rewrite, ...], c: ModelConfig) -> tuple[ModelConfig, tuple[Rewrite, ...]]:
    """The configuration after all rewrites that change something, and those rewrites."""
    used: list[Rewrite] = []
    for rewrite in rewrites:
        after = rewrite.config(c)
        if after is not None:
            c = after
            used.append(rewrite)
    return c, tuple(used)


def rewritten(rewrites: tuple[Rewrite, ...], c: ModelConfig, tensors: Weights) -> dict[str, Tensor]:
    """The weights after rewrites that `apply` has chosen."""
    found = dict(tensors)
    for rewrite in rewrites:
        after = rewrite.config(c) or c
        found = fill_zeros(after, rewrite.weights(c, found))
        c = after
    return found


def fill_zeros(c: ModelConfig, tensors: Weights) -> dict[str, Tensor]:
    """The weights of `c`: those given, zeros for the others; what `c` does not have is left out."""
    like = next(iter(tensors.values()))
    wanted = weights(skeleton(c)).items()
    return {name: tensors[name] if name in tensors else like.new_zeros(t.shape) for name, t in wanted}


# --- sinusoids as a table of learned positions


def with_table(c: ModelConfig) -> ModelConfig | None:
    text = c.image_size is None and c.recurrent is None
    if c.position != "sinusoidal" or c.position_use != "add" or not text:
        return None
    return c.changed(position="learned", position_offset=0)


def table_weights(c: ModelConfig, tensors: Weights) -> dict[str, Tensor]:
    sides = ("source", "target") if c.family == "encoder-decoder" else ("embed",)
    words = tensors[f"{sides[0]}.tokens.weight"]
    table = sinusoids(torch.arange(c.max_length), words.size(1), c.position_base, c.position_layout)
    return {**tensors, **{f"{side}.position.table": table.to(words) for side in sides}}


POSITIONS_AS_TABLE = Rewrite("sinusoids are stored as learned positions", with_table, table_weights)

# --- sinusoids in the other layout: the channels of the residual stream change places


def with_halves(c: ModelConfig) -> ModelConfig | None:
    softmax = (*c.mixer, c.cross_mixer) == ("softmax", "softmax") and c.recurrent is None
    words = c.family == "encoder-decoder" and c.image_size is None and c.d_embed in (None, c.d_model)
    fits = softmax and words and c.position == "sinusoidal" and c.position_use == "add"
    if not fits or c.position_layout == "halves" or c.d_model % 2 or c.score not in ("dot", "scaled-dot"):
        return None
    return c.changed(position_layout="halves")


READS = ("tokens.weight", "head.weight", "query.weight", "key.weight", "value.weight", "up.weight", "gate.weight")
"""Matrices whose columns are channels of the residual stream; of the others that touch it, the rows are."""
WRITES = ("output.weight", "output.bias", "down.weight", "down.bias")
NORMS = ("before", "after", "norm")


def halves_weights(c: ModelConfig, tensors: Weights) -> dict[str, Tensor]:
    order = torch.cat([torch.arange(0, c.d_model, 2), torch.arange(1, c.d_model, 2)])  # all sines, then all cosines

    def moved(name: str, tensor: Tensor) -> Tensor:
        if name.endswith(READS):
            return tensor[:, order]
        on_stream = name.endswith(WRITES) or name.split(".")[-2] in NORMS
        return tensor[order] if on_stream else tensor

    return {name: moved(name, tensor) for name, tensor in tensors.items()}


CHANNELS_IN_HALVES = Rewrite("channels are reordered, sines before cosines", with_halves, halves_weights)

# --- parts that are absent, filled with zeros


def with_biases(c: ModelConfig) -> ModelConfig | None:
    norm = "layer" if c.norm == "layer-without-bias" else c.norm
    if (c.attention_bias, c.ffn_bias, c.norm) == ("all", True, norm):
        return None
    return c.changed(attention_bias="all", ffn_bias=True, norm=norm)


ZERO_BIASES = Rewrite("absent biases become zeros", with_biases)


def with_segments(c: ModelConfig) -> ModelConfig | None:
    text = c.family == "encoder" and c.image_size is None
    return c.changed(n_segments=2) if text and not c.n_segments else None


ZERO_SEGMENTS = Rewrite("absent segments become zeros", with_segments)

# --- factors moved into the weights


def with_scaled_words(c: ModelConfig) -> ModelConfig | None:
    if not c.embed_scale or c.family == "encoder-decoder" or c.image_size is not None:
        return None
    return c.changed(embed_scale=False, tie="none")


def scaled_words(c: ModelConfig, tensors: Weights) -> dict[str, Tensor]:
    """Words that are also the output matrix become two matrices, since only one of them is scaled."""
    words = tensors["embed.tokens.weight"]
    outputs = {name for name in weights(skeleton(with_scaled_words(c) or c)) if name not in tensors}
    return {**tensors, **{name: words.clone() for name in outputs}, "embed.tokens.weight": words * math.sqrt(c.d_model)}


SCALED_WORDS = Rewrite("the scale of the embeddings is moved into them", with_scaled_words, scaled_words)


def with_dot(c: ModelConfig) -> ModelConfig | None:
    return c.changed(score="dot") if c.score == "scaled-dot" else None


def dot_weights(c: ModelConfig, tensors: Weights) -> dict[str, Tensor]:
    factor = c.head_width**-0.5
    return {name: t * factor if ".query." in name else t for name, t in tensors.items()}


UNSCALED_SCORES = Rewrite("the scale of the scores is moved into the queries", with_dot, dot_weights)


# --- what only training needs


def with_classes(c: ModelConfig) -> ModelConfig | None:
    return c.changed(head="classes") if c.head == "classes-words" else None


CLASSES_ONLY = Rewrite("the next-word head of training is left out", with_classes)
