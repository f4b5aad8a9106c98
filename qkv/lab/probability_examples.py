"""Examples D4 and D5: the probability of a text word by word, and one word in several senses."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv import pretrained
from qkv.api import Model, load
from qkv.errors import QkvError
from qkv.lab.example_steps import ExampleTable, Step
from qkv.parts.masks import Mask
from qkv.parts.positions import Rotary, sinusoids

EATING = {"an apple": 0.02, "a banana": 0.01, "popcorns": 0.0001}
PLACES = {"house": 0.01, "mansion": 0.001, "movie theater": 0.2}
"""Lecture 003: what follows "I was eating", and what fits "I was in a _. I was eating popcorns"."""
CHOCOLATE = ("This chocolate is delicious", "I think chocolate is delicious", "Most people know chocolate is delicious")
APPLE = ("I bought an apple and an orange.", "I bought an apple watch.")
CHICKEN = (
    "The chicken didn't cross the road because it was too tired.",
    "The chicken didn't cross the road because it was too wide.",
)


def open_model(path: Path | None) -> Model:
    return load(path or pretrained.find("example"), device="cpu")


# --- D4


def d4(path: Path | None = None) -> list[Step]:
    """The probability of a text (003): a product of its words' probabilities"""
    model = open_model(path)
    rows = [[word, f"{p:g}", f"{math.log(p):.2f}", f"{p / EATING['an apple']:.3f}"] for word, p in EATING.items()]
    places = ", ".join(f"{word} {p / sum(PLACES.values()):.1%}" for word, p in PLACES.items())
    return [
        "p(text) = p(word 1) p(word 2 | word 1) ...; logarithms turn the product into a sum",
        ExampleTable(["I was eating ...", "p", "log p", "of an apple"], rows),
        f"I was in a _. I was eating popcorns: among the three places of the slide {places}",
        "a model that reads from left to right compares whole texts for that, p(left, place, right) for every place",
        *score_steps(model, "the model that ships with qkv" if path is None else str(path)),
        "your own model and texts, or a file of them:",
        'qkv score FOLDER "I was eating an apple." --tokens',
    ]


def score_steps(model: Model, name: str) -> list[Step]:
    """Score two texts that differ in one word, token by token."""
    if model.config.family == "encoder-decoder":
        texts, sources = ["Der Hund schläft.", "Der Hund singt."], ["The dog sleeps."] * 2
        about = f"{name}: German given The dog sleeps."
    else:
        texts, sources = ["I was eating an apple.", "I was eating an chair."], None
        about = f"{name}:"
    steps: list[Step] = [about]
    try:
        scores = model.score(texts, sources)
    except QkvError as error:  # a classifier, an encoder without a head ...
        return [f"{name}: {error}"]
    for one in scores:
        cells = [f"{math.exp(p):.3g}" for p in one.token_log_probs]
        steps.append(ExampleTable(["", *one.tokens], [["p", *cells]]))
        steps.append(
            f"log p = {one.log_prob:.3f}, p = {math.exp(one.log_prob):.3g}, perplexity {one.perplexity:.3f}: {one.text}"
        )
    return steps


# --- D5


def rotary_scores() -> list[float]:
    """Score of chocolate and delicious in the three sentences, by rotary positions: they are two words apart in each."""
    torch.manual_seed(0)
    query, key = torch.randn(2, 1, 1, 1, 32).unbind(0)  # (1, 1, 1, 32)
    scores = []
    for sentence in CHOCOLATE:
        words = sentence.split()
        encoding = Rotary(32)(Mask(len(words)))
        at = {word: encoding.rotate(x.expand(1, 1, len(words), 32))[0, 0, words.index(word)]
              for word, x in (("chocolate", query), ("delicious", key))}  # fmt: skip
        scores.append(float(at["chocolate"] @ at["delicious"]))
    return scores


def added_scores() -> list[float]:
    """The same with sinusoids added to the vectors."""
    torch.manual_seed(0)
    query, key = torch.randn(2, 32).unbind(0)
    places = [(words.index("chocolate"), words.index("delicious")) for words in map(str.split, CHOCOLATE)]
    table = sinusoids(torch.arange(8), 32)
    return [float((query + table[a]) @ (key + table[b])) for a, b in places]


def word_vector(model: Model, word: str, text: str) -> Tensor:
    """(C,): vector of a word in a text, after the last layer."""
    looker: Any = model.looker()
    return looker.vectors(word, [text], -1)[0]  # type: ignore[no-any-return]


def d5(path: Path | None = None) -> list[Step]:
    """One word, several senses (000, 002, 003): chocolate, apple, it"""
    model = open_model(path)
    apple, chicken = (model.contexts(word, texts) for word, texts in (("apple", APPLE), ("it", CHICKEN)))
    rows = []
    for text in CHICKEN:
        own = word_vector(model, "it", text)
        cosines = [
            float(F.cosine_similarity(own, word_vector(model, noun, text), dim=0)) for noun in ("chicken", "road")
        ]
        rows.append([text.split()[-1].strip("."), *(f"{value:.3f}" for value in cosines)])
    return [
        "chocolate: one sense at three positions. Score of chocolate and delicious, two words apart in each sentence:",
        f"  rotary positions {', '.join(f'{value:.4f}' for value in rotary_scores())}: the same; "
        f"added sinusoids {', '.join(f'{value:.2f}' for value in added_scores())}",
        "apple (the fruit, the watch): a static vector is the same in both, cosine 1.000; "
        f"after the last layer of {'the example model' if path is None else path} {apple.cosines[0, 1]:.3f}",
        f"it (chicken or road): static 1.000, after the last layer {chicken.cosines[0, 1]:.3f}; cosine of it with the two nouns:",
        ExampleTable(["because it was too ...", "chicken", "road"], rows),
        *(["The example model translates a small grammar and has seen none of these senses. With a pre-trained encoder "
           "(all-MiniLM-L6-v2, BERT ...):", "qkv lectures D5 --model FOLDER"] if path is None else []),
        "over many sentences:",
        "qkv lab run C19",
    ]  # fmt: skip
