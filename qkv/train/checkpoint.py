"""Checkpoints: the complete state of training, in safetensors and JSON, without pickle.

A checkpoint is a folder that is written under a temporary name, flushed to disk, and then renamed, so an interrupted write
never leaves a checkpoint. Its files have checksums: a checkpoint that is damaged later is renamed, and the run falls back to
the newest intact one.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qkv.convert.files import new_folder, read_headers, read_json, read_tensors, settle, write_json, write_tensors
from qkv.convert.folder import put
from qkv.convert.manifest import MARKER, checksums, seal, verify
from qkv.data.batching import Position
from qkv.distributed import all_gather, rank, wait_for_rank_zero, world_size
from qkv.errors import FileError, is_memory_error
from qkv.models.weights import weights
from qkv.parts.state import State
from qkv.train.shard_files import Create, begin_writing, read_shards, whole_tensor
from qkv.train.state import Progress, Training

TENSORS, NUMBERS = "training.safetensors", "training.json"


def save(folder: Path, t: Training, finished: Callable[[], None] = lambda: None) -> None:
    """Write weights, optimiser, average, random numbers, carried states and progress into `folder`, which is renamed last.

    All workers must call it: each has its own random numbers and rows. Everything else is the same on all workers, and rank 0
    writes it; of a sharded network every worker writes its shards, while training continues. Rank 0 calls `finished` when the folder
    is complete.
    """
    if t.sharded:
        finish_saving(t)
    if rank() == 0:
        folder.parent.mkdir(parents=True, exist_ok=True)
        settle(folder.resolve())  # before the other workers write into it
    wait_for_rank_zero()
    tensors = {**state_tensors(t), **random_states(), **carried_states(t.carried)}
    groups = t.optimizer.state_dict()["param_groups"]
    numbers = {"progress": asdict(t.progress), "groups": groups, "words": t.words, "data": t.data}
    if t.sharded:
        t.sharded.saving = begin_writing(folder.resolve(), tensors, {NUMBERS: numbers}, t.sharded.group, finished)
    elif rank() == 0:
        with new_folder(folder) as new:
            write_tensors(new / TENSORS, tensors)
            write_json(new / NUMBERS, numbers)
            seal(new, (TENSORS, NUMBERS))
        finished()
    if not t.sharded:
        wait_for_rank_zero()


def finish_saving(t: Training) -> None:
    """Wait for the checkpoint that is being written, if any; FileError if it could not be written."""
    if t.sharded and t.sharded.saving:
        saving, t.sharded.saving = t.sharded.saving, None
        saving.wait()


def state_tensors(t: Training) -> dict[str, Tensor]:
    """Return the tensors that all workers share, or of which each has a shard."""
    stored = t.optimizer.state_dict()["state"]
    tensors = {f"optimizer.{i}.{name}": x for i, values in stored.items() for name, x in values.items()}
    tensors |= {f"weights.{name}": x for name, x in weights(t.network).items()}
    average = {} if t.average is None else dict(t.average.module.named_parameters())
    return tensors | {f"average.{name}": x.detach() for name, x in average.items()}


def load(folder: Path, t: Training) -> None:
    """Restore the state of training; `set_aside_damaged_checkpoints` has verified the files."""
    numbers = read_json(folder / NUMBERS)
    try:
        weights = dict(t.network.named_parameters())
        tensors = read_state(folder, lambda *entry: empty_like_state(t, weights, *entry), t.sharded is not None)
        random = {name: tensors.pop(name) for name in list(tensors) if name.startswith("random")}
        parts: dict[str, dict[str, Tensor]] = {"optimizer": {}, "weights": {}, "average": {}, "carried": {}}
        for key, x in tensors.items():
            part, _, name = key.partition(".")
            parts[part][name] = x
        put(t.network, parts["weights"], str(folder))
        groups = _groups(numbers["groups"])
        t.optimizer.load_state_dict({"state": _unflatten(parts["optimizer"]), "param_groups": groups})
        t.progress = progress_of(numbers["progress"])
        put_average(t, parts["average"])
        put_random_states(random, world_size() // t.sharded.model.replicas if t.sharded else 1)
        t.carried = own_states(parts["carried"], next(t.network.parameters()).device)
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, IndexError) as error:
        if is_memory_error(error):
            raise
        raise FileError(
            f"{folder} is not a checkpoint of this run ({error}): remove it, or train in another folder"
        ) from None


def read_state(folder: Path, create: Create = whole_tensor, divided: bool = False) -> dict[str, Tensor]:
    """Read the tensors of a checkpoint, from one file or from shards; `divided`: into shards, as `create` makes them."""
    if (folder / TENSORS).exists() and not divided:
        return read_tensors(folder / TENSORS)
    return read_shards(folder, create)


def empty_like_state(
    t: Training, weights: Mapping[str, Tensor], key: str, shape: torch.Size, dtype: torch.dtype
) -> Tensor:
    """Return a tensor to read an entry into: sharded like the parameter that it is or belongs to, or unsharded."""
    part, _, name = key.partition(".")
    like: Any = None
    if part == "optimizer":  # numbered as in Optimizer.state_dict
        learned = [p for group in t.optimizer.param_groups for p in group["params"]]
        like = learned[int(name.partition(".")[0])]
    elif part in ("weights", "average"):
        like = weights.get(name)
    if like is None or like.shape != shape:
        return whole_tensor(key, shape, dtype)
    return torch.empty_like(like.detach(), dtype=dtype)


def put_average(t: Training, stored: dict[str, Tensor]) -> None:
    """Restore the moving average; KeyError if the checkpoint has a different set of weights."""
    if t.average is None:
        return
    with torch.no_grad():
        for name, p in t.average.module.named_parameters():
            p.copy_(stored[name])
    t.average.n_averaged.fill_(t.progress.step + 1)


def progress_of(stored: dict[str, Any]) -> Progress:
    """From JSON, which has neither records nor tuples."""
    if stored.get("rules", 1) > Progress().rules:
        raise FileError("the run was begun by a newer version of qkv: update qkv")
    position, evaluated = Position(**stored["position"]), stored.get("evaluated", (stored["step"], 0.0, 0.0))
    return Progress(**{"rules": 1, **stored, "position": position, "evaluated": tuple(evaluated)})


def read_progress(folder: Path) -> Progress:
    """Read the progress of the run in a checkpoint; FileError if its file is invalid."""
    try:
        return progress_of(read_json(folder / NUMBERS)["progress"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FileError(
            f"{folder / NUMBERS} has no valid training progress ({error}): choose a new folder with --out NEW, "
            f"or remove {folder}"
        ) from None


def inputs_of(folder: Path) -> tuple[dict[str, str], dict[str, str]]:
    """The checksums of vocabulary and training data in a checkpoint; empty in those of older versions."""
    numbers = read_json(folder / NUMBERS)
    return numbers.get("words", {}), numbers.get("data", {})


def random_states() -> dict[str, Tensor]:
    """The random number generators of all workers, (world_size, n) bytes each."""
    states = {"random": all_gather(torch.get_rng_state())}
    if torch.cuda.is_available():
        states["random_cuda"] = all_gather(torch.cuda.get_rng_state())
    return states


def tensor_files(folder: Path) -> list[Path]:
    """The safetensors files of a checkpoint: one, or one per worker that has a shard."""
    return sorted(folder.glob("*.safetensors")) or [folder / TENSORS]


def workers_of(folder: Path) -> int:
    """How many workers wrote a checkpoint."""
    random = {name: entry for path in tensor_files(folder) for name, entry in read_headers(path).items()}.get("random")
    return 1 if random is None else random.shape[0]


def put_random_states(states: dict[str, Tensor], group: int = 1) -> None:
    """Restore each worker's state, or that of the first worker of its group; with another number of workers all are new."""
    if len(states["random"]) != world_size():
        return
    own = rank() - rank() % group
    torch.set_rng_state(states["random"][own].clone())
    if "random_cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["random_cuda"][own].clone())


