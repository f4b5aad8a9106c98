"""Any model on any file: what `qkv evaluate RUN --data FILE` gives on a copy of the run's own test set are the run's own scores."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from conftest import Run

import qkv
from qkv.config import CorpusConfig, DataConfig
from qkv.data.corpora import corpus
from qkv.data.corpus_files import corpus_of
from qkv.data.shapes import ShapeSource
from qkv.errors import ConfigError, FileError, QkvError
from qkv.train.rescore import task_name
from tests.schemas import schema_of

ENCODER = {
    "family": "encoder",
    "d_model": 16,
    "n_layers": 1,
    "n_heads": 2,
    "d_ff": 32,
    "max_length": 64,
    "dropout": 0.0,
}
MODELS: dict[str, dict[str, Any]] = {
    "classification": {**ENCODER, "head": "classes", "pooling": "mean"},
    "regression": {**ENCODER, "head": "classes", "pooling": "mean"},
    "tagging": {**ENCODER, "head": "tags"},
    "answering": {**ENCODER, "head": "span", "max_length": 128},
    "masked": {**ENCODER, "head": "masked"},
    "language": {**ENCODER, "family": "decoder", "head": "vocabulary"},
    "translation": {**ENCODER, "family": "encoder-decoder", "head": "vocabulary"},
    "summary": {**ENCODER, "family": "encoder-decoder", "head": "vocabulary", "max_length": 128},
    "images": {**ENCODER, "head": "classes", "image_size": 8, "patch_size": 4, "n_channels": 1},
    "captions": {**ENCODER, "family": "encoder-decoder", "head": "vocabulary", "image_size": 16, "patch_size": 8, "n_channels": 3},
}  # fmt: skip
TEXT_TASKS = [task for task in MODELS if task not in ("images", "captions")]


def data_of(task: str) -> dict[str, Any]:
    small = {
        "tokenizer": "bpe" if task != "tagging" else "wordpiece",
        "vocab_size": 200,
        "max_length": 48,
        "batch_tokens": 800,
    }
    if task == "images":
        return {
            **{key: {"dataset": "digits"} for key in ("valid", "test")},
            "train": [{"dataset": "digits"}],
            "batch_tokens": 200,
        }
    kind = "shapes" if task == "captions" else "grammar"
    return {"train": [{kind: 60}], "valid": {kind: 8}, "test": {kind: 30}, **small}


def recipe(task: str, **train: Any) -> dict[str, Any]:
    steps = {"steps": 4, "evaluate_every": 2, "save_every": 4, "warmup": 1, "learning_rate": 0.01, **train}
    return {"task": task, "model": MODELS[task], "data": data_of(task), "train": steps}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A function that gives the folder of a tiny run of a task, trained once."""
    place, made = tmp_path_factory.mktemp("runs"), dict[str, Path]()

    def get(task: str, seed: int = 1) -> Path:
        name = f"{task}-{seed}"
        if name not in made:
            made[name] = qkv.train(recipe(task, seed=seed), place / name, quiet=True).folder
        return made[name]

    return get


def records(task: str) -> list[tuple[str, ...]]:
    """The test set of the runs."""
    data = DataConfig(train=(CorpusConfig(grammar=1),), valid=CorpusConfig(grammar=1))
    return [record for _, record in corpus(CorpusConfig(grammar=30), data, "test", schema_of(task)).read()]


def write(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(line + "\n" for line in lines))
    return path


