"""Runs of word2vec: from text to a folder, resumed exactly, used by commands; and what is wrong is said in one line."""

from __future__ import annotations

import json
import random
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import needs_compiler

import qkv
from qkv.config.vectors import TextConfig, load_vectors_recipe
from qkv.convert.files import read_tensors
from qkv.convert.manifest import seal
from qkv.data.lexicon import NOUNS
from qkv.errors import ConfigError
from qkv.vectors import kernel
from qkv.vectors import run as training
from qkv.vectors.corpus import END, open_ids, sentences, sources, write_ids
from qkv.vectors.vocabulary import count_words

Run = Callable[..., tuple[int, str, str]]
RECIPE = """
task = "vectors"
[data]
train = [{ files = ["text.txt"] }]
root = "ROOT"
[vectors]
width = 8
min_count = 1
sample = 0.1
epochs = 3
learning_rate = 0.1
workers = 1
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a text, its recipe w2v.toml, and parts so small that a pass has several."""
    r = random.Random(0)
    topics = ("king queen crown throne", "dog cat bird fish", "bread milk cheese wine")
    lines = [" ".join(r.choices(r.choice(topics).split(), k=8)).capitalize() + "." for _ in range(60)]
    (tmp_path / "text.txt").write_text("\n".join(lines))
    (tmp_path / "w2v.toml").write_text(RECIPE.replace("ROOT", str(tmp_path)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(training, "PART", 150)
    return tmp_path


# --- from text to use


def test_from_text_to_words(here: Path, run: Run) -> None:
    """A run's folder has all that other runs' have, and every command opens it."""
    (here / "pairs.tsv").write_text("king\tqueen\t9\ndog\tmilk\t1\ndog\tunicorn\t3\n")
    (here / "questions.txt").write_text(": animals\ndog cat bird fish\n")
    asked = ["--set", 'vectors.similarity=["pairs.tsv"]', "--set", "vectors.analogies=questions.txt"]
    code, out, err = run("train", "w2v.toml", *asked, "--set", "vectors.epochs=12")
    assert code == 0 and "epoch 12 of 12: loss" in err and "words/s" in err and "2 of 3 pairs" in out
    folder = here / "runs" / "w2v"
    names = {path.name for path in folder.iterdir()} - {".lock"}
    assert names - {f"checkpoint-{12 * 4:07d}"} == {"recipe.toml", "vocabulary.json", "log.jsonl", "best", "tensorboard",
                                                    "curves.svg", "README.md", "results.json"}  # fmt: skip
    found = json.loads((folder / "results.json").read_text())
    assert found["losses"][-1] < found["losses"][0] and found["data"]["words"] == 480 and found["model"]["words"] == 12
    assert found["test"]["scores"][0]["value"] == pytest.approx(100)
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, 49)) and lines[-1]["learning_rate"] < lines[0][
        "learning_rate"
    ] / 5
    assert "word vectors" in (folder / "README.md").read_text() == (folder / "best" / "README.md").read_text()
    code, out, _ = run("evaluate", "runs/w2v")
    assert code == 0 and "pairs = 100.00" in out and "one-hot" in out
    code, out, _ = run("nearest", "runs/w2v", "king", "Dog", "--n", "2", "--json")
    near = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and {one["word"] for one in near[0]["nearest"]} <= {"queen", "crown", "throne"}
    listed = run("nearest", "runs/w2v", "king", "Dog", "--n", "2")[1].split("\n\n")
    assert [one.split("\n")[0] for one in listed if one] == ["king", "Dog"]  # each list under its word
    assert run("nearest", "runs/w2v", "king", "--n", "2")[1].strip() == listed[0].partition("\n")[2]
    code, out, _ = run("analogy", "runs/w2v", "king", "queen", "dog", "--n", "3")
    assert code == 0 and len(out.splitlines()) == 3
    vectors = qkv.load_vectors("runs/w2v")
    assert vectors.nearest("king", 2)[0].word == near[0]["nearest"][0]["word"]
    assert run("train", "w2v.toml", *asked, "--set", "vectors.epochs=12")[0] == 0  # it had ended: nothing changes
    assert json.loads((folder / "results.json").read_text()) == found


