"""Measure the contracts of docs/architecture.md on a model: properties that must hold for every model to which they apply.

`check(network, config)` returns one Result per contract. Tests run it on every preset; `qkv check FOLDER` on yours.
Differences are max |a - b| relative to max(1, max |a|).
"""

from __future__ import annotations

import copy
import math
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from qkv.batch import Batch
from qkv.config import ModelConfig
from qkv.convert import folder as ours
from qkv.convert import huggingface
from qkv.convert.detect import open_model
from qkv.convert.export import TOLERANCE, write_huggingface
from qkv.errors import ConfigError, QkvError
from qkv.generate.search import greedy
from qkv.models.build import build
from qkv.models.example import example
from qkv.models.weights import weights
from qkv.objectives import objective
from qkv.parts.softmax import Softmax
from qkv.train import checkpoint
from qkv.train.checkpoint import Progress, Training
from qkv.train.step import gradients, loss_module, step

LARGE = 200_000_000
"""Parameters beyond which training contracts are not measured: they need several copies in memory."""
WHOLE = ("classes", "classes-words", "pooled")
"""Heads with one answer for the whole sequence."""


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
    def status(self) -> Literal["holds", "broken", "does not apply"]:
        if self.measured is None:
            return "does not apply"
        return "holds" if self.measured <= self.tolerance else "broken"


class DoesNotApply(Exception):
    """A contract has no meaning for this model; the message says why."""


Network = Any
"""An Encoder, Decoder or EncoderDecoder; which of them is asked of the configuration."""
Measurement = Callable[[Network, ModelConfig], float]
CONTRACTS: dict[str, tuple[str, float, Measurement]] = {}


def contract(name: str, meaning: str, tolerance: float) -> Callable[[Measurement], Measurement]:
    """Register a measurement under the name of its contract."""

    def register(measure: Measurement) -> Measurement:
        CONTRACTS[name] = (meaning, tolerance, measure)
        return measure

    return register


def check(network: nn.Module, c: ModelConfig, only: str | None = None) -> list[Result]:
    """Measure every contract (or one) on a network; it is left as it was."""
    results = []
    for name, (meaning, tolerance, measure) in CONTRACTS.items():
        if only in (None, name):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                measured, note = attempt(measure, subject(network), c)
            results.append(Result(name, meaning, tolerance, measured, note))
    return results


def attempt(measure: Measurement, network: nn.Module, c: ModelConfig) -> tuple[float | None, str]:
    """The measured difference, or why there is none; a model that cannot do the exercise has broken the contract."""
    try:
        return measure(network, c), ""
    except DoesNotApply as reason:
        return None, str(reason)
    except QkvError as error:
        return math.inf, str(error)


def subject(network: nn.Module) -> nn.Module:
    """A copy to experiment on. Sums that are carried from chunk to chunk get chunks short enough to be crossed."""
    twin = copy.deepcopy(network).eval()
    for module in twin.modules():
        if hasattr(module, "chunk"):
            module.chunk = 3  # type: ignore[assignment]
    return twin


def check_folder(folder: str | Path) -> list[Result]:
    """All contracts on the model in a folder, in fp32 on the CPU."""
    from qkv.api import load

    model = load(folder, device="cpu")
    return check(model.network.float(), model.config)


# --- helpers


def difference(a: Tensor, b: Tensor) -> float:
    if a.numel() == 0:
        return 0.0
    a, b = a.detach(), b.detach()
    return float((a - b).abs().max() / a.abs().max().clamp(min=1))


def worst(differences: Iterable[float]) -> float:
    """The largest; infinite if any is not a number: max(0.0, nan) would be 0.0."""
    found = list(differences)
    return max(found, default=0.0) if all(map(math.isfinite, found)) else math.inf


