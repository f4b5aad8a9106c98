"""Nine ways of pre-training with equal processor time on one corpus, then the same GLUE tasks for each:
`python benchmarks/pretraining.py --data FOLDER --runs FOLDER [--minutes 10] [--jobs 2] [--only NAME] [--write docs/results.md]`.

The data FOLDER contains imdb, glue_sst2, glue_mrpc, glue_cola, glue_rte and stsb. Every network is pre-trained on 10,000 texts of
IMDB with the same optimiser and about the same number of parameters: two blocks of width 128, of which T5 and BART have one in the
encoder and one in the decoder (larger networks learn less in a few minutes). Fine-tuning is the same for all: the recipes glue-*, with
one learning rate, and per task as many updates as TASKS says. "scratch" is the network of BERT, with its vocabulary and without its
weights.

Equal work does not depend on the load of the machine: the processor time of one update of each network is measured first, on one core and
a small part of the corpus, and stored in RUNS/speeds.json; a network is then trained for the number of updates that take `--minutes`.

Every run is `qkv train`: one that has ended is only read, one that was stopped is resumed, and a folder with a run of another recipe, such
as of other minutes, is an error.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from pages import machine, write

from qkv.config.strict import merge, read_toml
from qkv.convert.detect import open_config
from qkv.convert.files import read_json, write_json, write_text
from qkv.errors import ConfigError, FileError, QkvError
from qkv.lab.parallel_runs import PlannedRun, load_any, read_any, run_state
from qkv.lab.runs_progress import train_with_progress
from qkv.lab.training import open_task, time_updates
from qkv.recipes import find
from qkv.train.extend import differences
from qkv.train.launch import one_thread
from qkv.workflow import toml

RECIPE = """task = "{task}"

[model]
family = "encoder"
head = "masked"
d_model = 128
n_layers = 2
n_heads = 2
d_ff = 512
feedforward = "gelu"
norm_order = "pre"
position = "learned"
max_length = 128
tie = "output"
dropout = 0.0

[data]
train = [{{ dataset = "imdb", share = [0.0, 0.4] }}]
valid = {{ dataset = "imdb", share = [0.0, 0.02] }}
tokenizer = "wordpiece"
lower = true
vocab_size = 8192
max_length = 128
batch_tokens = 2048

[train]
optimizer = "muon"
learning_rate = 4e-3
schedule = "linear"
warmup = 30
label_smoothing = 0.0
evaluate_every = "100%"
save_every = "25%"
"""
HALVES = (
    "model.family=encoder-decoder",
    "model.head=vocabulary",
    "model.n_layers=1",
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
    Network("RoBERTa-style", "masked", ("data.tokenizer=byte-bpe", "data.lower=false", "data.batch_tokens=4096")),
    Network("ELECTRA", "replaced", ("model.head=replaced",)),
    Network("RoFormer", "masked", ("model.position=rotary",)),
    Network("DeBERTa-like", "masked", ("model.position=disentangled",)),
    Network("T5", "span-corruption", (*HALVES, "model.position=t5", "model.norm=rms", "data.tokenizer=unigram", "data.lower=false"), LAST),
    Network("BART", "denoising", (*HALVES, "data.tokenizer=byte-bpe", "data.lower=false", "corrupt.rate=0.3"), LAST),
    Network("GPT", "language", ("model.family=decoder", "model.head=vocabulary", "data.tokenizer=byte-bpe", "data.lower=false"), LAST),
)  # fmt: skip
TASKS = {
    "sst2": ("SST-2", "glue_sst2", 150),
    "mrpc": ("MRPC", "glue_mrpc", 80),
    "cola": ("CoLA", "glue_cola", 100),
    "rte": ("RTE", "glue_rte", 60),
    "stsb": ("STS-B", "stsb", 150),
}
"""GLUE task -> its title, its folder, and the updates of fine-tuning."""
TUNING = (
    "train.learning_rate=3e-4",
    "train.warmup=50",
    "data.batch_tokens=1024",
    "train.evaluate_every=100%",
    "train.save_every=100%",
    "train.ema=0",
)
"""One evaluation: the score is that of the last update, not the best of several on the set that is reported."""
ABOUT = """Minutes are processor time of the updates alone, converted into updates beforehand by the measured seconds of one update.
Development sets (in brackets: examples), after the last update of fine-tuning, in per cent: accuracy (SST-2, RTE), F1 (MRPC, a
tenth of the training set), Matthews' correlation (CoLA), Spearman's correlation (STS-B). One seed, and one learning rate for all networks
(Muon, 4e-3; not tuned for any of them). Fine-tuning is 150 updates of 1,024 tokens (SST-2, STS-B), 100 (CoLA), 80 (MRPC) or 60 (RTE).
An update of pre-training has 2,048 tokens (RoBERTa-style: 4,096). The standard error of an accuracy is 1.6 points on SST-2 and 3 on RTE.
Published scores are those of GLUE's test server, after pre-training on Wikipedia and books; their mean is that of all GLUE tasks."""
PUBLISHED: tuple[tuple[str, str, dict[str, float], str], ...] = (
    ("BERT-Tiny (Turc et al. 2019)", "4.4 M", {"sst2": 83.2, "mrpc": 81.1, "rte": 57.2}, ""),
    ("BERT-Mini", "11.3 M", {"sst2": 85.9}, ""),
    ("BERT-Small", "29.1 M", {"sst2": 89.7, "cola": 27.8}, ""),
    ("GPT (Devlin et al. 2019)", "117 M", {}, "75.1"),
    ("BERT base", "110 M", {}, "79.6"),
    ("BERT large", "340 M", {}, "82.1"),
)
"""Name, parameters, scores and mean."""

