"""A worker process: reads its job from a pipe and trains as one rank of a run. Started by launch.py."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import traceback
from pathlib import Path

import torch
import torch.distributed as dist

from qkv.config import Recipe
from qkv.distributed import process_group
from qkv.errors import QkvError
from qkv.train.launch import HOST, offline_sockets
from qkv.train.report import Report
from qkv.train.run import train_in_group


def work(line: bytes) -> None:
    """Train as one rank of a run until it ends."""
    job = json.loads(line)
    offline_sockets()
    torch.set_num_threads(1)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # rank 0 decides; while updates run, the loop listens
    store = dist.TCPStore(HOST, job["port"], job["world"], is_master=False)
    store.set(f"worker {job['rank']}", "ready")
    with process_group(store, job["rank"], job["world"]):
        recipe = Recipe.model_validate_json(job["recipe"])
        train_in_group(recipe, Path(job["folder"]), Report(quiet=True))


def end_with_parent() -> None:
    """Exit at once when the pipe from the parent closes."""
    sys.stdin.buffer.read()
    os._exit(1)


def main() -> None:
    """Read the job from standard input and run it."""
    line = sys.stdin.buffer.readline()
    threading.Thread(target=end_with_parent, daemon=True).start()
    try:
        work(line)
    except BaseException as error:
        text = f"error: {error}" if isinstance(error, QkvError) else traceback.format_exc()
        print(text, file=sys.stderr, flush=True)
        os._exit(2 if isinstance(error, QkvError) else 1)
    os._exit(0)  # skip the interpreter's shutdown: the thread that reads the pipe holds one of its locks


if __name__ == "__main__":
    main()
