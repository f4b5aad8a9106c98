"""C15: most parameters and operations are in the feed-forward layers, and more so as the model grows."""

from __future__ import annotations

from itertools import pairwise

from qkv.lab.experiment import Claim, ClaimResult, Experiment, Table, judge
from qkv.look.charts import lines
from qkv.models.cost import cost
from qkv.presets import preset

SIZES = ("gpt3-small", "gpt3-medium", "gpt3-large", "gpt3-xl", "gpt3-2.7b", "gpt3-6.7b", "gpt3-13b", "gpt3-175b")
HEADS = {"gpt3-xl": 16}
"""The table of the lecture gives XL 24 heads of 128 for a width of 2,048; 16 heads of 128 are that width."""
LENGTH = 2048
COLUMNS = ("of parameters", "of blocks", "of operations")
JUDGED = ("of parameters", "of operations")


def shares(name: str, heads: int | None = None) -> dict[str, float]:
    """Share of the feed-forward layers in the parameters, in those of the blocks, and in the operations of a full context.

    heads: in place of the preset's.
    """
    config = preset(name)
    counted = cost(config.model_copy(update={"n_heads": heads or config.n_heads}), (1, LENGTH, 0))
    parts = {one.part: one for one in counted.parts}
    feedforward, blocks = parts["feed-forward"], (parts["feed-forward"], parts["attention projections"])
    return {
        "parameters": counted.total.parameters,
        "of parameters": feedforward.parameters / counted.total.parameters,
        "of blocks": feedforward.parameters / sum(one.parameters for one in blocks),
        "of operations": feedforward.forward / counted.total.forward,
    }


def run(lab: Experiment) -> ClaimResult:
    found = {describe_size(name): lab.measure(describe_size(name), shares, name, HEADS.get(name)) for name in SIZES}
    printed = {f"{name}, as printed": lab.measure(f"{name}, as printed", shares, name) for name in HEADS}
    sizes = list(found.values())
    most = [all(one[key] > 0.5 for one in sizes) for key in JUDGED]
    grows = [all(a[key] < b[key] for a, b in pairwise(sizes)) for key in JUDGED]
    blocks = [one["of blocks"] for one in sizes]
    return ClaimResult(
        judge(*most, *grows),
        " ".join(describe_share(key, found) for key in JUDGED)
        + f" Within the blocks it is {min(blocks):.1%} to {max(blocks):.1%} of the parameters.",
        Table(["model", "parameters", "share of parameters", "share within blocks", "share of operations"],
              [[name, f"{int(one['parameters']):,}", *(f"{one[key]:.1%}" for key in COLUMNS)] for name, one in (found | printed).items()]),
        lines({key: [(one["parameters"], 100 * one[key]) for one in sizes] for key in JUDGED},
              "Feed-forward layers in GPT-3", "parameters", "share, %", log_x=True),
        "exact",
    )  # fmt: skip


def describe_size(name: str) -> str:
    return f"{name}, {HEADS[name]} heads" if name in HEADS else name


def describe_share(key: str, found: dict[str, dict[str, float]]) -> str:
    """Say where a share begins and ends, at which sizes it is one half or less, and at which it falls."""
    names, values = list(found), [one[key] for one in found.values()]
    small = [name for name in names if found[name][key] <= 0.5]
    falls = [name for name, (before, after) in zip(names[1:], pairwise(values), strict=True) if after <= before]
    return (
        f"The share of the feed-forward layers in the {key.removeprefix('of ')} is {values[0]:.1%} in {names[0]} and {values[-1]:.1%} in "
        f"{names[-1]}; one half or less in: {', '.join(small) or 'no size'}; no higher than in the next smaller size in: "
        f"{', '.join(falls) or 'no size'}."
    )


CLAIM = Claim(
    "C15",
    "Most parameters and most operations of a Transformer are in its feed-forward layers, and their share grows with the model.",
    "000, 001",
    f"The eight sizes of GPT-3: parameters and operations by part with {LENGTH:,} tokens of context, as counted by qkv cost. "
    "The lecture prints 24 heads of 128 for XL, which are wider than its d_model of 2,048: it is judged with 16; the printed size is in "
    "the table.",
    "Four parts, for parameters and for operations: a size with a share of one half or less; a size with a share that is no higher than "
    "in the next smaller one. Only some of the parts shown: holds in part.",
    run,
    0.2,
)
