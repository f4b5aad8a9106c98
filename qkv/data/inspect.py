"""Inspect a corpus before training: counts, lengths, records that cleaning would drop, and suspicious records."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate, islice
from typing import Any

from qkv.config import DataConfig
from qkv.data.corpora import corpus
from qkv.data.schema import LABEL, Schema
from qkv.data.sources import Record, Source

Tokenize = Callable[[Sequence[str]], list[Any]]
"""Texts -> the units of each: ids of a tokenizer, or words."""

EXAMPLES = 3
"""Lines shown of each kind."""
MAX_LABELS = 10_000
"""Different labels that are counted."""
MAX_SEEN = 5_000_000
"""Records remembered to find those that come again; a larger corpus is compared with its first ones."""
HTML = re.compile(r"</?[A-Za-z][^<>]*>|&(?:[A-Za-z]{2,8}|#\d{1,6});")
CONTROL = re.compile(r"[\x01-\x08\x0b-\x1f\x7f-\x9f\ufffd\u200b-\u200f\u202a-\u202e\ufeff]")
"""Suspicious characters: control codes, U+FFFD from a failed decoder, invisible marks."""


@dataclass
class Lengths:
    """How many records have how many tokens (or words)."""

    counts: Counter[int] = field(default_factory=Counter)

    @property
    def mean(self) -> float:
        return sum(n * c for n, c in self.counts.items()) / max(1, self.counts.total())

    def quantile(self, share: float) -> int:
        """The smallest length that at least this share of the records do not exceed."""
        lengths = sorted(self.counts)
        seen = accumulate(self.counts[length] for length in lengths)
        wanted = share * self.counts.total()
        return next((length for length, count in zip(lengths, seen, strict=True) if count >= wanted), 0)

    def histogram(self, bars: int = 10) -> list[tuple[int, int, int]]:
        """(from, to, records) in steps of a round width that covers 99 % in `bars` rows; the last row has all the rest."""
        if not self.counts:
            return []
        most = max(self.counts)
        width = next(w for w in (1, 2, 5, 10, 20, 50, 100, 500, 10**9) if w * bars > self.quantile(0.99))
        rows = [0] * (bars + 1)
        for length, count in self.counts.items():
            rows[min(length // width, bars)] += count
        last = max(i for i, count in enumerate(rows) if count)
        return [(i * width, most if i == bars else (i + 1) * width - 1, rows[i]) for i in range(last + 1)]

    def to_json(self) -> dict[str, Any]:
        marks = {f"p{round(100 * q)}": self.quantile(q) for q in (0.05, 0.25, 0.5, 0.75, 0.95, 0.99)}
        total = sum(n * c for n, c in self.counts.items())
        return {"mean": self.mean, "total": total, **marks, "max": max(self.counts, default=0)}


@dataclass
class CorpusReport:
    """What was found in one corpus."""

    name: str
    records: int = 0
    unit: str = "words"
    lengths: list[Lengths] = field(default_factory=list)
    """One per side."""
    sides: list[str] = field(default_factory=list)
    """What each is called: source, target; text, label."""
    labels: Counter[str] | None = None
    """How often each label occurs, where the last side is one; at most MAX_LABELS of them."""
    unreadable: Counter[str] = field(default_factory=Counter)
    """Lines that are no text, by reason."""
    dropped: Counter[str] = field(default_factory=Counter)
    """Records that cleaning for training would drop, by reason."""
    suspicious: Counter[str] = field(default_factory=Counter)
    """Records that are worth a look, by reason."""
    shown: dict[str, list[tuple[int, Record]]] = field(default_factory=lambda: defaultdict(list))
    """A few (line, record) of each reason; the first records under "examples"."""
    partial: bool = False
    """There are more records than were read."""

    def note(self, reason: str, number: int, record: Record) -> None:
        self.suspicious[reason] += 1
        self.show(reason, number, record)

    def show(self, reason: str, number: int, record: Record) -> None:
        if len(self.shown[reason]) < EXAMPLES:
            self.shown[reason].append((number, record))

    def to_json(self) -> dict[str, Any]:
        lengths = [{**side.to_json(), "histogram": side.histogram()} for side in self.lengths]
        labels = {} if self.labels is None else {"labels": dict(self.labels.most_common())}
        counts = {"unreadable": self.unreadable, "dropped": self.dropped, "suspicious": self.suspicious}
        shown = {reason: [{"line": n, "texts": list(r)} for n, r in rows] for reason, rows in self.shown.items()}
        return {
            "name": self.name, "records": self.records, "partial": self.partial, "unit": self.unit, "sides": self.sides, "lengths": lengths,
            **labels, **{key: dict(value.most_common()) for key, value in counts.items()}, "shown": shown,
        }  # fmt: skip


def inspect(source: Source, name: str, tokenize: Sequence[Tokenize], unit: str = "words",
            problem: Callable[[Any, Any], str] | None = None, limit: int = 0, pairs: bool = True,
            sides: Sequence[str] = (), labelled: bool = False) -> CorpusReport:  # fmt: skip
    """Read a corpus once, at most `limit` records (0 = all).

    `tokenize` has one function per side (or one for all) that cuts texts into units; `problem(source, target)` says
    why training would drop a pair. The sides of `pairs` say the same; `sides` are their names, and the last of them is a
    label where the records are `labelled`.
    """
    report, reader = CorpusReport(name, unit=unit, labels=Counter() if labelled else None), source.read()
    scripts: list[dict[str, list[Any]]] = []
    seen: set[int] = set()
    while chunk := list(islice(reader, 4096 if not limit else min(4096, limit - report.records))):
        texts = list(zip(*(record for _, record in chunk), strict=True))
        report.lengths = report.lengths or [Lengths() for _ in texts]
        report.sides = report.sides or list(sides) or side_names(len(texts))
        scripts = scripts or [{} for _ in texts]
        units = [tokenize[min(i, len(tokenize) - 1)](side) for i, side in enumerate(texts)]
        if (known := report.labels) is not None:
            known.update(label for label in texts[-1] if label in known or len(known) < MAX_LABELS)
        for i, side in enumerate(units):
            report.lengths[i].counts.update(map(len, side))
        for row, (number, record) in enumerate(chunk):
            look(report, number, record, scripts, seen, pairs)
            if problem is not None and (reason := problem(units[0][row], units[-1][row])):
                report.dropped[reason] += 1
        report.records += len(chunk)
        if limit and report.records >= limit:
            report.partial = next(reader, None) is not None
            break
    foreign_scripts(report, scripts)
    report.unreadable = Counter(source.skipped)
    return report


def side_names(count: int) -> list[str]:
    """Of files in step."""
    return {1: ["text"], 2: ["source", "target"]}.get(count) or [f"file {number}" for number in range(1, count + 1)]


def look(report: CorpusReport, number: int, record: Record, scripts: list[dict[str, list[Any]]], seen: set[int],
         pairs: bool) -> None:  # fmt: skip
    """Everything that may be wrong with one record."""
    report.show("examples", number, record)
    key = hash(record)
    if key in seen:
        report.note("duplicate", number, record)
    elif len(seen) < MAX_SEEN:
        seen.add(key)
    texts = [text.strip() for text in record]
    if not all(texts):
        report.note("empty side", number, record)
    elif len(texts) == 2 and pairs:
        if texts[0] == texts[1]:
            report.note("both sides are the same", number, record)
        short, long = sorted(map(len, texts))
        if long > 3 * short + 20:
            report.note("one side much longer", number, record)
    if any(HTML.search(text) for text in texts):
        report.note("markup", number, record)
    if any(CONTROL.search(text) for text in texts):
        report.note("control or invisible characters", number, record)
    for side, text in enumerate(texts):
        if found := script(text):
            entry = scripts[side].setdefault(found, [0, []])
            entry[0] += 1
            if len(entry[1]) < EXAMPLES:
                entry[1].append((number, record))


def foreign_scripts(report: CorpusReport, scripts: list[dict[str, list[Any]]]) -> None:
    """Texts in another script than most of their side."""
    for side, found in zip(report.sides, scripts, strict=True):
        usual = max(found, key=lambda name: found[name][0], default="")
        for name, (count, rows) in found.items():
            if name != usual:
                reason = f"{side} in {name.lower()} script, not {usual.lower()}"
                report.suspicious[reason] += count
                report.shown[reason] = rows


def script(text: str) -> str:
    """The script of most letters: LATIN, CYRILLIC, CJK ...; "" without letters."""
    if text.isascii():  # nearly always
        return "LATIN" if any(map(str.isalpha, text)) else ""
    counts = Counter(script_of(letter) for letter in text if letter.isalpha())
    return counts.most_common(1)[0][0] if counts else ""


@lru_cache(100_000)
def script_of(letter: str) -> str:
    """The first word of a letter's Unicode name, which is its script; what Japanese mixes counts as one."""
    first = unicodedata.name(letter, "UNKNOWN").split()[0].partition("-")[0]
    return {"HIRAGANA": "CJK", "KATAKANA": "CJK", "FULLWIDTH": "LATIN", "HALFWIDTH": "CJK", "FEMININE": "LATIN",
            "MASCULINE": "LATIN", "MICRO": "GREEK"}.get(first, first)  # fmt: skip


