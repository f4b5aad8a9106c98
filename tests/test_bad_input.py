"""Bad input through the real commands: one clear line and exit code 2, or a counted skip; never a traceback, nothing lost."""

from __future__ import annotations

import errno
import gzip
import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest
import torch
from conftest import Run

import qkv
from qkv.api import Model
from qkv.convert import files
from qkv.convert.files import read_tensors
from qkv.data.grammar import pairs
from qkv.presets import tiny
from qkv.text.train import train_tokenizer

PAIRS = [(pair.source, pair.target) for pair in islice(pairs("train", 0), 60)]
ENGLISH, GERMAN = ("\n".join(side) + "\n" for side in zip(*PAIRS, strict=True))
RECIPE = """
[model]
family = "encoder-decoder"
d_model = 16
n_layers = 1
n_heads = 2
d_ff = 32
max_length = 64
dropout = 0.1

[data]
train = [{ files = ["train.en", "train.de"] }]
valid = { files = ["valid.en", "valid.de"] }
vocab_size = 120
max_length = 60
batch_tokens = 500

[train]
steps = 4
evaluate_every = 2
save_every = 2
warmup = 2
"""


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a good corpus and a good recipe, which is the current one."""
    for name, text in {"train.en": ENGLISH, "train.de": GERMAN, "recipe.toml": RECIPE}.items():
        (tmp_path / name).write_text(text)
    for name in ("en", "de"):
        lines = (tmp_path / f"train.{name}").read_text().splitlines(keepends=True)
        (tmp_path / f"valid.{name}").write_text("".join(lines[:2]))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(run: Run, *arguments: str, saying: str) -> str:
    """The command ends with code 2 and one line that says so."""
    code, _, err = run(*arguments)
    problems = [line for line in err.splitlines() if line.startswith("error: ")]
    assert code == 2 and len(problems) == 1 and "Traceback" not in err, err
    assert saying in problems[0], problems[0]
    return problems[0]


def trains(run: Run, *settings: str) -> str:
    """Training goes through; what it said."""
    code, out, err = run("train", "recipe.toml", "--out", "run", *(part for s in settings for part in ("--set", s)))
    assert code == 0 and "Traceback" not in err, err
    assert qkv.load("run").translate(["The man sleeps."])
    return out + err


def refuses(run: Run, *settings: str, saying: str) -> str:
    return refused(
        run, "train", "recipe.toml", "--out", "run", *(p for s in settings for p in ("--set", s)), saying=saying
    )


# --- files that cannot be right


def test_unequal_line_counts(corpus: Path, run: Run) -> None:
    (corpus / "train.de").write_text(GERMAN + "Noch eine Zeile.\n")
    refuses(run, saying="train.en ends after line 60, but train.de goes on")
    (corpus / "train.de").write_text(GERMAN)
    trains(run)  # what failed is in nobody's way


@pytest.mark.parametrize("name", ["train.en", "valid.en"])
def test_empty_files(name: str, corpus: Path, run: Run) -> None:
    (corpus / name).write_text("")
    refuses(run, saying=f"{name} ends after line 0")
    (corpus / name.replace("en", "de")).write_text("")
    refuses(run, saying="no lines at all")


@pytest.mark.parametrize("name", ["train.en", "valid.de"])
def test_missing_files(name: str, corpus: Path, run: Run) -> None:
    (corpus / name).unlink()
    refuses(run, saying=f"cannot read {name}: No such file or directory")
    (corpus / name).mkdir()
    refuses(run, saying=name)


def test_blank_and_hopeless_corpora(corpus: Path, run: Run) -> None:
    valid = (corpus / "valid.en").read_text()
    (corpus / "valid.en").write_text("\n \n")
    refuses(run, saying="the valid set has no example")
    (corpus / "valid.en").write_text("word " * 2000 + "\n\n")
    refuses(run, saying="every sentence of the valid set has more than 63 tokens")
    (corpus / "valid.en").write_text(valid)
    (corpus / "train.en").write_text("\n" * 60)
    refuses(run, saying="no example is left after cleaning")
    (corpus / "train.de").write_text("\n" * 60)
    refuses(run, saying="nothing to learn from: only blank lines")
    (corpus / "train.en").write_bytes(b"\xff\n" * 60)
    refuses(run, saying="nothing to learn from: 60 not UTF-8")


def test_bad_lines_are_counted_and_cost_only_themselves(corpus: Path, run: Run) -> None:
    bad = [b"\xff\xfe", b"nul \0 byte", b"x" * 1_000_000, b"", b"word " * 2000]
    (corpus / "train.en").write_bytes(ENGLISH.encode() + b"\n".join(bad) + b"\n")
    (corpus / "train.de").write_text(GERMAN + "gut\n" * 5)
    (corpus / "valid.en").write_bytes(b"\xff\n" + PAIRS[0][0].encode() + b"\n" + b"word " * 2000 + b"\n")
    (corpus / "valid.de").write_text(f"x\n{PAIRS[0][1]}\nlang\n")
    said = " ".join(trains(run).split())
    for reason in ("not UTF-8", "NUL bytes", "longer than 100,000 bytes", "an empty side"):
        assert f"dropped 1 example: {reason}" in said, reason
    assert re.search(r"dropped \d+ examples: more than 60 tokens", said)
    for reason in ("not UTF-8", "more than 63 tokens"):
        assert f"left out of the valid set: 1 {reason}" in said, reason


def test_byte_order_marks_and_line_ends_of_other_systems_change_nothing(corpus: Path, run: Run) -> None:
    trains(run)
    before = (corpus / "run/log.jsonl").read_text()
    for name in ("train.en", "train.de"):
        text = (corpus / name).read_text().replace("\n", "\r\n")
        (corpus / name).write_bytes(b"\xef\xbb\xbf" + text.encode())
    run("train", "recipe.toml", "--out", "again")
    assert (corpus / "again/log.jsonl").read_text() == before


def test_a_cut_off_archive(corpus: Path, run: Run) -> None:
    whole = gzip.compress(os.urandom(3000).hex().encode() + b"\n" + ENGLISH.encode())
    (corpus / "train.en.gz").write_bytes(whole[: len(whole) // 2])
    refuses(run, 'data.train=[{files=["train.en.gz", "train.de"]}]', saying="train.en.gz is damaged or cut short")
    (corpus / "train.en.gz").write_text("no archive at all")
    refuses(run, 'data.train=[{files=["train.en.gz", "train.de"]}]', saying="train.en.gz is damaged or cut short")


# --- tables


def test_tables_with_broken_rows(corpus: Path, run: Run) -> None:
    rows = ["\t".join(pair) for pair in PAIRS]
    (corpus / "t.tsv").write_text("\n".join([*rows, "only one column"]) + "\n")
    assert "1 example: too few columns" in trains(run, 'data.train=[{table="t.tsv"}]')
    refuses(run, 'data.train=[{table="t.tsv", columns=["en", "de"]}]', saying="another recipe")
    refused(run, "train", "recipe.toml", "--set", 'data.train=[{table="t.tsv", columns=["en", "de"]}]',
            saying="t.tsv has no column 'en'")  # fmt: skip


def test_csv_with_quotes_and_line_ends(corpus: Path, run: Run) -> None:
    def quoted(text: str) -> str:
        return '"' + text.replace(" ", "\n", 1).replace("a", '""', 1) + '"'

    rows = [",".join(map(quoted, pair)) for pair in PAIRS]
    (corpus / "t.csv").write_text("\n".join(["en,de", *rows, "lonely"]) + "\n")
    setting = 'data.train=[{table="t.csv", columns=["en", "de"]}]'
    assert "1 example: too few columns" in trains(run, setting)
    (corpus / "t.csv").write_text('en,de\n"open quotation mark,x\n' + "x,y\n" * 40_000)
    refused(run, "train", "recipe.toml", "--out", "b", "--set", setting, saying="is a quotation mark left open")


def test_json_lines_with_broken_ones(corpus: Path, run: Run) -> None:
    rows = [json.dumps({"en": en, "de": de}) for en, de in PAIRS]
    bad = [
        '{"en": "no end',
        "[1, 2]",
        '{"en": "a"}',
        '{"en": null, "de": "b"}',
        '{"en": "\\ud800", "de": "b"}',
        "[" * 99_000,
    ]
    (corpus / "t.jsonl").write_text("\n".join([*rows, *bad]) + "\n")
    said = trains(run, 'data.train=[{table="t.jsonl", columns=["en", "de"]}]')
    assert "6 examples: not a JSON object with these fields" in " ".join(said.split())
    setting = 'data.train=[{table="t.jsonl"}]'
    (corpus / "t.jsonl").write_text('{"now": "a", "then": "b"}\n')
    refused(
        run, "train", "recipe.toml", "--out", "b", "--set", setting, saying="has the columns now, then, and it is not"
    )


# --- recipes


@pytest.mark.parametrize(("setting", "saying"), [
    ("train.stesp=3", "did you mean 'steps'"),
    ("train.steps=-3", "'train.steps': input should be greater than 0"),
    ("train.steps=three", "'train.steps': input should be a valid integer"),
    ("data.tokenizer=bep", "'data.tokenizer'"),
    ("trian.steps=3", "did you mean 'train'"),
    ("model.family=decoder", "source and target of up to data.max_length = 60 tokens each do not fit"),
    ("model.n_heads=3", "n_heads"),
    ("data.max_length=64", "do not fit model.max_length = 64"),
    ('data.train=[{files=["train.en"]}]', "two files"),
    ("data.train=[]", "data.train"),
    ('data.train=[{files=["train.en", "train.de"], grammar=3}]', "exactly one of files, table, dataset, grammar"),
])  # fmt: skip
def test_recipes_with_mistakes(setting: str, saying: str, corpus: Path, run: Run) -> None:
    refuses(run, setting, saying=saying)
    assert not (corpus / "run").exists()


def test_recipes_that_are_none(corpus: Path, run: Run) -> None:
    refused(run, "train", "absent.toml", saying="absent.toml")
    (corpus / "recipe.toml").write_text("[model\n")
    refuses(run, saying="recipe.toml is not TOML")
    (corpus / "recipe.toml").write_bytes(b"\xff\xfe[\0m\0")
    refuses(run, saying="recipe.toml is not TOML")
    (corpus / "recipe.toml").write_text(RECIPE[: RECIPE.index("[data]")])
    refuses(run, saying="vocab_size")
    (corpus / "recipe.toml").write_text(RECIPE[: RECIPE.index("[data]")] + "vocab_size = 100\n")
    refuses(run, saying="[data]")


# --- the run's folder


def lasting(folder: Path) -> dict[str, dict[str, torch.Tensor] | str]:
    """What decides how a run goes on, and what it gave."""
    (last,) = folder.glob("checkpoint-*")
    found = {"log": (folder / "log.jsonl").read_text(), "last": read_tensors(last / "training.safetensors")}
    return {**found, "best": read_tensors(folder / "best"), "step": last.name}


def same(a: dict, b: dict) -> None:
    assert a["log"] == b["log"] and a["step"] == b["step"]
    for name in ("last", "best"):
        assert a[name].keys() == b[name].keys()
        assert all(torch.equal(a[name][key], b[name][key]) for key in a[name])


def test_a_full_disk_loses_nothing_and_the_run_goes_on(corpus: Path, run: Run) -> None:
    """The disk is full at the n-th file that is written, whichever that is; with room again the run ends as it would."""
    trains(run)
    whole, again = lasting(corpus / "run"), ("train", "recipe.toml", "--out", "full")
    for room in (0, 1, 4, 2, 1, 3):
        with pytest.MonkeyPatch.context() as patch:
            left = [room]
            put = files.to_disk

            def to_disk(path: str | Path, left: list[int] = left, put: Callable = put) -> None:
                left[0] -= 1
                if left[0] < 0:
                    raise OSError(errno.ENOSPC, "No space left on device")
                put(path)

            patch.setattr(files, "to_disk", to_disk)
            refused(run, *again, saying="No space left on device")
        if (corpus / "full/best").exists():
            assert qkv.load("full").translate(["The man sleeps."])
    assert run(*again)[0] == 0
    same(lasting(corpus / "full"), whole)
    assert not [p for p in (corpus / "full").rglob(".*") if p.name != ".lock"]  # nothing half written is left


@pytest.mark.parametrize("most", [100, 2_000, 10_000, 30_000])
def test_a_file_that_may_not_grow(most: int, corpus: Path, run: Run) -> None:
    """The system itself refuses to write on, in the middle of a file."""
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        code, _, err = run("train", "recipe.toml", "--out", "run")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert code == 2 and err.count("\nerror: ") <= 1 and "large" in err and "Traceback" not in err, err
    trains(run)


def test_an_output_folder_that_cannot_be_written(corpus: Path, run: Run) -> None:
    (corpus / "file").write_text("")
    refused(
        run, "train", "recipe.toml", "--out", "file", saying="cannot write to file (File exists): choose another folder"
    )
    refused(run, "train", "recipe.toml", "--out", "file/run", saying="file/run")
    if os.geteuid() != 0:  # root may write anywhere
        (corpus / "locked").mkdir(mode=0o555)
        refused(run, "train", "recipe.toml", "--out", "locked/run", saying="Permission denied")
    refused(run, "train", "recipe.toml", "--out", "/proc/run", saying="/proc/run")


def damaged(path: Path, how: str) -> None:
    whole = path.read_bytes()
    path.write_bytes(
        {
            "cut": whole[: len(whole) // 2],
            "empty": b"",
            "garbage": b"{]" + whole[2:],
            "other": b"{}",
            "bytes": b"\xff\n" + whole,
        }[how]
    )


@pytest.mark.parametrize("how", ["cut", "empty", "garbage", "other"])
@pytest.mark.parametrize("name", ["training.safetensors", "training.json", "tokenizer.json"])
def test_damaged_files_of_a_run(name: str, how: str, corpus: Path, run: Run, ended: Path) -> None:
    (path,) = [p for p in ended.rglob(name) if "best" not in p.parts]
    damaged(path, how)
    problem = refused(run, "train", "recipe.toml", "--out", str(ended), saying="")
    assert str(path) in problem or str(path.parent) in problem


@pytest.mark.parametrize("name", ["log.jsonl", "results.json", "curves.svg", "README.md", "recipe.toml"])
@pytest.mark.parametrize("how", ["cut", "empty", "garbage", "bytes"])
def test_damaged_reports_of_a_run_are_one_line_at_the_most(name: str, how: str, run: Run, ended: Path) -> None:
    """What nothing depends on is written again, or named."""
    damaged(ended / name, how)
    code, _, err = run("train", "recipe.toml", "--out", str(ended))
    assert code in (0, 2) and "Traceback" not in err
    assert code == 0 or (err.count("error: ") == 1 and name in err) or name == "recipe.toml", err


@pytest.mark.parametrize("how", ["cut", "empty", "garbage", "other"])
@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_damaged_files_of_a_model(name: str, how: str, corpus: Path, run: Run, ended: Path) -> None:
    damaged(ended / "best" / name, how)
    (corpus / "in").write_text("The man sleeps.\n")
    refused(run, "translate", str(ended), "in", saying="config.json" if name == "config.json" else str(ended / "best"))


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the run below is kept."""
    return tmp_path_factory.mktemp("once") / "run"


