"""Precision, recall and F1 of every class, with averages and a confusion matrix, as scikit-learn defines and prints them.

    precision = hits / predicted     recall = hits / support     F1 = 2 hits / (predicted + support)

`support` is the number of examples of a class. The macro average is the unweighted mean over classes, the weighted average uses
the supports as weights. Entities (spans of B-I-O tags) count as in conlleval and seqeval: a hit needs the correct first word,
last word and type; instead of the accuracy there is a micro average over all spans. The code is our own so that evaluation does
not need scikit-learn; tests/test_class_report.py compares both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from qkv.errors import QkvError
from qkv.evaluate.metrics import check_pairs, entity_spans, f1_from_counts

MOST_SHOWN = 12
"""Maximum classes of a printed confusion matrix; for more, the most frequent confusions are listed."""
MOST_STORED = 50
"""Maximum classes of a confusion matrix that is stored and drawn."""
MOST_ROWS = 40
"""Maximum printed classes; of more, those with the largest support."""
MOST_PAIRS = 20
"""Maximum listed confusions."""


class ClassScores(NamedTuple):
    """The scores of one class, or an average."""

    name: str
    precision: float
    recall: float
    f1: float
    support: int


@dataclass(frozen=True)
class ClassReport:
    """The scores of every class of a test set."""

    rows: tuple[ClassScores, ...]
    """The classes that occur in the answers or the predictions."""
    averages: tuple[ClassScores, ...]
    """macro avg and weighted avg; for entities preceded by micro avg."""
    accuracy: float | None
    """None for entities."""
    labels: tuple[str, ...] = ()
    """Classes of the confusion matrix; for entities the types of words, including O."""
    confusion: tuple[tuple[int, ...], ...] = ()
    """Counts [correct][predicted]; empty for more than MOST_STORED labels."""
    confused: tuple[tuple[str, str, int], ...] = ()
    """(correct, predicted, count) of the most frequent confusions."""

    def to_json(self) -> dict[str, Any]:
        """Return plain data, fractions with six digits."""
        found: dict[str, Any] = {
            "classes": rows_to_json(self.rows),
            "averages": rows_to_json(self.averages),
            "confused": [list(pair) for pair in self.confused],
        }
        if self.accuracy is not None:
            found["accuracy"] = round(self.accuracy, 6)
        if self.confusion:
            found["confusion"] = {"labels": list(self.labels), "counts": [list(row) for row in self.confusion]}
        return found

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> ClassReport:
        """Restore a report from `to_json`."""
        try:
            rows, averages = (tuple(ClassScores(name, **row) for name, row in found[which].items())
                              for which in ("classes", "averages"))  # fmt: skip
            matrix = found.get("confusion", {"labels": [], "counts": []})
            counts = tuple(tuple(map(int, row)) for row in matrix["counts"])
            pairs = tuple((right, guess, int(count)) for right, guess, count in found["confused"])
            return cls(rows, averages, found.get("accuracy"), tuple(matrix["labels"]), counts, pairs)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise QkvError(f"not a class report ({type(error).__name__}: {error}): evaluate the run again") from None

    # --- as text

    def __str__(self) -> str:
        return "\n".join([*self.lines(), "", *self.confusion_lines()])

    def lines(self, digits: int = 2) -> list[str]:
        """Return the table of sklearn.metrics.classification_report."""
        rows = self.rows if len(self.rows) <= MOST_ROWS else sorted(self.rows, key=lambda r: -r.support)[:MOST_ROWS]
        width = max(*(len(row.name) for row in (*rows, *self.averages)), digits)
        line = f"{{:>{width}s}} " + f" {{:>9.{digits}f}}" * 3 + " {:>9}"
        titles = ("precision", "recall", "f1-score", "support")
        found = [f"{'':>{width}s} " + "".join(f" {title:>9s}" for title in titles), ""]
        found += [line.format(*row) for row in rows]
        if len(rows) < len(self.rows):
            found.append(f"{'...':>{width}s}  {len(self.rows) - len(rows):,} classes with less support")
        found.append("")
        if self.accuracy is not None:
            total = sum(row.support for row in self.rows)
            found.append(f"{'accuracy':>{width}s} " + f" {'':>9s}" * 2 + f" {self.accuracy:>9.{digits}f} {total:>9}")
        return found + [line.format(*row) for row in self.averages]

    def confusion_lines(self) -> list[str]:
        """Return the matrix of few classes, or the most frequent confusions of many."""
        if self.confusion and len(self.labels) <= MOST_SHOWN:
            return matrix_lines(self.labels, self.confusion)
        if not self.confused:
            return ["no confusions: all predictions are correct"]
        lines = ["most frequent confusions (correct -> predicted, count):"]
        return lines + [f"  {right} -> {guess}  {count:,}" for right, guess, count in self.confused]


def compact_report(found: dict[str, Any]) -> dict[str, Any]:
    """Reduce plain data for results.json: at most MOST_ROWS classes, and a matrix only where it can be printed."""
    kept = dict(found)
    largest = sorted(found["classes"], key=lambda name: -found["classes"][name]["support"])[:MOST_ROWS]
    kept["classes"] = {name: row for name, row in found["classes"].items() if name in largest}
    if len(found.get("confusion", {}).get("labels", ())) > MOST_SHOWN:
        del kept["confusion"]
    return kept


def rows_to_json(rows: Iterable[ClassScores]) -> dict[str, dict[str, float]]:
    numbers = ClassScores._fields[1:]
    return {name: {key: round(n, 6) for key, n in zip(numbers, row, strict=True)} for name, *row in rows}


def matrix_lines(labels: Sequence[str], counts: Sequence[Sequence[int]]) -> list[str]:
    """Return a confusion matrix as text: rows are the correct classes, columns the predicted ones."""
    cells = [[str(count) for count in row] for row in counts]
    widths = [max(len(label), *(len(row[i]) for row in cells)) for i, label in enumerate(labels)]
    left = max(len(label) for label in labels)
    head = " " * left + "".join(f"  {label:>{w}}" for label, w in zip(labels, widths, strict=True))
    rows = [f"{label:>{left}}" + "".join(f"  {cell:>{w}}" for cell, w in zip(row, widths, strict=True))
            for label, row in zip(labels, cells, strict=True)]  # fmt: skip
    return ["confusion matrix (rows: correct, columns: predicted):", head, *rows]


# --- computation


def class_report(predicted: Sequence[str], right: Sequence[str], order: Sequence[str] = ()) -> ClassReport:
    """Return the report of one label per example. Classes are listed in the order of `order`, then the others."""
    total = check_pairs(predicted, right)
    cells = Counter(zip(right, predicted, strict=True))
    hits = Counter({label: cells[label, label] for label in {*right} if cells[label, label]})
    labels = order_labels({*right, *predicted}, order)
    found, wanted = Counter(predicted), Counter(right)
    rows = tuple(class_scores(label, hits[label], found[label], wanted[label]) for label in labels)
    return ClassReport(rows, averages(rows), hits.total() / total, *confusions(cells, labels))


def entity_report(predicted: Iterable[Sequence[str]], right: Iterable[Sequence[str]]) -> ClassReport:
    """Return the report of entities in B-I-O (or B-I-O-E-S) tags of sentences. The confusion matrix counts single words by the
    type in their tag."""
    hits, found, wanted, cells = Counter[str](), Counter[str](), Counter[str](), Counter[tuple[str, str]]()
    for guess, correct in zip(predicted, right, strict=True):
        ours, theirs = entity_spans(guess), entity_spans(correct)
        for counter, some in ((hits, ours & theirs), (found, ours), (wanted, theirs)):
            counter.update(name for _, _, name in some)
        cells.update((entity_type(r), entity_type(p)) for r, p in zip(correct, guess, strict=True))
    rows = tuple(class_scores(name, hits[name], found[name], wanted[name]) for name in sorted({*found, *wanted}))
    micro = class_scores("micro avg", hits.total(), found.total(), wanted.total())
    words = order_labels({label for cell in cells for label in cell}, ["O"])
    return ClassReport(rows, (micro, *averages(rows)), None, *confusions(cells, words))


def entity_type(tag: str) -> str:
    """Return the type of a tag: B-PER and I-PER -> PER; O -> O."""
    return tag.partition("-")[2] or tag


def order_labels(labels: set[str], order: Sequence[str]) -> list[str]:
    """Sort labels: those of `order` first, then alphabetically."""
    place = {label: number for number, label in enumerate(order)}
    return sorted(labels, key=lambda label: (place.get(label, len(place)), label))


def class_scores(name: str, hits: int, predicted: int, support: int) -> ClassScores:
    """Return the scores from counts; a division by zero gives 0, as in scikit-learn."""
    precision, recall = (hits / count if count else 0.0 for count in (predicted, support))
    return ClassScores(name, precision, recall, f1_from_counts(hits, predicted, support), support)


def averages(rows: Sequence[ClassScores]) -> tuple[ClassScores, ClassScores]:
    """Return the unweighted mean over classes, and the mean weighted by support."""
    supports = [row.support for row in rows]
    return mean_row("macro avg", rows, [1] * len(rows)), mean_row("weighted avg", rows, supports)


MEANS = ("precision", "recall", "f1")


def mean_row(name: str, rows: Sequence[ClassScores], weights: Sequence[int]) -> ClassScores:
    """Return the weighted mean of precision, recall and F1."""
    weighted, total = list(zip(weights, rows, strict=True)), max(sum(weights), 1)
    precision, recall, f1 = (sum(w * getattr(row, key) for w, row in weighted) / total for key in MEANS)
    return ClassScores(name, precision, recall, f1, sum(row.support for row in rows))


def confusions(cells: Counter[tuple[str, str]], labels: Sequence[str]) -> tuple[Any, Any, Any]:
    """Return labels and matrix (empty for more than MOST_STORED labels) and the most frequent confusions."""
    wrong = [(right, guess, count) for (right, guess), count in cells.items() if right != guess]
    pairs = tuple(sorted(wrong, key=lambda one: (-one[2], one[0], one[1]))[:MOST_PAIRS])
    if len(labels) > MOST_STORED:
        return (), (), pairs
    return tuple(labels), tuple(tuple(cells[right, guess] for guess in labels) for right in labels), pairs
