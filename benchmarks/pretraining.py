"""Nine ways of pre-training at equal minutes on one corpus, then the same GLUE tasks for each:
`python benchmarks/pretraining.py --data FOLDER --runs FOLDER [--minutes 10] [--jobs 2] [--only NAME] [--write docs/results.md]`.

FOLDER contains imdb, glue_sst2, glue_mrpc, glue_cola, glue_rte and stsb. Every network is pre-trained on the training texts of IMDB
for the same minutes on one core, with the same optimiser and about the same number of parameters: four blocks of width 192, of which
T5 and BART have two in the encoder and two in the decoder. Fine-tuning is the same for all: the recipes glue-*, with one learning rate
and as many epochs. "scratch" is BERT without pre-training. Every run is `qkv train`: one that has ended is only read, one that was
stopped is resumed. Scores are those of the development sets, in per cent: accuracy (SST-2, RTE), F1 (MRPC), Matthews' correlation
(CoLA), Spearman's correlation (STS-B).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from pages import machine, write

RECIPE = """task = "{task}"

[model]
family = "encoder"
head = "masked"
d_model = 192
n_layers = 4
n_heads = 3
d_ff = 768
feedforward = "gelu"
norm_order = "pre"
position = "learned"
max_length = 128
tie = "output"
dropout = 0.0

[data]
train = [{{ dataset = "imdb" }}]
valid = {{ dataset = "imdb", share = [0.0, 0.1] }}
tokenizer = "wordpiece"
lower = true
vocab_size = 8192
max_length = 128
batch_tokens = 4096

[train]
steps = 100000
optimizer = "muon"
learning_rate = 4e-3
schedule = "linear"
warmup = 100
label_smoothing = 0.0
evaluate_every = "10%"
save_every = "10%"
"""
HALVES = (
    "model.family=encoder-decoder",
    "model.head=vocabulary",
    "model.n_layers=2",
    "model.tie=all",
    "data.max_length=126",
)
LAST = ("model.pooling=last",)
"""A decoder's last vector alone has seen the whole text."""


@dataclass(frozen=True)
class Network:
    """One way of pre-training: the task and what differs from RECIPE; `tuning`: what fine-tuning differs in."""

    name: str
    task: str
    settings: tuple[str, ...] = ()
    tuning: tuple[str, ...] = ()


NETWORKS = (
    Network("BERT", "masked", ("model.head=masked-next", "model.n_segments=2")),
    Network("BERT without next sentence", "masked"),
    Network("RoBERTa-style", "masked", ("data.tokenizer=byte-bpe", "data.lower=false", "data.batch_tokens=8192")),
    Network("ELECTRA", "replaced", ("model.head=replaced",)),
    Network("RoFormer", "masked", ("model.position=rotary",)),
    Network("DeBERTa-like", "masked", ("model.position=disentangled",)),
    Network("T5", "span-corruption", (*HALVES, "model.position=t5", "model.norm=rms", "data.tokenizer=unigram"), LAST),
    Network("BART", "denoising", (*HALVES, "data.tokenizer=byte-bpe", "data.lower=false", "corrupt.rate=0.3"), LAST),
    Network("GPT", "language", ("model.family=decoder", "model.head=vocabulary", "data.tokenizer=byte-bpe", "data.lower=false"), LAST),
)  # fmt: skip
TASKS = {"sst2": ("glue_sst2", 2), "mrpc": ("glue_mrpc", 4), "cola": ("glue_cola", 5), "rte": ("glue_rte", 5),
         "stsb": ("stsb", 5)}  # fmt: skip
"""GLUE task -> its folder and the epochs of fine-tuning."""
PUBLISHED = {
    "GPT, 117 M parameters (published, test)": "75.1",
    "BERT base, 110 M (published, test)": "79.6",
    "BERT large, 340 M (published, test)": "82.1",
}


def folder_name(name: str) -> str:
    return name.lower().replace(" ", "-")


def pretrain(network: Network, options: argparse.Namespace) -> None:
    out = options.runs / folder_name(network.name)
    recipe = options.runs / f"{folder_name(network.name)}.toml"
    recipe.write_text(RECIPE.format(task=network.task))
    settings = (f"data.root={options.data / 'imdb'}", f"train.time_budget={options.minutes:g}", *network.settings)
    train(recipe, out, settings)


