"""C16: the Transformer reaches equal or better BLEU than recurrent translators at a fraction of the training cost."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

from qkv.lab.claims.c02_bottleneck import settings
from qkv.lab.experiment import Claim, ClaimResult, Experiment, Table, judge
from qkv.lab.statistics import below, difference, estimate, exceeds
from qkv.lab.translators import SYSTEMS, measure_translator
from qkv.look.charts import lines

OTHERS = tuple(name for name in SYSTEMS if name != "Transformer")
FRACTION = 0.5
MARGIN = 1.0
"""BLEU points below the best recurrent network that still count as equal."""


def operations_to_reach(one: dict[str, Any], bleu: float) -> float:
    """Training operations until the valid set has this BLEU, interpolated between evaluations; infinite where it never has."""
    curve = [(0.0, 0.0), *((score["step"] * one["operations"], score["bleu"]) for score in one["curve"])]
    for (before, low), (after, high) in pairwise(curve):
        if high >= bleu > low:
            return before + (after - before) * (bleu - low) / (high - low)
    return math.inf


def run(lab: Experiment) -> ClaimResult:
    found = lab.of("C2").grid(measure_translator, settings(lab))
    last = {name: [one["curve"][-1]["bleu"] for one in own] for name, own in found.items()}
    costs = {name: [one["operations"] * one["updates"] for one in own] for name, own in found.items()}
    # to the final score of the best recurrent network of the same seed
    best = max(OTHERS, key=lambda name: estimate(last[name]).mean)
    targets = last[best]
    reach = {
        name: [operations_to_reach(one, bleu) for one, bleu in zip(own, targets, strict=True)]
        for name, own in found.items()
    }
    ratios = [
        own / other if own < math.inf else own for own, other in zip(reach["Transformer"], reach[best], strict=True)
    ]
    gain = difference(last["Transformer"], last[best])
    rows = [
        [name, f"{found[name][0]['parameters']:,}", estimate(last[name]).text(1), f"{estimate(costs[name]).mean:.2e}",
         describe(reach[name])] for name in SYSTEMS
    ]  # fmt: skip
    curves = {
        name: [(score["step"] * own[0]["operations"] / 1e12, sum(one["curve"][i]["bleu"] for one in own) / len(own))
               for i, score in enumerate(own[0]["curve"])] for name, own in found.items()
    }  # fmt: skip
    return ClaimResult(
        judge(exceeds(gain, -MARGIN), below(estimate(ratios), FRACTION)),
        f"After equal numbers of updates the validation BLEU is {estimate(last['Transformer']).text(1)} (Transformer) and "
        f"{estimate(targets).text(1)} (best recurrent network: {best}), a difference of {gain.text(1)}. "
        f"{describe_ratios(ratios, best)}",
        Table(["network", "parameters", "validation BLEU", "training operations", f"operations to the score of {best}"], rows),
        lines(curves, "BLEU by training operations", "operations, 10^12", "validation BLEU"),
        lab.basis,
    )  # fmt: skip


def describe(operations: list[float]) -> str:
    never = sum(math.isinf(one) for one in operations)
    return f"not reached: {never} of {len(operations)}" if never else f"{estimate(operations).mean:.2e}"


def describe_ratios(ratios: list[float], best: str) -> str:
    """Say what share of the operations is needed, and with how many seeds the score is never reached."""
    finite = [one for one in ratios if one < math.inf]
    if not finite:
        return f"The Transformer does not reach the final score of {best} with any seed."
    never = len(ratios) - len(finite)
    return (
        f"The Transformer reaches the final score of {best} with {min(finite):.0%} to {max(finite):.0%} of the operations that {best} "
        f"needs{f', with {never} of {len(ratios)} seeds not at all' if never else ''}."
    )


CLAIM = Claim(
    "C16",
    "The Transformer reaches the BLEU of recurrent translators, or a better one, at a fraction of their training cost.",
    "000, 004",
    "The runs of C2: validation BLEU by training operations (matrix products, padding included). A network's cost of a score is "
    "where its curve first reaches it, interpolated between evaluations; the score is the final one of the best recurrent network.",
    f"A BLEU after equal numbers of updates that is lower by {MARGIN:g} or more; or a Transformer that needs {FRACTION:.0%} or more of the "
    "operations that the best recurrent network needs for its final score (infinitely many if it never reaches it). Each is shown or "
    "refuted if the 95 % interval over the seeds does not contain the threshold. One of the two shown: holds in part.",
    run,
    3.0,
)
