"""What full sharding is combined with: bfloat16, LoRA, experts and carried state, each against workers with whole networks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from qkv.config import Recipe, TuneConfig
from qkv.convert.files import read_headers
from tests.sharded import Start, divided, losses, two_workers
from tests.test_recurrent_lm import shakes


@pytest.fixture(scope="module")
def workers() -> Iterator[Start]:
    """Two processes that serve all tests."""
    with two_workers() as together:
        yield together


def lora() -> Recipe:
    r = divided(accumulate=2)
    return r.changed(tune=TuneConfig(lora_rank=2, lora_from_scratch=True, lora_feedforward=True))


def experts() -> Recipe:
    r = divided(accumulate=2)
    return r.changed(model=r.model.changed(n_experts=3, experts_per_token=1, expert_softmax="all"))


def carrying() -> Recipe:
    return shakes(6, {"recurrent": None, "mixer": ("gated-linear", "selective"), "position": "none"}, accumulate=2)


@pytest.mark.parametrize(("r", "tolerance"), [
    (divided(precision="bfloat16"), 1e-3), (lora(), 1e-5), (experts(), 1e-5), (carrying(), 1e-5),
], ids=["bfloat16", "LoRA", "experts", "carried state"])  # fmt: skip
def test_shards_learn_what_whole_networks_learn(r: Recipe, tolerance: float, workers: Start, tmp_path: Path) -> None:
    (why, _), (other, _) = workers(tmp_path / "whole", r)
    assert (why, other) == ("done", "done")
    sharded = r.changed(train=r.train.changed(sharding="full"))
    (why, one), (other, _) = workers(tmp_path / "shards", sharded)
    assert (why, other) == ("done", "done") and one > 0
    assert losses(tmp_path / "shards") == pytest.approx(losses(tmp_path / "whole"), rel=tolerance)
    kept, expected = (read_headers(tmp_path / name / "best") for name in ("shards", "whole"))
    assert kept == expected
