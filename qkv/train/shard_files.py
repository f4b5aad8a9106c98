"""Sharded checkpoint files: every worker writes its own safetensors file while training continues, by torch.distributed.checkpoint.

A file contains the shards of one worker; its header also states where in the full tensor each of them belongs, so any number of workers
can read them. A tensor that several workers have is in the file of the first. The files contain no pickle:
torch's readers and writers for safetensors leave out the `.metadata` of its other formats. While they are written, torch
exchanges its plans and results between the workers of the run as pickled messages.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from qkv.convert.files import partial_path, settle, take_place, write_json
from qkv.convert.manifest import seal
from qkv.distributed import rank
from qkv.errors import FileError

Create = Callable[[str, torch.Size, torch.dtype], Tensor]
"""(name, shape of the full tensor, dtype) -> a plain tensor or DTensor into which it is read."""


@dataclass
class Saving:
    """A folder that is being written."""

    folder: Path
    future: Future[Any]

    def wait(self) -> None:
        """Wait until the folder is complete; FileError if a worker could not write."""
        try:
            self.future.result()
        except BaseException as error:
            reason = first_reason(error)
            if rank() == 0:
                settle(self.folder)
            if isinstance(reason, OSError):
                what = f"cannot write {self.folder}: {reason.strerror}; check the free space and the permissions"
                raise FileError(what) from None
            raise reason from None


def begin_writing(folder: Path, tensors: dict[str, Tensor], files: dict[str, Any], group: dist.ProcessGroup,
                  finished: Callable[[], None]) -> Saving:  # fmt: skip
    """Copy the tensors (plain or DTensors) to CPU memory, and start writing them to `folder`.

    `files` are written next to them as JSON. When all workers have written their shards, rank 0 adds the checksums and renames the
    folder; then it calls `finished`. The workers exchange messages over `group`, which nothing else may use meanwhile.
    """
    from torch.distributed.checkpoint import DefaultSavePlanner, HuggingFaceStorageWriter, async_save

    class Writer(HuggingFaceStorageWriter):
        def finish(self, metadata: Any, results: Any) -> None:
            """Finish the folder; called on rank 0 when all workers have written."""
            new = partial_path(folder)
            for name, value in files.items():
                write_json(new / name, value)
            seal(new, [path.name for path in new.iterdir()])
            take_place(folder)
            settle(folder)
            finished()

    writer = Writer(str(partial_path(folder)), save_distributed=True)
    planner = DefaultSavePlanner(dedup_save_to_lowest_rank=True)  # the same files every time
    future: Any = async_save(tensors, storage_writer=writer, planner=planner, process_group=group)
    return Saving(folder, future)


def read_shards(folder: Path, create: Create) -> dict[str, Tensor]:
    """Read the tensors of the safetensors files in a folder: full tensors, or the shards of this worker."""
    from torch.distributed.checkpoint import HuggingFaceStorageReader, load

    reader = HuggingFaceStorageReader(str(folder))
    stored = reader.read_metadata().state_dict_metadata
    tensors = {name: create(name, entry.size, entry.properties.dtype) for name, entry in stored.items()}  # type: ignore[union-attr]
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled")  # every worker reads by itself
            load(dict(tensors), storage_reader=reader, no_dist=True)
    except BaseException as error:
        raise first_reason(error) from None
    return tensors


def whole_tensor(name: str, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """Create an empty tensor to read into, whatever its name."""
    return torch.empty(shape, dtype=dtype)


def first_reason(error: BaseException) -> BaseException:
    """Return what went wrong in the first worker that failed."""
    failures = getattr(error, "failures", {})  # of a CheckpointException
    return failures[min(failures)][0] if failures else error
