"""Copy weights of a file into a network."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor, nn

from qkv.errors import FileError
from qkv.models.weights import weights


def copy_into(network: nn.Module, tensors: dict[str, Tensor], where: str, without: Collection[str] = ()) -> None:
    """Copy weights, except those named in `without`; FileError for one that is not a number or infinite, which would make all
    answers meaningless."""
    with torch.no_grad():
        for name, tensor in weights(network).items():
            if name in without:
                continue
            tensor.copy_(tensors[name])
            if not tensor.isfinite().all():
                problem = f"{name} has numbers that are infinite or not a number (NaN)"
                raise FileError(f"{where}: {problem}: the file is damaged, or training diverged")
