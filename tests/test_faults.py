"""Damaged files: one flipped bit or a cut end is noticed; a run falls back to an older checkpoint, a model is refused."""

from __future__ import annotations

import os
import shutil
import zipfile
from pathlib import Path

import pytest
import torch
from conftest import Run
from test_bad_input import ENGLISH, GERMAN, RECIPE, refused

import qkv
from qkv.convert import manifest
from qkv.convert.files import new_folder, read_json, read_tensors, write_json, write_tensors
from qkv.convert.manifest import MARKER, checksums, seal
from qkv.data.dataset_files import Mapped
from qkv.data.fingerprint import checksum, fingerprint
from qkv.data.mixture import Mixture
from qkv.data.sources import InMemorySource, Listing, Parallel
from qkv.data.stdlib import StandardLibrary
from qkv.errors import FileError
from qkv.train import checkpoint
from qkv.train.input_checksums import check_data

TRAIN = ("train", "recipe.toml", "--out", "run", "--set", "train.keep=3")
TEXT = ["The man sleeps."]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a corpus, a recipe, and a run of six updates with checkpoints at 2, 4 and 6."""
    from typer.testing import CliRunner

    from qkv.cli import app

    here = tmp_path_factory.mktemp("faults")
    recipe = RECIPE.replace("steps = 4", "steps = 6")
    for name, text in {"train.en": ENGLISH, "train.de": GERMAN, "recipe.toml": recipe}.items():
        (here / name).write_text(text)
    for name in ("en", "de"):
        (here / f"valid.{name}").write_text("".join((here / f"train.{name}").read_text().splitlines(True)[:2]))
    before = Path.cwd()
    os.chdir(here)
    try:
        assert CliRunner().invoke(app, list(TRAIN)).exit_code == 0
    finally:
        os.chdir(before)
    return here


@pytest.fixture
def here(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it to damage, which is the current folder."""
    shutil.copytree(trained, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    return tmp_path / "copy"


def flip(path: Path, share: float = 0.5) -> None:
    """Change the lowest bit of one byte."""
    data = bytearray(path.read_bytes())
    data[int(share * (len(data) - 1))] ^= 1
    path.write_bytes(data)


# --- models


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])  # in the marker: the comment, a checksum, the last line end
@pytest.mark.parametrize(
    "name", ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", MARKER]
)
def test_a_flipped_bit_in_a_model_is_refused(name: str, share: float, here: Path) -> None:
    flip(here / "run" / "best" / name, share)
    with pytest.raises(FileError) as caught:
        qkv.load("run")
    assert "\n" not in str(caught.value)


def test_every_command_refuses_a_damaged_model(here: Path, run: Run) -> None:
    assert run("translate", "run", *TEXT)[0] == 0
    flip(here / "run" / "best" / "model.safetensors", 0.9)
    for command in (("translate", "run", *TEXT), ("serve", "run", "--port", "0"), ("look", "run", *TEXT)):
        refused(run, *command, saying="model.safetensors is damaged")


def test_all_files_of_a_model_but_its_card_have_a_checksum(here: Path) -> None:
    best = here / "run" / "best"
    assert checksums(best).keys() == {p.name for p in best.iterdir()} - {"README.md", MARKER}


def test_a_card_may_be_edited_and_other_files_too_when_their_line_is_deleted(here: Path) -> None:
    best = here / "run" / "best"
    (best / "README.md").write_text("mine")
    (best / "notes.txt").write_text("mine")
    assert qkv.load("run").translate(TEXT)
    (best / "config.json").write_text((best / "config.json").read_text() + "\n")
    with pytest.raises(FileError, match=r"config.json is damaged.*delete its line in COMPLETE"):
        qkv.load("run")
    lines = (best / MARKER).read_text().splitlines(True)
    (best / MARKER).write_text("".join(line for line in lines if "config.json" not in line or "tokenizer" in line))
    assert qkv.load("run").translate(TEXT)


def test_an_edited_marker_may_lack_its_last_line_end(here: Path) -> None:
    marker = here / "run" / "best" / MARKER
    marker.write_text(marker.read_text().rstrip("\n"))
    assert qkv.load("run").translate(TEXT)


