"""Metrics: equal to scikit-learn's, SciPy's and the official scripts', with their edge cases; ROUGE as its package counts."""

from __future__ import annotations

import math
import warnings

import pytest
import scipy.stats
import sklearn.metrics as sk
from hypothesis import given, settings
from hypothesis import strategies as st
from rouge_score.rouge_scorer import RougeScorer

from qkv.errors import QkvError
from qkv.evaluate import metrics as m
from qkv.evaluate.rouge import rouge

LABELS = st.lists(st.tuples(*[st.sampled_from("abc")] * 2), min_size=1, max_size=40)
NUMBERS = st.lists(st.tuples(*[st.integers(-5, 5).map(float)] * 2), min_size=2, max_size=30)
PHRASE = st.lists(
    st.sampled_from(["The", "a", "an", "cat", "Cat!", "sat.", "theory", "x-y", "…", "42"]), max_size=6
).map(" ".join)


def sides(pairs: list[tuple]) -> tuple[list, list]:
    return [a for a, _ in pairs], [b for _, b in pairs]


# --- classes


@settings(deadline=None, max_examples=50)
@given(LABELS)
def test_classes_as_scikit_learn_measures_them(pairs: list[tuple[str, str]]) -> None:
    predicted, right = sides(pairs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a class that never occurs
        assert m.accuracy(predicted, right) == pytest.approx(sk.accuracy_score(right, predicted))
        assert m.macro_f1(predicted, right) == pytest.approx(sk.f1_score(right, predicted, average="macro"))
        of_a = sk.f1_score(right, predicted, labels=["a"], average="macro", zero_division=0)
        assert m.f1(predicted, right, "a") == pytest.approx(of_a)
        assert m.matthews(predicted, right) == pytest.approx(sk.matthews_corrcoef(right, predicted), abs=1e-12)


def test_matthews_of_a_guess_that_never_varies_is_zero() -> None:
    """The reason why CoLA is not measured by accuracy, which would be 75 %."""
    assert m.matthews("1111", "1110") == 0 and m.accuracy("1111", "1110") == 0.75
    assert m.matthews("0011", "0011") == 1 and m.matthews("1100", "0011") == -1


@pytest.mark.parametrize("function", [m.accuracy, m.macro_f1, m.matthews, m.pearson, m.spearman])
def test_predictions_without_their_answers_are_an_error(function: object) -> None:
    for predicted, right in (([], []), ([1.0], [1.0, 2.0])):
        with pytest.raises((QkvError, ValueError, ZeroDivisionError)):
            function(predicted, right)  # type: ignore[operator]


# --- numbers


@settings(deadline=None, max_examples=50)
@given(NUMBERS)
def test_correlations_as_scipy_measures_them(pairs: list[tuple[float, float]]) -> None:
    predicted, right = sides(pairs)
    if len(set(predicted)) == 1 or len(set(right)) == 1:
        assert m.pearson(predicted, right) == m.spearman(predicted, right) == 0  # SciPy: not a number
        return
    assert m.pearson(predicted, right) == pytest.approx(scipy.stats.pearsonr(predicted, right).statistic, abs=1e-9)
    assert m.spearman(predicted, right) == pytest.approx(scipy.stats.spearmanr(predicted, right).statistic, abs=1e-9)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 9), min_size=1))
def test_equal_values_share_a_rank(values: list[int]) -> None:
    assert m.ranks(values) == list(scipy.stats.rankdata(values))


# --- answers


@pytest.mark.parametrize(
    "predicted, answers, exact, f1",
    [
        ("The Cat!", ["a cat"], 1, 1),  # small letters, no marks, no articles
        ("theory", ["ory"], 0, 0),  # "the" within a word is no article
        ("x-y  z", ["xy z"], 1, 1),  # a hyphen goes, spaces are single
        ("cat sat", ["cat", "dog"], 0, 2 / 3),  # one word of two, one of one
        ("cat cat", ["cat"], 0, 2 / 3),  # a word is shared as often as both have it
        ("the", [""], 1, 1),  # nothing is left of it
        ("the dog", ["cat", "the dogs", "a dog"], 1, 1),  # the best of several
        ("dog", ["the"], 0, 0),
    ],
)
def test_answers_as_squad_compares_them(predicted: str, answers: list[str], exact: float, f1: float) -> None:
    assert m.exact_match(predicted, answers) == exact
    assert m.answer_f1(predicted, answers) == pytest.approx(f1)