def carried_states(carried: list[State]) -> dict[str, Tensor]:
    """What the rows of all workers carry over, (B, ...) for each micro-batch, layer and name."""
    return {
        f"carried.{number}.{layer}.{name}": gathered_rows(x)
        for number, state in enumerate(carried)
        for layer, kept in enumerate(state.layers)
        for name, x in kept.items()
    }


def gathered_rows(own: Tensor) -> Tensor:
    """The rows of all workers in the order of their batch, in which worker r has the rows r, r + world_size, ...: (b, ...) -> (B, ...)."""
    counts = all_gather(torch.tensor(len(own))).tolist()
    padded = own.new_zeros(max(counts), *own.shape[1:])  # messages of one size
    padded[: len(own)] = own
    found = all_gather(padded).transpose(0, 1).flatten(0, 1)  # (b, world_size, ...) -> (b * world_size, ...)
    return found[: sum(counts)].clone()


def own_states(flat: dict[str, Tensor], device: torch.device) -> list[State]:
    """{"0.1.hidden": (B, ...)} -> for each micro-batch the State of this worker's rows."""
    found: dict[int, dict[int, dict[str, Tensor]]] = {}
    for key, x in flat.items():
        number, layer, name = key.split(".")
        found.setdefault(int(number), {}).setdefault(int(layer), {})[name] = x[rank() :: world_size()].to(device)
    return [State(tuple(layers[i] for i in sorted(layers))) for _, layers in sorted(found.items())]


