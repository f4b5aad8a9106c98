"""How right answers are: classes, scores, tags, answers and texts, each measured as its benchmark measures it.

Every function takes what was predicted and then what is right, in the same order, and gives a fraction (0.912, not
91.2 %) or, for correlations, a number from -1 to 1. Where a formula divides by nothing the result is 0. The functions
of the table `METRICS` turn a whole test set into a `Score`, in per cent as papers print it.
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


def paired(predicted: Sequence[object], right: Sequence[object]) -> int:
    """How many there are, of both."""
    if len(predicted) != len(right) or not len(right):
        raise QkvError(f"{len(predicted)} predictions for {len(right)} answers: there must be one for each, and some")
    return len(right)


# --- classes


def accuracy(predicted: Labels, right: Labels) -> float:
    """The share that is right."""
    return sum(p == r for p, r in zip(predicted, right, strict=True)) / paired(predicted, right)


def f1_of(hits: int, predicted: int, right: int) -> float:
    """Harmonic mean of precision (hits / predicted) and recall (hits / right): 2 hits / (predicted + right)."""
    return 2 * hits / (predicted + right) if predicted + right else 0.0


def f1(predicted: Labels, right: Labels, positive: Hashable) -> float:
    """F1 of one class, the `positive` one."""
    paired(predicted, right)
    hits = sum(p == r == positive for p, r in zip(predicted, right, strict=True))
    return f1_of(hits, sum(p == positive for p in predicted), sum(r == positive for r in right))


def macro_f1(predicted: Labels, right: Labels) -> float:
    """Mean of the F1 of every class that occurs, rare ones as important as frequent ones."""
    paired(predicted, right)
    hits = Counter(p for p, r in zip(predicted, right, strict=True) if p == r)
    found, wanted = Counter(predicted), Counter(right)
    classes = {*found, *wanted}
    return math.fsum(f1_of(hits[one], found[one], wanted[one]) for one in classes) / len(classes)


def micro_f1(predicted: Labels, right: Labels, ignore: Hashable = None) -> float:
    """F1 of all decisions together, those for the class `ignore` left out; if none is left out, it is the accuracy."""
    paired(predicted, right)
    hits = sum(p == r != ignore for p, r in zip(predicted, right, strict=True))
    return f1_of(hits, sum(p != ignore for p in predicted), sum(r != ignore for r in right))


def matthews(predicted: Labels, right: Labels) -> float:
    """Matthews' correlation of two classes, or Gorodkin's (2004) of several:

        (s c - sum_k p_k r_k) / sqrt((s² - sum_k p_k²) (s² - sum_k r_k²))

    with s examples, c right ones, and p_k predictions and r_k answers of class k. 0 = no better than guessing.
    """
    s = paired(predicted, right)
    c = sum(p == r for p, r in zip(predicted, right, strict=True))
    p_k, r_k = Counter(predicted), Counter(right)
    both = s * c - sum(count * r_k[one] for one, count in p_k.items())
    spreads = [s * s - sum(count * count for count in counts.values()) for counts in (p_k, r_k)]
    return both / math.sqrt(spreads[0] * spreads[1]) if all(spreads) else 0.0


# --- numbers


def pearson(predicted: Sequence[float], right: Sequence[float]) -> float:
    """Linear correlation: the mean of the product of what both are above their means, in standard deviations."""
    paired(predicted, right)
    x, y = (np.asarray(values, dtype=np.float64) for values in (predicted, right))
    x, y = x - x.mean(), y - y.mean()
    spread = math.sqrt(float(x @ x) * float(y @ y))
    return float(x @ y) / spread if spread else 0.0


def spearman(predicted: Sequence[float], right: Sequence[float]) -> float:
    """Pearson's correlation of the ranks: how well the order is kept, whatever the scale."""
    return pearson(ranks(predicted), ranks(right))


def ranks(values: Sequence[float]) -> list[float]:
    """1 for the smallest; equal values share the mean of their places."""
    _, group, sizes = np.unique(np.asarray(values, dtype=np.float64), return_inverse=True, return_counts=True)
    last = np.cumsum(sizes)  # the place of the last one of each group of equals
    return [float(rank) for rank in (last - (sizes - 1) / 2)[group]]


# --- answers out of a text (SQuAD)


