"""Precision, recall and F1 of every class, with averages and a confusion matrix, as scikit-learn defines and prints them.

    precision = hits / predicted     recall = hits / support     F1 = 2 hits / (predicted + support)

`support` is how often a class is correct. The macro average is the plain mean over classes, the weighted average weighs
each class by its support. Entities (spans of B-I-O tags) count as in conlleval and seqeval: a hit needs the right first
word, last word and kind; instead of the accuracy there is a micro average over all spans.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from qkv.errors import QkvError
from qkv.evaluate.metrics import f1_of, paired, spans

MOST_SHOWN = 12
"""Classes of a confusion matrix that is printed; of more, the most frequent confusions are listed."""
MOST_STORED = 50
"""Classes of a confusion matrix that is kept whole, and drawn."""
MOST_ROWS = 40
"""Classes that are printed; of more, those with the largest support."""
MOST_PAIRS = 20
"""Confusions that are listed."""


@dataclass(frozen=True)
class Row:
    """One class, or an average."""

    name: str
    precision: float
    recall: float
    f1: float
    support: int


@dataclass(frozen=True)
class ClassReport:
    """What was measured of every class of a test set."""

    rows: tuple[Row, ...]
    """The classes that are correct or predicted at least once."""
    averages: tuple[Row, ...]
    """macro avg and weighted avg; of entities micro avg before them."""
    accuracy: float | None
    """None of entities."""
    labels: tuple[str, ...] = ()
    """Classes of the confusion matrix; of entities the kinds of words, O among them."""
    confusion: tuple[tuple[int, ...], ...] = ()
    """[correct][predicted] -> how often; empty where there are more than MOST_STORED labels."""
    confused: tuple[tuple[str, str, int], ...] = field(default=())
    """(correct, predicted, how often) of the most frequent confusions."""

    def to_json(self) -> dict[str, Any]:
        """Plain data, fractions with six digits."""
        found: dict[str, Any] = {
            "classes": {row.name: numbers(row) for row in self.rows},
            "averages": {row.name: numbers(row) for row in self.averages},
            "confused": [list(pair) for pair in self.confused],
        }
        if self.accuracy is not None:
            found["accuracy"] = round(self.accuracy, 6)
        if self.confusion:
            found["confusion"] = {"labels": list(self.labels), "counts": [list(row) for row in self.confusion]}
        return found

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> ClassReport:
        """The report that `to_json` described."""
        try:
            rows, averages = (tuple(Row(name, *(one[key] for key in KEYS)) for name, one in found[which].items())
                              for which in ("classes", "averages"))  # fmt: skip
            matrix = found.get("confusion", {"labels": [], "counts": []})
            counts = tuple(tuple(map(int, row)) for row in matrix["counts"])
            pairs = tuple((right, said, int(count)) for right, said, count in found["confused"])
            return cls(rows, averages, found.get("accuracy"), tuple(matrix["labels"]), counts, pairs)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise QkvError(
                f"not a report of classes ({type(error).__name__}: {error}): evaluate the run again"
            ) from None

    # --- for people

    def __str__(self) -> str:
        return "\n".join([*self.lines(), "", *self.confusion_lines()])

    def lines(self, digits: int = 2) -> list[str]:
        """The table that sklearn.metrics.classification_report prints."""
        shown = self.rows if len(self.rows) <= MOST_ROWS else sorted(self.rows, key=lambda r: -r.support)[:MOST_ROWS]
        width = max(*(len(row.name) for row in (*shown, *self.averages)), digits)
        line = f"{{:>{width}s}} " + f" {{:>9.{digits}f}}" * 3 + " {:>9}"
        found = [
            f"{'':>{width}s} " + "".join(f" {title:>9s}" for title in ("precision", "recall", "f1-score", "support")),
            "",
        ]
        found += [line.format(row.name, row.precision, row.recall, row.f1, row.support) for row in shown]
        if len(shown) < len(self.rows):
            found.append(f"{'...':>{width}s}  {len(self.rows) - len(shown):,} classes with less support")
        found.append("")
        if self.accuracy is not None:
            total = sum(row.support for row in self.rows)
            found.append(f"{'accuracy':>{width}s} " + f" {'':>9s}" * 2 + f" {self.accuracy:>9.{digits}f} {total:>9}")
        return found + [line.format(row.name, row.precision, row.recall, row.f1, row.support) for row in self.averages]

    def confusion_lines(self) -> list[str]:
        """The matrix of a few classes, or the most frequent confusions of many."""
        if self.confusion and len(self.labels) <= MOST_SHOWN:
            return matrix_lines(self.labels, self.confusion)
        if not self.confused:
            return ["no confusions: every answer is correct"]
        lines = ["most frequent confusions (correct -> predicted, how often):"]
        return lines + [f"  {right} -> {said}  {count:,}" for right, said, count in self.confused]


KEYS = ("precision", "recall", "f1", "support")


def compact(found: dict[str, Any]) -> dict[str, Any]:
    """What results.json keeps of a report's plain data: at most MOST_ROWS classes, and a matrix that can be printed."""
    kept = dict(found)
    largest = sorted(found["classes"], key=lambda name: -found["classes"][name]["support"])[:MOST_ROWS]
    kept["classes"] = {name: row for name, row in found["classes"].items() if name in largest}
    if len(found.get("confusion", {}).get("labels", ())) > MOST_SHOWN:
        del kept["confusion"]
    return kept


