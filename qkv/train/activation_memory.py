"""Activation memory by part: what autograd keeps of a forward pass for the backward pass, without allocating it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from weakref import ReferenceType, ref

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from qkv.batch import Batch
from qkv.config import ModelConfig
from qkv.engine.scan import STRETCH
from qkv.models.build import NoDraws, build
from qkv.models.cost import part_of, side_of
from qkv.models.flops import Shape
from qkv.parts.experts import Experts
from qkv.parts.heads import MaskedNext
from qkv.parts.recurrent import RecurrentStack
from qkv.parts.state_space import Selective
from qkv.parts.tap import Tap

Kept = Counter[tuple[str, str]]
"""(side, part) -> bytes."""
STEPS = (3, 6)
"""Lengths at which recurrent networks are measured; memory is linear in the length, so two points suffice."""


def activation_memory(c: ModelConfig, shape: Shape, targets: int | None = None) -> Kept:
    """Return the bytes that training keeps of a float32 batch on a CPU, by part; each tensor counts once, weights do not.

    The network runs on fake tensors, which have shapes but no values. Recurrent cells are measured by their equations (PyTorch's
    fused LSTM keeps about twice as much), state spaces by what scan.cpp keeps. The loss keeps the gradient of the vectors that it
    reads and never the logits. `targets` is the number of positions that it reads, None = all.
    """
    if c.recurrent is None:
        return measure(c, shape, targets)
    rows, tokens, source = shape  # linear in either length: a + b T + c S + d T S
    corners = {
        (t, s): measure(c, (rows, t, s), targets and round(targets * t / tokens))
        for t in STEPS for s in (STEPS if source else (0,))
    }  # fmt: skip
    short, long = STEPS
    along = {s: extend(corners[short, s], corners[long, s], tokens) for s in (STEPS if source else (0,))}
    return extend(along[short], along[long], source) if source else along[0]


def extend(first: Kept, second: Kept, length: int) -> Kept:
    """Extrapolate linearly to `length`, from the values at the two lengths of STEPS."""
    short, long = STEPS
    return Kept(
        {part: first[part] + (second[part] - first[part]) * (length - short) // (long - short) for part in second}
    )


def measure(c: ModelConfig, shape: Shape, targets: int | None) -> Kept:
    """Run one forward pass on fake tensors and count what autograd saves."""
    with FakeTensorMode():
        with NoDraws():
            network = build(c).train()
        for module in network.modules():
            if isinstance(module, Selective):
                module.scan = FakeScan.apply  # type: ignore[assignment]
            elif isinstance(module, Experts):
                module.mix = partial(mix_evenly, module)  # type: ignore[method-assign]
            elif isinstance(module, RecurrentStack):
                module.fast = False
        ledger = Ledger(network)
        with ledger.hooks():
            output = network(blank_batch(c, shape))
            head: Any = output.head
            words = head.words if isinstance(head, MaskedNext) else head
            ledger.path = [network, network.head]
            if hasattr(words, "features"):
                # the loss keeps no logits, but the gradient of the vectors that it multiplies with the word matrix
                hidden = output.hidden.flatten(0, 1)  # (B * T, C)
                answer = words.features(hidden if targets is None else hidden[: max(targets, 1)])
                ledger.keep(torch.empty_like(answer))
            else:
                answer = output.logits
        return ledger.count()  # while `answer` keeps the graph, and so what it saved, alive


class KeptTensor:
    """A wrapper that lives as long as autograd keeps its tensor; a weak reference to it shows whether it still does."""

    def __init__(self, x: Tensor):
        self.x = x


class Ledger:
    """The tensors that autograd saves, with the part of the network that saved each."""

    def __init__(self, network: nn.Module):
        self.network = network
        self.path: list[nn.Module] = []
        self.entries: list[tuple[tuple[str, str], ReferenceType[KeptTensor]]] = []
        self.own: list[KeptTensor] = []
        self.sides = {child: side_of(network, name) for name, child in network.named_children()}

    @contextmanager
    def hooks(self) -> Iterator[None]:
        """Track which modules run and which tensors autograd saves within the block."""
        handles: list[Any] = []
        for module in self.network.modules():
            if isinstance(module, Tap):  # a hook there makes attention form its weights
                continue
            handles.append(module.register_forward_pre_hook(lambda module, _: self.path.append(module)))
            handles.append(module.register_forward_hook(lambda *_: self.leave()))
        with torch.autograd.graph.saved_tensors_hooks(self.enter, lambda kept: kept.x):
            yield
        for handle in handles:
            handle.remove()

    def leave(self) -> None:
        """Remove the module that has finished from the path (a hook must return None: a value would replace the output)."""
        self.path.pop()

    def enter(self, x: Tensor) -> KeptTensor:
        """Record a tensor that autograd saves, under the module that runs; return what autograd stores in its place."""
        side = self.sides.get(self.path[1], "") if len(self.path) > 1 else ""
        kept = KeptTensor(x)
        self.entries.append(((side, part_of(self.path)), ref(kept)))
        return kept

    def keep(self, x: Tensor) -> None:
        """Count a tensor that no hook sees, and keep it alive."""
        self.own.append(self.enter(x))

    def count(self) -> Kept:
        """Return the bytes that are kept now; each storage counts once, where it was kept first, and weights do not."""
        seen, total = {p.untyped_storage()._cdata for p in self.network.parameters()}, Kept()
        for part, entry in self.entries:
            kept = entry()
            storage = None if kept is None else kept.x.untyped_storage()
            if storage is not None and storage._cdata not in seen:
                seen.add(storage._cdata)
                total[part] += storage.nbytes()
        return total


def blank_batch(c: ModelConfig, shape: Shape) -> Batch:
    """Return a batch of this shape; values do not matter."""
    rows, tokens, source = shape
    ids = lambda length: torch.zeros(rows, length, dtype=torch.long)  # (B, length)  # noqa: E731
    images = None if c.image_size is None else torch.zeros(rows, c.n_channels, c.image_size, c.image_size)
    both = c.family == "encoder-decoder"
    return Batch(
        inputs=ids(tokens) if images is None or both else None,
        source=ids(source) if both and images is None else None,
        images=images,
    )


def mix_evenly(module: Experts, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    """Compute as Experts.mix, with an even load: which experts are chosen depends on values, the total that is kept does not."""
    by_expert = chosen.flatten().argsort(stable=True)  # (N * k,)
    parts = x.index_select(0, by_expert // module.per_token).tensor_split(len(module.experts))
    outputs = [expert(part) for expert, part in zip(module.experts, parts, strict=True)]
    by_token = torch.cat(outputs).index_select(0, by_expert.argsort()).unflatten(0, chosen.shape)  # (N, k, C)
    return (weights.to(by_token.dtype)[..., None] * by_token).sum(1)


class FakeScan(torch.autograd.Function):
    """Keep what engine/scan.py keeps: its inputs and a state every STRETCH tokens."""

    @staticmethod
    def forward(ctx: Any, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        u, hidden = inputs[0], inputs[-1]
        states = u.new_empty(u.size(0), -(-u.size(1) // STRETCH), *hidden.shape[1:])  # (B, T / STRETCH, N, I)
        ctx.save_for_backward(*(x.contiguous() for x in inputs), states)
        return torch.empty_like(u), torch.empty_like(hidden)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:  # type: ignore[override]
        raise NotImplementedError
