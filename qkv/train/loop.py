"""The training loop: one for every family and task; what differs between tasks comes in as a Task."""

from __future__ import annotations

import hashlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from qkv.batch import Batch
from qkv.config import Interval, TrainConfig, TuneConfig, interval
from qkv.device import isolate_random_state, pick_device
from qkv.distributed import agree, broadcast, wait_for_rank_zero, world_size
from qkv.engine.training_kernels import quicken
from qkv.errors import QkvError
from qkv.memory import keep_freed_memory
from qkv.parts.stack import Stack, recompute
from qkv.parts.state import State
from qkv.shared_work import share_work
from qkv.tasks.base import Task
from qkv.text.wording import format_duration
from qkv.train import lora
from qkv.train.optimizer import make_optimizer, moving_average
from qkv.train.schedule import learning_rate, warmup_share
from qkv.train.sharding import replica, shard, shards_of, unsharded_network
from qkv.train.state import Progress, Training
from qkv.train.step import Model, Objective, data_parallel, loss_module, step

Mark = tuple[int, float, float]
"""Progress of a run: updates, share of the run (0 to 1), minutes."""
DONE = "all updates are done"


@dataclass
class Hooks:
    """Callbacks: write the line of an update to the log, its numbers to the report, a checkpoint, the best network so far; report
    messages to the user."""

    log: Callable[[dict[str, Any], bool], None]
    tick: Callable[[dict[str, Any]], None]
    save: Callable[[Training], None]
    best: Callable[[nn.Module], None]
    say: Callable[[str], None] = lambda _: None


@dataclass(frozen=True)
class Ending:
    """Why training ended."""

    reason: str
    signal: int = 0
    """The signal that stopped it, 0 = none: the run is complete."""


def prepare(network: nn.Module, c: TrainConfig, tune: TuneConfig = TuneConfig()) -> Training:
    """Return the state of training before the first update, on the device of the configuration."""
    device = pick_device(c.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)  # a checkpoint stores the random state of the current device
    if tune.lora_rank:
        lora.apply(network, tune.lora_rank, tune.lora_alpha, tune.lora_feedforward)
    network = network.to(device)
    if not c.compile:
        quicken(network)
    if c.activation_checkpointing:
        for module in network.modules():
            if isinstance(module, Stack):
                module.call = recompute
    half = use_bfloat16(device, c.precision, width(network))
    sharded = shard(network, c, half)
    average = moving_average(network if sharded is None else shards_of(network, sharded), c.ema) if c.ema else None
    if c.compile:
        network.compile(dynamic=True)
    t = Training(network, make_optimizer(network, c, tune), average, half=half, sharded=sharded)
    if world_size() > 1:
        torch.manual_seed(seed_of(c.seed, replica(t)))  # the weights are equal, but each draws its own dropout masks
    return t


HALF_WIDTH = 512
"""Width from which on bfloat16 is faster on a CPU that has units for it: 1.5 x at 512, no gain at 256, 0.75 x at 128."""


def use_bfloat16(device: torch.device, precision: str, width: int = HALF_WIDTH) -> bool:
    """Whether matrix products run in bfloat16: as the recipe sets it, or with "auto" where the hardware makes it faster."""
    if precision != "auto":
        return precision == "bfloat16"
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return device.type == "cpu" and width >= HALF_WIDTH and torch.cpu._is_avx512_bf16_supported()


def width(network: nn.Module) -> int:
    """Return the largest of the shorter sides of all matrices, usually d_model."""
    return max((min(p.shape) for p in network.parameters() if p.dim() == 2), default=0)


