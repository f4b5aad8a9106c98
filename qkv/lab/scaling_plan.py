"""Plan the runs of a scaling law: sizes derived from a recipe, amounts of data, and which of both fit into a budget of minutes.

Data grow in steps of two from a few dozen updates; each size gets as many steps as it can be trained on within the time of the
longest run. Every run has its own schedule, which ends at its own number of tokens.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from qkv.config import ModelConfig, Recipe, load_recipe
from qkv.config.strict import override, read_toml
from qkv.convert.detect import open_config
from qkv.convert.files import read_json, write_json, write_text
from qkv.errors import ConfigError
from qkv.lab.parallel_runs import PlannedRun, load_any
from qkv.lab.training import time_updates
from qkv.memory import keep_freed_memory
from qkv.models.build import build
from qkv.models.params import count
from qkv.tasks.base import Say, Task, task_of
from qkv.tasks.language import LanguageTask
from qkv.train.artifacts import save_words
from qkv.train.extend import SPANNING
from qkv.train.launch import one_thread
from qkv.train.run import check_recipe
from qkv.workflow import toml

FACTORS = (0.25, 0.35, 0.5, 0.7, 1.0)
"""Widths and depths of the sizes, relative to the recipe's: parameters grow with the cube."""
UPDATES = (256, 128, 64, 32, 16)
"""Updates of the shortest run: as many as the budget allows, since the first updates follow no power law."""
GRID_SHARE, CHECK_SHARE = 0.7, 0.2
"""Parts of the budget for the runs that are fitted and for the one that checks the prediction; the rest is a reserve."""
MOST_EPOCHS = 4
"""Passes over the data up to which repeated tokens are about as good as new ones (Muennighoff et al. 2023)."""
VALID_TOKENS = 100_000
"""Held-out tokens on which a run is scored."""
STARTUP = 5.0
"""Seconds that a process needs for its imports."""
MEASURE = 1.5
"""Seconds of updates over which the speed of a size is measured."""
FEWEST_SIZES, FEWEST_DATA = 3, 3


@dataclass(frozen=True)
class ModelSize:
    """One size of the network."""

    fields: dict[str, int]
    """Those of [model] that differ between sizes."""
    parameters: int
    """N, without embeddings and output matrix unless these are counted."""
    total: int
    """All parameters."""
    rate: float = 0.0
    """Training tokens per second on one core."""

    @property
    def name(self) -> str:
        return f"d_model={self.fields['d_model']}, n_layers={self.fields['n_layers']}"

    def with_embeddings(self) -> ModelSize:
        return replace(self, parameters=self.total)


@dataclass(frozen=True)
class ScalingRun:
    """A run to train: a size and an amount of data."""

    size: ModelSize
    updates: int
    tokens: int
    seconds: float
    """Expected, with start and evaluation."""

    @property
    def operations(self) -> float:
        """C = 6 N D."""
        return 6.0 * self.size.parameters * self.tokens


@dataclass(frozen=True)
class ScalingPlan:
    """The runs to fit, and what was measured to plan them."""

    runs: list[ScalingRun]
    sizes: list[ModelSize]
    tokens_per_update: int
    corpus_tokens: int
    """Tokens of the training text; 0 = more than fit into memory at once."""
    overhead: float
    """Seconds of a run before its first update."""
    valid_tokens: int
    minutes: float
    jobs: int
    notes: list[str]
    embeddings: bool = False
    """Whether N counts embeddings and output matrix."""

    def seconds(self, rate: float, tokens: float) -> float:
        """Expected time of a run: start, updates, and one evaluation, which is a third of the work per token."""
        return self.overhead + (tokens + self.valid_tokens / 3) / rate

    @property
    def most_tokens(self) -> float:
        return MOST_EPOCHS * self.corpus_tokens or math.inf

    def with_embeddings(self) -> ScalingPlan:
        """The same runs, with all parameters counted as N."""
        runs = [replace(run, size=run.size.with_embeddings()) for run in self.runs]
        return replace(self, runs=runs, sizes=[size.with_embeddings() for size in self.sizes], embeddings=True)


# --- sizes