SMALL_PART = 'data.train=[{dataset="imdb", share=[0.0, 0.04]}]'
MEASURE = 6.0
"""Seconds of processor time from which the speed of a network is taken."""


# --- runs


def plan(options: argparse.Namespace, name: str, source: Path, settings: Iterable[str]) -> PlannedRun:
    """Plan a run; raise a FileError where its folder has one of another recipe."""
    folder, settings = options.runs / "runs" / name.lower().replace(" ", "-"), tuple(settings)
    recipe, kept = load_any(source, settings), folder / "recipe.toml"
    if kept.is_file() and (changes := differences(read_any(kept), recipe)):
        raise FileError(f"{folder} holds a run with another {', '.join(changes)}: choose another folder with --runs")
    return PlannedRun(name, folder, source, settings, recipe)


def pretraining(network: Network, options: argparse.Namespace) -> PlannedRun:
    source = options.runs / "recipes" / f"{network.task}.toml"
    write_text(source, RECIPE.format(task=network.task))
    settings = (f"data.root={options.data / 'imdb'}", *network.settings)
    updates = round(60 * options.minutes / seconds_per_update(network, source, settings, options))
    return plan(options, network.name, source, (*settings, f"train.steps={updates}"))


def stored_speeds(options: argparse.Namespace) -> dict[str, float]:
    """Name of a network -> seconds of processor time per update."""
    file = options.runs / "speeds.json"
    return read_json(file) if file.is_file() else {}


def seconds_per_update(network: Network, source: Path, settings: Sequence[str], options: argparse.Namespace) -> float:
    """Return the processor time of one update on one core; it is measured once and then stored."""
    speeds = stored_speeds(options)
    if network.name not in speeds:
        with one_thread():
            task = open_task(load_any(source, (*settings, SMALL_PART)))
            batches = list(islice(task.batches, 8))
            torch.manual_seed(1)
            timed = time_updates(task, task.network(), batches, MEASURE, time.process_time)
        speeds[network.name] = timed.seconds / timed.updates
        write_json(options.runs / "speeds.json", speeds)
    return speeds[network.name]


def fine_tuning(network: Network, options: argparse.Namespace) -> dict[tuple[str, str], PlannedRun]:
    """Plan the runs that start from a network: (row of the table, task) -> run; none before it is pre-trained."""
    start = pretraining(network, options)
    if run_state(start) != "finished":
        return {}
    found = {}
    for task, (_, folder, updates) in TASKS.items():
        common = (f"data.root={options.data / folder}", *TUNING, f"train.steps={updates}")
        settings = (*common, *network.tuning, f"tune.start={start.folder}")
        found[network.name, task] = plan(options, f"{network.name} {task}", find(f"glue-{task}"), settings)
        if network.name == "BERT":
            settings = (*common, f"data.vocabulary={start.folder}")
            found["scratch", task] = plan(options, f"scratch {task}", scratch(task, start.folder, options), settings)
    return found