def tune(network: Network, task: str, options: argparse.Namespace, start: bool = True) -> None:
    """Fine-tune on one GLUE task; without `start` the same network with fresh weights and the same vocabulary."""
    source = options.runs / folder_name(network.name)
    folder, epochs = TASKS[task]
    settings = [f"data.root={options.data / folder}", f"train.epochs={epochs}", "train.learning_rate=3e-4", "data.batch_tokens=1024",
                "train.evaluate_every=10%", "train.save_every=50%", "train.ema=0", *network.tuning]  # fmt: skip
    if start:
        settings.append(f"tune.start={source}")
    else:
        fields = (
            "d_model=192",
            "n_layers=4",
            "n_heads=3",
            "d_ff=768",
            "norm_order=pre",
            "n_segments=2",
            "max_length=128",
        )
        settings += ["tune.start=", f"data.vocabulary={source}", *(f"model.{field}" for field in fields)]
    train(f"glue-{task}", run_of(options.runs, network.name if start else "scratch", task), settings)


def run_of(runs: Path, name: str, task: str) -> Path:
    return runs / f"{folder_name(name)}-{task}"


def train(recipe: Path | str, out: Path, settings: Iterable[str]) -> None:
    if (out / "results.json").is_file():
        return
    changes = [part for setting in settings for part in ("--set", setting)]
    command = [
        sys.executable,
        "-m",
        "qkv",
        "train",
        str(recipe),
        "--out",
        str(out),
        "--threads",
        "1",
        "--workers",
        "1",
        *changes,
    ]
    with (out.parent / f"{out.name}.log").open("w") as log:
        done = subprocess.run(command, stdout=log, stderr=log, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=False)
    print(f"{out.name}: {'done' if done.returncode == 0 else f'failed, see {log.name}'}", flush=True)


def dev_score(folder: Path) -> float | None:
    """Return the best score of the development set, in per cent."""
    place = folder / "results.json"
    return json.loads(place.read_text())["valid"]["value"] if place.is_file() else None


def table(runs: Path) -> Iterable[str]:
    yield "| pre-trained as | updates | parameters | " + " | ".join(task.upper() for task in TASKS) + " | mean |"
    yield "|---|---:|---:|" + "---:|" * (len(TASKS) + 1)
    for name in (*(network.name for network in NETWORKS), "scratch"):
        scores = [dev_score(run_of(runs, name, task)) for task in TASKS]
        place = runs / folder_name(name) / "results.json"
        found = json.loads(place.read_text()) if place.is_file() else None
        facts = (
            ["", ""] if found is None else [f"{found['training']['updates']:,}", f"{found['model']['parameters']:,}"]
        )
        known = [score for score in scores if score is not None]
        mean = f"{fmean(known):.1f}" if len(known) == len(scores) else ""
        yield f"| {name} | {' | '.join(facts)} | {' | '.join('' if s is None else f'{s:.1f}' for s in scores)} | {mean} |"
    for name, mean in PUBLISHED.items():
        yield f"| {name} | | |{' |' * len(TASKS)} {mean} (all of GLUE) |"


def run_all(options: argparse.Namespace, networks: Sequence[Network]) -> None:
    options.runs.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(lambda network: pretrain(network, options), networks))
        pairs = [(network, task) for network in networks for task in TASKS]
        list(pool.map(lambda pair: tune(*pair, options), pairs))
        if networks[0].name == "BERT":
            list(pool.map(lambda task: tune(NETWORKS[0], task, options, start=False), TASKS))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=10, help="of pre-training, each")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="runs at a time, one core each")
    parser.add_argument("--only", action="append", help="a row of the table; may be repeated")
    parser.add_argument("--collect", action="store_true", help="train nothing")
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    if not options.collect:
        run_all(options, [n for n in NETWORKS if not options.only or n.name in options.only])
    command = f"python benchmarks/pretraining.py --data DATA --runs RUNS --minutes {options.minutes:g}"
    text = [
        f"## Pre-training at equal minutes\n\n`{command}`, one core each, on {machine()}. Development sets, one seed.\n",
        *table(options.runs),
    ]
    print("\n".join(text))
    if options.write:
        write(options.write, "pretraining", "\n".join(text))


if __name__ == "__main__":
    main()
