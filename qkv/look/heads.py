"""Statistics of attention heads: where each attends on average, and how sharply (Clark et al. 2019; Voita et al. 2019).

An induction head (Olsson et al. 2022) attends to what followed the same token earlier: A B ... A -> B.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from qkv.batch import Batch
from qkv.errors import QkvError
from qkv.look.attention import Site, select_sites, visit
from qkv.look.pictures import Picture, head_heatmap
from qkv.look.result import LookResult

STATISTICS = {
    "previous": "weight on the previous token",
    "next": "weight on the next token",
    "itself": "weight on the token itself",
    "first": "weight on the first token",
    "last": "weight on the last token",
    "same": "weight on other occurrences of the token",
    "induction": "weight on the token after an earlier occurrence",
    "entropy": "entropy of the weights, in nats",
    "distance": "mean distance in tokens",
}


OF_PLACES = tuple(name for name in STATISTICS if name not in ("same", "induction"))
"""Statistics that need no token ids: they apply to images too."""


@dataclass(frozen=True)
class HeadStatistics(LookResult):
    """Means over the tokens for which a statistic is defined, for every layer and head; left out where there are none."""

    EXPLANATION: ClassVar[str] = (
        "Mean attention weight of each head on simple targets over this text; the menu selects the target. A strong colour "
        "shows what the head specialises in."
    )

    kind: str
    layers: list[int]
    statistics: dict[str, Tensor]
    """name -> (layers, heads)."""

    def picture(self) -> Picture:
        panels = {f"{name}: {STATISTICS[name]}": values for name, values in self.statistics.items()}
        return head_heatmap("attention patterns of the heads", panels, self.layers)

    def best(self, name: str) -> tuple[int, int]:
        """Return the layer and head where a statistic is largest."""
        table = self.statistics[name]
        row, head = divmod(int(table.argmax()), table.size(1))
        return self.layers[row], head


def head_statistics(network: Any, batch: Batch, kind: str | None = None) -> HeadStatistics:
    """Return the statistics of self-attention on texts without padding. The maps are read a few rows at a time and not kept."""
    own = select_sites(network, None, kind or ("decoder" if hasattr(network, "encoder") else "self"), weighs=True)
    if own[0].kind == "cross":
        raise QkvError("head statistics need self-attention: choose kind 'encoder' or 'decoder', not 'cross'")
    ids = batch.source if own[0].kind == "encoder" else batch.inputs  # None of an image
    if batch.mask is not None or batch.source_mask is not None:
        raise QkvError("head statistics need texts of equal length without padding: give one text")
    sums: dict[tuple[str, int], Tensor] = {}
    counts: dict[str, float] = dict.fromkeys(STATISTICS if ids is not None else OF_PLACES, 0.0)

    def add(site: Site, rows: Tensor, weights: Tensor) -> None:
        for name, (there, target) in targets(rows, weights, ids).items():
            parts = torch.special.entr(weights) if name == "entropy" else weights * target  # (B, H, r, S)
            value, key = parts.sum(-1), (name, site.layer)  # (B, H, r)
            sums[key] = sums.get(key, 0) + (value * there[:, None]).sum((0, 2)).double().cpu()  # (H,)
            counts[name] += float(there.expand(len(weights), -1).sum()) if site is own[0] else 0.0

    visit(network, batch, own, add)
    table = {n: torch.stack([sums[n, site.layer] for site in own]).float() / counts[n] for n in counts if counts[n]}
    return HeadStatistics(own[0].kind, [site.layer for site in own], table)


def targets(rows: Tensor, weights: Tensor, ids: Tensor | None) -> dict[str, tuple[Tensor, Tensor]]:
    """Return name -> the rows where it is defined (1 or B, r), and the factor of each weight (B, H, r, S = T)."""
    columns = torch.arange(weights.size(-1), device=weights.device)
    steps = columns - rows[:, None]  # (r, S)
    everywhere = torch.ones_like(rows, dtype=torch.bool)[None]  # (1, r)
    found = {
        "previous": ((rows > 0)[None], steps == -1),
        "next": ((rows < len(columns) - 1)[None], steps == 1),
        "itself": (everywhere, steps == 0),
        "first": ((rows > 0)[None], (columns == 0).expand_as(steps)),
        "last": ((rows < len(columns) - 1)[None], (columns == len(columns) - 1).expand_as(steps)),
        "entropy": (everywhere, steps),
        "distance": (everywhere, steps.abs()),
    }
    if ids is not None:
        alike = ids[:, rows, None] == ids[:, None, :]  # (B, r, S)
        same = alike & (steps != 0)
        followed = torch.cat([torch.zeros_like(alike[..., :1]), alike[..., :-1]], -1) & (steps <= 0)
        found["same"] = same.any(-1), same[:, None]
        found["induction"] = followed.any(-1), followed[:, None]
    return found
