"""A baseline for text classification: TF-IDF features and logistic regression, trained in seconds on the same texts.

On a few thousand labelled texts this pair is hard to beat from scratch, so every run that trains a classifier trains it
too, on its own split, and reports both scores.

    tf-idf(t, d) = (1 + log count(t in d)) * (1 + log((1 + n) / (1 + texts with t))), rows of length 1

over words and pairs of neighbouring words, lower-cased, punctuation included. The regularisation strength is chosen on
the validation set, as the weights of the network are.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

from qkv.evaluate.metrics import scored

MOST_TEXTS = 20_000
"""Training texts at the most: with more, the baseline takes minutes."""
MOST_CHARACTERS = 20_000_000
MOST_WEIGHTS = 5_000_000
"""Features x classes at the most: beyond it, rare features are left out."""
STRENGTHS = (1.0, 3.0, 10.0, 30.0)
"""Values of C to choose from, scikit-learn's inverse of the regularisation strength."""
TOKEN = r"\w+|[^\w\s]"
NAME = "TF-IDF + logistic regression"
MISSING = "not trained, it needs scikit-learn: pip install 'qkv[sklearn]'"

Record = Sequence[str]
"""(text, label) or (text, second text, label); the two texts are joined."""


def baseline(train: Iterable[Record], valid: Sequence[Record], test: Sequence[Record], metrics: Sequence[str],
             labels: Sequence[str]) -> dict[str, Any] | None:  # fmt: skip
    """Train on `train`, choose C by the first of `metrics` on `valid`, and score both held-out sets.

    Returns {"name", "details", "valid": {metric: value}, "test": {metric: value}} in per cent; "test" is empty where the
    test set has no labels. None for a training set that is too large, has no words or has one label only; {"name", "missing"}
    where scikit-learn is not installed. `labels` are all classes there are; training records with another label are left out.
    """
    known = small(record for record in train if record[-1] in labels)
    if not known or len({label for _, label in known}) < 2 or not any(text.strip() for text, _ in known):
        return None
    texts, right = zip(*known, strict=True)
    try:
        from sklearn.feature_extraction.text import TfidfVectorizer  # here: other tasks do not pay for the import
    except ImportError:
        return {"name": NAME, "missing": MISSING}
    words = TfidfVectorizer(token_pattern=TOKEN, ngram_range=(1, 2), sublinear_tf=True,
                            max_features=max(1, MOST_WEIGHTS // len(set(right))))  # fmt: skip
    x = words.fit_transform(texts)  # (texts, features), sparse
    sets = {name: (words.transform([joined(record) for record in records]), [record[-1] for record in records])
            for name, records in (("valid", valid), ("test", test)) if any(record[-1] for record in records)}  # fmt: skip
    strength, model = chosen(x, right, *sets["valid"], metrics[0], labels)
    values = {name: {metric: score(model, held, answers, metric, labels) for metric in metrics}
              for name, (held, answers) in sets.items()}  # fmt: skip
    details = f"{x.shape[1]:,} words and pairs of words, C = {strength:g}"
    return {"name": NAME, "details": details, "valid": values["valid"], "test": values.get("test", {})}


def joined(record: Record) -> str:
    return " ".join(record[:-1])


def small(records: Iterable[Record]) -> list[tuple[str, str]]:
    """Texts and labels; none at all if there are too many."""
    found, characters = [], 0
    for record in records:
        found.append((joined(record), record[-1]))
        characters += len(found[-1][0])
        if len(found) > MOST_TEXTS or characters > MOST_CHARACTERS:
            return []
    return found


def chosen(x: Any, right: Sequence[str], held: Any, answers: Sequence[str], metric: str,
           labels: Sequence[str]) -> tuple[float, Any]:  # fmt: skip
    """The C and the model with the best score on the held-out set; of equal ones the most regularised."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the last digits of the weights decide nothing
        models = [(c, LogisticRegression(C=c, max_iter=200, tol=1e-3).fit(x, right)) for c in STRENGTHS]
    return max(models, key=lambda pair: (score(pair[1], held, answers, metric, labels), -pair[0]))


def score(model: Any, held: Any, answers: Sequence[str], metric: str, labels: Sequence[str]) -> float:
    return scored(metric, [str(label) for label in model.predict(held)], answers, labels).value


def verdict(results: dict[str, Any]) -> list[str]:
    """The baseline of a run's results (results.json) in words; no line where there is none.

    A second line says so if it is better than the model, on the test set or, without labels there, on the validation set.
    """
    found, metric = results.get("baseline"), results["valid"]["metric"]
    if found is None:
        return []
    if "missing" in found:
        return [f"baseline, {found['name']}: {found['missing']}"]
    test = {score["name"]: score["value"] for score in (results["test"] or {"scores": []})["scores"]}
    ours, theirs = (test, found["test"]) if metric in test else ({metric: results["valid"]["value"]}, found["valid"])
    shown = [f"{name} {metric} {found[key][metric]:.2f}" for name, key in (("validation", "valid"), ("test", "test"))
             if metric in found[key]]  # fmt: skip
    lines = [f"baseline, {found['name']} ({found['details']}): {', '.join(shown)}"]
    if theirs[metric] > ours[metric]:
        lines.append(
            f"the baseline is better on this data, {theirs[metric]:.2f} against {ours[metric]:.2f}: fine-tune a pre-trained "
            "model (tune.start), or label more texts"
        )
    return lines