def test_exported_vectors_are_asked_the_same(here: Path, run: Run) -> None:
    run("train", "w2v.toml")
    (here / "pairs.tsv").write_text("king\tqueen\t9\ndog\tmilk\t1\ndog\tcat\t8\n")
    scores = []
    for to, name in (("word2vec-text", "v.txt"), ("word2vec-binary", "v.bin")):
        assert run("export", "runs/w2v", name, "--to", to)[0] == 0
        code, out, _ = run("evaluate", name, "--similarity", "pairs.tsv", "--json")
        assert code == 0
        scores.append(json.loads(out))
    code, out, _ = run("evaluate", "runs/w2v", "--similarity", "pairs.tsv", "--json")
    assert scores == [json.loads(out)] * 2


@needs_compiler
def test_the_shipped_recipe_learns(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarter of its sentences: the dog finds other animals all the same."""
    monkeypatch.chdir(tmp_path)
    assert run("train", "word2vec", "--set", "data.train=[{ grammar = 5000 }]", "--set", "vectors.workers=1")[0] == 0
    animals = {word for line in NOUNS.splitlines() if line.endswith(" animal") for word in line.split()[:2]}
    near = {one.word for one in qkv.load_vectors("runs/word2vec").nearest("dog", 5)}
    assert len(near & animals) >= 3


# --- going on


def results(folder: Path) -> tuple[bytes, bytes, list[float]]:
    """Vectors, log and losses; not the times."""
    best, log = (folder / "best" / "vectors.safetensors").read_bytes(), (folder / "log.jsonl").read_bytes()
    return best, log, json.loads((folder / "results.json").read_text())["losses"]


@pytest.mark.parametrize("how", ["killed", "SIGINT", "SIGTERM"])
def test_an_interrupted_run_is_an_uninterrupted_one(
    here: Path, run: Run, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    assert run("train", "w2v.toml", "--out", "whole")[0] == 0
    learn, calls = kernel.learn, []

    def interrupted(*told):  # type: ignore[no-untyped-def]
        calls.append(1)
        if len(calls) == 6:  # in the middle of the second pass
            if how == "killed":
                raise SystemExit(9)
            signal.raise_signal(getattr(signal, how))
        return learn(*told)

    monkeypatch.setattr(kernel, "learn", interrupted)
    code, _, err = run("train", "w2v.toml", "--out", "parts")
    assert code == {"killed": 9, "SIGINT": 130, "SIGTERM": 143}[how] and not (here / "parts" / "results.json").exists()
    assert (here / "parts" / "corpus.ids").exists()
    code, _, err = run("train", "w2v.toml", "--out", "parts")
    assert code == 0 and "resuming in epoch 2" in err
    assert len(calls) == 12 + (how == "killed") * 2  # what was killed is done again from the last pass on
    assert results(here / "parts") == results(here / "whole")


def test_killed_while_the_last_vectors_are_written(here: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("train", "w2v.toml", "--out", "whole")[0] == 0
    with monkeypatch.context() as patch:
        patch.setattr(training.store, "save", raising_after(2, training.store.save))
        assert run("train", "w2v.toml", "--out", "parts")[0] == 9
    assert run("train", "w2v.toml", "--out", "parts")[0] == 0
    assert results(here / "parts") == results(here / "whole")


def test_a_run_with_a_damaged_checkpoint_resumes_from_the_one_before(
    here: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = ("train", "w2v.toml", "--set", "vectors.keep=2")
    assert run(*recipe, "--out", "whole")[0] == 0
    assert len(list((here / "whole").glob("checkpoint-*"))) == 2
    with monkeypatch.context() as patch:
        patch.setattr(kernel, "learn", raising_after(9, kernel.learn))
        assert run(*recipe, "--out", "parts")[0] == 9
    newest = here / "parts" / "checkpoint-0000008" / "training.safetensors"
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 1
    newest.write_bytes(data)
    code, _, err = run(*recipe, "--out", "parts")
    assert code == 0 and "renamed checkpoint-0000008.damaged, continuing from checkpoint-0000004" in err
    assert results(here / "parts") == results(here / "whole")


def test_the_text_is_numbered_again_where_its_row_is_lost(
    here: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("train", "w2v.toml", "--out", "whole")[0] == 0
    monkeypatch.setattr(kernel, "learn", raising_after(4, kernel.learn))
    run("train", "w2v.toml", "--out", "parts")
    monkeypatch.undo()
    monkeypatch.chdir(here)
    monkeypatch.setattr(training, "PART", 150)
    (here / "parts" / "corpus.ids").unlink()
    assert run("train", "w2v.toml", "--out", "parts")[0] == 0
    assert results(here / "parts") == results(here / "whole")


def test_what_was_dropped_is_known_after_an_interruption(here: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [json.dumps({"text": line}) for line in (here / "text.txt").read_text().splitlines()]
    (here / "text.jsonl").write_text("\n".join([*lines, "{ broken"]))
    recipe = ["train", "w2v.toml", "--set", 'data.train=[{ table = "text.jsonl", columns = ["text"] }]']
    with monkeypatch.context() as patch:
        patch.setattr(kernel, "learn", raising_after(6, kernel.learn))
        assert run(*recipe)[0] == 9
    assert run(*recipe)[0] == 0
    assert sum(json.loads((here / "runs" / "w2v" / "results.json").read_text())["data"]["dropped"].values()) == 1


def raising_after(count: int, learn):  # type: ignore[no-untyped-def]
    left = iter(range(count))

    def call(*told):  # type: ignore[no-untyped-def]
        if next(left, None) is None:
            raise SystemExit(9)
        return learn(*told)

    return call


@needs_compiler
def test_without_a_compiler_the_same_is_learned(here: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    once = ["--set", "vectors.epochs=1"]
    assert run("train", "w2v.toml", "--out", "fast", *once)[0] == 0
    monkeypatch.setattr(kernel, "library", lambda: None)
    code, _, err = run("train", "w2v.toml", "--out", "slow", "--threads", "1", *once)
    assert code == 0 and "no C++ kernel" in err
    fast, slow = (read_tensors(here / name / "best" / "vectors.safetensors") for name in ("fast", "slow"))
    for name in ("input", "output"):
        torch.testing.assert_close(fast[name], slow[name], atol=1e-5, rtol=0)


# --- text


def test_what_a_word_and_a_sentence_is(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("I don't. new_york's 2nd\n\nO’Hara—café\n")

    def made(**fields: object) -> list[list[str]]:
        data = TextConfig(train=({"files": ("a.txt",)},), root=str(tmp_path), **fields)  # type: ignore[arg-type]
        return list(sentences(sources(data), data))

    assert made() == [["i", "don't", "new_york's", "2nd"], ["o’hara", "café"]]
    assert made(lower=False)[0][0] == "I"
    assert made(words="spaces") == [["i", "don't.", "new_york's", "2nd"], ["o’hara—café"]]


def test_the_row_of_ids_is_the_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without rare words and lonely ones; long sentences are cut."""
    r = random.Random(1)
    texts = [[r.choice("abcdefgh") for _ in range(r.randint(1, 9))] + ["rare" + str(i)] for i in range(50)]
    words = count_words(texts, 2, 100)
    wanted = [[words.index[w] for w in text if w in words.index] for text in texts]
    flat = [x for ids in wanted if len(ids) > 1 for x in (*ids, END)]
    write_ids(tmp_path / "ids", texts, words)
    assert open_ids(tmp_path / "ids").tolist() == flat
    monkeypatch.setattr("qkv.vectors.corpus.LONGEST", 3)
    (tmp_path / "a.txt").write_text("a b c d e f g\n")
    data = TextConfig(train=({"files": ("a.txt",)},), root=str(tmp_path))  # type: ignore[arg-type]
    assert [len(words) for words in sentences(sources(data), data)] == [3, 3, 1]


def test_several_corpora_are_read_one_after_the_other(here: Path) -> None:
    data = TextConfig(train=({"files": ("text.txt",)}, {"grammar": 10}), root=str(here))  # type: ignore[arg-type]
    found = list(sentences(sources(data), data))
    assert len(found) == 70 and found[0][0] in "king queen crown throne dog cat bird fish bread milk cheese wine"


# --- what is wrong


def wrong(run: Run, *arguments: str) -> str:
    """One line on standard error, exit code 2."""
    code, _, err = run(*arguments)
    lines = [line for line in err.splitlines() if line.startswith("error: ")]
    assert code == 2 and len(lines) == 1 and "Traceback" not in err
    return lines[0]


def test_a_text_that_cannot_be_learned_from(here: Path, run: Run) -> None:
    text = here / "text.txt"
    for content, settings, why in (
        ("", [], "no text at all"),
        ("...\n!!\n", [], "has no words"),
        ("a b c\n", ["vectors.min_count=5"], "no word occurs 5 times"),
        ("ha ha ha\n", [], "one word"),
        ("a\nb\na\nb\n", [], "no line has two words"),
        ("a b\n", ["vectors.sample=1e-9"], "subsampling left"),
    ):
        text.write_text(content)
        changes = [part for setting in settings for part in ("--set", setting)]
        assert why in wrong(run, "train", "w2v.toml", "--out", "bad", *changes)
    text.write_bytes(b"\xff\xfe\x00")
    assert "UTF-8" in wrong(run, "train", "w2v.toml", "--out", "bad")
    text.unlink()
    assert "text.txt" in wrong(run, "train", "w2v.toml", "--out", "bad")


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ("vectors.widht=3", "did you mean 'width'"),
        ("vectors.width=0", "greater than 0"),
        ("vectors.loss=hs", "hierarchical"),
        ("model.d_model=64", "unknown key 'model'"),
        ("data.train=[]", "nothing to learn from"),
        ("data.train=[{files=[text.txt]}]", "in double quotes"),
        ("data.train=[{ grammar = 5, weight = 2.0 }]", "weight does not apply to word vectors"),
        ("data.train=[{ images = 'x' }]", "has images"),
        ("vectors.seed=-1", "greater than or equal to 0"),
    ],
)
def test_a_recipe_that_makes_no_sense(here: Path, run: Run, setting: str, why: str) -> None:
    assert why in wrong(run, "train", "w2v.toml", "--set", setting)


