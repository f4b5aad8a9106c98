"""The lab: verdicts follow from what is measured, experiments resume, results are written; the core of each claim is asserted."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from qkv.config import Recipe
from qkv.lab.claims import MODULES, c09_sinusoids, get_claim
from qkv.lab.claims.c01_scaling import saturation
from qkv.lab.claims.c09_sinusoids import largest_error
from qkv.lab.claims.c10_rotary import spread
from qkv.lab.claims.c15_feedforward_share import shares
from qkv.lab.claims.c26_residual_stream import reconstruction
from qkv.lab.experiment import Experiment
from qkv.lab.statistics import difference, estimate
from qkv.lab.training import make_recipe, train_network
from qkv.lab.workers import MeasurementPool


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
    assert (
        Experiment(tmp_path, full=True).per_seed("x", work) == [10, 20, 30] and len(calls) == 7
    )  # other sizes: measured anew


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
    code, out, _ = run("lab", "--out", tmp_path)
    assert not code and all(name in out for name in MODULES)
    code, _, error = run("lab", "run", "C99", "--out", tmp_path)
    assert code == 2 and "no claim 'C99'" in error