def files(task: str, place: Path) -> dict[str, list[str]]:
    """Kind of file -> arguments of `qkv evaluate` that stand for the test set of the task."""
    rows = records(task)
    if task in ("language", "masked"):
        text = write(place / "test.txt", ["\n\n".join(row[0] for row in rows)])
        return {
            "jsonl": [jsonl(place, rows, ["text"]), "--columns", "text"],
            **({"text": [str(text)]} if task == "masked" else {}),
        }
    if task == "tagging":
        words = [[*zip(*(part.split("\t") for part in row), strict=True)] for row in rows]
        blocks = ["\n".join(f"{word}\t{tag}" for word, tag in some) + "\n" for some in words]
        spaced = [[part.replace("\t", " ") for part in row] for row in rows]
        return {"conll": [str(write(place / "test.conll", blocks))], "blank lines": [str(write(place / "t.tsv", blocks))],
                "csv": [table(place / "test.csv", spaced)]}  # fmt: skip
    if task == "answering":
        return {
            "squad": [squad(place / "test.json", rows)],
            "jsonl": [jsonl(place, rows, ["q", "c", "a", "s"]), "--columns", "q,c,a,s"],
        }
    if task in ("translation", "summary"):
        sides = [str(write(place / f"test.{side}", [row[i] for row in rows])) for i, side in enumerate(("en", "de"))]
        swapped = write(place / "swapped.tsv", ["to\tfrom", *("\t".join(reversed(row)) for row in rows)])
        return {"parallel": [sides[0], "--data", sides[1]], "tsv": [str(write(place / "p.tsv", ["\t".join(row) for row in rows]))],
                "names": [str(swapped), "--columns", "from,to"]}  # fmt: skip
    names = ["text", "second", "label"][3 - len(rows[0]) :] if len(rows[0]) == 3 else ["text", "label"]
    return {"csv": [table(place / "test.csv", [names, *map(list, rows)]), "--columns", ",".join(names)],
            "jsonl": [jsonl(place, rows, names), "--columns", ",".join(names)]}  # fmt: skip


def table(path: Path, rows: list[list[str]]) -> str:
    import csv

    with open(path, "w", newline="") as file:
        csv.writer(file).writerows(rows)
    return str(path)


def jsonl(place: Path, rows: list[tuple[str, ...]], names: list[str]) -> str:
    lines = [json.dumps(dict(zip(names, row[: len(names)], strict=True))) for row in rows]
    return str(write(place / "test.jsonl", lines))


def squad(path: Path, rows: list[tuple[str, ...]]) -> str:
    asked = [
        {"context": c, "qas": [{"question": q, "answers": [{"text": a, "answer_start": int(s)}]}]}
        for q, c, a, s, *_ in rows
    ]
    path.write_text(json.dumps({"data": [{"paragraphs": asked}]}))
    return str(path)


@pytest.mark.parametrize("task", TEXT_TASKS)
def test_a_copy_of_the_test_set_has_the_scores_of_the_run(task: str, runs: Any, run: Run, tmp_path: Path) -> None:
    own = json.loads((runs(task) / "results.json").read_text())["test"]
    kinds = files(task, tmp_path)
    for kind, arguments in kinds.items():
        code, out, err = run("evaluate", runs(task), "--data", *arguments, "--json", *bootstrap(task))
        assert code == 0, (kind, err)
        found = json.loads(out)
        for score, wanted in zip(found["scores"], own["scores"], strict=True):
            assert score["name"] == wanted["name"]
            assert score["value"] == pytest.approx(wanted["value"], rel=1e-4), (kind, score["name"])
        assert found.get("report") == own.get("report")


def bootstrap(task: str) -> list[str]:
    return ["--bootstrap", "0"] if task == "translation" else []


def pictures(place: Path, idx: bool) -> list[str]:
    """The digits of the test set, in folders or as idx files."""
    import struct

    from PIL import Image

    from qkv.data.images import digits

    rows = digits("test")
    if idx:
        images, labels = place / "images.idx", place / "labels.idx"
        images.write_bytes(
            bytes([0, 0, 8, 3]) + struct.pack(">3I", len(rows), 8, 8) + b"".join(t.tobytes() for t, _ in rows)
        )
        labels.write_bytes(bytes([0, 0, 8, 1]) + struct.pack(">I", len(rows)) + bytes(int(label) for _, label in rows))
        return [str(images), "--data", str(labels)]
    for number, (pixels, label) in enumerate(rows):
        (place / "digits" / label).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[0]).save(place / "digits" / label / f"{number}.png")
    return [str(place / "digits")]


@pytest.mark.parametrize("idx", [True, False])
def test_pictures_in_folders_and_idx_files(idx: bool, runs: Any, run: Run, tmp_path: Path) -> None:
    own = json.loads((runs("images") / "results.json").read_text())["test"]
    code, out, err = run(
        "evaluate", runs("images"), "--data", *pictures(tmp_path, idx), "--json", "--confusion", tmp_path / "c.svg"
    )
    assert code == 0, err
    found = json.loads(out)
    assert found["scores"] == own["scores"] and found["report"] == own["report"]
    assert sum(map(sum, found["report"]["confusion"]["counts"])) == 250
    assert (tmp_path / "c.svg").read_text().startswith("<svg")


