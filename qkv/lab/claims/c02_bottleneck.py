"""C2: one fixed context vector is a bottleneck: quality falls with the length of the source; attention removes it."""

from __future__ import annotations

from qkv.lab.experiment import Claim, ClaimResult, Experiment, Table, decide
from qkv.lab.statistics import Estimate, difference, estimate
from qkv.lab.translators import ATTENTIVE, FIXED, JOINED, SYSTEMS, measure_translator
from qkv.look.charts import curves

SHORT, LONG = str(JOINED[0]), str(JOINED[-1])


def settings(lab: Experiment) -> dict[str, tuple[str, int, int, str]]:
    """The trainings that C2, C16 and C22 share: width, updates and data of each system."""
    data = str(lab.require_data("multi30k")) if lab.full else ""
    return {name: (name, 256, 12_000, data) if lab.full else (name, 64, 500, "") for name in SYSTEMS}


def run(lab: Experiment) -> ClaimResult:
    found = lab.grid(measure_translator, settings(lab))
    bleu = {name: {n: [one["test"][str(n)]["bleu"] for one in own] for n in JOINED} for name, own in found.items()}
    loss = {name: {n: [one["test"][str(n)]["loss"] for one in own] for n in JOINED} for name, own in found.items()}
    kept = {name: [long / max(short, 1e-9) for long, short in zip(own[JOINED[-1]], own[JOINED[0]], strict=True)]
            for name, own in bleu.items()}  # fmt: skip
    rises: dict[str, Estimate] = {name: difference(own[JOINED[-1]], own[JOINED[0]]) for name, own in loss.items()}
    share = {name: estimate(own) for name, own in kept.items()}
    falls = all(share[name].high < 1 for name in FIXED)
    more = [difference(kept[a], kept[b]).low > 0 for a in ATTENTIVE for b in FIXED]
    rows = [
        [name, *(estimate(bleu[name][n]).text(1) for n in JOINED), f"{100 * share[name].mean:.0f} ± {100 * share[name].half_width:.0f}",
         rises[name].text(2)] for name in SYSTEMS
    ]  # fmt: skip
    panels = {
        "BLEU": {name: [(n, estimate(bleu[name][n]).mean) for n in JOINED] for name in SYSTEMS},
        "loss, nats per token": {name: [(n, estimate(loss[name][n]).mean) for n in JOINED] for name in SYSTEMS},
    }
    return ClaimResult(
        decide(falls and all(more), falls and any(more)),
        f"From texts of one sentence to texts of {JOINED[-1]}, all of which training had, BLEU keeps "
        + ", ".join(f"{share[name].mean:.0%} ({name})" for name in SYSTEMS) + "; the loss rises by "
        + ", ".join(f"{rises[name].mean:+.2f} ({name})" for name in SYSTEMS) + " nats per token.",
        Table(["network", *(f"BLEU, {n} sentence{'s' * (n > 1)}" for n in JOINED), "BLEU kept, %", "rise of the loss"], rows),
        curves(panels, "Quality against the length of the source", "sentences of a text"),
        lab.basis,
    )  # fmt: skip


CLAIM = Claim(
    "C2",
    "An encoder-decoder with one fixed context vector translates long sources worse than short ones; attention removes this bottleneck.",
    "000, 003",
    "Five translators with equal data, vocabulary, width, optimiser and updates, trained on texts of 1 to 4 sentences of "
    "the grammar (full: "
    "of Multi30k's captions): BLEU and loss by the number of sentences.",
    "A network with a fixed vector that keeps its BLEU on longer texts; or networks with attention that lose as much of it "
    "(some: in part).",
    run,
    3.0,
)
