"""A run's folder has one process at a time: two that write the same log and checkpoints would ruin both."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from qkv.errors import FileError

try:
    import fcntl
except ImportError:  # Windows has no flock: there nobody watches
    fcntl = None  # type: ignore[assignment]


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Within it the folder is ours. The system lets go of the lock however the process ends, also when it is killed."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise FileError(f"cannot train in {folder} ({error.strerror}): choose another folder with --out") from None
    try:
        _take(handle, folder)
        yield
    finally:
        os.close(handle)


def _take(handle: int, folder: Path) -> None:
    try:
        if fcntl is not None:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise FileError(
            f"another process trains in {folder}: wait until it ends, or choose another folder with --out"
        ) from None
