"""C19: contextual vectors separate the senses of a word; a static vector cannot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

import qkv
from qkv.data.clauses import Token
from qkv.data.grammar import pairs
from qkv.lab.experiment import Claim, ClaimResult, Experiment, Table, decide
from qkv.lab.heads import around_text
from qkv.lab.statistics import estimate
from qkv.lab.training import make_recipe, train_network
from qkv.lab.treebank import read_trees
from qkv.look.charts import lines
from qkv.look.residual_stream import layer_outputs
from qkv.models.inputs import batch_of

MERGED = {"letter": "apple", "chair": "dog", "school": "teacher"}
"""Pseudo-homonyms (Schütze 1998): the first word is written as the second, so that one word has two known senses."""
MODEL: dict[str, Any] = {"family": "encoder", "head": "masked", "d_model": 64, "n_layers": 3, "n_heads": 4, "d_ff": 256,
                         "feedforward": "gelu", "norm_order": "pre", "position": "rotary", "tie": "output"}  # fmt: skip
Occurrence = tuple[Sequence[str], int, str, int]
"""The words of a sentence, the place of the ambiguous one, the word itself, its sense (0 or 1)."""
APPLES = (
    ("I bought an apple and an orange .", 0), ("She ate a sweet apple with her bread .", 0),
    ("The apple fell from the tree .", 0), ("He peeled the apple and cut it into slices .", 0),
    ("I bought an apple watch .", 1), ("He repaired my apple phone .", 1),
    ("She works for apple as a software engineer .", 1), ("The new apple laptop has a fast processor .", 1),
)  # fmt: skip


def merge(tokens: Iterable[Token]) -> Iterator[tuple[str, int | None]]:
    """Yield each word as it is written, and its sense where it is ambiguous."""
    for token in tokens:
        if token.text in MERGED:
            yield MERGED[token.text], 1
        else:
            yield token.text, 0 if token.text in MERGED.values() else None


def occurrences(split: str, count: int) -> Iterator[Occurrence]:
    """Yield the ambiguous words among so many sentences of the grammar."""
    for pair in islice(pairs(split), count):  # type: ignore[arg-type]
        words = list(merge(pair.english))
        for place, (word, sense) in enumerate(words):
            if sense is not None:
                yield [w for w, _ in words], place, word, sense


def train_masked_model(folder: Path, sentences: int, steps: int, seed: int, merged: bool = True) -> qkv.Model:
    """Train a small BERT on the grammar, with merged words or as it is; every word is one token."""
    for name, split, count in (("train", "train", sentences), ("valid", "valid", 200)):
        sentences_of = (pair.english for pair in islice(pairs(split), count))  # type: ignore[arg-type]
        texts = (" ".join([word for word, _ in merge(s)] if merged else [t.text for t in s]) for s in sentences_of)
        (folder / name).write_text("\n".join(texts), "utf-8")
    recipe = make_recipe(
        "masked",
        MODEL,
        {"train": [{"files": [str(folder / "train")], "documents": "lines"}], "tokenizer": "words",
         "valid": {"files": [str(folder / "valid")], "documents": "lines"}, "vocab_size": 600},
        train={"steps": steps, "seed": seed, "optimizer": "muon", "learning_rate": 6e-3, "schedule": "linear"},
        corrupt={"rate": 0.2},
    )  # fmt: skip
    trained = train_network(recipe)
    return qkv.Model(trained.task.config, trained.network, trained.task.words.source)


@torch.no_grad()
def word_vectors(model: qkv.Model, found: Sequence[Occurrence]) -> Tensor:
    """(N, layers + 1, C): the mean vector of each ambiguous word's pieces, after the embedding and after every block."""
    vectors, words = [], model.words()
    before, after = around_text(model)
    for sentence, place, _, _ in found:
        pieces = words.plain([" ".join(sentence[:place]), sentence[place], " ".join(sentence[place + 1 :])])
        first = len(before) + len(pieces[0])
        ids = [*before, *pieces[0], *pieces[1], *pieces[2], *after]
        outputs = layer_outputs(model.network, batch_of(model.config, [ids]))
        vectors.append(torch.stack([x[0, first : first + len(pieces[1])].mean(0) for x in outputs]))  # (layers + 1, C)
    return torch.stack(vectors)


def centroid_accuracy(model: qkv.Model, known: Sequence[Occurrence], new: Sequence[Occurrence]) -> list[float]:
    """Share of the senses of `new` (balanced: the mean over both) that the nearer mean vector of `known` gives, by layer, as the
    mean over the words."""
    by_word: dict[str, list[list[float]]] = {}
    seen, asked = word_vectors(model, known), word_vectors(model, new)
    for word in sorted({one[2] for one in new}):
        centres = torch.stack([seen[mask_of(known, word, sense)].mean(0) for sense in (0, 1)])  # (2, layers + 1, C)
        shares = []
        for sense in (0, 1):
            x = asked[mask_of(new, word, sense)]  # (n, layers + 1, C)
            distance = (x[:, None] - centres).norm(dim=-1)  # (n, 2, layers + 1)
            right = (distance[:, sense] < distance[:, 1 - sense]).float()
            ties = (distance[:, 0] == distance[:, 1]).float()  # a static vector is as near to one as to the other
            shares.append((right + ties / 2).mean(0))
        by_word[word] = torch.stack(shares).mean(0).tolist()
    return torch.tensor(list(by_word.values())).mean(0).tolist()  # type: ignore[no-any-return]


def mask_of(found: Sequence[Occurrence], word: str, sense: int) -> Tensor:
    return torch.tensor([one[2] == word and one[3] == sense for one in found])


