"""Everything that is required of the engine, in one run: speed beside the peers, serving, quality in int8, and a summary.

    python benchmarks/engine.py --peers FOLDER --data DATA                                # 25 minutes on a quiet machine
    python benchmarks/engine.py --peers FOLDER --data DATA --write docs/results.md        # the tables between their markers
    python benchmarks/engine.py --peers FOLDER --only translate --only generate --threads 2 --repeats 1 --retries 0

Each part is also a script of its own: translate.py, generate.py, encode.py, serve_base.py and int8_quality.py.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import encode
import generate
import int8_quality
import pages
import serve_base
import translate
from harness import METHOD, Options, Verdict, add_options, heading, options_of

PARTS: dict[str, ModuleType] = {
    "translate": translate, "generate": generate, "encode": encode, "serve_base": serve_base, "int8_quality": int8_quality,
}  # fmt: skip
"""By the name of the section in a page."""


def narrow(name: str, options: Options) -> Options:
    """Leave out what the requirements do not name, unless it is chosen."""
    if name == "translate" and not options.systems:
        return replace(options, systems=["CTranslate2", "qkv"])
    if name == "encode" and not options.cases:
        return replace(options, cases=["32 x 128", "1 x 32", "32 texts"])
    return options


def report(name: str, options: Options, data: Path) -> Iterator[str | Verdict]:
    if name == "int8_quality":
        yield heading(int8_quality.TITLE, "int8_quality.py --data DATA")
        yield "\n".join(int8_quality.report(data, list(int8_quality.MODELS)))
        return
    chosen = narrow(name, options)
    yield heading(PARTS[name].TITLE, f"{name}.py {chosen.arguments}", chosen.python)
    yield from [] if name == "serve_base" else [METHOD]
    yield from PARTS[name].report(chosen)


def catch(name: str, parts: Iterator[str | Verdict]) -> Iterator[str | Verdict]:
    """Yield the parts; an error ends this report, not the run."""
    try:
        yield from parts
    except Exception as error:
        traceback.print_exc()
        yield f"{name} was not measured: {type(error).__name__}"


def summary(verdicts: list[Verdict]) -> str:
    lines = ["| case | qkv | peer | ratio | required | goal | |", "|---|---|---|---:|---:|---:|---|"]
    for one in verdicts:
        ours, peer = (f"{row.system}: {row.rate:.4g}" if row.rates else row.system for row in (one.ours, one.peer))
        ratio = "not measured" if one.ratio is None else f"{one.ratio:.2f}"
        wanted = " | ".join("" if value is None else f"{value:g}" for value in (one.required, one.goal))
        lines.append(f"| {one.case} | {ours} | {peer} | {ratio} | {wanted} | {'met' if one.met else 'NOT met'} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(PARTS), action="append")
    parser.add_argument(
        "--data", type=Path, default=int8_quality.DATA, help="folder of int8_quality.py; default: QKV_DATA"
    )
    add_options(parser, repeats=3)
    given = parser.parse_args()
    options, start = options_of(given), time.monotonic()
    verdicts: list[Verdict] = []
    for name in given.only or PARTS:
        parts: list[str] = []
        for part in catch(name, report(name, options, given.data)):
            print(part, flush=True)
            parts.append(str(part))
            verdicts += [part] if isinstance(part, Verdict) else []
            if given.write:
                pages.write(given.write, name, "\n".join(parts))
        print(f"{name}: {(time.monotonic() - start) / 60:.1f} minutes since the start", file=sys.stderr, flush=True)
    text = "\n".join([heading("The engine beside its peers", f"engine.py --data DATA {options.arguments}", options.python),
                      summary(verdicts)])  # fmt: skip
    print(text)
    if given.write:
        pages.write(given.write, "engine", text)


if __name__ == "__main__":
    main()
