"""What the recipes reach on real data: `python benchmarks/tasks.py --data FOLDER --minilm FOLDER [--only NAME] [--write docs/results.md]`.

FOLDER holds the data sets in folders of their own (tinyshakespeare, glue_sst2, glue_cola, glue_mrpc, stsb, imdb, ud_english_ewt,
aeslc, mnist); MiniLM is a Hugging Face folder of all-MiniLM-L6-v2. Every run is `qkv train` in --runs/NAME: one that has ended is only
read, one that was stopped goes on. --collect trains nothing. A run that is not in --runs keeps its row of the page. A run's seed is
its recipe's.
"""

from __future__ import annotations

import argparse
import datetime
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pages import machine, write


@dataclass(frozen=True)
class Experiment:
    """One run: a recipe with settings. {data}, {minilm} and {runs} in a setting are the folders."""

    name: str
    recipe: str
    settings: tuple[str, ...] = ()
    asked: str = ""

    def command(self, where: dict[str, str]) -> list[str]:
        changes = [part for setting in self.settings for part in ("--set", setting.format(**where))]
        return ["train", self.recipe, "--out", f"{where['runs']}/{self.name}", *changes]


def glue(name: str, recipe: str, folder: str, asked: str, start: str = "{minilm}", *limits: str
         ) -> list[Experiment]:  # fmt: skip
    """From MiniLM's weights (or another run that began there), and from fresh ones with the same vocabulary and updates, which end
    when three looks at the held-out set were no better, or at other limits."""
    root = f"data.root={{data}}/{folder}"
    scratch = ("tune.start=", "data.vocabulary={minilm}", "tune.head_rate=1.0", "tune.layer_decay=1.0",
               "train.learning_rate=3e-4", "train.patience=3")  # fmt: skip
    return [
        Experiment(f"{name}-tuned", recipe, (root, f"tune.start={start}"), asked),
        Experiment(f"{name}-scratch", recipe, (root, *scratch, *limits), "below"),
    ]


AUXILIARY = [
    Experiment(f"{name}-aux-{weight:g}", recipe, (f"data.root={{data}}/{folder}", f"tune.auxiliary={weight}"))
    for name, recipe, folder in (("gpt-cola", "gpt-cola", "glue_cola"), ("gpt-sst2", "gpt-sst2", "glue_sst2"))
    for weight in (0.0, 0.5)
]
GROUPS: dict[str, tuple[str, list[Experiment]]] = {
    "language": (
        "Tiny Shakespeare, validation loss in nats per character: all of the last 10 % in windows that do not overlap",
        [Experiment("shakespeare-char", "shakespeare-char", ("data.root={data}/tinyshakespeare",), "<= 1.88"),
         Experiment("shakespeare-fast", "shakespeare-fast", ("data.root={data}/tinyshakespeare",), "<= 1.60")],
    ),
    "glue": (
        "Fine-tuned from all-MiniLM-L6-v2, and the same encoder from scratch (C18)",
        [*glue("sst2", "glue-sst2", "glue_sst2", ">= 91", "{minilm}", "train.time_budget=15"),
         *glue("stsb", "glue-stsb", "stsb", "Spearman >= 85"),
         *glue("mrpc", "glue-mrpc", "glue_mrpc", "F1 >= 88", "{runs}/stsb-tuned"),
         *glue("cola", "glue-cola", "glue_cola", "Matthews >= 40"),
         *glue("ud-ewt", "ud-ewt", "ud_english_ewt", "UPOS test >= 96.0")],
    ),
    "auxiliary": ("GPT's auxiliary next-word loss in fine-tuning, on a small task and a large one (C18)", AUXILIARY),
    "pretraining": (
        "Pre-training: BERT with next-sentence prediction and T5 on the embedded grammar, GPT-2's parts on the standard library (C18)",
        [Experiment("masked-next", "masked", ("model.head=masked-next", "model.n_segments=2")),
         Experiment("spans", "spans"),
         *(Experiment(f"gpt2-like-residual-{scaled}", "gpt2-like",
                      ("data.batch_tokens=2048", "train.accumulate=1", "train.steps=100", "train.warmup=20",
                       "train.evaluate_every=50", "train.save_every=50", f"model.init_residual={scaled}"))
           for scaled in ("true", "false"))],
    ),
    "imdb": (
        "A small BERT, pre-trained here on the text of IMDB, then fine-tuned; and the same network from scratch",
        [Experiment("imdb-bert", "imdb-bert", ("data.root={data}/imdb",)),
         Experiment("imdb-tuned", "imdb-tuned", ("data.root={data}/imdb", "tune.start={runs}/imdb-bert"), ">= 88"),
         Experiment("imdb-scratch", "imdb-scratch", ("data.root={data}/imdb", "data.vocabulary={runs}/imdb-bert"), "below")],
    ),
    "vision": (
        "Images (C25): ViT on MNIST and digits, captions of drawn shapes",
        [Experiment("mnist", "mnist", ("data.root={data}/mnist",), ">= 98.8"),
         Experiment("digits", "digits", (), ">= 95"),
         Experiment("shapes", "shapes", (), ">= 95 exact")],
    ),
    "summaries": (
        "AESLC: subject lines of e-mails (C17), ROUGE F1 of the test set after 1,500 updates",
        [Experiment(name, name, ("data.root={data}/aeslc", "train.time_budget=600", "train.steps=1500", "train.evaluate_every=500"))
         for name in ("aeslc-rnn", "aeslc-ed", "aeslc-d", "aeslc-dmca")],
    ),
}  # fmt: skip


