"""Interleaved timing: one worker process per system, visited round-robin, so that what disturbs one disturbs all.

A benchmark is its own worker: `worker(build)` in a script started with --worker SYSTEM CASE builds the system, warms up,
pins its busiest threads and then does one unit of work per line it reads. `compare` is the driver. Rates are medians;
samples taken while other processes used the processors are taken again, a few times, and dropped if enough are clean.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

DIRTY = 0.12  # processors used by others during a sample, above which it is taken again
KEEP = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "1000000000000", "MALLOC_TOP_PAD_": "67108864"}
"""The environment that makes glibc keep freed memory: what `keep_freed_memory` does, given to a peer."""


@dataclass
class Work:
    """What a worker does: `unit` is timed, and counts as `units` of the metric."""

    unit: Callable[[], object]
    units: float
    warmup: int = 2


@dataclass
class Row:
    """One system's result."""

    system: str
    rates: list[float]
    memory: int = 0
    foreign: float = 0.0
    ratio: float = field(default=0.0)

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)


# --- the worker's side


def worker(build: Callable[[str, dict[str, Any]], Work]) -> None:
    """Answer the driver: '@@ready', then one '@@{seconds, ...}' per line read."""
    import torch

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    work = build(sys.argv[2], json.loads(sys.argv[3]))
    before: dict[int, int] = {}
    for _ in range(work.warmup):
        before = thread_times()
        work.unit()
    pin_busiest(before, torch.get_num_threads())
    say({"units": work.units})
    for _ in sys.stdin:
        say(measured(work.unit))


def measured(unit: Callable[[], object]) -> dict[str, Any]:
    """One sample: seconds, those of this process's processors, processors used by others meanwhile, peak MB so far."""
    busy, own, start = busy_seconds(), own_seconds(), time.perf_counter()
    unit()
    seconds = time.perf_counter() - start
    processor = own_seconds() - own
    foreign = max(0.0, busy_seconds() - busy - processor) / seconds
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return {"seconds": seconds, "processor": processor, "foreign": foreign, "memory": memory}


def say(answer: dict[str, Any]) -> None:
    print("@@" + json.dumps(answer), flush=True)


def busy_seconds() -> float:
    """User, nice and system time of all processors."""
    with open("/proc/stat") as file:
        return sum(int(n) for n in file.readline().split()[1:4]) / os.sysconf("SC_CLK_TCK")


def own_seconds() -> float:
    used = os.times()
    return used.user + used.system


def thread_times() -> dict[int, int]:
    """Processor time of each thread of this process."""
    times = {}
    for thread in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{thread}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        times[int(thread)] = int(fields[11]) + int(fields[12])
    return times


def pin_busiest(before: dict[int, int], threads: int) -> None:
    """One processor for each of the busiest threads: a virtual machine may leave both on one for long stretches."""
    if threads > 1:
        after = thread_times()
        busiest = sorted(after, key=lambda t: after[t] - before.get(t, 0), reverse=True)[:threads]
        for processor, thread in zip(sorted(os.sched_getaffinity(0)), busiest, strict=False):
            os.sched_setaffinity(thread, {processor})


# --- the driver's side


class Worker:
    """A running worker process of one system."""

    def __init__(self, script: str, system: str, case: dict[str, Any], threads: int):
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads),
                       "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}  # fmt: skip
        environment.update(KEEP if "+keep" in system else {})
        command = [sys.executable, script, "--worker", system, json.dumps(case)]
        self.process = subprocess.Popen(
            command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.units: float = self.answer()["units"]

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("@@"):
                return json.loads(line[2:])
        raise RuntimeError("the worker died; its error is above")

    def sample(self) -> dict[str, Any]:
        time.sleep(0.3)  # until the spinning threads of the last worker are asleep
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        return self.answer()

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(30)


def visit(
    systems: dict[str, Callable[[], dict[str, Any]]], repeats: int, retries: int
) -> dict[str, list[dict[str, Any]]]:
    """Samples of each system, taken round-robin: the `repeats` cleanest, cleanest first."""
    samples: dict[str, list[dict[str, Any]]] = {system: [] for system in systems}
    for _ in range(repeats + retries):
        for system, sample in systems.items():
            if sum(s["foreign"] < DIRTY for s in samples[system]) < repeats:
                samples[system].append(sample())
    return {system: sorted(taken, key=lambda s: s["foreign"])[:repeats] for system, taken in samples.items()}


def compare(script: str, systems: list[str], case: dict[str, Any], threads: int, repeats: int = 5, retries: int = 4
            ) -> list[Row]:  # fmt: skip
    """Rates of all systems on one case, fastest first."""
    workers = {system: Worker(script, system, case, threads) for system in systems}
    samples = visit({system: running.sample for system, running in workers.items()}, repeats, retries)
    rows = []
    for system, running in workers.items():
        rates = [running.units / s["seconds"] for s in samples[system]]
        rows.append(Row(system, rates, samples[system][-1]["memory"], max(s["foreign"] for s in samples[system])))
        running.close()
    rows.sort(key=lambda row: -row.rate)
    for row in rows:
        row.ratio = row.rate / rows[0].rate
    return rows


def verdict(rows: list[Row], peers: list[str], asked: float | None) -> str:
    """The best of ours against the best of these peers, beside what is asked for."""
    ours = max((row for row in rows if row.system.startswith("qkv")), key=lambda row: row.rate)
    best = max((row for row in rows if row.system in peers), key=lambda row: row.rate)
    ratio = ours.rate / best.rate
    wish = "" if asked is None else f" (asked: {asked:g} x, {'met' if ratio >= asked else 'NOT met'})"
    return f"\n{ours.system} is {ratio:.2f} x {best.system}{wish}.\n"


def table(title: str, metric: str, rows: list[Row]) -> str:
    """Markdown; "others" is the most processors that other processes used during a kept sample: above 0.1, distrust it."""
    lines = [
        f"**{title}**, {metric}",
        "",
        "| system | median | to the fastest | range | peak MB | others |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        spread = f"{min(row.rates):.4g} to {max(row.rates):.4g}"
        lines.append(
            f"| {row.system} | {row.rate:.4g} | {row.ratio:.2f} | {spread} | {row.memory} | {row.foreign:.2f} |"
        )
    return "\n".join(lines) + "\n"
