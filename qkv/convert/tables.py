"""Strict tables between foreign weights and ours. One declared table serves import and export.

A table is a list of Rows: a foreign name, our name(s), and how the layout changes. `{}` stands for the layer number. A
foreign weight that is left out on purpose has a row too, with the reason. Reading sets every one of our weights and
uses every foreign one, or fails once with the whole list of what is missing, unknown or of another shape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from qkv.errors import FileError

Weights = Mapping[str, Tensor]
Naming = Callable[[str], str]
"""A name of the table -> the one to use in messages."""


@dataclass(frozen=True)
class Change:
    """A change of layout that loses nothing: one foreign tensor <-> one or several of ours."""

    read: Callable[[Tensor], tuple[Tensor, ...]]
    write: Callable[..., Tensor]


SAME = Change(lambda x: (x,), lambda x: x)
TRANSPOSED = Change(lambda x: (x.T,), lambda x: x.T)
THIRDS = Change(lambda x: x.chunk(3), lambda *parts: torch.cat(parts))
"""Query, key and value rows below each other in one tensor."""
THIRDS_TRANSPOSED = Change(lambda x: x.T.chunk(3), lambda *parts: torch.cat(parts).T)
ONE_ROW = Change(lambda x: (x[0],), lambda x: x[None])
"""(1, ...) <-> (...)."""
ONE_CELL = Change(lambda x: (x[0, 0],), lambda x: x[None, None])
"""(1, 1, ...) <-> (...)."""


@dataclass(frozen=True)
class Row:
    """One line of a table."""

    foreign: str
    ours: tuple[str, ...]
    """Our names; none where the foreign weight is left out on purpose."""
    change: Change = SAME
    copies: tuple[str, ...] = ()
    """Other foreign names that may hold the very same numbers (tied weights stored twice); never written."""
    reason: str = ""
    """Why the weight is left out."""
    fill: Callable[[Weights], Tensor] | None = None
    """What to write under a left-out name, where the foreign program insists on it."""


def row(foreign: str, ours: str | tuple[str, ...], change: Change = SAME, copies: tuple[str, ...] = ()) -> Row:
    return Row(foreign, (ours,) if isinstance(ours, str) else ours, change, copies)


def drop(foreign: str, reason: str, fill: Callable[[Weights], Tensor] | None = None) -> Row:
    """A foreign weight that is left out on purpose."""
    return Row(foreign, (), reason=reason, fill=fill)


def both(pairs: Iterable[tuple[str, str]], change: Change = SAME) -> list[Row]:
    """Rows for the weight (through `change`) and the bias of each pair of layers."""
    return [r for f, o in pairs for r in (row(f + ".weight", o + ".weight", change), row(f + ".bias", o + ".bias"))]


def drop_both(foreign: str, reason: str) -> list[Row]:
    """Rows for the weight and the bias of a layer that is left out on purpose."""
    return [drop(f"{foreign}.{part}", reason) for part in ("weight", "bias")]


def attention(foreign: str, names: str, ours: str) -> list[tuple[str, str]]:
    """The four projections of attention, as pairs for `both`. `names` are the foreign ones of query, key, value and output."""
    parts = ("query", "key", "value", "output")
    return [(f"{foreign}.{name}", f"{ours}.layer.{part}") for name, part in zip(names.split(), parts, strict=True)]


def layers(n: int, rows: Iterable[Row]) -> list[Row]:
    """The rows once for each layer number 0 .. n-1."""
    return [
        replace(r, foreign=r.foreign.replace("{}", str(i)), ours=tuple(name.replace("{}", str(i)) for name in r.ours))
        for i in range(n)
        for r in rows
    ]


def active(rows: Iterable[Row], ours: Weights) -> list[Row]:
    """The rows that concern a network with weights `ours`: a network without biases has no use for rows of biases."""
    kept = [r for r in rows if all(name in ours for name in r.ours)]
    covered = [name for r in kept for name in r.ours]
    assert len(covered) == len(set(covered)), "a table has two rows for one weight"
    return kept


def read_weights(rows: Iterable[Row], ours: Weights, foreign: Weights, called: Naming = str) -> dict[str, Tensor]:
    """Foreign tensors -> tensors in our names. `ours` holds the expected shapes (meta tensors are enough); `called`
    gives the name to use in messages where the table's is not the file's."""
    rows = active(rows, ours)
    main = {r.foreign for r in rows}
    names = {r.foreign: [r.foreign, *(c for c in r.copies if c not in main)] for r in rows}
    present = {r.foreign: [name for name in names[r.foreign] if name in foreign] for r in rows}
    covered = {name for r in rows for name in r.ours}
    missing = [called(r.foreign) for r in rows if r.ours and not present[r.foreign]]
    unknown = [called(name) for name in foreign.keys() - {name for r in rows for name in names[r.foreign]}]
    complain(missing + [name for name in ours if name not in covered], sorted(unknown))
    check_shapes(rows, present, ours, foreign, called)
    result: dict[str, Tensor] = {}
    for r in rows:
        if r.ours:
            tensor = same_numbers(present[r.foreign], foreign, called)
            result.update(zip(r.ours, (part.contiguous() for part in r.change.read(tensor)), strict=True))
    return {name: result[name] for name in ours}


def write_weights(rows: Iterable[Row], ours: Weights) -> dict[str, Tensor]:
    """Our tensors -> tensors in foreign names."""
    result = {}
    for r in active(rows, ours):
        if r.ours:
            result[r.foreign] = r.change.write(*(ours[name] for name in r.ours)).contiguous()
        elif r.fill is not None:
            result[r.foreign] = r.fill(ours).contiguous()
    return result


def complain(missing: list[str], unknown: list[str]) -> None:
    """One error for all names that do not fit."""
    parts = [f"missing: {', '.join(missing)}"] if missing else []
    parts += [f"unknown: {', '.join(unknown)}"] if unknown else []
    if parts:
        raise FileError(f"the weights do not fit the configuration; {'; '.join(parts)}")


def check_shapes(
    rows: list[Row], present: dict[str, list[str]], ours: Weights, foreign: Weights, called: Naming
) -> None:
    """Every tensor of the shape that our weights turn into when written, and of a floating type."""
    wrong = []
    for r in rows:
        if not r.ours:
            continue
        expected = tuple(r.change.write(*(ours[name].to("meta") for name in r.ours)).shape)
        for name in present[r.foreign]:
            tensor = foreign[name]
            if tuple(tensor.shape) != expected:
                wrong.append(f"{called(name)} is {tuple(tensor.shape)}, expected {expected}")
            elif not tensor.is_floating_point():
                kind = str(tensor.dtype).removeprefix("torch.")
                wrong.append(f"{called(name)} is of type {kind}, expected a floating one")
    if wrong:
        raise FileError(f"the weights do not fit the configuration; wrong shape or type: {'; '.join(wrong)}")


def same_numbers(names: list[str], foreign: Weights, called: Naming) -> Tensor:
    """The tensor stored under all of `names`; tied weights that differ are an error, since one would be lost."""
    first, *others = names
    for name in others:
        if not torch.equal(foreign[first], foreign[name]):
            raise FileError(
                f"the configuration ties {called(first)} and {called(name)}, but they hold different numbers; "
                "set tie_word_embeddings to false in config.json if that is meant"
            )
    return foreign[first]