def test_what_networks_have_and_vectors_have_not(here: Path, run: Run) -> None:
    assert "vectors.epochs" in wrong(run, "train", "w2v.toml", "--time-budget", "1m")
    assert "word vectors" in wrong(run, "params", "w2v.toml")
    assert run("train", "w2v.toml")[0] == 0
    assert "files that are not a run" in wrong(run, "train", "w2v.toml", "--out", ".")
    assert "another recipe" in wrong(run, "train", "w2v.toml", "--set", "vectors.width=9")
    for command in ("translate", "params", "check"):
        assert "word vectors" in wrong(run, command, "runs/w2v")
    assert "word vectors" in wrong(run, "generate", "runs/w2v", "Once")
    assert "word2vec-text" in wrong(run, "export", "runs/w2v", "out", "--to", "hf")
    assert "--similarity" in wrong(run, "evaluate", "runs/w2v")


def test_a_rate_that_is_too_high(here: Path, run: Run) -> None:
    assert "lower vectors.learning_rate" in wrong(run, "train", "w2v.toml", "--set", "vectors.learning_rate=1e30")
    assert not (here / "runs" / "w2v" / "best").exists()


def test_questions_that_cannot_be_asked_are_said_before_training(here: Path, run: Run) -> None:
    (here / "three.txt").write_text("a b c\n")
    for setting, why in (
        ('vectors.similarity=["nothing.tsv"]', "nothing.tsv"),
        ("vectors.analogies=three.txt", "line 1"),
    ):
        assert why in wrong(run, "train", "w2v.toml", "--set", setting)
        assert not (here / "runs" / "w2v" / "log.jsonl").exists()


