"""Nine ways of pre-training at equal minutes on one corpus, then the same GLUE tasks for each:
`python benchmarks/pretraining.py --data FOLDER --runs FOLDER [--minutes 10] [--jobs 2] [--only NAME] [--write docs/results.md]`.

The data FOLDER contains imdb, glue_sst2, glue_mrpc, glue_cola, glue_rte and stsb. Every network is pre-trained on the training texts of
IMDB for the same minutes of wall-clock time on one core, with the same optimiser and about the same number of parameters: four blocks of
width 192, of which T5 and BART have two in the encoder and two in the decoder. Fine-tuning is the same for all: the recipes glue-*, with
one learning rate, and per task as many updates as TASKS says. "scratch" is the network of BERT, with its vocabulary and without its
weights. TASKS is chosen so that `--minutes 1.5 --jobs 2` ends within 30 minutes on two idle cores.

Every run is `qkv train`: one that has ended is only read, one that was stopped is resumed, and a folder with a run of another recipe, such
as of other minutes, is an error. Two runs at a time slow each other down, so no network is pre-trained while other cores are idle: those
that are left over when NETWORKS is divided among the jobs are trained beside the first fine-tuning runs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from pages import machine, write

from qkv.config.strict import merge, read_toml
from qkv.convert.detect import open_config
from qkv.convert.files import write_text
from qkv.errors import ConfigError, FileError, QkvError
from qkv.lab.parallel_runs import PlannedRun, load_any, read_any, run_state
from qkv.lab.runs_progress import train_with_progress
from qkv.recipes import find
from qkv.train.extend import differences
from qkv.workflow import toml

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
valid = {{ dataset = "imdb", share = [0.0, 0.02] }}
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
evaluate_every = "100%"
save_every = "25%"
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
    Network("T5", "span-corruption", (*HALVES, "model.position=t5", "model.norm=rms", "data.tokenizer=unigram", "data.lower=false"), LAST),
    Network("BART", "denoising", (*HALVES, "data.tokenizer=byte-bpe", "data.lower=false", "corrupt.rate=0.3"), LAST),
    Network("GPT", "language", ("model.family=decoder", "model.head=vocabulary", "data.tokenizer=byte-bpe", "data.lower=false"), LAST),
)  # fmt: skip
TASKS = {
    "sst2": ("glue_sst2", 150),
    "mrpc": ("glue_mrpc", 80),
    "cola": ("glue_cola", 100),
    "rte": ("glue_rte", 60),
    "stsb": ("stsb", 150),
}
"""GLUE task -> its folder, and the updates of fine-tuning."""
TUNING = (
    "train.learning_rate=3e-4",
    "train.warmup=50",
    "data.batch_tokens=1024",
    "train.evaluate_every=100%",
    "train.save_every=100%",
    "train.ema=0",
)
"""One evaluation: the score is that of the last update, not the best of several on the set that is reported."""
ABOUT = """Development sets (in brackets: examples), after the last update of fine-tuning, in per cent: accuracy (SST-2, RTE), F1 (MRPC, a
tenth of the training set), Matthews' correlation (CoLA), Spearman's correlation (STS-B). One seed, and one learning rate for all networks
(Muon, 4e-3; not tuned for any of them). Fine-tuning is 150 updates of 1,024 tokens (SST-2, STS-B), 100 (CoLA), 80 (MRPC) or 60 (RTE).
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
    budget = (f"data.root={options.data / 'imdb'}", f"train.time_budget={options.minutes:g}")
    return plan(options, network.name, source, (*budget, *network.settings))


def fine_tuning(network: Network, options: argparse.Namespace) -> dict[tuple[str, str], PlannedRun]:
    """Plan the runs that start from a network: (row of the table, task) -> run; none before it is pre-trained."""
    start = pretraining(network, options)
    if run_state(start) != "finished":
        return {}
    found = {}
    for task, (folder, updates) in TASKS.items():
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
    even = len(networks) - len(networks) % options.jobs
    first, rest = networks[:even], networks[even:]
    failed: dict[str, str] = {}
    for new, ready in ((first, ()), (rest, first), ((), rest)):
        runs = [pretraining(network, options) for network in new]
        runs += [run for network in ready for run in fine_tuning(network, options).values()]
        outcome = train_with_progress(runs, options.jobs)
        if outcome.signal:
            sys.exit(128 + outcome.signal)
        failed |= outcome.failed
    return not failed


# --- the table


def results(run: PlannedRun | None) -> dict[str, Any] | None:
    """Return the results of a run that has ended."""
    if run is None or run_state(run) != "finished":
        return None
    found: dict[str, Any] = json.loads((run.folder / "results.json").read_text())
    return found


def table(options: argparse.Namespace) -> Iterator[str]:
    """Yield the lines of the table; what has not been trained is left blank."""
    runs = {key: run for network in NETWORKS for key, run in fine_tuning(network, options).items()}
    tuned = {key: found["valid"] for key, run in runs.items() if (found := results(run)) is not None}
    sizes = {task: f" ({one['examples']:,})" for (_, task), one in tuned.items()}
    columns = [task.upper() + sizes.get(task, "") for task in TASKS]
    yield f"| pre-trained as | updates | parameters | {' | '.join(columns)} | mean |"
    yield "|---|---:|---:|" + "---:|" * (len(TASKS) + 1)
    pretrained = {network.name: results(pretraining(network, options)) for network in NETWORKS}
    for name, found in {**pretrained, "scratch": None}.items():
        updates = f"{found['training']['updates']:,}" if found else ""
        size = f"{found['model']['parameters']:,}" if found else ""
        scores = {task: tuned[name, task]["value"] for task in TASKS if (name, task) in tuned}
        yield row(name, updates, size, scores, f"{fmean(scores.values()):.1f}" if len(scores) == len(TASKS) else "")
    for name, size, scores, mean in PUBLISHED:
        yield row(f"published: {name}", "", size, scores, mean)


def row(name: str, updates: str, size: str, scores: dict[str, float], mean: str) -> str:
    cells = [f"{scores[task]:.1f}" if task in scores else "" for task in TASKS]
    return f"| {' | '.join([name, updates, size, *cells, mean])} |"


def chosen(names: Sequence[str] | None) -> list[Network]:
    known = [network.name for network in NETWORKS]
    if unknown := [name for name in names or () if name not in known]:
        raise ConfigError(f"no network {unknown[0]!r}: one of {', '.join(known)}")
    return [network for network in NETWORKS if names is None or network.name in names]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=10, help="of pre-training, each")
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
        [f"## Pre-training at equal minutes\n\n`{command}`, one core each, on {machine()}.\n{ABOUT}\n", *lines]
    )
    print(text)
    if options.write:
        write(options.write, "pretraining", text)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
