"""ROUGE (Lin 2004), the metric of summaries, by Google's rouge-score package, as papers since 2019 report it.

ROUGE-1 and ROUGE-2: F1 of the unigrams and bigrams that summary and reference share. ROUGE-L: F1 of the longest
common subsequence of words; ROUGE-Lsum: the same taken line by line. Words are lowercase letters and digits, stemmed by
Porter's algorithm; the score of a set is the mean over its summaries, in per cent.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version

from qkv.evaluate.scores import Score, check_references

KINDS = {"rouge1": "ROUGE-1", "rouge2": "ROUGE-2", "rougeL": "ROUGE-L", "rougeLsum": "ROUGE-Lsum"}


def rouge_per_summary(summaries: Sequence[str], references: Sequence[str]) -> dict[str, list[float]]:
    """Return kind -> the F1 of every summary, each with one reference."""
    from rouge_score.rouge_scorer import RougeScorer  # with all of nltk, scipy and scikit-learn: 1.4 s

    (wanted,) = check_references(summaries, list(references))
    scorer = RougeScorer(list(KINDS), use_stemmer=True)
    found = [scorer.score(reference, summary) for summary, reference in zip(summaries, wanted, strict=True)]
    return {kind: [one[kind].fmeasure for one in found] for kind in KINDS}


def rouge(summaries: Sequence[str], references: Sequence[str]) -> list[Score]:
    """Return ROUGE-1, 2, L and Lsum of a set of summaries, each with one reference."""
    found = rouge_per_summary(summaries, references)
    signature = f"rouge_score:{version('rouge-score')}|stemmer:porter|f1|mean of {len(summaries)}"
    return [Score(KINDS[kind], 100 * sum(values) / len(values), signature) for kind, values in found.items()]
