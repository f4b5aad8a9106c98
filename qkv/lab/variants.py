"""Variants of a recipe: all combinations of the values of some fields, or one change at a time; checked before anything is trained."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from qkv.config.strict import override
from qkv.errors import ConfigError, QkvError
from qkv.lab.parallel_runs import AnyRecipe, PlannedRun, load_any

SEEDS = ("train.seed", "vectors.seed")
"""The seed of networks and of word vectors, which --seeds sets."""
MOST_RUNS = 10_000
LONGEST = 120
"""Characters of the name of a folder."""
UNCHANGED = "recipe"
"""Name of the variant without changes."""


@dataclass(frozen=True)
class Factor:
    """A field and the values that it takes, written as in `--set`."""

    field: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class Variant:
    """A recipe with some fields changed."""

    changes: tuple[tuple[str, str], ...]
    """(field, value), in the order of the factors."""
    name: str
    """Display name: "position=rotary, norm_order=pre"."""

    @property
    def settings(self) -> list[str]:
        """The changes as `--set` takes them."""
        return [f"{field}={value}" for field, value in self.changes]


def parse_factor(text: str) -> Factor:
    """Parse "model.position=rotary,learned": a field and its values, separated by commas outside of brackets and quotes."""
    field, equals, values = text.partition("=")
    field = field.strip()
    if not equals or not field:
        raise ConfigError(f"--vary takes a field and its values, model.position=rotary,learned, given {text!r}")
    if field in SEEDS:
        raise ConfigError(f"--vary {field}: the seeds are set by --seeds, for all variants")
    found = split_values(values)
    parsed = [override({}, [f"{field}={value}"]) for value in found]
    for at, value in enumerate(parsed):
        if value in parsed[:at]:
            raise ConfigError(f"--vary {field}: the value {found[at]} is given twice")
    return Factor(field, tuple(found))


def split_values(text: str) -> list[str]:
    """Split at the commas that are in no brackets and no quotes: 'a,[1, 2]' -> ["a", "[1, 2]"]."""
    values, depth, quote = [""], 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        elif character in "[{":
            depth += 1
        elif character in "]}":
            depth -= 1
        if character == "," and not depth and not quote:
            values.append("")
        else:
            values[-1] += character
    return [value.strip() for value in values]


# --- which variants


def make_variants(source: Path, settings: Sequence[str], factors: Sequence[Factor], one_at_a_time: bool = False,
                  baseline: Sequence[str] = ()) -> list[Variant]:  # fmt: skip
    """Return the variants, the baseline first: of a grid the first value of each field unless `baseline` sets another one, of
    one change at a time the recipe itself."""
    if len({factor.field for factor in factors}) < len(factors):
        raise ConfigError("--vary names a field twice: give all its values in one option, separated by commas")
    if not factors:
        raise ConfigError("nothing to vary: give a field and its values, --vary model.position=rotary,learned")
    if one_at_a_time:
        if baseline:
            raise ConfigError("--baseline: with --one-at-a-time the recipe is the baseline; change it with --set")
        return single_changes(source, settings, factors)
    rows = [[(factor.field, value) for value in factor.values] for factor in factors]
    found = [Variant(changes, variant_name(changes, factors)) for changes in product(*rows)]
    if len(found) < 2:
        raise ConfigError("only one variant: give --vary at least two values, or use qkv train")
    first = find_baseline(found, factors, baseline)
    return [first, *(variant for variant in found if variant is not first)]


def single_changes(source: Path, settings: Sequence[str], factors: Sequence[Factor]) -> list[Variant]:
    """The recipe itself, then each value of each field alone; a value that the recipe has anyway is left out."""
    base = load_any(source, settings)
    found = [Variant((), UNCHANGED)]
    for factor in factors:
        for value in factor.values:
            changes = ((factor.field, value),)
            variant = Variant(changes, variant_name(changes, factors))
            if load_variant(source, settings, variant) != base:
                found.append(variant)
    if len(found) < 2:
        raise ConfigError("only one variant: the recipe has all these values already")
    return found


def variant_name(changes: Sequence[tuple[str, str]], factors: Sequence[Factor]) -> str:
    """Name a variant by its changes; a field by the last part of its name where only one ends so."""
    short = [factor.field.rpartition(".")[2] for factor in factors]
    named = ((field.rpartition(".")[2], field, value) for field, value in changes)
    return ", ".join(f"{last if short.count(last) == 1 else field}={value}" for last, field, value in named)


def find_baseline(variants: Sequence[Variant], factors: Sequence[Factor], settings: Sequence[str]) -> Variant:
    """Return the variant with these values; fields that `settings` does not name have their first value."""
    wanted = {factor.field: factor.values[0] for factor in factors}
    for setting in settings:
        field, _, value = setting.partition("=")
        factor = next((factor for factor in factors if factor.field == field.strip()), None)
        if factor is None or value.strip() not in factor.values:
            known = "; ".join(f"{one.field}={','.join(one.values)}" for one in factors)
            raise ConfigError(f"--baseline {setting} is none of the values that --vary gives: {known}")
        wanted[factor.field] = value.strip()
    return next(variant for variant in variants if dict(variant.changes) == wanted)


# --- runs


def load_variant(source: Path, settings: Sequence[str], variant: Variant, seed: int | None = None) -> AnyRecipe:
    """Load a variant; a problem is reported with its changes."""
    try:
        recipe = load_any(source, [*settings, *variant.settings])
        return recipe if seed is None else load_any(source, [*settings, *variant.settings, seed_setting(recipe, seed)])
    except QkvError as error:
        changed = " ".join(f"--vary {setting}" for setting in variant.settings)
        raise type(error)(f"{changed}: {error}" if changed else str(error)) from None


def seed_setting(recipe: AnyRecipe, seed: int) -> str:
    return f"{SEEDS[recipe.task == 'vectors']}={seed}"


Plans = dict[Variant, dict[int, PlannedRun]]
"""The runs of each variant by seed."""


def plan_runs(source: Path, settings: Sequence[str], variants: Sequence[Variant], seeds: int, out: Path) -> Plans:
    """Check every variant and return its runs by seed. The seeds count from that of the recipe."""
    if len(variants) * seeds > MOST_RUNS:
        raise ConfigError(f"{len(variants):,} variants with {seeds} seeds each are more than {MOST_RUNS:,} runs")
    plans: Plans = {}
    for variant in variants:
        recipe = load_variant(source, settings, variant)
        first = recipe.vectors.seed if recipe.task == "vectors" else recipe.train.seed  # type: ignore[union-attr]
        plans[variant] = {}
        for seed in range(first, first + seeds):
            changes = (*settings, *variant.settings, seed_setting(recipe, seed))
            folder = out / "runs" / folder_name(variant, seed)
            own = load_variant(source, settings, variant, seed)
            plans[variant][seed] = PlannedRun(f"{variant.name}, seed {seed}", folder, source, changes, own)
    return plans


def folder_name(variant: Variant, seed: int) -> str:
    """Return a file name for a run, which does not depend on the other variants and differs between variants."""
    name = variant.name.replace(", ", "+")
    plain = re.sub(r"[^A-Za-z0-9=+._-]+", "-", name).strip("-.")[:LONGEST]
    if plain != name:
        plain += "-" + hashlib.sha256("\n".join(variant.settings).encode()).hexdigest()[:8]
    return f"{plain}+seed={seed}"


def first_run(plans: Plans) -> PlannedRun:
    """The first run of the baseline."""
    return next(iter(next(iter(plans.values())).values()))
