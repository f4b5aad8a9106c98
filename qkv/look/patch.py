"""Activation patching: put what the network thinks of one input into its run on another, and see how far the answer follows.

Where a patch of one layer and position alone carries the answer over, there the network keeps what it answers from
(Vig et al. 2020; Meng et al. 2022, causal tracing). Patching everything is the other run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from qkv.batch import Batch
from qkv.errors import QkvError
from qkv.look.attention import sites
from qkv.look.pictures import Heatmap, Picture
from qkv.look.residual_stream import halves, points
from qkv.look.result import LookResult
from qkv.look.target import Question, one_input, repeated
from qkv.parts.attention import Attention
from qkv.parts.tap import Change, edit, record

MOST_ROWS = 32
"""Patched runs that are done as one batch."""


@dataclass(frozen=True)
class Sweep(LookResult):
    """One patch at a time: each place of the network and each position (or head)."""

    EXPLANATION: ClassVar[str] = (
        "Each cell replaces one activation with that of the other input: 1 = the output becomes that of the other input, 0 = it does "
        "not change. Strong cells carry the information that decides the output."
    )

    what: str
    places: list[str]
    columns: list[str]
    without: float
    """The number asked for, of the input that is patched."""
    other: float
    """That of the input the patches come from."""
    values: Tensor
    """(places, columns): the number after this patch."""
    note: str = ""
    """Set where both inputs give the same number: no patch can be measured against their difference."""

    @property
    def carried(self) -> Tensor:
        """(places, columns): how far each patch moves the answer: 0 = not at all, 1 = as far as the other input's. Where both
        inputs give the same number (`note` says so), the change itself."""
        change = self.values - self.without
        return change if self.note else change / (self.other - self.without)

    def picture(self) -> Picture:
        x_title = "head" if self.what == "heads" else ""
        title = f"activation patching ({self.what}): effect on the output"
        return Heatmap(title, {"": self.carried}, self.places, self.columns, True, x_title=x_title, y_title="layer")


@contextmanager
def patched(network: nn.Module, donor: dict[str, Tensor], positions: Sequence[int] | None = None) -> Iterator[None]:
    """Within the block each named tap carries the donor's activations, at some positions of its time axis or at all."""

    def put(name: str) -> Change:
        def change(x: Tensor) -> Tensor:
            new = donor[name]
            if new.shape[1:] != x.shape[1:]:
                raise QkvError("patching needs two inputs of as many tokens: make them equally long")
            if positions is None:
                return new.expand_as(x)
            places = torch.zeros(x.size(-2), dtype=torch.bool, device=x.device)
            places[list(positions)] = True
            return torch.where(places[:, None], new, x)  # (..., T, C or D)

        return change

    with edit(network, {name: put(name) for name in donor}):
        yield


@torch.no_grad()
def activations(network: Any, batch: Batch, names: Sequence[str]) -> dict[str, Tensor]:
    """What flows through these taps in a run."""
    with record(network, names) as kept:
        network(batch)
    return kept


# --- sweeps

PARTS = ("stream", "attention", "cross", "feedforward", "heads")
"""What can be patched: the stream after each block, what each sublayer adds to it, the mixed values of each head
(of self-attention and of cross-attention)."""


def places(network: nn.Module, what: str, source: bool) -> list[tuple[str, str]]:
    """(label, tap) of each place of that kind in the stack that writes, or with `source` in the one that reads."""
    stack = halves(network, source)[1]
    if what == "stream":
        return [(point.label, point.name) for point in points(network, source, blocks=True)]
    if what == "heads":
        own = [site for site in sites(network) if site.name.startswith(stack + ".")]
        return [(f"{site.layer} cross" if site.kind == "cross" else str(site.layer), f"{site.name}.tap_mixed")
                for site in own if isinstance(network.get_submodule(site.name), Attention)]  # fmt: skip
    names = [name for name, _ in network.named_modules(remove_duplicate=False) if name.endswith(f".{what}.tap_out")]
    return [(name.split(".")[2], name) for name in names if name.startswith(stack + ".")]


@torch.no_grad()
def sweep(network: Any, batch: Batch, other: Batch, ask: Question, what: str = "stream", source: bool = False,
          columns: list[str] | None = None) -> Sweep:  # fmt: skip
    """Patch `batch` with what the network thinks of `other`, at one place and position (what = "heads": head, at all
    positions) at a time."""
    if what not in PARTS:
        raise QkvError(f"what is patched is one of {', '.join(PARTS)}, given {what!r}")
    one_input(batch)
    one_input(other)
    found = places(network, what, source)
    if not found:
        raise QkvError(f"this model has no {what} to patch" + (" on its source side" if source else ""))
    donor = activations(network, other, [name for _, name in found])
    before = activations(network, batch, [name for _, name in found])
    if any(before[name].shape != donor[name].shape for name in donor):
        raise QkvError("patching needs two inputs of as many tokens: make them equally long")
    values = torch.stack([one_at_a_time(network, batch, ask, name, donor[name]) for _, name in found])
    labels = [str(i) for i in range(values.size(1))] if columns is None or what == "heads" else columns
    own, others = (float(ask(network(one))[0]) for one in (batch, other))
    return Sweep(what, [label for label, _ in found], labels, own, others, values, same(own, others))


def same(own: float, other: float) -> str:
    """What to say of two inputs with the same number, as far as float32 can tell; "" where they differ."""
    if abs(other - own) > 1e-6 * max(1.0, abs(own), abs(other)):
        return ""
    return f"both inputs give {own:.4g}: there is no difference to carry over, so the values are changes"


def one_at_a_time(network: Any, batch: Batch, ask: Question, name: str, new: Tensor) -> Tensor:
    """(n,): the number asked for after each patch of one position of `new` (1, n, C), or head (1, n, T, D), alone; many
    are rows of one batch."""
    found, size = [], new.size(1)
    for some in torch.arange(size, device=new.device).split(MOST_ROWS):

        def change(x: Tensor, some: Tensor = some) -> Tensor:
            mine = torch.zeros(len(some), size, dtype=torch.bool, device=x.device).scatter_(1, some[:, None], True)
            return torch.where(mine.view(len(some), size, *[1] * (x.dim() - 2)), new, x)

        with edit(network, {name: change}):
            found.append(ask(network(repeated(batch, len(some)))))
    return torch.cat(found).float().cpu()
