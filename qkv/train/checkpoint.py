"""Training state apart from the weights: optimiser, random numbers, step. safetensors and JSON, no pickle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from qkv.convert.files import read_json, read_tensors, write_json, write_tensors
from qkv.errors import FileError
from qkv.models.weights import weights

WEIGHTS, STATE, NUMBERS = "model.safetensors", "training.safetensors", "training.json"


def save_training(folder: Path, network: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Everything that decides how training goes on; `training.json` is written last and makes it complete."""
    folder.mkdir(parents=True, exist_ok=True)
    stored = optimizer.state_dict()
    tensors = {f"{index}.{name}": value for index, values in stored["state"].items() for name, value in values.items()}
    tensors["random"] = torch.get_rng_state()
    write_tensors(folder / WEIGHTS, weights(network), {"format": "pt"})
    write_tensors(folder / STATE, tensors, {"format": "pt"})
    write_json(folder / NUMBERS, {"step": step, "groups": stored["param_groups"]})


def load_training(folder: Path, network: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Put everything back as it was; returns the step to go on from."""
    numbers = read_json(folder / NUMBERS)
    tensors = read_tensors(folder / STATE)
    torch.set_rng_state(tensors.pop("random"))
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        index, _, name = key.partition(".")
        state.setdefault(int(index), {})[name] = value
    optimizer.load_state_dict({"state": state, "param_groups": _tuples(numbers["groups"])})
    fill(network, read_tensors(folder / WEIGHTS), str(folder))
    return int(numbers["step"])


def _tuples(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """JSON has lists only; Adam's betas are a pair."""
    return [{k: tuple(v) if k == "betas" else v for k, v in group.items()} for group in groups]


def fill(network: nn.Module, tensors: dict[str, Tensor], where: str) -> None:
    """Copy `tensors` into the network; every missing, unknown or misshapen one is named at once."""
    wanted = weights(network)
    problems = [f"lacks {name}" for name in wanted.keys() - tensors.keys()]
    problems += [f"has unknown {name}" for name in tensors.keys() - wanted.keys()]
    problems += [
        f"{name} is {tuple(tensors[name].shape)}, expected {tuple(wanted[name].shape)}"
        for name in wanted.keys() & tensors.keys()
        if wanted[name].shape != tensors[name].shape
    ]
    if problems:
        raise FileError(f"{where}: {'; '.join(sorted(problems))}")
    with torch.no_grad():
        for name, tensor in tensors.items():
            wanted[name].copy_(tensor)