def test_captions_in_a_table(runs: Any, run: Run, tmp_path: Path) -> None:
    from PIL import Image

    own = json.loads((runs("captions") / "results.json").read_text())["test"]
    rows = []
    for number, (scene, caption) in ShapeSource("test", 30).read():
        Image.fromarray(scene.draw().transpose(1, 2, 0)).save(tmp_path / f"{number}.png")
        rows.append(f"{number}.png\t{caption}")
    code, out, err = run("evaluate", runs("captions"), "--data", write(tmp_path / "captions.tsv", rows), "--json")
    assert code == 0, err
    assert json.loads(out)["scores"] == own["scores"] and [s["name"] for s in own["scores"]] == ["exact", "BLEU"]
    code, out, err = run(
        "evaluate", runs("captions"), "--data", tmp_path / "captions.tsv", "--confusion", tmp_path / "x.svg"
    )
    assert code == 2 and "--confusion draws" in err and not (tmp_path / "x.svg").exists()


def test_a_text_for_a_language_model(run: Run, tmp_path: Path) -> None:
    """Bits per byte by hand: the sum of the losses of all tokens, the end token too, over the bytes of the file."""
    text = write(tmp_path / "new.txt", ["A man eats an apple.", "Ein Mann isst ein Äpfelchen."] * 9)
    values = recipe("language")
    values["data"] |= {
        "train": [{"text": "The old man sleeps. " * 200}],
        "valid": {"text": "The man sleeps. " * 20},
        "tokenizer": "bytes",
    }
    del values["data"]["test"], values["data"]["vocab_size"]
    folder = qkv.train(values, tmp_path / "lm", quiet=True).folder
    code, out, err = run("evaluate", folder, "--data", text, "--json")
    found = json.loads(out)
    assert code == 0, err
    scores = {s["name"]: s["value"] for s in found["scores"]}
    model, data = qkv.load(folder), text.read_bytes()
    ids = [model.config.bos_id, *model.tokenizer.plain([data.decode()])[0], model.config.eos_ids[0]]
    nats = 0.0
    for at in range(0, len(ids) - 1, 48):
        window = ids[at : at + 49]
        table = model.logits([window[:-1]])[0].double().log_softmax(-1)
        nats -= sum(float(table[i, token]) for i, token in enumerate(window[1:]))
    assert scores["loss"] == pytest.approx(nats / (len(ids) - 1), rel=1e-5)
    assert scores["bits_per_byte"] == pytest.approx(nats / 0.6931471805599453 / len(data), rel=1e-5)
    assert found["set"] == "new.txt" and "new.txt, 1 example, " in run("evaluate", folder, "--data", text)[1]


def test_entities_have_a_report_of_their_own(run: Run, tmp_path: Path) -> None:
    """The report of a run, of the command, and of its file of answers are one; columns are those of the run."""
    rows = ["x EU B-ORG", "x rejects O", "x Peter B-PER", "x Blackburn I-PER", ""] * 12
    path = write(tmp_path / "a.conll", [f"{row} y" if row else "" for row in rows])
    values = recipe("tagging", steps=8)
    which = {"files": [str(path)], "columns": [1, 2]}
    values["data"] |= {"train": [which], "valid": which, "test": which, "vocab_size": 60}
    folder = qkv.train(values, tmp_path / "run", quiet=True).folder
    own = json.loads((folder / "results.json").read_text())["test"]
    code, out, err = run("evaluate", folder, "--data", path, "--json")
    assert code == 0 and json.loads(out)["report"] == own["report"], err
    assert list(own["report"]["averages"]) == ["micro avg", "macro avg", "weighted avg"]
    assert {name: row["support"] for name, row in own["report"]["classes"].items()} == {"ORG": 12, "PER": 12}
    assert own["report"]["averages"]["micro avg"]["f1"] * 100 == pytest.approx(own["scores"][1]["value"], abs=1e-3)
    assert own["report"]["confusion"]["labels"] == ["O", "ORG", "PER"] and "accuracy" not in own["report"]
    code, out, _ = run("evaluate", folder)
    assert "micro avg" in out and "confusion matrix" in out


