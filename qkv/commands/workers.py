"""`--workers N`: divide the input of a command among several processes; the output is that of one process.

The process that the user has started is torch's agent (train/agent.py). It starts the same command line N times, as torchrun does
on one or several machines; rank 0 reads, prints and writes, and all compute.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from qkv.commands.common import to_stderr
from qkv.commands.lines import CHUNK, Line, Source, chunks

Result = TypeVar("Result")
Workers = Annotated[int, typer.Option(
    min=1, max=1024, help="Number of processes that share the work, for example one per GPU; the output is the same. On a CPU a single one "
    "uses all cores.")]  # fmt: skip
EXIT_CODE = "exit-code"
"""File between rank 0 and the agent: the exit code of a command that has completed, if it is not 0."""


def with_workers(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the option --workers, its parameter `workers`."""

    @wraps(command)
    def run(*arguments: Any, workers: int = 1, **options: Any) -> None:
        if workers == 1 and "WORLD_SIZE" not in os.environ:
            return command(*arguments, **options)
        from qkv.distributed import launched_by_agent

        if workers > 1 and not launched_by_agent():
            raise typer.Exit(start_workers(workers))
        with worker_group():
            return command(*arguments, **options)

    return run


def start_workers(count: int) -> int:
    """Run this command line in several processes; return its exit code."""
    from qkv.train.agent import run_workers

    with tempfile.TemporaryDirectory(prefix="qkv-") as name:
        place = Path(name)
        arguments = ["-m", "qkv.worker", name, str(os.getpid()), *sys.argv[1:]]
        number = run_workers(arguments, count, 0, place, to_stderr)
        if number is not None:
            return 128 + number
        return int((place / EXIT_CODE).read_text()) if (place / EXIT_CODE).exists() else 0


@contextmanager
def worker_group() -> Iterator[None]:
    """Share work with the other workers within the block. Each gets its part of the cores; only the output of rank 0 is shown."""
    import torch

    from qkv.device import cores
    from qkv.distributed import is_rank_zero, process_group
    from qkv.shared_work import share_work

    torch.set_num_threads(max(1, cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))
    with process_group(), share_work():
        if is_rank_zero():
            yield
            return
        with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
            yield


def source_of_worker(source: Source) -> Source:
    """Return the source for rank 0, which reads it for all, and an empty one for the others, which may lack the file."""
    from qkv.distributed import is_rank_zero

    return source if is_rank_zero() else []


def compute_chunks(compute: Callable[[int, list[Line]], Result], show: Callable[[Result], None], source: Source,
                   columns: Sequence[int | str] = ()) -> None:  # fmt: skip
    """Read chunks of lines (lines.py), `compute` them, and `show` the results in order.

    compute: of the number of lines before a chunk, and the chunk. Several workers compute a chunk each and wait for each other;
    rank 0 alone reads and shows. An error of any worker is raised by rank 0, after what comes before it has been shown.
    """
    if "WORLD_SIZE" not in os.environ:
        done = 0
        for chunk in chunks(source, columns):
            show(compute(done, chunk))
            done += len(chunk)
        return
    from qkv.distributed import is_rank_zero

    if is_rank_zero():
        compute_on_first(compute, show, source, columns)
    else:
        compute_on_others(compute)


def compute_on_first(compute: Callable[[int, list[Line]], Result], show: Callable[[Result], None], source: Source,
                     columns: Sequence[int | str]) -> None:  # fmt: skip
    """Read lines for all workers, compute a share of them, and show the results of all."""
    from qkv.distributed import broadcast_data, world_size
    from qkv.errors import explain
    from qkv.shared_work import shared_map

    done = 0
    try:
        for lines in chunks(source, columns, CHUNK * world_size()):
            for result in shared_map(lambda part: compute(*part), broadcast_data(parts(done, lines))):
                show(result)
            done += len(lines)
    except BaseException as error:
        if explain(error):  # after any other error, such as a lost connection, the others may not wait for more lines
            broadcast_data([])
        raise
    broadcast_data([])


def compute_on_others(compute: Callable[[int, list[Line]], Any]) -> None:
    """Compute a share of the lines that rank 0 has read, until it has no more."""
    from contextlib import suppress

    from qkv.distributed import broadcast_data
    from qkv.errors import QkvError
    from qkv.shared_work import shared_map

    while some := broadcast_data([]):
        with suppress(QkvError):  # rank 0 raises it
            list(shared_map(lambda part: compute(*part), some))


def parts(done: int, lines: list[Line]) -> list[tuple[int, list[Line]]]:
    """Cut lines into the chunks of a single process, each with the number of lines before it."""
    return [(done + at, lines[at : at + CHUNK]) for at in range(0, len(lines), CHUNK)]
