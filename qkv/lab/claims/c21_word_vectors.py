"""C21: one-hot vectors of words have no similarity, those of word2vec do."""

from __future__ import annotations

import tempfile
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from qkv.data import lexicon
from qkv.lab.experiment import Claim, ClaimResult, Experiment, Table, judge
from qkv.lab.statistics import difference, estimate, exceeds
from qkv.look.charts import bars
from qkv.vectors.evaluate import evaluate
from qkv.vectors.space import OneHot, Space, Vectors
from qkv.workflow import train

NOUNS = [noun for noun in lexicon.ALL_NOUNS if noun.kind in ("person", "animal", "food", "text", "place")]
VERBS = [verb for verb in lexicon.ALL_VERBS if verb.third != verb.base != verb.past and "_" not in verb.base]
RELATIONS = {
    "man - men": [(*noun.english, noun.kind) for noun in NOUNS if noun.english[0] != noun.english[1]],
    "eats - ate": [(verb.third, verb.past, f"{verb.pattern}, {sorted(verb.kinds)}") for verb in VERBS],
}
"""Analogies (first word, second word, kind): each pair of a relation is asked with every other one."""
JUDGMENTS, ANALOGIES = ("wordsim353", "simlex999"), "analogies"
"""Scores of the full version, as `qkv.vectors.evaluate` names them."""


def similarity(space: Space) -> dict[str, float]:
    """Mean cosine of nouns of one kind and of different kinds; share of nouns whose nearest noun is of their kind."""
    known = [(noun, number) for noun in NOUNS if (number := space.find(noun.english[0])) is not None]
    pairs = list(combinations(range(len(known)), 2))
    alike = torch.tensor([known[i][0].kind == known[j][0].kind for i, j in pairs])
    cosines = space.similarities(torch.tensor([[known[i][1], known[j][1]] for i, j in pairs]))
    table = torch.full((len(known), len(known)), -2.0)
    for (i, j), value in zip(pairs, cosines.tolist(), strict=True):
        table[i, j] = table[j, i] = value
    right = [known[i][0].kind == known[j][0].kind for i, j in enumerate(table.argmax(1).tolist())]
    distinct = float(table.amax()) > float(table[table > -2].amin())  # where all are equal, no word is the nearest
    return {"same kind": float(cosines[alike].mean()), "other kinds": float(cosines[~alike].mean()),
            "nearest of its kind": 100 * sum(right) / len(right) if distinct else 0.0}  # fmt: skip


def analogies(space: Space) -> dict[str, float]:
    """Answers to a : b = c : ? in per cent: the right word, and any word of the same kind in the right form.

    In the grammar words of one kind occur in the same places, so that their vectors cannot tell which of them is asked for: the
    claim is judged by form and kind.
    """
    found = {}
    for name, rows in RELATIONS.items():
        known = [
            (a, b, kind) for x, y, kind in rows if (a := space.find(x)) is not None and (b := space.find(y)) is not None
        ]
        kinds = {b: kind for _, b, kind in known}
        asked = [(a, b, c, d, kind) for a, b, _ in known for c, d, kind in known if a != c]
        answers = space.answers(torch.tensor([one[:3] for one in asked])).tolist()
        found[name] = 100 * fmean(answer == one[3] for answer, one in zip(answers, asked, strict=True))
        found[f"{name}, form and kind"] = 100 * fmean(
            kinds.get(answer) == one[4] for answer, one in zip(answers, asked, strict=True)
        )
    return found


def measure_vectors(epochs: int, seed: int) -> dict[str, dict[str, float]]:
    """Train word2vec on the grammar's sentences; scores of its vectors, and of one-hot vectors of the same words."""
    with tempfile.TemporaryDirectory() as folder:
        run = train("word2vec", Path(folder) / "run", quiet=True, vectors__seed=seed, vectors__epochs=epochs)
        spaces: dict[str, Any] = {"word2vec": run.vectors, "one-hot": OneHot(run.vectors.words)}
        return {name: similarity(space) | analogies(space) for name, space in spaces.items()}


