"""Metrics of classes, numbers, tags, answers and language models, each as its benchmark defines it.

Every function takes the predictions, then the correct answers in the same order, and returns a fraction (0.912, not 91.2 %) or a
correlation from -1 to 1. A division by zero gives 0. `score_labels` returns a metric of the table `METRICS` as a `Score`, in
per cent. Equal to scikit-learn's and scipy's functions (tests/test_metrics.py), whose import would take longer than they do.
"""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from qkv.errors import QkvError
from qkv.evaluate.scores import Score

Labels = Sequence[Hashable]


def check_pairs(predicted: Sequence[object], right: Sequence[object]) -> int:
    """Return the number of predictions, or raise an error unless there is one for each correct answer."""
    if len(predicted) != len(right) or not len(right):
        raise QkvError(
            f"{len(predicted)} predictions for {len(right)} answers: give one prediction for each, and at least one"
        )
    return len(right)


# --- classes


def accuracy(predicted: Labels, right: Labels) -> float:
    """Return the share of correct predictions."""
    return sum(p == r for p, r in zip(predicted, right, strict=True)) / check_pairs(predicted, right)


def f1_from_counts(hits: int, predicted: int, right: int) -> float:
    """Return the harmonic mean of precision (hits / predicted) and recall (hits / right): 2 hits / (predicted + right)."""
    return 2 * hits / (predicted + right) if predicted + right else 0.0


def f1(predicted: Labels, right: Labels, positive: Hashable) -> float:
    """Return the F1 of the class `positive`."""
    check_pairs(predicted, right)
    hits = sum(p == r == positive for p, r in zip(predicted, right, strict=True))
    return f1_from_counts(hits, sum(p == positive for p in predicted), sum(r == positive for r in right))


def macro_f1(predicted: Labels, right: Labels) -> float:
    """Return the unweighted mean of the F1 of every class that occurs."""
    check_pairs(predicted, right)
    hits = Counter(p for p, r in zip(predicted, right, strict=True) if p == r)
    found, wanted = Counter(predicted), Counter(right)
    classes = {*found, *wanted}
    return math.fsum(f1_from_counts(hits[one], found[one], wanted[one]) for one in classes) / len(classes)


def matthews(predicted: Labels, right: Labels) -> float:
    """Return Matthews' correlation of two classes, or Gorodkin's (2004) of several:

        (s c - sum_k p_k r_k) / sqrt((s² - sum_k p_k²) (s² - sum_k r_k²))

    with s examples, c correct predictions, and p_k predictions and r_k correct answers of class k. 0 = chance.
    """
    s = check_pairs(predicted, right)
    c = sum(p == r for p, r in zip(predicted, right, strict=True))
    p_k, r_k = Counter(predicted), Counter(right)
    both = s * c - sum(count * r_k[one] for one, count in p_k.items())
    spreads = [s * s - sum(count * count for count in counts.values()) for counts in (p_k, r_k)]
    return both / math.sqrt(spreads[0] * spreads[1]) if all(spreads) else 0.0


# --- numbers


def pearson(predicted: Sequence[float], right: Sequence[float]) -> float:
    """Return Pearson's linear correlation: the covariance divided by both standard deviations."""
    check_pairs(predicted, right)
    x, y = (np.asarray(values, dtype=np.float64) for values in (predicted, right))
    x, y = x - x.mean(), y - y.mean()
    spread = math.sqrt(float(x @ x) * float(y @ y))
    return float(x @ y) / spread if spread else 0.0


def spearman(predicted: Sequence[float], right: Sequence[float]) -> float:
    """Return Spearman's rank correlation: Pearson's correlation of the ranks."""
    return pearson(ranks(predicted), ranks(right))


def ranks(values: Sequence[float]) -> list[float]:
    """Return ranks from 1 for the smallest value; equal values share their mean rank."""
    _, group, sizes = np.unique(np.asarray(values, dtype=np.float64), return_inverse=True, return_counts=True)
    last = np.cumsum(sizes)  # the rank of the last of each group of equal values
    return [float(rank) for rank in (last - (sizes - 1) / 2)[group]]


# --- extracted answers (SQuAD)


