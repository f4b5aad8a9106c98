"""Classification and regression: a text, or a pair of texts, gets a class or a number.

A pair is read as one sequence, [CLS] first [SEP] second [SEP] (Devlin et al. 2019), so that every layer compares the two.
One vector stands for the whole (`model.pooling`), and a linear layer on it gives a score per class, or the number itself.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.batch import Batch, Loss, pad
from qkv.config import CorpusConfig, ModelConfig, Recipe
from qkv.config.usage import Usage
from qkv.convert.files import write_text
from qkv.data.batching import Unusable
from qkv.data.corpora import corpus, training
from qkv.data.grammar_tasks import sentence_kinds, sentence_lengths
from qkv.data.schema import LABELLED, SCORED, Schema
from qkv.data.sources import Record
from qkv.errors import ConfigError, QkvError
from qkv.evaluate.baseline import baseline
from qkv.evaluate.class_report import class_report
from qkv.evaluate.metrics import glue_task, score_labels, submission
from qkv.evaluate.scores import Score
from qkv.models.output import Output
from qkv.objectives import classes_words, classification, objective
from qkv.tasks.base import Say, Task, Words, digest
from qkv.tasks.vocabulary import given_tokenizer, learn_tokenizer
from qkv.tasks.windows import by_length
from qkv.text.kinds import around
from qkv.text.tokenizer import Tokenizer

HEADS = ("classes", "classes-words")
Text = str | tuple[str, str]
"""One text, or two that are compared."""
MOST_LABELS = 10_000
PREDICTIONS = "test.predictions.tsv"
"""The test set: number, what the model says, how sure it is, and the right answer where it is known."""


# --- from texts to batches


class TextRow(NamedTuple):
    """One text or pair as a network reads it."""

    ids: Sequence[int]
    segments: Sequence[int]
    """0 for the first text and what stands around it, 1 for the second."""
    cut: bool
    """It was too long, and its end is missing."""
    target: float = 0.0
    """The number of the right class, or the right number."""


class TextEncoder:
    """Texts and pairs -> rows of at most `most` tokens, with the special tokens that the tokenizer puts around them."""

    def __init__(self, c: ModelConfig, tokenizer: Tokenizer, most: int):
        self.tokenizer, self.most, self.n_segments = tokenizer, most, c.n_segments
        self.clip = starts if c.keep == "start" else ends
        self.around = {n: around(tokenizer, c, n) for n in (1, 2)}
        if sum(map(len, self.around[2])) + 2 > most:
            raise QkvError(f"{most} tokens leave no room for two texts: raise max_length")

    def __call__(self, texts: Sequence[Text]) -> list[TextRow]:
        parts = [(text,) if isinstance(text, str) else tuple(text) for text in texts]
        pieces = iter(self.tokenizer.plain([part for some in parts for part in some]))
        return [self.row([next(pieces) for _ in some]) for some in parts]

    def row(self, texts: list[list[int]]) -> TextRow:
        gaps = self.around[len(texts)]
        if len(texts) == 2 and not gaps[1]:
            raise QkvError("this tokenizer has no special token to stand between two texts: give one text at a time")
        kept = shares([len(text) for text in texts], self.most - sum(map(len, gaps)))
        ids, segments = list(gaps[0]), [0] * len(gaps[0])
        for number, (text, keep, gap) in enumerate(zip(texts, kept, gaps[1:], strict=True)):
            ids += [*self.clip(text, keep), *gap]
            segments += [min(number, max(self.n_segments - 1, 0))] * (keep + len(gap))
        if not ids:
            raise QkvError("an empty text, and this tokenizer puts nothing around it: there is nothing to read")
        return TextRow(array("i", ids), array("b", segments), sum(kept) < sum(map(len, texts)))


def starts(text: list[int], keep: int) -> list[int]:
    return text[:keep]


def ends(text: list[int], keep: int) -> list[int]:
    """As many tokens from the start as from the end, where reviews often say what they think."""
    return text if len(text) <= keep else text[: keep // 2] + text[len(text) - (keep - keep // 2) :]


def shares(lengths: Sequence[int], room: int) -> list[int]:
    """How many tokens of each text stay: the longer one is cut first, then both alike (Hugging Face's longest_first)."""
    if len(lengths) == 1:
        return [min(lengths[0], room)]
    short, long = sorted((0, 1), key=lambda i: lengths[i])
    kept = [0, 0]
    kept[short] = min(lengths[short], room // 2)
    kept[long] = min(lengths[long], room - kept[short])
    return kept


def collate(rows: Sequence[TextRow], c: ModelConfig) -> Batch:
    """Rows side by side, padded at the end. Targets are whole numbers where there are classes."""
    inputs, mask = pad([list(row.ids) for row in rows], c.pad_id)  # (B, T) each
    segments = pad([list(row.segments) for row in rows], 0)[0] if c.n_segments else None
    targets = torch.tensor([row.target for row in rows])  # (B,)
    targets = targets if c.n_classes == 1 else targets.long()
    return Batch(inputs, mask, targets, segments=segments)


# --- what a trained model does


@dataclass(frozen=True)
class Classification:
    """What a model says of one text or pair."""

    label: str | None = None
    """The most likely class; None of a regression."""
    probability: float | None = None
    probabilities: dict[str, float] = field(default_factory=dict)
    """Of every class, the most likely first."""
    score: float | None = None
    """The number that a regression gives."""
    cut: bool = False
    """The text was too long, and only a part of it was read."""

    def to_json(self) -> dict[str, Any]:
        if self.score is not None:
            return {"score": self.score, "cut": self.cut}
        return {"label": self.label, "probability": self.probability, "probabilities": self.probabilities,
                "cut": self.cut}  # fmt: skip


class Classifier:
    """A network with a head for classes at work."""

    def __init__(self, c: ModelConfig, network: nn.Module, tokenizer: Tokenizer, most: int | None = None):
        if c.head not in HEADS:
            raise QkvError(f'this model has no classes, its head is {c.head!r}: train it with task = "classification"')
        self.config, self.network = c, network
        self.read = TextEncoder(c, tokenizer, min(most or c.max_length, c.max_length))
        self.labels = c.labels or tuple(f"LABEL_{i}" for i in range(c.n_classes))

    def classify(
        self, texts: Sequence[Text], top_k: int | None = None, batch_tokens: int = 4096
    ) -> list[Classification]:
        """An answer for each text or pair, in their order; `top_k`: the probabilities of so many classes only."""
        if isinstance(texts, str):
            raise QkvError("classify takes a list of texts, given one text: pass [text]")
        rows = self.read(texts)
        logits = self.logits(rows, batch_tokens)  # (N, n)
        if self.config.n_classes == 1:
            return [
                Classification(score=score, cut=row.cut) for score, row in zip(logits[:, 0].tolist(), rows, strict=True)
            ]
        best, order = logits.softmax(-1).topk(min(top_k or len(self.labels), len(self.labels)))
        return [
            Classification(
                self.labels[which[0]], p[0], {self.labels[i]: q for i, q in zip(which, p, strict=True)}, cut=row.cut
            )
            for p, which, row in zip(best.tolist(), order.tolist(), rows, strict=True)
        ]

    @torch.no_grad()
    def logits(self, rows: Sequence[TextRow], batch_tokens: int = 4096) -> Tensor:
        """(N, n) a score for each class, or (N, 1) the number of a regression."""
        device = next(self.network.parameters()).device
        found = torch.zeros(len(rows), self.config.n_classes)
        for some in by_length([len(row.ids) for row in rows], batch_tokens):
            batch = collate([rows[i] for i in some], self.config).to(device)
            found[some] = self.network(batch).logits.float().cpu()
        return found


# --- how one is trained


class ClassificationTask(Task):
    """Texts or pairs with a class, cross-entropy of the class, accuracy (of a GLUE task, its own metric) held out."""

    name, noun, hub_tag = "classification", "a classifier", "text-classification"
    schema = Schema("classification", LABELLED, "give one table with text and label columns (.tsv, .csv, .jsonl)",
                    from_grammar=sentence_kinds)  # fmt: skip
    unit = "texts"
    metrics: tuple[str, ...] = ("accuracy", "macro_f1")
    """Unless the data set has its own."""

    @classmethod
    def possible(cls, recipe: Recipe) -> None:
        c = recipe.model
        if recipe.data is None or c.family == "encoder-decoder" or c.image_size is not None:
            raise ConfigError(
                f"{cls.name} needs [data] and a model that reads text, of family 'encoder' or 'decoder'; this is of "
                f"family {c.family!r}" + ("" if c.image_size is None else ' and reads images (task = "images")')
            )
        if c.family == "decoder" and c.pooling == "first":
            raise ConfigError('a decoder\'s first vector has seen one word: set model.pooling = "last" or "mean"')
        cls.fits(recipe)
        if recipe.tune.auxiliary and c.head != "classes-words":
            raise ConfigError(
                f'tune.auxiliary = {recipe.tune.auxiliary:g} needs head = "classes-words", this is {c.head!r}'
            )

    @classmethod
    def prepare(cls, recipe: Recipe, say: Say) -> Words:
        """The vocabulary, and the labels of the training set in their order."""
        data = recipe.data
        assert data is not None
        corpora = [corpus(c, data, "train", cls.schema) for c in data.train]
        labels = cls.labels_of(record[-1] for one in corpora for _, record in one.read())
        tokenizer = given_tokenizer(recipe) or learn_tokenizer(corpora, lambda record: record[:-1], data, say)
        return Words(tokenizer, tokenizer, labels)

    @classmethod
    def labels_of(cls, found: Iterable[str]) -> tuple[str, ...]:
        """Each label once; numbers by their size, all others by their letters."""
        labels: set[str] = set()
        for label in found:
            labels.add(label)
            if len(labels) > MOST_LABELS:
                raise QkvError(
                    f"more than {MOST_LABELS:,} different labels, such as {label!r}: is it the right column? "
                    '(numbers: task = "regression")'
                )
        if len(labels) < 2:
            raise QkvError(
                f"all training examples have the same label ({''.join(labels)!r}): there is nothing to learn"
            )
        return tuple(sorted(labels, key=number if all(number(label) is not None for label in labels) else str))  # type: ignore

    @classmethod
    def fitted(cls, recipe: Recipe, words: Words) -> ModelConfig:
        c = super().fitted(recipe, words)
        head = c.head if c.head in HEADS else "classes"
        return c.changed(head=head, n_classes=len(words.labels) or 1, labels=words.labels)  # type: ignore[no-any-return]

    def __init__(self, recipe: Recipe, config: ModelConfig, words: Words):
        super().__init__(recipe, config, words)
        assert words.source is not None
        self.tokenizer = words.source
        self.like(recipe)
        self.most = self.data.max_length
        self.reader = TextEncoder(config, self.tokenizer, self.most)
        self.batches = self.batched(training(self.data, self.schema), lambda row: len(row.ids))
        name = "test" if self.data.valid is self.data.test else "valid"  # one set for both: a model is scored again
        self.valid, self.left_out = self.held(self.data.valid, name)
        self.rows = self.read_rows(self.valid)
        # what is wrong with the test set is said now, not after hours of training
        self.tested, self.untested = self.held(self.data.test, "test") if self.data.test else ([], Counter())

    def like(self, recipe: Recipe) -> None:
        known = glue_task(recipe.data.valid.dataset) if recipe.data is not None else None
        self.metrics = type(self).metrics if known is None else known.metrics
        self.metric = self.metrics[0]

    def held(self, c: CorpusConfig, name: str) -> tuple[list[Record], Counter[str]]:
        """A held-out set and what of it could not be read. A label that nothing was learned about is an error; a test
        set may have none at all."""
        source = corpus(c, self.data, name, self.schema)
        records = [record for _, record in source.read()]  # blank ones too: a submission counts lines
        if not records:
            raise QkvError(f"the {name} set has no example: give data.{name} some that are not in the training set")
        if name == "valid" or any(record[-1] for record in records):
            for record in records:
                if self.target(record[-1]) is None:
                    raise QkvError(self.unknown(record[-1], name))
        return records, Counter(source.skipped)

    def read_rows(self, records: Sequence[Record]) -> list[TextRow]:
        """Each text with its target; where there is none, with 0."""
        rows = zip(records, self.reader([text_of(record) for record in records]), strict=True)
        return [row._replace(target=self.target(record[-1]) or 0.0) for record, row in rows]

    # --- learning

    def examples(self, records: Sequence[Record]) -> list[TextRow | Unusable]:
        rows = self.reader([text_of(record) for record in records])
        return [self.example(record, row) for record, row in zip(records, rows, strict=True)]

    def example(self, record: Record, row: TextRow) -> TextRow | Unusable:
        target = self.target(record[-1])
        if not all(part.strip() for part in record[:-1]):
            return Unusable("an empty text")
        reason = f"the label {record[-1]!r}, which is none"
        return Unusable(reason) if target is None else row._replace(target=target)

    def target(self, label: str) -> float | None:
        """The number of a class; None for one that the training set does not have."""
        return self.config.labels.index(label) if label in self.config.labels else None

    def unknown(self, label: str, name: str) -> str:
        known = ", ".join(map(repr, self.config.labels[:20])) + (" ..." if len(self.config.labels) > 20 else "")
        return f"the {name} set has the label {label!r}, which the training set has not; known are {known}"

    def collate(self, examples: list[Any]) -> Batch:
        return collate(examples, self.config)

    def objective(self, output: Output, batch: Batch) -> Loss:
        if self.config.head == "classes-words":
            return classes_words(output, batch, self.recipe.tune.auxiliary, self.smoothing)
        if self.smoothing:
            return classification(output, batch, self.smoothing)
        return objective(self.config)(output, batch)

    # --- asking

    def evaluate(self, network: nn.Module) -> dict[str, float]:
        """The metrics, in per cent, and the mean loss."""
        logits = Classifier(self.config, network, self.tokenizer, self.most).logits(self.rows)
        found = self.scores(self.said(logits), [record[-1] for record in self.valid])
        return {score.name: score.value for score in found} | {"loss": self.loss(logits)}

    def scores(self, said: list[str], right: list[str]) -> list[Score]:
        return [score_labels(metric, said, right, self.config.labels) for metric in self.metrics]

    def loss(self, logits: Tensor) -> float:
        return F.cross_entropy(logits, torch.tensor([int(row.target) for row in self.rows])).item()

    def said(self, logits: Tensor) -> list[str]:
        """(N, n) -> the most likely classes."""
        return [self.config.labels[i] for i in logits.argmax(1).tolist()]

    def test(self, network: nn.Module, folder: Path, say: Say) -> dict[str, Any] | None:
        """Every answer in a file, of a GLUE task also as its server reads it; scores where the right answers are known."""
        if self.data.test is None:
            return None
        rows, right = self.read_rows(self.tested), [record[-1] for record in self.tested]
        cut = sum(row.cut for row in rows)
        if cut:
            say(f"{cut:,} of {len(rows):,} texts of the test set are cut to {self.most} tokens")
        logits = Classifier(self.config, network, self.tokenizer, self.most).logits(rows)
        said = self.said(logits)
        write_text(folder / PREDICTIONS, self.table(logits, said, right))
        task = glue_task(self.data.test.dataset)
        if task is not None:
            write_text(folder / task.file, submission(logits[:, 0].tolist() if self.config.n_classes == 1 else said))
        scores = [score.to_json() for score in self.scores(said, right)] if any(right) else []
        how = f"texts of at most {self.most} tokens" if any(right) else "answers only: the test set has no labels"
        return {"examples": len(rows), "digest": digest(self.tested), "left_out": dict(self.untested), "cut": cut,
                "how": how, "scores": scores,
                **({"report": class_report(said, right, self.config.labels).to_json()}
                   if any(right) and self.config.labels else {})}  # fmt: skip

    def baseline(self) -> dict[str, Any] | None:
        """TF-IDF + logistic regression on the same texts, where these have classes and are not too many."""
        records = (record for c in self.data.train for _, record in corpus(c, self.data, "train", self.schema).read())
        return baseline(records, self.valid, self.tested, self.metrics, self.config.labels)

    def table(self, logits: Tensor, said: list[str], right: list[str]) -> str:
        sure = logits.softmax(-1).amax(-1).tolist()
        lines = zip(said, sure, right, strict=True)
        rows = (f"{i}\t{label}\t{p:.6f}\t{answer}\n" for i, (label, p, answer) in enumerate(lines))
        return "index\tprediction\tprobability\tlabel\n" + "".join(rows)

    # --- telling

    def usage(self) -> Usage:
        return super().usage().model_copy(update={"pairs": len(self.valid[0]) == 3})

    def use(self, folder: str) -> tuple[str, str]:
        pairs = len(self.valid[0]) == 3
        text, option = ("A text.\\tAnother.", " --pairs") if pairs else ("A text.", "")
        given = '("A text.", "Another.")' if pairs else '"A text."'
        return f"printf '{text}\\n' | qkv classify {folder}{option}", f"model.classify([{given}])"


class RegressionTask(ClassificationTask):
    """Texts or pairs with a number, squared error, and how well the order is kept on the held-out set."""

    name, noun = "regression", "a model that gives texts a number"
    schema = replace(ClassificationTask.schema, task="regression", columns=SCORED, from_grammar=sentence_lengths)
    metrics = ("spearman", "pearson")

    @classmethod
    def labels_of(cls, found: Iterable[str]) -> tuple[str, ...]:
        """None; but there must be numbers."""
        if not any(number(label) is not None for label in found):
            raise QkvError(
                'no training example has a number: is it the right column? (classes: task = "classification")'
            )
        return ()

    def target(self, label: str) -> float | None:
        return number(label)

    def unknown(self, label: str, name: str) -> str:
        return f"the {name} set has {label!r} where a number should be"

    def loss(self, logits: Tensor) -> float:
        return F.mse_loss(logits[:, 0], torch.tensor([row.target for row in self.rows])).item()

    def said(self, logits: Tensor) -> list[str]:
        return [f"{score:.4f}" for score in logits[:, 0].tolist()]

    def table(self, logits: Tensor, said: list[str], right: list[str]) -> str:
        rows = (f"{i}\t{score}\t{answer}\n" for i, (score, answer) in enumerate(zip(said, right, strict=True)))
        return "index\tprediction\tlabel\n" + "".join(rows)


def text_of(record: Record) -> Text:
    """All but the label."""
    return record[0] if len(record) == 2 else (record[0], record[1])


def number(label: str) -> float | None:
    """A label as a number, if it is one."""
    try:
        value = float(label)
    except ValueError:
        return None
    return value if abs(value) < 1e30 else None  # neither infinite nor no number at all
