"""Claim, Experiment, ClaimResult: a statement of the lectures, the experiment that tests it, and its result."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from qkv.convert.files import read_json, write_text
from qkv.errors import QkvError
from qkv.lab.workers import MeasurementPool

Progress = Callable[[str, int, int], None]
Verdict = Literal["holds", "holds in part", "does not hold", "undecided"]


@dataclass(frozen=True)
class Table:
    """Column titles and rows; numbers are formatted by the experiment."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        lines = [self.columns, ["---", *["---:"] * (len(self.columns) - 1)], *self.rows]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)


@dataclass(frozen=True)
class ClaimResult:
    """The result of an experiment."""

    verdict: Verdict
    finding: str
    """One sentence with the numbers that determine the verdict."""
    table: Table
    figure: str
    """An SVG picture."""
    basis: str
    """Basis of the verdict: "3 seeds", "exact"."""


@dataclass(frozen=True)
class Claim:
    """A statement of the lectures as an experiment."""

    id: str
    sentence: str
    """The claim, in one sentence."""
    lectures: str
    setup: str
    """What is measured, and on which data."""
    refuted_by: str
    """What would refute the claim."""
    run: Callable[[Experiment], ClaimResult] = field(repr=False)
    minutes: float = 0.2
    """Expected duration of the quick version on two cores."""


class Experiment:
    """One run of one claim: its scale, its seeds, and the measurements so far.

    folder: `measurements.json` in it holds every finished measurement with its arguments, so that an interrupted experiment
        resumes, and repeats measurements whose arguments have changed.
    full: the long version, closer to the sizes in the papers.
    progress: called with the name of each measurement, how many are done and how many are planned so far.
    data: folder of real data sets.
    pool: the processes in which the measurements of a grid run; None = this one.
    """

    def __init__(self, folder: Path, seeds: int = 3, full: bool = False, progress: Progress | None = None,
                 data: Path | None = None, pool: MeasurementPool | None = None):  # fmt: skip
        self.folder, self.seeds, self.full = folder, range(1, seeds + 1), full
        self.data = data and data.resolve()  # an argument of measurements: one spelling for one folder
        self.progress, self.pool = progress or (lambda name, done, planned: None), pool or MeasurementPool(1)
        self.file = folder / "measurements.json"
        self.measured: dict[str, Any] = read_json(self.file) if self.file.is_file() else {}
        self.done = self.planned = self.new = 0

    @staticmethod
    def folder_of(out: Path, claim: str, full: bool = False) -> Path:
        """Return the folder of a claim; the full version has one of its own, so that neither overwrites the other."""
        return out / (f"{claim}-full" if full else claim)

    def measure(self, name: str, work: Callable[..., Any], *arguments: Any) -> Any:
        """Return the JSON value of `work(*arguments)`, from an earlier run of this experiment if there is one.

        It runs alone, in this process, with all threads: for short measurements and for measurements of time.
        """
        self.planned += 1
        self.progress(name, self.done, self.planned)
        if not self.has(name, arguments):
            self.keep(name, arguments, work(*arguments))
        self.done += 1
        return self.measured[name]["value"]

    def per_seed(self, name: str, work: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Return `work(*arguments, seed)` for every seed, one after the other."""
        return [self.measure(f"{name}, seed {seed}", work, *arguments, seed) for seed in self.seeds]

    def grid(self, work: Callable[..., Any], settings: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
        """Return {name: [work(*arguments, seed) for every seed]} for {name: arguments}, in parallel processes.

        work: a module-level function; its arguments and its value are sent between processes.
        """
        keys = {
            f"{name}, seed {seed}": (*arguments, seed) for name, arguments in settings.items() for seed in self.seeds
        }
        missing = {key: (work, arguments) for key, arguments in keys.items() if not self.has(key, arguments)}
        self.planned += len(keys)
        self.done += len(keys) - len(missing)
        self.progress(next(iter(missing), ""), self.done, self.planned)
        for key, value in self.pool.run(missing):
            self.keep(key, keys[key], value)
            self.done += 1
            self.progress(key, self.done, self.planned)
        return {name: [self.measured[f"{name}, seed {seed}"]["value"] for seed in self.seeds] for name in settings}

    def of(self, claim: str) -> Experiment:
        """Return the experiment of another claim in the same folder, whose measurements this one shares."""
        folder = self.folder_of(self.folder.parent, claim, self.full)
        return Experiment(folder, len(self.seeds), self.full, self.progress, self.data, self.pool)

    def has(self, name: str, arguments: Sequence[Any]) -> bool:
        """Return whether a measurement with these arguments is in the folder."""
        kept = self.measured.get(name)
        return isinstance(kept, dict) and kept.get("arguments") == json.dumps(arguments)

    def keep(self, name: str, arguments: Sequence[Any], value: Any) -> None:
        """Write a measurement to the folder."""
        self.new += 1
        self.measured[name] = {"arguments": json.dumps(arguments), "value": value}
        self.folder.mkdir(parents=True, exist_ok=True)
        write_text(self.file, json.dumps(self.measured))

    @property
    def basis(self) -> str:
        return f"{len(self.seeds)} seeds"

    def require_data(self, name: str) -> Path:
        """Return the folder of a real data set; raise QkvError where there is none."""
        if self.data is None or not (self.data / name).exists():
            raise QkvError(
                f"this experiment reads the data set {name!r}: pass --data FOLDER, the folder that contains {name}/"
            )
        return self.data / name


def to_json(claim: Claim, result: ClaimResult) -> dict[str, Any]:
    """Return what results.json holds of a claim, without the figure, which is a file of its own."""
    found = asdict(result)
    del found["figure"]
    return {"id": claim.id, "claim": claim.sentence, "lectures": claim.lectures, "setup": claim.setup,
            "refuted_by": claim.refuted_by} | found  # fmt: skip


def judge(*parts: bool | None) -> Verdict:
    """Return the verdict of a claim from its parts: True = shown, False = refuted, None = neither, because the seeds differ too much.

    It holds if all parts are shown, in part if some are, not at all if none is and one is refuted; otherwise it is undecided.
    """
    if all(parts):
        return "holds"
    if any(parts):
        return "holds in part"
    return "does not hold" if False in parts else "undecided"
