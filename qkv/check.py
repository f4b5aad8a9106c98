"""The contracts of docs/design.md as measurements: what must be true of every model, on this model, in numbers.

`check(network, config)` returns one Result per contract. Tests run it on every preset; `qkv check FOLDER` on yours.
Differences are max |a - b| relative to max(1, max |a|).
"""

from __future__ import annotations

import copy
import math
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from qkv.batch import IGNORED, Batch
from qkv.config import ModelConfig
from qkv.convert import huggingface
from qkv.errors import ConfigError
from qkv.generate.search import greedy
from qkv.models.build import Network, build
from qkv.models.encoder import Encoder
from qkv.models.weights import weights
from qkv.objectives import objective
from qkv.train import checkpoint
from qkv.train.checkpoint import Progress, Training
from qkv.train.step import gradients, step


@dataclass(frozen=True)
class Result:
    """One contract on one model."""

    contract: str
    meaning: str
    tolerance: float
    measured: float | None
    """None: the contract does not apply; `note` says why."""
    note: str = ""

    @property
    def passed(self) -> bool:
        # not "measured <= tolerance" alone: a NaN must not pass
        return self.measured is None or bool(math.isfinite(self.measured) and self.measured <= self.tolerance)


class DoesNotApply(Exception):
    """A contract has no meaning for this model; the message says why."""


Measurement = Callable[[Network, ModelConfig], float]
CONTRACTS: dict[str, tuple[str, float, Measurement]] = {}


def contract(name: str, meaning: str, tolerance: float) -> Callable[[Measurement], Measurement]:
    """Register a measurement under the name of its contract."""

    def register(measure: Measurement) -> Measurement:
        CONTRACTS[name] = (meaning, tolerance, measure)
        return measure

    return register


def check(network: Network, c: ModelConfig, only: str | None = None) -> list[Result]:
    """Measure every contract (or one) on a network; it is left as it was."""
    results = []
    for name, (meaning, tolerance, measure) in CONTRACTS.items():
        if only not in (None, name):
            continue
        measured, note = None, ""
        subject = copy.deepcopy(network).eval()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            try:
                measured = measure(subject, c)
            except DoesNotApply as reason:
                note = str(reason)
        results.append(Result(name, meaning, tolerance, measured, note))
    return results


def check_folder(folder: str | Path) -> list[Result]:
    """All contracts on the model in a folder, in fp32 on the CPU."""
    from qkv.api import load

    model = load(folder, device="cpu")
    return check(model.network.float(), model.config)


# --- examples and helpers


def example(c: ModelConfig, rows: int = 3, length: int = 7) -> Batch:
    """A random batch that this model can read and be trained on, without padding."""
    length = min(length, c.max_length - 1)
    side = lambda size: torch.randint(0, size, (rows, length))  # noqa: E731
    images = None if c.image_size is None else torch.randn(rows, c.n_channels, c.image_size, c.image_size)
    inputs = side(c.target_size) if c.family != "encoder" or images is None else None
    source = side(c.vocab_size) if c.family == "encoder-decoder" and images is None else None
    segments = side(c.n_segments) if c.n_segments else None
    return Batch(inputs=inputs, targets=targets(c, rows, length), source=source, segments=segments, images=images)


def targets(c: ModelConfig, rows: int, length: int) -> Tensor | None:
    if c.head in ("pooled", "none"):
        return None
    if c.head == "classes":
        return torch.randint(0, c.n_classes, (rows,))
    size = {"tags": c.n_classes, "replaced": 2}.get(c.head, c.target_size)
    answers = torch.randint(0, size, (rows, length))
    answers[torch.rand(rows, length) < 0.3] = IGNORED  # rows of unequal count: what accumulation gets wrong
    answers[:, 0] = 0
    return answers


def difference(a: Tensor, b: Tensor) -> float:
    if a.numel() == 0:
        return 0.0
    a, b = a.detach(), b.detach()
    return float((a - b).abs().max() / a.abs().max().clamp(min=1))


def padded(x: Tensor, count: int, left: bool) -> Tensor:
    """(B, T) with `count` columns of other, in-vocabulary tokens on one side: padding must not matter whatever it holds."""
    filler = x[:, :1].expand(-1, count)
    return torch.cat([filler, x] if left else [x, filler], 1)


def needs_writer(c: ModelConfig) -> None:
    if c.family == "encoder":
        raise DoesNotApply("reads all positions at once")


def needs_targets(batch: Batch) -> None:
    if batch.targets is None:
        raise DoesNotApply("this head has no objective")


@contextmanager
def readable(network: nn.Module) -> Iterator[None]:
    """Every mixer on its readable path."""
    mixers = [m for m in network.modules() if hasattr(m, "fast")]
    for mixer in mixers:
        mixer.fast = False  # type: ignore[assignment]
    try:
        yield
    finally:
        for mixer in mixers:
            mixer.fast = True  # type: ignore[assignment]


# --- the contracts


@contract("causal", "changing token t changes no output before t", 1e-6)
@torch.no_grad()
def causal(network: Network, c: ModelConfig) -> float:
    needs_writer(c)
    batch = example(c)
    assert batch.inputs is not None
    before = network(batch).logits
    worst = 0.0
    for t in range(1, batch.inputs.size(1)):
        other = batch.inputs.clone()
        other[:, t] = (other[:, t] + 1) % c.target_size
        after = network(Batch(inputs=other, source=batch.source, images=batch.images)).logits
        worst = max(worst, difference(before[:, :t], after[:, :t]))
    return worst


