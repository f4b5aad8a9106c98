"""C22: attention weights align source and target words."""

from __future__ import annotations

from itertools import islice
from typing import Any

import torch

import qkv
from qkv.data.grammar import pairs
from qkv.lab.claims.c02_bottleneck import settings
from qkv.lab.demo import alignment_picture
from qkv.lab.experiment import Claim, ClaimResult, Experiment, Table, decide
from qkv.lab.statistics import estimate
from qkv.lab.translators import ATTENTIVE, measure_translator
from qkv.look.alignment_error import AlignedSentence, align_pair, alignment_errors
from qkv.models.build import build

SENTENCES = 100
GOOD = 0.25
"""Alignment error rate; that of published word aligners on real text is about 0.1 to 0.3."""


def aligned_sentences(seed: int, count: int) -> list[AlignedSentence]:
    model = qkv.load("example")
    source, target = model.tokenizer, model.target_tokenizer or model.tokenizer
    assert source is not None and target is not None
    start, end = model.config.first_id or 0, model.config.eos_ids[0]
    return [align_pair(pair, source, target, start, end) for pair in islice(pairs("test", seed), count)]


def example_errors(count: int, seed: int) -> dict[str, float]:
    """Error rates of the example model's best head and mean, of the same network with random weights, and of a diagonal."""
    sentences = aligned_sentences(seed, count)
    model = qkv.load("example", device="cpu")
    torch.manual_seed(seed)
    trained, random = (
        alignment_errors(model.network, sentences),
        alignment_errors(build(model.config).eval(), sentences),
    )
    return {"best head": trained.best[2], "mean of the upper layers": trained.mean, "best head, random weights": random.best[2],
            "diagonal": diagonal_error(sentences)}  # fmt: skip


def diagonal_error(sentences: list[AlignedSentence]) -> float:
    """Error rate of linking each target word with the source word at the same share of the sentence."""
    right = total = 0
    for one in sentences:
        sources, targets = (sorted({w for w in words if w is not None}) for words in (one.source, one.target))
        links = {
            (sources[min(len(sources) - 1, i * len(sources) // len(targets))], word) for i, word in enumerate(targets)
        }
        right, total = right + len(links & one.gold), total + len(links) + len(one.gold)
    return 1 - 2 * right / max(total, 1)


def run(lab: Experiment) -> ClaimResult:
    own = lab.per_seed("example model", example_errors, 300 if lab.full else SENTENCES)
    rates = {name: estimate([one[name] for one in own]) for name in own[0]}
    if not lab.full:  # the captions of the full version have no known alignments
        shared = settings(lab)
        found: dict[str, list[Any]] = lab.of("C2").grid(measure_translator, {name: shared[name] for name in ATTENTIVE})
        rates |= {
            f"{name}, trained briefly, best head": estimate([one["alignment"]["best"] for one in found[name]])
            for name in ATTENTIVE
        }
    model = rates["best head"]
    aligns = model.high < GOOD
    better = model.high < min(rates["diagonal"].low, rates["best head, random weights"].low)
    picture = alignment_picture(qkv.load("example"), "Yesterday the old man did not give the child an apple.")
    return ClaimResult(
        decide(aligns and better, better),
        "Against the grammar's own alignments the best cross-attention head of the example model has an error rate of "
        f"{model.text(3)}, the "
        f"mean of the upper layers {rates['mean of the upper layers'].text(3)}; the best head of random weights has "
        f"{rates['best head, random weights'].text(3)} and the diagonal {rates['diagonal'].text(3)}."
        + "".join(f" {name}: {rate.text(2)}." for name, rate in rates.items() if "briefly" in name),
        Table(["links from", "alignment error rate"], [[name, rate.text(3)] for name, rate in rates.items()]),
        picture,
        f"one model, {len(lab.seeds)} samples of sentences; {lab.basis} (trained briefly)",
    )


CLAIM = Claim(
    "C22",
    "The weights of attention between target and source align their words.",
    "001, 003",
    f"Alignment error rate (Och and Ney 2003) of the cross-attention of the example model on {SENTENCES} sentences of the grammar's test "
    "split, whose alignments are known; and of RNNsearch, Luong's network and the Transformer of C2.",
    f"An error rate of the best head above {GOOD}; (does not hold) one that is no better than random weights or the diagonal.",
    run,
    0.6,
)
