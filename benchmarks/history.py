"""Recurrent translators and the Transformer on one data set (claims C2, C16, C22): `python benchmarks/history.py --data FOLDER
[--runs FOLDER] [--minutes 25] [--threads N] [--only NAME] [--collect] [--write docs/results.md]`.

FOLDER holds multi30k. Each system is `qkv train` in RUNS/NAME with equal tokenizer, minutes and search: one that has ended is
only read, one that was stopped goes on. It then translates the captions of the test set joined two, three and four at a time;
these and the operations that its training took are kept in RUNS/NAME/history.json. --collect trains and translates nothing.
--write puts the tables into that page and two pictures beside it: bleu-by-length.svg and rnnsearch-alignment.svg.
"""

from __future__ import annotations

import argparse
import datetime
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import mean
from typing import Any

from pages import machine, write
from tasks import Experiment, results

import qkv
from qkv.config import ModelConfig
from qkv.convert.files import write_json
from qkv.errors import QkvError
from qkv.evaluate.scores import by_length, read_sentences, score
from qkv.evaluate.significance import compare
from qkv.generate.alignment import Link
from qkv.lab.demo import alignment_picture
from qkv.look.charts import curves
from qkv.models.flops import training_flops
from qkv.tasks.base import Task, task_of
from qkv.tasks.translation import HYPOTHESIS, REFERENCE, SOURCE
from qkv.train.artifacts import open_words
from qkv.train.rescore import recipe_of

SETTINGS = ("data.root={data}/multi30k", "train.time_budget={minutes}")
SYSTEMS = {
    "LSTM seq2seq": Experiment("multi30k-seq2seq", "multi30k-seq2seq", SETTINGS),
    "RNNenc": Experiment("multi30k-rnnenc", "multi30k-rnnenc", SETTINGS),
    "RNNsearch": Experiment("multi30k-rnnsearch", "multi30k-rnnsearch", SETTINGS, ">= 30"),
    "Luong": Experiment("multi30k-luong", "multi30k-luong", SETTINGS),
    "Transformer": Experiment("multi30k-transformer", "multi30k-de-en", SETTINGS),
}
PUBLISHED = {
    "LSTM seq2seq": "13.8; en-fr 30.59 (Sutskever et al. 2014, one reversed LSTM)",
    "RNNenc": "20.6; en-fr 17.82 (RNNencdec-50 in Bahdanau et al. 2015)",
    "RNNsearch": "28.1; en-fr 26.75 (RNNsearch-50, Bahdanau et al. 2015)",
    "Luong": "en-de 20.9 (Luong et al. 2015, one model)",
    "Transformer": "36.5; en-de 27.3, en-fr 38.1 with 3.3e18 operations (base, Vaswani et al. 2017)",
}
"""The first figure is of Multi30k de-en in words, lower-cased (bentrevett/pytorch-seq2seq); the others are of WMT 2014."""
EDGES = (7, 10, 13, 17)
JOINED = (1, 2, 3, 4)
FILE = "history.json"
LENGTHS, ALIGNMENT = "bleu-by-length.svg", "rnnsearch-alignment.svg"


@dataclass(frozen=True)
class Ran:
    """A system that was trained: what it is, and what it wrote."""

    name: str
    folder: Path
    results: dict[str, Any]
    sources: list[str]
    references: list[str]
    hypotheses: list[str]
    flops: float
    joined: dict[int, list[str]]
    """How many captions a text has -> the translations of those texts."""


# --- running


def train(name: str, where: dict[str, str], threads: int | None) -> None:
    """Train one system, and let it translate longer texts."""
    command = [*SYSTEMS[name].command(where), *(["--threads", str(threads)] if threads else [])]
    print(shlex.join(["qkv", *command]), flush=True)
    subprocess.run([sys.executable, "-m", "qkv", *command], check=False)
    folder = Path(where["runs"]) / SYSTEMS[name].name
    found, kept = results(folder), extras(folder)
    if found is not None and kept.get("fingerprint") != found["fingerprint"]:
        write_json(folder / FILE, extra(folder, found))


def extras(folder: Path) -> dict[str, Any]:
    place = folder / FILE
    return json.loads(place.read_text()) if place.is_file() else {}


def extra(folder: Path, found: dict[str, Any]) -> dict[str, Any]:
    """What the tables need beside results.json."""
    model, search = qkv.load(folder), {key: found["test"][key] for key in ("beam", "length_penalty")}
    sources = read_sentences(folder / SOURCE)
    longer = {count: model.translate(join(sources, count), **search) for count in JOINED if count > 1}
    each = flops_per_update(model.config, open_task(folder, model.config))
    return {"fingerprint": found["fingerprint"], "flops": each * found["training"]["updates"], "joined": longer}


def join(texts: Sequence[str], count: int) -> list[str]:
    """Neighbours in one text: all of the set, in fewer and longer texts."""
    return [" ".join(texts[at : at + count]) for at in range(0, len(texts), count)]


