"""Serve a 6+6 base Transformer (random weights): answers per second and median time of 1 and 32 clients, before and now.

    python benchmarks/serve_base.py                                        # 3 minutes
    python benchmarks/serve_base.py --before f4d1cc8 --seconds 8 --repeats 5

Three servers: that of an earlier commit in float32, and this version in float32 and int8. All of them run, and one at a time gets
requests, in turns. Clients and servers are on the same machine.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pages
from before_after import export
from harness import Options, Row, Verdict, heading
from serve_load import Tally, Target, base_model, crowd, target_of

TITLE = "Serving the base Transformer"
BEFORE = "f4d1cc8"
"""The last commit without int8."""
CLIENTS = (1, 32)
RATIO, HALVED = 8.0, 2.0
"""Required: the rate of 32 clients, in rates of one client before; how many times faster one client gets its answer."""
Samples = dict[tuple[str, int], list[Tally]]
"""By system and clients."""


async def measure(targets: dict[str, Target], seconds: float, repeats: int) -> Samples:
    for target in targets.values():
        await crowd(target, 16, 3)  # warm
    found: Samples = {(system, clients): [] for system in targets for clients in CLIENTS}
    for _ in range(repeats):
        for system, target in targets.items():
            for clients in CLIENTS:
                found[system, clients].append(await crowd(target, clients, seconds))
    return found


def report(options: Options, before: str = BEFORE, seconds: float = 4.0, workers: int = 0) -> Iterator[str | Verdict]:
    with tempfile.TemporaryDirectory() as temporary:
        tree, model = export(before, Path(temporary) / "tree"), str(base_model(Path(temporary)))
        targets = {f"{before} float32": target_of(model, False, workers, tree=tree)}
        try:
            for precision in ("float32", "int8"):
                targets[f"qkv {precision}"] = target_of(model, False, workers, precision)
            found = asyncio.run(measure(targets, seconds, options.repeats))
        finally:
            for target in targets.values():
                target.end()
    yield table(found)
    rates = {key: Row(key[0], [tally.rate for tally in own]) for key, own in found.items()}
    speeds = {key: Row(key[0], [1 / tally.quantile(0.5) for tally in own]) for key, own in found.items()}
    ours = [system for system in targets if system.startswith("qkv")]
    first = f"{before} float32"
    most = max((rates[system, 32] for system in ours), key=lambda row: row.rate)
    fastest = max((speeds[system, 1] for system in ours), key=lambda row: row.rate)
    for verdict in (
        Verdict("Serving, answers/s: 32 clients now, 1 client before", most, rates[first, 1], RATIO),
        Verdict(
            "Serving, speed of the median answer: 1 client now, 1 client before", fastest, speeds[first, 1], HALVED
        ),
    ):
        yield f"{verdict.case}:"
        yield verdict


def table(found: Samples) -> str:
    lines = [
        "| system | clients | answers/s | range | p50 ms | p99 ms | server CPU ms per answer | statuses |",
        "|---|---|---:|---|---:|---:|---:|---|",
    ]
    for (system, clients), own in found.items():
        rates = [tally.rate for tally in own]
        p50, p99 = (1000 * statistics.median(tally.quantile(share) for tally in own) for share in (0.5, 0.99))
        work = 1000 * sum(tally.work for tally in own) / max(1, sum(len(tally.times) for tally in own))
        statuses = ", ".join(sorted({code for tally in own for code in tally.codes}))
        lines.append(f"| {system} | {clients} | {statistics.median(rates):.1f} | {min(rates):.1f} to {max(rates):.1f} "
                     f"| {p50:.0f} | {p99:.0f} | {work:.1f} | {statuses} |")  # fmt: skip
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", default=BEFORE, help="an earlier commit (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each sample (default %(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="samples of each server (default %(default)s)")
    parser.add_argument("--workers", type=int, default=0, help="processes of each server (default: its own choice)")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the table between the markers of this Markdown file")  # fmt: skip
    given = parser.parse_args()
    options = Options(repeats=given.repeats)
    parts = [heading(TITLE, f"serve_base.py --repeats {given.repeats} --seconds {given.seconds:g}")]
    parts += map(str, report(options, given.before, given.seconds, given.workers))
    print("\n".join(parts))
    if given.write:
        pages.write(given.write, "serve_base", "\n".join(parts))


if __name__ == "__main__":
    main()
