"""Ways to train that must come to the same: several workers, other optimisers, half precision, averaged checkpoints."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import qkv
from qkv.config import TrainConfig
from qkv.convert.files import read_tensors
from qkv.errors import FileError
from qkv.train import checkpoint
from qkv.train import run as training
from qkv.train.average import average_run
from qkv.train.optimizer import optimizer, orthogonal
from qkv.train.report import Report
from tests.test_train import Killed, contents, recipe, run, same

TOML = """
[model]
family = "encoder-decoder"
d_model = 32
n_layers = 1
n_heads = 2
d_ff = 64
norm_order = "pre"
tie = "all"
dropout = {dropout}

[data]
train = [{{ grammar = 80 }}]
valid = {{ grammar = 4 }}
vocab_size = 200
batch_tokens = 150

[train]
steps = {steps}
accumulate = {accumulate}
evaluate_every = 4
save_every = 4
warmup = 2
"""


# --- several workers


def trained(folder: Path, name: str, out: str, workers: int) -> list[str]:
    """`qkv train` in so many processes, each told what torchrun would tell it; what went wrong in those that failed."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    command = [sys.executable, "-m", "qkv", "train", name, "--out", out, "--threads", "1"]
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(workers), "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(command, cwd=folder, env={**os.environ, **where, "RANK": str(rank)}, text=True, stderr=subprocess.PIPE)
        for rank in range(workers)
    ]  # fmt: skip
    errors = [p.communicate(timeout=120)[1] for p in processes]
    return [error for p, error in zip(processes, errors, strict=True) if p.returncode]


def log(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def test_two_workers_learn_what_one_learns_from_twice_the_batches(tmp_path: Path) -> None:
    """Each takes every second batch, so two workers do in a step what one does when it accumulates two batches."""
    (tmp_path / "two.toml").write_text(TOML.format(dropout=0.0, steps=8, accumulate=1))
    (tmp_path / "one.toml").write_text(TOML.format(dropout=0.0, steps=8, accumulate=2))
    for name, workers in (("two", 2), ("one", 1)):
        assert not trained(tmp_path, f"{name}.toml", name, workers)
    two, one = log(tmp_path / "two"), log(tmp_path / "one")
    assert [line["step"] for line in two] == [line["step"] for line in one] == list(range(1, 9))
    assert [line["loss"] for line in two] == pytest.approx([line["loss"] for line in one], rel=1e-4)


def test_two_workers_resume_exactly(tmp_path: Path) -> None:
    """With dropout: each worker's random numbers go on where they were."""
    (tmp_path / "short.toml").write_text(TOML.format(dropout=0.2, steps=4, accumulate=1) + 'schedule = "constant"\n')
    (tmp_path / "long.toml").write_text(TOML.format(dropout=0.2, steps=8, accumulate=1) + 'schedule = "constant"\n')
    assert not trained(tmp_path, "long.toml", "whole", 2)
    assert not trained(tmp_path, "short.toml", "parts", 2)
    (tmp_path / "parts" / "recipe.toml").write_text((tmp_path / "long.toml").read_text())  # the same run, going on
    assert not trained(tmp_path, "long.toml", "parts", 2)
    same(contents(tmp_path / "whole"), contents(tmp_path / "parts"))


def test_another_number_of_workers_does_not_go_on(tmp_path: Path) -> None:
    run(tmp_path / "run", recipe(steps=3))
    last = checkpoint.newest(tmp_path / "run")
    assert last is not None
    states = torch.stack([torch.get_rng_state()] * 2)
    with pytest.raises(FileError, match="2 workers"):
        checkpoint.put_random_states({"random": states}, last)


# --- Muon


def test_an_orthogonal_step_keeps_the_directions_and_evens_out_their_lengths() -> None:
    for shape in ((3, 20, 30), (2, 30, 20), (1, 16, 16)):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
        u, _, vt = torch.linalg.svd(x, full_matrices=False)
        inner = u.mT @ orthogonal(x) @ vt.mT  # (N, r, r): nearly diagonal, all lengths alike
        lengths = inner.diagonal(dim1=1, dim2=2)
        assert lengths.min() > 0.4 and lengths.max() < 1.3
        assert (inner - torch.diag_embed(lengths)).abs().max() < 1e-3


def test_muon_moves_the_matrices_of_the_blocks_and_adam_the_rest() -> None:
    network = nn.ModuleDict({"words": nn.Embedding(7, 8), "inner": nn.Linear(8, 8)})
    o = optimizer(network, TrainConfig(optimizer="muon", learning_rate=0.1))
    before = network["inner"].weight.detach().clone()
    (network["inner"](network["words"](torch.arange(7))) ** 2).sum().backward()
    assert network["inner"].weight.grad is not None
    wanted = orthogonal(network["inner"].weight.grad[None])[0]  # the first momentum has the gradient's direction
    o.step()
    step = (network["inner"].weight - before).detach() / (-0.1 * 0.2 * 8**0.5)
    torch.testing.assert_close(step, wanted, atol=1e-4, rtol=1e-4)
    kinds = {name: set(o.state[p]) for name, p in network.named_parameters()}
    assert kinds["inner.weight"] == {"momentum", "step"}
    assert kinds["words.weight"] == kinds["inner.bias"] == {"step", "exp_avg", "exp_avg_sq"}


def test_muon_resumes_exactly(tmp_path: Path) -> None:
    r = recipe(optimizer="muon", schedule="constant")
    run(tmp_path / "whole", r)
    with pytest.raises(Killed):
        run(tmp_path / "parts", r, die_at=8)
    run(tmp_path / "parts", r)
    same(contents(tmp_path / "whole"), contents(tmp_path / "parts"))


@pytest.mark.parametrize("way", [{"optimizer": "muon"}, {"precision": "bfloat16"}])
def test_it_learns_in_other_ways_too(way: dict[str, str], tmp_path: Path) -> None:
    run(tmp_path / "run", recipe(steps=40, learning_rate=1e-2, evaluate_every=40, save_every=40, **way))
    losses = [line["loss"] for line in log(tmp_path / "run")]
    assert sum(losses[-5:]) < 0.9 * sum(losses[:5])
    assert {x.dtype for x in read_tensors(tmp_path / "run" / "best").values()} == {torch.float32}


# --- averages


def test_an_averaged_model_has_the_mean_of_the_kept_checkpoints(tmp_path: Path) -> None:
    r = recipe(keep=3)
    training.run(r, "recipe", tmp_path / "run", Report(quiet=True))
    chosen = average_run(tmp_path / "run", tmp_path / "mean", 3)
    assert [c.name for c in chosen] == ["checkpoint-0000006", "checkpoint-0000009", "checkpoint-0000012"]
    stored = [read_tensors(c / checkpoint.TENSORS) for c in chosen]
    for name, x in read_tensors(tmp_path / "mean").items():
        torch.testing.assert_close(x, sum(s[f"weights.{name}"] for s in stored) / 3)
    assert len(qkv.load(tmp_path / "mean").translate(["a man sleeps ."])) == 1


def test_too_few_checkpoints_to_average_are_said(tmp_path: Path) -> None:
    run(tmp_path / "run", recipe(steps=3))
    with pytest.raises(FileError, match=r"train\.keep=2"):
        average_run(tmp_path / "run", tmp_path / "mean", 2)
