"""Networks that are divided among workers, their checkpoints, activation checkpointing, and batches that do not fit into memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from qkv.batch import Batch
from qkv.config import ModelConfig, TrainConfig, TuneConfig
from qkv.config.rules import impossible_training
from qkv.convert.files import read_tensors
from qkv.errors import ConfigError, QkvError
from qkv.models.build import build
from qkv.models.example import example
from qkv.objectives import objective
from qkv.parts.state import State
from qkv.train import checkpoint, loop
from qkv.train.estimate import activation_bytes
from qkv.train.memory_limit import join_rows, parts, rows_of
from qkv.train.report import Report
from qkv.train.sharding import replace_parameters, without_values
from qkv.train.step import LossModule, gradients
from tests.sharded import Start, divided, losses, newest, same_files, small_memory, two_workers
from tests.test_recurrent_lm import shakes
from tests.test_train import recipe, run


@pytest.fixture(scope="module")
def workers() -> Iterator[Start]:
    """Two processes that serve all tests."""
    with two_workers() as together:
        yield together


# --- sharded training


@pytest.mark.parametrize(("layout", "optimizer"), [({"sharding": "full"}, "muon"), ({"tensor_parallel": 2}, "adamw")])
def test_shards_learn_what_a_whole_network_learns(
    layout: dict[str, Any], optimizer: str, workers: Start, tmp_path: Path
) -> None:
    """With accumulation, clipping, and a moving average, which is evaluated and kept."""
    r = divided(accumulate=2, clip=0.5, optimizer=optimizer)
    (_, one), (_, other) = workers(tmp_path / "shards", r.changed(train=r.train.changed(**layout)))
    t = run(tmp_path / "whole", r).training
    assert losses(tmp_path / "shards") == pytest.approx(losses(tmp_path / "whole"), rel=1e-5)
    kept, expected = (read_tensors(tmp_path / name / "best") for name in ("shards", "whole"))
    assert kept.keys() == expected.keys()
    for name in expected:
        if not name.endswith("key.bias"):  # its gradient is 0 but for rounding, which Adam magnifies
            torch.testing.assert_close(kept[name], expected[name], atol=1e-5, rtol=1e-4)
    state = [x for values in t.optimizer.state.values() for x in values.values()]
    whole = sum(x.nbytes for x in (*t.network.parameters(), *state))
    assert max(one, other) < 0.65 * whole  # all is halved, or with tensor parallelism the matrices of the layers


def test_sharded_runs_resume_exactly_and_fall_back_from_a_damaged_shard(workers: Start, tmp_path: Path) -> None:
    r = divided(dropout=0.2, sharding="full", keep=2)
    workers(tmp_path / "whole", r)
    (first, _), (second, _) = workers(tmp_path / "parts", r, "signal")
    assert {first, second} == {"done"} and newest(tmp_path / "parts").name == "checkpoint-0000003"
    workers(tmp_path / "parts", r)
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")
    same_files(newest(tmp_path / "parts"), newest(tmp_path / "whole"))
    shard = sorted(newest(tmp_path / "parts").glob("*.safetensors"))[-1]
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    workers(tmp_path / "parts", r)
    assert newest(tmp_path / "parts").with_name("checkpoint-0000006.damaged").exists()
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")
    same_files(newest(tmp_path / "parts"), newest(tmp_path / "whole"))


def test_a_checkpoint_is_continued_in_any_layout(workers: Start, tmp_path: Path) -> None:
    """Two workers with shards, one with the whole network, two that divide the layers: the curve of one process."""
    run(tmp_path / "one", divided())
    workers(tmp_path / "many", divided(steps=2, sharding="full"))
    assert len(list(newest(tmp_path / "many").glob("*.safetensors"))) == 2
    run(tmp_path / "many", divided(steps=4))
    assert (newest(tmp_path / "many") / checkpoint.TENSORS).exists()
    workers(tmp_path / "many", divided(steps=6, tensor_parallel=2))
    assert losses(tmp_path / "many") == pytest.approx(losses(tmp_path / "one"), rel=1e-5)


def test_a_full_disk_leaves_the_checkpoint_before(workers: Start, tmp_path: Path) -> None:
    said = workers(tmp_path / "run", divided(sharding="full"), "full disk")
    for message, _ in said:
        assert "cannot write" in message and "File too large" in message and "\n" not in message
    assert newest(tmp_path / "run").name == "checkpoint-0000002" and checkpoint.damage(newest(tmp_path / "run")) == ""
    assert not list((tmp_path / "run").glob(".checkpoint*"))
    workers(tmp_path / "run", divided(sharding="full"))
    run(tmp_path / "one", divided())
    assert losses(tmp_path / "run") == pytest.approx(losses(tmp_path / "one"), rel=1e-5)


DECODER: dict[str, Any] = {
    "family": "decoder",
    "vocab_size": 30,
    "d_model": 16,
    "n_layers": 2,
    "n_heads": 4,
    "d_ff": 32,
}


@pytest.mark.parametrize(("model", "train", "reason"), [
    ({"recurrent": "lstm", "position": "none"}, {"sharding": "full"}, "recurrent = 'lstm'"),
    ({"recurrent": "lstm", "position": "none"}, {"activation_checkpointing": True}, "recurrent = 'lstm'"),
    ({}, {"sharding": "full", "compile": True}, "train.compile"),
    ({}, {"tensor_parallel": 3}, "n_heads = 4"),
    ({"n_kv_heads": 1}, {"tensor_parallel": 2}, "n_kv_heads = 1"),
    ({"position": "alibi"}, {"tensor_parallel": 2}, "'alibi'"),
    ({"position": "t5"}, {"tensor_parallel": 2}, "'t5'"),
    ({"mixer": ["softmax", "s4d"]}, {"tensor_parallel": 2}, "'s4d'"),
    ({"score": "bilinear"}, {"tensor_parallel": 2}, "'bilinear'"),
    ({"n_experts": 2}, {"tensor_parallel": 2}, "n_experts = 2"),
    ({}, {"tensor_parallel": 2, "workers": 3}, "train.workers = 3"),
])  # fmt: skip
def test_what_cannot_be_divided_is_refused(model: dict[str, Any], train: dict[str, Any], reason: str) -> None:
    (message,) = impossible_training(ModelConfig(**{**DECODER, **model}), TrainConfig(**train))
    assert reason in message


def test_what_can_be_divided_is_not_refused() -> None:
    sharded, divided = TrainConfig(sharding="full"), TrainConfig(tensor_parallel=2)
    for fields in ({"position": "alibi"}, {"mixer": ["selective"]}, {"n_experts": 2}):
        assert impossible_training(ModelConfig(**{**DECODER, **fields}), sharded) == []
    for fields in ({"position": "rotary", "feedforward": "swiglu", "n_kv_heads": 2}, {"mixer": ["window", "softmax"]}):
        assert impossible_training(ModelConfig(**{**DECODER, **fields}), divided) == []
    assert impossible_training(ModelConfig(**DECODER), divided, adapts=True) != []


def test_a_single_process_cannot_divide_layers() -> None:
    with pytest.raises(ConfigError, match="does not divide the number of workers, 1"):
        loop.prepare(build(ModelConfig(**DECODER)), TrainConfig(tensor_parallel=2))


def test_a_copy_without_values_keeps_ties_and_computes_with_values_again() -> None:
    network = build(recipe().model).eval()
    skeleton = without_values(network)
    assert all(p.is_meta for p in skeleton.parameters()) and skeleton.head.weight is skeleton.target.tokens.weight
    again = replace_parameters(skeleton, dict(network.named_parameters()))
    batch = example(recipe().model, 3)
    assert torch.equal(again(batch).logits, network(batch).logits)


# --- activation checkpointing


def test_recomputed_blocks_have_the_same_gradient_with_dropout() -> None:
    c = recipe(dropout=0.2).model.changed(n_layers=3)
    found, batch = {}, example(c, 4)
    for again in (False, True):
        torch.manual_seed(1)
        t = loop.prepare(build(c), TrainConfig(activation_checkpointing=again), TuneConfig())
        loss = gradients(LossModule(t.network.train(), objective(c)), [batch])
        found[again] = (
            loss.sum,
            [p.grad for p in t.network.parameters()],
            activation_bytes(t.network, objective(c), batch),
        )
    assert torch.equal(found[False][0], found[True][0])
    for a, b in zip(found[False][1], found[True][1], strict=True):
        torch.testing.assert_close(a, b, atol=1e-7, rtol=1e-6)
    assert found[True][2] < 0.7 * found[False][2]


# --- batches that do not fit into memory


def test_parts_hold_every_row_once() -> None:
    batch = Batch(inputs=torch.arange(60).view(10, 6))
    for limit in (1, 5, 6, 7, 12, 13, 30, 59, 60, 61):
        found = [batch.rows(cut) for cut in parts(batch, limit)]
        assert torch.equal(torch.cat([part.inputs for part in found]), batch.inputs)
        assert max(part.size for part in found) == (10 if limit >= 60 else max(1, limit // 6))
    state = State(({"hidden": torch.arange(10)}, {"hidden": torch.arange(20).view(10, 2)}))
    again = join_rows([rows_of(state, cut) for cut in parts(batch, 18)])
    assert all(torch.equal(a["hidden"], b["hidden"]) for a, b in zip(again.layers, state.layers, strict=True))


@pytest.mark.parametrize("error", [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), MemoryError(),
    RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"), RuntimeError("std::bad_alloc"),
], ids=["cuda", "python", "cpu", "c++"])  # fmt: skip
def test_a_batch_that_does_not_fit_has_the_same_gradient(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    c = recipe(dropout=0.0).model
    network, batches = build(c), [example(c, 9), example(c, 5)]
    expected = gradients(LossModule(network, objective(c)), batches)
    whole = [p.grad for p in network.parameters()]
    monkeypatch.setattr(LossModule, "forward", small_memory(3, error))
    module = LossModule(network, objective(c))
    random = torch.get_rng_state()
    found = gradients(module, batches)
    assert found.sum.item() == pytest.approx(expected.sum.item(), rel=1e-6) and found.count == expected.count
    for p, grad in zip(network.parameters(), whole, strict=True):
        torch.testing.assert_close(p.grad, grad, atol=1e-6, rtol=1e-6)
    # 9 and 4 rows failed; the last attempt, in parts of 2 rows, began with the same random numbers
    after = torch.get_rng_state()
    torch.set_rng_state(random)
    for _ in range(5 + 3):
        torch.rand(1)
    assert torch.equal(torch.get_rng_state(), after)


def test_memory_may_run_out_in_the_backward_pass() -> None:
    """Some parameters have a part of their gradient by then."""

    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, dy: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            if len(dy) > 2:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return dy

    c = recipe(dropout=0.0).model
    network, batch = build(c), example(c, 7)
    gradients(LossModule(network, objective(c)), [batch])
    whole = [p.grad for p in network.parameters()]
    network.encoder.blocks[0].register_forward_hook(lambda _, __, out: (Fails.apply(out[0]), out[1]))
    gradients(LossModule(network, objective(c)), [batch])
    for p, grad in zip(network.parameters(), whole, strict=True):
        torch.testing.assert_close(p.grad, grad, atol=1e-6, rtol=1e-6)


def test_a_row_that_does_not_fit_is_an_error_and_other_errors_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    c = recipe().model
    for error, message in (
        (MemoryError(), "1 row of .* tokens do not fit into memory: lower"),
        (RuntimeError("x"), "^x$"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(LossModule, "forward", small_memory(0, error))
            with pytest.raises((QkvError, RuntimeError), match=message):
                gradients(LossModule(build(c), objective(c)), [example(c, 4)])


@pytest.mark.parametrize("carries", [False, True])
def test_a_run_in_parts_has_the_same_curve(carries: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Carried states stay with their rows; the user is told once."""
    r = shakes(5) if carries else divided()
    r = r.changed(model=r.model.changed(dropout=0.0))
    run(tmp_path / "whole", r)
    said: list[str] = []
    monkeypatch.setattr(LossModule, "forward", small_memory(2))
    monkeypatch.setattr(Report, "say", lambda self, line: said.append(line))
    run(tmp_path / "parts", r)
    assert losses(tmp_path / "parts") == pytest.approx(losses(tmp_path / "whole"), rel=1e-5)
    assert len([line for line in said if "did not fit into memory" in line]) >= 1


def test_a_worker_with_less_memory_splits_its_own_rows(workers: Start, tmp_path: Path) -> None:
    workers(tmp_path / "two", divided(), "memory")
    run(tmp_path / "one", divided())
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-5)


def test_sharded_workers_do_not_compute_a_part_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """They compute every layer together: one cannot begin again alone."""
    c = recipe().model
    module = LossModule(build(c), objective(c))
    module.sharded = True
    monkeypatch.setattr(LossModule, "forward", small_memory(3))
    with pytest.raises(QkvError, match=r"4 rows of .* tokens do not fit into memory: lower data.batch_tokens"):
        gradients(module, [example(c, 4)])
    assert module.limit == 0
