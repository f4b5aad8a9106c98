"""BLEU, chrF2 and TER by sacreBLEU, with the signature that makes the number reproducible.

BLEU (Papineni et al. 2002): geometric mean of the n-gram precisions n = 1 ... 4, times a penalty for being short; cased,
tokenized by sacreBLEU's 13a, so that scores of different systems can be compared (Post 2018). chrF2 (Popović 2015): F-score
of character n-grams, recall weighted twice. TER (Snover et al. 2006): edits per reference word, smaller is better.
Validation and the final test use the same functions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from qkv.data.lines import lines
from qkv.errors import FileError, QkvError

METRICS = ("bleu", "chrf", "ter")
TOKENIZERS = ("13a", "intl", "char", "zh", "none")
"""Tokenizers of BLEU; sacreBLEU's others need downloads."""
References = Sequence[str] | Sequence[Sequence[str]]
"""One reference per sentence, or several lists of them."""


@dataclass(frozen=True)
class Score:
    """One score of a test set, and how it was computed."""

    name: str
    """BLEU, chrF2 or TER."""
    value: float
    signature: str
    """The settings that reproduce the number, such as sacreBLEU's; "" where there are none."""
    details: str = ""
    """For BLEU: the precisions, the brevity penalty and the lengths."""
    mean: float | None = None
    """Mean over resampled test sets."""
    interval: float | None = None
    """95 % of them lie within mean ± interval."""

    def to_json(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if value is not None}

    def __str__(self) -> str:
        spread = "" if self.mean is None else f" (μ = {self.mean:.1f} ± {self.interval:.1f})"
        return f"{self.name} = {self.value:.2f}{spread}"


@dataclass(frozen=True)
class Bucket:
    """BLEU of the sentences whose reference (or source) has `shortest` to `longest` words."""

    shortest: int
    longest: int
    sentences: int
    bleu: float


def make_metric(name: str, tokenize: str = "13a", lowercase: bool = False, sentence: bool = False) -> Metric:
    """Return sacreBLEU's metric with the settings of its command; for a `sentence`, BLEU uses the effective n-gram order."""
    match name:
        case "bleu":
            if tokenize not in TOKENIZERS:
                raise QkvError(f"unknown BLEU tokenizer {tokenize!r}: choose one of {', '.join(TOKENIZERS)}")
            return BLEU(lowercase=lowercase, tokenize=tokenize, effective_order=sentence)
        case "chrf":
            return CHRF(lowercase=lowercase)
        case "ter":
            return TER(case_sensitive=False)
    raise QkvError(f"unknown metric {name!r}: choose one of {', '.join(METRICS)}")


def score(hypotheses: Sequence[str], references: References, metrics: Sequence[str] = ("bleu",), bootstrap: int = 0,
          tokenize: str = "13a", lowercase: bool = False) -> list[Score]:  # fmt: skip
    """Return the scores of a test set; with `bootstrap`, intervals from that many resampled test sets (Koehn 2004)."""
    streams = check_references(hypotheses, references)
    return [corpus_score(make_metric(name, tokenize, lowercase), hypotheses, streams, bootstrap) for name in metrics]


def bleu(hypotheses: Sequence[str], references: References) -> float:
    """Return the BLEU of a test set, the validation score of translation."""
    return score(hypotheses, references)[0].value


def corpus_score(m: Metric, hypotheses: Sequence[str], streams: list[list[str]], bootstrap: int) -> Score:
    s = m.corpus_score(list(hypotheses), streams, n_bootstrap=bootstrap or 1)
    mean, interval = (float(s._mean), float(s._ci)) if bootstrap > 1 else (None, None)
    return Score(s.name, float(s.score), str(m.get_signature()), getattr(s, "_verbose", ""), mean, interval)


def sentence_scores(hypotheses: Sequence[str], references: References, metrics: Sequence[str] = ("bleu",),
                    tokenize: str = "13a", lowercase: bool = False) -> dict[str, list[float]]:  # fmt: skip
    """Return metric -> one score per sentence. Their mean is not the score of the test set."""
    rows = list(zip(hypotheses, *check_references(hypotheses, references), strict=True))
    found = {}
    for name in metrics:
        m = make_metric(name, tokenize, lowercase, sentence=True)
        found[name] = [float(m.sentence_score(hypothesis, list(refs)).score) for hypothesis, *refs in rows]
    return found


def by_length(hypotheses: Sequence[str], references: References, edges: Sequence[int] = (5, 10, 15, 20, 30, 40),
              tokenize: str = "13a", lowercase: bool = False, sources: Sequence[str] | None = None
              ) -> list[Bucket]:  # fmt: skip
    """Return the BLEU of buckets by the number of words of the (first) reference, or of the source where `sources` are given: 0 to
    5, 6 to 10 ... Empty buckets are left out."""
    streams = check_references(hypotheses, references)
    texts = streams[0] if sources is None else check_references(hypotheses, list(sources))[0]
    lengths = [len(text.split()) for text in texts]
    bounds = [0, *(edge + 1 for edge in edges), max(*lengths, *edges) + 1]
    buckets = []
    for low, high in pairwise(bounds):
        rows = [i for i, n in enumerate(lengths) if low <= n < high]
        if rows:
            chosen = [[stream[i] for i in rows] for stream in streams]
            value = score([hypotheses[i] for i in rows], chosen, tokenize=tokenize, lowercase=lowercase)[0].value
            buckets.append(Bucket(low, high - 1, len(rows), value))
    return buckets


def check_references(hypotheses: Sequence[str], references: References) -> list[list[str]]:
    """Return one list per reference, each as long as the hypotheses, or raise an error."""
    if isinstance(hypotheses, str) or not hypotheses:
        raise QkvError("nothing to score: give a list of at least one sentence")
    single = bool(references) and isinstance(references[0], str)
    streams: list[list[str]] = [list(one) for one in ([references] if single else references)]  # type: ignore
    if not streams:
        raise QkvError("no references: give at least one list of sentences")
    for number, stream in enumerate(streams, 1):
        if len(stream) != len(hypotheses):
            which = f"reference {number}" if len(streams) > 1 else "the reference"
            raise QkvError(
                f"{len(hypotheses)} hypotheses but {which} has {len(stream)} lines: give one line for each sentence of the same "
                "test set"
            )
    return streams


def read_sentences(path: str | Path) -> list[str]:
    """Read the lines of a file to be scored. A line that is not text is an error: skipping one would change the score."""
    skipped = Counter[str]()
    found: list[str] = []
    for number, text in enumerate(lines(path, skipped), 1):
        if text is None:
            raise FileError(f"{path}, line {number}: {next(iter(skipped))}: correct the file, all lines are scored")
        found.append(text.rstrip())
    if not found:
        raise FileError(f"{path} is empty: give a file with one sentence per line")
    return found
