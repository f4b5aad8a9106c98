"""The baseline of text classification: known answers, the formula of scikit-learn's features, bounds, and what a run reports."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
from conftest import Run
from sklearn.feature_extraction.text import TfidfVectorizer

from qkv.evaluate import baseline as module
from qkv.evaluate.baseline import TOKEN, baseline, describe_baseline

RECIPE = """
task = "classification"
[model]
family = "encoder"
head = "classes"
d_model = 8
n_layers = 1
n_heads = 2
d_ff = 8
position = "rotary"
pooling = "mean"
[data]
train = [{{ table = "train.tsv", columns = ["text", "label"] }}]
valid = {{ table = "valid.tsv", columns = ["text", "label"] }}
{test}
tokenizer = "words"
vocab_size = 100
[train]
steps = 1
learning_rate = 1e-6
"""
FILLERS = "the a of some and very rather film it".split()
WORDS = {"good": ["fine", "lovely"], "bad": ["awful", "poor"], "odd": ["weird", "strange"]}


def separable(n: int, seed: int) -> list[tuple[str, str]]:
    """One word of each text tells its class."""
    r = random.Random(seed)
    labels = [r.choice(list(WORDS)) for _ in range(n)]
    return [(" ".join([*r.sample(FILLERS, 4), r.choice(WORDS[label])]), label) for label in labels]


def of(train: Any, valid: Any, test: Any = ()) -> dict[str, Any] | None:
    labels = sorted({record[-1] for record in train})
    return baseline(train, valid, test, ("accuracy", "macro_f1"), labels)


def test_what_one_word_decides_is_always_right() -> None:
    found = of(separable(200, 1), separable(50, 2), separable(50, 3))
    assert found is not None and found["name"] == "TF-IDF + logistic regression"
    assert found["valid"] == found["test"] == {"accuracy": 100.0, "macro_f1": 100.0}


def test_pairs_of_words_tell_what_single_words_cannot() -> None:
    """The same words in every text, "not good" against "not bad"."""
    r = random.Random(0)
    texts = {"neg": "not good but not tall", "pos": "good but not not tall"}
    rows = [(f"{r.choice(FILLERS)} {texts[label]}", label) for label in r.choices(["neg", "pos"], k=80)]
    found = of(rows[:60], rows[60:], rows[60:])
    assert found is not None and found["test"]["accuracy"] == 100.0


def test_both_texts_of_a_pair_are_read() -> None:
    singles = separable(200, 4)
    first, second = (
        [("x y", text, label) for text, label in singles],
        [(text, "x y", label) for text, label in singles],
    )
    for pairs in (first, second):
        found = of(pairs[:150], pairs[150:], pairs[150:])
        assert found is not None and found["test"]["accuracy"] == 100.0


def test_random_labels_are_not_predicted() -> None:
    """What is trained on is not what is scored."""
    r = random.Random(5)
    rows = [(" ".join(r.choices("abcdefghijklmnopq", k=6)), r.choice(["no", "yes"])) for _ in range(900)]
    found = of(rows[:300], rows[300:600], rows[600:])
    assert found is not None and 40 < found["test"]["accuracy"] < 60


def test_the_features_are_those_of_the_formula() -> None:
    texts = ["Good, good film", "bad film"]
    found = TfidfVectorizer(token_pattern=TOKEN, ngram_range=(1, 2), sublinear_tf=True).fit(texts)
    row = dict(zip(found.get_feature_names_out(), found.transform(texts).toarray()[0], strict=True))
    counts = {"good": (2, 1), "film": (1, 2), ",": (1, 1), "good ,": (1, 1), ", good": (1, 1), "good film": (1, 1)}
    wanted = {t: (1 + math.log(n)) * (1 + math.log(3 / (1 + texts_with))) for t, (n, texts_with) in counts.items()}
    length = math.sqrt(sum(value**2 for value in wanted.values()))
    assert {t: value for t, value in row.items() if value} == pytest.approx({t: v / length for t, v in wanted.items()})


def test_what_cannot_be_fitted_has_no_baseline(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = separable(60, 6)
    assert of([("x", "a"), ("y", "a")], rows) is None
    assert of([(" ", "a"), ("", "b")], rows) is None
    assert baseline(iter(rows), rows, [], ["accuracy"], sorted(WORDS)) is not None
    monkeypatch.setattr(module, "MOST_TEXTS", 59)
    assert of(rows, rows) is None
    monkeypatch.setattr(module, "MOST_TEXTS", 60)
    monkeypatch.setattr(module, "MOST_CHARACTERS", 100)
    assert of(rows, rows) is None


def test_the_verdict_names_the_better_one() -> None:
    def lines(ours: float, **more: Any) -> list[str]:
        found = {"name": "B", "details": "d", "valid": {"accuracy": 70.0}, "test": {"accuracy": 80.0}}
        results = {"valid": {"metric": "accuracy", "value": ours}, "baseline": found,
                   "test": {"scores": [{"name": "accuracy", "value": ours}]}}  # fmt: skip
        return describe_baseline(results | more)

    assert lines(80.0) == ["baseline, B (d): validation accuracy 70.00, test accuracy 80.00"]
    assert "the baseline is better on this data, 80.00 against 79.00" in lines(79.0)[1]
    assert lines(79.0, baseline=None) == []
    assert len(lines(75.0, test=None)) == 1 and "70.00 against 69.00" in lines(69.0, test=None)[1]
    assert len(lines(75.0, test={"scores": []})) == 1  # a test set without labels


def test_results_of_a_version_without_scikit_learn_are_described() -> None:
    found = {"name": "B", "missing": "not trained"}
    results = {"valid": {"metric": "accuracy", "value": 1.0}, "baseline": found, "test": None}
    assert describe_baseline(results) == ["baseline, B: not trained"]


@pytest.mark.parametrize("tested", [True, False])
def test_a_run_reports_its_baseline(tested: bool, run: Run, tmp_path: Path) -> None:
    """In results.json, on the screen and in the card; a network that has learned nothing is told to be worse."""
    sets = {"train": separable(200, 1), "valid": separable(40, 2), **({"test": separable(40, 3)} if tested else {})}
    for name, rows in sets.items():
        (tmp_path / f"{name}.tsv").write_text("text\tlabel\n" + "".join(f"{t}\t{label}\n" for t, label in rows))
    test = 'test = { table = "test.tsv", columns = ["text", "label"] }' if tested else ""
    (tmp_path / "recipe.toml").write_text(RECIPE.format(test=test))
    out = tmp_path / "out"
    code, said, err = run("train", tmp_path / "recipe.toml", "--out", out, "--set", f"data.root={tmp_path}")
    assert code == 0, err
    found = json.loads((out / "results.json").read_text())["baseline"]
    assert found["valid"]["accuracy"] == 100.0 and found["test"] == (
        {"accuracy": 100.0, "macro_f1": 100.0} if tested else {}
    )
    for text in (said, (out / "README.md").read_text()):
        assert "aseline, TF-IDF + logistic regression" in text and "he baseline is better on this data, 100.00" in text
