"""C21: one-hot vectors of words have no similarity, those of word2vec do."""

from __future__ import annotations

import tempfile
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from qkv.data import lexicon
from qkv.lab.experiment import Claim, ClaimResult, Experiment, Table, decide
from qkv.lab.statistics import estimate
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

    In the grammar words of one kind occur in the same places, so that their vectors cannot tell which of them is asked for.
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
    means = {
        kind: {name: estimate([one[kind][name] for one in found]) for name in names} for kind in ("one-hot", "word2vec")
    }
    own, none = means["word2vec"], means["one-hot"]
    no_similarity = none["same kind"].mean == none["other kinds"].mean == 0
    similar = own["same kind"].low > own["other kinds"].high and own["nearest of its kind"].low > 50
    relations = {name: own[name] for name in RELATIONS}
    rows = [[name, none[name].text(2), own[name].text(2)] for name in names]
    return ClaimResult(
        decide(no_similarity and similar and min(one.mean for one in relations.values()) > 50, no_similarity and similar),
        f"The mean cosine of two different words is 0 for one-hot vectors. For word2vec it is {own['same kind'].text(2)} for nouns of one "
        f"kind and {own['other kinds'].text(2)} for others; the nearest noun is of its kind for {own['nearest of its kind'].text(0)} %. "
        + "Analogies answered with the right word, and with a word of the right form and kind: "
        + ", ".join(f"{one.text(0)} and {own[f'{name}, form and kind'].text(0)} % ({name})" for name, one in relations.items())
        + ". Words of one kind are interchangeable in the grammar, so that the word itself cannot be known.",
        Table(["", "one-hot", "word2vec"], rows),
        bars({name: {kind: means[kind][name] for kind in means} for name in names if means["word2vec"][name].mean > 1},
             "Word vectors of the grammar", "per cent"),
        lab.basis,
    )  # fmt: skip


CLAIM = Claim(
    "C21",
    "One-hot vectors make all words equally different; the vectors of word2vec are similar for similar words and answer analogies.",
    "003",
    "word2vec (skip-gram, width 48) on 20,000 sentences of the grammar: cosines of nouns of the same and of other kinds (person, animal, "
    "food, text, place), nearest nouns, and analogies of number (man - men) and tense (eats - ate). Full: also film reviews, scored by "
    "WordSim-353, SimLex-999 and Google's analogies.",
    "Cosines that do not tell kinds apart, or (in part) less than half of the analogies right.",
    run,
    0.6,
)
