"""The lab: verdicts follow from what is measured, experiments resume, results are written; the core of each claim is asserted."""

from __future__ import annotations

import json
import math
import os
import re
import signal
from itertools import islice
from pathlib import Path
from typing import Any, get_args

import pytest

from qkv.config import Recipe
from qkv.errors import QkvError
from qkv.lab.claims import MODULES, c09_sinusoids, get_claim
from qkv.lab.claims.c01_scaling import saturation
from qkv.lab.claims.c09_sinusoids import largest_error
from qkv.lab.claims.c10_rotary import spread
from qkv.lab.claims.c15_feedforward_share import shares
from qkv.lab.claims.c26_residual_stream import reconstruction
from qkv.lab.experiment import Experiment, Verdict
from qkv.lab.report import CLASSES, STYLE
from qkv.lab.statistics import difference, estimate
from qkv.lab.training import make_recipe, open_task, time_updates, train_network
from qkv.lab.workers import MeasurementPool
from qkv.train.lock import lock_folder


def test_without_the_factor_the_softmax_saturates() -> None:
    plain, scaled = saturation("dot", 1024, 1), saturation("scaled-dot", 1024, 1)
    assert plain["largest"] > 0.85 and scaled["largest"] < 0.25
    assert plain["gradient"] < 0.5 * scaled["gradient"]


def test_a_step_of_sinusoidal_positions_is_a_rotation() -> None:
    found = largest_error(7)
    assert found["error"] < 1e-6 and found["orthogonal"] < 1e-12


def test_rotary_scores_depend_on_the_distance_alone() -> None:
    found = spread(1)
    assert all(one["range"] < 1e-3 for one in found.values())
    assert len({round(one["mean"], 2) for one in found.values()}) == len(found)  # and they do depend on it


def test_the_share_of_feedforward_layers_grows_with_gpt3() -> None:
    small, large = shares("gpt3-small"), shares("gpt3-175b")
    assert small["of parameters"] < 0.5 < large["of parameters"] and small["of operations"] < large["of operations"]
    assert small["of blocks"] == pytest.approx(2 / 3, abs=0.01)


def test_the_residual_stream_is_the_sum_of_what_was_added() -> None:
    assert reconstruction(1) < 1e-5


@pytest.mark.parametrize(
    ("name", "verdict"),
    [("C1", "holds"), ("C9", "holds"), ("C10", "holds"), ("C15", "holds in part"), ("C26", "holds")],
)
def test_verdicts(name: str, verdict: str, tmp_path: Path) -> None:
    result = get_claim(name).run(Experiment(tmp_path))
    assert result.verdict == verdict and result.figure.startswith("<svg")
    assert all(len(row) == len(result.table.columns) for row in result.table.rows)


def test_a_claim_that_is_wrong_does_not_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        c09_sinusoids, "rotation", lambda distance: 1.01 * c09_sinusoids.torch.eye(c09_sinusoids.WIDTH).double()
    )
    assert get_claim("C9").run(Experiment(tmp_path)).verdict == "does not hold"


def test_an_interrupted_experiment_resumes(tmp_path: Path) -> None:
    calls: list[int] = []

    def work(seed: int) -> int:
        if seed == 3 and len(calls) == 2:
            raise KeyboardInterrupt
        calls.append(seed)
        return 10 * seed

    with pytest.raises(KeyboardInterrupt):
        Experiment(tmp_path).per_seed("x", work)
    calls.append(0)
    assert Experiment(tmp_path).per_seed("x", work) == [10, 20, 30] and calls == [1, 2, 0, 3]


def test_what_is_to_be_measured_in_another_way_is_measured_again(tmp_path: Path) -> None:
    for steps in (5, 7):
        lab = Experiment(tmp_path, seeds=1)
        assert lab.grid(max, {"grid": (steps,)}) == {"grid": [steps]} and lab.measure("one", max, steps, 2) == steps
    assert Experiment(tmp_path).measure("one", min, 7, 2) == 7  # the same arguments: not measured again


def test_measurements_end_with_an_error_in_one_of_them() -> None:
    with MeasurementPool(2) as pool:
        with pytest.raises(QkvError, match="unknown claim"):
            list(pool.run({name: (get_claim, (name,)) for name in ("C99", "C98")}))
        assert pool.executor is None
        assert dict(pool.run({"a": (max, (1, 2)), "b": (max, (3, 4))})) == {"a": 2, "b": 4}


def test_a_killed_measurement_process_is_one_error() -> None:
    """As the system does when memory is short; the pool starts new processes afterwards."""
    with MeasurementPool(2) as pool:
        with pytest.raises(QkvError, match="was killed"):
            list(pool.run({"a": (signal.raise_signal, (signal.SIGKILL,)), "b": (max, (1, 2))}))
        assert dict(pool.run({"a": (max, (1, 2)), "b": (max, (3, 4))})) == {"a": 2, "b": 4}


def test_the_number_of_processes_is_the_given_one_on_every_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert MeasurementPool(1).count == 1 and MeasurementPool().count == os.cpu_count()


def test_parallel_measurements_are_those_of_one_process(tmp_path: Path) -> None:
    settings = {"narrow": ("dot", 4), "wide": ("dot", 64)}
    alone = Experiment(tmp_path / "a", seeds=2).grid(saturation, settings)
    with MeasurementPool(2) as pool:
        assert Experiment(tmp_path / "b", seeds=2, pool=pool).grid(saturation, settings) == alone
    seen: list[tuple[str, int, int]] = []
    again = Experiment(tmp_path / "b", 2, progress=lambda *numbers: seen.append(numbers))
    assert again.grid(saturation, settings) == alone and seen == [("", 4, 4)]  # nothing is measured twice


