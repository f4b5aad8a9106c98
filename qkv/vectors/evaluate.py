"""How good word vectors are: do people find the same words alike (WordSim-353, SimLex-999), and do differences mean something
(analogies)? Words that are not in the vocabulary are left out, and how many were asked is said."""

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


@dataclass
class Asked:
    """One file: its score in per cent, and how much of it could be asked."""

    name: str
    metric: str
    value: float
    asked: int
    total: int
    unit: str
    sections: list[Asked] = field(default_factory=list)

    def to_json(self, one_hot: float) -> dict[str, Any]:
        """As results.json and `qkv evaluate` have it, beside the score of one-hot vectors."""
        signature = f"metric:{self.metric}|asked:{self.asked}|of:{self.total}"
        details = f"{self.asked:,} of {self.total:,} {self.unit}; one-hot vectors {digits(one_hot)}"
        return {"name": self.name, "value": self.value, "signature": signature, "details": details, "one_hot": one_hot}


def scored(v: Vectors, similarity: list[Path], analogies: Path | None) -> dict[str, Any] | None:
    """{"examples", "how", "scores"} of all files; None where there is none."""
    if not similarity and analogies is None:
        return None
    found, base = (judge(space, similarity, analogies) for space in (v, OneHot(v.words)))
    whole = [one for one in found if one.unit == "pairs" or one.sections]
    scores = [one.to_json(other.value) for one, other in zip(found, base, strict=True)]
    return {"examples": sum(one.asked for one in whole), "how": "Spearman's correlation and accuracy in per cent",
            "scores": scores}  # fmt: skip


def questions(c: VectorsConfig) -> tuple[list[Path], Path | None]:
    """The files of word pairs and of analogies that a recipe names."""
    return [Path(name) for name in c.similarity], Path(c.analogies) if c.analogies else None


def look_through(c: VectorsConfig) -> None:
    """Say before a run what is wrong with the files that it is judged by at its end."""
    similarity, analogies = questions(c)
    judge(OneHot([]), similarity, analogies)


def judge(space: Space, similarity: list[Path], analogies: Path | None) -> list[Asked]:
    """All that is asked; the sections of the analogies behind their total, without those of which no word is known."""
    found = [judge_similarity(space, path) for path in similarity]
    if analogies is not None:
        whole = judge_analogies(space, analogies)
        found += [whole, *(section for section in whole.sections if section.asked)]
    return found


def name_of(path: Path) -> str:
    """wordsim353.tsv.gz -> wordsim353."""
    return path.name.partition(".")[0]


# --- similarity


def judge_similarity(space: Space, path: Path) -> Asked:
    """Spearman's correlation of the cosines with people's judgements."""
    pairs = list(read_pairs(path))
    if not pairs:
        raise FileError(f"{path} has no pairs: give a file such as wordsim353.tsv, two words and a number per line")
    known = [(a, b, score) for first, second, score in pairs
             if (a := space.find(first)) is not None and (b := space.find(second)) is not None]  # fmt: skip
    if not known:
        return Asked(name_of(path), "spearman", 0.0, 0, len(pairs), "pairs")
    cosines = space.similarities(torch.tensor([pair[:2] for pair in known]))
    value = 100 * spearman(cosines.tolist(), [score for _, _, score in known])
    return Asked(name_of(path), "spearman", value, len(known), len(pairs), "pairs")


def read_pairs(path: Path) -> Iterator[tuple[str, str, float]]:
    """Two words and a judgement per line, between tabs, commas or spaces: the first number behind the words, so that columns
    between (SimLex' part of speech) and behind are passed over. Lines with # and a line of titles are no pairs."""
    some = False
    for number, line in numbered(path):
        if line.startswith("#"):
            continue
        cells = [cell.strip() for cell in re.split(r"[\t,;]" if re.search(r"[\t,;]", line) else r"\s+", line.strip())]
        judged = next((x for cell in cells[2:] if (x := as_number(cell)) is not None), None)
        if judged is None and not some:
            some = True  # titles
            continue
        if judged is None:
            raise FileError(f"{path}, line {number}: two words and a number are needed, not {line[:80]!r}")
        some = True
        yield cells[0], cells[1], judged


def numbered(path: Path) -> Iterator[tuple[int, str]]:
    """The lines that are not empty, from 1 on; a score from half of a file is none, so each must be text."""
    for number, line in enumerate(lines(path), 1):
        if line is None or number > MAX_QUESTIONS:
            why = "is not UTF-8 text" if line is None else "and more are too many"
            raise FileError(f"{path}, line {number:,} {why}: mend it first")
        if line.strip():
            yield number, line


def as_number(text: str) -> float | None:
    return float(text) if re.fullmatch(r"-?\d+(\.\d*)?|-?\.\d+", text) else None


# --- analogies


def judge_analogies(space: Space, path: Path) -> Asked:
    """How often the word nearest to b - a + c is d, of four known words; per section and in all."""
    sections = []
    hits = 0
    for name, questions in read_analogies(path).items():
        known = [numbers for words in questions if None not in (numbers := [space.find(word) for word in words])]
        right = 0
        if known:
            asked = torch.tensor(known)
            right = int((space.answers(asked[:, :3]) == asked[:, 3]).sum())
        hits += right
        sections.append(analogies_asked(name, right, len(known), len(questions)))
    asked, total = (sum(getattr(one, what) for one in sections) for what in ("asked", "total"))
    whole = analogies_asked("analogies", hits, asked, total)
    whole.sections = sections
    return whole


def analogies_asked(name: str, right: int, asked: int, total: int) -> Asked:
    return Asked(name, "accuracy", 100 * right / max(asked, 1), asked, total, "questions")


def read_analogies(path: Path) -> dict[str, list[list[str]]]:
    """ ": section", then four words per line: a is to b as c is to d (questions-words.txt)."""
    found: dict[str, list[list[str]]] = {}
    section = "all"
    for number, line in numbered(path):
        words = line.split()
        if words[0].startswith(":"):
            section = " ".join(words).lstrip(": ") or "all"
        elif len(words) != 4:
            raise FileError(f"{path}, line {number}: a line has four words, or a colon and a title, not {line[:80]!r}")
        else:
            found.setdefault(section, []).append(words)
    if not found:
        raise FileError(f"{path} has no analogies: give a file such as questions-words.txt")
    return found
