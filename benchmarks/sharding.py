"""Sharded training beside DistributedDataParallel: the same loss curve, and the memory of each worker.

    python benchmarks/sharding.py [--steps 100] [--out FOLDER]

trains a translator of the embedded grammar with every layout of 2 and 4 workers (torchrun, gloo), with micro-batches and odd last
batches, and prints the largest relative difference of the loss to one process and to DistributedDataParallel on as many workers, and the
bytes of weights and optimiser state that a worker has. Adam's eps is 1e-6: with 1e-9 it turns the rounding errors of gradients that are
zero (those of the keys' biases) into whole steps.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

LAYOUTS: dict[str, tuple[int, dict[str, object]]] = {
    "one process": (1, {}),
    "2 workers, DDP": (2, {}),
    "2 workers, full sharding": (2, {"sharding": "full"}),
    "2 workers, tensor parallel": (2, {"tensor_parallel": 2}),
    "4 workers, DDP": (4, {}),
    "4 workers, full sharding": (4, {"sharding": "full"}),
    "2 x 2 workers, DDP and tensor parallel": (4, {"tensor_parallel": 2}),
    "2 x 2 workers, full sharding and tensor parallel": (4, {"sharding": "full", "tensor_parallel": 2}),
}


def work(folder: Path, steps: int, fields: dict[str, object]) -> None:
    """Train as one worker; write what it holds to FOLDER.RANK.json."""
    import torch

    from qkv.config import DataConfig, ModelConfig, Recipe, TrainConfig
    from qkv.config.strict import validate
    from qkv.train.optimizer import local
    from qkv.train.report import Report
    from qkv.train.run import run

    torch.set_num_threads(1)
    model = ModelConfig(family="encoder-decoder", vocab_size=400, d_model=64, n_layers=2, n_heads=4, d_ff=256, tie="all",
                        norm_order="pre", embed_scale=True, dropout=0.0)  # fmt: skip
    data = validate(
        DataConfig, {"train": [{"grammar": 500}], "valid": {"grammar": 20}, "vocab_size": 400, "batch_tokens": 200}
    )
    train = TrainConfig(
        steps=steps,
        accumulate=2,
        warmup=20,
        learning_rate=5e-4,
        eps=1e-6,
        evaluate_every="50%",
        save_every="50%",
        **fields,
    )  # type: ignore[arg-type]
    t = run(Recipe(model=model, data=data, train=train), "", folder, Report(quiet=True), workers=None).training  # type: ignore[attr-defined]
    state = [x for values in t.optimizer.state.values() for x in values.values()]
    held = {name: sum(local(x).nbytes for x in found) for name, found in
            (("weights", [*t.network.parameters()]), ("optimizer", state))}  # fmt: skip
    folder.with_name(f"{folder.name}.{os.environ.get('RANK', 0)}.json").write_text(json.dumps(held))


def lines(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def difference(folder: Path, other: Path | None) -> float:
    """Return the largest relative difference of the loss of an update."""
    assert other is not None
    return max(abs(a["loss"] - b["loss"]) / b["loss"] for a, b in zip(lines(folder), lines(other), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work(Path(arguments.worker[0]), arguments.steps, json.loads(arguments.worker[1]))
        return
    out = arguments.out or Path(tempfile.mkdtemp())
    first = ddp = None
    print(
        f"{'layout':50} {'process':>9} {'DDP':>9} {'weights':>11} {'optimizer':>11}  (largest difference of the loss to; bytes)"
    )
    for name, (count, fields) in LAYOUTS.items():
        folder = out / name.replace(" ", "-").replace(",", "")
        start = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"]
        command = [*(start if count > 1 else [sys.executable]), __file__, f"--steps={arguments.steps}", "--worker", str(folder),
                   json.dumps(fields)]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        if done.returncode:
            sys.exit(done.stderr[-4000:])
        first, ddp = first or folder, folder if not fields else ddp
        held = [json.loads(path.read_text()) for path in sorted(out.glob(f"{folder.name}.*.json"))]
        most = {key: max(each[key] for each in held) for key in held[0]}
        print(f"{name:50} {difference(folder, first):9.1e} {difference(folder, ddp):9.1e} "
              f"{most['weights']:11,} {most['optimizer']:11,}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
