"""A worker process that the agent has started (agent.py): trains as one rank of a run. Rank 0 also reports, and scores the model."""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from qkv.config import Recipe
from qkv.convert.files import write_text
from qkv.device import cores
from qkv.distributed import WorkerLost, end_with, is_rank_zero
from qkv.errors import FileError, explain, is_memory_error
from qkv.train.launch import JOB, OUTCOME
from qkv.train.outcome import RunOutcome, write_outcome
from qkv.train.report import Report
from qkv.train.run import train_as_worker
from qkv.train.worker_start import raise_on_interrupt


def work(place: Path, job: dict[str, Any]) -> RunOutcome:
    """Train as one rank of a run until it ends."""
    torch.set_num_threads(1)
    recipe, folder = Recipe.model_validate_json(job["recipe"]), Path(job["folder"])
    report = Report(quiet=job["quiet"] or not is_rank_zero())
    # rank 0 scores the model alone, when the other workers have ended
    r = train_as_worker(recipe, folder, report, job["changed_data"], threads=cores())
    if is_rank_zero():
        write_outcome(place / OUTCOME, r)
    return r


def write_error(error: BaseException) -> int:
    """Write an error to the file that the agent reads; return the exit code of this process."""
    if isinstance(error, KeyboardInterrupt):
        return 130
    code = getattr(error, "exit_code", 2) if explain(error) else 1
    if is_memory_error(error):
        code = WorkerLost.exit_code
    message = explain(error) or "".join(traceback.format_exception(error))
    data = {"message": message, "timestamp": int(time.time()), "kind": type(error).__name__}
    with suppress(OSError, FileError):  # on a full disk the agent reports the exit code
        write_text(os.environ["TORCHELASTIC_ERROR_FILE"], json.dumps(data))  # atomically
    return code


def main(place: Path) -> int:
    """Do the job in this folder; return the exit code."""
    job = json.loads((place / JOB).read_text())
    end_with(job["agent"])
    try:
        raise_on_interrupt()
        number = work(place, job).ending.signal
        return 128 + number if number else 0
    except BaseException as error:
        return write_error(error)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
