"""A baseline for text classification: TF-IDF features and logistic regression, trained in seconds on the same texts.

On a few thousand labelled texts it is hard to beat from scratch, so every run that trains a classifier trains it too, on the
same split, and reports both scores.

    tf-idf(t, d) = (1 + log count(t in d)) * (1 + log((1 + n) / (1 + texts with t))), rows of length 1

over words and bigrams, lowercase, punctuation included. The regularisation strength is selected on the validation set.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

from qkv.evaluate.metrics import score_labels

MOST_TEXTS = 20_000
"""Maximum training texts: with more, the baseline takes minutes."""
MOST_CHARACTERS = 20_000_000
MOST_WEIGHTS = 5_000_000
"""Maximum features x classes: beyond it, rare features are left out."""
STRENGTHS = (1.0, 3.0, 10.0, 30.0)
"""Candidates of C, scikit-learn's inverse regularisation strength."""
TOKEN = r"\w+|[^\w\s]"
NAME = "TF-IDF + logistic regression"

Record = Sequence[str]
"""(text, label) or (text, second text, label); the two texts are joined."""


def baseline(train: Iterable[Record], valid: Sequence[Record], test: Sequence[Record], metrics: Sequence[str],
             labels: Sequence[str]) -> dict[str, Any] | None:  # fmt: skip
    """Train on `train`, select C by the first of `metrics` on `valid`, and score both held-out sets.

    Returns {"name", "details", "valid": {metric: value}, "test": {metric: value}} in per cent; "test" is empty where the
    test set has no labels. None for a training set that is too large, has no words or only one label. `labels` are
    all classes; training records with another label are left out.
    """
    known = collect_texts(record for record in train if record[-1] in labels)
    if not known or len({label for _, label in known}) < 2 or not any(text.strip() for text, _ in known):
        return None
    from sklearn.feature_extraction.text import TfidfVectorizer  # slow to import

    texts, right = zip(*known, strict=True)
    words = TfidfVectorizer(token_pattern=TOKEN, ngram_range=(1, 2), sublinear_tf=True,
                            max_features=max(1, MOST_WEIGHTS // len(set(right))))  # fmt: skip
    x = words.fit_transform(texts)  # (texts, features), sparse
    sets = {name: (words.transform([join_texts(record) for record in records]), [record[-1] for record in records])
            for name, records in (("valid", valid), ("test", test)) if any(record[-1] for record in records)}  # fmt: skip
    strength, model = select_model(x, right, *sets["valid"], metrics[0], labels)
    values = {name: {metric: score(model, held, answers, metric, labels) for metric in metrics}
              for name, (held, answers) in sets.items()}  # fmt: skip
    details = f"{x.shape[1]:,} words and pairs of words, C = {strength:g}"
    return {"name": NAME, "details": details, "valid": values["valid"], "test": values.get("test", {})}


def join_texts(record: Record) -> str:
    return " ".join(record[:-1])


def collect_texts(records: Iterable[Record]) -> list[tuple[str, str]]:
    """Return texts and labels; an empty list if there are too many."""
    found, characters = [], 0
    for record in records:
        found.append((join_texts(record), record[-1]))
        characters += len(found[-1][0])
        if len(found) > MOST_TEXTS or characters > MOST_CHARACTERS:
            return []
    return found


def select_model(x: Any, right: Sequence[str], held: Any, answers: Sequence[str], metric: str,
           labels: Sequence[str]) -> tuple[float, Any]:  # fmt: skip
    """Return C and the model with the best score on the held-out set; of equal ones the most regularised."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # full convergence is not needed
        models = [(c, LogisticRegression(C=c, max_iter=200, tol=1e-3).fit(x, right)) for c in STRENGTHS]
    return max(models, key=lambda pair: (score(pair[1], held, answers, metric, labels), -pair[0]))


def score(model: Any, held: Any, answers: Sequence[str], metric: str, labels: Sequence[str]) -> float:
    return score_labels(metric, [str(label) for label in model.predict(held)], answers, labels).value


def describe_baseline(results: dict[str, Any]) -> list[str]:
    """Return lines about the baseline of a run's results (results.json); none without a baseline.

    A second line appears if it is better than the model, on the test set or, without labels there, on the validation set.
    """
    found, metric = results.get("baseline"), results["valid"]["metric"]
    if found is None:
        return []
    if "missing" in found:  # results of earlier versions, in which scikit-learn was optional
        return [f"baseline, {found['name']}: {found['missing']}"]
    test = {score["name"]: score["value"] for score in (results["test"] or {"scores": []})["scores"]}
    ours, theirs = (test, found["test"]) if metric in test else ({metric: results["valid"]["value"]}, found["valid"])
    scores = [f"{name} {metric} {found[key][metric]:.2f}" for name, key in (("validation", "valid"), ("test", "test"))
             if metric in found[key]]  # fmt: skip
    lines = [f"baseline, {found['name']} ({found['details']}): {', '.join(scores)}"]
    if theirs[metric] > ours[metric]:
        lines.append(
            f"the baseline is better on this data, {theirs[metric]:.2f} against {ours[metric]:.2f}: fine-tune a pre-trained "
            "model (tune.start), or label more texts"
        )
    return lines
