"""Reports by class: scikit-learn's numbers and layout, entities counted by hand, confusion matrices as text and picture."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import classification_report, confusion_matrix

from qkv.errors import QkvError
from qkv.evaluate.class_report import MOST_ROWS, MOST_STORED, ClassReport, class_report, compact_report, entity_report
from qkv.evaluate.metrics import entity_f1, macro_f1
from qkv.look.figures import matrix

LABELS = st.sampled_from(["sport", "politics", "x", "long name of a class"])
ANSWERS = st.lists(st.tuples(LABELS, LABELS), min_size=1, max_size=40)


@pytest.mark.filterwarnings("ignore:A single label")
@given(ANSWERS)
@settings(max_examples=100, deadline=None)
def test_as_scikit_learn_measures_and_prints(pairs: list[tuple[str, str]]) -> None:
    said, right = map(list, zip(*pairs, strict=True))
    report, labels = class_report(said, right), sorted({*said, *right})
    theirs = classification_report(right, said, output_dict=True, zero_division=0)
    assert report.accuracy == pytest.approx(sum(a == b for a, b in pairs) / len(pairs))
    for row in (*report.rows, *report.averages):
        wanted = theirs[row.name]
        found = (row.precision, row.recall, row.f1, row.support)
        assert found == pytest.approx([wanted[key] for key in ("precision", "recall", "f1-score", "support")])
    text = classification_report(right, said, zero_division=0)
    text = re.sub(r" (\d+)\.0$", r"   \1", text, flags=re.M)  # where nothing is right, it prints a support of 1.0
    assert "\n".join(report.lines()) + "\n" == text
    assert np.array_equal(np.array(report.confusion), confusion_matrix(right, said, labels=labels))
    assert report.labels == tuple(labels)
    assert report.averages[0].f1 == pytest.approx(macro_f1(said, right))


@given(ANSWERS)
@settings(max_examples=20, deadline=None)
def test_a_report_survives_json(pairs: list[tuple[str, str]]) -> None:
    report = class_report(*map(list, zip(*pairs, strict=True)))
    again = ClassReport.from_json(json.loads(json.dumps(report.to_json())))
    assert str(again) == str(report) and again.confusion == report.confusion


def test_classes_are_in_the_order_of_the_model() -> None:
    report = class_report(["b", "10", "new"], ["b", "9", "9"], order=["9", "10", "b"])
    assert [row.name for row in report.rows] == ["9", "10", "b", "new"] == list(report.labels)


def test_entities_by_hand() -> None:
    """seqeval's example, and tags that break the scheme. PER: 1 of 1 found, 1 wanted; MISC: 0 of 1, 1 wanted."""
    right = [["O", "O", "O", "B-MISC", "I-MISC", "I-MISC", "O"], ["B-PER", "I-PER", "O"]]
    said = [["O", "O", "B-MISC", "I-MISC", "I-MISC", "I-MISC", "O"], ["B-PER", "I-PER", "O"]]
    report = entity_report(said, right)
    assert {row.name: (row.precision, row.recall, row.f1, row.support) for row in report.rows} == {
        "MISC": (0, 0, 0, 1),
        "PER": (1, 1, 1, 1),
    }
    assert {row.name: row.f1 for row in report.averages} == {"micro avg": 0.5, "macro avg": 0.5, "weighted avg": 0.5}
    assert report.accuracy is None and report.averages[0].f1 == entity_f1(said, right)
    assert report.labels == ("O", "MISC", "PER") and report.confusion == ((4, 1, 0), (0, 3, 0), (0, 0, 2))
    # three persons and one place are wanted; two persons are right, a third is too long; the place is taken for a person
    right = [["S-PER", "O", "B-PER", "E-PER", "O", "B-PER", "E-PER", "O", "S-LOC"]]
    said = [["S-PER", "O", "B-PER", "E-PER", "B-PER", "I-PER", "E-PER", "O", "S-PER"]]
    report = entity_report(said, right)
    rows = {row.name: row for row in (*report.rows, *report.averages)}
    assert (rows["PER"].precision, rows["PER"].recall) == (2 / 4, 2 / 3) and rows["PER"].f1 == pytest.approx(4 / 7)
    assert (rows["LOC"].precision, rows["LOC"].recall, rows["LOC"].support) == (0, 0, 1)
    assert rows["micro avg"].f1 == pytest.approx(2 * 2 / (4 + 4))
    assert rows["weighted avg"].recall == pytest.approx(3 / 4 * 2 / 3)


def test_many_classes_are_told_in_short() -> None:
    right = [str(i) for i in range(100) for _ in range(1 + (i < 50))]
    said = [*right[1:], right[0]]
    report = class_report(said, right, order=[str(i) for i in range(100)])
    assert len(report.rows) == 100 > MOST_STORED and report.confusion == ()
    text = str(report)
    assert f"{100 - MOST_ROWS} classes with less support" in text and "0 -> 1  1" in text and "50 -> 51" not in text
    short = compact_report(report.to_json())
    assert (
        len(short["classes"]) == MOST_ROWS and len(short["confused"]) == 20 and len(report.to_json()["classes"]) == 100
    )
    middle = class_report(said[:40], right[:40]).to_json()
    assert "confusion" in middle and "confusion" not in compact_report(middle)
    assert str(ClassReport.from_json(short)).count("\n") < 80


def test_no_confusions_is_said() -> None:
    labels = [str(i) for i in range(20)]
    assert "no confusions" in str(class_report(labels, labels))


def test_a_damaged_report_is_an_error() -> None:
    with pytest.raises(QkvError, match="not a class report"):
        ClassReport.from_json({"classes": {"a": {}}})


def test_the_picture_has_every_count() -> None:
    picture = matrix(["<a>", "a rather long name that does not fit"], [[12, 0], [3, 4567]], "Confusion")
    root = ET.fromstring(picture)
    words = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert [w for w in words if w in ("12", "3", "4,567", "0")] == ["12", "3", "4,567"]
    assert (
        words.count("<a>") == 2
        and "a rather long name that…" in words
        and "rows: correct, columns: predicted; 4,582 examples" in words
    )
    fills = [element.get("fill") for element in root.iter("{http://www.w3.org/2000/svg}rect")][1:]
    assert fills[0] == "rgba(11,107,203,1.000)" and fills[1] == "rgba(11,107,203,0.000)"  # a share of its row
