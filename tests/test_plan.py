"""`qkv plan`: formulas against small cases by hand, papers, and what real workers allocate and send."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.plan_runs import check_traffic
from qkv.config import ModelConfig
from qkv.errors import ConfigError
from qkv.models.build import skeleton
from qkv.plan import calibrate
from qkv.plan.devices import DEVICES, Accelerator, find_device
from qkv.plan.job import Job
from qkv.plan.layout import Layout
from qkv.plan.memory import kept_block, local_parameters, memory
from qkv.plan.network import NetworkSize, network_size
from qkv.plan.plans import all_plans, divisors_of, make_plan, recommend
from qkv.plan.speed import times
from qkv.plan.this_machine import GLOO, ThisMachine, describe_host, interpolate, save
from qkv.plan.traffic import messages, traffic
from qkv.plan.workers import call_on_workers
from qkv.presets import preset, tiny

Run = Callable[..., tuple[int, str, str]]
SMALL = ModelConfig(
    family="decoder", vocab_size=50, d_model=16, n_layers=2, n_heads=4, d_ff=32, norm_order="pre", max_length=8, dropout=0.1
)  # fmt: skip
SIZE = NetworkSize(
    tokens=10, longest=10, width=8, layers=4, parameters=1000, tensors=20, inside=800, largest=200, sums=(8, 16), summed=(640, 1280),
    split=720, output=100, vocabulary=50, forward=4000, training=12_000, rest=600, kept=4000, kept_split=2400, kept_outside=100,
    stream=80, maps=24, divisors=(4, 4, 16),
)  # fmt: skip
"""A network with round numbers."""
JOB = Job(SIZE, "float32", rows=16)
FAST = Accelerator("test", memory=1e6, float32=1e6, bfloat16=None, share=0.5, bandwidth=1e9, link=1e4, network=1e3, per_machine=4,
              latency=0.0)  # fmt: skip


# --- memory


NAMES = ("transformer-base bert-base gpt2 t5-v1.1-small albert-base llama2-70b palm-8b bloom-560m mamba-130m gla-340m linformer "
         "rnnsearch vit-b16").split()  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_parameters_of_a_network_are_those_that_it_has(name: str) -> None:
    """Of one worker, and of two that divide every layer: the matrices of attention and feed-forward layers, with the biases of
    the first ones."""
    c = tiny(name)
    job = Job(network_size(c, 8, 8 if c.family == "encoder-decoder" else 0), "float32", 4)
    network = skeleton(c)
    every = sum(p.numel() for p in network.parameters())
    assert memory(job, Layout())["parameters"] == 4 * every
    if job.network.divisors:
        halved = {"query", "key", "value", "up", "gate", "output", "down"}
        inner = {p: n for n, p in network.named_parameters(remove_duplicate=False) if ".blocks." in n}
        half = sum(p.numel() for p, n in inner.items() if n.split(".")[-2] in halved
                   and not n.endswith(("output.bias", "down.bias")))  # fmt: skip
        assert local_parameters(job, Layout(tensor=2)) == every - half / 2


def test_zero_paper() -> None:
    """Rajbhandari et al. 2020, figure 1: 7.5 billion parameters on 64 devices, 120 GB each, or 1.9 GB when all states are sharded."""
    job = replace(JOB, network=replace(SIZE, parameters=7_500_000_000))
    states = lambda at: sum(memory(job, at)[name] for name in ("parameters", "gradients", "optimiser"))  # noqa: E731
    assert states(Layout(data=64)) == 120e9
    assert states(Layout(data=64, sharded=True)) == pytest.approx(1.9e9, rel=0.02)


@pytest.mark.parametrize("tensor", [1, 8])
def test_activations_paper(tensor: int) -> None:
    """Korthikanti et al. 2022, equation 2 without dropout and scores: s b h (10 - 2 + 24 / t) bytes in each layer of GPT-3 175B."""
    c = preset("gpt3-175b").changed(n_layers=8)
    found = kept_block(Job(network_size(c, 2048), "bfloat16", 1), Layout(tensor=tensor))
    assert found == pytest.approx(2048 * 12288 * (8 + 24 / tensor), rel=0.05)  # the final norm is among it


def test_memory_by_hand() -> None:
    """Two stages of two tensor workers, sharding over four, checkpoints."""
    whole = memory(JOB, Layout(data=4, rows=4))
    assert whole["gradients"] == 4000 and whole["optimiser"] == 8000 and whole["activations"] == 4 * 4100
    assert memory(JOB, Layout(data=4, sharded=True, rows=4))["optimiser"] == 2000
    # blocks: 360 + 80 in two stages; the rest divided by the tensor workers
    assert local_parameters(JOB, Layout(tensor=2, pipeline=2)) == (360 + 80) / 2 + 200 / 2
    kept = memory(JOB, Layout(rows=2, passes=8, recompute=True))["activations"]
    assert kept == 2 * (4 * 80 * 4 + 4000 / 4 + 100)  # block inputs, one block, the rest
    stage = memory(JOB, Layout(pipeline=4, rows=1, passes=16))["activations"]
    assert stage == 4 * 1000 + 100  # four passes are under way in one block


def test_memory_of_divided_layers() -> None:
    """FSDP2 copies what it computes with, also where only the layers are divided: the rest, one block and its gradient. It holds
    whole gradients between passes."""
    at = Layout(tensor=2, rows=16)
    found = memory(JOB, at)
    assert found["parameters"] == 4 * 640 and found["gradients"] == 0
    assert found["gathered"] == 4 * 200 + (4 + 4) * 200 * (360 + 80) / 800
    assert memory(JOB, replace(at, rows=8, passes=2))["gradients"] == 4 * 640
    sharded = Layout(data=4, sharded=True, rows=1, passes=4)
    assert memory(JOB, sharded)["gradients"] == 4 * 1000
    assert memory(JOB, sharded)["gathered"] == 4 * 200 + (2 * 4 + 4) * 200


# --- traffic


def test_traffic_by_hand() -> None:
    """The formulas of the papers: 2 (d - 1) / d P, 3 (d - 1) / d P, and all-reduces of the residual stream."""
    small = {"loss": 2 * 3 / 4 * 4}
    assert traffic(JOB, Layout(data=4, rows=4)) == small | {"gradients": 1.5 * (4 * 1000 + 4 * 20)}
    sharded = traffic(JOB, Layout(data=4, sharded=True, rows=4))
    small |= {"norm": 6}
    # parameters outside the blocks are gathered once, not twice
    assert sharded == small | {"parameters": 0.75 * 4 * (1000 + 800), "gradients": 0.75 * 4 * 1000}
    assert traffic(JOB, Layout(data=4, sharded=True), GLOO)["gradients"] == 1.5 * 4 * 1000
    tensor = Layout(tensor=4, rows=8, passes=2)
    assert traffic(JOB, tensor)["activations"] == 1.5 * 4 * 16 * (640 + 1280)
    assert traffic(JOB, replace(tensor, recompute=True))["activations"] == 1.5 * 4 * 16 * (2 * 640 + 1280)
    assert "loss" not in traffic(JOB, tensor)  # all workers have the same rows
    both = traffic(JOB, Layout(data=4, tensor=2, rows=4))
    assert both["gradients"] == 1.5 * 4 * (720 / 2 + 80 + 200) and both["loss"] == both["norm"] == 2 * 7 / 8 * 4
    stages = traffic(JOB, Layout(pipeline=4, rows=2, passes=8))
    assert stages["stages"] == 8 * 2 * (2 * 80 * 4)  # forward and back


LAYOUTS = {
    2: [Layout(data=2, rows=4), Layout(data=2, sharded=True, rows=4), Layout(data=2, sharded=True, rows=2, passes=2),
        Layout(tensor=2, rows=8), Layout(tensor=2, rows=8, recompute=True)],
    4: [Layout(data=2, tensor=2, rows=4), Layout(data=2, tensor=2, sharded=True, rows=4)],
}  # fmt: skip
"""Workers -> layouts."""


@pytest.mark.parametrize(("c", "workers"), [
    (SMALL, 2), (SMALL.changed(feedforward="swiglu", n_kv_heads=2), 2), (SMALL.changed(family="encoder-decoder", tie="all"), 4),
], ids=["decoder", "gated", "encoder-decoder"])  # fmt: skip
def test_traffic_is_what_workers_send(c: ModelConfig, workers: int) -> None:
    """Workers train in every layout; every byte of their collectives is counted."""
    job = Job(network_size(c, 8, 8 if c.family == "encoder-decoder" else 0), "float32", 8)
    fields = [at.train_fields() for at in LAYOUTS[workers]]
    found = call_on_workers(check_traffic, workers, c.model_dump_json(exclude_unset=True), 8, 8, fields)
    assert found["sent"] == [pytest.approx(sum(traffic(job, at, GLOO).values()), abs=1e-6) for at in LAYOUTS[workers]]


# --- time


def test_times_by_hand() -> None:
    """12,600 operations a row at 5e5 per second; what communication is hidden, and what is not."""
    alone = times(JOB, Layout(rows=16), FAST)
    assert alone.compute == pytest.approx(16 * 12_600 / 5e5) and alone.exposed == 0
    two = times(JOB, Layout(data=2, rows=8), FAST)
    assert two.compute == pytest.approx(alone.compute / 2)
    message = 4000 / (0.8 * 1e4)  # one bucket, which is the last one: nothing hides it
    assert two.exposed == pytest.approx(max(message, message - two.compute) + 4 * (20 + 1) / 8e3)
    pipe = times(JOB, Layout(pipeline=4, rows=1, passes=16), FAST)
    assert pipe.bubble == pytest.approx(pipe.compute * 3 / 16)  # (p - 1) / m
    again = times(JOB, Layout(rows=16, recompute=True), FAST)
    assert again.compute == pytest.approx(16 * (12_600 + 4000) / 5e5)


def test_links_of_machines() -> None:
    """Within a machine its links; between machines, the connections of all workers of a machine that take part."""
    assert FAST.send_rate(4) == 0.8 * 1e4
    assert FAST.send_rate(8) == 0.8 * 4e3  # four connections
    assert FAST.send_rate(2, stride=4) == 0.8 * 1e3  # one worker in each machine
    assert FAST.send_rate(4, stride=2) == 0.8 * 2e3


def test_communication_of_sharding_hides_behind_computation() -> None:
    slow, quick = replace(FAST, link=1e2), replace(FAST, link=1e6)
    at = Layout(data=4, sharded=True, rows=4)
    exposed = [times(JOB, at, device).exposed for device in (slow, quick)]
    total = sum(m.sent() * m.count for m in messages(JOB, at)) / (0.8 * 1e2)
    computed = times(JOB, at, slow).compute
    assert exposed[0] == pytest.approx(total - computed, rel=0.05)
    assert exposed[1] < 0.01


# --- choice


def test_every_layout_has_all_workers_and_rows() -> None:
    for plan in all_plans(JOB, 16, FAST):
        at = plan.layout
        assert at.workers == 16 and at.tensor <= FAST.per_machine
        assert at.rows * at.passes * at.data >= JOB.rows
    assert divisors_of(12, 8) == [1, 2, 4]


def test_the_choice_fits_and_runs() -> None:
    """The simplest of those nearly as fast as the fastest; a pipeline only where nothing else fits."""
    plans = all_plans(JOB, 4, FAST)
    chosen, why = recommend(plans)
    assert chosen is not None and chosen.fits and chosen.layout.runs and why
    assert chosen.seconds <= 1.05 * min(plan.seconds for plan in plans if plan.fits and plan.layout.runs)
    none, why = recommend(all_plans(JOB, 4, replace(FAST, memory=10)))
    assert none is None and "memory" in why
    only = [make_plan(JOB, Layout(pipeline=4, rows=1, passes=16), FAST)]
    assert recommend(only)[0] is only[0] and "does not run pipelines" in recommend(only)[1]


@pytest.mark.parametrize(("name", "kinds"), [
    ("rnnsearch", {"data"}), ("t5-small", {"data", "sharded"}),
    ("transformer-base", {"data", "sharded", "tensor x data", "tensor x sharded"}),
])  # fmt: skip
def test_what_training_refuses_is_not_planned(run: Run, name: str, kinds: set[str]) -> None:
    """Recurrent networks are not divided; scores with positions in them are not divided by heads."""
    _, out, _ = run("plan", name, "--workers", "4", "--json")
    assert {plan["kind"] for plan in json.loads(out)["plans"] if plan["executed_by_qkv"]} == kinds


# --- published runs

PUBLISHED = {
    # Narayanan et al. 2021, section 5.1: 34 days for 300 billion tokens
    "gpt3-175b": ("a100-80g", 1024, 1536 * 2048, 34),
    # Vaswani et al. 2017, section 5.2: 3.5 days
    "transformer-big": ("p100-16g", 8, None, 3.5),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_runs(run: Run, name: str) -> None:
    """The fastest plan that fits takes as long as published, within 20 %."""
    device, workers, batch, days = PUBLISHED[name]
    options = ["--batch-tokens", batch, "--tokens", "300e9"] if batch else []
    code, out, _ = run("plan", name, "--device", device, "--workers", str(workers), *map(str, options), "--json")
    found = json.loads(out)
    hours = min(plan["hours"] for plan in found["plans"] if plan["fits"])
    assert code == 0 and hours / 24 == pytest.approx(days, rel=0.2)


# --- the command


def test_plan_prints_a_table(run: Run) -> None:
    code, out, err = run("plan", "gpt3-175b", "--workers", "1024", "--tokens", "3e11")
    assert (code, err) == (0, "")
    assert (
        max(map(len, out.splitlines())) <= 130
        and max(len(line) for line in out.splitlines() if " x " in line[:30]) <= 100
    )
    for word in ("data 1024", "sharded 1024", "pipeline", "recommended: ", "device-hours", "planned only"):
        assert word in out


def test_plan_of_a_recipe(run: Run) -> None:
    code, out, _ = run("plan", "gpt2-like", "--workers", "4", "--device", "rtx-4090", "--json")
    found = json.loads(out)
    assert code == 0 and found["updates"] == 20_000 and found["tokens_per_update"] == 32_768
    assert found["recommended"] in [plan["name"] for plan in found["plans"]]
    assert {plan["kind"] for plan in found["plans"]} >= {"data", "sharded", "tensor x data"}
    assert found["parameters"] < 32e6  # 8,000 words, as the run will have, not the preset's


@pytest.mark.parametrize(("arguments", "words"), [
    (["gpt2", "--device", "a100"], "a100-80g"),
    (["no-such-preset"], "no preset"),
    ([], "give a recipe"),
    (["gpt2", "--precision", "int4"], "bfloat16"),
    (["gpt2", "--device", "t4", "--precision", "bfloat16"], "no bfloat16"),
    (["gpt2", "--device", "cpu"], "--calibrate"),
    (["glue-cola", "--set", "tune.lora_rank=4"], "lora_rank"),
    (["gpt2", "--length", "2000"], "reads at most 1,024"),
    (["gpt2", "--workers", "7", "--batch-tokens", "1024"], "1 x 1,024 tokens cannot be divided among 7 workers"),
])  # fmt: skip
def test_errors_are_one_line(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str
) -> None:
    monkeypatch.setenv("QKV_CACHE", str(tmp_path))
    code, out, err = run("plan", *arguments)
    assert code == 2 and out == "" and err.count("\n") == 1 and words in err


MACHINE = ThisMachine(
    describe_host(), cores=2, memory=8e9, peaks={"float32": 1e11}, memory_rates={"1": 1e10, "2": 8e9},
    rates={"float32": {"1": {"64": 5e10, "256": 7e10}, "2": {"64": 4e10, "256": 6e10}}},
    collectives={kind: {"2": {"1024": 1e-4, "1048576": 1e-3}} for kind in ("all_reduce", "all_gather", "reduce_scatter")},
    overheads={"sharded": 1e-4, "tensor": 1e-3},
)  # fmt: skip


def test_plan_with_measured_constants(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured once, then used; refused on another machine and when damaged."""
    monkeypatch.setenv("QKV_CACHE", str(tmp_path))
    monkeypatch.setattr(calibrate, "calibrate", lambda say: MACHINE)
    options = ["--device", "cpu", "--precision", "float32"]
    assert run("plan", "--calibrate")[0] == 0
    code, out, _ = run("plan", "tiny", "--workers", "4", *options)
    assert code == 0 and "data 4" in out
    save(replace(MACHINE, host={"node": "another"}))
    assert "another machine" in run("plan", "tiny", *options)[2]
    (tmp_path / "machine.json").write_text('{"cores": 2}')
    assert "--calibrate" in run("plan", "tiny", *options)[2]