def measure_reviews(data: str, seed: int) -> dict[str, dict[str, float]]:
    """The same with people's judgements: vectors of 50,000 film reviews on WordSim-353, SimLex-999 and Google's analogies."""
    judges = Path(data) / "wordvec_eval"
    files = [judges / "wordsim353.tsv", judges / "simlex999.txt"], judges / "questions-words.txt.gz"
    with tempfile.TemporaryDirectory() as folder:
        run = train(
            "word2vec-imdb", Path(folder) / "run", quiet=True, data__root=str(Path(data) / "imdb"), vectors__seed=seed
        )
        vectors: Vectors = run.vectors
        spaces: dict[str, Any] = {"word2vec": vectors, "one-hot": OneHot(vectors.words)}
        return {
            name: {score.name: score.value for score in evaluate(space, *files) if score.unit == "pairs" or score.sections}
            for name, space in spaces.items()
        }  # fmt: skip


def run(lab: Experiment) -> ClaimResult:
    found = lab.grid(measure_vectors, {"vectors": (10,)})["vectors"]
    if lab.full:
        lab.require_data("wordvec_eval")
        reviews = lab.per_seed("reviews", measure_reviews, str(lab.require_data("imdb").parent))
        found = [{kind: one[kind] | more[kind] for kind in one} for one, more in zip(found, reviews, strict=True)]
    names = list(found[0]["word2vec"])
    values = {kind: {name: [one[kind][name] for one in found] for name in names} for kind in ("one-hot", "word2vec")}
    means = {kind: {name: estimate(own) for name, own in scores.items()} for kind, scores in values.items()}
    own, none = means["word2vec"], means["one-hot"]
    apart = difference(values["word2vec"]["same kind"], values["word2vec"]["other kinds"])
    judged = JUDGMENTS if lab.full else ()
    better = [difference(values["word2vec"][name], values["one-hot"][name]) for name in judged]
    asked = (ANALOGIES,) if lab.full else tuple(f"{name}, form and kind" for name in RELATIONS)
    parts = [
        exceeds(apart),
        exceeds(own["nearest of its kind"], 50),
        *map(exceeds, better),
        *(exceeds(own[name], 50) for name in asked),
    ]
    rows = [[name, none[name].text(2), own[name].text(2)] for name in names]
    return ClaimResult(
        judge(*parts),
        f"Check: the mean cosine of two different words with one-hot vectors is {none['same kind'].mean:g} (nouns of one kind) and "
        f"{none['other kinds'].mean:g} (others). With word2vec it is {own['same kind'].text(2)} and {own['other kinds'].text(2)}, a "
        f"difference of {apart.text(2)}; {own['nearest of its kind'].text(0)} % of nearest nouns are of the same kind. Analogies: "
        + ", ".join(f"{own[name].text(0)} % ({name})" for name in (*RELATIONS, *(f"{name}, form and kind" for name in RELATIONS)))
        + "".join(f"; {name}: {own[name].text(1)}, one-hot {none[name].text(1)}" for name in (*judged, *asked) if lab.full) + ".",
        Table(["", "one-hot", "word2vec"], rows),
        bars({name: {kind: means[kind][name] for kind in means} for name in names if means["word2vec"][name].mean > 1},
             "Word vectors of the grammar", "per cent"),
        lab.basis,
    )  # fmt: skip


CLAIM = Claim(
    "C21",
    "One-hot vectors make all words equally different; the vectors of word2vec are similar for similar words and solve analogies.",
    "003",
    "word2vec (skip-gram, width 48) on 20,000 sentences of the embedded grammar: cosines of nouns of the same and of other kinds (person, "
    "animal, food, text, place), nearest nouns, and analogies of number (man - men) and tense (eats - ate), answered with a word of the "
    "correct form and kind: words of one kind are interchangeable in the grammar. Full version also: film reviews, scored on WordSim-353, "
    "SimLex-999 and Google's analogies.",
    "With word2vec: cosines of nouns of one kind that are no higher than of different kinds; half or less of the nearest nouns of the same "
    "kind; half or less of the analogies correct, for number and for tense (full version: of Google's, with the correct word). Full "
    "version also: a correlation with WordSim-353 or SimLex-999 no higher than that of one-hot vectors. Each is shown or refuted if the "
    "95 % interval over the seeds does not contain the threshold. Only some shown: holds in part.",
    run,
    0.6,
)
