"""Recurrent networks, a Transformer and its linear-time successors on Tiny Shakespeare, at equal parameters and minutes:
`python benchmarks/shakespeare.py --data FOLDER [--runs runs] [--only NAME] [--collect] [--write docs/results.md]`.

FOLDER holds tinyshakespeare/input.txt. Every run is `qkv train shakespeare-NAME` for ten minutes in --runs, one after the other, so
that each has the machine for itself: one that has ended is only read, one that was stopped goes on. --collect trains nothing.
"""

from __future__ import annotations

import argparse
import datetime
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from pages import machine, write
from tasks import Experiment, results

from qkv.train.rescore import recipe_of

NAMES = ("elman", "gru", "lstm", "transformer", "gla", "mamba")
RUNS = [Experiment(f"shakespeare-{n}", f"shakespeare-{n}", ("data.root={data}/tinyshakespeare",)) for n in NAMES]
ABOUT = """Validation loss in nats per character and bits per byte of the last 10 % of the text, every character predicted once: by the
Transformer from the at most 256 before it in its window, by the others from all before it where their state is carried on.
Optimiser and learning rate are each recipe's own, not equal. Tokens are updates times those of a batch. Where a run
had one thread, it had one core, and the other one was busy."""


def table(where: dict[str, str]) -> Iterator[str]:
    names = "run ended parameters loss bits/byte state_carried optimiser updates tokens minutes threads seed command"
    yield "| " + names.replace(" ", " | ").replace("_", " ") + " |"
    yield "|---|---|---:|---:|---:|---|---|---:|---:|---:|---:|---:|---|"
    for one in RUNS:
        command = shlex.join(["qkv", *one.command({key: key.upper() for key in where})])
        folder = Path(where["runs"]) / one.name
        found = results(folder)
        if found is None:
            yield f"| {one.name} | | | not run | | | | | | | | | `{command}` |"
            continue
        ended = datetime.date.fromtimestamp((folder / "results.json").stat().st_mtime)
        t, valid, recipe = found["training"], found["valid"], recipe_of(folder)
        assert recipe.data is not None
        yield (
            f"| {one.name} | {ended} | {found['model']['parameters']:,} | {valid['value']:.4f} | "
            f"{bits_per_byte(folder, valid['update']):.4f} | {'yes' if recipe.data.carry else 'no'} | "
            f"{recipe.train.optimizer} {recipe.train.learning_rate:g} | {t['updates']:,} | "
            f"{t['updates'] * recipe.data.batch_tokens / 1e6:.1f} M | {t['minutes']:.1f} | {t['threads']} | {t['seed']} | "
            f"`{command}` |"
        )


def bits_per_byte(folder: Path, update: int) -> float:
    """Of the look that chose the weights."""
    lines = map(json.loads, (folder / "log.jsonl").read_text().splitlines())
    return next(line["valid_bits_per_byte"] for line in lines if line["step"] == update)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--only", action="append", help=f"one of {', '.join(NAMES)}; may be repeated")
    parser.add_argument("--collect", action="store_true")
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    where = {name: str(getattr(options, name)) for name in ("data", "runs")}
    for name, one in zip(NAMES, RUNS, strict=True):
        if not options.collect and (not options.only or name in options.only):
            print(shlex.join(["qkv", *one.command(where)]), flush=True)
            subprocess.run([sys.executable, "-m", "qkv", *one.command(where)], check=False)
    head = (
        f"## Tiny Shakespeare at equal size and time\n\n`python benchmarks/shakespeare.py --data DATA`, on {machine()}."
    )
    text = "\n".join([f"{head}\n{ABOUT}\n", *table(where)])
    print(text)
    if options.write:
        write(options.write, "shakespeare", text)


if __name__ == "__main__":
    main()