def masks(rows: int, length: int) -> list[Tensor]:
    """Rows of unequal length, (rows, length) bool: padded on the right, on the left, and anywhere."""
    sizes = torch.tensor([max(1, length - row * (length // rows)) for row in range(rows)])[:, None]
    places = torch.arange(length)[None]
    holes = torch.rand(rows, length) < 0.6
    holes[:, length // 2] = True
    return [places < sizes, places >= length - sizes, holes]


def row_alone(batch: Batch, row: int) -> Batch:
    """One example of a batch without its padding."""
    one = batch.rows(slice(row, row + 1))
    pick = lambda x, m: None if x is None else x if m is None else x[:, m[0]]  # noqa: E731
    return replace(one, inputs=pick(one.inputs, one.mask), segments=pick(one.segments, one.mask), mask=None,
                   source=pick(one.source, one.source_mask), source_mask=None, targets=None)  # fmt: skip


def needs_causal_mask(c: ModelConfig) -> None:
    if not c.is_causal:
        raise DoesNotApply("reads all positions at once")


def source_length(c: ModelConfig, batch: Batch) -> int:
    """How many tokens of an example are its source, which a prefix mask shows in both directions, and what follows it."""
    assert batch.inputs is not None
    return batch.inputs.size(1) // 2 + 1 if c.prefix_mask else 0


def needs_training(batch: Batch, network: nn.Module) -> None:
    if batch.targets is None:
        raise DoesNotApply("this head has no objective")
    if sum(p.numel() for p in network.parameters()) > LARGE:
        raise DoesNotApply(f"over {LARGE:,} parameters: check a smaller configuration of the same architecture")


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
    needs_causal_mask(c)
    batch = example(c)
    if batch.inputs is None:
        raise DoesNotApply("images have no order")
    whole = c.head in WHOLE  # such a head has no answers of single positions: what it reads is looked at
    seen = lambda b: network(b).hidden if whole else network(b).logits  # noqa: E731
    before, found = seen(batch), []
    for t in range(source_length(c, batch) or 1, batch.inputs.size(1)):
        other = batch.inputs.clone()
        other[:, t] = (other[:, t] + 1) % c.target_size
        found.append(difference(before[:, :t], seen(replace(batch, inputs=other))[:, :t]))
    return worst(found)


@contract("padding", "rows of unequal length, padded on either side or anywhere, give what each gives alone", 1e-5)
@torch.no_grad()
def padding(network: Network, c: ModelConfig) -> float:
    batch, found = example(c), []
    if batch.inputs is None:
        raise DoesNotApply("images have no padding")
    for mask in masks(*batch.inputs.shape):
        source_mask = None if batch.source is None else mask.flip(0)
        together = network(replace(batch, mask=mask, source_mask=source_mask)).logits
        for row in range(together.size(0)):
            alone = network(row_alone(replace(batch, mask=mask, source_mask=source_mask), row)).logits[0]
            found.append(difference(alone, together[row] if c.head in WHOLE else together[row, mask[row]]))
    return worst(found)


@contract("batch", "outputs and greedy continuations are the same alone or in any batch", 1e-5)
@torch.no_grad()
def batch_of_one(network: Network, c: ModelConfig) -> float:
    batch = example(c)
    together = network(batch).logits
    rows = range(together.size(0))
    found = [difference(together[row], network(row_alone(batch, row)).logits[0]) for row in rows]
    if c.head != "vocabulary":
        return worst(found)
    assert batch.inputs is not None
    ragged = replace(batch, mask=masks(*batch.inputs.shape)[0])
    written = greedy(network, ragged, 4)
    same = all(greedy(network, row_alone(ragged, row), 4)[0] == written[row] for row in rows)
    return worst(found) if same else math.inf


@contract("cache", "with a state, in chunks of any size, padded or not, rows moved or not, as without", 1e-5)
@torch.no_grad()
def cache(network: Network, c: ModelConfig) -> float:
    needs_causal_mask(c)
    if c.family == "encoder":
        raise DoesNotApply("an encoder has no cache")
    batch, found = example(c), []
    assert batch.inputs is not None
    rows, length = batch.inputs.shape
    source = source_length(c, batch)
    for mask in [torch.ones(rows, length).bool(), *masks(rows, length)]:
        padded = replace(batch, mask=None if mask.all() else mask)
        whole = network(padded).hidden
        for size in {1, 3, max(1, length - 1)}:
            found.append(difference(whole[mask], in_chunks(network, padded, size, source=source)[mask]))
        moved = torch.tensor([rows - 1, 0, rows - 1])
        found.append(difference(whole[moved][mask[moved]], in_chunks(network, padded, 3, moved, source)[mask[moved]]))
    return worst(found)


def in_chunks(network: Network, batch: Batch, size: int, moved: Tensor | None = None, source: int = 0) -> Tensor:
    """Hidden vectors of a pass in chunks, the first of which has the `source`; with `moved`, the state goes to these rows after
    the first chunk."""
    assert batch.inputs is not None
    state, pieces = network.start(batch), []
    ids, mask = batch.inputs, batch.mask
    starts = [0, *range(source or size, ids.size(1), size)]  # a source is read at once
    for at, end in pairwise([*starts, ids.size(1)]):
        chunk = slice(at, end)
        hidden, state = network.step(ids[:, chunk], state, None if mask is None else mask[:, chunk])
        if moved is not None and at == 0:
            state, ids, hidden = state.select(moved), ids[moved], hidden[moved]
            mask = None if mask is None else mask[moved]
        pieces.append(hidden)
    return torch.cat(pieces, 1)


@contract("kernel", "the fast path equals the readable one, in evaluation and in training", 1e-5)
def kernel(network: Network, c: ModelConfig) -> float:
    if not any(hasattr(module, "fast") for module in network.modules()):
        raise DoesNotApply("only one path")
    batch, found = example(c), [both_paths(network.eval(), example(c)), both_paths(network.train(), example(c))]
    for module in network.modules():
        if isinstance(module, Softmax):
            module.dropout.p = 0.0  # dropped weights must be formed: without this, training would compare nothing
    return worst([*found, both_paths(network, batch)])


def both_paths(network: Network, batch: Batch) -> float:
    torch.manual_seed(1)
    fast = network(batch).logits
    torch.manual_seed(1)
    with readable(network):
        return difference(fast, network(batch).logits)


@contract("accumulate", "gradients of k micro-batches = those of one batch", 1e-5)
def accumulate(network: Network, c: ModelConfig) -> float:
    batch = example(c, rows=4)
    needs_training(batch, network)
    gradients(loss_module(network, objective(c)), [batch])
    whole = [p.grad.clone() for p in network.parameters() if p.grad is not None]
    gradients(loss_module(network, objective(c)), [batch.rows(slice(0, 1)), batch.rows(slice(1, 4))])
    parts = [p.grad for p in network.parameters() if p.grad is not None]
    scale = max(float(g.abs().max()) for g in whole) or 1.0
    return worst(float((a - b).abs().max()) / scale for a, b in zip(whole, parts, strict=True))


@contract("resume", "stopped, saved and resumed = never stopped, bit for bit", 0.0)
def resume(network: Network, c: ModelConfig) -> float:
    batches = [example(c) for _ in range(4)]
    needs_training(batches[0], network)
    start = copy.deepcopy(network.train())

    def go(net: nn.Module, adam: torch.optim.Optimizer, some: list[Batch]) -> None:
        for batch in some:
            step(loss_module(net, objective(c)), adam, [batch])

    torch.manual_seed(1)
    go(network, adam_of(network), batches)
    torch.manual_seed(1)
    first = Training(start, adam_of(start), progress=Progress(step=2))
    go(start, first.optimizer, batches[:2])
    with tempfile.TemporaryDirectory() as folder:
        checkpoint.save(Path(folder) / "checkpoint-2", first)
        torch.manual_seed(99)
        fresh = subject(build(c)).train()
        again = Training(fresh, adam_of(fresh))
        checkpoint.load(Path(folder) / "checkpoint-2", again)
    go(fresh, again.optimizer, batches[again.progress.step :])
    return worst(difference(a, b) for a, b in zip(network.parameters(), fresh.parameters(), strict=True))


def adam_of(network: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(network.parameters(), lr=1e-3)


@contract("round trip", "ours -> Hugging Face -> ours: the same bits and the same outputs", 0.0)
@torch.no_grad()
def round_trip(network: Network, c: ModelConfig) -> float:
    """A network that is written in other parts comes back with these; its outputs are then the same up to rounding."""
    try:
        rewrites = huggingface.plan(c).rewrites
    except ConfigError as error:
        raise DoesNotApply(str(error)) from None
    with tempfile.TemporaryDirectory() as where:
        stored = write_huggingface(Path(where), c, weights(network), None)
        _, again, _ = open_model(where)
    back, batch = weights(again), example(c)
    if back.keys() != stored.keys():
        return math.inf
    outputs = difference(network(batch).logits, again(batch).logits)
    rounding = TOLERANCE if rewrites else 0.0
    return worst([0.0 if outputs <= rounding else outputs, *(difference(stored[name], back[name]) for name in stored)])


@contract("export", "a saved folder read back gives the same outputs", 0.0)
@torch.no_grad()
def export(network: Network, c: ModelConfig) -> float:
    batch = example(c)
    with tempfile.TemporaryDirectory() as where:
        ours.save(Path(where) / "model", c, network)
        config, again, _ = ours.load(Path(where) / "model")
    if config != c:
        return math.inf
    return worst([difference(network(batch).logits, subject(again)(batch).logits)])
