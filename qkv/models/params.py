"""Count parameters, matrix by matrix, on the meta device: 175 billion in a few seconds."""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass
from typing import Any

from qkv.config import ModelConfig
from qkv.config.rules import CARRIED
from qkv.models.build import skeleton


@dataclass(frozen=True)
class ParameterRow:
    """One matrix (or vector) and its copies in the other layers, written `stack.blocks.*.…`."""

    name: str
    shape: tuple[int, ...]
    times: int

    @property
    def total(self) -> int:
        return self.times * math.prod(self.shape)


@dataclass(frozen=True)
class Lecture:
    """The count of lecture 003: weights in matrices, one matrix per head; no biases, norms or positions."""

    weights: int
    matrices: int


@dataclass(frozen=True)
class Count:
    """All parameters of a network; shared ones count once."""

    parameters: int
    active: int
    """Parameters that one token uses: of a mixture of experts the chosen ones, otherwise all."""
    lecture: Lecture | None
    rows: list[ParameterRow]

    def as_json(self) -> dict[str, Any]:
        return {
            "parameters": self.parameters,
            "active": self.active,
            "lecture": None if self.lecture is None else asdict(self.lecture),
            "rows": [{**asdict(row), "total": row.total} for row in self.rows],
        }


def count(config: ModelConfig) -> Count:
    """Count what `config` builds, grouped over layers in the order of the network."""
    groups: dict[tuple[str, tuple[int, ...]], int] = {}
    for name, weight in skeleton(config).named_parameters():  # a shared parameter is listed once
        key = re.sub(r"\.\d+(?=\.|$)", ".*", name), tuple(weight.shape)
        groups[key] = groups.get(key, 0) + 1
    rows = [ParameterRow(name, shape, times) for (name, shape), times in groups.items()]
    total = sum(row.total for row in rows)
    experts = sum(row.total for row in rows if ".experts.*." in row.name)
    unused = experts // config.n_experts * (config.n_experts - config.experts_per_token) if experts else 0
    return Count(total, total - unused, lecture_count(config, rows), rows)


def lecture_count(c: ModelConfig, rows: list[ParameterRow]) -> Lecture | None:
    """Decoders of attention blocks: embedding; keys, queries, values per head; output, up, down (and gate) per layer;
    unembedding, which is counted even when it is the embedding's own matrix."""
    if c.family != "decoder" or c.recurrent is not None or CARRIED & {*c.mixer}:
        return None
    heads = {"query": c.n_heads, "key": c.kv_heads, "value": c.kv_heads}
    weights = matrices = 0
    for row in rows:
        part = row.name.removesuffix(".weight").rpartition(".")[2]
        if not row.name.endswith(".weight") or part not in (*heads, "output", "up", "gate", "down", "tokens", "head"):
            continue
        twice = 2 if part == "tokens" and c.tie == "output" else 1
        weights += row.total * twice
        matrices += row.times * heads.get(part, 1) * twice
    return Lecture(weights, matrices)