def test_questions_that_have_no_answer(here: Path, run: Run) -> None:
    assert run("train", "w2v.toml")[0] == 0
    code, out, err = run("nearest", "runs/w2v", "king", "qeen", "--n", "2", "--json")  # the known one is answered
    assert code == 1 and [json.loads(line)["word"] for line in out.splitlines()] == ["king"]
    assert err.strip() == "'qeen' is not in the vocabulary of 12 words: did you mean 'queen'?"
    assert "'qeen' is not in the vocabulary of 12 words: did you mean 'queen'" in wrong(
        run, "nearest", "runs/w2v", "qeen"
    )
    assert "no word has a similar spelling" in wrong(run, "analogy", "runs/w2v", "king", "queen", "xylophone")
    assert "does not exist" in wrong(run, "nearest", "nothing.bin", "king")
    assert "not a word2vec file" in wrong(run, "nearest", "text.txt", "king")
    assert "does not exist" in wrong(run, "evaluate", "nothing.txt", "--similarity", "text.txt")
    assert "line 2" in wrong(run, "evaluate", "runs/w2v", "--similarity", "text.txt")
    assert "line 1" in wrong(run, "evaluate", "runs/w2v", "--analogies", "text.txt")
    assert "cannot read" in wrong(run, "evaluate", "runs/w2v", "--analogies", "nothing.txt")


