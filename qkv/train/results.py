"""Results of a run: the best weights scored once on the test set, and all numbers in results.json.

results.json           what was learned from, how long it took, the scores with their signatures
test.*                 the test set and what the model makes of it; the task says in which files
"""

from __future__ import annotations

import hashlib
import os
import platform
from typing import TYPE_CHECKING, Any

import torch

import qkv
from qkv.convert import folder as ours
from qkv.convert.files import read_json, read_tensors, write_json
from qkv.convert.manifest import sha256, verify
from qkv.data.batching import Position
from qkv.errors import ConfigError, FileError
from qkv.evaluate.class_report import compact_report
from qkv.models.build import Network
from qkv.train.report import Report

if TYPE_CHECKING:
    from qkv.train.run import Run

FILE = "results.json"


def finish(r: Run, report: Report) -> dict[str, Any]:
    """The results of a run that has ended: those in its folder, if they are of these weights, or else made now."""
    if not (r.folder / "best").is_dir():
        if step := r.training.progress.best_step:
            raise FileError(
                f"{r.folder} lacks best/, the model of update {step}: put it back, or start a new run with --out NEW"
            )
        raise ConfigError(
            f"{r.folder} ends here ({r.why}) and has never been evaluated: raise train.steps or the time budget"
        )
    place, key = r.folder / FILE, fingerprint(r)
    if place.exists() and (found := read_json(place)).get("fingerprint") == key:
        return found
    progress, task = r.training.progress, r.task
    network, best = r.task.kept(r.training.network), best_network(r)
    results = {
        "fingerprint": key,
        "task": r.recipe.task,
        "training": training(r, report),
        "data": counts(r),
        "model": {"parameters": sum(p.numel() for p in network.parameters()), "family": r.config.family},
        "valid": {"examples": len(task.valid), "how": task.how, "metric": task.metric,
                  "value": abs(progress.best) if task.metric == "loss" else progress.best, "update": progress.best_step},
        "extra_valid": {name: {"examples": len(one.valid), "how": one.how, "metric": one.metric, "scores": one.evaluate(best)}
                        for name, one in task.extra.items()},
        "test": with_compact_report(task.test(best, r.folder, report.say)),
        "baseline": task.baseline(),
    }  # fmt: skip
    write_json(place, results)  # the last: who is stopped before does it again
    return results


def with_compact_report(test: dict[str, Any] | None) -> dict[str, Any] | None:
    """Shorten the report of a test with many classes; `qkv evaluate RUN` prints all of it."""
    return {**test, "report": compact_report(test["report"])} if test is not None and "report" in test else test


def fingerprint(r: Run) -> str:
    """Fingerprint of the best weights and of all settings that affect their scores."""
    weights = sha256(r.folder / "best" / "model.safetensors")
    told = sorted(r.recipe.decode.model_fields_set)  # a limit that is set explicitly differs from the default
    return hashlib.sha256(f"{weights} {told} {r.recipe.model_dump_json()}".encode()).hexdigest()


def best_network(r: Run) -> Network:
    """The network with the weights in best/, where the run's own is."""
    best = r.folder / "best"
    verify(best, "model.safetensors")
    device = next(r.training.network.parameters()).device
    return ours.fill(r.config, read_tensors(best), str(best)).to(device)


# --- what was done


def training(r: Run, report: Report) -> dict[str, Any]:
    progress, c = r.training.progress, r.recipe.train
    rate = {"target_tokens_per_second": round(report.pace.mean_rate)} if report.pace.tokens else {}
    return {
        "ended": r.why, "updates": progress.step, "epochs": int(progress.position.passes), "minutes": progress.seconds / 60,
        **rate, "seed": c.seed, "warmup": progress.warmup, "workers": r.workers,
        "threads": 1 if r.workers > 1 else torch.get_num_threads(), "cores": os.cpu_count(), "qkv": qkv.__version__,
        "torch": str(torch.__version__), "python": platform.python_version(),
    }  # fmt: skip


def counts(r: Run) -> dict[str, Any]:
    """Examples learned from and dropped. Exact where the corpus fits into a pool; of a larger one, what this process read."""
    batches, task = r.task.batches, r.task
    if batches.kept is None and not task.read:  # the run had ended before: look again
        batches.position = Position()
        batches.read_pool()
    lost = task.dropped + batches.source.skipped
    whole = {"examples": len(batches.kept)} if batches.kept is not None else {"examples_read": task.read}
    return {**whole, "dropped": dict(lost.most_common())}
