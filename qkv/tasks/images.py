"""The images task: which class an image belongs to, by a Vision Transformer (Dosovitskiy et al. 2021).

An image is cut into patches, each patch is a token, and the vector of a [class] token in front of them is classified. The code that
all tasks with images share is in PictureTask; captions.py has the other task.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from qkv.batch import Batch, Loss
from qkv.config import CorpusConfig, ModelConfig, Recipe
from qkv.convert.files import write_text
from qkv.data.augment import augment
from qkv.data.batching import Batches
from qkv.data.images import Fitted, Pixels, pictures, pixels
from qkv.data.mixture import Mixture
from qkv.data.schema import IMAGE, IMAGE_LABEL, Schema
from qkv.data.sources import Record
from qkv.errors import ConfigError, QkvError
from qkv.evaluate.class_report import class_report
from qkv.evaluate.scores import Score
from qkv.models.build import n_patches
from qkv.models.output import Output
from qkv.objectives import classification
from qkv.shared_work import shared_map
from qkv.tasks.base import Say, Task, Words, digest, held_out
from qkv.tasks.classifier import Classification

POOL_BYTES = 500_000_000
"""Pictures that are shuffled together fill at most this much memory."""
ASKED = 16_384
"""Patches per pass when images are classified."""
MOST_CLASSES = 100_000
ANSWERS = "test.answers.tsv"
"""The test set: the right class, the model's, and how sure it is."""


# --- what an image classifier does


class ImageClassifier:
    """Classify images with a network of patches and a classification head: images in, labels out."""

    def __init__(self, c: ModelConfig, network: nn.Module):
        if c.image_size is None or c.head != "classes":
            raise QkvError("to classify images a model must be trained with task = \"images\"; this one reads text or "
                           f"has a head for {c.head!r}")  # fmt: skip
        self.config, self.network = c, network
        self.labels = c.labels or tuple(f"LABEL_{i}" for i in range(c.n_classes))

    def classify(self, given: Sequence[Any], top_k: int | None = None) -> list[Classification]:
        """Return the class of each image: paths, Pillow images or arrays of uint8; `top_k` limits the probabilities."""
        best, order = self.log_probs(given).exp().topk(min(top_k or len(self.labels), len(self.labels)))
        rows = zip(best.tolist(), order.tolist(), strict=True)
        return [Classification(self.labels[which[0]], p[0], {self.labels[i]: q for i, q in zip(which, p, strict=True)})
                for p, which in rows]  # fmt: skip

    @torch.no_grad()
    def log_probs(self, given: Sequence[Any]) -> Tensor:
        """(N, n): the logarithm of each class's probability."""
        device = next(self.network.parameters()).device

        def compute(some: Sequence[Any]) -> Tensor:
            batch = Batch(images=open_images(some, self.config).to(device))
            return self.network(batch).logits.float().log_softmax(-1).cpu()  # type: ignore[no-any-return]

        tables = list(shared_map(compute, slices(given, self.config)))
        return torch.cat(tables) if tables else torch.zeros(0, self.config.n_classes)


