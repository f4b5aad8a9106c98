"""One update of the weights: the same gradient from one batch, several micro-batches or several workers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from qkv.batch import Batch, Loss
from qkv.distributed import all_reduce, rank, world_size
from qkv.errors import QkvError
from qkv.models.output import Output
from qkv.parts.experts import Experts
from qkv.parts.state import State
from qkv.parts.tap import record
from qkv.train.memory_limit import DoesNotFit, explain_memory_error, join_rows, parts, prepare_retry, rows_of
from qkv.train.optimizer import clip_shards

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
        self.replica, self.replicas = 0, 1
        """Which rows of every batch this worker computes: replica, replica + replicas, ..."""
        self.sharded = False
        """Whether the parameters are divided among workers (sharding.py)."""
        self.limit = 0
        """Tokens of a pass that fit into memory; 0 = all did so far."""

    def forward(self, batch: Batch, state: State | None = None) -> tuple[Tensor, State | None]:
        """Return the sum of the losses, (), and the state after the batch (detached) if one is given."""
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


Model = LossModule | DistributedDataParallel


def data_parallel(module: LossModule) -> Model:
    """Average gradients over the workers during the backward pass, if there are several.

    `find_unused_parameters` also fixes the buckets in which gradients are exchanged. DistributedDataParallel otherwise regroups
    them after the first update of a process, and a resumed run would add in a different order: the results would differ in the last bits.
    """
    if world_size() == 1:
        return module
    module.replica, module.replicas = rank(), world_size()
    return DistributedDataParallel(
        module, forward_sync_buffers=False, find_unused_parameters=True, gradient_as_bucket_view=True
    )


def step(model: Model, optimizer: torch.optim.Optimizer, batches: Sequence[Batch], max_norm: float = 0.0,
         carried: list[State] | None = None) -> Loss:  # fmt: skip
    """Take the gradient of (sum of all losses) / (count of all targets), clip it to `max_norm` (0 = no limit), and update.

    The division is by the count over all micro-batches of all workers. Dividing each by its own count would give a
    token in a short batch more weight than one in a long batch. A loss or gradient that is not finite raises before the update.
    """
    loss = gradients(model, batches, carried)
    clip = clip_shards if getattr(model, "module", model).sharded else nn.utils.clip_grad_norm_
    norm = clip(model.parameters(), max_norm or math.inf)
    if not norm.isfinite():
        raise QkvError(f"the norm of the gradient is {norm.item()}; {UNCHANGED}")
    optimizer.step()
    return loss


def gradients(model: Model, batches: Sequence[Batch], carried: list[State] | None = None) -> Loss:
    """Fill `.grad` of every parameter; return the loss over all micro-batches and workers.

    Every worker gets complete batches and computes its own rows of them, in parts if they do not fit into memory
    (memory_limit.py). `carried` holds the initial state of the rows of each micro-batch, and is overwritten with their final state.
    """
    module: Any = getattr(model, "module", model)  # DistributedDataParallel wraps it in `module`
    device = next(model.parameters()).device
    if carried and (rows := min(batch.size for batch in batches)) < module.replicas:
        raise QkvError(f"a batch of {rows} rows for {module.replicas} workers: use fewer workers or larger batches")
    random = torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    while True:
        model.zero_grad(set_to_none=True)
        try:
            loss, states = accumulate(model, batches, carried, device)
            break
        except DoesNotFit as error:
            module.limit = error.half()
        prepare_retry(*random)
    if carried:
        carried[:] = states
    return loss


def accumulate(model: Model, batches: Sequence[Batch], carried: list[State] | None, device: torch.device
               ) -> tuple[Loss, list[State]]:  # fmt: skip
    """Add the gradients of all micro-batches; return the loss, and the final states of this worker's rows."""
    module: Any = getattr(model, "module", model)
    count, total = sum(batch.count for batch in batches), torch.zeros((), device=device)
    where, states = "another worker", []
    for number, batch in enumerate(batches):
        rows, weight = own_rows(batch, module.replica, module.replicas) if module.replicas > 1 else (batch, 1.0)
        cuts, found = parts(rows, module.limit) if module.limit else [slice(None)], []
        for cut in cuts:
            part, state = rows.rows(cut) if module.limit else rows, carried[number] if carried else None
            # the workers exchange gradients once, with the last part of the last micro-batch
            last, final = number == len(batches) - 1 and cut is cuts[-1], module.sharded
            try:
                with nullcontext() if module.replicas == 1 else exchange_gradients(model, last):
                    loss, state = model(part.to(device), rows_of(state, cut) if state and module.limit else state)
                    final = final or (last and module.replicas > 1)
                    # times replicas: the exchange averages over them, and a sum is needed
                    (loss * (weight * module.replicas / max(count, 1))).backward()
            except (MemoryError, RuntimeError) as error:  # torch.OutOfMemoryError is a RuntimeError
                raise explain_memory_error(error, part, final) from None
            found.append(state)
            if not loss.isfinite() and where == "another worker":
                where = f"micro-batch {number}"
            total = total + weight * loss.detach()  # summed over parts and micro-batches, then over workers
        states.append(found[0] if len(found) == 1 else join_rows(found))
    if module.replicas > 1:
        total = all_reduce(total) * (
            module.replicas / world_size()
        )  # the workers of a tensor-parallel group have the same rows
    if not total.isfinite():
        raise QkvError(f"the loss of {where} is {total.item()}; {UNCHANGED}")
    return Loss(total, count), states


def exchange_gradients(model: Model, now: bool) -> AbstractContextManager[None]:
    """Select whether the backward pass exchanges gradients with the other workers or accumulates this worker's own."""
    if isinstance(model, DistributedDataParallel):
        return nullcontext() if now else model.no_sync()
    sharded: Any = model
    sharded.set_requires_gradient_sync(now)  # of FSDP2
    return nullcontext()


def own_rows(batch: Batch, replica: int, replicas: int) -> tuple[Batch, float]:
    """Return this worker's rows of a batch (replica, replica + replicas, ...) and the weight of their loss.

    The weight is 1. If the batch has fewer rows than there are replicas, one without a row computes the first one with
    weight 0: all workers must take part in the exchange of gradients.
    """
    if replica < batch.size:
        return batch.rows(slice(replica, None, replicas)), 1.0
    return batch.rows(slice(0, 1)), 0.0