def inspect_recipe(data: DataConfig, schema: Schema, tokenize: Sequence[Tokenize], unit: str, limit: int = 0,
                   problem: Callable[[Any, Any], str] | None = None) -> tuple[list[CorpusReport], dict[str, int]]:  # fmt: skip
    """A report on each corpus of a recipe, and how many held-out sentences are also trained on."""
    train = {f"train {i}" if len(data.train) > 1 else "train": c for i, c in enumerate(data.train, 1)}
    sources = {name: corpus(c, data, "train", schema) for name, c in train.items()}
    held = {name: corpus(c, data, name, schema) for name, c in (("valid", data.valid), ("test", data.test)) if c}
    held |= {f"valid {name}": corpus(c, data, "valid", schema) for name, c in data.extra_valid.items()}
    how: dict[str, Any] = {"limit": limit, "pairs": schema.parallel, "labelled": LABEL in schema.columns}

    def of(source: Source, name: str, problem: Callable[[Any, Any], str] | None = None) -> CorpusReport:
        width = next((len(record) for _, record in source.read()), 0)
        return inspect(source, name, tokenize, unit, problem, sides=schema.names(width), **how)

    reports = [of(source, name, problem) for name, source in sources.items()]
    reports += [of(source, name) for name, source in held.items()]
    return reports, leaks(list(sources.values()), held, limit)


def leaks(train: Sequence[Source], held: Mapping[str, Source], limit: int = 0) -> dict[str, int]:
    """name -> how many held-out records have a source text that is also in the training corpora."""
    wanted = {name: [hash(record[0]) for _, record in source.read()] for name, source in held.items()}
    every = set[int]().union(*wanted.values())
    texts = (record[0] for source in train for _, record in islice(source.read(), limit or None))
    found = {key for text in texts if (key := hash(text)) in every}
    return {name: sum(key in found for key in keys) for name, keys in wanted.items()}


def words(texts: Sequence[str]) -> list[list[str]]:
    """Units where there is no tokenizer."""
    return [text.split() for text in texts]
