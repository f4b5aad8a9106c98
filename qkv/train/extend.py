"""Extending a run: which settings may change in its folder, and what a change means for the rest of the training.

Recipes are compared field by field after they were checked, so comments, order and formatting do not count. Settings that
decide what the next update learns from the last checkpoint (network, data, optimiser state, seed) cannot change: that is
a new run, which may start from the old one's weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from qkv.config import CorpusConfig, Recipe, Strict, TrainConfig
from qkv.convert.files import read_json, some
from qkv.errors import FileError, QkvError
from qkv.train import checkpoint
from qkv.train.loop import share_done
from qkv.train.schedule import learning_rate

ENDS = ("train.steps", "train.epochs", "train.time_budget")
"""When training ends; also what most schedules are stretched over."""
MAY_CHANGE = {
    *ENDS, "train.patience", "train.learning_rate",
    "train.keep", "train.evaluate_every", "train.save_every",  # what is kept and looked at
    "train.device", "train.precision", "train.compile",  # how the same update is computed
    "data.test", "data.extra_valid", "decode.beam", "decode.length_penalty", "decode.batch_tokens",  # scored at the end
    "vectors.epochs", "vectors.learning_rate", "vectors.last_rate", "vectors.workers", "vectors.similarity", "vectors.analogies",
}  # fmt: skip
"""Fields in which the recipe may differ from that of the run in the folder."""
STALE = ("results.json", "README.md")
"""What an ended run says of itself: made anew at its next end. Without results.json a run has not ended."""

R = TypeVar("R", bound=Strict)


def extend(folder: Path, recipe: R, read: Callable[[Path], R], say: Callable[[str], None]) -> None:
    """Let the run in `folder` go on with `recipe`, and say what changed; FileError where it describes another run.

    `read` parses a recipe file of the same kind. Only what the ended run says of itself is removed here: whoever is
    killed now leaves a run that goes on with the old recipe or with the new one.
    """
    changes = differences(old_recipe(folder, read), recipe)
    refused = {name: values for name, values in changes.items() if name not in MAY_CHANGE}
    if refused:
        listed = [f"{name} is {shown(was)} there and {shown(now)} here" for name, (was, now) in refused.items()]
        raise FileError(
            f"{folder} holds a run of another recipe: {some(listed, 6)}; choose a new folder with --out"
            + from_weights(folder, recipe)
            + f" (a run can be extended in {', '.join(extensible(recipe))})"
        )
    for name in STALE if changes else ():
        (folder / name).unlink(missing_ok=True)
    for name, (was, now) in changes.items():
        say(f"changed: {name} {shown(was)} -> {shown(now)}")
    if isinstance(recipe, Recipe):
        say_rate(folder, recipe.train, set(changes), say)


def old_recipe(folder: Path, read: Callable[[Path], R]) -> R:
    """The recipe that the run in `folder` was started with."""
    try:
        return read(folder / "recipe.toml")
    except QkvError as error:
        raise FileError(f"{folder} holds a run whose recipe cannot be compared with this one ({error}): choose another folder "
                        "with --out, or remove it to start anew") from None  # fmt: skip


def from_weights(folder: Path, recipe: Strict) -> str:
    """How to start another run from these weights, where there are any to start from."""
    possible = isinstance(recipe, Recipe) and (folder / "best").is_dir()
    return f", or start from its weights with --out NEW --set tune.start={folder}" if possible else ""


def extensible(recipe: Strict) -> tuple[str, ...]:
    """The fields that people change to extend a run of this kind."""
    return (*ENDS, "train.patience", "train.learning_rate") if isinstance(recipe, Recipe) else ("vectors.epochs",)


def differences(old: Strict, new: Strict) -> dict[str, tuple[Any, Any]]:
    """{"train.steps": (1000, 2000)}: fields with different values, defaults included. A preset is compared by what it says."""
    before, after = flat(old), flat(new)
    names = [name for name in before | after if name != "preset"]
    return {name: (before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)}


def flat(record: Strict, prefix: str = "") -> dict[str, Any]:
    """{"train.steps": 1000, ...}: the fields of a record and of the records in it; a corpus counts as one value."""
    found: dict[str, Any] = {}
    for name in type(record).model_fields:
        value = getattr(record, name)
        nested = isinstance(value, Strict) and not isinstance(value, CorpusConfig)
        found |= flat(value, f"{prefix}{name}.") if nested else {f"{prefix}{name}": value}
    return found


def shown(value: Any) -> str:
    """A value as a recipe writes it, with separators in long numbers."""
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Strict):
        given = {name: getattr(value, name) for name in type(value).model_fields if name in value.model_fields_set}
        return table(given.items())
    if isinstance(value, dict):
        return table(value.items())
    return f"[{some([shown(one) for one in value], 4)}]" if isinstance(value, tuple) else f'"{value}"'


def table(items: Iterable[tuple[str, Any]]) -> str:
    return "{ " + ", ".join(f"{name} = {shown(value)}" for name, value in items) + " }"


def say_rate(folder: Path, c: TrainConfig, changed: set[str], say: Callable[[str], None]) -> None:
    """How the learning rate goes on, where a change decides it."""
    last = checkpoint.newest(folder)
    spans = c.schedule in ("cosine", "linear", "stable-decay") and changed & set(ENDS)
    if last is None or not (spans or "train.learning_rate" in changed):
        return
    numbers = read_json(last / checkpoint.NUMBERS)
    p = checkpoint.progress_of(numbers["progress"])
    before = max((group["lr"] / (group.get("scale") or 1.0) for group in numbers["groups"]), default=0.0)
    p.step += 1
    rate = learning_rate(c, p.step, share_done(p, c))
    why = f': the schedule "{c.schedule}" now spans the new length of the run' if spans else ""
    say(f"the learning rate goes on at {rate:.3g} (update {p.step:,}), after {before:.3g}{why}")