@pytest.mark.parametrize("size", [0, 10, -2, -80])
def test_a_truncated_marker_is_refused(size: int, here: Path) -> None:
    marker = here / "run" / "best" / MARKER
    os.truncate(marker, size if size >= 0 else marker.stat().st_size + size)
    with pytest.raises(FileError, match="COMPLETE"):
        qkv.load("run")


def test_a_folder_that_is_replaced_while_it_is_read_is_not_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run replaces best/ at any time, and others read it."""
    real, folder = manifest.sha256, tmp_path / "best"

    def save(text: str) -> None:
        with new_folder(folder) as new:
            (new / "a").write_text(text)
            seal(new, ("a",))

    def replacing(path: Path) -> str:
        monkeypatch.setattr(manifest, "sha256", real)
        save("two")
        return real(path)

    save("one")
    monkeypatch.setattr(manifest, "sha256", replacing)
    manifest.verify(folder)
    assert (folder / "a").read_text() == "two"


def test_folders_of_older_versions_are_opened(here: Path) -> None:
    (here / "run" / "best" / MARKER).write_text("saved whole by qkv 0.1.0\n")
    for place in (here / "run").glob("checkpoint-*"):
        (place / MARKER).unlink()
    assert qkv.load("run").translate(TEXT)
    assert not checkpoint.damage(here / "run" / "checkpoint-0000006")


@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf])
def test_weights_that_are_no_numbers_are_refused(number: float, here: Path) -> None:
    best = here / "run" / "best"
    tensors = read_tensors(best)
    next(reversed(tensors.values())).flatten()[-1] = number
    write_tensors(best / "model.safetensors", tensors)
    seal(best, ())
    with pytest.raises(FileError, match="infinite or not a number"):
        qkv.load("run")


# --- runs


def last(folder: Path) -> dict[str, torch.Tensor]:
    return read_tensors(folder / "run" / "checkpoint-0000006" / checkpoint.TENSORS)


@pytest.mark.parametrize("damage", ["optimizer", "weights", "numbers", "truncated", "missing", "truncated, old"])
def test_a_run_falls_back_to_the_newest_good_checkpoint(damage: str, here: Path, trained: Path, run: Run) -> None:
    """And ends as it would have ended."""
    newest = here / "run" / "checkpoint-0000006"
    tensors = newest / checkpoint.TENSORS
    if damage in ("optimizer", "weights"):
        entry = [e for name, e in checkpoint.read_headers(tensors).items() if name.startswith(damage)][-1]
        data = bytearray(tensors.read_bytes())
        data[len(data) - max(e.end for e in checkpoint.read_headers(tensors).values()) + entry.begin] ^= 1
        tensors.write_bytes(data)
    elif damage == "numbers":
        flip(newest / checkpoint.NUMBERS)
    elif damage == "missing":
        tensors.unlink()
    else:
        os.truncate(tensors, tensors.stat().st_size - 1)
    if "old" in damage:
        (newest / MARKER).unlink()
    code, _, err = run(*TRAIN)
    assert code == 0 and "continuing from checkpoint-0000004" in err, err
    assert (here / "run" / "checkpoint-0000006.damaged").is_dir()
    whole, again = last(trained), last(here)
    assert whole.keys() == again.keys() and all(torch.equal(whole[name], again[name]) for name in whole)
    assert (here / "run" / "log.jsonl").read_text() == (trained / "run" / "log.jsonl").read_text()


def test_a_checkpoint_that_is_damaged_twice_is_set_aside_twice(here: Path, run: Run) -> None:
    for _ in range(2):
        flip(here / "run" / "checkpoint-0000006" / checkpoint.TENSORS)
        code, _, err = run(*TRAIN)
        assert code == 0 and "continuing from checkpoint-0000004" in err, err


def test_where_no_checkpoint_is_good_nothing_starts_anew(here: Path, run: Run) -> None:
    for place in checkpoint.all_of(here / "run"):
        flip(place / checkpoint.TENSORS)
    refused(run, *TRAIN, saying="no checkpoint of run is intact")
    assert len(checkpoint.all_of(here / "run")) == 3


def test_an_old_checkpoint_with_a_damaged_random_state_is_refused(here: Path, run: Run) -> None:
    """Without checksums only torch notices."""
    newest = here / "run" / "checkpoint-0000006"
    tensors = read_tensors(newest / checkpoint.TENSORS)
    write_tensors(newest / checkpoint.TENSORS, tensors | {"random": torch.full_like(tensors["random"], 255)})
    (newest / MARKER).unlink()
    refused(run, *TRAIN, saying="is not a checkpoint of this run")


def test_a_run_without_its_recipe_or_its_best_model_says_what_to_put_back(here: Path, run: Run) -> None:
    (here / "run" / "recipe.toml").rename(here / "elsewhere.toml")
    refused(run, *TRAIN, saying="lacks recipe.toml: put it back")
    (here / "elsewhere.toml").rename(here / "run" / "recipe.toml")
    shutil.rmtree(here / "run" / "best")
    refused(run, *TRAIN, saying="lacks best/, the model of update")


def test_damaged_checkpoints_are_not_averaged(here: Path, run: Run) -> None:
    flip(here / "run" / "checkpoint-0000004" / checkpoint.TENSORS, 0.9)
    refused(run, "average", "run", "mean", "--last", "3", saying="checkpoint-0000004")


# --- what a run learns from


def stopped_at_four(here: Path) -> None:
    """As if it had been killed before its last checkpoint."""
    shutil.rmtree(here / "run" / "checkpoint-0000006")


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("task", ["translation", "classification"])
def test_a_missing_vocabulary_is_never_replaced(old: bool, task: str, here: Path, run: Run) -> None:
    (here / "classes.tsv").write_text("a b\tx\nb a\ty\n" * 20)
    if task == "classification":
        text = (here / "recipe.toml").read_text().replace('"encoder-decoder"', '"encoder"\nhead = "classes"')
        text = text.replace('{ files = ["train.en", "train.de"] }', '{ table = "classes.tsv" }')
        text = text.replace('{ files = ["valid.en", "valid.de"] }', '{ table = "classes.tsv" }')
        (here / "recipe.toml").write_text('task = "classification"\n' + text)
        shutil.rmtree(here / "run")
        assert run(*TRAIN)[0] == 0
    stopped_at_four(here)
    numbers = here / "run" / "checkpoint-0000004" / checkpoint.NUMBERS
    if old:
        values = read_json(numbers)
        write_json(numbers, {name: values[name] for name in ("progress", "groups")})
        seal(numbers.parent, ())
    (here / "run" / "tokenizer.json").unlink()
    refused(run, *TRAIN, saying="run lacks tokenizer.json")
    assert not (here / "run" / "tokenizer.json").exists()
    shutil.copy(here / "run" / "best" / "tokenizer.json", here / "run")
    assert run(*TRAIN)[0] == 0


def test_another_vocabulary_is_refused(here: Path, run: Run) -> None:
    stopped_at_four(here)
    flip(here / "run" / "tokenizer.json", 0.99)
    refused(run, *TRAIN, saying="tokenizer.json is not the file that its checkpoints were trained with")


def test_changed_training_data_are_refused_unless_allowed(here: Path, run: Run) -> None:
    (here / "train.de").write_text(GERMAN.replace("Der", "Das", 1))
    assert run(*TRAIN)[0] == 0  # it has ended, and reads nothing any more
    stopped_at_four(here)
    line = refused(run, *TRAIN, saying="the training data have changed since the run began (train.de)")
    assert "--changed-data" in line
    code, _, err = run(*TRAIN, "--changed-data")
    assert code == 0 and "continuing on changed training data: train.de" in err
    shutil.rmtree(here / "run" / "checkpoint-0000006")
    shutil.rmtree(here / "run" / "checkpoint-0000004")
    (here / "train.de").write_text(GERMAN)
    assert run(*TRAIN)[0] == 0  # the checkpoint of update 2 has these


def test_data_that_were_moved_have_not_changed(here: Path) -> None:
    now = fingerprint(Parallel([here / "train.en", here / "train.de"]))
    began = checkpoint.inputs_of(here / "run" / "checkpoint-0000004")[1]
    assert now.keys() != began.keys()
    assert check_data(Parallel([here / "train.en", here / "train.de"]), began, False, print) == now
    with pytest.raises(FileError, match="changed"):
        check_data(Parallel([here / "train.de", here / "train.en"]), began, False, print)


def test_a_folder_of_files_is_known_by_names_sizes_and_contents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(6):
        (tmp_path / f"{number}.txt").write_text("one")
    read = lambda: fingerprint(Listing([(str(path), "x") for path in sorted(tmp_path.iterdir())]))  # noqa: E731
    for most, seen in ((10_000, True), (3, False)):
        monkeypatch.setattr("qkv.data.fingerprint.MOST_FILES", most)
        before = read()
        (tmp_path / "1.txt").write_text("two")  # as long as before
        assert (read() != before) == seen
        before = read()
        (tmp_path / "1.txt").write_text("three")
        assert read() != before
        (tmp_path / "1.txt").write_text("one")


def test_many_large_files_are_read_in_part_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks: list[int] = []
    monkeypatch.setattr("qkv.data.fingerprint.checksum", lambda path, most: str(blocks.append(most)))
    for count in (1, 2, 100, 1000):
        blocks.clear()
        fingerprint(Parallel([tmp_path / str(number) for number in range(count)]))
        assert len(blocks) == count and sum(blocks) <= max(256, count)


def test_fingerprints_of_corpora(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    with zipfile.ZipFile(tmp_path / "b.zip", "w") as archive:
        archive.writestr("inner.txt", "three\n")
    read = lambda: fingerprint(Mixture([  # noqa: E731
        Mapped(Parallel([tmp_path / "a.txt", tmp_path / "b.zip" / "inner.txt"]), lambda record: record),
        InMemorySource([("x", "y")]), StandardLibrary("train"),
    ], [1, 1, 1]))  # fmt: skip
    before = read()
    assert before.keys() == {str(tmp_path / "a.txt"), str(tmp_path / "b.zip"), "data.train[1]"} and read() == before
    (tmp_path / "a.txt").write_text("one\nTwo\n")
    after = read()
    assert [name for name in after if after[name] != before[name]] == [str(tmp_path / "a.txt")]


def test_a_large_file_is_read_in_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qkv.data.fingerprint.BLOCK", 10)
    path = tmp_path / "large"
    path.write_bytes(bytes(100))
    before = checksum(path, 4)
    for place, seen in ((5, True), (15, False), (55, True), (99, False)):
        path.write_bytes(bytes(place) + b"x" + bytes(99 - place))
        assert (checksum(path, 4) != before) == seen
    path.write_bytes(bytes(101))
    assert checksum(path, 4) != before


def test_word_vectors_notice_another_text(here: Path, run: Run) -> None:
    (here / "words.toml").write_text(
        'task = "vectors"\n[vectors]\nwidth = 4\nmin_count = 1\nepochs = 1\n[data]\ntrain = [{ files = ["train.en"] }]\n'
    )
    train = ("train", "words.toml", "--out", "words")
    assert run(*train)[0] == 0
    assert run(*train, "--set", "vectors.epochs=2")[0] == 0
    (here / "train.en").write_text(ENGLISH.replace("The ", "A ", 1))
    refused(run, *train, "--set", "vectors.epochs=3", saying="another text")
    (here / "train.en").write_text(ENGLISH)
    (here / "words" / "corpus.ids").unlink()
    assert run(*train, "--set", "vectors.epochs=3")[0] == 0
    vocabulary = here / "words" / "vocabulary.json"
    vocabulary.write_text(vocabulary.read_text().replace('"man"', '"mam"'))
    refused(run, *train, "--set", "vectors.epochs=4", saying="vocabulary.json has changed since this run started")


def test_a_message_is_one_line_whatever_a_damaged_file_calls_things() -> None:
    assert str(FileError("model.gguf uses llama.he\nad\u2028_count\x1b[31m\ud800, façade 🦙")) == (
        "model.gguf uses llama.he\\nad\\u2028_count\\x1b[31m\\ud800, façade 🦙"
    )
