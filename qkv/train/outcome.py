"""RunOutcome: progress and results of a run whose processes have ended, for the process that has started them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from qkv.config import Recipe
from qkv.convert.files import read_json, write_json
from qkv.train.checkpoint import Progress, progress_of
from qkv.train.loop import Ending


@dataclass
class RunOutcome:
    """A run that was stopped or is complete."""

    folder: Path
    recipe: Recipe
    progress: Progress
    ending: Ending = field(default_factory=lambda: Ending(""))
    """Why training ended."""
    results: dict[str, Any] = field(default_factory=dict)
    """Contents of results.json, if the run is complete."""
    use: str = ""
    """A command that uses its model, if the run is complete."""

    @property
    def why(self) -> str:
        """Why training ended, as a sentence."""
        return self.ending.reason


def write_outcome(path: Path, o: RunOutcome) -> None:
    """Write an outcome for the process that has started this one."""
    write_json(path, {"progress": asdict(o.progress), "ending": asdict(o.ending), "results": o.results, "use": o.use})


def read_outcome(path: Path, folder: Path, recipe: Recipe) -> RunOutcome:
    """Read the outcome that rank 0 has written."""
    found = read_json(path)
    return RunOutcome(
        folder, recipe, progress_of(found["progress"]), Ending(**found["ending"]), found["results"], found["use"]
    )
