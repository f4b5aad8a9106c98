"""Bad input for every task through the real commands: one clear line and exit code 2, or a stated behaviour and exit code 1;
never a traceback, never silence."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import Run

import qkv
from qkv.api import Model
from qkv.config import CorpusConfig, DataConfig, ModelConfig
from qkv.data.corpora import corpus
from qkv.data.grammar_tasks import GrammarRecords, plain_sentences
from qkv.errors import ConfigError, QkvError
from qkv.models.build import build
from qkv.tasks.vocabulary import special_ids
from qkv.text.train import train_tokenizer
from tests.schemas import schema_of

TEXTS = [text for _, (text,) in GrammarRecords("train", 60, plain_sentences).read()]
TINY: dict[str, Any] = {"d_model": 16, "n_layers": 1, "n_heads": 2, "d_ff": 32, "max_length": 32}
MODELS: dict[str, dict[str, Any]] = {
    "tagger": {"family": "encoder", "head": "tags", "n_classes": 2, "labels": ("DET", "NOUN")},
    "classifier": {"family": "encoder", "head": "classes", "n_classes": 2, "labels": ("good", "bad")},
    "reader": {"family": "encoder", "head": "span", "n_segments": 2},
    "masked": {"family": "encoder", "head": "masked", "position": "learned"},
    "writer": {"family": "decoder", "position": "learned"},
    "summarizer": {"family": "encoder-decoder"},
    "seer": {"family": "encoder", "head": "classes", "n_classes": 2, "labels": ("cat", "dog"), "image_size": 8,
             "patch_size": 4, "n_channels": 1, "vocab_size": 0, "pooling": "mean", "pooler": False},
}  # fmt: skip
USERS = {"tag": "tagger", "classify": "classifier", "embed": "masked", "fill": "masked", "summarize": "summarizer"}
"""Verbs that read a text per line, and a model for each."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model of each kind, of fresh weights."""
    place = tmp_path_factory.mktemp("models")
    for name, fields in MODELS.items():
        kind = "wordpiece" if fields["family"] == "encoder" else "bpe"
        tokenizer = None if "image_size" in fields else train_tokenizer(TEXTS, kind, 150)
        words = {} if tokenizer is None else {"vocab_size": tokenizer.size, **special_ids(tokenizer)}
        config = ModelConfig(**{**TINY, **words, **fields})
        Model(config, build(config), tokenizer).save(place / name)
    return place


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with good and bad files."""
    monkeypatch.chdir(tmp_path)
    contents = {"good.txt": "The man sleeps.\nThe dog sees [MASK].\n", "empty.txt": "", "blank.txt": "\n \n",
                "labels.tsv": "a text\tx\nanother\ty\nmore\tx\n", "one.tsv": "a text\nanother\n",
                "other.tsv": "a text\tz\n", "tags.conll": "The DET\nman NOUN\n\n", "cut.conll": "The DET\nman\n\n",
                "new.conll": "The FOO\n\n", "lines.jsonl": '{"text": "no label"}\nnot JSON\n'}  # fmt: skip
    for name, text in contents.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "latin.txt").write_bytes("Käse [MASK]\nThe man sees [MASK].\n".encode("latin-1"))
    (tmp_path / "binary.dat").write_bytes(bytes(range(256)) * 4)
    (tmp_path / "folder").mkdir()
    return tmp_path


def refused(run: Run, *arguments: str | Path, saying: str, given: str | None = None) -> None:
    """Exit code 2 and one line that says so."""
    code, _, err = run(*arguments, given=given)
    problems = [line for line in err.splitlines() if line.startswith("error: ")]
    assert code == 2 and len(problems) == 1 and "Traceback" not in err, err
    assert saying in problems[0], problems[0]


def given(verb: str, name: str) -> list[str]:
    return ["--file", name] if verb == "fill" else [name]


# --- using a model


@pytest.mark.parametrize(
    ("verb", "model", "saying"),
    [
        ("tag", "classifier", 'trained with task = "tagging"'),
        ("classify", "tagger", 'train it with task = "classification"'),
        ("fill", "writer", 'train one with task = "masked"'),
        ("summarize", "tagger", 'train one with task = "summary"'),
        ("answer", "tagger", 'trained with task = "answering"'),
        ("describe", "classifier", 'trained with task = "captions"'),
        ("describe", "seer", 'trained with task = "captions"'),
        ("generate", "masked", "an encoder cannot generate text"),
        ("chat", "masked", "a conversation needs a decoder"),
        ("chat", "writer", "chat template"),
        ("tag", "seer", "this model reads images, not texts"),
        ("embed", "seer", "this model reads images, not texts"),
        ("embed", "folder", "folder"),
    ],
)
def test_a_model_of_another_kind(verb: str, model: str, saying: str, models: Path, run: Run) -> None:
    refused(run, verb, models / model if model in MODELS else model, saying=saying, given="The man sleeps.\n")


@pytest.mark.parametrize("verb", USERS)
def test_files_that_are_none(verb: str, models: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    model = models / USERS[verb]
    refused(run, verb, model, *given(verb, "missing.txt"), saying="cannot read missing.txt: No such file")
    refused(run, verb, model, *given(verb, "folder"), saying="cannot read folder: Is a directory")
    code, out, err = run(verb, model, *given(verb, "empty.txt"))
    assert (code, out, err) == (0, "", "")
    monkeypatch.setattr(sys, "stdin", None)
    refused(run, verb, model, saying="there is no standard input")


@pytest.mark.parametrize("verb", ["tag", "classify", "fill", "summarize"])
def test_a_line_that_is_no_text_costs_only_itself(verb: str, models: Path, run: Run) -> None:
    code, out, err = run(verb, models / USERS[verb], *given(verb, "latin.txt"), "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 1 and len(rows) == 2 and err.count("\n") == 1 and "line 1 is not" in err
    assert rows[0]["problem"] == "not UTF-8" and "problem" not in rows[1]


def test_vectors_are_for_every_line_or_none(models: Path, run: Run, files: Path) -> None:
    refused(run, "embed", models / "masked", "latin.txt", saying="line 1 cannot be read (not UTF-8)")
    (files / "long.txt").write_text("The man sleeps. " * 100)
    refused(run, "embed", models / "masked", "long.txt", saying="tokens")
    refused(run, "embed", models / "masked", "good.txt", "--layer", "7", saying="layer")
    refused(run, "embed", models / "masked", "good.txt", "--out", "vectors.xyz", saying=".npy")


def test_a_prompt_longer_than_the_context(models: Path, run: Run) -> None:
    prompt = "The man sleeps. " * 50
    refused(run, "generate", models / "writer", prompt, saying="the model's context is 32: shorten the prompt")
    code, out, _ = run("generate", models / "writer", prompt, "--truncate", "--max-new-tokens", "4")
    assert code == 0 and out.endswith("\n")


def test_long_texts_are_cut_or_read_in_windows(models: Path, run: Run, files: Path) -> None:
    (files / "long.txt").write_text("The man sleeps. " * 100)
    code, out, err = run("classify", models / "classifier", "long.txt")
    assert code == 0 and len(out.splitlines()) == 1 and "1 of 1 texts were cut to 32 tokens" in err
    code, out, _ = run("tag", models / "tagger", "long.txt")
    assert code == 0 and len(out.split("\n")) == 400 + 2  # every word has its tag
    code, out, _ = run("fill", models / "masked", "--file", "long.txt")
    assert code == 1 and out == "\n"


def test_questions(models: Path, run: Run, files: Path) -> None:
    reader = models / "reader"
    refused(run, "answer", reader, "Who sleeps?", saying="give the text with --context FILE")
    refused(run, "answer", reader, "--context", "good.txt", saying="--context needs a question")
    refused(run, "answer", reader, "", "--context", "good.txt", saying="--context needs a question")
    refused(run, "answer", reader, "Who?", "--context", "blank.txt", saying="blank.txt is empty")
    refused(run, "answer", reader, "Who?", "--context", "latin.txt", saying="latin.txt is not UTF-8")
    refused(run, "answer", reader, "lines.jsonl", saying="lines.jsonl, line 1: it is not")
    refused(run, "answer", reader, given="hello\n", saying="standard input, line 1: it is not")


def test_columns_of_words(models: Path, run: Run, files: Path) -> None:
    (files / "short.conllu").write_text("1\n")
    refused(run, "tag", models / "tagger", "short.conllu", "--format", "conll", saying="line 1: 1 of 2 columns ('1')")
    refused(run, "tag", models / "tagger", "binary.dat", "--format", "conll", saying="no UTF-8 text; correct it")


def test_pictures_that_are_none(models: Path, run: Run) -> None:
    code, out, err = run("classify", models / "seer", "binary.dat", "missing.png")
    assert code == 1 and out == "\n\n" and "Traceback" not in err
    assert "binary.dat is not an image" in err and "missing.png does not exist" in err


def test_pairs_and_several_files(models: Path, run: Run) -> None:
    code, out, err = run("classify", models / "classifier", "labels.tsv", "--pairs")
    assert code == 0 and len(out.splitlines()) == 3
    code, out, err = run("classify", models / "classifier", "one.tsv", "--pairs")
    assert code == 1 and out == "\n\n" and "a pair is two texts separated by a tab, given 1" in err
    refused(
        run,
        "classify",
        models / "classifier",
        "good.txt",
        "good.txt",
        saying="a text classifier reads one file, given 2",
    )


def test_a_text_is_not_a_list_of_letters(models: Path) -> None:
    """From Python, the mistake that everybody makes once."""
    for name, verb in {"tagger": "tag", "classifier": "classify", "masked": "fill", "summarizer": "summarize"}.items():
        with pytest.raises(QkvError, match=r"pass \[text\]"):
            getattr(qkv.load(models / name), verb)("The man sleeps.")
    with pytest.raises(QkvError, match="one question is about one context"):
        qkv.load(models / "reader").answer("Who?", ["The man sleeps."])


# --- training

SMALL = "model.d_model=16 model.n_layers=1 model.n_heads=2 model.d_ff=32 data.batch_tokens=300 train.steps=1".split()


def train(run: Run, recipe: str, *settings: str) -> tuple[int, str, str]:
    return run("train", recipe, "--out", "run", *(part for s in (*SMALL, *settings) for part in ("--set", s)))


def of(name: str, kind: str) -> str:
    """A corpus of one file."""
    return f"{{table='{name}'}}" if kind == "table" else f"{{files=['{name}']}}"


@pytest.mark.parametrize(
    ("recipe", "task", "saying"),
    [
        ("sentences", "tagging", "head = 'tags'"),
        ("sentences", "language", "family 'decoder'"),
        ("sentences", "masked", "head 'masked' or 'masked-next'"),
        ("sentences", "replaced", "head 'replaced'"),
        ("sentences", "span-corruption", "family 'encoder-decoder'"),
        ("sentences", "denoising", "family 'encoder-decoder'"),
        ("sentences", "answering", "head = 'span'"),
        ("sentences", "summary", "a model that writes"),
        ("sentences", "images", "image_size and patch_size"),
        ("sentences", "captions", "image_size and patch_size"),
        ("summaries", "classification", "decode does not apply to task 'classification'"),
        ("digits", "classification", "augment does not apply to task 'classification'"),
        ("sentences", "nothing", "'task': input should be"),
    ],
)
def test_a_task_and_a_model_that_do_not_fit(recipe: str, task: str, saying: str, run: Run) -> None:
    code, _, err = train(run, recipe, f"task={task}")
    assert code == 2 and err.startswith("error: ") and err.count("\n") == 1 and saying in err, err


@pytest.mark.parametrize("recipe", ["sentences", "tags", "answers", "grammar-lm", "masked"])
def test_texts_that_are_longer_than_the_model_can_take_are_refused(recipe: str, run: Run) -> None:
    code, _, err = train(run, recipe, "data.max_length=100", "model.max_length=99")
    assert code == 2 and "data.max_length = 100 tokens do not fit model.max_length = 99" in err, err


@pytest.mark.parametrize(
    ("recipe", "train_on", "valid", "saying"),
    [
        ("sentences", "{table='one.tsv'}", "{table='labels.tsv'}", "one.tsv: no row can be read (2 too few columns)"),
        (
            "sentences",
            "{table='lines.jsonl', columns=['text', 'label']}",
            "{table='labels.tsv'}",
            "2 not a JSON object",
        ),
        ("sentences", "{table='labels.tsv', columns=['text']}", "{table='labels.tsv'}", "has 2 or 3 columns"),
        ("sentences", "{table='empty.txt'}", "{table='labels.tsv'}", "empty.txt: no rows at all"),
        ("sentences", "{table='missing.tsv'}", "{table='labels.tsv'}", "cannot read missing.tsv"),
        ("sentences", "{table='labels.tsv'}", "{table='other.tsv'}", "label 'z', which the training set has not"),
        (
            "sentences",
            "{files=['good.txt']}",
            "{table='labels.tsv'}",
            "classification cannot read good.txt: give one table",
        ),
        ("sentences", "{dataset='nothing'}", "{table='labels.tsv'}", "no data set 'nothing'"),
        (
            "sentences",
            "{dataset='ud/en_ewt'}",
            "{table='labels.tsv'}",
            "classification needs text and label",
        ),
        ("sentences", "{shapes=9}", "{table='labels.tsv'}", "this corpus has images, and classification reads texts"),
        ("tags", "{files=['cut.conll']}", "{files=['tags.conll']}", "cut.conll, line 2: 1 of 2 columns ('man')"),
        ("tags", "{files=['empty.txt']}", "{files=['tags.conll']}", "empty.txt: no sentence at all"),
        ("tags", "{files=['latin.txt']}", "{files=['tags.conll']}", "latin.txt, line 1: no UTF-8 text"),
        ("grammar-lm", "{files=['empty.txt']}", "{files=['good.txt']}", "empty.txt: no text at all"),
        ("grammar-lm", "{files=['binary.dat']}", "{files=['good.txt']}", "binary.dat"),
        ("grammar-lm", "{files=['latin.txt']}", "{files=['good.txt']}", "latin.txt is not UTF-8 text"),
        ("grammar-lm", "{files=['good.txt']}", "{files=['blank.txt']}", "blank.txt: no text at all"),
        ("masked", "{files=['folder']}", "{files=['good.txt']}", "cannot read folder"),
        ("summaries", "{files=['good.txt']}", "{files=['good.txt', 'good.txt']}", "two files"),
        ("answers", "{table='labels.tsv'}", "{grammar=5}", "no row can be read (3 too few columns)"),
        ("digits", "{images='folder'}", "{dataset='digits'}", "has no folders with images"),
        ("digits", "{files=['binary.dat', 'binary.dat']}", "{dataset='digits'}", "is not an idx file"),
        ("shapes", "{grammar=5}", "{shapes=5}", "images come from"),
    ],
)
def test_corpora_that_cannot_be_right(recipe: str, train_on: str, valid: str, saying: str, run: Run) -> None:
    code, _, err = train(run, recipe, f"data.train=[{train_on}]", f"data.valid={valid}")
    problems = [line for line in err.splitlines() if line.startswith("error: ")]
    assert code == 2 and len(problems) == 1 and "Traceback" not in err and saying in problems[0], err


def test_documents_of_one_sentence_have_no_next_one(run: Run) -> None:
    lines = "{files=['good.txt'], documents='lines'}"
    settings = (f"data.train=[{lines}]", f"data.valid={lines}", "model.head=masked-next", "model.n_segments=2")
    code, _, err = train(run, "masked", *settings)
    assert code == 2 and "error: the valid set has no usable example (2 a document of one sentence" in err, err


def test_recipes_that_are_none(run: Run, files: Path) -> None:
    (files / "model.toml").write_text(
        '[model]\nfamily = "encoder"\nhead = "none"\nvocab_size = 9\nd_model = 8\nn_layers = 1\nd_ff = 8\nn_heads = 1\n'
    )
    refused(run, "train", "model.toml", saying="has no [data] table")
    refused(run, "train", "tgas", saying="did you mean 'tags'?")
    refused(run, "train", "tags", "--set", "tune.start=nowhere", saying="nowhere")
    refused(run, "train", "tags", "--set", "data.vocabulary=nowhere", "--out", "run", saying="nowhere")


def test_a_label_that_only_the_test_set_has_is_said_before_training(run: Run) -> None:
    same = ("data.train=[{table='labels.tsv'}]", "data.valid={table='labels.tsv'}")
    code, _, err = train(run, "sentences", *same, "data.test={table='other.tsv'}")
    assert code == 2 and "the test set has the label 'z'" in err and "update" not in err


def test_a_tag_that_only_a_held_out_set_has_is_wrong_and_said(run: Run, files: Path) -> None:
    same = ("data.train=[{files=['tags.conll']}]", "data.valid={files=['tags.conll']}")
    code, out, err = train(run, "tags", *same, "data.test={files=['new.conll']}")
    assert code == 0 and "accuracy = 0.0000" in out
    assert "1 words of the test set have tags that the training text never has ('FOO'): counted as wrong" in err
    (files / "run").rename(files / "first")
    code, out, err = train(run, "tags", same[0], "data.valid={files=['new.conll']}", "data.test={files=['tags.conll']}")
    assert code == 0 and "1 words of the valid set have tags" in err and "nan" not in err  # no tag to take a loss of


def test_empty_documents_are_skipped_and_counted(run: Run, files: Path) -> None:
    (files / "gaps.txt").write_text("The man sleeps in the garden.\n\n \nThe dog sees the old cat.\n")
    corpus_of = "{files=['gaps.txt'], documents='lines'}"
    settings = (f"data.train=[{corpus_of}]", f"data.valid={corpus_of}", "data.test={files=['good.txt']}")
    code, _, err = train(run, "grammar-lm", *settings)
    assert code == 0 and "left out of the valid set: 2 an empty document" in err
    assert "dropped 2 examples: an empty document" in err


# --- corpora


def test_one_file_is_not_three_splits(files: Path) -> None:
    """A file as data.root would be training, valid and test set."""
    one = CorpusConfig(dataset="ud/en_ewt")
    data = DataConfig(train=(one,), valid=one, root=str(files / "tags.conll"))
    with pytest.raises(ConfigError, match="is one file, and would be training, valid and test set alike"):
        corpus(one, data, "test", schema_of("tagging"))
    named = CorpusConfig(dataset="ud/en_ewt", path="tags.conll")  # said of one corpus, it is meant
    assert len(list(corpus(named, data.changed(root=str(files)), "test", schema_of("tagging")).read())) == 1


def test_a_share_of_the_unpacked_reviews_has_both_kinds(files: Path) -> None:
    for label in ("neg", "pos"):
        (files / "train" / label).mkdir(parents=True)
        for number in range(10):
            (files / "train" / label / f"{number}_5.txt").write_text(f"Film {number}, {label}.")
    half = CorpusConfig(dataset="imdb", split="train+valid", path=str(files), share=(0.0, 0.5))
    data = DataConfig(train=(half,), valid=half)
    found = [label for _, (_, label) in corpus(half, data, "train", schema_of("classification")).read()]
    assert found.count("negative") == found.count("positive") == 5


def test_a_place_that_no_text_reaches(files: Path) -> None:
    """The answer is looked for where the number of its place is absurd."""
    (files / "answers.tsv").write_text(f"Who?\tThe man sleeps.\tThe man\t{'9' * 5000}\n")
    one = CorpusConfig(table="answers.tsv", columns=(0, 1, 2, 3))
    data = DataConfig(train=(one,), valid=one)
    assert [r for _, r in corpus(one, data, "train", schema_of("answering")).read()] == [
        ("Who?", "The man sleeps.", "The man", "0")
    ]
