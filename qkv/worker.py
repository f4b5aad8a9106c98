"""A worker process of a command with --workers (commands/workers.py): runs the command line as one rank of a process group."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from qkv.cli import app
from qkv.commands.workers import EXIT_CODE
from qkv.distributed import end_with, is_rank_zero
from qkv.train.worker import write_error


def main(place: Path, agent: int, arguments: list[str]) -> int:
    """Run the command; return the exit code of this process, which is 0 if the command has completed."""
    end_with(agent)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)  # end at once, also while waiting for another worker
    try:
        code = app(arguments, standalone_mode=False) or 0
    except BaseException as error:
        return write_error(error)
    if code and is_rank_zero():
        (place / EXIT_CODE).write_text(str(code))
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
