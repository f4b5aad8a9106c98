"""Train from a corpus of millions of lines: how soon does it start, and does memory stay flat?

    python benchmarks/large_corpus.py                   5 million lines, beside 500,000
    python benchmarks/large_corpus.py --lines 1000000

Writes two parallel files of different lines into a temporary folder (about 0.6 GB for 5 million) and trains a tiny model
from them with `qkv train`: once as a user would, up to the first update, and once through many small pools, with the
memory of the process looked at all along. Then reading is resumed near the end of the corpus. Exit code 1 when the first
update takes more than 60 s or memory grows by more than a tenth between the first fifth and the end.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from qkv.data.grammar import pairs
from qkv.data.sources import Parallel

MB = 2**20
RECIPE = """
[model]
family = "encoder-decoder"
d_model = 16
n_layers = 1
n_heads = 2
d_ff = 32
tie = "all"

[data]
train = [{{ files = ["{lines}.en", "{lines}.de"] }}]
valid = {{ grammar = 20 }}
batch_tokens = 8192

[train]
steps = {steps}
evaluate_every = 1000000
save_every = 100
"""


def write_corpus(place: Path, count: int, base: int = 5000) -> None:
    """Different lines, quickly: each sentence of the grammar again and again with another number."""
    sentences = [(p.source, p.target) for p in itertools.islice(pairs("train", 7), min(base, count))]
    with open(place / f"{count}.en", "w") as english, open(place / f"{count}.de", "w") as german:
        for first in range(0, count, base):
            some, k = sentences[: count - first], first // base
            english.write("".join(f"{k} times: {source}\n" for source, _ in some))
            german.write("".join(f"{k}-mal: {target}\n" for _, target in some))


@dataclass
class Measured:
    """One training process."""

    first: float
    """Seconds from the start of the process to its first update."""
    busy: float
    """Seconds of processor time in that."""
    updates: int
    pools: int
    seconds: float
    memory: list[float]
    """MB, at equal distances from the first update to the end."""
    said: str

    def at(self, share: float) -> float:
        return self.memory[min(int(share * len(self.memory)), len(self.memory) - 1)]

    @property
    def growth(self) -> float:
        """The largest memory at all, over the largest in the first fifth."""
        return max(self.memory) / max(self.memory[: max(len(self.memory) // 5, 1)])


def train(place: Path, lines: int, steps: int, pool: int) -> Measured:
    recipe, run = place / f"{lines}-{pool}.toml", place / f"run-{lines}-{pool}"
    recipe.write_text(RECIPE.format(lines=lines, steps=steps))
    command = [sys.executable, "-m", "qkv", "train", str(recipe), "--out", str(run), "--threads", "1",
               "--set", f"data.root={place}", "--set", f"data.pool={pool}"]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    start, first, busy, memory = time.monotonic(), 0.0, 0.0, list[float]()
    with open(place / "said", "w+") as said:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said, env=environment)
        log = run / "log.jsonl"
        while process.poll() is None:
            time.sleep(0.1)
            if not first and log.exists() and log.stat().st_size:
                first, busy = time.monotonic() - start, processor(process.pid)
            if first and (now := resident(process.pid)):
                memory.append(now)
        said.seek(0)
        text = said.read()
    if process.returncode:
        raise SystemExit(f"qkv train failed: {text}")
    updates = log.read_text().count("\n")
    (last,) = run.glob("checkpoint-*")
    position = json.loads((last / "training.json").read_text())["progress"]["position"]
    return Measured(first, busy, updates, position["pool"] + 1, time.monotonic() - start - first, memory, text)


def resident(process: int) -> float:
    """MB in memory; 0 when the process is gone."""
    try:
        fields = Path(f"/proc/{process}/statm").read_text().split()
    except OSError:
        return 0.0
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") / MB if len(fields) > 1 else 0.0


def processor(process: int) -> float:
    """Seconds of processor time so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resumed(place: Path, lines: int) -> None:
    """Seconds to the record at 98 % of the corpus, plain and compressed."""
    for ending in ("", ".gz"):
        paths = [place / f"{lines}.{language}{ending}" for language in ("en", "de")]
        for path in paths if ending else ():
            with open(path.with_suffix(""), "rb") as plain, gzip.open(path, "wb", 1) as packed:
                while block := plain.read(MB):
                    packed.write(block)
        start = time.monotonic()
        number, _ = next(Parallel(paths).read(lines * 98 // 100))
        print(
            f"resuming at record {number:,} of {'gzip' if ending else 'plain'} files: {time.monotonic() - start:.1f} s"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=5_000_000)
    parser.add_argument("--steps", type=int, default=400, help="updates of the runs whose memory is looked at")
    options = parser.parse_args()
    well = True
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        for lines in dict.fromkeys((max(options.lines // 10, 1), options.lines)):
            start = time.monotonic()
            write_corpus(place, lines)
            print(f"{lines:,} lines written in {time.monotonic() - start:.0f} s", flush=True)
            begun = train(place, lines, 5, 100_000)
            print(f"  {next(line for line in begun.said.splitlines() if 'vocabulary' in line)}")
            print(
                f"  first update after {begun.first:.1f} s ({begun.busy:.1f} s of processor time), with {max(begun.memory):,.0f} MB",
                flush=True,
            )
            long = train(place, lines, options.steps, 5_000)
            shares = ", ".join(f"{long.at(share):,.0f} MB at {share:.0%}" for share in (0.1, 0.5, 1.0))
            print(f"  {long.updates} updates through {long.pools} pools in {long.seconds:.0f} s: {shares}; "
                  f"largest {max(long.memory):,.0f} MB, {long.growth:.3f} of the first fifth's", flush=True)  # fmt: skip
            well &= begun.first < 60 and long.growth < 1.1
        resumed(place, options.lines)
    sys.exit(int(not well))


if __name__ == "__main__":
    main()