def test_a_damaged_run(here: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "learn", raising_after(6, kernel.learn))
    run("train", "w2v.toml")
    monkeypatch.undo()
    monkeypatch.chdir(here)
    ids = here / "runs" / "w2v" / "corpus.ids"
    whole = ids.read_bytes()
    outside = np.array([0, 12, END], dtype=np.int32).tobytes()  # of twelve words, 0 to 11
    for damage in (whole[:-8], whole[:-3], b"", whole[:-12] + outside, whole[:-4] + bytes(4)):
        ids.write_bytes(damage)
        assert "another text" in wrong(run, "train", "w2v.toml")
    ids.unlink()
    (numbers,) = (here / "runs" / "w2v").glob("checkpoint-*/training.json")
    numbers.write_text('{"what": 1}')
    assert "is damaged" in wrong(run, "train", "w2v.toml")
    seal(numbers.parent, ())
    assert "not a checkpoint" in wrong(run, "train", "w2v.toml")


def test_a_vocabulary_that_is_lost_or_another_is_not_replaced(here: Path, run: Run) -> None:
    assert run("train", "w2v.toml")[0] == 0
    words = here / "runs" / "w2v" / "vocabulary.json"
    words.write_text("{}")
    longer = ("train", "w2v.toml", "--set", "vectors.epochs=4")
    assert "has changed since this run started: restore it" in wrong(run, *longer)
    words.unlink()
    assert "lacks vocabulary.json" in wrong(run, *longer)


def test_files_of_word2vec_are_models_too(here: Path, run: Run) -> None:
    """They are converted, and asked for what only a network does they say what they are; translations are no vectors."""
    assert run("train", "w2v.toml")[0] == 0
    for source, out, to in (("runs/w2v", "v.txt", "word2vec-text"), ("v.txt", "v.bin", "word2vec-binary"),
                            ("v.bin", "folder", "qkv"), ("folder", "again.txt", "word2vec-text")):  # fmt: skip
        assert run("export", source, out, "--to", to)[0] == 0
    assert (here / "again.txt").read_bytes() == (here / "v.txt").read_bytes()
    assert "word vectors" in wrong(run, "generate", "v.bin", "Once")
    assert "--similarity" in wrong(run, "evaluate", "v.txt")
    assert "--beam is for translations" in wrong(run, "evaluate", "v.txt", "--similarity", "x.tsv", "--beam", "4")
    (here / "sizes.txt").write_text("12 3\n")
    code, out, _ = run("evaluate", "sizes.txt", "--references", "sizes.txt", "--metrics", "bleu")
    assert code == 0 and "BLEU" in out


def test_the_recipe_of_a_run_is_what_was_trained(here: Path, run: Run) -> None:
    """What was set on the command line stays set when the run's recipe, or a copy of it, is trained."""
    assert run("train", "w2v.toml", "--set", "vectors.width=9")[0] == 0
    kept = here / "runs" / "w2v" / "recipe.toml"
    assert run("train", str(kept), "--out", "runs/w2v")[0] == 0
    (here / "copy.toml").write_text(kept.read_text() + '# --set what I like\n# --set "half\n')
    assert run("train", "copy.toml", "--set", "vectors.epochs=1")[0] == 0
    assert qkv.load_vectors(here / "runs" / "copy").vectors.size(1) == 9
    assert load_vectors_recipe(here / "runs" / "copy" / "recipe.toml").vectors.epochs == 1


def test_recipes_for_networks_are_others(here: Path) -> None:
    from qkv.config import load_recipe
    from qkv.recipes import find

    with pytest.raises(ConfigError, match="word vectors"):
        load_recipe(here / "w2v.toml")
    with pytest.raises(ConfigError):
        load_vectors_recipe(find("demo"))
    assert np.isclose(load_vectors_recipe(find("word2vec-imdb")).vectors.sample, 1e-3)
