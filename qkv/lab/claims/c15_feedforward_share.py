"""C15: most parameters and operations are in the feed-forward layers, and more so as the model grows."""

from __future__ import annotations

from qkv.lab.experiment import Claim, ClaimResult, Experiment, Table
from qkv.look.charts import lines
from qkv.models.cost import cost
from qkv.presets import preset

SIZES = ("gpt3-small", "gpt3-medium", "gpt3-large", "gpt3-xl", "gpt3-2.7b", "gpt3-6.7b", "gpt3-13b", "gpt3-175b")
LENGTH = 2048
COLUMNS = ("of parameters", "of blocks", "of operations")


def shares(name: str) -> dict[str, float]:
    """Share of the feed-forward layers in the parameters, in those of the blocks, and in the operations of a full context."""
    counted = cost(preset(name), (1, LENGTH, 0))
    parts = {one.part: one for one in counted.parts}
    feedforward, blocks = parts["feed-forward"], (parts["feed-forward"], parts["attention projections"])
    return {
        "parameters": counted.total.parameters,
        "of parameters": feedforward.parameters / counted.total.parameters,
        "of blocks": feedforward.parameters / sum(one.parameters for one in blocks),
        "of operations": feedforward.forward / counted.total.forward,
    }


def run(lab: Experiment) -> ClaimResult:
    found = {name: lab.measure(name, shares, name) for name in SIZES}
    first, last = found[SIZES[0]], found[SIZES[-1]]
    most = last["of parameters"] > 0.5 and last["of operations"] > 0.5
    grows = all(last[key] > first[key] for key in ("of parameters", "of operations"))
    small = first["of parameters"] > 0.5
    verdict = "holds" if most and grows and small else "holds in part" if most and grows else "does not hold"
    return ClaimResult(
        verdict,  # type: ignore[arg-type]
        f"GPT-3 small has {first['of parameters']:.0%} of its parameters and {first['of operations']:.0%} of its operations in "
        f"feed-forward layers, "
        f"GPT-3 175B {last['of parameters']:.0%} and {last['of operations']:.0%}. Inside the blocks the share is "
        "2/3 at every size: what shrinks is "
        "the part of the word matrix and of the pairs of tokens.",
        Table(["model", "parameters", "share of parameters", "share of the blocks", f"share of operations, {LENGTH:,} tokens"],
              [[name, f"{int(one['parameters']):,}", *(f"{one[key]:.1%}" for key in COLUMNS)] for name, one in found.items()]),
        lines({key: [(one["parameters"], 100 * one[key]) for one in found.values()] for key in ("of parameters", "of operations")},
              "Feed-forward layers in GPT-3", "parameters", "share in per cent", log_x=True),
        "exact",
    )  # fmt: skip


CLAIM = Claim(
    "C15",
    "Most parameters and most operations of a Transformer are in its feed-forward layers, and their share grows with the model.",
    "000, 001",
    f"The eight sizes of GPT-3: parameters and operations by part with {LENGTH:,} tokens of context, as `qkv cost` counts them.",
    "A size below one half, or a share that falls as the model grows.",
    run,
    0.2,
)
