"""Work that the workers of distributed.py divide among them: independent items in, the results of all items on every worker.

    with share_work():                            # all workers enter it and make the same calls
        sums = list(shared_map(loss_of, batches))  # each worker computes its own batches

Results are combined in the order of the items, so a sum is identical bit for bit with any number of workers. Outside of `share_work`
these functions compute everything themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from qkv.distributed import all_gather_data, rank, world_size
from qkv.errors import QkvError, explain

Item = TypeVar("Item")
Result = TypeVar("Result")
sharing = False
"""Whether work is divided now."""


@contextmanager
def share_work(divided: bool = True) -> Iterator[None]:
    """Divide the work of `shared_map` and `shared_parts` over the workers within the block, or do not divide it."""
    global sharing
    before, sharing = sharing, divided
    try:
        yield
    finally:
        sharing = before


def shares() -> int:
    """Return the number of workers that divide the work."""
    return world_size() if sharing else 1


def shared_map(function: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
    """Yield `function(item)` of each item in order, on every worker; worker r of n computes items r, r + n, r + 2n ...

    A result is plain data: JSON (a tuple becomes a list) with tensors in it. An error that a user can correct
    is raised on all workers as a QkvError, where its result would be.
    """
    if shares() == 1:
        yield from map(function, items)
        return
    with share_work(
        False
    ):  # what an item computes is its worker's own: the others would wait for calls that they do not make
        own_results = results_of(function, items[rank() :: world_size()])
    found = [iter(own) for own in all_gather_data(own_results)]
    for number in range(len(items)):
        result, problem = next(found[number % world_size()])
        if problem:
            raise QkvError(problem)
        yield result


def results_of(function: Callable[[Item], Any], items: Sequence[Item]) -> list[tuple[Any, str]]:
    """Return (result, "") of each item, up to the first error: (None, its message)."""
    found: list[tuple[Any, str]] = []
    for item in items:
        try:
            found.append((function(item), ""))
        except Exception as error:
            if not (problem := explain(error)):
                raise
            return [*found, (None, problem)]
    return found


def shared_sums(function: Callable[[Item], Sequence[float]], items: Sequence[Item]) -> list[float]:
    """Apply a function that returns several numbers to each item; return the sum of each of these numbers, summed in order."""
    totals: list[float] = []
    for numbers in shared_map(function, items):
        totals = [a + b for a, b in zip(totals or [0] * len(numbers), numbers, strict=True)]
    return totals


def shared_parts(function: Callable[[Sequence[Item]], Sequence[Any]], items: Sequence[Item]) -> list[Any]:
    """Apply a function of many items, whose results do not depend on how the items are grouped, to one part of them per worker;
    return the result of each item in order."""
    count = shares()
    found: list[Any] = [None] * len(items)
    for number, results in enumerate(shared_map(function, [items[k::count] for k in range(count)])):
        found[number::count] = results
    return found
