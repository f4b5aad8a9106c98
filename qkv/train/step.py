"""One update of the weights, from one batch, several micro-batches or several workers: the same gradient."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import nn

from qkv.batch import Batch, Loss
from qkv.errors import QkvError
from qkv.models.output import Output
from qkv.parts.state import State
from qkv.train.workers import everywhere, sum_gradients

Objective = Callable[[Output, Batch], Loss]
UNCHANGED = "weights are as before this step. Lower the learning rate, or look at that batch"


def step(network: nn.Module, optimizer: torch.optim.Optimizer, batches: Sequence[Batch], objective: Objective,
         max_norm: float = 0.0, half: bool = False, carried: list[State] | None = None) -> Loss:  # fmt: skip
    """Gradient of (sum of all losses) / (count of all targets), clipped to `max_norm` (0 = not), then one step.

    The division is by the count over all micro-batches of all workers. Dividing each by its own count would weigh a
    word in a short batch more than one in a long batch. A loss or gradient that is not finite stops before the update.
    """
    loss = gradients(network, batches, objective, half, carried)
    norm = nn.utils.clip_grad_norm_(network.parameters(), max_norm or math.inf)
    if not norm.isfinite():
        raise QkvError(f"the norm of the gradient is {norm.item()}; {UNCHANGED}")
    optimizer.step()
    return loss


def gradients(network: nn.Module, batches: Sequence[Batch], objective: Objective, half: bool = False,
              carried: list[State] | None = None) -> Loss:  # fmt: skip
    """Fill `.grad` of every parameter; returns the loss over all micro-batches and workers.

    With `half` the products are done in bfloat16, everything that is added up stays in float32. With `carried`, a state
    for each micro-batch, that is where it begins; it is replaced by the one where it ends.
    """
    device = next(network.parameters()).device
    count = everywhere(torch.tensor(float(sum(batch.count for batch in batches)), device=device))
    network.zero_grad(set_to_none=True)
    total, where = torch.zeros((), device=device), "another worker"
    for number, batch in enumerate(batches):
        with torch.autocast(device.type, torch.bfloat16, enabled=half):
            output = network(batch, carried[number]) if carried else network(batch)
            loss = objective(output, batch).sum
        total = total + loss.detach()
        if carried:
            carried[number] = output.state.carried()
        if not loss.isfinite():
            where = f"micro-batch {number}"
            break  # all workers must hear of it: one that gave up here would leave the others waiting
        (loss / count.clamp(min=1)).backward()
    total = everywhere(total)
    if not total.isfinite():
        raise QkvError(f"the loss of {where} is {total.item()}; {UNCHANGED}")
    sum_gradients([p for p in network.parameters() if p.requires_grad])
    return Loss(total, int(count))
