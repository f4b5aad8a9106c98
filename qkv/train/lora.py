"""LoRA: instead of a matrix W, a low-rank update of it is trained, W + (alpha / rank) B A (Hu et al. 2022).

Applied to a plain network from outside; `merged` gives plain weights again, so that what is kept is an ordinary model.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from qkv.config import ModelConfig
from qkv.convert.files import write_json, write_tensors
from qkv.convert.folder import network_with
from qkv.errors import ConfigError
from qkv.models.weights import weights
from qkv.parts.attention import Attention
from qkv.parts.feedforward import FeedForward
from qkv.train.optimizer import layer_positions

TENSORS, SETTINGS = "adapter_model.safetensors", "adapter_config.json"
UPDATE = re.compile(r"(.+)\.parametrizations\.weight\.(original|0\.(?:a|b|scale))")
"""How torch names a matrix with an update: the matrix itself, and the parts of the update."""


class LowRank(nn.Module):
    """W -> W + scale B A, with A (rank, in) random and B (out, rank) 0: at the start nothing changes."""

    scale: Tensor

    def __init__(self, weight: Tensor, rank: int, alpha: float):
        super().__init__()
        out, width = weight.shape
        self.a = nn.Parameter(torch.randn(rank, width, device=weight.device) * width**-0.5)
        self.b = nn.Parameter(torch.zeros(out, rank, device=weight.device))
        self.register_buffer("scale", torch.tensor(alpha / rank, device=weight.device))

    def forward(self, weight: Tensor) -> Tensor:
        return add_update(weight, self.a, self.b, self.scale)


def add_update(weight: Tensor, a: Tensor, b: Tensor, scale: Tensor) -> Tensor:
    return weight + scale * (b @ a)  # (out, in)


def apply(network: nn.Module, rank: int, alpha: float = 16.0, feedforward: bool = False) -> None:
    """Give every projection of every attention (and every map of the feed-forward layers) an update to learn; all else
    stays as it is, but for the head. Word vectors that are also the output are no head."""
    chosen = dict(projections(network, feedforward))
    if not chosen:
        raise ConfigError("tune.lora_rank is for networks with attention projections, this one has none: set it to 0")
    smallest = min(min(linear.weight.shape) for linear in chosen.values())
    if not 0 < rank <= smallest:
        raise ConfigError(f"tune.lora_rank = {rank}, but a matrix of this network has only rank {smallest}: lower it")
    for parameter, place in layer_positions(network).items():
        parameter.requires_grad_(place.head)
    for linear in chosen.values():
        parametrize.register_parametrization(linear, "weight", LowRank(linear.weight, rank, alpha))


def projections(network: nn.Module, feedforward: bool) -> Iterator[tuple[str, nn.Linear]]:
    kinds = (Attention, FeedForward) if feedforward else (Attention,)
    for name, module in network.named_modules():
        if isinstance(module, kinds):
            yield from ((f"{name}.{n}", m) for n, m in module.named_children() if isinstance(m, nn.Linear))


# --- plain weights


def plain(config: ModelConfig, network: Any) -> Any:
    """The network itself, or where it has updates an ordinary one with the same outputs."""
    return network_with(config, merge_updates(weights(network))) if updates(network) else network


def merge_updates(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Named weights of a network with updates -> those of the plain network."""
    parts: dict[str, dict[str, Tensor]] = {}
    found = {}
    for name, tensor in tensors.items():
        if match := UPDATE.fullmatch(name):
            parts.setdefault(match[1], {})[match[2].removeprefix("0.")] = tensor
        else:
            found[name] = tensor
    for name, part in parts.items():
        found[f"{name}.weight"] = add_update(part["original"], part["a"], part["b"], part["scale"])
    return found


def updates(network: nn.Module) -> dict[str, LowRank]:
    """Name of a linear map -> the update of its matrix."""
    place = ".parametrizations.weight.0"
    return {n.removesuffix(place): m for n, m in network.named_modules() if isinstance(m, LowRank)}


# --- adapters in files, as the library PEFT names them: a few per cent of a model


def save(folder: Path, network: nn.Module) -> None:
    """What was learned (the updates and the head), without the weights it was learned on."""
    found = updates(network)
    tensors = {f"{name}.lora_A.weight": update.a for name, update in found.items()}
    tensors |= {f"{name}.lora_B.weight": update.b for name, update in found.items()}
    tensors |= {n: p for n, p in network.named_parameters() if p.requires_grad and not UPDATE.fullmatch(n)}
    one = next(iter(found.values()))
    rank, alpha = one.a.size(0), round(float(one.scale) * one.a.size(0), 6)
    settings = {"peft_type": "LORA", "r": rank, "lora_alpha": alpha, "target_modules": sorted(found),
                "modules_to_save": ["head"], "bias": "none"}  # fmt: skip
    write_tensors(folder / TENSORS, {f"base_model.model.{name}": x.detach() for name, x in tensors.items()})
    write_json(folder / SETTINGS, settings)