def short_recipe(**train: Any) -> Recipe:
    sizes = {"family": "decoder", "d_model": 16, "n_layers": 1, "n_heads": 2, "d_ff": 32, "norm_order": "pre"}
    data = {"train": [{"grammar": 300}], "valid": {"grammar": 20}, "vocab_size": 150, "batch_tokens": 256}
    return make_recipe("language", sizes, data, train={"steps": 12, "warmup": 0, "learning_rate": 1e-2} | train)


def test_a_short_training_learns_and_repeats() -> None:
    first, second = train_network(short_recipe()), train_network(short_recipe())
    assert first.losses == second.losses and len(first.losses) == 12 and first.losses[-1] < first.losses[0] - 0.5
    assert first.last["loss"] == second.last["loss"] < first.losses[0] and not first.diverged
    assert train_network(short_recipe(seed=2)).losses != first.losses


def test_the_first_update_is_not_timed() -> None:
    """By a clock that advances by one at each reading. The first one is after the first update, one follows each update from the third
    on, and the last one is at the end."""
    task = open_task(short_recipe())
    batches = list(islice(task.batches, 3))
    counts = [task.collate(one).count for one in batches]
    timed = time_updates(task, task.network(), batches, enough=1.5, clock=iter(range(100)).__next__)
    assert timed == (3, 4, counts[1] + counts[2] + counts[0] + counts[1])


def test_a_training_that_diverges_says_so() -> None:
    found = train_network(short_recipe(learning_rate=1e30, clip=0.0))
    assert found.diverged and math.isinf(found.last["loss"]) and len(found.losses) < 12


def test_intervals() -> None:
    assert estimate([1.0, 2.0, 3.0]).half_width == pytest.approx(
        4.302653 / math.sqrt(3), rel=1e-6
    )  # Student's t, 2 degrees of freedom
    assert math.isinf(estimate([1.0]).half_width) and estimate([1.0]).text(1) == "1.0"
    assert difference([2.0, 3.0], [1.0, 2.0]).mean == 1 and difference([2.0, 3.0], [1.0, 2.0]).half_width == 0


def test_the_command_writes_results_and_a_report(run: Any, tmp_path: Path) -> None:
    code, out, _ = run("lab", "run", "c10", "--out", tmp_path)
    assert not code and "| distance | score |" in out
    found = json.loads((tmp_path / "C10" / "results.json").read_text())
    assert (
        found["verdict"] == "holds" and found["seeds"] == [1, 2, 3] and found["command"] == "qkv lab run C10 --seeds 3"
    )
    assert "Verdict: holds" in (tmp_path / "report.html").read_text()
    (tmp_path / "C10" / "results.json").write_text(json.dumps(found | {"seconds": 123.0}))
    assert not run("lab", "run", "C10", "--out", tmp_path)[0]  # it measures nothing
    assert json.loads((tmp_path / "C10" / "results.json").read_text())["seconds"] == 123
    code, out, _ = run("lab", "--out", tmp_path)
    assert not code and all(name in out for name in MODULES)
    code, _, error = run("lab", "run", "C99", "--out", tmp_path)
    assert code == 2 and "unknown claim 'C99'" in error
    with lock_folder(tmp_path):
        code, _, error = run("lab", "run", "C10", "--out", tmp_path)
    assert code == 2 and "another process" in error and error.count("\n") == 1


def test_quick_and_full_versions_are_kept_apart(run: Any, tmp_path: Path) -> None:
    for version in (["--full"], []):
        assert not run("lab", "run", "C10", "--out", tmp_path, *version)[0]
    names = "C10", "C10-full"
    assert [json.loads((tmp_path / name / "results.json").read_text())["full"] for name in names] == [False, True]
    report = (tmp_path / "report.html").read_text()
    assert (
        all(f'<section id="{name}">' in report for name in names) and "holds (full)" in run("lab", "--out", tmp_path)[1]
    )
    assert Experiment(tmp_path / "C16-full", full=True).of("C2").folder == tmp_path / "C2-full"


def test_a_claim_that_fails_does_not_stop_the_others(run: Any, tmp_path: Path) -> None:
    code, _, messages = run("lab", "run", "C17", "C10", "--full", "--out", tmp_path)  # C17 reads a data set
    assert code == 1 and "failed: this experiment reads the data set" in messages and "Failed: C17" in messages
    report = (tmp_path / "report.html").read_text()
    assert "<td>C17</td><td>failed</td><td>this experiment reads" in report and "Verdict: holds" in report


def luminance(color: str) -> float:
    """Relative luminance of #rgb or #rrggbb (WCAG 2)."""
    digits = "".join(2 * digit for digit in color[1:]) if len(color) == 4 else color[1:]
    parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("verdict", get_args(Verdict))
def test_verdicts_are_readable_on_the_page(verdict: str) -> None:
    variables = dict(re.findall(r"--(\w+): light-dark\((.*?)\)", STYLE))
    rule = re.search(rf"\.{CLASSES[verdict]} {{ color: (?:var\(--(\w+)\)|light-dark\((.*?)\))", STYLE)
    assert rule is not None
    colors = variables[rule[1]] if rule[1] else rule[2]
    for ink, ground in zip(colors.split(", "), variables["ground"].split(", "), strict=True):
        dark, light = sorted((luminance(ink), luminance(ground)))
        assert (light + 0.05) / (dark + 0.05) >= 4.5
