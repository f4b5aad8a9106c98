"""Files of earlier versions are opened for ever: models, word vectors, and runs that resume (tests/formats/make.py wrote them)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import qkv
from qkv.convert import folder
from qkv.convert.files import read_json
from qkv.train import checkpoint
from tests.formats.make import IDS, TARGET_IDS

Run = Callable[..., tuple[int, str, str]]
FORMATS = Path(__file__).parent / "formats"
VERSIONS = sorted((path for path in FORMATS.iterdir() if (path / "expected.json").exists()), key=lambda p: int(p.name))
MODELS = [path.parent for path in sorted(FORMATS.glob("*/**/config.json"))]
VECTORS = [version for version in VERSIONS if (version / "word2vec").is_dir()]
RUNS = [path for version in VERSIONS for path in sorted(version.iterdir()) if (path / "recipe.toml").exists()]
label = lambda path: str(path.relative_to(FORMATS))  # noqa: E731


@cache
def expected(version: Path) -> dict[str, Any]:
    """What the version that wrote a folder computed from it."""
    return json.loads((version / "expected.json").read_text())  # type: ignore[no-any-return]


def version_of(path: Path) -> tuple[Path, str]:
    """The folder of the version, and the name of the run or model in it."""
    version, name = path.relative_to(FORMATS).parts[:2]
    return FORMATS / version, name


def test_what_is_written_today_is_among_them() -> None:
    """When a format changes, write a folder of it: python tests/formats/make.py tests/formats/NEXT."""
    models = {read_json(path / "config.json").get("format", "0.1") for path in MODELS}
    assert {"0.1", folder.FORMAT, folder.INTEGER_FORMAT} <= models
    progress = [read_json(path).get("progress", {}) for path in FORMATS.glob("*/*/checkpoint-*/training.json")]
    assert set(range(1, checkpoint.Progress().rules + 1)) <= {one.get("rules", 1) for one in progress}
    assert any(len(checkpoint.tensor_files(path)) > 1 for path in FORMATS.glob("*/*/checkpoint-*"))


@pytest.mark.parametrize("path", MODELS, ids=label)
def test_a_model_gives_the_outputs_of_its_time(path: Path) -> None:
    version, name = version_of(path)
    model = qkv.load(path)
    found = model.logits(IDS, *([TARGET_IDS] if model.config.family == "encoder-decoder" else []))
    torch.testing.assert_close(found, torch.tensor(expected(version)[name]["logits"]), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("path", RUNS, ids=label)
def test_a_run_resumes(path: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From its checkpoint in the middle to the losses that the rest of it had then."""
    version, name = version_of(path)
    shutil.copytree(version, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    (last,) = Path(name).glob("checkpoint-*")
    step, longer = int(last.name.partition("-")[2]), ["--set", "vectors.epochs=2"] if name == "word2vec" else []
    code, _, err = run("train", f"{name}.toml", "--out", name, "--threads", "1", *longer)  # shards too, by one process
    assert code == 0 and "resuming" in err, err
    losses = [json.loads(line)["loss"] for line in Path(name, "log.jsonl").read_text().splitlines()]
    wanted = expected(version)[name]["losses"]
    assert len(losses) == len(wanted) > step
    assert losses == pytest.approx(wanted, rel=1e-4)


@pytest.mark.parametrize("version", VECTORS, ids=label)
def test_word_vectors(version: Path) -> None:
    vectors = qkv.load_vectors(version / "word2vec")
    assert vectors.vector("dog").tolist() == expected(version)["word2vec"]["dog"]