def normalised(answer: str) -> str:
    """As SQuAD compares answers (Rajpurkar et al. 2016): small letters, no punctuation, no articles, single spaces."""
    letters = "".join(c for c in answer.lower() if c not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", letters).split())


def exact_match(predicted: str, answers: Sequence[str]) -> float:
    """1 if it is one of the right answers, which are compared normalised. No answer at all is the answer ""."""
    return float(normalised(predicted) in map(normalised, answers or [""]))


def answer_f1(predicted: str, answers: Sequence[str]) -> float:
    """F1 of the words of the answer, of the right answer that it is most like."""
    return max(word_f1(normalised(predicted).split(), normalised(answer).split()) for answer in answers or [""])


def word_f1(predicted: Sequence[str], right: Sequence[str]) -> float:
    """F1 of two bags of words; of nothing and nothing it is 1."""
    if not predicted or not right:
        return float(predicted == right)
    return f1_of((Counter(predicted) & Counter(right)).total(), len(predicted), len(right))


# --- tags


def tag_accuracy(predicted: Iterable[Sequence[str]], right: Iterable[Sequence[str]]) -> float:
    """The share of words, of all sentences together, that have the right tag."""
    pairs = [(p, r) for ps, rs in zip(predicted, right, strict=True) for p, r in zip(ps, rs, strict=True)]
    return accuracy([p for p, _ in pairs], [r for _, r in pairs])


def entity_f1(predicted: Iterable[Sequence[str]], right: Iterable[Sequence[str]]) -> float:
    """F1 of named things as conlleval counts: right only with the right first word, last word and kind."""
    hits = found = wanted = 0
    for ps, rs in zip(predicted, right, strict=True):
        ours, theirs = spans(ps), spans(rs)
        hits, found, wanted = hits + len(ours & theirs), found + len(ours), wanted + len(theirs)
    return f1_of(hits, found, wanted)


def spans(tags: Sequence[str]) -> set[tuple[int, int, str]]:
    """(first word, word behind the last, kind) of each thing in B-I-O tags, with or without E (last) and S (single).

    Taggers also write what the scheme forbids; as in conlleval, a thing begins wherever one is spoken of that was not
    before: "O I-PER" begins a person, "B-PER I-ORG" is two things.
    """
    things: set[tuple[int, int, str]] = set()
    start, before, kind_before = 0, "O", ""
    for at, tag in enumerate([*tags, "O"]):
        place, _, kind = tag.partition("-")
        new = place in "BSO" or before in "ESO" or kind != kind_before
        if new and before != "O":
            things.add((start, at, kind_before))
        if new:
            start = at
        before, kind_before = place, kind
    return things


# --- language models


def perplexity(nats: float, tokens: int) -> float:
    """exp of the mean loss per token: among how many equally likely words the model hesitates."""
    return math.exp(min(nats / tokens, 700.0))  # beyond it there is no number


def bits_per_byte(nats: float, n_bytes: int) -> float:
    """Loss per byte of the text, in bits: comparable between tokenizers, as perplexity is not."""
    return nats / (math.log(2) * n_bytes)


# --- a whole test set


METRICS: dict[str, Callable[[list[str], list[str], str], float]] = {
    "accuracy": lambda predicted, right, positive: accuracy(predicted, right),
    "f1": f1,
    "macro_f1": lambda predicted, right, positive: macro_f1(predicted, right),
    "matthews": lambda predicted, right, positive: matthews(predicted, right),
    "pearson": lambda predicted, right, positive: pearson([float(p) for p in predicted], [float(r) for r in right]),
    "spearman": lambda predicted, right, positive: spearman([float(p) for p in predicted], [float(r) for r in right]),
}
"""What a whole test set is measured by; labels and numbers are given as text. The positive class matters to F1 alone."""
YES = ("1", "+1", "yes", "y", "true", "t", "positive", "pos")
NO = re.compile(r"0|-1|no|n|false|f|negative|neg|none|(?:not|no|non)[ _-].+")


def positive_of(labels: Iterable[str]) -> str:
    """The class that is asked about: the one that says yes, else the one beside a no, else the last in their order."""
    known = sorted(set(labels))
    says = [label for label in known if label.lower() in YES]
    says = says or [label for label in known if not NO.fullmatch(label.lower())]
    return says[-1] if says else known[-1]


def scored(metric: str, predicted: Sequence[str], right: Sequence[str], labels: Sequence[str] = ()) -> Score:
    """One metric of a test set, in per cent. `labels` are all classes there are, where some may not occur in it. The signature
    of F1 says which of them it is about; the others need none."""
    paired(predicted, right)
    positive = positive_of(labels or [*predicted, *right])
    value = METRICS[metric](list(predicted), list(right), positive)
    signature = f"metric:f1|positive:{positive}|examples:{len(right)}" if metric == "f1" else ""
    return Score(metric, 100 * value, signature)


# --- GLUE


@dataclass(frozen=True)
class Glue:
    """One task of GLUE (Wang et al. 2019)."""

    file: str
    """What the file of predictions is called in a submission."""
    metrics: tuple[str, ...]
    """Keys of METRICS; the first decides."""


GLUE = {
    "cola": Glue("CoLA.tsv", ("matthews",)),
    "sst2": Glue("SST-2.tsv", ("accuracy",)),
    "mrpc": Glue("MRPC.tsv", ("f1", "accuracy")),
    "stsb": Glue("STS-B.tsv", ("spearman", "pearson")),
    "qqp": Glue("QQP.tsv", ("f1", "accuracy")),
    "mnli": Glue("MNLI-m.tsv", ("accuracy",)),
    "mnli-mm": Glue("MNLI-mm.tsv", ("accuracy",)),
    "qnli": Glue("QNLI.tsv", ("accuracy",)),
    "rte": Glue("RTE.tsv", ("accuracy",)),
    "wnli": Glue("WNLI.tsv", ("accuracy",)),
    "ax": Glue("AX.tsv", ("matthews",)),
}


def glue(name: str | None) -> Glue | None:
    """The GLUE task of a data set's name, such as glue/cola or sst-2; None for any other."""
    last = re.split(r"[/_]", (name or "").lower())[-1]
    return GLUE.get(last) or GLUE.get(last.replace("-", ""))


def submission(predicted: Iterable[str | float]) -> str:
    """A file as GLUE's server reads it: a header, then index TAB label; scores lie between 0 and 5."""
    shown = (p if isinstance(p, str) else f"{min(max(p, 0.0), 5.0):.3f}" for p in predicted)
    return "index\tprediction\n" + "".join(f"{index}\t{label}\n" for index, label in enumerate(shown))