def all_of(run: Path) -> list[Path]:
    """The checkpoints of a run, the newest last."""
    found = [p for p in run.glob("checkpoint-*") if re.fullmatch(r"checkpoint-\d+", p.name)]
    return sorted(found, key=lambda p: int(p.name.partition("-")[2]))


def remove_old(run: Path, keep: int) -> None:
    """Delete interrupted checkpoints, and complete ones that are older than the newest `keep`."""
    for old in (*run.glob(".checkpoint-*"), *all_of(run)[:-keep]):
        shutil.rmtree(old, ignore_errors=True)


def newest(run: Path) -> Path | None:
    """The newest checkpoint of a run."""
    found = all_of(run)
    return found[-1] if found else None


def set_aside_damaged_checkpoints(run: Path, say: Callable[[str], None]) -> None:
    """Rename damaged checkpoints, from the newest down to the first intact one, so that `newest` is intact; report which.

    FileError if none is intact: starting over is the user's decision.
    """
    damaged: dict[Path, str] = {}
    for place in reversed(all_of(run)):
        if not (problem := damage(place)):
            for bad, reason in damaged.items():
                aside = bad.with_name(f"{bad.name}.damaged")
                shutil.rmtree(aside, ignore_errors=True)  # of an earlier time
                bad.rename(aside)
                say(f"warning: {reason}; renamed {bad.name}.damaged, continuing from {place.name}")
            return
        damaged[place] = problem
    if damaged:
        raise FileError(
            f"no checkpoint of {run} is intact: {'; '.join(damaged.values())}; remove them to start over, or start another run "
            f"from its best model with --set tune.start={run}"
        )


def damage(folder: Path) -> str:
    """Describe what is wrong with the files of a checkpoint; empty if nothing is."""
    try:
        verify(folder)
        if not (folder / TENSORS).exists() and not checksums(folder):  # a missing shard would not be noticed
            return f"{folder} lacks {TENSORS}, or {MARKER} with the checksums of its shards"
        for path in tensor_files(folder):
            read_headers(path)  # all that can be checked where there are no checksums
        read_json(folder / NUMBERS)
    except FileError as error:
        return str(error)
    return ""


def _unflatten(flat: dict[str, Tensor]) -> dict[int, dict[str, Tensor]]:
    """{"3.exp_avg": x} -> {3: {"exp_avg": x}}, as torch's optimisers have it."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, x in flat.items():
        index, _, name = key.partition(".")
        state.setdefault(int(index), {})[name] = x
    return state


def _groups(stored: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """From JSON, which has no tuples, for Adam's betas; the oldest checkpoints have no scale and no rows."""
    absent: dict[str, Any] = {"scale": 1.0, "rows": ()}  # added last: the next checkpoint has the order of this one
    return [
        {**group, "betas": tuple(group["betas"])} | {k: v for k, v in absent.items() if k not in group}
        for group in stored
    ]
