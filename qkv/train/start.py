"""Starting from a trained model: its weights where the new network has a place for them, fresh ones in a new head."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from qkv.convert.detect import open_model
from qkv.errors import QkvError
from qkv.models.weights import weights

POOLER = ("head.dense.", "head.pooler.dense.")
"""A pooled vector is what a classifier reads: the same layer under two names."""


def start_from(folder: str, network: nn.Module, say: Callable[[str], None]) -> None:
    """Copy the weights of the model in `folder` into `network`. All but a head must fit; a head of another kind is new."""
    known = weights(open_model(folder)[1])
    known |= {name.replace(*POOLER): x for name, x in known.items() if name.startswith(POOLER[0])}
    fresh, misfits = [], []
    with torch.no_grad():
        for name, weight in weights(network).items():
            found = known.get(name)
            if found is not None and found.shape == weight.shape:
                weight.copy_(found)
            elif name.startswith("head."):
                fresh.append(name)
            else:
                misfits.append(
                    f"{name} {tuple(weight.shape)}" + ("" if found is None else f" (there {tuple(found.shape)})")
                )
    if misfits:
        raise QkvError(
            f"{folder} does not have the weights of this model: {', '.join(misfits[:5])}"
            + (f" and {len(misfits) - 5} more" if len(misfits) > 5 else "")
            + "; leave the sizes out of [model], they come from the folder"
        )
    say(f"starting from {folder}" + (f"; new weights: {', '.join(fresh)}" if fresh else ""))