@contract("padding", "a sequence padded on either side gives what it gives alone", 1e-5)
@torch.no_grad()
def padding(network: Network, c: ModelConfig) -> float:
    batch, worst = example(c, length=5), 0.0
    if batch.inputs is None:
        raise DoesNotApply("images have no padding")
    alone = network(batch).logits
    for left in (True, False):
        real = padded(torch.ones_like(batch.inputs).bool(), 2, left)
        real[:, slice(0, 2) if left else slice(-2, None)] = False
        segments = None if batch.segments is None else padded(batch.segments, 2, left)
        source, source_mask = batch.source, None
        if source is not None:
            source, source_mask = padded(source, 2, left), real
        wide = Batch(padded(batch.inputs, 2, left), real, None, source, source_mask, segments, batch.images)
        together = network(wide).logits
        if together.size(1) == real.size(1) and c.head not in ("classes", "pooled"):
            together = together[:, 2:] if left else together[:, :-2]
        worst = max(worst, difference(alone, together))
    return worst


@contract("batch", "outputs and greedy continuations are the same alone or in any batch", 1e-5)
@torch.no_grad()
def batch_of_one(network: Network, c: ModelConfig) -> float:
    batch, worst = example(c), 0.0
    together = network(batch).logits
    for row in range(together.size(0)):
        worst = max(worst, difference(together[row : row + 1], network(batch.rows(slice(row, row + 1))).logits))
    if isinstance(network, Encoder):
        return worst
    written = greedy(network, batch, 8)
    for row, ids in enumerate(written):
        if greedy(network, batch.rows(slice(row, row + 1)), 8)[0] != ids:
            return math.inf
    return worst


@contract("cache", "with a state, token by token or in chunks, as without", 1e-5)
@torch.no_grad()
def cache(network: Network, c: ModelConfig) -> float:
    needs_writer(c)
    batch, worst = example(c), 0.0
    assert batch.inputs is not None and not isinstance(network, Encoder)
    whole = network(batch).hidden
    for size in (1, 3, batch.inputs.size(1) - 1):
        state, pieces = network.start(batch), []
        for ids in batch.inputs.split(size, 1):
            hidden, state = network.step(ids, state)
            pieces.append(hidden)
        worst = max(worst, difference(whole, torch.cat(pieces, 1)))
    return worst


@contract("kernel", "the fast path equals the readable one, in evaluation and in training", 1e-5)
def kernel(network: Network, c: ModelConfig) -> float:
    if not any(hasattr(module, "fast") for module in network.modules()):
        raise DoesNotApply("only one path")
    batch, worst = example(c), 0.0
    for training in (False, True):
        network.train(training)
        torch.manual_seed(1)
        fast = network(batch).logits
        torch.manual_seed(1)
        with readable(network):
            worst = max(worst, difference(fast, network(batch).logits))
    return worst


@contract("accumulate", "gradients of k micro-batches = those of one batch", 1e-5)
def accumulate(network: Network, c: ModelConfig) -> float:
    batch = example(c, rows=4)
    needs_targets(batch)
    gradients(network, [batch], objective(c))
    whole = [p.grad.clone() for p in network.parameters() if p.grad is not None]
    gradients(network, [batch.rows(slice(0, 1)), batch.rows(slice(1, 4))], objective(c))
    parts = [p.grad for p in network.parameters() if p.grad is not None]
    assert len(whole) == len(parts) and whole
    scale = max(float(g.abs().max()) for g in whole) or 1.0
    return max(float((a - b).abs().max()) for a, b in zip(whole, parts, strict=True)) / scale


@contract("resume", "stopped, saved and resumed = never stopped, bit for bit", 0.0)
def resume(network: Network, c: ModelConfig) -> float:
    batches = [example(c) for _ in range(4)]
    needs_targets(batches[0])
    network.train()
    start = copy.deepcopy(network)

    def optimizer(of: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(of.parameters(), lr=1e-3)

    def go(net: nn.Module, adam: torch.optim.Optimizer, some: list[Batch]) -> None:
        for batch in some:
            step(net, adam, [batch], objective(c))

    torch.manual_seed(1)
    go(network, optimizer(network), batches)
    torch.manual_seed(1)
    first = Training(start, optimizer(start), progress=Progress(step=2))
    go(start, first.optimizer, batches[:2])
    with tempfile.TemporaryDirectory() as folder:
        checkpoint.save(Path(folder) / "checkpoint-2", first)
        torch.manual_seed(99)
        fresh = build(c).train()
        again = Training(fresh, optimizer(fresh))
        checkpoint.load(Path(folder) / "checkpoint-2", again)
    go(fresh, again.optimizer, batches[again.progress.step :])
    return max(difference(a, b) for a, b in zip(network.parameters(), fresh.parameters(), strict=True))


@contract("round trip", "ours -> Hugging Face -> ours: the same bits", 0.0)
def round_trip(network: Network, c: ModelConfig) -> float:
    ours = weights(network)
    try:
        foreign_config, foreign = huggingface.to_foreign(c, ours)
    except ConfigError:
        raise DoesNotApply("Hugging Face has no such model") from None
    back = huggingface.from_foreign(huggingface.read_config(foreign_config, foreign), foreign_config, foreign)
    if back.keys() != ours.keys():
        return math.inf
    return max(difference(ours[name], back[name]) for name in ours)


@contract("export", "a saved folder read back gives the same outputs", 0.0)
@torch.no_grad()
def export(network: Network, c: ModelConfig) -> float:
    from qkv.convert import folder as ours

    batch = example(c)
    with tempfile.TemporaryDirectory() as where:
        ours.save(Path(where) / "model", c, network)
        config, again, _ = ours.load(Path(where) / "model")
    if config != c:
        return math.inf
    return difference(network(batch).logits, again.eval()(batch).logits)
