"""One update of the weights: the same gradient from one batch, several micro-batches or several workers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from qkv.batch import Batch, Loss
from qkv.distributed import all_reduce, rank, world
from qkv.errors import QkvError
from qkv.models.output import Output
from qkv.parts.experts import Experts
from qkv.parts.state import State
from qkv.parts.tap import record

Objective = Callable[[Output, Batch], Loss]
UNCHANGED = "the weights are those before this update. Lower the learning rate, or inspect that batch"


class LossModule(nn.Module):
    """A network with its objective: batch -> summed loss.

    The loss is part of the forward pass, so DistributedDataParallel sees every parameter that has a gradient, also those
    of a head whose logits are formed by the objective. With `half`, matrix products run in bfloat16; sums stay in float32.
    """

    def __init__(self, network: nn.Module, objective: Objective, half: bool = False):
        super().__init__()
        self.network, self.objective, self.low_precision = network, objective, half
        self.measures: dict[str, float] = {}
        """Further numbers of the last micro-batch, for the log."""

    def forward(self, batch: Batch, state: State | None = None) -> tuple[Tensor, State | None]:
        """Return the sum of the losses, (), and the state after the batch (detached) where one is given."""
        device = next(self.network.parameters()).device
        with torch.autocast(device.type, torch.bfloat16, enabled=self.low_precision):
            output = self.network(batch) if state is None else self.network(batch, state)
            loss = self.objective(output, batch).sum
        return loss, None if state is None else output.state.carried()


class ExpertLossModule(LossModule):
    """A LossModule that adds the load-balancing losses of the experts, whatever the task.

    The loss (B,) of each layer counts every row as often as it has targets: a sum like the objective's, which does not depend on
    how a batch is split into micro-batches and workers.
    """

    def forward(self, batch: Batch, state: State | None = None) -> tuple[Tensor, State | None]:
        """As LossModule.forward, with the load-balancing losses added."""
        layers = dict(self.network.named_modules(remove_duplicate=False))
        weights = {f"{name}.tap_balance": e.balance_weight for name, e in layers.items() if isinstance(e, Experts)}
        with record(self.network, list(weights)) as balances:
            loss, state = super().forward(batch, state)
        for name, balance in balances.items():
            loss = loss + weights[name] * (balance * batch.row_counts).sum()
        self.measures = {"expert_balance": torch.stack([*balances.values()]).mean().item()}
        return loss, state


def loss_module(network: nn.Module, objective: Objective, half: bool = False) -> LossModule:
    """Return the module to train: a network with its objective, and with the losses of its experts if it has any."""
    has_experts = any(isinstance(module, Experts) for module in network.modules())
    return (ExpertLossModule if has_experts else LossModule)(network, objective, half)


def data_parallel(module: LossModule) -> LossModule | DistributedDataParallel:
    """Average gradients over the workers during the backward pass, if there are several.

    `find_unused_parameters` also fixes the buckets in which gradients are exchanged. DistributedDataParallel otherwise regroups
    them after the first update of a process, and a resumed run would add in another order: the results would differ in the last bits.
    """
    if world() == 1:
        return module
    return DistributedDataParallel(
        module, forward_sync_buffers=False, find_unused_parameters=True, gradient_as_bucket_view=True
    )


def step(model: LossModule | DistributedDataParallel, optimizer: torch.optim.Optimizer, batches: Sequence[Batch],
         max_norm: float = 0.0, carried: list[State] | None = None) -> Loss:  # fmt: skip
    """Take the gradient of (sum of all losses) / (count of all targets), clip it to `max_norm` (0 = no limit), and update.

    The division is by the count over all micro-batches of all workers. Dividing each by its own count would weigh a
    token in a short batch more than one in a long batch. A loss or gradient that is not finite raises before the update.
    """
    loss = gradients(model, batches, carried)
    norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm or math.inf)
    if not norm.isfinite():
        raise QkvError(f"the norm of the gradient is {norm.item()}; {UNCHANGED}")
    optimizer.step()
    return loss


def gradients(model: LossModule | DistributedDataParallel, batches: Sequence[Batch],
              carried: list[State] | None = None) -> Loss:  # fmt: skip
    """Fill `.grad` of every parameter; return the loss over all micro-batches and workers.

    Every worker gets the whole batches and computes its own rows of them. `carried` holds the initial state of the rows of
    each micro-batch, and is overwritten with their final state.
    """
    device = next(model.parameters()).device
    workers = world() if isinstance(model, DistributedDataParallel) else 1
    count = sum(batch.count for batch in batches)
    if carried and min(batch.size for batch in batches) < workers:
        raise QkvError(f"batches of {batches[0].size} rows for {workers} workers: use fewer workers or larger batches")
    model.zero_grad(set_to_none=True)
    total, where = torch.zeros((), device=device), "another worker"
    for number, batch in enumerate(batches):
        rows, weight = own_rows(batch) if workers > 1 else (batch, 1.0)
        # the workers exchange gradients once, with the last micro-batch
        with nullcontext() if number == len(batches) - 1 or workers == 1 else model.no_sync():  # type: ignore[operator]
            loss, state = model(rows.to(device), carried[number] if carried else None)
            # times workers: DistributedDataParallel averages over them, and a sum is needed
            (loss * (weight * workers / max(count, 1))).backward()
        if carried:
            carried[number] = state
        if not loss.isfinite() and where == "another worker":
            where = f"micro-batch {number}"
        total = total + weight * loss.detach()  # summed over micro-batches, then over workers
    total = all_reduce(total) if workers > 1 else total
    if not total.isfinite():
        raise QkvError(f"the loss of {where} is {total.item()}; {UNCHANGED}")
    return Loss(total, count)


def own_rows(batch: Batch) -> tuple[Batch, float]:
    """Return this worker's rows of a batch (rank, rank + world, ...) and the weight of their loss.

    The weight is 1. If the batch has fewer rows than there are workers, a worker without a row computes the first one with
    weight 0: all workers must take part in the exchange of gradients.
    """
    if rank() < batch.size:
        return batch.rows(slice(rank(), None, world())), 1.0
    return batch.rows(slice(0, 1)), 0.0