def scale_config(c: ModelConfig, factor: float) -> dict[str, int]:
    """Fields of a network `factor` times as wide and as deep, with heads of about the same width."""
    unit = 2 ** max(1, int(math.log2(max(c.d_model / 8, 2))))
    d_model = c.d_model if factor == 1 else max(unit, round(c.d_model * factor / unit) * unit)
    fields = {"d_model": d_model, "n_layers": max(1, round(c.n_layers * factor))}
    if c.recurrent is not None:
        return fields
    heads = max(1, round(d_model / c.d_model * c.n_heads))
    while c.d_head is None and (d_model % heads or d_model // heads % 2):
        heads -= 1  # rotary positions turn pairs
    fields |= {"n_heads": heads}
    if c.n_kv_heads is not None:
        wanted = max(1, round(heads * c.n_kv_heads / c.n_heads))
        fields["n_kv_heads"] = next(n for n in range(wanted, 0, -1) if heads % n == 0)
    if "d_ff" in c.model_fields_set:
        fields["d_ff"] = c.d_ff if factor == 1 else max(8, round(c.d_ff * d_model / c.d_model / 8) * 8)
    return fields


def make_size(c: ModelConfig, factor: float) -> ModelSize:
    """Return a size of a configuration whose vocabulary is known."""
    fields = scale_config(c, factor)
    found = count(c.changed(**fields))
    within = sum(row.total for row in found.rows if row.name.startswith("stack."))
    return ModelSize(fields, within, found.parameters)


def size_choices(c: ModelConfig, embeddings: bool = False) -> list[ModelSize]:
    """Return sizes in small steps, from far below the recipe's to several times as many parameters."""
    fields = {tuple(scale_config(c, factor).items()): factor for factor in (0.15 * 1.05**i for i in range(60))}
    found = [make_size(c, factor) for factor in fields.values()]
    return [size.with_embeddings() for size in found] if embeddings else found


def nearest_size(sizes: Sequence[ModelSize], parameters: float) -> ModelSize:
    """Return the size whose N is nearest to a wanted one."""
    return min(sizes, key=lambda size: abs(math.log(size.parameters / parameters)))


# --- the recipe of all runs


def load_base(source: Path, settings: Sequence[str]) -> Recipe:
    """Load the recipe of a language model; ConfigError for what cannot be scaled."""
    recipe = load_recipe(source, list(settings), open_config)
    check_recipe(recipe)
    if recipe.task != "language":
        raise ConfigError(
            f"qkv scale needs a language model (task = 'language'), and this recipe has task = {recipe.task!r}"
        )
    if recipe.tune.start:
        raise ConfigError("qkv scale trains all sizes from scratch: leave tune.start out")
    return recipe


def write_base(source: Path, settings: Sequence[str], out: Path, share: float, notes: list[str]) -> Path:
    """Write the recipe that all runs start from: no end of its own, one evaluation, the vocabulary of `out`."""
    values: dict[str, Any] = override(read_toml(source), list(settings))
    data, train = values["data"], values.setdefault("train", {})
    for name in ("test", "extra_valid"):
        data.pop(name, None)  # the held-out loss is that of the validation set, which selects nothing here
    for name in ("time_budget", "epochs", "patience", "ema", "keep"):
        train.pop(name, None)
    low, high = data["valid"].get("share", (0.0, 1.0))
    if share < 1:
        data["valid"]["share"] = [low, low + share * (high - low)]
    if "vocabulary" not in data:
        data["vocabulary"] = str((out / "tokenizer").resolve())
    if train.get("schedule", "inverse-sqrt") not in SPANNING:
        notes.append(
            f"train.schedule = {train.get('schedule', 'inverse-sqrt')!r} does not end with the run: replaced by 'linear'."
        )
        train["schedule"] = "linear"
    train |= {"evaluate_every": "100%", "save_every": "25%"}
    write_text(out / "recipe.toml", toml(values))
    return out / "recipe.toml"


def plan_run(base: Path, out: Path, run: ScalingRun, warmup: int, place: str = "runs") -> PlannedRun:
    """Return the run as an ordinary run folder. The warm-up is at most a tenth of the run."""
    fields = [f"model.{name}={value}" for name, value in run.size.fields.items()]
    settings = (*fields, f"train.steps={run.updates}", f"train.warmup={min(warmup, max(1, run.updates // 10))}")
    folder = out / place / f"{run.size.name.replace(', ', '+')}+updates={run.updates}"
    name = f"{run.size.name}, {run.updates:,} updates"
    return PlannedRun(name, folder, base, settings, load_any(base, settings), run.seconds)


# --- measurement


def measure_rate(task: Task, c: ModelConfig, size: ModelSize, batches: Sequence[list[Any]]) -> float:
    """Train briefly on one core; return the tokens per second."""
    timed = time_updates(task, build(c.changed(**size.fields)), batches, MEASURE)
    return timed.targets / timed.seconds


def make_plan(source: Path, settings: Sequence[str], minutes: float, jobs: int, out: Path, say: Say) -> ScalingPlan:
    """Learn the vocabulary, measure the rate of every size, and choose the runs; writes recipe.toml and tokenizer/ to `out`."""
    recipe, notes = load_base(source, settings), list[str]()
    assert recipe.data is not None
    kind = task_of(recipe)
    words = kind.prepare(recipe, say)
    assert words.source is not None
    config = kind.fitted(recipe, words)
    begun = time.monotonic()
    task = kind(recipe, config, words)
    assert isinstance(task, LanguageTask)
    stream = iter(task.batches)
    batches = [next(stream) for _ in range(4)]
    overhead = STARTUP + time.monotonic() - begun
    corpus = sum(len(chunk.ids) for chunk in task.batches.kept or ())
    (out / "tokenizer").mkdir(parents=True, exist_ok=True)
    save_words(out / "tokenizer", words)
    held_out = sum(len(document) - 1 for document in task.text.documents)
    write_base(source, settings, out, min(1.0, VALID_TOKENS / held_out), notes)
    sizes = {size.parameters: size for size in (make_size(config, factor) for factor in FACTORS)}
    keep_freed_memory()
    with one_thread():
        found = [replace(size, rate=measure_rate(task, config, size, batches)) for size in sizes.values()]
    per_update = recipe.data.batch_tokens * recipe.train.accumulate
    empty = ScalingPlan([], found, per_update, corpus, overhead, min(held_out, VALID_TOKENS), minutes, jobs, notes)
    return choose_runs(empty)


# --- choosing


def choose_runs(p: ScalingPlan) -> ScalingPlan:
    """Return the plan with the largest grid of sizes and data that fits into the budget; ConfigError where none does."""
    budget = GRID_SHARE * 60 * p.minutes
    for sizes, first in ((sizes, first) for sizes in (len(p.sizes), FEWEST_SIZES) for first in UPDATES):
        if enough(runs := widest_grid(p, first, budget), sizes):
            return replace(p, runs=runs)
    least = 1.5 * p.minutes
    while not enough(widest_grid(p, UPDATES[-1], GRID_SHARE * 60 * least)) and least < 1e6:
        least *= 1.5
    raise ConfigError(
        f"--minutes {p.minutes:g} is too short for {FEWEST_SIZES} sizes with {FEWEST_DATA} amounts of data each on {p.jobs} cores: "
        f"give at least {math.ceil(least)} minutes, or a smaller recipe"
    )


def widest_grid(p: ScalingPlan, first: int, budget: float) -> list[ScalingRun]:
    """Runs of `first`, 2 first, 4 first ... updates of every size that fit into the budget: the first three amounts of data of each
    size before any more, short runs before long ones. The result has the longest run first."""
    candidates = []
    for size in p.sizes:
        for doubling in range(40):
            tokens = first * 2**doubling * p.tokens_per_update
            if tokens > p.most_tokens:
                break
            run = ScalingRun(size, first * 2**doubling, tokens, p.seconds(size.rate, tokens))
            candidates.append((doubling >= FEWEST_DATA, run.seconds, run))
    chosen: list[ScalingRun] = []
    for _, _, run in sorted(candidates, key=lambda one: one[:2]):
        if makespan([*chosen, run], p.jobs) <= budget:
            chosen.append(run)
    return sorted(chosen, key=lambda run: -run.seconds)


def enough(runs: Sequence[ScalingRun], sizes: int = FEWEST_SIZES) -> bool:
    """Whether some sizes have three amounts of data each."""
    counts = Counter(run.size.parameters for run in runs)
    return sum(n >= FEWEST_DATA for n in counts.values()) >= sizes


def makespan(runs: Sequence[ScalingRun], jobs: int) -> float:
    """Time until all runs are done, each started on the first free core, the longest first."""
    cores = [0.0] * jobs
    for run in sorted(runs, key=lambda run: -run.seconds):
        cores[cores.index(min(cores))] += run.seconds
    return max(cores)


# --- plan.json


def open_plan(source: Path, settings: Sequence[str], minutes: float, jobs: int, out: Path, say: Say) -> ScalingPlan:
    """Read the plan of `out` if it was made for the same recipe and budget, so that an interrupted command resumes; or make it.

    ConfigError, and nothing is written, if `out` has runs of the recipe with other settings.
    """
    wanted: dict[str, Any] = {"recipe": override(read_toml(source), list(settings)), "minutes": minutes, "jobs": jobs}
    file = out / "plan.json"
    kept = read_json(file) if file.is_file() else {}
    if kept.get("inputs") == wanted:
        return from_json(kept["plan"])
    if kept and (out / "runs").is_dir() and (changed := changed_fields(kept["inputs"]["recipe"], wanted["recipe"])):
        raise ConfigError(f"{out} holds runs with another {', '.join(changed)}: choose another folder with --out")
    plan = make_plan(source, settings, minutes, jobs, out, say)
    write_json(file, {"inputs": wanted, "plan": asdict(plan)})
    return plan


def changed_fields(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> list[str]:
    """Return the names of the fields that differ between two recipes as read from TOML: ["model.d_model"]."""
    found = []
    for name in old | new:
        a, b = old.get(name), new.get(name)
        if isinstance(a, dict) and isinstance(b, dict):
            found += changed_fields(a, b, f"{prefix}{name}.")
        elif a != b:
            found.append(prefix + name)
    return found


def from_json(values: dict[str, Any]) -> ScalingPlan:
    runs = [
        ScalingRun(ModelSize(**run["size"]), run["updates"], run["tokens"], run["seconds"]) for run in values["runs"]
    ]
    return ScalingPlan(**{**values, "runs": runs, "sizes": [ModelSize(**size) for size in values["sizes"]]})
