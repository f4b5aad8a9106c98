"""Weights: the tensors of a network that are stored in files."""

from __future__ import annotations

from torch import Tensor, nn


def weights(network: nn.Module) -> dict[str, Tensor]:
    """Each parameter once, under its first name (tied ones are one), and the buffers that are not recomputed."""
    kept = {name: parameter.detach() for name, parameter in network.named_parameters()}
    persistent = network.state_dict()
    return kept | {name: buffer for name, buffer in network.named_buffers() if name in persistent}
