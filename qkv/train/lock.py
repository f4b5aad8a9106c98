"""Lock a folder of results, because two processes that write the same log and checkpoints would corrupt them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from qkv.errors import FileError


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, which is created if absent; the system releases it however the process ends."""
    lock = FileLock(folder / ".lock", mode=0o666)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire(blocking=False)
    except Timeout:
        raise FileError(
            f"another process is writing to {folder}: wait until it ends, or choose another folder with --out"
        ) from None
    except OSError as error:
        raise FileError(f"cannot write to {folder} ({error.strerror}): choose another folder with --out") from None
    try:
        yield
    finally:
        lock.release()
