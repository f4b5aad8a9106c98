"""Golden losses: refactoring moves no loss of any family (tests/golden/make.py has the cases, and says when they may be written anew)."""

from __future__ import annotations

import pytest

from tests.golden.make import CASES, GOLDEN, STEPS, TOLERANCE, golden, losses


@pytest.mark.parametrize("name", CASES)
def test_the_losses_of_20_updates_have_not_moved(name: str) -> None:
    assert losses(name) == pytest.approx(golden(name), rel=TOLERANCE)


def test_every_case_has_its_file_and_learns() -> None:
    assert {path.stem for path in GOLDEN.glob("*.json")} == set(CASES)
    for name in CASES:
        assert len(golden(name)) == STEPS and golden(name)[-1] < golden(name)[0], name
