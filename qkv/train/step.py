"""One update of the weights, from one batch, several micro-batches or several workers: the same gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from qkv.batch import Batch, Loss
from qkv.errors import QkvError
from qkv.models.output import Output

Objective = Callable[[Output, Batch], Loss]


def step(network: nn.Module, optimizer: torch.optim.Optimizer, batches: Sequence[Batch], objective: Objective,
         max_norm: float = 0.0) -> Loss:  # fmt: skip
    """Gradient of (sum of all losses) / (count of all targets), clipped to `max_norm` (0 = not), then one step.

    The division is by the count over all micro-batches of all workers. Dividing each by its own count would weigh a
    word in a short batch more than one in a long batch. A loss that is not finite stops before the update.
    """
    loss = gradients(network, batches, objective)
    if max_norm > 0:
        nn.utils.clip_grad_norm_(network.parameters(), max_norm)
    optimizer.step()
    return loss


def gradients(network: nn.Module, batches: Sequence[Batch], objective: Objective) -> Loss:
    """Fill `.grad` of every parameter; returns the loss over all micro-batches and workers."""
    count = everywhere(torch.tensor(float(sum(batch.count for batch in batches))))
    network.zero_grad(set_to_none=True)
    total = torch.zeros(())
    for number, batch in enumerate(batches):
        loss = objective(network(batch), batch).sum
        if not loss.isfinite():
            raise QkvError(f"the loss of micro-batch {number} is {loss.item()}; weights are as before this step. Lower "
                           "the learning rate, or look at that batch")  # fmt: skip
        (loss / count.clamp(min=1).to(loss.device)).backward()
        total = total + loss.detach().cpu()
    if dist.is_initialized():
        for parameter in network.parameters():
            if parameter.requires_grad:
                parameter.grad = everywhere(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad)
    return Loss(everywhere(total), int(count))


def everywhere(value: Tensor) -> Tensor:
    """The sum of `value` over all workers; the value itself where there is one."""
    if dist.is_initialized():
        dist.all_reduce(value)
    return value
