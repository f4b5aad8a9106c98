"""Ways to train that must come to the same: several workers, other optimisers, half precision, averaged checkpoints."""

from __future__ import annotations

import io
import json
import math
import multiprocessing
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from rich.console import Console
from torch import nn

import qkv
from qkv.config import ModelConfig, Recipe, TrainConfig, TuneConfig, load_recipe
from qkv.convert.files import read_tensors
from qkv.errors import FileError, QkvError
from qkv.models.build import build
from qkv.recipes import find
from qkv.train import checkpoint, launch, loop, lora
from qkv.train import run as training
from qkv.train.average import average_run
from qkv.train.checkpoint import Training
from qkv.train.optimizer import make_optimizer, orthogonalise
from qkv.train.report import Report
from tests.test_recurrent_lm import shakes
from tests.test_train import Killed, contents, recipe, run, same

# --- several workers


@pytest.fixture(scope="module")
def workers() -> Iterator[Callable[..., list[tuple[str, int]]]]:
    """Two processes that train together and serve all tests."""
    with two_workers() as together:
        yield together


@contextmanager
def two_workers() -> Iterator[Callable[..., list[tuple[str, int]]]]:
    """Two new processes, each told what torchrun would tell it: what `worker` returns in both.

    They are forked from one that has read torch already. As under torchrun, the store is held by the process that starts them.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["qkv.train.run"])
    with ProcessPoolExecutor(2, mp_context=context) as pool:

        def together(folder: Path, r: Recipe, event: str = "") -> list[tuple[str, int]]:
            store = dist.TCPStore("127.0.0.1", 0, 2, is_master=True, wait_for_workers=False)
            jobs = [pool.submit(worker, rank, store.port, folder, r, event) for rank in (0, 1)]
            return [job.result() for job in jobs]

        yield together


def worker(rank: int, port: int, folder: Path, r: Recipe, event: str) -> tuple[str, int]:
    """Why training ended, and how many tokens were counted; `event` happens to the second worker, in its third update."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE="2", RANK=str(rank),
                      TORCHELASTIC_USE_AGENT_STORE="True")  # fmt: skip
    torch.set_num_threads(1)
    original, report = loop.one_update, Report(quiet=True)

    def one_update(t: Training, *rest: Any) -> Any:
        if rank == 1 and t.progress.step == 2:
            if event == "signal":
                os.kill(os.getpid(), signal.SIGTERM)
            if event == "not finite":
                torch.nn.init.constant_(next(t.network.parameters()), math.nan)
            if event == "gone":
                raise QkvError("no more")
        return original(t, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "one_update", one_update)
        try:
            done = training.run(r, "recipe", folder, report)
            return f"{done.why} ({done.ending.signal})", report.pace.tokens
        except QkvError as error:
            return str(error), report.pace.tokens


