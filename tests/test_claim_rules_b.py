"""The rules of claims C14 to C26: synthetic measurements with a clear answer get the verdict that the rule promises."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from qkv.errors import QkvError
from qkv.lab.claims import (
    c14_norm,
    c15_feedforward_share,
    c17_summaries,
    c18_pretraining,
    c19_senses,
    c20_heads,
    c21_word_vectors,
    c22_alignment,
    c23_long_inputs,
    c24_scaling,
    get_claim,
)
from qkv.lab.experiment import Experiment
from qkv.lab.heads import minilm_folder
from qkv.lab.scaling import ScalingLaw
from qkv.lab.translators import ATTENTIVE, SYSTEMS

YES, PART, NO, OPEN = "holds", "holds in part", "does not hold", "undecided"
UP, DOWN, WIDE = (1.0, 1.1, 1.2), (-1.0, -1.1, -1.2), (-9.0, 1.0, 9.0)
"""Differences with three seeds: clearly above 0, clearly below, and with 0 in the interval."""


class Measured(Experiment):
    """An experiment whose measurements are given; the claims that share measurements share this one."""

    def of(self, claim: str) -> Experiment:
        return self

    def measure(self, name: str, work: Any, *arguments: Any) -> Any:
        return self.measured[name]

    def grid(self, work: Any, settings: Mapping[str, Any]) -> dict[str, list[Any]]:
        return {name: self.per_seed(name, work) for name in settings}


@pytest.fixture()
def verdict(tmp_path: Path) -> Any:
    """Return the verdict of a claim on measurements; with `full`, the data folders exist and are empty."""

    def decide(claim: str, measured: Mapping[str, Any], full: bool = False) -> str:
        for name in ("all_minilm_l6_v2/config.json", "all_minilm_l6_v2/tokenizer.json", "all_minilm_l6_v2/model.safetensors",
                     "ud_english_ewt/x", "wordvec_eval/x", "imdb/x"):  # fmt: skip
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).touch()
        lab = Measured(tmp_path / "lab", full=full, data=tmp_path)
        lab.measured |= measured
        result = get_claim(claim).run(lab)
        assert all(len(row) == len(result.table.columns) for row in result.table.rows)
        return result.verdict

    return decide


def by_seed(name: str, values: Sequence[Any]) -> dict[str, Any]:
    return {f"{name}, seed {seed}": value for seed, value in enumerate(values, 1)}


# --- norms (C14), feed-forward layers (C15)


@pytest.mark.parametrize(
    ("none", "norms", "expected"),
    [([None] * 3, [3.0, 3.1, 3.2], YES), ([3.0, 3.1, 3.2], [4.0, 4.2, 4.3], NO), ([3.0, 3.1, 3.2], [None, 3.0, 3.0], NO),
     ([4.0, 4.1, 4.2], [3.0, 3.1, 3.2], PART)],
)  # fmt: skip
def test_norms(none: list[float | None], norms: list[float | None], expected: str, verdict: Any) -> None:
    """Lower losses without fewer failed runs are one of two; a diverged run is a failed one."""
    values = {"no norm": none, "post-norm": norms, "pre-norm": norms}
    measured = [by_seed(f"{name}, rate {rate:g}", own) for name, own in values.items() for rate in c14_norm.RATES]
    assert verdict("C14", {k: v for one in measured for k, v in one.items()}) == expected


def test_one_failed_run_less_is_chance() -> None:
    assert [c14_norm.fails_less(own, 6, 12) for own in (0, 5, 6, 7)] == [True, None, False, False]


@pytest.mark.parametrize(
    ("shares", "expected"),
    [((0.55, 0.56, 0.57, 0.58, 0.59, 0.6, 0.61, 0.62), YES), ((0.4, 0.39, 0.38, 0.37, 0.36, 0.35, 0.34, 0.33), NO),
     ((0.55, 0.56, 0.57, 0.52, 0.59, 0.6, 0.61, 0.62), PART), ((0.4, 0.45, 0.48, 0.49, 0.51, 0.6, 0.61, 0.62), PART)],
)  # fmt: skip
def test_every_size_counts(shares: Sequence[float], expected: str, verdict: Any) -> None:
    names = [c15_feedforward_share.describe_size(name) for name in c15_feedforward_share.SIZES]
    row = {"parameters": 1e9, "of blocks": 0.67}
    measured = {
        name: row | dict.fromkeys(("of parameters", "of operations"), x) for name, x in zip(names, shares, strict=True)
    }
    assert verdict("C15", measured | {"gpt3-xl, as printed": measured[names[0]]}) == expected


# --- translators, summaries, pre-training (C16, C17, C18)


def translator(bleu: Sequence[float], alignment: float = 0.1) -> dict[str, Any]:
    curve = [{"step": step, "bleu": one} for step, one in enumerate(bleu, 1)]
    return {"curve": curve, "operations": 10.0, "updates": len(bleu), "parameters": 5, "alignment": {"best": alignment}}


@pytest.mark.parametrize(
    ("recurrent", "transformer", "expected"),
    [([(5, 10, 15, 20)] * 3, [(20, 25, 30, 30)] * 3, YES), ([(5, 10, 15, 20)] * 3, [(1, 2, 3, 4)] * 3, NO),
     ([(5, 10, 15, 20)] * 3, [(5, 10, 15, 19.5)] * 3, PART),  # as good, within the margin; and no cheaper
     ([(20, 20, 20, 20)] * 3, [(20, 20, 20, 21)] * 3, PART),  # the recurrent network itself had its score early
     ([(5, 10, 15, 20)] * 3, [(30, 30, 30, 30), (5, 10, 15, 20), (1, 2, 3, 20)], OPEN)],
)  # fmt: skip
def test_cost_of_a_score(recurrent: Any, transformer: Any, expected: str, verdict: Any) -> None:
    found = {name: transformer if name == "Transformer" else recurrent for name in SYSTEMS}
    measured = [by_seed(name, [translator(bleu) for bleu in own]) for name, own in found.items()]
    assert verdict("C16", {k: v for one in measured for k, v in one.items()}) == expected


@pytest.mark.parametrize(("perplexity", "rouge", "expected"),
                         [(UP, UP, YES), (DOWN, DOWN, NO), (WIDE, WIDE, OPEN), (UP, WIDE, PART), (DOWN, UP, PART)])  # fmt: skip
def test_summaries(perplexity: Sequence[float], rouge: Sequence[float], expected: str, verdict: Any) -> None:
    size = {"parameters": 7, "minutes": 0.5}
    better = [{"perplexity": 20 - a, "rougeL": 20 + b, **size} for a, b in zip(perplexity, rouge, strict=True)]
    base = [{"perplexity": 20.0, "rougeL": 20.0, **size}] * 3
    measured = [by_seed(name, base if name == "recurrent" else better) for name in c17_summaries.SYSTEMS]
    assert verdict("C17", {k: v for one in measured for k, v in one.items()}) == expected


@pytest.mark.parametrize(
    ("pretrained", "lstm", "small", "large", "expected"),
    [(UP, UP, (0.0, 0.1, 0.2), UP, YES), (DOWN, DOWN, UP, DOWN, NO), (WIDE, WIDE, WIDE, WIDE[::-1], OPEN),
     (WIDE, WIDE, UP, UP, PART), (DOWN, DOWN, WIDE, DOWN, NO)],
)  # fmt: skip
def test_pretraining(pretrained: Any, lstm: Any, small: Any, large: Any, expected: str, verdict: Any) -> None:
    """A gain on the small task that the seeds leave open is no evidence that the auxiliary loss helps large tasks more."""
    rows = []
    for p, s, b in zip(pretrained, small, large, strict=True):
        own = {
            "scratch, small": 50.0,
            "scratch, large": 50.0,
            "pre-trained, small": 50 + p,
            "pre-trained, large": 50 + p,
        }
        rows.append(own | {"auxiliary, small": 50 + p + s, "auxiliary, large": 50 + p + b})
    others = [{key: value - gain for key, value in row.items()} for row, gain in zip(rows, lstm, strict=True)]
    measured = by_seed("Transformer", rows) | by_seed("LSTM", others)
    assert set(c18_pretraining.NETWORKS) == {"Transformer", "LSTM"} and verdict("C18", measured) == expected


# --- senses, heads (C19, C20)

SENSES = {"clear": [0.7, 0.72, 0.74], "equal": [0.5, 0.5, 0.5], "open": [0.5, 0.6, 0.8]}


@pytest.mark.parametrize(("grammar", "expected"), [("clear", YES), ("equal", NO), ("open", OPEN)])
def test_senses(grammar: str, expected: str, verdict: Any) -> None:
    measured = by_seed("masked model", [[0.5, one] for one in SENSES[grammar]])
    assert verdict("C19", measured) == expected
    for real, apple, full in (
        ("clear", 0.3, YES if expected == YES else PART),
        ("equal", -0.3, PART if expected == YES else NO),
    ):
        minilm = {"accuracy": {str(i): [0.5, one] for i, one in enumerate(SENSES[real])}, "apple": [[0.0, apple]] * 8}
        assert verdict("C19", measured | {"MiniLM": minilm}, full=True) == full


def head_scores(head: Sequence[float], distance: float = 0.5) -> list[dict[str, list[float]]]:
    """The best head of every relation finds these shares, one for each seed; a distance finds `distance`."""
    names = (*c20_heads.NEIGHBOURS, "adjective to noun")
    return [{name: [0, 1, one, distance, 100] for name in names} for one in head]


@pytest.mark.parametrize(
    ("head", "distance", "expected"),
    [((0.8, 0.81, 0.82), 0.5, YES), ((0.3, 0.31, 0.32), 0.5, NO), ((0.2, 0.5, 0.9), 0.5, OPEN), ((0.8, 0.81, 0.82), 0.9, PART),
     ((0.8, 0.81, 0.82), 0.99, PART)],
)  # fmt: skip
def test_heads(head: Sequence[float], distance: float, expected: str, verdict: Any) -> None:
    """The last case: without a relation of syntax to look at, nothing about syntax has been shown."""
    assert verdict("C20", by_seed("masked model", head_scores(head, distance))) == expected


@pytest.mark.parametrize(
    ("lead", "always", "p", "expected"), [(0.2, 4, 0.004, YES), (-0.2, 0, 1.0, PART), (0.2, 1, 0.3, PART)]
)
def test_a_real_encoder_counts_in_the_full_version(
    lead: float, always: int, p: float, expected: str, verdict: Any
) -> None:
    measured = by_seed("masked model", head_scores((0.8, 0.81, 0.82)))
    real = {
        name: [0, 1, 0.5 + lead + i / 100, 0.5, 9]
        for i, name in enumerate((*c20_heads.NEIGHBOURS, "det", "amod", "obj"))
    }
    it = {"pairs": 8, "heads": 72, "always": always, "p": p}
    assert verdict("C20", measured | {"MiniLM": real, "it": it}, full=True) == expected


def test_heads_that_agree_with_each_other_are_no_chance() -> None:
    right = torch.ones(8, 1)
    mixed = torch.tensor([1.0, -1.0]).repeat(4)[:, None].repeat(1, 6)  # six heads that are right in the same four pairs
    assert c20_heads.exchange_test(right.repeat(1, 5)) == {"always": 5, "p": 1 / 256}
    assert c20_heads.exchange_test(torch.cat([right, mixed], 1)) == {"always": 1, "p": 2 / 256}
    assert c20_heads.exchange_test(-right) == {"always": 0, "p": 1.0}


def test_an_encoder_without_weights_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "all_minilm_l6_v2").mkdir()
    (tmp_path / "all_minilm_l6_v2" / "config.json").touch()
    with pytest.raises(QkvError, match=r"no tokenizer\.json and no model\.safetensors: copy .* hf download"):
        minilm_folder(Experiment(tmp_path / "lab", data=tmp_path))


def test_a_word_needs_both_senses_in_both_parts_of_a_treebank() -> None:
    known = [((), 0, word, sense) for word in ("run", "walk", "talk") for sense in (0, 1) for _ in range(12)]
    new = [
        ((), 0, word, sense)
        for word in ("run", "walk")
        for sense in (0, 1)
        if (word, sense) != ("walk", 1)
        for _ in "ab"
    ]
    assert c19_senses.ambiguous_words(known, new) == {"run"}
    with pytest.raises(QkvError, match="no word occurs as a noun and as a verb"):
        c19_senses.ambiguous_words(known, [])


# --- word vectors, alignment, long inputs (C21, C22, C23)


@pytest.mark.parametrize(
    ("same", "right", "google", "expected"),
    [((0.8, 0.81, 0.82), (80.0, 81.0, 82.0), 60.0, (YES, YES)), ((0.1, 0.11, 0.12), (20.0, 21.0, 22.0), 5.0, (NO, PART)),
     ((0.1, 0.3, 0.5), (20.0, 50.0, 90.0), 5.0, (OPEN, PART)), ((0.8, 0.81, 0.82), (80.0, 81.0, 82.0), 20.0, (YES, PART))],
)  # fmt: skip
def test_word_vectors(same: Any, right: Any, google: float, expected: tuple[str, str], verdict: Any) -> None:
    """The correct word itself never counts in the grammar; in the full version Google's analogies do."""
    words = [*c21_word_vectors.RELATIONS]

    def row(a: float, b: float) -> dict[str, float]:
        return {"same kind": a, "other kinds": 0.2, "nearest of its kind": b, **dict.fromkeys(words, 10.0),
                **dict.fromkeys([f"{name}, form and kind" for name in words], b)}  # fmt: skip

    grammar = [
        {"word2vec": row(a, b), "one-hot": dict.fromkeys(row(a, b), 0.0)} for a, b in zip(same, right, strict=True)
    ]
    reviews = [{"word2vec": {"wordsim353": 40 + x, "simlex999": 30 + x, "analogies": google + x},
                "one-hot": {"wordsim353": 9.0, "simlex999": 0.0, "analogies": 0.0}} for x in UP]  # fmt: skip
    assert verdict("C21", by_seed("vectors", grammar)) == expected[0]
    assert verdict("C21", by_seed("vectors", grammar) | by_seed("reviews", reviews), full=True) == expected[1]


