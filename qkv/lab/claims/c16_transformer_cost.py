"""C16: the Transformer reaches equal or better BLEU than recurrent translators at a fraction of the training cost."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

from qkv.lab.claims.c02_bottleneck import settings
from qkv.lab.experiment import Claim, ClaimResult, Experiment, Table, decide
from qkv.lab.statistics import difference, estimate
from qkv.lab.translators import SYSTEMS, measure_translator
from qkv.look.charts import lines

OTHERS = tuple(name for name in SYSTEMS if name != "Transformer")
FRACTION = 0.5


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
    ratios = [own / other for own, other in zip(reach["Transformer"], costs[best], strict=True)]
    gain = difference(last["Transformer"], last[best])
    better, cheaper = gain.high >= 0, max(ratios) < FRACTION
    rows = [
        [name, f"{found[name][0]['parameters']:,}", estimate(last[name]).text(1), f"{estimate(costs[name]).mean:.2e}",
         describe(reach[name])] for name in SYSTEMS
    ]  # fmt: skip
    curves = {
        name: [(score["step"] * own[0]["operations"], sum(one["curve"][i]["bleu"] for one in own) / len(own))
               for i, score in enumerate(own[0]["curve"])] for name, own in found.items()
    }  # fmt: skip
    return ClaimResult(
        decide(better and cheaper, better or cheaper),
        f"After equal updates the Transformer has a BLEU of {estimate(last['Transformer']).text(1)}, the best recurrent network ({best}) "
        f"{estimate(targets).text(1)} (difference {gain.text(1)}). To reach the score of {best} the Transformer needs "
        f"{describe_ratios(ratios)} of its operations.",
        Table(["network", "parameters", "BLEU, valid", "operations of the training", f"operations to the score of {best}"], rows),
        lines(curves, "BLEU against training operations", "operations", "BLEU of the valid set"),
        lab.basis,
    )  # fmt: skip


def describe(operations: list[float]) -> str:
    never = sum(math.isinf(one) for one in operations)
    return f"not reached: {never} of {len(operations)}" if never else f"{estimate(operations).mean:.2e}"


def describe_ratios(ratios: list[float]) -> str:
    return "more than all" if any(map(math.isinf, ratios)) else f"{min(ratios):.0%} to {max(ratios):.0%}"


CLAIM = Claim(
    "C16",
    "The Transformer reaches the BLEU of recurrent translators, or a better one, at a fraction of their training cost.",
    "000, 004",
    "The trainings of C2: BLEU of the valid set against training operations (matrix products, padding included). A fraction is less than "
    f"{FRACTION:.0%} of the operations of the best recurrent network, up to its final score, for every seed.",
    "A Transformer with a lower BLEU after equal updates, or one that needs half of the operations or more; one of the two: in part.",
    run,
    3.0,
)