def log(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_two_workers_learn_what_one_learns(optimizer: str, workers: Callable, tmp_path: Path) -> None:
    """Each computes its own rows of every batch; with accumulation, and batches of a single row."""
    r = recipe(pairs=200, dropout=0.0, steps=30, accumulate=2, evaluate_every=15, save_every=15, learning_rate=1e-3,
               optimizer=optimizer)  # fmt: skip
    r = r.changed(data=r.data.changed(batch_tokens=40))
    (why, tokens), _ = workers(tmp_path / "two", r)
    report = Report(quiet=True)
    training.run(r, "recipe", tmp_path / "one", report)
    two, one = log(tmp_path / "two"), log(tmp_path / "one")
    assert why == "all updates are done (0)" and tokens == report.pace.tokens  # the speed is that of both
    assert [line["step"] for line in two] == [line["step"] for line in one] == list(range(1, 31))
    assert [line["loss"] for line in two] == pytest.approx([line["loss"] for line in one], rel=1e-5)


def test_two_workers_stopped_by_a_signal_to_one_resume_exactly(workers: Callable, tmp_path: Path) -> None:
    """With dropout: each worker's random numbers go on where they were."""
    r = recipe(dropout=0.2, steps=8)
    workers(tmp_path / "whole", r)
    (first, _), (second, _) = workers(tmp_path / "parts", r, "signal")
    assert "stopped by SIGTERM to another worker" in first and "stopped by SIGTERM;" in second
    assert first.endswith("(15)") and second.endswith("(15)")  # the exit code of both is 143
    assert checkpoint.newest(tmp_path / "parts") == tmp_path / "parts" / "checkpoint-0000003"
    workers(tmp_path / "parts", r)
    same(contents(tmp_path / "whole"), contents(tmp_path / "parts"))


def test_two_workers_carry_the_states_of_their_own_rows(workers: Callable, tmp_path: Path) -> None:
    """What one worker carries for all rows; and stopped and resumed, each has its own again."""
    r = shakes(6)
    workers(tmp_path / "two", r)
    training.run(r, "recipe", tmp_path / "one", Report(quiet=True))
    two, one = log(tmp_path / "two"), log(tmp_path / "one")
    assert [line["loss"] for line in two] == pytest.approx([line["loss"] for line in one], rel=1e-4)
    workers(tmp_path / "parts", r, "signal")
    workers(tmp_path / "parts", r)
    same(contents(tmp_path / "two"), contents(tmp_path / "parts"))


@pytest.mark.parametrize(
    ("event", "first", "second"),
    [
        ("not finite", "the loss of another worker is nan", "the loss of micro-batch 0 is nan"),
        ("gone", "another worker has ended", "no more"),
    ],
)
def test_what_ends_one_worker_ends_both(event: str, first: str, second: str, tmp_path: Path) -> None:
    """In their first group too, whose connections close although the process lives on."""
    with two_workers() as together:
        said = together(tmp_path / "run", recipe(), event)
    assert first in said[0][0] and second in said[1][0]
    assert [line["step"] for line in log(tmp_path / "run")] == [1, 2]


def test_a_run_continues_with_another_number_of_workers(workers: Callable, tmp_path: Path) -> None:
    """Without dropout its losses are those of a run that never changed; what it says is one line."""
    r = recipe(dropout=0.0, steps=8)
    training.run(r, "recipe", tmp_path / "whole", Report(quiet=True))
    run(tmp_path / "parts", r.changed(train=r.train.changed(steps=3)))
    workers(tmp_path / "parts", r, "signal")
    said = io.StringIO()
    training.run(r, "recipe", tmp_path / "parts", Report(Console(file=said)))
    losses = [[line["loss"] for line in log(tmp_path / name)] for name in ("whole", "parts")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert said.getvalue().count("continuing with 1 workers instead of 2") == 1


# --- workers that `qkv train` starts

SETTINGS = ["data.train=[{ grammar = 80 }]", "data.valid={ grammar = 4 }", "data.test={ grammar = 4 }", "data.vocab_size=200",
            "data.batch_tokens=200", "model.d_model=16", "model.n_layers=1", "model.dropout=0.1", "train.save_every=3",
            "train.evaluate_every=4", "train.keep=2"]  # fmt: skip


def command(folder: Path, *more: str, steps: int = 8) -> list[str]:
    settings = [word for s in (*SETTINGS, f"train.steps={steps}") for word in ("--set", s)]
    return [sys.executable, "-m", "qkv", "train", "demo", "--out", str(folder), *settings, *more]


def children_of(pid: int) -> list[int]:
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two workers that nothing happens to."""
    folder = tmp_path_factory.mktemp("workers") / "whole"
    done = subprocess.run(command(folder, "--workers", "2"), check=True, capture_output=True, text=True)
    assert "2 workers with a thread each share every batch" in done.stderr
    assert "best validation BLEU" in done.stdout and "qkv translate" in done.stdout
    results = json.loads((folder / "results.json").read_text())["training"]
    assert results["workers"] == 2 and results["threads"] == 1
    return folder


def test_two_workers_continue_from_the_newest_good_checkpoint(undisturbed: Path, tmp_path: Path) -> None:
    shutil.copytree(undisturbed, tmp_path / "run")
    for path in (tmp_path / "run" / "checkpoint-0000008").iterdir():
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    done = subprocess.run(command(tmp_path / "run"), check=True, capture_output=True, text=True)
    assert "renamed checkpoint-0000008.damaged, continuing from checkpoint-0000006" in done.stderr
    assert "2 workers with a thread each share every batch" in done.stderr
    same(contents(undisturbed), contents(tmp_path / "run"))


def test_workers_started_from_a_thread_report_where_python_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a notebook, whose messages are not on the process's own stderr."""
    said = io.StringIO()
    monkeypatch.setattr(sys, "stderr", said)
    with ThreadPoolExecutor(1) as pool:
        r = load_recipe(find("demo"), [*SETTINGS, "train.steps=2"])
        done = pool.submit(training.run, r, "recipe", tmp_path / "run", Report(), 2).result()
    assert done.why == "all updates are done" and done.results and done.progress.step == 2
    assert "2 workers with a thread each share every batch" in said.getvalue()


@contextmanager
def started(folder: Path, *more: str, steps: int = 8) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A command with two workers that has written a checkpoint, and its workers."""
    process = subprocess.Popen(command(folder, "--workers", "2", *more, steps=steps), stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE, text=True, start_new_session=True)  # fmt: skip
    while checkpoint.newest(folder) is None and process.poll() is None:
        time.sleep(0.01)
    with process:
        yield process, children_of(process.pid)


def wait_for_end_of(processes: list[int]) -> None:
    while any(Path(f"/proc/{pid}").exists() for pid in processes):
        time.sleep(0.01)


def test_workers_end_with_the_agent_and_the_same_command_resumes_exactly(undisturbed: Path, tmp_path: Path) -> None:
    with started(tmp_path / "run") as (process, children):
        process.kill()
    assert len(children) == 2
    wait_for_end_of(children)
    done = subprocess.run(command(tmp_path / "run"), capture_output=True, text=True)  # its checkpoint says how many
    assert "2 workers with a thread each share every batch" in done.stderr
    same(contents(undisturbed), contents(tmp_path / "run"))


def test_a_lost_worker_is_replaced_and_the_run_ends_in_the_same_bits(undisturbed: Path, tmp_path: Path) -> None:
    """The first one, which writes; benchmarks/distributed.py kills others, at random moments."""
    with started(tmp_path / "run") as (process, children):
        os.kill(children[0], signal.SIGKILL)
        said = process.communicate()[1]
    assert process.returncode == 0, said
    assert "worker 0 was ended by SIGKILL: restarting all workers (1 of 3)" in said
    same(contents(undisturbed), contents(tmp_path / "run"))


def test_a_worker_that_is_lost_once_too_often_is_reported_in_one_line(tmp_path: Path) -> None:
    with started(tmp_path / "run", "--max-restarts", "0", steps=100_000) as (process, children):
        os.kill(children[1], signal.SIGKILL)
        said = process.communicate()[1].splitlines()
    assert process.returncode == 75 and said[-1].startswith(
        "error: worker 1 was ended by SIGKILL; run the same command"
    )
    assert sum("error" in line for line in said) == 1


@pytest.mark.parametrize(("change", "room", "problem"), [
    ("data.valid={ files = ['no', 'no'] }", 10**9, "no"), ("train.seed=1", 200_000, "File too large"),
], ids=["no data", "no room"])  # fmt: skip
def test_an_error_of_a_worker_is_reported_once_and_not_tried_again(
    change: str, room: int, problem: str, tmp_path: Path
) -> None:
    done = subprocess.run(command(tmp_path / "run", "--workers", "2", "--set", change), capture_output=True, text=True,
                          preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (room, room)))  # fmt: skip
    assert done.returncode == 2 and "restarting" not in done.stderr and "Traceback" not in done.stderr
    assert [line for line in done.stderr.splitlines() if "error" in line] == [done.stderr.splitlines()[-1]]
    assert problem in done.stderr


def test_one_interrupt_ends_all_workers_with_the_shells_code(tmp_path: Path) -> None:
    """Ctrl-C reaches the agent alone, which passes it on; what was learned is in a checkpoint."""
    with started(tmp_path / "run", steps=100_000) as (process, children):
        os.killpg(process.pid, signal.SIGINT)
        said = process.communicate()[1]
    assert process.returncode == 130, said
    assert "Traceback" not in said and "stopped by SIGINT; run the same command again" in said
    last = checkpoint.newest(tmp_path / "run")
    assert last is not None and checkpoint.read_progress(last).step == len(log(tmp_path / "run"))
    assert not any(Path(f"/proc/{pid}").exists() for pid in children)


def test_a_second_signal_ends_workers_that_do_not_end(tmp_path: Path) -> None:
    with started(tmp_path / "run", steps=100_000) as (process, children):
        for pid in children:
            os.kill(pid, signal.SIGSTOP)
        while not all(status(pid, "State").startswith("T") for pid in children):
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        while not all(int(status(pid, "ShdPnd"), 16) for pid in children):  # the agent has passed it on, it is pending
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        process.communicate()
    assert process.returncode == 143 and not any(Path(f"/proc/{pid}").exists() for pid in children)


def status(pid: int, name: str) -> str:
    """A field of a process's status."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(line.partition(":")[2].strip() for line in lines if line.startswith(name))


def test_narrow_networks_stay_in_float32_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bfloat16 units pay off for wide products only."""
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    c = recipe().model
    for d_model, expected in ((64, False), (512, True)):
        network = build(c.changed(d_model=d_model, d_ff=4 * d_model))
        assert loop.width(network) == d_model
        assert loop.use_bfloat16(torch.device("cpu"), "auto", loop.width(network)) is expected
    assert loop.use_bfloat16(torch.device("cpu"), "bfloat16", 64) and not loop.use_bfloat16(
        torch.device("cpu"), "float32", 512
    )


def test_how_many_workers_follows_from_sizes_and_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "cores", lambda: 4)
    demo, base, hello = (load_recipe(find(name)) for name in ("demo", "transformer-base", "hello"))
    assert launch.worker_count(demo, tmp_path) == 4
    assert launch.worker_count(hello, tmp_path) == 1  # over before a second process has started
    large = base.changed(model=base.model.changed(d_model=2048, n_heads=16, d_ff=8192))
    assert launch.worker_count(large, tmp_path) == 1  # one copy of the weights
    small = demo.changed(data=demo.data.changed(batch_tokens=64))
    assert launch.worker_count(small, tmp_path) == 1  # nothing to share
    assert launch.worker_count(demo.changed(train=demo.train.changed(workers=3)), tmp_path) == 3
    run(tmp_path / "run", recipe(steps=3))
    assert launch.worker_count(demo, tmp_path / "run") == 1  # as many as the checkpoint has
    monkeypatch.setattr(launch.checkpoint, "workers_of", lambda _: 3)
    assert launch.worker_count(demo, tmp_path / "run") == 3
    monkeypatch.setattr(launch, "pick_device", lambda _: torch.device("cuda"))
    for gpus, expected in ((4, 3), (2, 2), (0, 1)):
        monkeypatch.setattr(torch.cuda, "device_count", lambda gpus=gpus: gpus)
        assert launch.worker_count(demo, tmp_path / "run") == expected and launch.worker_count(demo, tmp_path) == 1


# --- Muon


def test_an_orthogonal_step_keeps_the_directions_and_evens_out_their_lengths() -> None:
    for shape in ((3, 20, 30), (2, 30, 20), (1, 16, 16)):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
        u, _, vt = torch.linalg.svd(x, full_matrices=False)
        inner = u.mT @ orthogonalise(x) @ vt.mT  # (N, r, r): nearly diagonal, all lengths alike
        lengths = inner.diagonal(dim1=1, dim2=2)
        assert lengths.min() > 0.4 and lengths.max() < 1.3
        assert (inner - torch.diag_embed(lengths)).abs().max() < 1e-3


def test_muon_moves_the_matrices_of_the_blocks_and_adam_the_rest() -> None:
    network = nn.Module()
    network.embed, network.stack, network.head = nn.Embedding(7, 8), nn.Linear(8, 8), nn.Linear(8, 3)
    o = make_optimizer(network, TrainConfig(optimizer="muon", learning_rate=0.1))
    before = network.stack.weight.detach().clone()
    (network.head(network.stack(network.embed(torch.arange(7)))) ** 2).sum().backward()
    assert network.stack.weight.grad is not None
    wanted = orthogonalise(network.stack.weight.grad[None])[0]  # the first momentum has the gradient's direction
    o.step()
    step = (network.stack.weight - before).detach() / (-0.1 * 0.2 * 8**0.5)
    torch.testing.assert_close(step, wanted, atol=1e-4, rtol=1e-4)
    kinds = {name: set(o.state[p]) for name, p in network.named_parameters()}
    assert kinds.pop("stack.weight") == {"momentum", "step"}
    assert all(kind == {"step", "exp_avg", "exp_avg_sq"} for kind in kinds.values())


@pytest.mark.parametrize("fields", [
    {"tie": "none", "position": "learned"},
    {"family": "encoder", "head": "masked-next", "n_segments": 2, "tie": "output"},
    {"family": "encoder", "head": "classes", "n_classes": 3, "tie": "none", "d_embed": 16},
    {"family": "decoder", "head": "vocabulary", "tie": "output", "d_embed": 16, "norm_order": "pre"},
    {"family": "encoder", "head": "replaced", "tie": "none"},
], ids=["translator", "bert", "classes", "factorised", "replaced"])  # fmt: skip
def test_muon_moves_hidden_matrices_alone(fields: dict[str, Any]) -> None:
    """Not words, positions, projections of narrow words, poolers and heads."""
    network = build(recipe().model.changed(**fields))
    assert moved_by_muon(network) == {n for n, p in network.named_parameters() if p.dim() == 2 and "blocks" in n}


def moved_by_muon(network: nn.Module, tune: TuneConfig = TuneConfig()) -> set[str]:
    names = {id(p): name for name, p in network.named_parameters()}
    groups = make_optimizer(network, TrainConfig(optimizer="muon"), tune).param_groups
    return {names[id(p)] for group in groups if group["orthogonal"] for p in group["params"]}


def test_muon_leaves_low_rank_updates_to_adam() -> None:
    network = build(recipe().model)
    lora.apply(network, 2)
    assert moved_by_muon(network, TuneConfig(lora_rank=2)) == set()


@pytest.mark.parametrize(("mixer", "matrix", "rows"), [
    ("selective", "enter", [32, 32]), ("selective", "select", [1, 4, 4]), ("s4d", "output", [16, 16]),
])  # fmt: skip
def test_muon_treats_stacked_maps_each_for_itself(mixer: str, matrix: str, rows: list[int]) -> None:
    """Mamba's u and z; its dt, B and C; S4D's value and gate."""
    torch.manual_seed(0)
    c = ModelConfig(family="decoder", vocab_size=20, d_model=16, n_layers=1, n_heads=2, feedforward="none", mixer=[mixer],
                    d_state=4, position="none", norm_order="pre", tie="output")  # fmt: skip
    network = build(c)
    o = make_optimizer(network, TrainConfig(optimizer="muon", learning_rate=0.1))
    weight = getattr(network.stack.blocks[0].attention.layer, matrix).weight
    before, weight.grad = weight.detach().clone(), torch.randn_like(weight)
    maps = weight.grad.split(rows)
    wanted = torch.cat([0.2 * max(x.shape) ** 0.5 * orthogonalise(x[None])[0] for x in maps])
    o.step()
    torch.testing.assert_close((before - weight.detach()) / 0.1, wanted, atol=1e-4, rtol=1e-4)


def test_adam_s_epsilon_is_a_setting() -> None:
    network = build(recipe().model)
    for c, eps in ((TrainConfig(), 1e-9), (TrainConfig(eps=1e-6), 1e-6)):
        assert {group["eps"] for group in make_optimizer(network, c).param_groups} == {eps}


def test_no_two_seeds_and_ranks_have_the_same_random_numbers() -> None:
    """Seed + rank would give worker 1 of seed 1 the dropout of worker 0 of seed 2."""
    seeds = [loop.seed_of(seed, rank) for seed in range(100) for rank in range(16)]
    assert len(set(seeds)) == len(seeds) and not set(seeds) & set(range(200))


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
