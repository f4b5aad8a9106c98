"""The loop: one for every family and task. What differs between tasks comes in as a Task."""

from __future__ import annotations

import hashlib
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parametrize

from qkv.batch import Batch
from qkv.config import Interval, TrainConfig, TuneConfig, interval
from qkv.device import aside, pick_device
from qkv.engine.training_kernels import quicken
from qkv.errors import QkvError
from qkv.memory import keep_freed_memory
from qkv.parts.state import State
from qkv.tasks.base import Task
from qkv.text.wording import format_duration
from qkv.train import lora
from qkv.train.checkpoint import Progress, Training
from qkv.train.optimizer import optimizer
from qkv.train.schedule import learning_rate, warming_up
from qkv.train.step import LossModule, data_parallel, step
from qkv.train.workers import all_reduce, broadcast, rank, world

Model = LossModule | DistributedDataParallel


@dataclass
class Hooks:
    """What the loop tells the outside: a log line, a picture of the moment, a checkpoint to store, a new best."""

    log: Callable[[dict[str, Any]], None]
    tick: Callable[[dict[str, Any]], None]
    save: Callable[[Training], None]
    best: Callable[[Training], None]


def prepare(network: nn.Module, c: TrainConfig, tune: TuneConfig = TuneConfig()) -> Training:
    """A fresh start, on the device that the configuration asks for."""
    device = pick_device(c.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)  # whose random numbers a checkpoint stores
    if tune.lora_rank:
        lora.apply(network, tune.lora_rank, tune.lora_alpha, tune.lora_feedforward)
    network = network.to(device)
    if c.compile:
        network.compile(dynamic=True)
    else:
        quicken(network)
    average = {name: p.detach().clone() for name, p in network.named_parameters()} if c.ema else {}
    if world() > 1:
        torch.manual_seed(seed_of(c.seed, rank()))  # the same weights, but each worker has dropout masks of its own
    return Training(network, optimizer(network, c, tune), average, half=half_pays(device, c.precision, width(network)))


HALF_WIDTH = 512
"""Width from which on bfloat16 is faster on a CPU that has units for it: 1.5 x at 512, no gain at 256, 0.75 x at 128."""


def half_pays(device: torch.device, precision: str, width: int = HALF_WIDTH) -> bool:
    """Whether matrix products run in bfloat16: as the recipe says, or where the hardware has units for it that pay off."""
    if precision != "auto":
        return precision == "bfloat16"
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return device.type == "cpu" and width >= HALF_WIDTH and torch.cpu._is_avx512_bf16_supported()


def width(network: nn.Module) -> int:
    """The shorter side of the largest matrix product of a network."""
    return max((min(p.shape) for p in network.parameters() if p.dim() == 2), default=0)


def train(t: Training, task: Task, c: TrainConfig, hooks: Hooks) -> str:
    """Train until the steps, the time or the patience is over, or somebody stops it; why it ended.

    Order within an update: learn, evaluate (if due), keep the best, store (if due). A run killed anywhere between two
    stores repeats those updates exactly, so nothing depends on where it was killed.
    """
    keep_freed_memory()
    task.batches.position = t.progress.position
    if task.carries and not t.carried:
        t.carried = [State()] * c.accumulate
    stream = iter(task.batches)
    model = data_parallel(LossModule(t.network, task.objective, t.half))
    start, saved = time.monotonic() - t.progress.seconds, mark(t.progress, c)
    t.progress.evaluated = rebase(t.progress.evaluated, saved)
    with stopping() as noted:
        while t.progress.step < c.steps:
            t.network.train()
            batches = [collated(task, examples, c.seed) for examples in islice(stream, c.accumulate)]
            lines, tokens = one_update(t, task, model, batches, c)
            t.progress.position = task.batches.position
            stop = poll(t.progress, start, noted)
            ending = ended(t.progress, c)
            if ending or due(interval(c.evaluate_every), mark(t.progress, c), t.progress.evaluated):
                t.progress.evaluated = mark(t.progress, c)
                lines |= evaluate(t, task, hooks)
                stop = poll(t.progress, start, noted)
                ending = ending or ended(t.progress, c)
            hooks.log(lines)
            hooks.tick(lines | {"tokens": tokens})
            if ending or stop or due(interval(c.save_every), mark(t.progress, c), saved):
                saved = mark(t.progress, c)
                hooks.save(t)
            if ending or stop:
                by = noted[0] if noted else "a signal to another worker"
                return ending or f"stopped by {by}; run the same command again to go on"
    return "all steps are done"


def collated(task: Task, examples: list[Any], seed: int) -> Batch:
    """A batch of examples. What is random in it (masks, augmentation) depends on the seed and the place in the data alone:
    all workers collate the same batch, and so does a resumed run."""
    place = task.batches.position
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed_of(seed, place.epoch, place.pool, place.batch))
        return task.collate(examples)


def seed_of(*numbers: int) -> int:
    """A seed of 63 bits: neighbouring numbers give unrelated ones."""
    key = hashlib.blake2b(":".join(map(str, numbers)).encode(), digest_size=8)
    return int.from_bytes(key.digest()) >> 1