@pytest.fixture
def ended(corpus: Path, run: Run, once: Path) -> Path:
    """The folder of a run that has ended."""
    (corpus / "recipe.toml").write_text(RECIPE.replace("steps = 4", "steps = 1"))
    if not once.exists():
        assert run("train", "recipe.toml", "--out", "run")[0] == 0
        shutil.move("run", once)
    shutil.copytree(once, "run")
    return Path("run")


# --- translating


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    tokenizer = train_tokenizer([english for english, _ in PAIRS], "bpe", 90)
    c = tiny("transformer-base").changed(
        vocab_size=tokenizer.size, target_vocab_size=None, pad_id=0, bos_id=1, eos_id=2
    )
    from qkv.models.build import build

    folder = tmp_path_factory.mktemp("model") / "m"
    Model(c, build(c), tokenizer, "cpu").save(folder)
    return folder


GOOD = [PAIRS[0][0].encode(), PAIRS[1][0].encode()]
BAD = [b"\xff\xfe", b"nul \0 byte", b"x" * 1_000_000, b"word " * 1000]


@pytest.mark.parametrize("way", ["file", "stdin"])
def test_a_bad_line_costs_only_itself(
    way: str, model: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = b"\xef\xbb\xbf" + b"\n".join([GOOD[0], *BAD, b"", b"  ", GOOD[1] + b"\r"])  # no line end at the end
    (tmp_path / "in").write_bytes(text)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    code, out, err = run("translate", model, *([tmp_path / "in"] if way == "file" else []), "--beam", "1")
    expected = qkv.load(model).translate([line.decode() for line in GOOD], beam=1)
    assert out.split("\n") == [expected[0], "", "", "", "", "", "", expected[1], ""]
    problems = err.splitlines()
    assert [line.split(":")[0] for line in problems[:4]] == [f"line {n} is not translated" for n in (2, 3, 4, 5)]
    assert problems[4] == "4 of 8 lines are not translated" and code == 1 and len(problems) == 5


def test_nothing_in_nothing_out(model: Path, tmp_path: Path, run: Run) -> None:
    (tmp_path / "in").write_bytes(b"")
    assert run("translate", model, tmp_path / "in") == (0, "", "")
    refused(run, "translate", str(model), str(tmp_path / "absent"), saying="No such file")
    refused(run, "translate", str(tmp_path / "absent"), str(tmp_path / "in"), saying="does not exist")
    refused(run, "translate", str(model), str(tmp_path), saying="Is a directory")


def test_a_reader_who_has_enough(model: Path, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"\n".join(GOOD * 600) + b"\n")
    command = [
        sys.executable,
        "-m",
        "qkv",
        "translate",
        str(model),
        str(tmp_path / "in"),
        "--beam",
        "1",
        "--max-length",
        "3",
    ]
    writer = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert writer.stdout is not None and writer.stderr is not None
    assert writer.stdout.readline().endswith(b"\n")
    writer.stdout.close()
    err = writer.stderr.read().decode()
    assert writer.wait(60) == 0 and "Traceback" not in err and "Broken" not in err, err
