"""Start of a worker process: run a module as `python -m` does, but Ctrl-C ends it without a traceback, also while it imports torch.

    python -m qkv.train.worker_start MODULE ARGUMENTS

The agent starts it with SIGINT blocked, so that none arrives before the first line here. Nothing here imports torch.
"""

from __future__ import annotations

import runpy
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def block_interrupts() -> Iterator[None]:
    """Block SIGINT in this thread within the block. Processes that it starts there begin with SIGINT blocked."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_on_interrupt() -> None:
    """End this process at the next SIGINT, or at one that is blocked, immediately and without a message."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def raise_on_interrupt() -> None:
    """Raise KeyboardInterrupt at the next SIGINT, as Python does by default."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


if __name__ == "__main__":
    end_on_interrupt()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
