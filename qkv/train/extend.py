"""Extending a run: which settings may change in its folder, and what a change means for the rest of the training.

Recipes are compared field by field after they were checked, so comments, order and formatting do not count. Settings that
decide what the next update learns from the last checkpoint (network, data, optimiser state, seed) cannot change: that is
a new run, which may start from the old one's weights.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from qkv.config import CorpusConfig, Recipe, Strict, TrainConfig, format_value
from qkv.convert.files import read_json, some
from qkv.errors import FileError, QkvError
from qkv.text.wording import format_duration
from qkv.train import checkpoint
from qkv.train.loop import end_reason, share_of_run
from qkv.train.schedule import learning_rate
from qkv.train.state import RULES
from qkv.train.warm_start import VOCABULARY, contradictions

SPANNING = ("cosine", "linear", "stable-decay")
"""Schedules that are stretched over the whole run."""
ENDS = ("train.steps", "train.epochs", "train.time_budget")
"""When training ends; also what most schedules are stretched over."""
MAY_CHANGE = {
    *ENDS, "train.patience", "train.learning_rate",
    "train.keep", "vectors.keep", "train.evaluate_every", "train.save_every",  # what is stored and evaluated
    "train.device", "train.precision", "train.compile", "train.worker_timeout", "train.idle_timeout",
    "train.sharding", "train.tensor_parallel", "train.activation_checkpointing",  # how the same update is computed
    "data.test", "data.extra_valid", "decode.beam", "decode.length_penalty", "decode.length_formula", "decode.extra_length",
    "decode.batch_tokens",  # scored at the end
    "vectors.epochs", "vectors.learning_rate", "vectors.last_rate", "vectors.workers", "vectors.similarity", "vectors.analogies",
}  # fmt: skip
"""Fields in which the recipe may differ from that of the run in the folder."""
BY_PRESENCE = ("train.label_smoothing", "decode.max_length")
"""Fields that tasks read only where the recipe sets them: absent is not the same as the default."""
STALE = ("results.json", "README.md")
"""Files that a run writes at its end: rewritten at the next end. Without results.json a run has not ended."""

R = TypeVar("R", bound=Strict)


def extend(folder: Path, recipe: R, read: Callable[[Path], R], say: Callable[[str], None]) -> None:
    """Continue the run in `folder` with `recipe`, and report what changed; FileError where it describes another run.

    `read` parses a recipe file of the same kind. Only the files of STALE are removed here: a process that is
    killed now leaves a run that continues with the old recipe or with the new one.
    """
    old = old_recipe(folder, read)
    changes = differences(old, recipe)
    refused = {name: values for name, values in changes.items() if name not in MAY_CHANGE}
    if refused:
        raise FileError(
            f"{folder} holds a run of another recipe: {some(describe_differences(refused), 6)}; choose a new folder with --out NEW"
            + suggest_start(folder, old, recipe, set(refused))
            + f" (a run can be extended in {', '.join(extension_fields(recipe))})"
        )
    for name in STALE if changes else ():
        (folder / name).unlink(missing_ok=True)
    for name, (was, now) in changes.items():
        say(f"changed: {name} {in_units(name, was)} -> {in_units(name, now)}")
    if isinstance(recipe, Recipe):
        say_rate(folder, recipe.train, set(changes), say)


def in_units(name: str, value: Any) -> str:
    """Format a value; a time budget in seconds, minutes or hours."""
    return format_duration(60 * value) if name == "train.time_budget" and value is not None else format_value(value)


def old_recipe(folder: Path, read: Callable[[Path], R]) -> R:
    """Read the recipe of the run in `folder`."""
    try:
        return read(folder / "recipe.toml")
    except QkvError as error:
        raise FileError(f"{folder} holds a run whose recipe cannot be compared with this one ({error}): choose another folder "
                        "with --out, or remove it to start over") from None  # fmt: skip


def suggest_start(folder: Path, old: Strict, recipe: Strict, refused: set[str]) -> str:
    """Suggest to start from the weights of the run, where network and vocabulary are the same."""
    if not (isinstance(old, Recipe) and isinstance(recipe, Recipe) and (folder / "best").is_dir()):
        return ""
    if contradictions(old.model, recipe.model) or refused & {f"data.{name}" for name in VOCABULARY}:
        return ""
    return f", or start from its weights with --out NEW --set tune.start={folder}"


def extension_fields(recipe: Strict) -> tuple[str, ...]:
    """Return the fields that people change to extend a run of this kind."""
    return (*ENDS, "train.patience", "train.learning_rate") if isinstance(recipe, Recipe) else ("vectors.epochs",)


def differences(old: Strict, new: Strict) -> dict[str, tuple[Any, Any]]:
    """Compare two recipes, defaults included: {"train.steps": (1000, 2000)}. A preset counts as the fields that it sets."""
    before, after = flatten(old), flatten(new)
    names = [name for name in before | after if name != "preset"]
    return {name: (before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)}


def describe_differences(found: dict[str, tuple[Any, Any]]) -> list[str]:
    """Describe each difference: train.steps is 1000 there and 2000 here."""
    return [f"{name} is {format_value(was)} there and {format_value(now)} here" for name, (was, now) in found.items()]


def flatten(record: Strict, prefix: str = "") -> dict[str, Any]:
    """Return the fields of a record and of the records in it: {"train.steps": 1000}; a corpus counts as one value."""
    found: dict[str, Any] = {}
    for name in type(record).model_fields:
        absent = f"{prefix}{name}" in BY_PRESENCE and name not in record.model_fields_set
        value = None if absent else getattr(record, name)
        if isinstance(value, Strict) and not isinstance(value, CorpusConfig):
            found |= flatten(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found


def say_rate(folder: Path, c: TrainConfig, changed: set[str], say: Callable[[str], None]) -> None:
    """Report the next learning rate, where a change affects it."""
    last = checkpoint.newest(folder)
    spans = c.schedule in SPANNING and changed & set(ENDS)
    if last is None or not (spans or "train.learning_rate" in changed):
        return
    numbers = read_json(last / checkpoint.NUMBERS)
    p = checkpoint.progress_of(numbers["progress"])
    before = max((group["lr"] / (group.get("scale") or 1.0) for group in numbers["groups"]), default=0.0)
    rate = learning_rate(c, p.step + 1, share_of_run(p, c))
    why = f': the schedule "{c.schedule}" now spans the new length of the run' if spans else ""
    say(f"the learning rate continues at {rate:.3g} (update {p.step + 1:,}), after {before:.3g}{why}")


def check_rules(folder: Path, recipe: Recipe) -> None:
    """FileError if the meaning of one of the run's settings has changed since it began: the rest would be trained differently
    from the beginning. A run that has ended is not affected."""
    last = checkpoint.newest(folder)
    if last is None:
        return
    progress = checkpoint.read_progress(last)
    if progress.rules == RULES or end_reason(progress, recipe.train):
        return
    c, family = recipe.train, recipe.model.family
    changed = {
        'train.optimizer = "muon"': c.optimizer == "muon",  # also moved heads, and stacked maps as one
        f'train.schedule = "{c.schedule}"': c.schedule in SPANNING,  # fell during the warm-up, and to 0
        "tune.layer_decay": recipe.tune.layer_decay < 1,  # the top block had the rate of the head
        'model.head = "masked-next"': recipe.model.head == "masked-next",  # the lengths of pairs gave the answer away
        'task = "summary"': recipe.task == "summary" and family == "decoder",  # the summary alone was learned
    }
    if any(changed.values()):
        names = " and ".join(name for name, differs in changed.items() if differs)
        raise FileError(
            f"{folder} was begun by an earlier version, in which {names} had a different meaning, and cannot be continued with this one: "
            f"start from its weights with --out NEW --set tune.start={folder}, or finish it with that version"
        )
