"""Checkpoint averaging: one model whose weights are the mean of several, taken late in one run (Vaswani et al. 2017, 6.1)."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from qkv.convert import folder as ours
from qkv.convert.detect import open_model, open_target, open_usage
from qkv.convert.folder import put
from qkv.errors import FileError
from qkv.train.checkpoint import all_of, damage, read_state
from qkv.train.lora import merge_updates


def average_run(run: Path, out: Path, last: int) -> list[Path]:
    """Write to `out` the mean of the run's `last` newest checkpoints, with its tokenizers; which ones they were."""
    if not run.is_dir():
        raise FileError(f"{run} is not the folder of a run: correct the path")
    chosen = all_of(run)[-last:]
    if len(chosen) < last:
        raise FileError(
            f"{run} has {len(chosen)} checkpoints, but {last} are requested: train with --set train.keep={last}"
        )
    config, network, tokenizer = open_model(run)
    put(network, mean([weights_of(c) for c in chosen]), str(run))
    ours.save(out, config, network, tokenizer, open_target(run), open_usage(run))
    return chosen


def weights_of(checkpoint: Path) -> dict[str, Tensor]:
    """The weights as they were learned, not their moving average."""
    if problem := damage(checkpoint):
        raise FileError(problem)
    stored = read_state(checkpoint)
    if any(name.startswith("weights.generator.") for name in stored):
        raise FileError(
            f"{checkpoint.parent} trains two networks (task = 'replaced'), of which best/ is one: not averaged"
        )
    prefix = "weights."
    return merge_updates({name.removeprefix(prefix): x for name, x in stored.items() if name.startswith(prefix)})


def mean(models: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Of every weight, summed in double precision."""
    names = models[0].keys()
    if any(model.keys() != names for model in models):
        raise FileError("these checkpoints are not of one network")
    return {name: torch.stack([m[name].double() for m in models]).mean(0).to(models[0][name].dtype) for name in names}
