"""VectorsRun: the state of a run of word2vec: recipe, vocabulary, model and progress."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from qkv.config.vectors import VectorsRecipe
from qkv.vectors.model import Word2Vec
from qkv.vectors.space import Vectors
from qkv.vectors.vocabulary import WordCounts


@dataclass
class VectorsProgress:
    """How far training has come."""

    length: int
    """Number of ids of the text."""
    step: int = 0
    """Parts of the text that were processed."""
    epoch: int = 0
    place: int = 0
    """Position of the next part in this epoch."""
    seconds: float = 0.0
    losses: list[list[float]] = field(default_factory=list)
    """For each epoch the sum of all losses, and the number of predictions."""
    skipped: dict[str, int] = field(default_factory=dict)
    """Records of the text that were skipped, by reason."""
    files: dict[str, str] = field(default_factory=dict)
    """SHA-256 of the vocabulary and of the ids."""

    @property
    def loss(self) -> float:
        """Mean loss per prediction in the current epoch."""
        total, count = self.losses[-1] if self.losses else (0.0, 0)
        return total / max(count, 1)


@dataclass
class VectorsRun:
    """A run and its folder."""

    folder: Path
    recipe: VectorsRecipe
    vocabulary: WordCounts
    model: Word2Vec
    progress: VectorsProgress
    why: str = ""
    signal: int = 0
    """The signal that stopped it; 0 = none."""
    results: dict[str, Any] = field(default_factory=dict)

    @property
    def ended(self) -> bool:
        return self.progress.epoch >= self.recipe.vectors.epochs

    @property
    def vectors(self) -> Vectors:
        """The vectors as trained so far."""
        vectors, output = (torch.from_numpy(np.ascontiguousarray(x)) for x in (self.model.input, self.model.output))
        return Vectors(self.vocabulary.words, vectors, self.vocabulary.counts.tolist(), output)
