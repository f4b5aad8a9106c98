"""All speed and memory benchmarks: `python benchmarks/run.py [--only NAME] [--repeats N] [--write docs/results.md]`.

--write replaces the section between the two markers of that file (or adds it at the end); the rest is left alone.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path

import attention_memory
import encode
import encode_ragged
import train_lm
import train_seq2seq
import translate

BENCHMARKS: dict[str, Callable[[int], Iterator[str]]] = {
    "encode": encode.report,
    "encode_ragged": encode_ragged.report,
    "train_seq2seq": train_seq2seq.report,
    "train_lm": train_lm.report,
    "translate": translate.report,
    "attention_memory": lambda repeats: attention_memory.report(),
}
BEGIN, END = "<!-- speed: begin -->", "<!-- speed: end -->"


def machine() -> str:
    """Processor, count, memory and versions, in a line."""
    names = [
        line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    versions = ", ".join(
        f"{name} {version(name)}" for name in ("torch", "transformers", "x-transformers", "ctranslate2")
    )
    processor = f"{os.cpu_count()} x {names[0] if names else platform.machine()}"
    return f"{processor}, {memory:.0f} GiB, Python {platform.python_version()}, {versions}"


def section(names: list[str], repeats: int) -> Iterator[str]:
    """Heading and tables, each as soon as it is known."""
    command = f"python benchmarks/run.py --repeats {repeats}"
    yield f"""## Speed and memory

{datetime.date.today()}, `{command}`, on {machine()}.
Workers are interleaved, figures are medians. Compare within a table only: the machine's own speed drifts.

"""
    for name in names:
        yield f"### {name}\n"
        yield from BENCHMARKS[name](repeats)


def write(path: Path, text: str) -> None:
    """Put `text` between the markers."""
    old = path.read_text() if path.exists() else ""
    before, _, rest = old.partition(BEGIN)
    after = rest.partition(END)[2]
    path.write_text(f"{before.rstrip()}\n\n{BEGIN}\n{text}\n{END}\n{after.lstrip()}".lstrip())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=list(BENCHMARKS), action="append")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    done: list[str] = []
    for part in section(options.only or list(BENCHMARKS), options.repeats):
        print(part, flush=True)
        done.append(part)
        if options.write:
            write(options.write, "\n".join(done))


if __name__ == "__main__":
    main()