def test_a_header_chooses_the_columns(runs: Any, run: Run, tmp_path: Path) -> None:
    own = json.loads((runs("classification") / "results.json").read_text())["test"]
    path = table(
        tmp_path / "new.csv",
        [
            ["id", "label", "text"],
            *([str(i), label, text] for i, (text, label) in enumerate(records("classification"))),
        ],
    )
    code, out, err = run("evaluate", runs("classification"), "--data", path, "--json")
    assert code == 0 and json.loads(out)["scores"] == own["scores"], err
    pairs = [["de", "en"], *([german, english] for english, german in records("translation"))]
    own = json.loads((runs("translation") / "results.json").read_text())["test"]
    code, out, err = run(
        "evaluate", runs("translation"), "--data", table(tmp_path / "pairs.csv", pairs), "--json", "--bootstrap", "0"
    )
    assert code == 0 and [s["value"] for s in json.loads(out)["scores"]] == [s["value"] for s in own["scores"]], err


def test_training_data_are_not_needed(runs: Any, run: Run, tmp_path: Path) -> None:
    rows = [[text, label] for text, label in records("classification")]
    for name in ("train", "valid"):
        table(tmp_path / f"{name}.csv", [["a", "b"], *rows])
    values = recipe("classification")
    values["data"] |= {"train": [{"table": "train.csv", "columns": ["a", "b"]}], "valid": {"table": "valid.csv", "columns": ["a", "b"]},
                       "root": str(tmp_path)}  # fmt: skip
    del values["data"]["test"]
    folder = qkv.train(values, tmp_path / "run", quiet=True).folder
    shutil.move(tmp_path / "train.csv", tmp_path / "new.csv")
    (tmp_path / "valid.csv").unlink()
    code, out, err = run("evaluate", folder, "--data", tmp_path / "new.csv")  # with the columns of the run
    assert code == 0 and "accuracy" in out and "macro avg" in out, err


def test_the_best_model_alone_has_the_task_of_its_run(runs: Any, run: Run, tmp_path: Path) -> None:
    for task in TEXT_TASKS:
        assert task_name(runs(task) / "best") == task  # within its run
        shutil.copytree(runs(task) / "best", tmp_path / task)
        assert task_name(tmp_path / task) == task
    arguments = files("classification", tmp_path)["csv"]
    code, out, err = run("evaluate", tmp_path / "classification", "--data", *arguments, "--json")
    assert code == 0, err
    assert (
        json.loads(out)["scores"] == json.loads((runs("classification") / "results.json").read_text())["test"]["scores"]
    )
    code, _, err = run("evaluate", tmp_path / "tagging")
    assert code == 2 and "--data FILE" in err


def test_rows_of_a_table_are_not_translated(runs: Any, run: Run, tmp_path: Path) -> None:
    arguments = files("translation", tmp_path)["tsv"]
    text = str(write(tmp_path / "test.de", ["Ein Hund"]))
    for options in (["--source", arguments[0], "--references", text], ["--source", text, "-r", arguments[0]]):
        code, out, err = run("evaluate", runs("translation"), *options)
        assert code == 2 and not out and err.count("\n") == 1 and f"--data {arguments[0]}" in err


def test_what_cannot_be_evaluated_is_one_line(runs: Any, run: Run, tmp_path: Path) -> None:
    labelled = table(tmp_path / "unknown.csv", [["A man sleeps.", "nonsense"]])
    unlabelled = table(tmp_path / "empty.csv", [["A man sleeps.", ""]])
    text = write(tmp_path / "text.txt", ["one"])
    cases = [
        (
            ("classification", "--data", labelled),
            "the test set has the label 'nonsense', which the training set has not",
        ),
        (("classification", "--data", unlabelled), "empty.csv has no labels"),
        (("classification", "--data", text), "one table with text and label columns"),
        (("classification", "--data", tmp_path / "absent.csv"), "absent.csv does not exist"),
        (("classification", "--data", labelled, "--columns", "a,b"), "has no column 'a'"),
        (("classification", "--data", labelled, "--columns", "0"), "2 or 3 columns"),
        (("classification", "--columns", "0,1"), "--data FILE"),
        (("classification", "--data", labelled, "--references", text), "leave out --source and --references"),
        (("classification", "--data", labelled, "--beam", "2"), "--beam is for translations"),
        (("translation", "--data", text), "two text files"),
        (("translation", "--data", text, "--data", text, "--confusion", tmp_path / "x.svg"), "no confusion matrix"),
        (("tagging", "--data", text, "--data", text), "one .conllu or CoNLL file"),
        (("images", "--data", text), "a folder of images per class"),
        (("language", "--data", text, "--columns", "0"), "columns are those of a table"),
        (("images", "--confusion", tmp_path / "x.png"), "use a name that ends in .svg"),
    ]
    for (task, *options), message in cases:
        code, _out, err = run("evaluate", runs(task), *options)
        assert code == 2 and message in err and err.count("\n") == 1, (task, options, err)