def numbers(row: Row) -> dict[str, float]:
    return {key: round(getattr(row, key), 6) for key in KEYS}


def matrix_lines(labels: Sequence[str], counts: Sequence[Sequence[int]]) -> list[str]:
    """A confusion matrix as text: rows are the correct classes, columns the predicted ones."""
    cells = [[str(count) for count in row] for row in counts]
    widths = [max(len(label), *(len(row[i]) for row in cells)) for i, label in enumerate(labels)]
    left = max(len(label) for label in labels)
    head = " " * left + "".join(f"  {label:>{w}}" for label, w in zip(labels, widths, strict=True))
    rows = [f"{label:>{left}}" + "".join(f"  {cell:>{w}}" for cell, w in zip(row, widths, strict=True))
            for label, row in zip(labels, cells, strict=True)]  # fmt: skip
    return ["confusion matrix (rows: correct, columns: predicted):", head, *rows]


# --- measured


def class_report(predicted: Sequence[str], right: Sequence[str], order: Sequence[str] = ()) -> ClassReport:
    """The report of one label per example. `order` are labels in the order in which classes are listed; further ones follow."""
    total = paired(predicted, right)
    cells = Counter(zip(right, predicted, strict=True))
    hits = Counter({label: cells[label, label] for label in {*right} if cells[label, label]})
    labels = in_order({*right, *predicted}, order)
    rows = rows_of(labels, hits, Counter(predicted), Counter(right))
    return ClassReport(rows, averages(rows), hits.total() / total, *confusions(cells, labels))


def entity_report(predicted: Iterable[Sequence[str]], right: Iterable[Sequence[str]]) -> ClassReport:
    """The report of spans in B-I-O (or B-I-O-E-S) tags of whole sentences. The confusion matrix is of single words, by the
    kind that their tag names."""
    hits, found, wanted, cells = Counter[str](), Counter[str](), Counter[str](), Counter[tuple[str, str]]()
    for said, correct in zip(predicted, right, strict=True):
        ours, theirs = spans(said), spans(correct)
        for counter, some in ((hits, ours & theirs), (found, ours), (wanted, theirs)):
            counter.update(name for _, _, name in some)
        cells.update((kind(r), kind(p)) for r, p in zip(correct, said, strict=True))
    rows = rows_of(sorted({*found, *wanted}), hits, found, wanted)
    micro = row_of("micro avg", hits.total(), found.total(), wanted.total())
    words = in_order({label for cell in cells for label in cell}, ["O"])
    return ClassReport(rows, (micro, *averages(rows)), None, *confusions(cells, words))


def kind(tag: str) -> str:
    """B-PER and I-PER -> PER; O -> O."""
    return tag.partition("-")[2] or tag


def in_order(labels: set[str], order: Sequence[str]) -> list[str]:
    """Those of `order` first, the others by their letters."""
    place = {label: number for number, label in enumerate(order)}
    return sorted(labels, key=lambda label: (place.get(label, len(place)), label))


def row_of(name: str, hits: int, predicted: int, support: int) -> Row:
    """Where a formula divides by nothing the result is 0, as in scikit-learn."""
    precision, recall = (hits / count if count else 0.0 for count in (predicted, support))
    return Row(name, precision, recall, f1_of(hits, predicted, support), support)


def rows_of(labels: Sequence[str], hits: Counter[str], found: Counter[str], wanted: Counter[str]) -> tuple[Row, ...]:
    return tuple(row_of(label, hits[label], found[label], wanted[label]) for label in labels)


def averages(rows: Sequence[Row]) -> tuple[Row, Row]:
    """The plain mean over classes, and the mean weighted by support."""
    supports = [row.support for row in rows]
    return mean_row("macro avg", rows, [1] * len(rows)), mean_row("weighted avg", rows, supports)


def mean_row(name: str, rows: Sequence[Row], weights: Sequence[int]) -> Row:
    def mean(values: Iterable[float]) -> float:
        return sum(w * value for w, value in zip(weights, values, strict=True)) / max(sum(weights), 1)

    support = sum(row.support for row in rows)
    return Row(name, mean(r.precision for r in rows), mean(r.recall for r in rows), mean(r.f1 for r in rows), support)


def confusions(cells: Counter[tuple[str, str]], labels: Sequence[str]) -> tuple[Any, Any, Any]:
    """Labels and matrix, where there are not too many of them, and the most frequent confusions."""
    wrong = [(right, said, count) for (right, said), count in cells.items() if right != said]
    pairs = tuple(sorted(wrong, key=lambda one: (-one[2], one[0], one[1]))[:MOST_PAIRS])
    if len(labels) > MOST_STORED:
        return (), (), pairs
    return tuple(labels), tuple(tuple(cells[right, said] for said in labels) for right in labels), pairs
