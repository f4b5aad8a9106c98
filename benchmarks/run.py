"""All speed and memory benchmarks: `python benchmarks/run.py [--only NAME] [--repeats N] [--write docs/results.md]`.

--write replaces the section between the two markers of that file (or adds it at the end); the rest is left alone.
"""

from __future__ import annotations

import argparse
import datetime
from collections.abc import Callable, Iterator
from pathlib import Path

import attention_memory
import encode
import encode_ragged
import train_lm
import train_seq2seq
import translate
from pages import machine, write

BENCHMARKS: dict[str, Callable[[int], Iterator[str]]] = {
    "encode": encode.report,
    "encode_ragged": encode_ragged.report,
    "train_seq2seq": train_seq2seq.report,
    "train_lm": train_lm.report,
    "translate": translate.report,
    "attention_memory": lambda repeats: attention_memory.report(),
}
PEERS = ("torch", "transformers", "x-transformers", "ctranslate2")


def section(names: list[str], repeats: int) -> Iterator[str]:
    """Heading and tables, each as soon as it is known."""
    command = f"python benchmarks/run.py --repeats {repeats}"
    yield f"""## Speed and memory

{datetime.date.today()}, `{command}`, on {machine(PEERS)}.
Workers are interleaved, figures are medians. Compare within a table only: the machine's own speed drifts.

"""
    for name in names:
        yield f"### {name}\n"
        yield from BENCHMARKS[name](repeats)


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
            write(options.write, "speed", "\n".join(done))


if __name__ == "__main__":
    main()
