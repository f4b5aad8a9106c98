"""Activation patching: put activations of one input into the run on another, and measure how far the answer follows.

Where patching one layer and position changes the answer to that of the other input, the network stores the decisive
information there (Vig et al. 2020; Meng et al. 2022, causal tracing). Patching everything gives the other run.
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
from qkv.look.residual_stream import points, side_modules
from qkv.look.result import LookResult
from qkv.look.target import Target, check_single_input, repeat
from qkv.parts.attention import Attention
from qkv.parts.tap import Change, edit, record

MOST_ROWS = 32
"""Patched runs that are computed as one batch."""


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
    """The target of the input that is patched."""
    other: float
    """The target of the input that the patches come from."""
    values: Tensor
    """(places, columns): the target after this patch."""
    note: str = ""
    """Set where both inputs have the same target value: there is no difference to measure patches against."""

    @property
    def carried(self) -> Tensor:
        """(places, columns): how far each patch moves the target: 0 = not at all, 1 = to the other input's value. Where both
        inputs have the same value (see `note`), the change itself."""
        change = self.values - self.without
        return change if self.note else change / (self.other - self.without)

    def picture(self) -> Picture:
        x_title = "head" if self.what == "heads" else ""
        title = f"activation patching ({self.what}): effect on the output"
        return Heatmap(title, {"": self.carried}, self.places, self.columns, True, x_title=x_title, y_title="layer")


@contextmanager
def patch_activations(
    network: nn.Module, donor: dict[str, Tensor], positions: Sequence[int] | None = None
) -> Iterator[None]:
    """Replace the activations at each named tap by the donor's within the block, at some positions or at all."""

    def put(name: str) -> Change:
        def change(x: Tensor) -> Tensor:
            new = donor[name]
            if new.shape[1:] != x.shape[1:]:
                raise QkvError("patching needs two inputs with the same number of tokens")
            if positions is None:
                return new.expand_as(x)
            here = torch.zeros(x.size(-2), dtype=torch.bool, device=x.device)
            here[list(positions)] = True
            return torch.where(here[:, None], new, x)  # (..., T, C or D)

        return change

    with edit(network, {name: put(name) for name in donor}):
        yield


@torch.no_grad()
def activations(network: Any, batch: Batch, names: Sequence[str]) -> dict[str, Tensor]:
    """Return the activations at these taps in one run."""
    with record(network, names) as kept:
        network(batch)
    return kept


# --- sweeps

PARTS = ("stream", "attention", "cross", "feedforward", "heads")
"""What can be patched: the residual stream after each block, the output of each sublayer, the mixed values of each head."""


def patch_sites(network: nn.Module, what: str, source: bool) -> list[tuple[str, str]]:
    """Return (label, tap) of each place of that kind in the decoder (or only stack), or with `source` in the encoder."""
    stack = side_modules(network, source)[1]
    if what == "stream":
        return [(point.label, point.name) for point in points(network, source, blocks=True)]
    if what == "heads":
        own = [site for site in sites(network) if site.name.startswith(stack + ".")]
        return [(f"{site.layer} cross" if site.kind == "cross" else str(site.layer), f"{site.name}.tap_mixed")
                for site in own if isinstance(network.get_submodule(site.name), Attention)]  # fmt: skip
    names = [name for name, _ in network.named_modules(remove_duplicate=False) if name.endswith(f".{what}.tap_out")]
    return [(name.split(".")[2], name) for name in names if name.startswith(stack + ".")]


@torch.no_grad()
def sweep(network: Any, batch: Batch, other: Batch, target: Target, what: str = "stream", source: bool = False,
          columns: list[str] | None = None) -> Sweep:  # fmt: skip
    """Patch `batch` with activations of `other`, one place and position (what = "heads": one head, all positions) at a time."""
    if what not in PARTS:
        raise QkvError(f"cannot patch {what!r}: choose one of {', '.join(PARTS)}")
    check_single_input(batch)
    check_single_input(other)
    found = patch_sites(network, what, source)
    if not found:
        raise QkvError(f"this model has no {what} to patch" + (" on its source side" if source else ""))
    donor = activations(network, other, [name for _, name in found])
    before = activations(network, batch, [name for _, name in found])
    if any(before[name].shape != donor[name].shape for name in donor):
        raise QkvError("patching needs two inputs with the same number of tokens")
    values = torch.stack([patch_each(network, batch, target, name, donor[name]) for _, name in found])
    labels = [str(i) for i in range(values.size(1))] if columns is None or what == "heads" else columns
    own, others = (float(target(network(one))[0]) for one in (batch, other))
    return Sweep(what, [label for label, _ in found], labels, own, others, values, equal_note(own, others))


def equal_note(own: float, other: float) -> str:
    """Return a note where two values are equal to the precision of float32; "" where they differ."""
    if abs(other - own) > 1e-6 * max(1.0, abs(own), abs(other)):
        return ""
    return f"both inputs give {own:.4g}: there is no difference to carry over, so the values are changes"


def patch_each(network: Any, batch: Batch, target: Target, name: str, new: Tensor) -> Tensor:
    """Return the target after patching each position of `new` (1, n, C), or each head (1, n, T, D), alone: (n,). The patched
    runs are rows of one batch."""
    found, size = [], new.size(1)
    for some in torch.arange(size, device=new.device).split(MOST_ROWS):

        def change(x: Tensor, some: Tensor = some) -> Tensor:
            mine = torch.zeros(len(some), size, dtype=torch.bool, device=x.device).scatter_(1, some[:, None], True)
            return torch.where(mine.view(len(some), size, *[1] * (x.dim() - 2)), new, x)

        with edit(network, {name: change}):
            found.append(target(network(repeat(batch, len(some)))))
    return torch.cat(found).float().cpu()