def train(t: Training, task: Task, c: TrainConfig, hooks: Hooks) -> Ending:
    """Train until the steps, the epochs, the time or the patience is exhausted, or a signal arrives.

    Order within an update: update, evaluate (if due), keep the best, save (if due). A run that is killed between two
    checkpoints repeats those updates exactly.
    """
    keep_freed_memory()
    task.batches.position = t.progress.position
    if task.carries and not t.carried:
        t.carried = [State()] * c.accumulate
    stream = iter(task.batches)
    model = trained_model(t, task.objective)
    with catch_signals() as signals:
        clock = Clock(t.progress, c, signals)
        while not clock.ending and not clock.signal:
            t.network.train()
            batches = [collate(task, examples, c.seed) for examples in islice(stream, c.accumulate)]
            line, tokens = one_update(t, task, model, batches, c, clock.mark[1], hooks)
            clock.poll()
            evaluated = bool(clock.ending) or clock.evaluation_due
            if evaluated:
                clock.start_evaluation()
                line |= evaluate(t, task, hooks)
                clock.poll()
            hooks.log(line, evaluated)
            hooks.tick(line | {"tokens": tokens})
            if clock.ending or clock.signal or clock.checkpoint_due:
                clock.start_checkpoint()
                hooks.save(t)
    if clock.ending:
        return Ending(clock.ending)
    sent = "" if signals else " to another worker"
    name = signal.Signals(clock.signal).name
    return Ending(f"stopped by {name}{sent}; run the same command again to continue", clock.signal)


def trained_model(t: Training, objective: Objective) -> Model:
    """Return the network with its objective, which exchanges gradients with the other workers."""
    if t.sharded is None:
        return data_parallel(loss_module(t.network, objective, t.half))
    t.sharded.model.objective = objective
    return t.sharded.model


class Clock:
    """When a run evaluates, saves and ends, decided equally on all workers."""

    def __init__(self, progress: Progress, c: TrainConfig, signals: list[signal.Signals]):
        self.progress, self.c, self.signals, self.workers = progress, c, signals, world_size()
        self.start = time.monotonic() - progress.seconds
        self.mark: Mark = (progress.step, share_of_run(progress, c), progress.seconds / 60)
        self.signal, self.ending, self.evaluation_due, self.checkpoint_due = 0, end_reason(progress, c), False, False
        # a run that was extended since then is now at a smaller share than at its last evaluation
        last = progress.evaluated
        progress.evaluated = last[0], min(last[1], self.mark[1]), last[2]
        self.next_evaluation = next_due(interval(c.evaluate_every), progress.evaluated)
        self.next_checkpoint = next_due(interval(c.save_every), self.mark)

    def poll(self) -> None:
        """Update the time (of rank 0) and the signals (of all workers), and determine what is due."""
        p = self.progress
        p.seconds, self.signal = time.monotonic() - self.start, max(self.signals, default=0)
        if self.workers > 1:
            p.seconds, self.signal = agree(p.seconds, self.signal)
        self.mark = p.step, share_of_run(p, self.c), p.seconds / 60
        if self.mark[1] >= 1 or p.waited:
            self.ending = self.ending or end_reason(p, self.c)
        self.evaluation_due = self.mark[self.next_evaluation[0]] >= self.next_evaluation[1]
        self.checkpoint_due = self.mark[self.next_checkpoint[0]] >= self.next_checkpoint[1]

    def start_evaluation(self) -> None:
        """Record that an evaluation takes place now."""
        self.progress.evaluated = self.mark
        self.next_evaluation = next_due(interval(self.c.evaluate_every), self.mark)

    def start_checkpoint(self) -> None:
        """Record that a checkpoint is written now."""
        self.next_checkpoint = next_due(interval(self.c.save_every), self.mark)


def next_due(every: Interval, last: Mark) -> tuple[int, float]:
    """Return the index of the number of a Mark to compare, and its value at the end of the next interval after `last`."""
    if every.minutes:
        return 2, last[2] + every.minutes
    size, unit = (every.updates, 0) if every.updates else (every.share, 1)
    multiple = int(last[unit] / size + 1e-9) + 1  # 0.3 / 0.1 is a little less than 3
    return unit, (multiple - 1e-9) * size


def collate(task: Task, examples: list[Any], seed: int) -> Batch:
    """Make a batch of examples.

    Its random parts (masks, augmentation) depend only on the seed and the position in the data: all workers, and a resumed run,
    get the same batch.
    """
    at = task.batches.position
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed_of(seed, at.epoch, at.pool, at.batch))
        return task.collate(examples)


def seed_of(*numbers: int) -> int:
    """Return a seed of 63 bits, a hash of these numbers: neighbouring numbers give unrelated seeds."""
    key = hashlib.blake2b(":".join(map(str, numbers)).encode(), digest_size=8)
    return int.from_bytes(key.digest()) >> 1