@settings(deadline=None, max_examples=50)
@given(PHRASE, PHRASE)
def test_f1_of_answers_is_fair_and_at_least_the_exact_match(one: str, other: str) -> None:
    assert m.answer_f1(one, [other]) == m.answer_f1(other, [one])
    assert m.exact_match(one, [other]) <= m.answer_f1(one, [other]) <= 1
    assert m.normalize_answer(m.normalize_answer(one)) == m.normalize_answer(one)


def test_no_answer_is_an_answer() -> None:
    assert m.exact_match("", []) == m.answer_f1("", []) == 1
    assert m.exact_match("Rome", []) == m.answer_f1("Rome", []) == 0


# --- tags


@pytest.mark.parametrize(
    "tags, things",
    [
        ("B-P I-P O B-L", {(0, 2, "P"), (3, 4, "L")}),
        ("B-P B-P I-P", {(0, 1, "P"), (1, 3, "P")}),
        ("O I-P I-P O", {(1, 3, "P")}),  # no B: conlleval begins it where it is first spoken of
        ("B-P I-L", {(0, 1, "P"), (1, 2, "L")}),
        ("S-P B-P E-P S-L", {(0, 1, "P"), (1, 3, "P"), (3, 4, "L")}),
        ("B-P E-P I-P", {(0, 2, "P"), (2, 3, "P")}),
        ("B-P I-P E-P E-P", {(0, 3, "P"), (3, 4, "P")}),
        ("O O", set()),
        ("", set()),
    ],
)
def test_spans_as_conlleval_finds_them(tags: str, things: set[tuple[int, int, str]]) -> None:
    assert m.entity_spans(tags.split()) == things


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.sampled_from("PL"), st.integers(1, 3), st.integers(0, 2)), max_size=6))
def test_both_schemes_tell_the_same_spans(things: list[tuple[str, int, int]]) -> None:
    """Written as IOB2 and as BIOES, the same things are found, and they are those that were written."""
    iob, bioes, wanted = [], [], set()
    for kind, length, gap in things:
        wanted.add((len(iob), len(iob) + length, kind))
        iob += [f"B-{kind}", *[f"I-{kind}"] * (length - 1)] + ["O"] * gap
        bioes += ([f"S-{kind}"] if length == 1 else [f"B-{kind}", *[f"I-{kind}"] * (length - 2), f"E-{kind}"]) + [
            "O"
        ] * gap
    assert m.entity_spans(iob) == m.entity_spans(bioes) == wanted


def test_an_entity_counts_only_whole() -> None:
    """The border of one of two things is wrong: 1 hit of 2 found and 2 wanted, though 4 of 5 tags are right."""
    right, predicted = ["B-P", "I-P", "O", "B-L", "I-L"], ["B-P", "I-P", "O", "B-L", "O"]
    assert m.entity_f1([predicted], [right]) == 0.5
    assert m.tag_accuracy([predicted], [right]) == 0.8


# --- language models


def test_a_uniform_model_hesitates_among_all_words() -> None:
    assert m.perplexity(10 * math.log(50), 10) == pytest.approx(50)
    assert m.bits_per_byte(7 * math.log(256), 7) == pytest.approx(8)
    assert math.isfinite(m.perplexity(1e9, 1))


# --- whole sets