def grammar_senses(sentences: int, steps: int, seed: int) -> list[float]:
    """Accuracy by layer in held-out sentences, of a masked model that never saw the senses."""
    with TemporaryDirectory() as folder:
        model = train_masked_model(Path(folder), sentences, steps, seed)
    return centroid_accuracy(model, list(occurrences("valid", 3000)), list(occurrences("test", 2000)))


def tagged_words(files: Sequence[Path]) -> Iterator[Occurrence]:
    """Yield the nouns (sense 0) and verbs (sense 1) of treebanks (.conllu), each with its sentence."""
    for sentence in (sentence for path in files for sentence in read_trees(path)):
        words = [word for word, _, _, _ in sentence]
        for place, (word, tag, _, _) in enumerate(sentence):
            if tag in ("NOUN", "VERB"):
                yield words, place, word, int(tag == "VERB")


def real_senses(model_folder: str, treebank: str, least: int = 12) -> dict[str, Any]:
    """Nouns against verbs of one spelling in real text, by layer of a real encoder; and the two apples of the lecture."""
    model, root = qkv.load(model_folder, "cpu"), Path(treebank)
    known = list(tagged_words(sorted(root.glob("*train*.conllu*"))))
    new = list(tagged_words([*sorted(root.glob("*dev*.conllu*")), *sorted(root.glob("*test*.conllu*"))]))
    counted: Mapping[tuple[str, int], int] = count_senses(known)
    both = {w for w, _ in counted if min(counted.get((w, 0), 0), counted.get((w, 1), 0)) >= least}
    asked: Mapping[tuple[str, int], int] = count_senses(new)
    both = {w for w in both if min(asked.get((w, 0), 0), asked.get((w, 1), 0)) >= 2}
    chosen = [[one for one in some if one[2] in both and len(one[0]) <= 60] for some in (known, new)]
    apples = [(text.split(), text.split().index("apple"), "apple", sense) for text, sense in APPLES]
    return {"words": sorted(both), "accuracy": centroid_accuracy(model, *chosen), "apple": apple_margin(model, apples)}


def count_senses(found: Iterable[Occurrence]) -> dict[tuple[str, int], int]:
    counted: dict[tuple[str, int], int] = {}
    for _, _, word, sense in found:
        counted[word, sense] = counted.get((word, sense), 0) + 1
    return counted


def apple_margin(model: qkv.Model, apples: Sequence[Occurrence]) -> list[float]:
    """Mean cosine of two apples of one sense minus that of two senses, by layer."""
    x = torch.nn.functional.normalize(word_vectors(model, apples), dim=-1)  # (N, layers + 1, C)
    cosine = torch.einsum("ilc,jlc->lij", x, x)
    same = torch.tensor([[a[3] == b[3] for b in apples] for a in apples])
    other = ~torch.eye(len(apples), dtype=torch.bool)
    return (cosine[:, same & other].mean(1) - cosine[:, ~same].mean(1)).tolist()  # type: ignore[no-any-return]


def run(lab: Experiment) -> ClaimResult:
    sizes = (40_000, 2500) if lab.full else (12_000, 500)
    found = lab.grid(grammar_senses, {"masked model": sizes})["masked model"]
    layers = [estimate([100 * one[layer] for one in found]) for layer in range(len(found[0]))]
    static, best = layers[0], max(layers, key=lambda one: one.mean)
    rows = [["embedding" if i == 0 else f"block {i}", one.text(1)] for i, one in enumerate(layers)]
    series = {"merged words of the grammar": [(float(i), one.mean) for i, one in enumerate(layers)]}
    note = ""
    if lab.full:
        real = lab.measure(
            "MiniLM", real_senses, str(lab.require_data("all_minilm_l6_v2")), str(lab.require_data("ud_english_ewt"))
        )
        rows += [
            [f"MiniLM, {'embedding' if i == 0 else f'block {i}'}", f"{100 * one:.1f}"]
            for i, one in enumerate(real["accuracy"])
        ]
        series["MiniLM: noun or verb"] = [(float(i), 100 * one) for i, one in enumerate(real["accuracy"])]
        accuracy = [100 * one for one in real["accuracy"]]
        note = (
            f" MiniLM tells the noun from the verb of {len(real['words'])} words in {accuracy[0]:.1f} % at the embedding and "
            f"{max(accuracy):.1f} % at its best layer; the cosine of two apples of one sense exceeds that of two senses by "
            f"{real['apple'][0]:.2f} at the embedding and by up to {max(real['apple']):.2f} in the layers."
        )
    return ClaimResult(
        decide(best.low > static.high + 10, best.low > static.high),
        f"Three pairs of words were merged in the text of the grammar. From the static vector the sense is guessed in "
        f"{static.text(1)} % of held-out sentences, from the vector in context in {best.text(1)} %.{note}",
        Table(["vector", "sense correct, %"], rows),
        lines(series, "Senses told apart by the nearest mean vector", "block", "correct, %"),
        lab.basis + ("; MiniLM: one model" if lab.full else ""),
    )


CLAIM = Claim(
    "C19",
    "The vector of a word in its context separates senses that one static vector per word cannot.",
    "002, 003",
    f"Masked models trained on the grammar after three pairs of words were merged ({', '.join(f'{b}/{a}' for a, b in MERGED.items())}): "
    "the sense of a merged word in held-out sentences by the nearer of two mean vectors, at every layer. Full version also: MiniLM, nouns "
    "and verbs of one spelling in UD English EWT, and the apples of the lecture.",
    "Contextual vectors that are no nearer to the right sense than the static one: 50 % is chance.",
    run,
    2.0,
)
