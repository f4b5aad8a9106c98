"""What a server says of the data that its models were trained on."""

from pathlib import Path

import pytest

from qkv.serve.api.examples import data_of, samples


@pytest.mark.parametrize(
    ("corpus", "name"),
    [('{ grammar = 60 }', "grammar"), ('{ weight = 2.0, dataset = "glue/sst2" }', "sst2"), ('{ table = "a/b.tsv" }', "b.tsv"),
     ('{ files = ["a.en", "a.de"] }', "files"), ('{ text = "our own/secret" }', "text"), ('{ weight = 2.0 }', None)],
)  # fmt: skip
def test_training_data_are_named_and_never_quoted(corpus: str, name: str | None, tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(f"[data]\ntrain = [{corpus}]\n")
    assert data_of(tmp_path) == name


def test_without_a_run_nothing_is_known(tmp_path: Path) -> None:
    for run in (None, tmp_path):
        assert data_of(run) is None and samples(run) == []


def test_examples_are_a_few_short_texts_of_the_test_set(tmp_path: Path) -> None:
    (tmp_path / "test.src.txt").write_text("".join(f"{text}\n" for text in ["one", "one", "", "x" * 2000, *"abcdef"]))
    assert samples(tmp_path) == ["one", "a", "b", "c"]
