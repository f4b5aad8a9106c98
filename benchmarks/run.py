"""All speed and memory benchmarks: `python benchmarks/run.py [--only NAME] [--peers FOLDER] [--write docs/results.md]`.

--write replaces the section between the two markers of that file (or adds it at the end); the rest is left alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator

import attention_memory
import encode
import generate
import train_lm
import train_seq2seq
import translate
from harness import METHOD, Options, Verdict, add_options, heading, options_of
from pages import write

BENCHMARKS: dict[str, Callable[[Options], Iterator[str | Verdict]]] = {
    "encode": encode.report,
    "generate": generate.report,
    "train_seq2seq": lambda options: train_seq2seq.report(options.repeats),
    "train_lm": lambda options: train_lm.report(options.repeats),
    "translate": translate.report,
    "attention_memory": lambda options: attention_memory.report(),
}


def section(names: list[str], options: Options) -> Iterator[str]:
    """Heading and tables, each as soon as it is known."""
    yield heading("Speed and memory", f"run.py {options.arguments}", options.python)
    yield METHOD
    for name in names:
        yield f"### {name}\n"
        yield from map(str, BENCHMARKS[name](options))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=list(BENCHMARKS), action="append")
    add_options(parser)
    given = parser.parse_args()
    done: list[str] = []
    for part in section(given.only or list(BENCHMARKS), options_of(given)):
        print(part, flush=True)
        done.append(part)
        if given.write:
            write(given.write, "speed", "\n".join(done))


if __name__ == "__main__":
    main()
