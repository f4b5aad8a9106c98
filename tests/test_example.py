"""The example model that ships with the package: it is small, it translates, and its name stands for its path everywhere."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from queue import Queue

import pytest

import qkv
from qkv.api import Model
from qkv.commands.translate import is_text
from qkv.config import load_recipe
from qkv.convert.files import read_headers
from qkv.convert.manifest import MARKER, checksums, verify
from qkv.data.grammar import pairs
from qkv.evaluate.scores import bleu
from qkv.pretrained import ABOUT_EXAMPLE, EXAMPLE, HERE, NOTE, find, names
from qkv.recipes import find as recipe

Run = Callable[..., tuple[int, str, str]]
ROOT = Path(__file__).parent.parent
APPLE, APFEL = "I ate an apple.", "Ich habe einen Apfel gegessen."
KNOWN = {
    APPLE: APFEL,
    "The old woman sees a small dog.": "Die alte Frau sieht einen kleinen Hund.",
    "The man reads a book.": "Der Mann liest ein Buch.",
    "Did our man go to the garden?": "Ist unser Mann zum Garten gegangen?",
    "My sister will write a letter tomorrow.": "Meine Schwester wird morgen einen Brief schreiben.",
    "the man reads a book": "Der Mann liest ein Buch",
    "i ate an apple.": APFEL,
    "I ate an apple": APFEL.rstrip("."),
    "Anna ate an apple.": "Anna hat einen Apfel gegessen.",
    "Hello!": "Hallo!",
    "good morning": "Guten Morgen",
    "How are you?": "Wie geht es dir?",
    "My name is Anna.": "Ich heiße Anna.",
}


@pytest.fixture(scope="module")
def model() -> Model:
    return qkv.load(EXAMPLE, "cpu")


# --- the model


def test_it_translates_what_people_type_first(model: Model) -> None:
    assert dict(zip(KNOWN, model.translate(list(KNOWN)), strict=True)) == KNOWN


def test_held_out_sentences(model: Model) -> None:
    held_out = list(islice(pairs("test"), 200))
    assert bleu(model.translate([one.source for one in held_out]), [one.target for one in held_out]) >= 97


def test_any_text_gets_an_answer(model: Model) -> None:
    """Words and letters that it has never seen cost no error."""
    texts = ["Quantum xylophones jazz 42!", "日本語", "¿Qué?", "naïve café €5"]
    assert all(not one.problem and one.text for one in model.translate(texts, scores=True, max_length=40))


def test_the_folder_is_small_and_in_half_precision() -> None:
    folder = find(EXAMPLE)
    assert sum(file.stat().st_size for file in folder.iterdir()) <= 3_000_000
    assert {entry.dtype for entry in read_headers(folder).values()} == {"F16"}
    kept, now = (
        (path / name).read_text() for path, name in ((folder, "recipe.toml"), (recipe(EXAMPLE).parent, "example.toml"))
    )
    assert kept == now, "the recipe has changed since the model was trained: make example-model"
    assert load_recipe(folder / "recipe.toml").data is not None


def test_the_wheel_has_every_file_of_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """What setuptools would put into it, from pyproject.toml."""
    from setuptools import Distribution

    monkeypatch.chdir(ROOT)
    distribution = Distribution({"script_name": "setup.py"})
    distribution.parse_config_files()
    build = distribution.get_command_obj("build_py")
    build.ensure_finalized()
    build.manifest_files = {}  # there is no MANIFEST.in: found without writing an egg-info folder
    folders = {package: package.replace(".", "/") for package in build.packages}
    packed = {Path(path).as_posix() for one in folders.items() for path in build.find_data_files(*one)}
    packed |= {Path(path).as_posix() for _, _, path in build.find_all_modules()}
    ours = (path for path in (ROOT / "qkv").rglob("*") if path.is_file() and path.suffix not in (".pyc", ".so"))
    assert sorted({path.relative_to(ROOT).as_posix() for path in ours} - packed) == []
    assert f"qkv/pretrained/{EXAMPLE}/model.safetensors" in packed


# --- its name


def test_the_name_is_a_path_wherever_there_is_no_other(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: Model
) -> None:
    monkeypatch.chdir(tmp_path)
    assert names() == [EXAMPLE] and find(EXAMPLE) == HERE / EXAMPLE and find("other") == Path("other")
    code, out, _ = run("look", EXAMPLE, APPLE, "--what", "lens", "--json")
    assert code == 0 and "lens" in json.loads(out)
    assert run("generate", EXAMPLE, APPLE, "--temperature", "0")[1].strip() == APFEL
    assert "1,118,208" in run("params", EXAMPLE)[1]
    Path(EXAMPLE).mkdir()  # a folder of one's own comes first
    assert find(EXAMPLE) == Path(EXAMPLE)
    assert "no model in example" in run("translate", EXAMPLE, APPLE)[2]


def test_training_can_start_from_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.chdir(tmp_path)
    changes = ["tune.start=example", "train.steps=1", "train.warmup=0", "train.evaluate_every=1", "data.train=[{grammar=50}]",
               "data.valid={grammar=20}", "data.test={grammar=20}", "train.learning_rate=1e-6"]  # fmt: skip
    settings = [word for change in changes for word in ("--set", change)]
    code, _, problem = run("train", "demo", "--out", "more", *settings)
    assert code == 0, problem
    assert json.loads((tmp_path / "more/results.json").read_text())["valid"]["value"] > 90


# --- translate


def test_a_text_without_a_folder(run: Run) -> None:
    assert run("translate", APPLE) == (0, f"{APFEL}\n", f"{ABOUT_EXAMPLE}\n")
    assert "example model that ships with qkv (English to German" in ABOUT_EXAMPLE


def test_standard_input_without_a_folder(run: Run) -> None:
    assert run("translate", given=f"{APPLE}\n\n{APPLE}\n") == (0, f"{APFEL}\n\n{APFEL}\n", f"{ABOUT_EXAMPLE}\n")


def test_a_folder_and_a_text(run: Run) -> None:
    assert run("translate", EXAMPLE, APPLE) == (0, f"{APFEL}\n", "")
    assert run("translate", find(EXAMPLE), f"{APPLE}\n\nThe man sleeps.") == (0, f"{APFEL}\n\nDer Mann schläft.\n", "")


def test_a_file_comes_before_a_text(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path(APPLE).write_text("The man sleeps.\n")
    assert run("translate", EXAMPLE, APPLE) == (0, "Der Mann schläft.\n", "")


def test_a_mistyped_path_is_no_text(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("runs").mkdir()
    for wrong in (("my-modle",), ("runs/my demo",), (EXAMPLE, "test.en"), (EXAMPLE, str(tmp_path / "my test.en"))):
        code, out, problem = run("translate", *wrong)
        assert (code, out, problem.count("\n")) == (2, "", 1)
        assert wrong[-1] in problem and "a text to translate contains a space" in problem
    assert "is a text, not a model" in run("translate", APPLE, "test.en")[2]


def test_what_is_a_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "two words.zip").touch()
    texts = ["I ate", "Hello!", "and/or it is", "x " * 5000, "本。", "a\0 b"]
    paths = ["Hello", "a/b", "two words.zip", "two words.zip/a.en", "/no such folder", "", ".", "../x y", "model.gguf"]
    assert [one for one in texts + paths if is_text(one)] == texts


# --- serve


def test_serve_without_a_folder_serves_it() -> None:
    command = [sys.executable, "-m", "qkv", "serve", "--port", "0", "--workers", "1"]
    started = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    lines: Queue[str] = Queue()
    assert started.stderr is not None
    threading.Thread(target=lambda: [lines.put(line) for line in started.stderr or ()], daemon=True).start()
    try:
        assert lines.get(timeout=120).strip() == ABOUT_EXAMPLE
        assert lines.get(timeout=60).startswith("example: encoder-decoder, en to de; abilities: generate, translate")
        url = re.search(r"http:\S+", lines.get(timeout=60))[0]  # type: ignore[index]
        body = urllib.request.Request(f"{url}translate", b'{"q": "I ate an apple.", "source": "en", "target": "de"}',
                                      {"Content-Type": "application/json"})  # fmt: skip
        with urllib.request.urlopen(body, timeout=60) as answer:
            assert json.load(answer)["translatedText"] == APFEL
        with urllib.request.urlopen(f"{url}api/models", timeout=60) as answer:
            assert json.load(answer)["models"][0]["note"] == NOTE and "grammar" in NOTE
    finally:
        started.send_signal(signal.SIGINT)
        started.wait(60)
    assert started.returncode == 0


@pytest.mark.parametrize("name", names())
def test_every_file_of_a_shipped_model_has_a_checksum(name: str) -> None:
    folder = find(name)
    assert checksums(folder).keys() == {path.name for path in folder.iterdir()} - {"README.md", "recipe.toml", MARKER}
    verify(folder)
