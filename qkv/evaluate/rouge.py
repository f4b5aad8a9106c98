"""ROUGE (Lin 2004), the score of summaries, by Google's rouge-score package, as papers since 2019 report it.

ROUGE-1 and ROUGE-2: F1 of the words and of the pairs of words that summary and reference share. ROUGE-L: F1 of the longest
common subsequence of words; ROUGE-Lsum: the same taken line by line. Words are small letters and digits, stemmed by
Porter; the score of a set is the mean over its summaries, in per cent.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version

from qkv.evaluate.scores import Score, checked

KINDS = {"rouge1": "ROUGE-1", "rouge2": "ROUGE-2", "rougeL": "ROUGE-L", "rougeLsum": "ROUGE-Lsum"}


def each(summaries: Sequence[str], references: Sequence[str]) -> dict[str, list[float]]:
    """kind -> the F1 of every summary, each with one reference."""
    from rouge_score.rouge_scorer import RougeScorer  # with all of nltk, scipy and scikit-learn: 1.4 s

    (wanted,) = checked(summaries, list(references))
    scorer = RougeScorer(list(KINDS), use_stemmer=True)
    found = [scorer.score(reference, summary) for summary, reference in zip(summaries, wanted, strict=True)]
    return {kind: [one[kind].fmeasure for one in found] for kind in KINDS}


def rouge(summaries: Sequence[str], references: Sequence[str]) -> list[Score]:
    """ROUGE-1, 2, L and Lsum of a set of summaries, each with one reference."""
    found = each(summaries, references)
    signature = f"rouge_score:{version('rouge-score')}|stemmer:porter|f1|mean of {len(summaries)}"
    return [Score(KINDS[kind], 100 * sum(values) / len(values), signature) for kind, values in found.items()]