def results(folder: Path) -> dict[str, Any] | None:
    place = folder / "results.json"
    return json.loads(place.read_text()) if place.is_file() else None


def figures(found: dict[str, Any]) -> str:
    """The scores of the test set, and the one that chose the weights."""
    valid, test = found["valid"], found["test"]
    chosen = f"valid {valid['metric']} {valid['value']:.4g}"
    own = [f"{s['name']} {s['value']:.4g}" for s in (test or {}).get("scores", [])]
    return chosen + (f"; test {', '.join(own)}" if own else "")


def rows_of(page: Path | None) -> dict[str, str]:
    """Name of a run -> its row on the page, for runs whose folders are elsewhere."""
    lines = page.read_text().split("\n") if page and page.is_file() else []
    return {line.split(" | ")[0].removeprefix("| "): line for line in lines if "`qkv train " in line}


def table(title: str, runs: list[Experiment], where: dict[str, str], rows: dict[str, str]) -> Iterator[str]:
    yield f"**{title}**\n"
    yield "| run | ended | parameters | figures | asked | updates | minutes | threads | seed | command |"
    yield "|---|---|---:|---|---|---:|---:|---:|---:|---|"
    names = {key: key.upper() for key in where}
    for one in runs:
        folder = Path(where["runs"]) / one.name
        found = results(folder)
        command = shlex.join(["qkv", *one.command(names)])
        if found is None:
            yield rows.get(one.name, f"| {one.name} | | | not run | {one.asked} | | | | | `{command}` |")
            continue
        t, ended = found["training"], datetime.date.fromtimestamp((folder / "results.json").stat().st_mtime)
        yield (
            f"| {one.name} | {ended} | {found['model']['parameters']:,} | {figures(found)} | {one.asked} | {t['updates']:,} | "
            f"{t['minutes']:.1f} | {t['threads']} | {t['seed']} | `{command}` |"
        )
    yield ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--minilm", type=Path, required=True)
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--only", action="append", help="a group or a run; may be repeated")
    parser.add_argument("--collect", action="store_true")
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    where = {name: str(getattr(options, name)) for name in ("data", "minilm", "runs")}
    wanted = lambda group, one: not options.only or group in options.only or one.name in options.only  # noqa: E731
    for group, (_, runs) in GROUPS.items():
        for one in runs if not options.collect else []:
            if wanted(group, one):
                print(shlex.join(["qkv", *one.command(where)]), flush=True)
                subprocess.run([sys.executable, "-m", "qkv", *one.command(where)], check=False)
    lines = ["## Tasks\n", f"`python benchmarks/tasks.py --data DATA --minilm MINILM`, on {machine()}.\n"]
    lines += [line for title, runs in GROUPS.values() for line in table(title, runs, where, rows_of(options.write))]
    print("\n".join(lines))
    if options.write:
        write(options.write, "tasks", "\n".join(lines))


if __name__ == "__main__":
    main()
