"""qkv from Python: load, train and evaluate are there at once, explain themselves, and take what people give them."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import qkv
from qkv.config.usage import Usage
from qkv.errors import ConfigError
from qkv.models.build import build
from qkv.presets import tiny
from qkv.workflow import TrainedRun, toml

TINY: dict[str, Any] = {
    "task": "classification",
    "model": {
        "family": "encoder",
        "head": "classes",
        "d_model": 16,
        "n_layers": 1,
        "n_heads": 2,
        "d_ff": 32,
        "pooling": "mean",
    },
    "data": {
        "train": [{"grammar": 60}],
        "valid": {"grammar": 8},
        "test": {"grammar": 20},
        "vocab_size": 150,
        "batch_tokens": 800,
    },
    "train": {"steps": 4, "evaluate_every": 2, "save_every": 4, "warmup": 1},
}


# --- what is there


def test_the_names_are_there_before_torch_is() -> None:
    code = (
        "import sys, inspect, qkv\n"
        "assert {'load', 'train', 'evaluate', 'Model'} <= set(dir(qkv))\n"
        "assert callable(qkv.train) and callable(qkv.evaluate)\n"
        "assert 'out' in inspect.signature(qkv.train).parameters and 'recipe:' in qkv.train.__doc__\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules\n"
        "import qkv.train.run, qkv.evaluate.metrics\n"  # the packages of the same names
        "assert callable(qkv.train) and qkv.train.run.run and qkv.evaluate.metrics.f1 and callable(qkv.evaluate)\n"
        "assert callable(qkv.load)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("function", ["load", "train", "evaluate"])
def test_functions_explain_their_arguments_and_have_types(function: str) -> None:
    found = getattr(qkv, function)
    for name, parameter in inspect.signature(found).parameters.items():
        assert f"{name}:" in found.__doc__ or f"{name}, " in found.__doc__, name
        assert parameter.annotation is not inspect.Parameter.empty


@pytest.mark.parametrize(
    "method", ["translate", "generate", "logits", "embed", "classify", "answer", "summarize", "describe"]
)
def test_methods_explain_their_arguments(method: str) -> None:
    """Here, and not in another file."""
    found = getattr(qkv.Model, method)
    named = [name for name in inspect.signature(found).parameters if name != "self"]
    assert [name for name in named if not re.search(rf"\b{name}\b", found.__doc__)] == [] and ".py" not in found.__doc__


# --- training


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> TrainedRun:
    return qkv.train(
        TINY, tmp_path_factory.mktemp("runs") / "tiny", train__seed=3, overrides={"model.d_ff": 24}, quiet=True
    )


def test_a_run_has_its_folder_results_and_model(trained: TrainedRun) -> None:
    assert trained.results == json.loads((trained.folder / "results.json").read_text())
    assert trained.results["training"]["seed"] == 3 and trained.model.config.d_ff == 24
    assert (
        trained.model is trained.model
        and trained.model.classify(["A man sleeps."])[0].label in trained.model.config.labels
    )
    assert set(trained.scores) == {"accuracy", "macro_f1"} and trained.ended == "all updates are done"
    assert repr(trained).startswith(f"TrainedRun('{trained.folder}', accuracy ")


def test_the_command_continues_what_python_began(trained: TrainedRun) -> None:
    """The folder keeps the recipe with its changes, as `qkv train --set` does."""
    text = (trained.folder / "recipe.toml").read_text()
    assert text.endswith('# --set "model.d_ff=24"\n# --set "train.seed=3"\n')
    again = qkv.train(TINY, trained.folder, overrides={"model.d_ff": 24, "train.seed": 3}, quiet=True)
    assert again.results == trained.results
    from_file = qkv.train(trained.folder / "recipe.toml", trained.folder.parent / "copy", quiet=True)
    assert from_file.scores == trained.scores


def test_a_recipe_by_name_goes_to_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    small = {"data.train": [{"grammar": 100}], "data.valid": {"grammar": 5}, "data.test": {"grammar": 5}}
    run = qkv.train("sentences", overrides=small, train__steps=2, quiet=True)
    assert run.folder == Path("runs/sentences") and run.results["training"]["updates"] == 2


def test_word_vectors_are_trained_too(tmp_path: Path) -> None:
    run = qkv.train(
        "word2vec", tmp_path / "w2v", overrides={"data.train": [{"grammar": 200}]}, vectors__epochs=1, quiet=True
    )
    assert run.results and run.vectors.nearest("man", 2)


@pytest.mark.parametrize(
    ("recipe", "options", "message"),
    [
        (TINY, {}, "out=FOLDER"),
        (TINY, {"out": "x", "train__stepz": 3}, "did you mean 'steps'"),
        (TINY, {"out": "x", "train__steps": None}, "train.steps is a number"),
        (TINY, {"out": "x", "overrides": {"train.steps": "many"}}, "train.steps"),
        ({"task": "classification", "model": {**TINY["model"], "vocab_size": 100}}, {"out": "x"}, "no \\[data\\]"),
        ("nothing", {}, "no recipe 'nothing'"),
    ],
)
def test_what_cannot_be_trained_is_said(recipe: Any, options: Any, message: str, tmp_path: Path,
                                        monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=message):
        qkv.train(recipe, quiet=True, **options)
    assert not any(tmp_path.iterdir())


VALUES = st.recursive(
    st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("abc-é .", min_size=1, max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.text("abc_", min_size=1, max_size=5), VALUES, max_size=4))
@settings(max_examples=60, deadline=None)
def test_dicts_become_toml(values: dict[str, Any]) -> None:
    tables = {"top": 1, "table": values}
    assert tomllib.loads(toml(tables)) == tables


# --- a model says what it is


def test_repr_tells_family_size_task_words_and_device(trained: TrainedRun, tmp_path: Path) -> None:
    count = sum(weight.numel() for weight in trained.model.network.parameters())
    words = trained.model.config.vocab_size
    assert (
        repr(trained.model)
        == f"Model(encoder, {count / 1e3:.3g} k parameters, classification, 3 classes, vocabulary {words:,}, cpu)"
    )
    assert repr(qkv.load(trained.folder / "best")) == repr(trained.model)
    config = tiny("transformer-base")
    usage = Usage(task="translation", source="fr", target="de")
    qkv.Model(config, build(config), device="cpu", usage=usage).save(tmp_path / "best")
    assert re.fullmatch(
        r"Model\(encoder-decoder, [\d.]+ k parameters, translation fr-de, vocabulary \d+, no tokenizer, cpu\)",
        repr(qkv.load(tmp_path)),
    )
    (tmp_path / "recipe.toml").write_text("not TOML")  # which is no part of the model
    assert "fr-de" in repr(qkv.load(tmp_path))
    assert "head vocabulary" in repr(qkv.Model(config, build(config), device="cpu"))
    picture = tiny("vit-b16")
    assert "images" in repr(qkv.Model(picture, build(picture), device="cpu"))


@pytest.mark.parametrize("verb", ["evaluate", "compare"])
def test_examples_of_the_help_are_not_broken_over_lines(verb: str) -> None:
    from importlib import import_module

    text = import_module(f"qkv.commands.{verb}").run.__doc__
    examples = re.findall(r"\[dim\](qkv .*?)\[/\]", text)
    assert len(examples) >= 4 and all(len(line) <= 78 and line.startswith(f"qkv {verb} ") for line in examples)