def test_workers_share_cores() -> None:
    """Four workers on two cores compute at half the rate of two, and slower collectives of a larger group."""
    assert MACHINE.rate("float32", 64, 4) == MACHINE.rate("float32", 64, 2) / 2 == 2e10
    assert MACHINE.rate("float32", 128, 1) == pytest.approx(6e10)  # between two widths
    assert MACHINE.collective("all_reduce", 2**20, 0, 2) == 1e-3
    assert MACHINE.collective("all_reduce", 2**21, 0, 2) == 2e-3
    assert MACHINE.collective("all_reduce", 2**20, 0, 4) == pytest.approx(3e-3)
    assert interpolate({"10": 1.0, "20": 3.0}, 15) == 2.0


def test_what_a_division_costs_on_a_cpu() -> None:
    """Python for each of 20 parameters and 24 matrices in each pass, copies, and norms that are not divided."""
    sharded = Layout(data=2, sharded=True, rows=4, passes=2)
    copied = 2 * (2 * (2 * 4 * 800 + 4 * 200) + 4 * 1000)
    assert times(JOB, sharded, MACHINE).overhead == pytest.approx(2 * 20 * 1e-4 + copied / 8e9)
    tensor = Layout(tensor=2, rows=16)
    copied = 2 * (2 * 4 * 440 + 4 * 200 + 4 * 640)
    whole = 8 * 16 * (4000 - 2400) / 2
    assert times(JOB, tensor, MACHINE).overhead == pytest.approx(20 * 1e-4 + 24 * 1e-3 + (copied + whole) / 8e9)
    assert MACHINE.overhead("tensor", 4) == 2e-3  # two workers on each core
    assert times(JOB, tensor, FAST).overhead == times(JOB, Layout(data=2, rows=8), MACHINE).overhead == 0


def test_error_of_a_worker_is_raised_here() -> None:
    with pytest.raises(ConfigError, match="unknown device 'a100'"):
        call_on_workers(find_device, 2, "a100")


def test_devices_are_consistent() -> None:
    for name, device in DEVICES.items():
        assert name == device.name and 0.2 < device.share < 0.7
        assert device.network <= device.link < device.bandwidth and device.float32 <= device.peak("bfloat16")