@pytest.mark.parametrize(
    ("example", "brief", "expected"),
    [((0.1, 0.11, 0.12), (0.2, 0.21, 0.22), YES), ((0.7, 0.71, 0.72), (0.7, 0.71, 0.72), NO),
     ((0.0, 0.3, 0.9), (0.1, 0.4, 0.9), OPEN), ((0.3, 0.31, 0.32), (0.2, 0.21, 0.22), PART)],
)  # fmt: skip
def test_alignment(example: Any, brief: Any, expected: str, verdict: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(c22_alignment, "alignment_picture", lambda *_: "<svg/>")
    monkeypatch.setattr(c22_alignment.qkv, "load", lambda *_: None)
    rest = {"mean of the upper layers": 0.2, "best head, random weights": 0.6, "diagonal": 0.5}
    measured = by_seed("example model", [rest | {"best head": one} for one in example]) | {"diagonal of C2": 0.5}
    for name in ATTENTIVE:
        measured |= by_seed(name, [translator([1.0], one) for one in brief])
    assert verdict("C22", measured) == expected


def long_inputs(power: float, kernel: Sequence[float], others: float) -> dict[str, Any]:
    """Time and memory of the plain formula grow with this power; those of the kernel and of approximations are shares of them."""
    measured: dict[str, Any] = {}
    for name in c23_long_inputs.METHODS:
        shares = {c23_long_inputs.READABLE: (1.0, 1.01, 1.02), c23_long_inputs.FAST: kernel}.get(name, [others] * 3)
        measured |= {f"time, {name}, {n}": [x * n**power for x in shares] for n in (1024, 2048, 4096)}
        measured[f"memory, {name}"] = [shares[0] * n**power for n in (1024, 2048, 4096)]
        measured |= by_seed(name, [2.0, 2.1, 2.2])
    return measured


@pytest.mark.parametrize(
    ("power", "kernel", "others", "expected"),
    [(2.0, (0.2, 0.21, 0.22), 0.4, YES), (1.0, (0.9, 0.91, 0.92), 0.1, NO), (2.0, (0.2, 0.21, 0.22), 0.1, PART)],
)  # fmt: skip
def test_long_inputs(power: float, kernel: Any, others: float, expected: str, verdict: Any) -> None:
    """A kernel slower than the approximations does not compete with them."""
    assert verdict("C23", long_inputs(power, kernel, others)) == expected


def test_half_of_the_approximations_is_enough() -> None:
    cases = [(True, True, False, False), (True, None, None, False), (True, False, False, False), (None,) * 4]
    assert [c23_long_inputs.competes(case) for case in cases] == [True, None, False, None]


# --- scaling laws, images, residual stream (C24, C25, C26)


def runs(loss: Any, noise: float) -> dict[str, Any]:
    """Runs of four widths with this loss of parameters and tokens; the seeds differ by `noise`."""
    measured: dict[str, Any] = {}
    for k, width in enumerate((16, 32, 64, 128)):
        size = 24 * width**2
        scores = [[[step, loss(size, step * c24_scaling.BATCH) * (1 + noise * (seed - 1) * (-1) ** k)] for step in range(50, 301, 50)]
                  for seed in range(3)]  # fmt: skip
        measured |= by_seed(f"width {width}", [{"parameters": size, "scores": own} for own in scores])
    return measured


@pytest.mark.parametrize(
    ("loss", "noise", "expected"),
    [(ScalingLaw(1.5, 30.0, 300.0, 0.4, 0.5).loss, 0.0005, YES),
     (lambda n, d: 3.0 + 0.02 * math.log(n) + 0.02 * math.log(d), 0.0, NO),  # the loss grows
     (lambda n, d: 12.0 - 0.3 * math.log(n) - 0.2 * math.log(d), 0.0005, PART)],  # no power law, but better than none
)  # fmt: skip
def test_scaling(loss: Any, noise: float, expected: str, verdict: Any) -> None:
    assert verdict("C24", runs(loss, noise)) == expected


def test_rival_predictions_are_right_where_they_should_be() -> None:
    found = c24_scaling.fit_seed(
        [runs(lambda n, d: 9 - 0.3 * math.log(n * d), 0.0)[f"width {w}, seed 1"] for w in (16, 32, 64, 128)]
    )
    assert found["log-linear"] < 1e-9 < found["power law"] < found["carry forward"]


@pytest.mark.parametrize(
    ("two", "four", "expected"),
    [((95.0, 96.0, 97.0), (94.0, 95.0, 96.0), YES), ((50.0, 51.0, 52.0), (60.0, 61.0, 62.0), NO), ((80.0, 90.0, 99.0),) * 2 + (OPEN,),
     ((95.0, 96.0, 97.0), (60.0, 61.0, 62.0), PART)],
)  # fmt: skip
def test_images(two: Any, four: Any, expected: str, verdict: Any) -> None:
    """The outputs that are equal by construction decide nothing."""
    scores = {"2 x 2": two, "4 x 4": four, "8 x 8": two, "2 x 2, no positions": two}
    measured = by_seed("stack", [{"weights": 30, "difference": 0.0}] * 3)
    for name, own in scores.items():
        measured |= by_seed(name, own)
    assert verdict("C25", measured) == expected


@pytest.mark.parametrize(
    ("before", "last", "expected"),
    [((0.4, 0.5, 0.45), (1.0, 1.0, 1.0), YES), ((0.01, 0.02, 0.01), (1.0, 1.0, 1.0), PART), ((0.01, 0.02, 0.01),) * 2 + (NO,),
     ((0.0, 0.1, 0.5), (0.1, 0.2, 0.9), OPEN)],
)  # fmt: skip
def test_a_prediction_that_appears_in_the_last_block_only_does_not_emerge(
    before: Any, last: Any, expected: str, verdict: Any
) -> None:
    lens = {
        "embedding": [0.0] * 3,
        "0 attention": [0.0] * 3,
        "0 feedforward": before,
        "1 attention": before,
        "1 feedforward": last,
    }
    assert verdict("C26", by_seed("reconstruction", [1e-7] * 3) | {"lens": lens}) == expected
