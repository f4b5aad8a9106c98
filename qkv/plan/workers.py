"""Run a function on several workers of this machine, for measurements. Torch's agent (train/agent.py) starts them as in training."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from qkv.convert.files import read_json, write_json
from qkv.distributed import end_with, is_rank_zero, process_group
from qkv.memory import keep_freed_memory
from qkv.train.agent import run_workers
from qkv.train.worker import write_error

JOB, RESULT = "job.json", "result.json"
"""Files between the agent and its workers: what to call, and what rank 0 has returned."""


def call_on_workers(function: Callable[..., Any], count: int, *arguments: Any) -> Any:
    """Call a function on `count` workers, processes with one thread each in a gloo group, and return the result of rank 0.

    The function is imported by its name; arguments and results are JSON data.
    """
    with tempfile.TemporaryDirectory(prefix="qkv-") as name:
        place = Path(name)
        job = {
            "module": function.__module__,
            "function": function.__qualname__,
            "arguments": arguments,
            "agent": os.getpid(),
        }
        write_json(place / JOB, job)
        number = run_workers(["-m", "qkv.plan.workers", name], count, 0, place, print)
        if number is not None:
            raise SystemExit(128 + number)
        return read_json(place / RESULT)


def main(place: Path) -> int:
    """Call the function as one of the workers; return the exit code."""
    job = read_json(place / JOB)
    end_with(job["agent"])
    torch.set_num_threads(1)
    keep_freed_memory()
    try:
        with process_group():
            found = getattr(import_module(job["module"]), job["function"])(*job["arguments"])
            if is_rank_zero():
                write_json(place / RESULT, found)
        return 0
    except BaseException as error:
        return write_error(error)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
