"""C22: attention weights align source and target words."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

import torch

import qkv
from qkv.data.grammar import Pair, pairs
from qkv.lab.claims.c02_bottleneck import settings
from qkv.lab.demo import alignment_picture
from qkv.lab.experiment import Claim, ClaimResult, Experiment, Table, judge
from qkv.lab.statistics import below, difference, estimate, exceeds
from qkv.lab.translators import ALIGNED, ATTENTIVE, measure_translator, short_pairs
from qkv.look.alignment_error import AlignedSentence, align_pair, alignment_errors
from qkv.models.build import build

SENTENCES = 100
GOOD = 0.25
"""Alignment error rate; that of published word aligners on real text is about 0.1 to 0.3."""


def aligned_sentences(found: Iterable[Pair]) -> list[AlignedSentence]:
    """Pairs of the grammar with their alignments, in the tokens of the example model."""
    model = qkv.load("example")
    source, target = model.tokenizer, model.target_tokenizer or model.tokenizer
    assert source is not None and target is not None
    start, end = model.config.first_id or 0, model.config.eos_ids[0]
    return [align_pair(pair, source, target, start, end) for pair in found]


def example_errors(count: int, seed: int) -> dict[str, float]:
    """Error rates of the example model's best head and mean, of the same network with random weights, and of a diagonal."""
    sentences = aligned_sentences(islice(pairs("test", seed), count))
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


def shared_diagonal() -> float:
    """Error rate of the diagonal on the sentences with which C2 measures its translators."""
    return diagonal_error(aligned_sentences(short_pairs("test", 7, ALIGNED)))


def run(lab: Experiment) -> ClaimResult:
    own = lab.per_seed("example model", example_errors, 300 if lab.full else SENTENCES)
    errors = {name: [one[name] for one in own] for name in own[0]}
    best = errors["best head"]
    baselines = "diagonal", "best head, random weights"
    parts = [
        below(estimate(best), GOOD),
        *(exceeds(difference(errors[name], best)) for name in baselines),
    ]
    if not lab.full:  # the captions of the full version have no known alignments
        shared, diagonal = settings(lab), lab.measure("diagonal of C2", shared_diagonal)
        found: dict[str, list[Any]] = lab.of("C2").grid(measure_translator, {name: shared[name] for name in ATTENTIVE})
        brief = {
            f"{name}, trained briefly, best head": [one["alignment"]["best"] for one in found[name]]
            for name in ATTENTIVE
        }
        parts += [below(estimate(rates), diagonal) for rates in brief.values()]
        errors |= brief | {"diagonal, sentences of the networks trained briefly": [diagonal] * len(lab.seeds)}
    means = {name: estimate(rates) for name, rates in errors.items()}
    picture = alignment_picture(qkv.load("example"), "Yesterday the old man did not give the child an apple.")
    return ClaimResult(
        judge(*parts),
        "Compared with the alignments of the grammar, the best cross-attention head of the example model has an error rate of "
        f"{means['best head'].text(3)}, the mean of the upper layers {means['mean of the upper layers'].text(3)}; the best "
        f"head with random weights has {means['best head, random weights'].text(3)} and the diagonal {means['diagonal'].text(3)}."
        + "".join(f" {name}: {rate.text(2)}." for name, rate in means.items() if "briefly" in name),
        Table(["alignment", "error rate"], [[name, rate.text(3)] for name, rate in means.items()]),
        picture,
        f"one model, {len(lab.seeds)} samples of sentences" + ("" if lab.full else f"; {lab.basis} (trained briefly)"),
    )


CLAIM = Claim(
    "C22",
    "Attention weights from target to source align the words of the two sentences.",
    "001, 003",
    f"Alignment error rate (Och and Ney 2003) of the cross-attention of the example model on {SENTENCES} sentences (full version: 300) of "
    "the grammar's test split, whose alignments are known; quick version also: of RNNsearch, Luong's network and the Transformer of C2, "
    "trained briefly.",
    "A best head of the example model that is no better than that of random weights, no better than the diagonal, or has an error rate of "
    f"{GOOD} or more (95 % intervals over samples of sentences); a best head of one of the networks of C2 that is no better than the "
    "diagonal (quick version, over the seeds). Only some of these parts shown: holds in part.",
    run,
    0.6,
)