def open_task(folder: Path, config: ModelConfig) -> Task:
    recipe = recipe_of(folder)
    return task_of(recipe)(recipe, config, open_words(folder))


def flops_per_update(config: ModelConfig, task: Task) -> float:
    """The mean over the batches of an epoch, with their padding."""
    batches = task.batches.cut(task.batches.read_pool()[0], "an epoch")
    longest = lambda rows, side: 1 + max(len(row[side]) for row in rows)  # noqa: E731  the start or the end token
    shapes = [(len(rows), longest(rows, 1), longest(rows, 0)) for rows in batches]
    return training_flops(config, shapes) / len(shapes) * task.recipe.train.accumulate


# --- reading


def read(name: str, runs: Path) -> Ran | None:
    """A system's figures; None where it was not run to its end."""
    folder = runs / SYSTEMS[name].name
    found, kept = results(folder), extras(folder)
    if found is None or kept.get("fingerprint") != found["fingerprint"]:
        return None
    texts = [read_sentences(folder / file) for file in (SOURCE, REFERENCE)]
    written = (folder / HYPOTHESIS).read_text().splitlines()  # one that is empty is a translation too
    joined = {int(count): texts for count, texts in kept["joined"].items()}
    return Ran(name, folder, found, *texts, written, kept["flops"], {1: written} | joined)


def alike(systems: Sequence[Ran]) -> None:
    """What the comparison rests on: one vocabulary, one test set, one search, one budget."""
    same = {
        "tokenizer": lambda one: (one.folder / "tokenizer.json").read_text(),
        "test set": lambda one: (one.sources, one.references),
        "search": lambda one: one.results["test"]["how"],
        "budget": lambda one: recipe_of(one.folder).train.time_budget,
        "number of threads": lambda one: one.results["training"]["threads"],
    }
    for what, of in same.items():
        if any(of(one) != of(systems[0]) for one in systems):
            raise QkvError(f"these runs differ in their {what}: train them all with one command")


# --- telling


def systems_table(systems: Sequence[Ran], minutes: float) -> Iterator[str]:
    heads = ("system", "parameters", "test BLEU", "chrF2", "against the row above", "asked", "published", "training operations",
             "optimiser", "updates", "minutes", "threads", "seed", "command")  # fmt: skip
    yield f"| {' | '.join(heads)} |"
    yield "|---|---:|---:|---:|---|---|---|---:|---|---:|---:|---:|---:|---|"
    where = {"data": "DATA", "runs": "RUNS", "minutes": f"{minutes:g}"}
    for last, one in zip([None, *systems], systems, strict=False):
        (bleu,), (chrf,) = (
            score(one.hypotheses, one.references, ["bleu"], 1000),
            score(one.hypotheses, one.references, ["chrf"]),
        )
        run, t = SYSTEMS[one.name], one.results["training"]
        command = shlex.join(["qkv", *run.command(where), "--threads", str(t["threads"])])
        cells = (
            one.name, f"{one.results['model']['parameters']:,}", f"**{bleu.value:.2f}** ({bleu.mean:.1f} ± {bleu.interval:.1f})",
            f"{chrf.value:.2f}", beside(one, last), run.asked, PUBLISHED[one.name], f"{one.flops:.1e}",
            recipe_of(one.folder).train.optimizer, f"{t['updates']:,}", f"{t['minutes']:.1f}", t["threads"], t["seed"], f"`{command}`",
        )  # fmt: skip
        yield f"| {' | '.join(map(str, cells))} |"


def beside(one: Ran, last: Ran | None) -> str:
    """Better or worse, and whether that can be luck."""
    if last is None:
        return ""
    found = compare({last.name: last.hypotheses, one.name: one.hypotheses}, one.references)[1]
    return f"{found.difference:+.2f} (p = {found.p:.3f})"


def lengths_table(systems: Sequence[Ran]) -> Iterator[str]:
    rows = {one.name: by_length(one.hypotheses, one.references, EDGES, sources=one.sources) for one in systems}
    buckets = next(iter(rows.values()))
    yield "| words of the source | " + " | ".join(f"{b.shortest} to {b.longest}" for b in buckets) + " |"
    yield "|---|" + "---:|" * len(buckets)
    yield "| sentences | " + " | ".join(str(b.sentences) for b in buckets) + " |"
    for name, found in rows.items():
        yield f"| {name} | " + " | ".join(f"{b.bleu:.1f}" for b in found) + " |"


def joined_bleu(one: Ran) -> dict[int, float]:
    return {n: score(one.joined[n], join(one.references, n))[0].value for n in JOINED}


def joined_table(systems: Sequence[Ran]) -> Iterator[str]:
    yield (
        "| captions in a text (words) | "
        + " | ".join(f"{n} ({words(systems[0], n):.0f})" for n in JOINED)
        + " | kept |"
    )
    yield "|---|" + "---:|" * (len(JOINED) + 1)
    for one in systems:
        found = list(joined_bleu(one).values())
        yield f"| {one.name} | " + " | ".join(f"{b:.1f}" for b in found) + f" | {found[-1] / max(found[0], 1e-9):.0%} |"