def scratch(task: str, start: Path, options: argparse.Namespace) -> Path:
    """Write a recipe of the same network with random weights: that of the task with the fields of `start` in place of a preset."""
    values = {name: value for name, value in read_toml(find(f"glue-{task}")).items() if name not in ("preset", "tune")}
    values["model"] = merge(open_config(start).model_dump(exclude_unset=True, exclude_none=True), values["model"])
    path: Path = options.runs / "recipes" / f"scratch-{task}.toml"
    write_text(path, toml(values))
    return path


def train_all(networks: Sequence[Network], options: argparse.Namespace) -> bool:
    """Train all that has not been trained; return whether no run failed."""
    failed: dict[str, str] = {}
    for make in (pretraining_runs, fine_tuning_runs):
        outcome = train_with_progress(make(networks, options), options.jobs)
        if outcome.signal:
            sys.exit(128 + outcome.signal)
        failed |= outcome.failed
    return not failed


def pretraining_runs(networks: Sequence[Network], options: argparse.Namespace) -> list[PlannedRun]:
    return [pretraining(network, options) for network in networks]


def fine_tuning_runs(networks: Sequence[Network], options: argparse.Namespace) -> list[PlannedRun]:
    return [run for network in networks for run in fine_tuning(network, options).values()]


# --- the table


def results(run: PlannedRun | None) -> dict[str, Any] | None:
    """Return the results of a run that has ended."""
    if run is None or run_state(run) != "finished":
        return None
    found: dict[str, Any] = json.loads((run.folder / "results.json").read_text())
    return found


def table(options: argparse.Namespace) -> Iterator[str]:
    """Yield the lines of the table; what has not been trained is left blank."""
    speeds = stored_speeds(options)
    networks = [network for network in NETWORKS if network.name in speeds]
    runs = {key: run for network in networks for key, run in fine_tuning(network, options).items()}
    tuned = {key: found["valid"] for key, run in runs.items() if (found := results(run)) is not None}
    sizes = {task: f" ({one['examples']:,})" for (_, task), one in tuned.items()}
    columns = [title + sizes.get(task, "") for task, (title, *_) in TASKS.items()]
    yield f"| pre-trained as | seconds per update | updates | parameters | {' | '.join(columns)} | mean |"
    yield "|---|---:|---:|---:|" + "---:|" * (len(TASKS) + 1)
    pretrained = {network.name: results(pretraining(network, options)) for network in networks}
    for name, found in {**pretrained, "scratch": None}.items():
        speed = f"{speeds[name]:.3f}" if found else ""
        updates = f"{found['training']['updates']:,}" if found else ""
        size = f"{found['model']['parameters']:,}" if found else ""
        scores = {task: tuned[name, task]["value"] for task in TASKS if (name, task) in tuned}
        mean = f"{fmean(scores.values()):.1f}" if len(scores) == len(TASKS) else ""
        yield row([name, speed, updates, size], scores, mean)
    for name, size, scores, mean in PUBLISHED:
        yield row([f"published: {name}", "", "", size], scores, mean)


def row(about: Sequence[str], scores: dict[str, float], mean: str) -> str:
    cells = [f"{scores[task]:.1f}" if task in scores else "" for task in TASKS]
    return f"| {' | '.join([*about, *cells, mean])} |"


def chosen(names: Sequence[str] | None) -> list[Network]:
    known = [network.name for network in NETWORKS]
    if unknown := [name for name in names or () if name not in known]:
        raise ConfigError(f"no network {unknown[0]!r}: one of {', '.join(known)}")
    return [network for network in NETWORKS if names is None or network.name in names]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=10, help="processor time of the updates of each pre-training")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="runs at a time, one core each")
    parser.add_argument("--only", action="append", help="a network of the table; may be repeated")
    parser.add_argument("--collect", action="store_true", help="train nothing")
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    options.data, options.runs, options.jobs = options.data.resolve(), options.runs.resolve(), max(1, options.jobs)
    try:
        networks = chosen(options.only)
        (options.runs / "recipes").mkdir(parents=True, exist_ok=True)
        good = options.collect or train_all(networks, options)
        lines = list(table(options))
    except QkvError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    command = (
        f"python benchmarks/pretraining.py --data DATA --runs RUNS --minutes {options.minutes:g} --jobs {options.jobs}"
    )
    text = "\n".join(
        [f"## Pre-training at equal processor time\n\n`{command}`, one core each, on {machine()}.\n{ABOUT}\n", *lines]
    )
    print(text)
    if options.write:
        write(options.write, "pretraining", text)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