def slices(given: Sequence[Any], c: ModelConfig) -> list[Sequence[Any]]:
    """Divide images, or their records, into batches."""
    rows = max(1, ASKED // (1 + n_patches(c)))
    return [given[at : at + rows] for at in range(0, len(given), rows)]


def open_images(given: Sequence[Any], c: ModelConfig) -> Tensor:
    """Open images of any kind as a batch: (B, C, H, W)."""
    return normal(stack_pixels([pixels(one, c.image_size or 0, c.n_channels) for one in given]))


def stack_pixels(tables: Sequence[Pixels]) -> Tensor:
    """(B, C, H, W), from 0 to 255."""
    return torch.from_numpy(np.stack(tables)).float()


def normal(images: Tensor) -> Tensor:
    """0 ... 255 -> -1 ... 1, as ViT reads them."""
    return images / 127.5 - 1


# --- how images are trained on


class PictureTask(Task):
    """Shared code of tasks with images: corpora, bounded memory, augmentation (in training only)."""

    @classmethod
    def readable(cls, recipe: Recipe) -> None:
        """Check that the model reads images of a supported kind."""
        c = recipe.model
        if recipe.data is None or c.image_size is None:
            raise ConfigError(
                f"task = {cls.name!r} needs [data] and a model that reads images: set image_size and patch_size"
            )
        if c.n_channels not in (1, 3):
            raise ConfigError(f"model.n_channels = {c.n_channels}: images are grey (1) or in colour (3)")
        if not recipe.data.duplicates:
            raise ConfigError("data.duplicates = false is for text: images are not compared")

    @classmethod
    def corpora(cls, recipe: Recipe) -> list[Fitted]:
        """The training corpora, one by one."""
        assert recipe.data is not None
        return [pictures(c, recipe.data, recipe.model, "train", cls.schema) for c in recipe.data.train]

    def open(self) -> None:
        """Open training batches and held-out images; the latter are read again at each evaluation."""
        c, data = self.config, self.data
        corpora = self.corpora(self.recipe)
        source = corpora[0] if len(corpora) == 1 else Mixture(corpora, [one.weight for one in data.train])
        bytes_each = c.n_channels * (c.image_size or 1) ** 2
        pool = max(1, min(data.pool, POOL_BYTES // bytes_each))
        self.batches = Batches(source, self.encode, self.length, data.batch_tokens, pool, self.recipe.train.seed)
        self.valid = self.held(data.valid, "valid")

    def held(self, which: CorpusConfig, split: str) -> list[Record]:
        """The records of a held-out set whose images can be opened; the others are counted in `left_out`."""
        corpus = pictures(which, self.data, self.config, split, self.schema)
        kept = {number for number, _ in corpus.read()}
        self.left_out = corpus.skipped.copy()
        if not kept:
            held_out(corpus, split)  # says so
        return [record for number, record in corpus.source.read() if number in kept]

    def length(self, example: Any) -> int:
        """Patches and the [class] place: what a row of a batch takes."""
        return 1 + n_patches(self.config)

    def varied(self, tables: Sequence[Pixels]) -> Tensor:
        """Training images, varied as the recipe says: (B, C, H, W)."""
        return normal(augment(stack_pixels(tables), self.recipe.augment))


class ImagesTask(PictureTask):
    """Pictures with a label each, cross-entropy of the classes, accuracy on the held-out set."""

    name, noun, hub_tag = "images", "an image classifier", "image-classification"
    schema = Schema("images", (IMAGE, IMAGE_LABEL), "give one folder with a folder of images per class, one table of paths and "
                    "labels, or two idx files", n_files=2)  # fmt: skip
    metric, unit = "accuracy", "images"

    @classmethod
    def possible(cls, recipe: Recipe) -> None:
        cls.readable(recipe)
        if recipe.model.family != "encoder" or recipe.model.head != "classes":
            raise ConfigError(
                "task = 'images' needs a model of family 'encoder' with head = 'classes'; this is of family "
                f"{recipe.model.family!r} with head = {recipe.model.head!r}"
            )

    @classmethod
    def prepare(cls, recipe: Recipe, say: Say) -> Words:
        """All labels of the training set; no image is opened for it."""
        labels = {text for corpus in cls.corpora(recipe) for _, (_, text) in corpus.source.read()}
        if not 1 < len(labels) <= MOST_CLASSES:
            raise QkvError(f"the training set has {len(labels):,} classes, not 2 to {MOST_CLASSES:,}: are its folders or "
                           "columns the right ones?")  # fmt: skip
        return Words(labels=tuple(sorted(labels, key=lambda one: (int(one) if one.isdecimal() else -1, one))))

    @classmethod
    def fitted(cls, recipe: Recipe, words: Words) -> ModelConfig:
        fields = {"labels": words.labels, "n_classes": len(words.labels), "vocab_size": 0}
        return recipe.model.changed(**fields)  # type: ignore[no-any-return]

    def __init__(self, recipe: Recipe, config: ModelConfig, words: Words):
        super().__init__(recipe, config, words)
        self.number = {label: number for number, label in enumerate(config.labels)}
        self.open()

    # --- learning

    def examples(self, records: Sequence[Record]) -> list[Any]:
        return [
            (table, self.number[label]) if label in self.number else "a label that was not there when training began"
            for table, label in records
        ]

    def collate(self, examples: list[Any]) -> Batch:
        return Batch(images=self.varied([e[0] for e in examples]), targets=torch.tensor([e[1] for e in examples]))

    def objective(self, output: Output, batch: Batch) -> Loss:
        return classification(output, batch)

    # --- asking

    def evaluate(self, network: nn.Module) -> dict[str, float]:
        """Accuracy in per cent, and the loss. A class that training never saw counts as wrong."""
        table = ImageClassifier(self.config, network).log_probs([r[0] for r in self.valid])  # (N, n)
        wanted = torch.tensor([self.number.get(r[1], -1) for r in self.valid])  # (N,)
        known = wanted >= 0
        loss = -table[known].gather(1, wanted[known, None]).mean()
        return {"accuracy": 100 * (table.argmax(1) == wanted).double().mean().item(), "loss": loss.item()}

    def test(self, network: nn.Module, folder: Path, say: Say) -> dict[str, Any] | None:
        """Every image of the test set, in a file with its class and the model's."""
        if self.data.test is None:
            return None
        records = self.held(self.data.test, "test")
        for reason, count in self.left_out.items():
            say(f"left out of the test set: {count:,} {reason}")
        if unknown := sum(label not in self.number for _, label in records):
            say(
                f"{unknown:,} images of the test set are of classes that the training set does not have: counted as wrong"
            )
        found = ImageClassifier(self.config, network).classify([r[0] for r in records])
        pairs = list(zip(records, found, strict=True))
        rows = [f"{label}\t{one.label}\t{one.probability:.4f}\n" for (_, label), one in pairs]
        write_text(folder / ANSWERS, "".join(rows))
        right = sum(label == one.label for (_, label), one in pairs)
        score = Score("accuracy", 100 * right / len(pairs), "")
        report = class_report([one.label or "" for one in found], [label for _, label in records], self.config.labels)
        return {"examples": len(pairs), "digest": digest(records), "left_out": dict(self.left_out),
                "how": f"{len(pairs) - right:,} wrong", "scores": [score.to_json()],
                "report": report.to_json()}  # fmt: skip

    # --- telling

    def use(self, folder: str) -> tuple[str, str]:
        return f"qkv classify {folder} picture.png", 'model.classify(["picture.png"])'
