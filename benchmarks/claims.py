"""Publish the results of `qkv lab`: verdicts, findings and times as a table of docs/results.md, verdicts in docs/lectures.md.

    qkv lab all
    python benchmarks/claims.py lab --write docs/results.md --lectures docs/lectures.md

Nothing is measured here: `lab` is the folder that `qkv lab` has written. Claims that it does not contain keep their rows. Where a claim
has been run in both versions, docs/lectures.md gets the finding of the quick one and both verdicts, and the table both.
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


DATE = re.compile(r"\d{4}-\d\d-\d\d")
ROW = re.compile(r"^\| (C\d+(?:-full)?) \|.*\|$", re.M)


def claims_table(results: Results, page: str = "") -> str:
    """Return the section of docs/results.md: one row per claim and version; those that are not in `results` are taken from `page`."""
    before = DATE.findall(page.partition("`")[0])  # rows that stay are of these days
    dates = sorted({*before, *(found["date"][:10] for found in results.values())})
    days = " to ".join(dict.fromkeys((dates[0], dates[-1])))
    lines = [
        "## Claims of the lectures",
        "",
        f"{days}, `qkv lab all` (quick versions, 3 seeds; full ones by the command in the row), {machine()}.",
        "[lab.md](lab.md) describes how verdicts are determined. Rows of over 5 minutes were run beside other jobs: their times are long.",
        "",
        "| claim | verdict | finding | basis | time | command |",
        "|---|---|---|---|---:|---|",
    ]
    rows = {row[1]: row[0] for row in ROW.finditer(page)} | {
        name: table_row(name, found) for name, found in results.items()
    }
    return "\n".join([*lines, *(rows[name] for name in sorted(rows, key=order))])


def order(name: str) -> tuple[int, bool]:
    """Sort C2 before C2-full, and both before C10."""
    number, _, version = name[1:].partition("-")
    return int(number), bool(version)


def table_row(name: str, found: Mapping[str, Any]) -> str:
    command = re.sub(r"--data \S+", "--data DATA", found["command"])
    time = format_duration(found["seconds"])
    cells = (name, found["verdict"], found["finding"], found["basis"], time, f"`{command}`")
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def fill_verdicts(page: str, results: Results) -> str:
    """Fill the rows "| C1 | claim | verdict | finding |": the finding of the quick version, the verdicts of both."""

    def fill(row: re.Match[str]) -> str:
        name, claim, verdict, finding = row.groups()
        quick, full = results.get(name), results.get(f"{name}-full")
        old, _, old_full = verdict.partition("; full: ")
        verdict, finding = (old, finding) if quick is None else (quick["verdict"], quick["finding"])
        last = full["verdict"] if full else old_full
        return f"| {name} | {claim} | {verdict}{f'; full: {last}' if last else ''} | {finding} |"

    return re.sub(r"^\| (C\d+) \| ([^|]+?) \| ([^|]+?) \| (.*) \|$", fill, page, flags=re.M)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder of the results of qkv lab")
    parser.add_argument("--write", type=Path, help="page whose section of claims is replaced")
    parser.add_argument("--lectures", type=Path, help="page whose rows C1-C26 get verdicts and findings")
    chosen = parser.parse_args()
    results = read_results(chosen.folder)
    if not results:
        raise SystemExit(f"{chosen.folder} has no results: run qkv lab all first")
    old = chosen.write.read_text() if chosen.write and chosen.write.exists() else ""
    table = claims_table(results, old.partition("## Claims of the lectures")[2])
    print(table)
    if chosen.write:
        write(chosen.write, "claims", table)
    if chosen.lectures:
        chosen.lectures.write_text(fill_verdicts(chosen.lectures.read_text(), results))


if __name__ == "__main__":
    main()