def test_scores_are_per_cent_and_say_what_they_are() -> None:
    score = m.score_labels("f1", ["1", "1", "0"], ["1", "0", "0"])
    assert (score.name, score.value) == ("f1", pytest.approx(100 * 2 / 3))  # the positive class is "1"
    assert score.signature == "metric:f1|positive:1|examples:3"
    assert m.score_labels("accuracy", ["1"], ["1"]).signature == ""
    assert m.score_labels("spearman", ["1", "2", "10"], ["0.1", "0.2", "0.3"]).value == pytest.approx(100)


@pytest.mark.parametrize(
    ("labels", "positive"),
    [("0 1", "1"), ("yes no", "yes"), ("False True", "True"), ("positive negative", "positive"), ("-1 1", "1"),
     ("equivalent not_equivalent", "equivalent"), ("entailment not_entailment", "entailment"), ("ham spam", "spam"),
     ("sarcastic none", "sarcastic"), ("no maybe yes", "yes"), ("0", "0")],
)  # fmt: skip
def test_f1_is_about_the_class_that_says_yes(labels: str, positive: str) -> None:
    """Not about the one that happens to be the last in the alphabet; the score says which it is."""
    assert m.positive_class(labels.split()) == m.positive_class(reversed(labels.split())) == positive


def test_f1_knows_classes_that_do_not_occur() -> None:
    """No yes at all, neither said nor right, is no perfect score."""
    score = m.score_labels("f1", ["0", "0"], ["0", "0"], labels=("0", "1"))
    assert (score.value, score.signature) == (0, "metric:f1|positive:1|examples:2")
    with pytest.raises(QkvError, match="0 predictions for 0 answers"):
        m.score_labels("f1", [], [])


def test_glue_tasks_have_their_own_metric_and_file() -> None:
    names = {"glue/cola": ("CoLA.tsv", "matthews"), "glue/sst2": ("SST-2.tsv", "accuracy"), "STS-B": ("STS-B.tsv", "spearman"),
             "glue/mrpc": ("MRPC.tsv", "f1"), "glue/rte": ("RTE.tsv", "accuracy")}  # fmt: skip
    for name, (file, first) in names.items():
        task = m.glue_task(name)
        assert task is not None and (task.file, task.metrics[0]) == (file, first)
    assert m.glue_task("imdb") is None and m.glue_task(None) is None
    assert all(metric in m.METRICS for task in m.GLUE.values() for metric in task.metrics)


def test_a_submission_is_numbered_and_its_scores_are_within_bounds() -> None:
    assert m.submission(["0", "entailment"]) == "index\tprediction\n0\t0\n1\tentailment\n"
    assert m.submission([-0.2, 2.71828, 7.0]) == "index\tprediction\n0\t0.000\n1\t2.718\n2\t5.000\n"


# --- ROUGE


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(PHRASE, PHRASE), min_size=1, max_size=4))
def test_rouge_is_the_mean_of_its_summaries(pairs: list[tuple[str, str]]) -> None:
    summaries, references = sides(pairs)
    scorer = RougeScorer(["rouge1", "rougeL"], use_stemmer=True)
    each = [scorer.score(reference, summary) for summary, reference in pairs]
    found = {score.name: score for score in rouge(summaries, references)}
    assert list(found) == ["ROUGE-1", "ROUGE-2", "ROUGE-L", "ROUGE-Lsum"]
    for name, key in (("ROUGE-1", "rouge1"), ("ROUGE-L", "rougeL")):
        assert found[name].value == pytest.approx(100 * sum(one[key].fmeasure for one in each) / len(each))


def test_rouge_of_known_sentences() -> None:
    """4 of 6 words shared in this order, 2 pairs of words; "sat" and "sits" are two words, "cats" has the stem of "cat"."""
    one, two, longest, _ = rouge(["the cats sat on the mat"], ["a cat sits on the mat"])
    assert one.value == pytest.approx(100 * 4 / 6) and longest.value == pytest.approx(100 * 4 / 6)
    assert two.value == pytest.approx(100 * 2 / 5)
    assert one.signature.startswith("rouge_score:") and "stemmer:porter" in one.signature
    with pytest.raises(QkvError, match="nothing to score"):
        rouge([], [])
