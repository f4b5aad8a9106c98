"""Example D7: candidates for position vectors, and which requirements each meets."""

from __future__ import annotations

import torch
from torch import Tensor

from qkv.lab.example_steps import ExampleTable, Step
from qkv.parts.masks import Mask
from qkv.parts.position_candidates import CANDIDATES, Unitary, candidate_vectors
from qkv.parts.positions import sinusoids

LENGTH, WIDTH = 256, 16
"""Positions that are compared, and channels of each."""


@torch.no_grad()
def position_tables() -> dict[str, Tensor]:
    """Scheme -> vectors (LENGTH, WIDTH), float64."""
    torch.manual_seed(0)
    learned = Unitary(WIDTH)
    learned.generator.add_(0.1 * torch.randn(WIDTH, WIDTH))  # any generator gives an orthogonal matrix
    tables = {kind: candidate_vectors(kind, LENGTH, WIDTH) for kind in CANDIDATES}
    tables["one sine"] = (2 * torch.pi * torch.arange(LENGTH) / 16).sin()[:, None].expand(LENGTH, WIDTH)
    tables["unitary"] = learned.vectors(Mask(LENGTH))[0]
    tables["sinusoidal"] = sinusoids(torch.arange(LENGTH), WIDTH)
    return {name: table.double() for name, table in tables.items()}


def closest(table: Tensor) -> float:
    """Smallest distance between two positions: 0 = they cannot be told apart."""
    distances = torch.cdist(table, table)
    return float(distances[~torch.eye(len(table), dtype=torch.bool)].min())


def growth(table: Tensor) -> float:
    """Largest component of all positions over that of the first quarter: above 1 vectors grow with the length of the text."""
    return float(table.abs().max() / table[: LENGTH // 4].abs().max())


def shift_error(table: Tensor, offset: int = 5) -> float:
    """Error of the best linear map P(t) -> P(t + offset), relative to the vectors: 0 = one map M_c serves all t."""
    before, after = table[:-offset], table[offset:]
    found = torch.linalg.lstsq(before, after, driver="gelsd").solution
    return float((before @ found - after).norm() / after.norm())


def step_ratio(table: Tensor) -> float:
    """Smallest over largest distance of neighbours: 1 = equal steps, 0 = positions run into each other."""
    steps = (table[1:] - table[:-1]).norm(dim=-1)
    return float(steps.min() / steps.max())


def d7() -> list[Step]:
    """Candidates for positions (004), and what each lacks"""
    rows = []
    for scheme, table in position_tables().items():
        values = closest(table), growth(table), shift_error(table), step_ratio(table)
        has = {
            "unique": values[0] > 1e-3,
            "bounded": values[1] < 1.5,
            "shift": values[2] < 1e-3,
            "steps": values[3] > 0.01,
        }
        lacks = [name for name, good in has.items() if not good]
        rows.append([scheme, *(f"{value:.2g}" for value in values), ", ".join(lacks) or "nothing"])
    return [
        "linear: an offset added at each step; geometric: a factor; exponential: e^(P c); binary: bits; one sine: cyclic; unitary: "
        "P(t) = M^t P(0) with an orthogonal M, which can be learned; sinusoidal: its fixed form",
        ExampleTable(["scheme", "closest two", "growth", "shift error", "equal steps", "lacks"], rows),
        f"{LENGTH} positions, {WIDTH} channels; growth: largest component against the first quarter; shift error: P(t + 5) from P(t) by "
        "one matrix; equal steps: smallest over largest distance of neighbours",
        "trained with each:",
        "qkv ablate demo --vary model.position=linear,geometric,exponential,binary,unitary,sinusoidal",
    ]
