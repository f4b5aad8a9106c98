"""Ablation: train variants of a recipe with several seeds, and compare each with the baseline variant."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qkv.lab.ablation_report import write_ablation
from qkv.lab.parallel_runs import Outcome, PlannedRun, default_jobs
from qkv.lab.runs_progress import train_with_progress
from qkv.lab.variant_results import Ablation, compare_variants
from qkv.lab.variants import Factor, Plans, first_run, make_variants, parse_factor, plan_runs
from qkv.recipes import find
from qkv.workflow import settings, toml_value


def ablate(recipe: str | Path, vary: Mapping[str, Sequence[Any]], *, seeds: int = 3, overrides: Mapping[str, Any] | None = None,
           one_at_a_time: bool = False, baseline: Mapping[str, Any] | None = None, jobs: int | None = None,
           out: str | Path | None = None, metric: str | None = None, samples: int = 1000, quiet: bool = False) -> Ablation:  # fmt: skip
    """Train variants of a recipe with several seeds, and compare each with a baseline variant.

    recipe: the name of a recipe that comes with qkv, or the path of a .toml file.
    vary: fields and their values, {"model.position": ["rotary", "learned"]}; the variants are all combinations.
    seeds: number of runs of each variant.
    overrides: fields to change in all variants.
    one_at_a_time: the variants are the recipe itself, which is the baseline, and each single change.
    baseline: values of the baseline variant; a field that is not given has its first value.
    jobs: runs in parallel; default: one per core.
    out: the folder; default lab/ablate-NAME. The same call again resumes, and returns at once where all runs are finished.
    metric: the one to test; default: the first of the test set.
    samples: resampled or randomised test sets of the significance tests.

    >>> qkv.ablate("tags", {"model.n_heads": [1, 2]}, seeds=2).variants[1].metrics["f1"].p_test
    """
    changes, base = (
        settings(overrides or {}, {}),
        [f"{key}={as_setting(value, key)}" for key, value in (baseline or {}).items()],
    )
    listed = [f"{key}={','.join(as_setting(value, key) for value in values)}" for key, values in vary.items()]
    d = design(str(recipe), [parse_factor(text) for text in listed], seeds, changes, one_at_a_time, base,
               None if out is None else Path(out))  # fmt: skip
    outcome = train_design(d, jobs, quiet)
    if outcome.signal:
        raise KeyboardInterrupt
    options: dict[str, Sequence[object]] = {
        "--vary": listed, "--set": changes, "--baseline": base, "--seeds": [seeds], "--out": [d.folder],
        "--metric": [metric] if metric else [], "--samples": [samples],
    }  # fmt: skip
    words = [str(word) for option, values in options.items() for value in values for word in (option, value)]
    command = ["qkv", "ablate", str(recipe), *words, *(["--one-at-a-time"] if one_at_a_time else [])]
    return finish_ablation(d, outcome, shlex.join(command), metric, samples)


def as_setting(value: Any, field: str) -> str:
    """A value as `--set` takes it; a name stays without quotes."""
    plain = (
        isinstance(value, str)
        and re.fullmatch(r"[A-Za-z][\w-]*", value)
        and value not in ("true", "false", "inf", "nan")
    )
    return str(value) if plain else toml_value(value, field)


@dataclass(frozen=True)
class Design:
    """What to train: the variants of a recipe with their runs by seed."""

    source: Path
    plans: Plans
    folder: Path

    @property
    def runs(self) -> list[PlannedRun]:
        """All runs, every variant with the first seed before any with the second: an early stop leaves whole comparisons."""
        rounds = zip(*(list(runs.values()) for runs in self.plans.values()), strict=True)
        return [run for one in rounds for run in one]


def design(recipe: str, factors: Sequence[Factor], seeds: int = 3, settings: Sequence[str] = (), one_at_a_time: bool = False,
           baseline: Sequence[str] = (), out: Path | None = None) -> Design:  # fmt: skip
    """Plan an ablation and check every combination; nothing is trained or written."""
    source = find(recipe)
    folder = out or Path("lab") / f"ablate-{source.stem}"
    variants = make_variants(source, settings, factors, one_at_a_time, baseline)
    return Design(source, plan_runs(source, settings, variants, seeds, folder), folder)


def train_design(d: Design, jobs: int | None = None, quiet: bool = False) -> Outcome:
    """Train the runs that are not finished, as many in parallel as there are cores."""
    return train_with_progress(d.runs, jobs or default_jobs(first_run(d.plans).recipe), quiet)


def finish_ablation(
    d: Design, outcome: Outcome, command: str, metric: str | None = None, samples: int = 1000
) -> Ablation:
    """Compare the trained variants and write the files."""
    found = compare_variants(d.source, d.plans, d.folder, outcome.failed, metric, samples)
    write_ablation(found, command)
    return found