def test_files_become_corpora() -> None:
    with pytest.raises(FileError, match="does not exist"):
        corpus_of(["absent.tsv"], (), schema_of("classification"))
    with pytest.raises(ConfigError, match="at least one"):
        corpus_of([], (), schema_of("classification"))
    here = str(Path(__file__))
    own = [CorpusConfig(files=("a",), documents="lines")]
    assert corpus_of([here], (), schema_of("language"), own) == CorpusConfig(files=(here,), documents="lines")


def test_pairs_of_a_run_are_pairs_of_a_file(tmp_path: Path) -> None:
    path = write(tmp_path / "pairs.tsv", ["a\tb\t1"])
    assert corpus_of([path], (), schema_of("classification"), [CorpusConfig(dataset="glue/mrpc")]).columns == (0, 1, 2)
    assert corpus_of(
        [path], (), schema_of("classification"), [CorpusConfig(table="x.tsv", columns=("p", "q"))]
    ).columns == (
        "p",
        "q",
    )
    assert corpus_of([path], (1, 2), schema_of("classification"), [CorpusConfig(dataset="glue/mrpc")]).columns == (1, 2)


# --- comparing


@pytest.mark.parametrize("task", MODELS)
def test_runs_of_every_task_are_compared_by_what_they_stored(task: str, runs: Any, run: Run) -> None:
    """Scores are those of the runs; a run is not better than a copy of itself."""
    first, second = runs(task), runs(task, seed=2)
    code, out, err = run("compare", first, second, "--samples", "50", "--json")
    assert code == 0, err
    rows = json.loads(out)
    assert rows and len({row["metric"] for row in rows}) * 2 == len(rows)
    stored = [{s["name"]: s["value"] for s in json.loads((folder / "results.json").read_text())["test"]["scores"]}
              for folder in (first, second)]  # fmt: skip
    for row in rows:
        value = stored[row["system"] == str(second)][row["metric"]]
        assert row["value"] == pytest.approx(value, rel=1e-5, abs=1e-3), row
        assert (row["p"] is None) == (row["system"] == str(first)) and (row["p"] is None or 0 < row["p"] <= 1)
    code, out, err = run("compare", first, second, "--samples", "50")
    assert code == 0 and "baseline" in out


def test_a_copy_is_not_better(runs: Any, run: Run, tmp_path: Path) -> None:
    shutil.copytree(runs("tagging"), tmp_path / "copy")
    code, out, _ = run("compare", runs("tagging"), tmp_path / "copy", "--json")
    assert code == 0 and {row["p"] for row in json.loads(out)} == {None, 1.0}


def test_models_are_compared_on_a_file(runs: Any, run: Run, tmp_path: Path) -> None:
    arguments = files("classification", tmp_path)["csv"]
    code, out, err = run(
        "compare", runs("classification"), runs("classification", seed=2), "--data", *arguments, "--json"
    )
    assert code == 0, err
    rows = json.loads(out)
    assert {row["metric"]: row["test"] for row in rows} == {
        "accuracy": "McNemar",
        "macro_f1": "approximate randomisation",
    }


