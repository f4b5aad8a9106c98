"""Header rows: recognised where the evidence is strong, never a record by mistake; columns are found by their names."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.config import CorpusConfig, DataConfig
from qkv.data.corpora import corpus, describe_headers
from qkv.data.header import columns_for, guess_columns, is_header, names_of
from qkv.data.schema import LAYOUTS
from qkv.errors import ConfigError
from qkv.tasks.base import TASKS, task_class
from tests.schemas import schema_of

Run = Callable[..., tuple[int, str, str]]
TEXTS = [f"a film that was number {i}" for i in range(12)]
MARKS = ["pos", "neg", "pos", "so", "so", "neg"] * 2
NUMBERS = [str(i) for i in range(12)]
DE = [f"ein Film mit der Nummer {i}" for i in range(12)]
NOUNS = ["dog", "house", "it", "tree", "car", "sun"] * 2


@pytest.mark.parametrize(
    ("first", "columns", "expected"),
    [
        (["text", "label"], [TEXTS, MARKS], True),
        (["Label", "Text"], [MARKS, TEXTS], True),
        (["", "id", "SentimentText", "Sentiment"], [NUMBERS, NUMBERS, TEXTS, MARKS], True),
        (["en", "de"], [TEXTS, DE], True),
        (["English", "German"], [TEXTS, DE], True),
        (["sentence1", "sentence2", "score"], [TEXTS, DE, NUMBERS], True),
        (["text"], [TEXTS], True),
        (["text", "stance"], [TEXTS, MARKS], True),  # one usual name, above a few labels that all recur
        (["review", "helpful_votes"], [TEXTS, NUMBERS], True),
        (["fine film", "pos"], [TEXTS, MARKS], False),
        (["text", "pos"], [TEXTS, MARKS], False),  # a label that occurs again
        (["text", "label"], [TEXTS, ["label", *MARKS[1:]]], False),
        (["it", "es"], [["dog", "house", "tree"] * 4, ["Hund", "Haus", "Baum"] * 4], False),  # a dictionary
        (["text", "Text"], [NOUNS, NOUNS], False),
        (["question", "Frage"], [[f"word{i}" for i in range(12)], [f"Wort{i}" for i in range(12)]], False),
        (["text"], [["one", "two", "three"] * 4], False),
        (["What is the label?", "text"], [TEXTS, MARKS], False),
        (["text", "label", "id"], [TEXTS, MARKS], False),  # the rows have fewer columns
        (["text", "label"], [[], []], False),
    ],
)
def test_what_is_a_header(first: list[str], columns: list[list[str]], expected: bool) -> None:
    assert is_header([first, *(list(row) for row in zip(*columns, strict=True))]) == expected


@given(st.lists(st.tuples(st.text(max_size=30), st.sampled_from("ab")), max_size=20))
def test_a_first_row_without_usual_names_is_data(rows: list[tuple[str, str]]) -> None:
    assert not is_header([["A plain sentence, as it comes.", "a"], *rows])


@pytest.mark.parametrize(
    ("task", "names", "expected"),
    [
        ("classification", "label text", ["text", "label"]),
        ("classification", "id title text category", ["text", "category"]),
        ("classification", "sentence1 sentence2 label", ["sentence1", "sentence2", "label"]),
        ("classification", "text stance", ["text", "stance"]),
        ("classification", "tweet_text user airline_sentiment", ["tweet_text", "airline_sentiment"]),
        ("classification", "text label-coarse label-fine", None),
        ("regression", "label text score", ["text", "score"]),
        ("translation", "de en", ["en", "de"]),
        ("translation", "id German English", ["English", "German"]),
        ("translation", "target source", ["source", "target"]),
        ("translation", "fr en", None),
        ("answering", "context question answer_start answer", ["question", "context", "answer", "answer_start"]),
        ("summary", "summary article", ["article", "summary"]),
        ("tagging", "id tokens ner_tags", ["tokens", "ner_tags"]),
        ("language", "id text", ["text"]),
        ("images", "label file", ["file", "label"]),
        ("captions", "caption image", ["image", "caption"]),
    ],
)
def test_columns_are_found_by_their_names(task: str, names: str, expected: list[str] | None) -> None:
    assert columns_for(names.split(), schema_of(task).columns, "en", "de") == expected


def test_layouts_are_guessed() -> None:
    for names, columns in {"title text label": "text label", "en de": "source target", "question context answer": "question context answer",
                           "text summary": "text summary", "words tags": "words tags",
                           "sentence1 sentence2 label": "text text label"}.items():  # fmt: skip
        found = guess_columns(names.split())
        assert found is not None and [column.name for column, _ in found] == columns.split()
    assert guess_columns(["when", "where"]) is None


def test_every_layout_is_that_of_a_task() -> None:
    assert {*LAYOUTS} <= {task_class(name).schema.columns for name in TASKS}


def corpora(path: Path, task: str = "classification", **fields: object) -> tuple[DataConfig, list]:
    c = CorpusConfig(table=str(path), **fields)  # type: ignore[arg-type]
    data = DataConfig(train=(c,), valid=c)
    return data, [record for _, record in corpus(c, data, "train", schema_of(task)).read()]


@pytest.mark.parametrize("ending", [".tsv", ".csv", ".jsonl"])
def test_a_header_in_any_order_gives_the_same_records(tmp_path: Path, ending: str) -> None:
    path, rows = tmp_path / f"x{ending}", list(zip(TEXTS, MARKS, strict=True))
    for order in (("text", "label"), ("label", "text")):
        cells = [[dict(zip(("text", "label"), row, strict=True))[name] for name in order] for row in rows]
        with open(path, "w", newline="") as file:
            if ending == ".jsonl":
                file.write("".join(json.dumps(dict(zip(order, row, strict=True))) + "\n" for row in cells))
            else:
                csv.writer(file, delimiter="," if ending == ".csv" else "\t").writerows([order, *cells])
        data, found = corpora(path)
        assert found == rows and names_of(path) == order
        (said,) = describe_headers(data, schema_of("classification"))
        shown = "text, label" if ending == ".jsonl" else f"is a header ({', '.join(order)})"
        assert shown in said
        assert describe_headers(corpora(path, columns=("text", "label"))[0], schema_of("classification")) == []


def test_columns_by_number_read_every_row_and_say_so(tmp_path: Path) -> None:
    path = tmp_path / "x.tsv"
    path.write_text("text\tlabel\n" + "".join(f"{a}\t{b}\n" for a, b in zip(TEXTS, MARKS, strict=True)))
    data, found = corpora(path, columns=(0, 1))
    assert len(found) == 13 and found[0] == ("text", "label")
    (said,) = describe_headers(data, schema_of("classification"))
    assert (
        "looks like a header (text, label), but is read as a record" in said and 'columns = ["text", "label"]' in said
    )
    path.write_text("".join(f"{a}\t{b}\n" for a, b in zip(TEXTS, MARKS, strict=True)))
    data, found = corpora(path)
    assert len(found) == 12 and describe_headers(data, schema_of("classification")) == []


def test_names_that_do_not_tell_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"when": "now", "where": "here", "who": "me"}\n')
    with pytest.raises(ConfigError, match=r"has the columns when, where, who, and it is not clear .* text and label"):
        corpora(tmp_path / "x.jsonl")
    assert corpora(tmp_path / "x.jsonl", columns=("who", "when"))[1] == [("me", "now")]


def test_inspect_shows_the_header_and_counts_labels(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("label,text\n" + "".join(f"{b},{a}\n" for a, b in zip(TEXTS, MARKS, strict=True)))
    code, out, err = run("data", "inspect", path)
    assert code == 0 and "is a header (label, text)" in err and "12 records" in out
    assert "text: 72 words" in out and "label: 3 different" in out and "side" not in out
    found = json.loads(run("data", "inspect", path, "--json")[1])["corpora"][0]
    assert found["labels"] == {"pos": 4, "neg": 4, "so": 4} and found["sides"] == ["text", "label"]
    (tmp_path / "y.tsv").write_text("A plain sentence.\tEin Satz.\n")
    assert "y.tsv: 1 record\n" in run("data", "inspect", tmp_path / "y.tsv")[1]
