"""Predictions of `qkv plan` against runs on this machine: time, memory and traffic of an update with 1, 2 and 4 workers.

    python -m benchmarks.plan_check                   # measure this machine, then predict and measure; 8 minutes on two idle cores
    python -m benchmarks.plan_check --keep            # with the constants of the last `qkv plan --calibrate`
    python -m benchmarks.plan_check --results FILE    # keep the measurements in a file, or compare with those that it has

Workers have one thread each; 4 workers on 2 cores share them. Time is the median of the updates. Memory is the peak of a worker's
allocations, weights and optimiser state included, by malloc's own count. Traffic is counted twice: the sizes of all collectives, times a
ring's share, and the bytes that the loopback interface has carried.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.plan_runs import NETWORKS, measure_run
from qkv.convert.files import read_json, write_json
from qkv.plan.calibrate import calibrate
from qkv.plan.job import Job
from qkv.plan.layout import Layout
from qkv.plan.network import network_size
from qkv.plan.plans import TrainingPlan, make_plan
from qkv.plan.this_machine import save, this_machine
from qkv.plan.workers import call_on_workers

LIMIT = 0.2
LAYOUTS = [
    Layout(data=1),
    Layout(data=2),
    Layout(data=2, sharded=True),
    Layout(data=2, sharded=True, passes=2),
    Layout(tensor=2),
    Layout(data=4),
    Layout(data=4, sharded=True),
    Layout(tensor=4),
    Layout(data=2, tensor=2),
    Layout(data=2, tensor=2, sharded=True),
]


def main() -> None:
    """Print a table of predictions and measurements; exit with 1 if one is off by more than LIMIT."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--updates", type=int, default=5)
    parser.add_argument("--results", type=Path)
    parser.add_argument("-v", "--verbose", action="store_true", help="items of the memory and of the time")
    options = parser.parse_args()
    if not options.keep:
        save(calibrate())
    measured = measurements(options.updates, options.results)
    worst = 0.0
    print("| network | layout | time, predicted | measured | memory | measured | sent | counted | loopback |")
    print("|---|---|---:|---:|---:|---:|---:|---:|---:|")
    for (name, layout), found in zip(all_runs(), measured, strict=True):
        plan = predict(name, layout)
        worst = max(worst, *deviations(plan, found))
        print(line(name, plan, found), flush=True)
        if options.verbose:
            print({item: round(value / 1e6, 1) for item, value in plan.memory.items() if value}, plan.times)
    print(f"\nlargest deviation: {worst:.0%}")
    sys.exit(worst > LIMIT)


def all_runs() -> Iterator[tuple[str, Layout]]:
    """Yield the networks and layouts to compare, by number of workers: a tensor-parallel degree divides the heads."""
    for workers in (1, 2, 4):
        for name, (c, *_) in NETWORKS.items():
            yield from ((name, at) for at in LAYOUTS if at.workers == workers and c.n_heads % at.tensor == 0)


def measurements(updates: int, path: Path | None) -> list[dict[str, float]]:
    """Return what each run has taken, from the file if it exists. Each has its own processes: the threads of a process group that is
    not used any more still take time from the others."""
    if path is not None and path.exists():
        return read_json(path)["runs"]  # type: ignore[no-any-return]
    found = [call_on_workers(measure_run, at.workers, name, at.train_fields(), updates) for name, at in all_runs()]
    if path is not None:
        write_json(path, {"runs": found})
    return found


def predict(name: str, at: Layout) -> TrainingPlan:
    """Return the plan of a run."""
    c, rows, tokens = NETWORKS[name]
    size = network_size(c, tokens, tokens if c.family == "encoder-decoder" else 0, table=True)
    return make_plan(Job(size, "float32", rows), replace(at, rows=-(-rows // at.data // at.passes)), this_machine())


def pairs(plan: TrainingPlan, found: dict[str, Any]) -> list[tuple[float, float]]:
    """Return prediction and measurement of time (s), memory (MB) and traffic (MB)."""
    memory, sent = (plan.bytes / 1e6, found["memory"] / 1e6), (sum(plan.traffic.values()) / 1e6, found["sent"] / 1e6)
    return [(plan.seconds, found["seconds"]), memory, sent]


def deviations(plan: TrainingPlan, found: dict[str, Any]) -> list[float]:
    return [abs(predicted / measured - 1) for predicted, measured in pairs(plan, found) if measured]


def line(name: str, plan: TrainingPlan, found: dict[str, Any]) -> str:
    """Return a row of the table."""
    layout = plan.layout.name + f", {plan.layout.passes} passes" * (plan.layout.passes > 1)
    cells = [f"{predicted:.3g} | {measured:.3g} ({predicted / measured - 1:+.0%})" if measured else "0 | 0"
             for predicted, measured in pairs(plan, found)]  # fmt: skip
    return f"| {name} | {layout} | {' | '.join(cells)} | {found['wire'] / 1e6:.3g} |"


if __name__ == "__main__":
    main()
