"""Publish the results of `qkv lab`: verdicts, findings and times as a table of docs/results.md, verdicts in docs/lectures.md.

    qkv lab all
    python benchmarks/claims.py lab --write docs/results.md --lectures docs/lectures.md

Nothing is measured here: `lab` is the folder that `qkv lab` has written. Where a claim has been run in both versions, docs/lectures.md
gets the quick one, and the table both.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pages import machine, write

from qkv.lab.report import read_results
from qkv.text.wording import format_duration

Results = Mapping[str, Mapping[str, Any]]


def claims_table(results: Results) -> str:
    """Return the section of docs/results.md: one row per claim and version."""
    dates = sorted({found["date"][:10] for found in results.values()})
    days = " to ".join(dict.fromkeys((dates[0], dates[-1])))
    lines = [
        "## Claims of the lectures",
        "",
        f"{days}, `qkv lab all` (quick versions, 3 seeds; full ones by the command in the row), {machine()}.",
        "[lab.md](lab.md) describes how a verdict comes about.",
        "",
        "| claim | verdict | finding | basis | time | command |",
        "|---|---|---|---|---:|---|",
    ]
    for name, found in results.items():
        cells = (
            name,
            found["verdict"],
            found["finding"],
            found["basis"],
            format_duration(found["seconds"]),
            f"`{found['command']}`",
        )
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


def fill_verdicts(page: str, results: Results) -> str:
    """Put verdict and finding of the quick versions into the rows "| C1 | claim | verdict | finding |"."""

    def fill(row: re.Match[str]) -> str:
        found = results.get(row[1])
        return row[0] if found is None else f"| {row[1]} | {row[2]} | {found['verdict']} | {found['finding']} |"

    return re.sub(r"^\| (C\d+) \| ([^|]+?) \|.*\|$", fill, page, flags=re.M)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder of the results of qkv lab")
    parser.add_argument("--write", type=Path, help="page whose section of claims is replaced")
    parser.add_argument("--lectures", type=Path, help="page whose rows C1-C26 get verdicts and findings")
    chosen = parser.parse_args()
    results = read_results(chosen.folder)
    if not results:
        raise SystemExit(f"{chosen.folder} has no results: run qkv lab all first")
    table = claims_table(results)
    print(table)
    if chosen.write:
        write(chosen.write, "claims", table)
    if chosen.lectures:
        chosen.lectures.write_text(fill_verdicts(chosen.lectures.read_text(), results))


if __name__ == "__main__":
    main()