def normalize_answer(answer: str) -> str:
    """Normalise an answer as SQuAD does (Rajpurkar et al. 2016): lowercase, no punctuation, no articles, single spaces."""
    letters = "".join(c for c in answer.lower() if c not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", letters).split())


def exact_match(predicted: str, answers: Sequence[str]) -> float:
    """Return 1 if the normalised prediction is one of the correct answers; an unanswerable question has the answer ""."""
    return float(normalize_answer(predicted) in map(normalize_answer, answers or [""]))


def answer_f1(predicted: str, answers: Sequence[str]) -> float:
    """Return the word F1 with the most similar correct answer."""
    words, *right = (normalize_answer(text).split() for text in (predicted, *(answers or [""])))
    return max(word_f1(words, answer) for answer in right)


def word_f1(predicted: Sequence[str], right: Sequence[str]) -> float:
    """Return the F1 of two bags of words; 1 if both are empty."""
    if not predicted or not right:
        return float(predicted == right)
    return f1_from_counts((Counter(predicted) & Counter(right)).total(), len(predicted), len(right))


# --- tags


def tag_accuracy(predicted: Iterable[Sequence[str]], right: Iterable[Sequence[str]]) -> float:
    """Return the share of words with the correct tag, over all sentences."""
    pairs = [(p, r) for ps, rs in zip(predicted, right, strict=True) for p, r in zip(ps, rs, strict=True)]
    return accuracy([p for p, _ in pairs], [r for _, r in pairs])


def entity_f1(predicted: Iterable[Sequence[str]], right: Iterable[Sequence[str]]) -> float:
    """Return the F1 of entities as conlleval counts them: first word, last word and type must be correct."""
    hits = found = wanted = 0
    for ps, rs in zip(predicted, right, strict=True):
        ours, theirs = entity_spans(ps), entity_spans(rs)
        hits, found, wanted = hits + len(ours & theirs), found + len(ours), wanted + len(theirs)
    return f1_from_counts(hits, found, wanted)


def entity_spans(tags: Sequence[str]) -> set[tuple[int, int, str]]:
    """Return (first word, last word + 1, type) of each entity in B-I-O tags, with or without E (last) and S (single).

    Invalid sequences are read as in conlleval: an entity starts wherever the type differs from the tag before: "O I-PER" starts a
    person, "B-PER I-ORG" is two entities.
    """
    entities: set[tuple[int, int, str]] = set()
    start, before, kind_before = 0, "O", ""
    for at, tag in enumerate([*tags, "O"]):
        place, _, kind = tag.partition("-")
        new = place in "BSO" or before in "ESO" or kind != kind_before
        if new and before != "O":
            entities.add((start, at, kind_before))
        if new:
            start = at
        before, kind_before = place, kind
    return entities


# --- language models


def perplexity(nats: float, tokens: int) -> float:
    """Return exp(mean loss per token)."""
    return math.exp(min(nats / tokens, 700.0))  # beyond it float64 overflows


def bits_per_byte(nats: float, n_bytes: int) -> float:
    """Return the loss per byte of text in bits: unlike perplexity, comparable between tokenizers."""
    return nats / (math.log(2) * n_bytes)


# --- test sets


METRICS: dict[str, Callable[[list[str], list[str], str], float]] = {
    "accuracy": lambda predicted, right, positive: accuracy(predicted, right),
    "f1": f1,
    "macro_f1": lambda predicted, right, positive: macro_f1(predicted, right),
    "matthews": lambda predicted, right, positive: matthews(predicted, right),
    "pearson": lambda predicted, right, positive: pearson([float(p) for p in predicted], [float(r) for r in right]),
    "spearman": lambda predicted, right, positive: spearman([float(p) for p in predicted], [float(r) for r in right]),
}
"""Metrics of a test set, for labels and numbers as text. Only F1 depends on the positive class."""
YES = ("1", "+1", "yes", "y", "true", "t", "positive", "pos")
NO = re.compile(r"0|-1|no|n|false|f|negative|neg|none|(?:not|no|non)[ _-].+")


def positive_class(labels: Iterable[str]) -> str:
    """Return the positive class of F1: the one that means yes, else the one that is not a no, else the last in sorted order."""
    known = sorted(set(labels))
    positive = [label for label in known if label.lower() in YES]
    positive = positive or [label for label in known if not NO.fullmatch(label.lower())]
    return positive[-1] if positive else known[-1]


def score_labels(metric: str, predicted: Sequence[str], right: Sequence[str], labels: Sequence[str] = ()) -> Score:
    """Return a metric of a test set in per cent. `labels` are all classes, of which some may not occur. The signature of F1 names
    the positive class."""
    check_pairs(predicted, right)
    positive = positive_class(labels or [*predicted, *right])
    value = METRICS[metric](list(predicted), list(right), positive)
    signature = f"metric:f1|positive:{positive}|examples:{len(right)}" if metric == "f1" else ""
    return Score(metric, 100 * value, signature)


# --- GLUE


@dataclass(frozen=True)
class GlueTask:
    """One task of GLUE (Wang et al. 2019)."""

    file: str
    """Name of the file in a submission."""
    metrics: tuple[str, ...]
    """Keys of METRICS; the first is the main one."""


GLUE = {
    "cola": GlueTask("CoLA.tsv", ("matthews",)),
    "sst2": GlueTask("SST-2.tsv", ("accuracy",)),
    "mrpc": GlueTask("MRPC.tsv", ("f1", "accuracy")),
    "stsb": GlueTask("STS-B.tsv", ("spearman", "pearson")),
    "qqp": GlueTask("QQP.tsv", ("f1", "accuracy")),
    "mnli": GlueTask("MNLI-m.tsv", ("accuracy",)),
    "mnli-mm": GlueTask("MNLI-mm.tsv", ("accuracy",)),
    "qnli": GlueTask("QNLI.tsv", ("accuracy",)),
    "rte": GlueTask("RTE.tsv", ("accuracy",)),
    "wnli": GlueTask("WNLI.tsv", ("accuracy",)),
    "ax": GlueTask("AX.tsv", ("matthews",)),
}


def glue_task(name: str | None) -> GlueTask | None:
    """Return the GLUE task of a data set's name, such as glue/cola or sst-2; None for any other."""
    last = re.split(r"[/_]", (name or "").lower())[-1]
    return GLUE.get(last) or GLUE.get(last.replace("-", ""))


def submission(predicted: Iterable[str | float]) -> str:
    """Return a file for GLUE's server: a header, then index TAB label; regression scores are clipped to 0 to 5."""
    labels = (p if isinstance(p, str) else f"{min(max(p, 0.0), 5.0):.3f}" for p in predicted)
    return "index\tprediction\n" + "".join(f"{index}\t{label}\n" for index, label in enumerate(labels))
