"""Is one system better than another, or was it luck? Paired bootstrap resampling (Koehn 2004), as sacreBLEU does it.

Test sets of the same size are drawn from the sentences, with replacement, and all systems are scored on each. p is the
chance of a difference as large as the one found if the systems were equally good; the first system is the baseline.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sacrebleu.significance import PairedTest

from qkv.errors import QkvError
from qkv.evaluate.scores import References, checked, metric


@dataclass(frozen=True)
class Compared:
    """One system by one metric, beside the baseline."""

    system: str
    metric: str
    value: float
    mean: float
    """Mean over the resampled test sets."""
    interval: float
    """95 % of them lie within mean ± interval."""
    p: float | None
    """None for the baseline."""
    difference: float
    """value - the baseline's value."""
    signature: str

    @property
    def significant(self) -> bool:
        return self.p is not None and self.p < 0.05

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "significant": self.significant}


def compare(systems: Mapping[str, Sequence[str]], references: References, metrics: Sequence[str] = ("bleu",),
            samples: int = 1000, tokenize: str = "13a", lowercase: bool = False) -> list[Compared]:  # fmt: skip
    """All systems against the first of them. The random numbers are those of the `sacrebleu` command (SACREBLEU_SEED)."""
    if len(systems) < 2:
        raise QkvError("compare needs at least two systems")
    seed = os.environ.get("SACREBLEU_SEED", "12345")
    if not seed.isdecimal() or int(seed) == 0:  # the library would draw another number each time
        raise QkvError(f"SACREBLEU_SEED must be a whole number from 1 on, given {seed!r}")
    every = [checked(hypotheses, references) for hypotheses in systems.values()]
    chosen = {name.upper(): metric(name, tokenize, lowercase) for name in metrics}
    named: list[tuple[str, Sequence[str]]] = [(name, list(hypotheses)) for name, hypotheses in systems.items()]
    signatures, results = PairedTest(named, chosen, every[0], test_type="bs", n_samples=samples)()
    rows = []
    for name, signature in signatures.items():
        first: Any = results[name][0]
        for system, r in zip(systems, results[name], strict=True):
            assert not isinstance(r, str)
            p = 1.0 if r.p_value is not None and r.score == first.score else r.p_value  # the library says 0 there
            rows.append(
                Compared(
                    system, name, float(r.score), float(r.mean or 0), float(r.ci or 0), p,
                    float(r.score - first.score), str(signature),
                )
            )  # fmt: skip
    return rows
