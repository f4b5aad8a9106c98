"""What a model folder says of the data that its model was trained on: names, never paths or contents."""

from pathlib import Path
from typing import Any

import pytest

from qkv.config import DataConfig, validate
from qkv.config.usage import Usage, corpus_of_run
from qkv.tasks.predictions import example_inputs

VALID = {"grammar": 10}


@pytest.mark.parametrize(
    ("corpus", "name"),
    [({"grammar": 60}, "grammar"), ({"weight": 2.0, "dataset": "glue/sst2"}, "sst2"), ({"table": "a/secret/b.tsv"}, "b.tsv"),
     ({"files": ["secret/a.en", "secret/a.de"]}, "files"), ({"text": "a secret"}, "text"), ({"images": "secret/birds"}, "birds")],
)  # fmt: skip
def test_training_data_are_named_and_never_quoted(corpus: dict[str, Any], name: str) -> None:
    usage = Usage(corpus=corpus_of_run(validate(DataConfig, {"train": [corpus], "valid": VALID, "root": "secret"})))
    assert usage.dataset == name and "secret" not in str(usage.to_json())
    assert Usage().dataset is None


def test_columns_and_documents_are_those_of_the_run() -> None:
    """Where the training corpus names none, a held-out set of the same kind does."""
    table, named = {"table": "a.tsv"}, {"table": "v.tsv", "columns": ["text", "label"]}
    corpus = corpus_of_run(validate(DataConfig, {"train": [table], "valid": named}))
    assert corpus.columns == ("text", "label") and corpus.table == "a.tsv"
    text = {"files": ["a.txt"], "documents": "lines"}
    assert corpus_of_run(validate(DataConfig, {"train": [text], "valid": VALID})).documents == "lines"
    assert (
        corpus_of_run(validate(DataConfig, {"train": [table], "valid": {"dataset": "glue/cola"}})).dataset
        == "glue/cola"
    )


def test_examples_are_a_few_short_texts_of_the_test_set(tmp_path: Path) -> None:
    assert example_inputs(tmp_path) == ()
    (tmp_path / "test.tagged.conll").write_text("A\tDET\tDET\nman\tNOUN\tNOUN\n\nHe\tPRON\tPRON\n\n")
    assert example_inputs(tmp_path) == ("A man", "He")
    (tmp_path / "test.src.txt").write_text("".join(f"{text}\n" for text in ["one", "one", "", "x" * 2000, *"abcdef"]))
    assert example_inputs(tmp_path) == ("one", "a", "b", "c")