def one_update(t: Training, task: Task, model: Model, batches: list[Batch], c: TrainConfig, done: float, hooks: Hooks
               ) -> tuple[dict[str, Any], int]:  # fmt: skip
    """Set the learning rate, update the weights and their average; return the line for the log and the number of targets.

    `done` is the share of the run before this update.
    """
    p, at = t.progress, task.batches.position
    module: Any = getattr(model, "module", model)  # DistributedDataParallel wraps it in `module`
    p.step, limit = p.step + 1, module.limit
    rate = learning_rate(c, p.step, done)
    p.warmup += warmup_share(c, p.step, done) < 1
    for group in t.optimizer.param_groups:
        group["lr"] = rate * group["scale"]
    try:
        loss = step(model, t.optimizer, batches, c.clip, t.carried)
    except QkvError as error:
        raise QkvError(f"update {p.step}, batch {at.batch} of pool {at.pool}, epoch {at.epoch}: {error}") from None
    if t.average is not None:
        t.average.update_parameters(t.network)
    p.position = at
    if module.limit != limit:
        hooks.say(f"update {p.step}: a batch did not fit into memory; from now on at most {module.limit:,} tokens are computed "
                  "at once, with the same gradient")  # fmt: skip
    line = {"step": p.step, "epoch": at.epoch, "loss": loss.mean.item(), "learning_rate": rate, **module.measures}
    return line, loss.count


def evaluate(t: Training, task: Task, hooks: Hooks) -> dict[str, Any]:
    """Score the held-out examples, of which each worker computes a share; keep these weights if they are the best so far."""
    device = next(t.network.parameters()).device
    network = unsharded_network(t).eval()
    with isolate_random_state(device):  # evaluation must not change the following updates
        with (
            parametrize.cached(),
            share_work(),
        ):  # LoRA's matrices are added to the weights once, not at every decoding step
            scores = task.evaluate_all(network)
        sign = -1 if task.metric == "loss" else 1
        (score,) = broadcast([sign * scores[task.metric]])
        t.progress.waited += 1
        if score > t.progress.best:
            t.progress.waited = 0
        if score >= t.progress.best:  # of equal scores (0, 100) keep the later one, which was trained longer
            t.progress.best, t.progress.best_step = score, t.progress.step
            hooks.best(network)
            wait_for_rank_zero()
    return {f"valid_{name}": value for name, value in scores.items()}


def share_of_run(p: Progress, c: TrainConfig) -> float:
    """Return the share of the run that is done: by steps, or by epochs or time where these end first."""
    timed = 0.0 if c.time_budget is None else p.seconds / (60 * c.time_budget)
    passed = 0.0 if c.epochs is None else p.position.passes / c.epochs
    return max(p.step / c.steps, timed, passed)


def remaining_updates(p: Progress, c: TrainConfig) -> int:
    """Return the number of updates until the steps or the epochs are done, whatever the time budget."""
    by_steps = c.steps - p.step
    if c.epochs is None or not p.position.passes:
        return by_steps
    return max(0, min(by_steps, round(p.step * (c.epochs / p.position.passes - 1))))


def end_reason(p: Progress, c: TrainConfig) -> str:
    """Return why the run is complete; empty if it is not."""
    if c.patience and p.waited >= c.patience:
        return f"no better score in {p.waited} evaluations"
    if c.time_budget is not None and p.seconds >= 60 * c.time_budget:
        return f"the time budget of {format_duration(60 * c.time_budget)} is over"
    if c.epochs is not None and p.position.passes >= c.epochs:
        return f"train.epochs = {c.epochs:g} is reached"
    return DONE if p.step >= c.steps else ""


@contextmanager
def catch_signals() -> Iterator[list[signal.Signals]]:
    """Collect SIGINT and SIGTERM within the block, so that the update is finished and saved first.

    A second SIGINT interrupts immediately. A second SIGTERM does not: a worker gets two if Slurm sends one to all processes of a
    job, since the agent forwards its own.
    """
    received: list[signal.Signals] = []
    if threading.current_thread() is not threading.main_thread():  # Python delivers signals to the main thread only
        yield received
        return

    def receive(number: int, frame: object) -> None:
        if received and number == signal.SIGINT:
            raise KeyboardInterrupt
        received.append(signal.Signals(number))

    before = {s: signal.signal(s, receive) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for s, handler in before.items():
            signal.signal(s, handler)