def test_language_models_with_different_tokens_are_compared_by_bytes(runs: Any, run: Run, tmp_path: Path) -> None:
    """Where both tokenizers give the text back; the first model's does not know some characters."""
    values, folders = recipe("language"), []
    for kind in ("byte-bpe", "bytes"):
        values["data"] |= {"tokenizer": kind, "vocab_size": 400}
        folders.append(qkv.train(values, tmp_path / kind, quiet=True).folder)
    code, out, err = run("compare", *folders, "--samples", "20", "--json")
    assert code == 0, err
    assert [row["metric"] for row in json.loads(out)] == ["bits_per_byte"] * 2
    code, _, err = run("compare", runs("language"), folders[1])
    assert code == 2 and "no metric in common" in err
    nats = [json.loads((folder / "test.losses.json").read_text()) for folder in folders]
    assert len(nats[0]["nats"]) == len(nats[1]["nats"]) > 10 and sum(nats[1]["tokens"]) > sum(nats[0]["tokens"])


def test_seeds_have_a_mean_and_a_deviation(runs: Any, run: Run) -> None:
    a, b = ([str(runs("regression", seed=seed)) for seed in some] for some in ((1, 2), (3, 4)))
    code, out, err = run("compare", ",".join(a), ",".join(b), "--json")
    assert code == 0, err
    rows = {(row["system"], row["metric"]): row for row in json.loads(out)}
    values = [json.loads((Path(f) / "results.json").read_text())["test"]["scores"][0]["value"] for f in b]
    found = rows[",".join(b), "spearman"]
    assert (
        found["values"] == values
        and found["mean"] == pytest.approx(sum(values) / 2)
        and found["test"] == "Welch's t-test"
    )
    assert found["deviation"] == pytest.approx(abs(values[0] - values[1]) / 2**0.5)
    code, out, _ = run("compare", ",".join(a), ",".join(b), "--paired")
    assert code == 0 and "paired t-test" in out and "±" in out


def test_what_cannot_be_compared_is_one_line(runs: Any, run: Run, tmp_path: Path) -> None:
    values = recipe("tagging")
    values["data"]["test"] = {"grammar": 20}
    other = qkv.train(values, tmp_path / "other", quiet=True).folder
    wide = qkv.train(values | {"model": {**MODELS["tagging"], "d_model": 32}}, tmp_path / "wide", quiet=True).folder
    del values["data"]["test"]
    untested = qkv.train(values, tmp_path / "untested", quiet=True).folder
    cases = [
        ((runs("tagging"), runs("images")), "is 'tagging', that of"),
        ((runs("tagging"), other), "have different test sets"),
        ((runs("tagging"), untested), "has no scores of a test set"),
        ((runs("tagging"), runs("tagging")), "each given once"),
        ((runs("tagging"),), "at least two"),
        ((runs("tagging"), tmp_path / "absent"), "absent does not exist"),
        ((f"{runs('tagging')},{runs('tagging', 2)}", other), "at least two runs"),
        ((f"{other},{wide}", f"{runs('tagging')},{runs('tagging', 2)}"), "different recipes (model.d_model)"),
        ((runs("tagging"), runs("tagging", 2), "--paired"), "--paired is for several runs"),
        ((runs("tagging"), runs("tagging", 2), "--columns", "0,1"), "--data FILE"),
    ]
    for arguments, message in cases:
        code, out, err = run("compare", *arguments)
        assert code == 2 and message in err and err.count("\n") == 1 and not out, (message, err)


# --- from Python


def test_evaluate_takes_folders_runs_and_models(runs: Any, tmp_path: Path) -> None:
    folder = runs("classification")
    own = json.loads((folder / "results.json").read_text())["test"]
    trained = qkv.train(recipe("classification", seed=1), folder, quiet=True)  # has ended: at once
    path, _, names = files("classification", tmp_path)["csv"]
    for model in (folder, str(folder), trained, qkv.load(folder)):
        found = qkv.evaluate(model, path, columns=names.split(","))
        assert found.scores == {s["name"]: s["value"] for s in own["scores"]} == trained.scores
        assert found["accuracy"] == found.scores["accuracy"] and found.report is not None and "macro avg" in str(found)
    assert qkv.evaluate(folder).details["scores"] == own["scores"]
    with pytest.raises(QkvError, match="not part of a training run"):
        qkv.evaluate(qkv.load(folder))


def test_two_files_are_a_list(runs: Any, tmp_path: Path) -> None:
    first, _, second = files("translation", tmp_path)["parallel"]
    own = json.loads((runs("translation") / "results.json").read_text())["test"]
    assert qkv.evaluate(runs("translation"), [first, second]).scores == {s["name"]: s["value"] for s in own["scores"]}
