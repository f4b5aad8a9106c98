"""Choose the number of threads by the current load: on a machine with other busy processes, threads that wait for each other at
every operation are slower than a single one."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

STAT = Path("/proc/stat")
INTERVAL = 0.2
"""Seconds between two measurements of the load; the system counts in hundredths of a second."""


class Load:
    """Cores that other processes keep busy, measured between two moments of this process."""

    def __init__(self) -> None:
        self.last = (time.monotonic(), *processor_seconds())
        self.others = 0.0

    def read(self) -> float:
        """The load of the others since the last reading, or that reading where it is too new."""
        now = time.monotonic()
        elapsed = now - self.last[0]
        if elapsed >= INTERVAL:
            busy, own = processor_seconds()
            self.others = max(0.0, (busy - self.last[1] - (own - self.last[2])) / elapsed)
            self.last = now, busy, own
        return self.others


def processor_seconds() -> tuple[float, float]:
    """Seconds in which the cores that this process may use were busy, and those of this process; (0, 0) where unknown."""
    try:
        ours = {f"cpu{number}" for number in os.sched_getaffinity(0)}
        rows = [line.split() for line in STAT.read_text().splitlines() if line.startswith("cpu")]
        # user, nice, system, idle, waiting for a disk, interrupts of two kinds
        ticks = sum(int(row[column]) for row in rows if row[0] in ours for column in (1, 2, 3, 6, 7))
    except (OSError, ValueError, IndexError, AttributeError):  # another system
        return 0.0, 0.0
    return ticks / os.sysconf("SC_CLK_TCK"), time.process_time()


def free_cores() -> int:
    """Cores of this process that no other keeps busy, measured now; at least 1."""
    load = Load()
    time.sleep(INTERVAL)
    return max(1, round(len(os.sched_getaffinity(0)) - load.read()))


LOAD = Load()
"""Measured since this module was imported, so that the first call has a result."""


def free_threads() -> int:
    """Threads that have a core for themselves now, of those that torch may use; at least 1."""
    import torch

    most = torch.get_num_threads()
    return most if most == 1 else max(1, min(most, round(most - LOAD.read())))


@contextmanager
def on_free_cores(small: bool = False) -> Iterator[None]:
    """Within the block torch uses as many threads as there are free cores; a single one if the work is `small`, which gains nothing
    from a second. Results do not change: threads divide the outputs among them, never the terms of a sum."""
    import torch

    most, free = torch.get_num_threads(), 1 if small else free_threads()
    if free == most:
        yield
        return
    torch.set_num_threads(free)
    try:
        yield
    finally:
        torch.set_num_threads(most)