def one_update(
    t: Training, task: Task, model: Model, batches: list[Batch], c: TrainConfig
) -> tuple[dict[str, Any], int]:
    """Learning rate, gradient, step, average; the numbers of this update, and how many tokens it predicted."""
    done = share_done(t.progress, c)  # before this update
    t.progress.step += 1
    rate = learning_rate(c, t.progress.step, done)
    t.progress.warmup += warming_up(c, t.progress.step, done)
    for group in t.optimizer.param_groups:
        group["lr"] = rate * group["scale"]
    try:
        loss = step(model, t.optimizer, batches, c.clip, t.carried)
    except QkvError as error:
        raise QkvError(f"update {t.progress.step}, batch {task.batches.position.batch} of pool "
                       f"{task.batches.position.pool}, epoch {task.batches.position.epoch}: {error}") from None  # fmt: skip
    if t.average:
        update_average(t, c.ema)
    lines = {
        "step": t.progress.step,
        "epoch": task.batches.position.epoch,
        "loss": loss.mean.item(),
        "learning_rate": rate,
    }
    return lines, loss.count


def poll(p: Progress, start: float, noted: list[str]) -> bool:
    """Read the clock of rank 0 into `p`; return whether any worker has received a signal to stop."""
    seconds = time.monotonic() - start if rank() == 0 else 0.0
    p.seconds, signals = all_reduce(torch.tensor([seconds, len(noted)], dtype=torch.float64)).tolist()
    return signals > 0


def mark(p: Progress, c: TrainConfig) -> tuple[int, float, float]:
    """How far the run is: updates, share of the run, minutes."""
    return p.step, share_done(p, c), p.seconds / 60


def rebase(last: tuple[int, float, float], now: tuple[int, float, float]) -> tuple[int, float, float]:
    """Correct the mark of the last evaluation for a run that was extended since: as many updates are a smaller share of it."""
    return last[0], min(last[1], now[1]), last[2]


def due(every: Interval, now: Sequence[float], last: Sequence[float]) -> bool:
    """Whether a multiple of the interval lies between two marks (minutes: whether the interval has passed)."""
    if every.minutes:
        return now[2] - last[2] >= every.minutes
    size, unit = (every.updates, 0) if every.updates else (every.share, 1)
    return int(now[unit] / size + 1e-9) > int(last[unit] / size + 1e-9)  # 0.3 / 0.1 is a little less than 3


def update_average(t: Training, decay: float) -> None:
    """average = decay * average + (1 - decay) * weights; short at first, so that the beginning is soon forgotten."""
    decay = min(decay, (1 + t.progress.step) / (10 + t.progress.step))
    weights = dict(t.network.named_parameters())
    with torch.no_grad():
        torch._foreach_lerp_(list(t.average.values()), [weights[name] for name in t.average], 1 - decay)


@contextmanager
def averaged(t: Training) -> Iterator[nn.Module]:
    """The network with its averaged weights, where they are kept; the others come back afterwards."""
    own = {name: p.detach().clone() for name, p in t.network.named_parameters()} if t.average else {}
    with torch.no_grad():
        for name, p in t.network.named_parameters():
            p.copy_(t.average.get(name, p))
    try:
        yield t.network.eval()
    finally:
        with torch.no_grad():
            for name, p in t.network.named_parameters():
                p.copy_(own.get(name, p))


def evaluate(t: Training, task: Task, hooks: Hooks) -> dict[str, Any]:
    """Score the held-out examples; keep these weights if they are the best so far."""
    device = next(t.network.parameters()).device
    with averaged(t) as network, aside(device):  # evaluation must not change what is learned next
        with parametrize.cached():  # LoRA's matrices are added up once, not at every step of a search
            scores = task.evaluate_all(network) if rank() == 0 else {}
        sign = -1 if task.metric == "loss" else 1
        (score,) = broadcast([sign * scores.get(task.metric, 0.0)])
        t.progress.waited += 1
        if score > t.progress.best:
            t.progress.waited = 0
        if score >= t.progress.best:  # of equals (0, 100) the later ones, which have learned more
            t.progress.best, t.progress.best_step = score, t.progress.step
            hooks.best(t)
    return {f"valid_{name}": value for name, value in scores.items()}


def share_done(p: Progress, c: TrainConfig) -> float:
    """How much of the run is over: by steps, or by passes or time where these run out first."""
    timed = 0.0 if c.time_budget is None else p.seconds / (60 * c.time_budget)
    passed = 0.0 if c.epochs is None else p.position.passes / c.epochs
    return max(p.step / c.steps, timed, passed)


def updates_left(p: Progress, c: TrainConfig) -> int:
    """Updates until the steps or the passes are done; time has no part in it."""
    by_steps = c.steps - p.step
    if c.epochs is None or not p.position.passes:
        return by_steps
    return max(0, min(by_steps, round(p.step * (c.epochs / p.position.passes - 1))))


def ended(p: Progress, c: TrainConfig) -> str:
    """Why training ends here, or nothing."""
    if c.patience and p.waited >= c.patience:
        return f"no better score in {p.waited} evaluations"
    if c.time_budget is not None and p.seconds >= 60 * c.time_budget:
        return f"the time budget of {format_duration(60 * c.time_budget)} is over"
    if c.epochs is not None and p.position.passes >= c.epochs:
        return f"train.epochs = {c.epochs:g} is reached"
    return "all steps are done" if p.step >= c.steps else ""


@contextmanager
def stopping() -> Iterator[list[str]]:
    """Within it, Ctrl-C and SIGTERM are noted instead of obeyed: the update is finished and stored first."""
    noted: list[str] = []
    if threading.current_thread() is not threading.main_thread():  # only that one receives signals
        yield noted
        return

    def note(number: int, frame: object) -> None:
        if noted:  # the second time, at once
            raise KeyboardInterrupt
        noted.append(signal.Signals(number).name)

    before = {s: signal.signal(s, note) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield noted
    finally:
        for s, handler in before.items():
            signal.signal(s, handler)
