"""qkv.quantize(path, out): store a model with int8 weights, after measuring what that costs in quality.

The quality gate, by what the model is for:
- translations and summaries of a run's test set (or of `data`): BLEU or ROUGE-L within 0.3 points
- language models, on a test set or on texts: perplexity within 1 %
- other tasks with a test set: their first score within 0.3 points
- otherwise: mean cosine of the last vectors with those of float32 at least 0.99
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from qkv.api import Model, load
from qkv.convert import folder as folders
from qkv.convert.detect import find_run
from qkv.data.grammar import pairs
from qkv.engine.quantize import has_integers
from qkv.engine.quantize import quantize as round_matrices
from qkv.errors import QkvError
from qkv.models.example import example
from qkv.train.rescore import from_parts, open_trained_model, rescore_model

POINTS, RATIO, COSINE = 0.3, 1.01, 0.99
"""Limits: points of a score, factor of perplexity, mean cosine."""
TEXTS = 200
"""Sentences of the embedded grammar that are used where there is no test set."""


@dataclass(frozen=True)
class Gate:
    """What int8 costs: a score of the model with float32 and with int8 weights, and whether that is within the limit."""

    metric: str
    float32: float
    int8: float
    limit: float
    data: str
    passed: bool

    def __str__(self) -> str:
        values = f"{self.float32:.5g} in float32, {self.int8:.5g} in int8"
        verdict = "within" if self.passed else "beyond"
        return f"{self.metric} on {self.data}: {values}, {verdict} the limit of {self.limit:g}"


def quantize(path: str | Path, out: str | Path, data: Sequence[str | Path] = (), force: bool = False) -> Gate:
    """Round the matrices of a model to int8, measure its quality, and write a folder of about a quarter of the size.

    path: anything that qkv.load opens, in float32. out: the folder to write.
    data: files to measure on, as in qkv.evaluate; without any the test set of the model's run, else sentences of the embedded grammar.
    force: write the folder also where the quality is beyond the limit; its config.json says so.
    """
    model = load(path, "cpu")
    if has_integers(model.network):
        raise QkvError(f"{path} is already quantised: give a model with float32 weights")
    rounded = Model(
        model.config, round_matrices(model.network), model.tokenizer, "cpu", model.target_tokenizer, model.usage
    )
    gate = measure(Path(path), model, rounded, data)
    if not gate.passed and not force:
        raise QkvError(f"{gate}: no folder was written; use --force to write it anyway")
    folders.save(out, rounded.config, rounded.network, rounded.tokenizer, rounded.target_tokenizer, rounded.usage,
                 {"precision": "int8", "scheme": "per-channel weights, dynamic per-row activations", "gate": asdict(gate)})  # fmt: skip
    return gate


def measure(path: Path, model: Model, rounded: Model, data: Sequence[str | Path]) -> Gate:
    """Compare both models on files, on the test set of the run, on texts of the grammar, or on ids."""
    if data or has_test_set(path):
        return compare_scores(path, rounded, data)
    both = (model, rounded)
    if model.tokenizer is not None and model.config.head == "vocabulary" and model.config.family == "decoder":
        plain, whole = (perplexity(one) for one in both)
        return Gate(
            "perplexity", plain, whole, RATIO, f"{TEXTS} sentences of the embedded grammar", whole <= RATIO * plain
        )
    cosine = compare_vectors(*both)
    return Gate("cosine of the last vectors", 1.0, cosine, COSINE, "example inputs", cosine >= COSINE)


def has_test_set(path: Path) -> bool:
    run = find_run(path)
    return run is not None and (run / "best").is_dir()


def compare_scores(path: Path, rounded: Model, data: Sequence[str | Path]) -> Gate:
    """Score both as qkv.evaluate does."""
    trained = open_trained_model(path, "cpu", not data)
    parts = rounded.config, rounded.network, rounded.tokenizer, rounded.target_tokenizer, rounded.usage
    whole = from_parts(*parts, trained.recipe if trained.own_test else None)
    results = [rescore_model(one, str(path), lambda _: None, data) for one in (trained, whole)]
    name = f"the {results[0]['set']} set" if not data else results[0]["set"]
    first, second = ({score["name"]: score["value"] for score in one["scores"]} for one in results)
    for found in (first, second):
        if "loss" in found:
            found.setdefault("perplexity", math.exp(found["loss"]))
    metric = next((one for one in ("BLEU", "ROUGE-L", "rougeL", "perplexity") if one in first), next(iter(first)))
    a, b = first[metric], second[metric]
    if metric == "perplexity":
        return Gate(metric, a, b, RATIO, name, b <= RATIO * a)
    return Gate(metric, a, b, POINTS, name, a - b <= POINTS)  # only a loss counts


def sentences() -> list[str]:
    """English sentences of the embedded grammar's test split."""
    return [pair.source for pair in islice(pairs("test", 0), TEXTS)]


def perplexity(model: Model) -> float:
    scores = model.score(sentences())
    tokens, total = sum(len(one.token_log_probs) for one in scores), sum(one.log_prob for one in scores)
    return float(torch.tensor(-total / max(tokens, 1)).exp())


@torch.no_grad()
def compare_vectors(model: Model, rounded: Model) -> float:
    """Return the mean cosine of the vectors of the last layer: an encoder's of texts, others' of random ids or images."""
    if model.tokenizer is not None and model.config.image_size is None and model.config.family == "encoder":
        vectors: list[Any] = [one.embed(sentences()) for one in (model, rounded)]
        return float((vectors[0] * vectors[1]).sum(-1).mean())
    batch = example(model.config)
    plain, whole = (one.packed()(batch).hidden for one in (model, rounded))
    return float(torch.cosine_similarity(plain, whole, dim=-1).mean())