def words(one: Ran, count: int) -> float:
    """Words of a source text of so many captions."""
    return mean(len(text.split()) for text in join(one.sources, count))


def picture(systems: Sequence[Ran]) -> str:
    """BLEU against the length of the source, within the test set and with its captions joined."""
    single, longer = {}, {}
    for one in systems:
        buckets = by_length(one.hypotheses, one.references, EDGES, sources=one.sources)
        lengths = [len(text.split()) for text in one.sources]
        middle = [mean(n for n in lengths if b.shortest <= n <= b.longest) for b in buckets]
        single[one.name] = [(x, b.bleu) for x, b in zip(middle, buckets, strict=True)]
        longer[one.name] = [(words(one, n), value) for n, value in joined_bleu(one).items()]
    panels = {"BLEU, captions by their length": single, "BLEU, one to four captions in a text": longer}
    return curves(panels, "Translating longer sources", "words of the source", height=300)


def crossings(links: Sequence[Link]) -> int:
    """Pairs of words that change places on the way."""
    return sum((a[0] - b[0]) * (a[1] - b[1]) < 0 for a, b in combinations(links, 2))


def alignment(one: Ran) -> str:
    """The picture of the sentence whose words change places most, of those of 8 to 14 words translated as in the reference."""
    model = qkv.load(one.folder)
    rows = zip(one.sources, one.hypotheses, one.references, strict=True)
    right = [s for s, h, r in rows if h == r and 8 <= len(s.split()) <= 14] or one.sources[:1]
    found = model.translate(right, alignments=True)
    return alignment_picture(model, max(zip(right, found, strict=True), key=lambda p: crossings(p[1].alignment))[0])


def section(systems: Sequence[Ran]) -> Iterator[str]:
    first = systems[0]
    minutes, signature = (
        recipe_of(first.folder).train.time_budget or 0,
        score(first.hypotheses, first.references)[0].signature,
    )
    yield "## From LSTM to Transformer: Multi30k, German to English (C16, C2, C22)\n"
    asked = f"--minutes {minutes:g} --threads {first.results['training']['threads']}"
    yield f"{datetime.date.today()}, `python benchmarks/history.py --data DATA --runs RUNS {asked}`, on {machine()}."
    yield f"One tokenizer (BPE, 4,000), {minutes:g} minutes of training each, {first.results['test']['how']}; test_2016_flickr, cased and"
    yield f"detokenised, looked at once: {signature}."
    yield "In brackets mean and 95 % of 1,000 resampled test sets; p by paired resampling. Operations are those of the matrix products,"
    yield "padding included. Optimiser, learning rate, batch and dropout are each recipe's own, not equal. Published figures are of other"
    yield "tokenizers, sizes and budgets and, where languages are named, other data: they stand beside ours, not against them.\n"
    yield from systems_table(systems, minutes)
    if missing := [name for name in SYSTEMS if name not in {ran.name for ran in systems}]:
        yield f"\nNot run: {', '.join(missing)}."
    yield "\n**BLEU by the length of the source**\n"
    yield from lengths_table(systems)
    yield "\n**BLEU of the same captions, joined**: all texts together are the test set every time. None of the systems was trained on"
    yield "texts of several captions, so this also asks how each takes to lengths that it does not know.\n"
    yield from joined_table(systems)
    yield f"\n![BLEU against the length of the source]({LENGTHS})"
    if any(ran.name == "RNNsearch" for ran in systems):
        yield f"\nWhere RNNsearch looks, word by word:\n\n![alignment]({ALIGNMENT})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--minutes", type=float, default=25)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--only", action="append", choices=list(SYSTEMS), help="train only this one; may be repeated")
    parser.add_argument("--collect", action="store_true")
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    if options.data is None and not options.collect:
        parser.error("--data says where multi30k is, unless --collect")
    where = {"data": str(options.data), "runs": str(options.runs), "minutes": f"{options.minutes:g}"}
    for name in [] if options.collect else options.only or SYSTEMS:
        train(name, where, options.threads)
    systems = [ran for name in SYSTEMS if (ran := read(name, options.runs)) is not None]
    try:
        report(systems, options.write)
    except QkvError as error:
        sys.exit(str(error))


def report(systems: Sequence[Ran], page: Path | None) -> None:
    if not systems:
        raise QkvError("no system has been trained to its end yet")
    alike(systems)
    text = "\n".join(section(systems))
    print(text)
    if page is None:
        return
    write(page, "history", text)
    (page.parent / LENGTHS).write_text(picture(systems))
    for one in systems:
        if one.name == "RNNsearch":
            (page.parent / ALIGNMENT).write_text(alignment(one))


if __name__ == "__main__":
    main()
