"""Evaluation of word vectors: similarity judged by people (WordSim-353, SimLex-999) and analogies.

Items with words that are not in the vocabulary are skipped; the score says how many were used.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from qkv.config.vectors import VectorsConfig
from qkv.data.lines import lines
from qkv.errors import FileError
from qkv.evaluate.metrics import spearman
from qkv.train.report import digits
from qkv.vectors.space import OneHot, Space, Vectors

MAX_QUESTIONS = 1_000_000
NUMBER = re.compile(r"-?\d+(\.\d*)?|-?\.\d+")


@dataclass
class FileScore:
    """The score of one file in per cent, and how many of its items could be used."""

    name: str
    metric: str
    value: float
    asked: int
    total: int
    unit: str
    sections: list[FileScore] = field(default_factory=list)

    def to_json(self, one_hot: float) -> dict[str, Any]:
        """Return the entry of results.json, with the score of one-hot vectors."""
        signature = f"metric:{self.metric}|asked:{self.asked}|of:{self.total}"
        details = f"{self.asked:,} of {self.total:,} {self.unit}; one-hot vectors {digits(one_hot)}"
        return {"name": self.name, "value": self.value, "signature": signature, "details": details, "one_hot": one_hot}


def score_vectors(v: Vectors, similarity: list[Path], analogies: Path | None) -> dict[str, Any] | None:
    """Score all files: {"examples", "how", "scores"}; None where there are no files."""
    if not similarity and analogies is None:
        return None
    found, base = (evaluate(space, similarity, analogies) for space in (v, OneHot(v.words)))
    whole = [one for one in found if one.unit == "pairs" or one.sections]
    scores = [one.to_json(other.value) for one, other in zip(found, base, strict=True)]
    return {"examples": sum(one.asked for one in whole), "how": "Spearman's correlation and accuracy in per cent",
            "scores": scores}  # fmt: skip


def evaluation_files(c: VectorsConfig) -> tuple[list[Path], Path | None]:
    """Return the files of word pairs and of analogies that a recipe names."""
    return [Path(name) for name in c.similarity], Path(c.analogies) if c.analogies else None


def check_evaluation_files(c: VectorsConfig) -> None:
    """Raise an error before training if a file of the final evaluation is invalid."""
    evaluate(OneHot([]), *evaluation_files(c))


def evaluate(space: Space, similarity: list[Path], analogies: Path | None) -> list[FileScore]:
    """Return the score of each file; analogies are followed by their sections, except those without known words."""
    found = [evaluate_similarity(space, path) for path in similarity]
    if analogies is not None:
        whole = evaluate_analogies(space, analogies)
        found += [whole, *(section for section in whole.sections if section.asked)]
    return found


# --- similarity


def evaluate_similarity(space: Space, path: Path) -> FileScore:
    """Return Spearman's rank correlation of the cosines with human judgements."""
    pairs = list(read_pairs(path))
    if not pairs:
        raise FileError(f"{path} has no pairs: give a file such as wordsim353.tsv, two words and a number per line")
    known = [(a, b, score) for first, second, score in pairs
             if (a := space.find(first)) is not None and (b := space.find(second)) is not None]  # fmt: skip
    value = 0.0
    if known:
        cosines = space.similarities(torch.tensor([pair[:2] for pair in known]))
        value = 100 * spearman(cosines.tolist(), [score for _, _, score in known])
    name = path.name.partition(".")[0]  # wordsim353.tsv.gz -> wordsim353
    return FileScore(name, "spearman", value, len(known), len(pairs), "pairs")


def read_pairs(path: Path) -> Iterator[tuple[str, str, float]]:
    """Yield two words and a judgement per line, separated by tabs, commas or spaces. The judgement is the first number after the
    words; other columns (SimLex' part of speech), comments (#) and a header are skipped."""
    first = True
    for number, line in numbered_lines(path):
        if line.startswith("#"):
            continue
        cells = [cell.strip() for cell in re.split(r"[\t,;]" if re.search(r"[\t,;]", line) else r"\s+", line.strip())]
        judged = next((float(cell) for cell in cells[2:] if NUMBER.fullmatch(cell)), None)
        if judged is not None:
            yield cells[0], cells[1], judged
        elif not first:  # the first line may be a header
            raise FileError(f"{path}, line {number}: expected two words and a number, found {line[:80]!r}")
        first = False


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the non-empty lines with their numbers from 1; every line must be text, as a score of half a file is meaningless."""
    for number, line in enumerate(lines(path), 1):
        if line is None or number > MAX_QUESTIONS:
            why = "is not UTF-8 text" if line is None else f"exceeds the limit of {MAX_QUESTIONS:,} lines"
            raise FileError(f"{path}, line {number:,} {why}: correct the file")
        if line.strip():
            yield number, line


# --- analogies


def evaluate_analogies(space: Space, path: Path) -> FileScore:
    """Return how often the word nearest to b - a + c is d, over items with four known words; per section and in total."""
    sections = []
    hits = 0
    for name, items in read_analogies(path).items():
        known = [numbers for words in items if None not in (numbers := [space.find(word) for word in words])]
        right = 0
        if known:
            asked = torch.tensor(known)
            right = int((space.answers(asked[:, :3]) == asked[:, 3]).sum())
        hits += right
        sections.append(analogy_score(name, right, len(known), len(items)))
    asked, total = (sum(getattr(one, what) for one in sections) for what in ("asked", "total"))
    whole = analogy_score("analogies", hits, asked, total)
    whole.sections = sections
    return whole


def analogy_score(name: str, right: int, asked: int, total: int) -> FileScore:
    return FileScore(name, "accuracy", 100 * right / max(asked, 1), asked, total, "questions")


def read_analogies(path: Path) -> dict[str, list[list[str]]]:
    """Read ": section" lines, each followed by lines of four words: a is to b as c is to d (questions-words.txt)."""
    found: dict[str, list[list[str]]] = {}
    section = "all"
    for number, line in numbered_lines(path):
        words = line.split()
        if words[0].startswith(":"):
            section = " ".join(words).lstrip(": ") or "all"
        elif len(words) != 4:
            expected = "four words, or a colon and a section title"
            raise FileError(f"{path}, line {number}: expected {expected}, found {line[:80]!r}")
        else:
            found.setdefault(section, []).append(words)
    if not found:
        raise FileError(f"{path} has no analogies: give a file such as questions-words.txt")
    return found
