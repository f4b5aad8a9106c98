"""C2: one fixed context vector is a bottleneck: quality falls with the length of the source; attention removes it."""

from __future__ import annotations

from qkv.lab.experiment import Claim, ClaimResult, Experiment, Table, judge
from qkv.lab.statistics import Estimate, below, difference, estimate, exceeds
from qkv.lab.translators import ATTENTIVE, FIXED, JOINED, SYSTEMS, measure_translator
from qkv.look.charts import curves

SHORT, LONG = str(JOINED[0]), str(JOINED[-1])


def settings(lab: Experiment) -> dict[str, tuple[str, int, int, str]]:
    """The trainings that C2, C16 and C22 share: width, updates and data of each system."""
    data = str(lab.require_data("multi30k")) if lab.full else ""
    return {name: (name, 128, 1500, data) if lab.full else (name, 64, 500, "") for name in SYSTEMS}


def run(lab: Experiment) -> ClaimResult:
    found = lab.grid(measure_translator, settings(lab))
    bleu = {name: {n: [one["test"][str(n)]["bleu"] for one in own] for n in JOINED} for name, own in found.items()}
    loss = {name: {n: [one["test"][str(n)]["loss"] for one in own] for n in JOINED} for name, own in found.items()}
    kept = {name: [long / max(short, 1e-9) for long, short in zip(own[JOINED[-1]], own[JOINED[0]], strict=True)]
            for name, own in bleu.items()}  # fmt: skip
    rises: dict[str, Estimate] = {name: difference(own[JOINED[-1]], own[JOINED[0]]) for name, own in loss.items()}
    share = {name: estimate(own) for name, own in kept.items()}
    falls = [below(share[name], 1) for name in FIXED]
    more = [exceeds(difference(kept[a], kept[b])) for a in ATTENTIVE for b in FIXED]
    rows = [
        [name, f"{found[name][0]['parameters']:,}", f"{estimate([one['minutes'] for one in found[name]]).mean:.1f}",
         *(estimate(bleu[name][n]).text(1) for n in JOINED), f"{100 * share[name].mean:.0f} ± {100 * share[name].half_width:.0f}",
         rises[name].text(2)] for name in SYSTEMS
    ]  # fmt: skip
    panels = {
        "BLEU": {name: [(n, estimate(bleu[name][n]).mean) for n in JOINED] for name in SYSTEMS},
        "loss, nats per token": {name: [(n, estimate(loss[name][n]).mean) for n in JOINED] for name in SYSTEMS},
    }
    return ClaimResult(
        judge(*falls, *more),
        f"On texts of {JOINED[-1]} sentences, a length that occurs in training, BLEU is "
        + ", ".join(f"{share[name].mean:.0%} ({name})" for name in SYSTEMS) + " of that on single sentences; the loss changes by "
        + ", ".join(f"{rises[name].mean:+.2f} ({name})" for name in SYSTEMS) + " nats per token.",
        Table(["network", "parameters", "minutes", f"BLEU, {SHORT} sentence", *map(str, JOINED[1:]), f"{LONG} / {SHORT}, %",
               "change in loss"], rows),
        curves(panels, "Translation quality by length of the source", "sentences per text"),
        lab.basis,
    )  # fmt: skip


CLAIM = Claim(
    "C2",
    "An encoder-decoder with one fixed context vector translates long sources worse than short ones; attention removes this bottleneck.",
    "000, 003",
    "Five translators with the same data, vocabulary, width, batches, number of updates and optimiser (Muon with one learning rate for "
    "all, which is not the best one for each; full version: AdamW with 5e-3, Luong's network with 2e-3), trained on texts of 1 to 4 "
    "sentences of the embedded grammar (full version: captions of Multi30k, German to English, half of the texts single ones). "
    "BLEU and loss by the number of sentences; training time on one core, tokenizer and evaluations included.",
    f"BLEU on texts of {LONG} sentences relative to that on single ones: a network with a fixed context vector that keeps all of it, or a "
    "network with attention that keeps no more of it than one with a fixed context vector. Only some of these eight comparisons: holds in "
    "part.",
    run,
    3.0,
)
