"""Initial weights: what training from scratch starts from, by the init fields of the configuration."""

from __future__ import annotations

import re

from torch import Tensor, nn

from qkv.config import ModelConfig
from qkv.parts.attention import Attention
from qkv.parts.heads import Vocabulary
from qkv.parts.stack import Stack


def initialise(network: nn.Module, c: ModelConfig) -> None:
    """Draw all matrices and word vectors of a network; biases become 0. Other parameters keep the values of their parts."""
    if next(network.parameters()).is_meta:
        return  # a skeleton has nothing to fill
    factors = unscaled_queries(network, c) | residual_outputs(network, c)
    for module in network.modules():
        if isinstance(module, nn.Linear):
            draw(module.weight, c, factors.get(module, 1.0))
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=c.init_embed_std or c.init_std or module.embedding_dim**-0.5)
        elif isinstance(module, Vocabulary) and c.tie not in ("output", "all") and c.init_std is not None:
            nn.init.normal_(module.weight, std=c.init_std)


def draw(weight: Tensor, c: ModelConfig, factor: float) -> None:
    """Fill a matrix (out, in) by the configured rule, times `factor`."""
    if c.init_std is not None:
        nn.init.normal_(weight, std=factor * c.init_std)
    elif c.init == "xavier":
        nn.init.xavier_uniform_(weight, gain=factor)
    elif c.init == "lecun":
        nn.init.normal_(weight, std=factor * weight.size(1) ** -0.5)
    else:
        limit = factor * weight.size(1) ** -0.5
        nn.init.uniform_(weight, -limit, limit)


def unscaled_queries(network: nn.Module, c: ModelConfig) -> dict[nn.Module, float]:
    """Query maps of score "dot" and their factor 1 / sqrt(D): fresh q . k then have variance 1 without the division (T5)."""
    if c.score != "dot" or c.init_std is not None:
        return {}
    return {m.query: m.d_key**-0.5 for m in network.modules() if isinstance(m, Attention)}


def residual_outputs(network: nn.Module, c: ModelConfig) -> dict[nn.Module, float]:
    """The last map of each of the N sublayers of a stack and its factor 1 / sqrt(N): their sum has the variance of one
    (GPT-2, Radford et al. 2019: N = 2 n_layers; Mamba: N = n_layers)."""
    found: dict[nn.Module, float] = {}
    for stack in network.modules() if c.init_residual else ():
        if isinstance(stack, Stack):
            outputs = [
                (number, re.sub(r"experts\.\d+", "experts", name), module)  # the experts of a block are one sublayer
                for number, block in enumerate(stack.blocks)
                for name, module in block.named_modules()
                if name.split(".")[-1] in ("output", "down")
            ]
            sublayers = {(number, name) for number, name, _ in outputs}
            found |= {module: len(sublayers) ** -0.5 for *_, module in outputs}
    return found
