"""A run as its user sees it: scores, card, event file, estimates; how it is stopped, and that it ends only once."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from queue import Queue
from types import SimpleNamespace

import pytest
import torch
import yaml
from rich.console import Console

from qkv import recipes
from qkv.config import ModelConfig, Recipe, TrainConfig, interval, load_recipe
from qkv.config.vectors import learns_vectors
from qkv.convert.manifest import seal
from qkv.errors import ConfigError
from qkv.models.build import build
from qkv.models.example import example
from qkv.objectives import translation
from qkv.tasks.translation import TranslationTask
from qkv.text.wording import format_duration
from qkv.train import estimate, loop, results
from qkv.train import run as training
from qkv.train.card import metric_id
from qkv.train.checkpoint import Training
from qkv.train.report import Report
from qkv.train.schedule import warmup_share
from qkv.train.tensorboard import crc32c
from tests.test_train import recipe as small

Run = Callable[..., tuple[int, str, str]]

TINY = """
[model]
family = "encoder-decoder"
d_model = 16
n_layers = 1
n_heads = 2
d_ff = 32
tie = "all"
norm_order = "pre"
dropout = 0.0
[data]
train = [{ grammar = 80 }]
valid = { grammar = 4 }
test = { grammar = 6 }
vocab_size = 120
batch_tokens = 200
[train]
steps = 6
warmup = 2
evaluate_every = 2
save_every = 2
[decode]
beam = 2
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    return path


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has come to its end."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "tiny.toml").write_text(TINY)
    train(folder / "tiny.toml", folder / "run")
    return folder / "run"


def train(path: Path, out: Path, *settings: str) -> training.Run:
    text = path.read_text() + "".join(settings)
    return training.run(load_recipe(path, list(settings)), text, out, Report(quiet=True))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


# --- the end of a run


def test_sacrebleu_gives_the_digits_of_the_run(ended: Path, run: Run) -> None:
    scores = {s["name"]: s for s in json.loads((ended / "results.json").read_text())["test"]["scores"]}
    assert list(scores) == ["BLEU", "chrF2", "TER"]
    command = [sys.executable, "-m", "sacrebleu", "test.ref.txt", "-i", "test.hyp.txt", "-m", "bleu", "chrf", "ter"]
    done = subprocess.run([*command, "-w", "10"], cwd=ended, capture_output=True, text=True, check=True)
    theirs = {s["name"]: s for s in json.loads(done.stdout)}
    assert {n: s["score"] for n, s in theirs.items()} == {n: round(s["value"], 10) for n, s in scores.items()}
    assert all(theirs[name]["signature"] == s["signature"] for name, s in scores.items())

    code, out, _ = run("evaluate", ended, "--bootstrap", "0", "--json")  # translated anew, with the run's beam
    assert code == 0
    assert [s["value"] for s in json.loads(out)["scores"]] == [s["value"] for s in scores.values()]


def test_an_ended_run_is_not_touched_again(ended: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = contents(ended)
    monkeypatch.setattr(results, "best_network", lambda r: pytest.fail("asked again"))
    monkeypatch.setattr(training, "train", lambda *_: pytest.fail("trained again"))
    again = train(ended.parent / "tiny.toml", ended)
    assert contents(ended) == before
    assert again.results == json.loads(before["results.json"]) and again.why == "all updates are done"


@pytest.mark.parametrize("field", ["train.time_budget=1e-9", "train.patience=1"])
def test_time_and_patience_end_a_run_for_good(field: str, recipe: Path, tmp_path: Path) -> None:
    changes = [field, "train.learning_rate=1e-9", "train.steps=40"]
    first = train(recipe, tmp_path / "run", *changes)
    before = contents(tmp_path / "run")
    assert 0 < first.training.progress.step < 40 and first.results["training"]["ended"] == first.why
    train(recipe, tmp_path / "run", *changes)
    assert contents(tmp_path / "run") == before


def test_other_weights_are_scored_again(recipe: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    train(recipe, tmp_path / "run")
    first = json.loads((tmp_path / "run" / "results.json").read_text())
    weights = tmp_path / "run" / "best" / "model.safetensors"
    save_file({name: x + 0.1 for name, x in load_file(weights).items()}, weights, {"format": "pt"})
    seal(weights.parent, ())
    assert train(recipe, tmp_path / "run").results["fingerprint"] != first["fingerprint"]


def test_the_card_says_what_was_measured(ended: Path) -> None:
    card = (ended / "README.md").read_text()
    assert (ended / "best" / "README.md").read_text() == card
    _, front, text = card.split("---\n", 2)
    facts, measured = yaml.safe_load(front), json.loads((ended / "results.json").read_text())
    assert facts["language"] == ["en", "de"] and facts["pipeline_tag"] == "translation"
    (entry,) = facts["model-index"][0]["results"]
    assert [m["type"] for m in entry["metrics"]] == facts["metrics"] == ["bleu", "chrf", "ter"]
    for metric, score in zip(entry["metrics"], measured["test"]["scores"], strict=True):
        assert metric["value"] == round(score["value"], 4) and metric["args"]["signature"] == score["signature"]
    for said in (f"{measured['model']['parameters']:,} parameters", "80 training examples", "6 updates", "seed 1",
                 "unknown: set by the data", f"torch {torch.__version__}", "qkv translate"):  # fmt: skip
        assert said in text, said
    cells = {len(re.split(r"(?<!\\)\|", line)) for line in text.splitlines() if line.startswith("|")}
    assert len(cells) == 1  # signatures have bars, which would begin new cells


def test_metrics_have_the_names_of_the_hub() -> None:
    assert [metric_id(name) for name in ("BLEU", "chrF2", "ROUGE-1", "ROUGE-2", "ROUGE-Lsum", "f1", "accuracy")] == [
        "bleu", "chrf", "rouge", "rouge", "rouge", "f1", "accuracy"]  # fmt: skip


def test_the_hub_reads_the_card(ended: Path) -> None:
    hub = pytest.importorskip("huggingface_hub")
    data = hub.ModelCard.load(ended / "README.md").data
    assert [r.metric_type for r in data.eval_results] == ["bleu", "chrf", "ter"]


def test_what_is_dropped_is_said(recipe: Path, tmp_path: Path) -> None:
    finished = train(recipe, tmp_path / "run", "data.max_length=14")
    data = finished.results["data"]
    assert set(data["dropped"]) == {"more than 14 tokens"}
    assert data["examples"] + data["dropped"]["more than 14 tokens"] == 80
    assert (
        f"{data['dropped']['more than 14 tokens']} dropped: more than 14 tokens"
        in (tmp_path / "run" / "README.md").read_text()
    )


def test_without_a_test_set_there_is_none(recipe: Path, tmp_path: Path) -> None:
    recipe.write_text(TINY.replace("test = { grammar = 6 }\n", ""))
    assert train(recipe, tmp_path / "run").results["test"] is None
    assert not (tmp_path / "run" / "test.hyp.txt").exists()
    assert "| test |" not in (tmp_path / "run" / "README.md").read_text()


def test_looks_are_shares_of_attention_and_agree_with_the_alignment(ended: Path) -> None:
    import qkv
    from qkv.generate.alignment import links
    from qkv.lab.demo import word_weights

    model = qkv.load(ended)
    source, target, weights = word_weights(model, "I ate an apple.")
    found = model.translate(["I ate an apple."], alignments=True)[0]
    assert source == ["I", "ate", "an", "apple.", "(end)"] and target == found.text.split()
    assert torch.allclose(weights.sum(1), torch.ones(len(target)), atol=1e-5)
    assert list(found.alignment) == links(weights[:, :-1], range(len(source) - 1), range(len(target)))


# --- stopping


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_signal_stores_and_leaves_with_the_shells_code(name: str, code: int, run: Run, recipe: Path, tmp_path: Path,
                                                         monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    original = loop.one_update

    def update(t: Training, *rest: object) -> dict:
        if t.progress.step == 2:
            os.kill(os.getpid(), signal.Signals[name])
        return original(t, *rest)  # type: ignore[arg-type]

    out = tmp_path / "run"
    monkeypatch.setattr(loop, "one_update", update)
    found, _, err = run("train", recipe, "--out", out)
    assert found == code and "run the same command again" in err and name in err
    assert not (out / "results.json").exists() and (out / "checkpoint-0000003").is_dir()
    monkeypatch.setattr(loop, "one_update", original)
    found, said, err = run("train", recipe, "--out", out)
    assert found == 0 and "resuming after update 3" in err and "BLEU|nrefs:1" in said
    assert [json.loads(line)["step"] for line in (out / "log.jsonl").read_text().splitlines()] == list(range(1, 7))
    assert [step for step, _ in scalars(out)] == list(range(1, 7))


# --- the event file, read by another reader


def scalars(folder: Path) -> list[tuple[int, dict[str, float]]]:
    """(step, values) of each event; every checksum is compared."""
    (path,) = (folder / "tensorboard").glob("*tfevents*")
    block, found = path.read_bytes(), []
    while block:
        length, first = struct.unpack("<QI", block[:12])
        event, (second,) = block[12 : 12 + length], struct.unpack("<I", block[12 + length : 16 + length])
        assert (first, second) == (masked(block[:8]), masked(event))
        fields = dict(parsed(event))
        if 5 in fields:
            values = [dict(parsed(value)) for _, value in parsed(fields[5])]
            found.append((fields[2], {v[1].decode(): v[2] for v in values}))
        block = block[16 + length :]
    return found


def masked(block: bytes) -> int:
    """CRC-32C bit by bit (RFC 3720), turned right by 15 bits and moved, as TensorFlow's record format says."""
    crc = 0xFFFFFFFF
    for bit in (byte >> i & 1 for byte in block for i in range(8)):
        crc = (crc >> 1) ^ (0x82F63B78 * ((crc & 1) ^ bit))
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) & 0xFFFFFFFF) + 0xA282EAD8 & 0xFFFFFFFF


def parsed(message: bytes) -> Iterator[tuple[int, object]]:
    def varint() -> int:
        nonlocal message
        size = next(i for i, byte in enumerate(message) if byte < 128) + 1
        number = sum((byte & 127) << (7 * i) for i, byte in enumerate(message[:size]))
        message = message[size:]
        return number

    while message:
        key = varint()
        if key & 7 == 0:
            yield key >> 3, varint()
            continue
        size = {1: 8, 5: 4}.get(key & 7) or varint()
        value, message = message[:size], message[size:]
        yield key >> 3, value if key & 7 == 2 else struct.unpack("<d" if size == 8 else "<f", value)[0]


def test_crc32c_is_castagnolis() -> None:
    assert crc32c(b"123456789") == 0xE3069283  # the check value in the catalogue of CRCs
    assert crc32c(bytes(32)) == 0x8A9136AA  # RFC 3720, B.4


def test_the_event_file_holds_the_log(ended: Path) -> None:
    log = [json.loads(line) for line in (ended / "log.jsonl").read_text().splitlines()]
    found = scalars(ended)
    assert [step for step, _ in found] == [line["step"] for line in log]
    for (_, values), line in zip(found, log, strict=True):
        assert values["train/loss"] == pytest.approx(line["loss"], rel=1e-6)
        assert ("valid/bleu" in values) == ("valid_bleu" in line)


def test_tensorboard_reads_it(ended: Path) -> None:
    module = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = module.EventAccumulator(str(ended / "tensorboard"))
    events.Reload()
    assert [e.step for e in events.Scalars("train/loss")] == list(range(1, 7))


# --- what is said on the way


class Clock:
    """Two seconds per update."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr("qkv.train.report.time.monotonic", lambda: self.now)


def told(monkeypatch: pytest.MonkeyPatch, terminal: bool, updates: int, **fields: object) -> tuple[Report, str]:
    """A report of `updates` updates of 2 seconds and 1000 tokens each, with a look at every tenth."""
    clock, screen = Clock(monkeypatch), StringIO()
    report = Report(Console(file=screen, force_terminal=terminal, width=100))
    config = ModelConfig(family="encoder-decoder", vocab_size=20, d_model=8, n_layers=1, n_heads=1, d_ff=8)
    network = build(config)
    t = Training(network, torch.optim.AdamW(network.parameters()))
    data = load_recipe(recipes.find("demo")).data
    recipe = Recipe(model=config, data=data, train=TrainConfig(**fields))  # type: ignore[arg-type]
    task = SimpleNamespace(
        config=config, recipe=recipe, data=data, metric="bleu", unit=TranslationTask.unit, objective=translation
    )
    report.begin(task, t)  # type: ignore[arg-type]
    for step in range(1, updates + 1):
        clock.now += 2
        t.progress.step, t.progress.seconds = step, 2.0 * step
        look = {"valid_bleu": 10.0, "valid_loss": 1.0} if step % 10 == 0 else {}
        report.tick({"step": step, "loss": 2.0, "tokens": 1000, **look})
    report.end("all updates are done", Counter({"too long": 3}))
    return report, screen.getvalue()


def test_time_to_go_by_steps_and_by_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    report, text = told(monkeypatch, False, 40, steps=100)
    assert report.left() == pytest.approx(60 * 2) and report.pace.rate == pytest.approx(500)
    assert "for 89 more updates at 500 target tokens/s" in text and "time budget" not in text
    report, text = told(monkeypatch, False, 40, steps=100, time_budget=2.0)
    assert report.left() == pytest.approx(120 - 80)  # sooner than the steps are done
    assert "for 49 more updates" in text and "before all 100 updates are done" in text
    assert told(monkeypatch, False, 40, steps=50, time_budget=60.0)[0].left() == pytest.approx(20)  # the steps are


def test_a_file_gets_a_line_per_look_and_a_terminal_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    _, text = told(monkeypatch, False, 40, steps=100)
    assert len(re.findall(r"^update \d+: loss 2.000, BLEU 10.00", text, re.M)) == 4 and "\x1b" not in text
    assert "dropped 3 examples: too long" in text and "MB of memory" in text
    _, text = told(monkeypatch, True, 40, steps=100)
    assert "tokens/s" in text and "to go" in text and "━" in text


def test_the_forecast_is_corrected_when_the_rate_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """2 s an update, then 8: the first forecast is wrong by a factor of 4, which is printed; a steady rate prints nothing."""
    assert "corrected" not in told(monkeypatch, False, 60, steps=300)[1]
    report, text = told(monkeypatch, False, 40, steps=300)
    clock = Clock(monkeypatch)
    clock.now = report.pace.recent[-1][0]
    report.console.file = StringIO()
    for step in range(41, 61):
        clock.now += 8
        report.training.progress.step = step
        report.tick({"step": step, "loss": 2.0, "tokens": 1000})
    lines = [line for line in report.console.file.getvalue().splitlines() if "corrected forecast" in line]
    assert lines and "at 125 target tokens/s" in lines[-1] and "for 240 more updates" not in text
    assert report.left() == pytest.approx(240 * 8)


def test_a_file_gets_a_line_a_minute_whatever_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qkv.train.report.SILENCE", 0.01)
    written = Queue[str]()
    screen = SimpleNamespace(write=written.put, flush=lambda: None, isatty=lambda: False)
    report = Report(Console(file=screen, width=100))  # type: ignore[arg-type]
    with report.heartbeat():
        assert "still preparing the data" in written.get()
    report, _ = told(monkeypatch, False, 12, steps=100)
    assert report.status() == "still scoring the model"
    report.phase = ""
    assert report.status().startswith("update 12: loss 2.000, 500 target tokens/s")


def test_the_card_states_the_warm_up_that_happened(tmp_path: Path) -> None:
    """Steps of 4 in a run of 6 by steps; in a time budget a tenth of the run at the most."""
    finished = training.run(small(steps=6, warmup=4), "recipe", tmp_path / "run", Report(quiet=True))
    assert finished.results["training"]["warmup"] == 3  # the fourth update has the whole rate
    assert "3 warm-up updates" in (tmp_path / "run" / "README.md").read_text()
    c = TrainConfig(steps=1000, warmup=500, time_budget=1.0)
    assert [warmup_share(c, step, step / 30) < 1 for step in range(1, 5)] == [True, True, False, False]


@pytest.mark.parametrize(
    ("seconds", "said"), [(7, "7 s"), (20, "20 s"), (150, "2.5 min"), (240, "4 min"), (2400, "40 min"), (7200, "2.0 h")]
)
def test_times_are_spoken(seconds: float, said: str) -> None:
    assert format_duration(seconds) == said


def test_the_estimate_of_activations_is_what_autograd_keeps() -> None:
    c = ModelConfig(family="encoder-decoder", vocab_size=50, d_model=32, n_layers=2, n_heads=2, d_ff=64, dropout=0.1)
    torch.manual_seed(0)
    network, state = build(c), torch.get_rng_state()
    guess = estimate.activations(c, network, translation, 40 * estimate.LENGTH)
    assert torch.equal(torch.get_rng_state(), state)  # a run that estimates is the run that does not
    real = estimate.activation_bytes(network, translation, example(c, 40, length=estimate.LENGTH))
    assert math.isclose(guess, real, rel_tol=0.02)
    assert estimate.activations(c, network, translation, 80 * estimate.LENGTH) > 1.9 * guess


# --- recipes by name


def test_shipped_recipes_are_found_by_name_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert {"demo", "tatoeba-en-de", "transformer-base"} <= set(recipes.names())
    for name in recipes.names():
        path = recipes.find(name)
        assert learns_vectors(path) or load_recipe(path).model.d_model > 0
    (tmp_path / "mine.toml").write_text(TINY)
    assert recipes.find("mine.toml") == Path("mine.toml")
    with pytest.raises(ConfigError, match=r"did you mean 'demo'.*transformer-base"):
        recipes.find("dmeo")


def test_the_learning_curve_of_every_shipped_recipe_has_ten_points() -> None:
    """Also where the machine is slow and a time budget ends the run: then only a share of the run is safe."""
    for name in recipes.names():
        if not learns_vectors(recipes.find(name)):
            c = load_recipe(recipes.find(name)).train
            every = interval(c.evaluate_every)
            points = c.steps / every.updates if every.updates else 1 / every.share
            assert points >= 10 and (every.share or not c.time_budget), name


def test_an_unknown_recipe_is_one_line(run: Run, tmp_path: Path) -> None:
    code, _, err = run("train", "tatoeba")
    assert code == 2 and err.count("\n") == 1 and "did you mean 'tatoeba-en-de'" in err
    (tmp_path / "bare.toml").write_text('preset = "gpt2"\n')
    assert "no [data]" in run("train", tmp_path / "bare.toml")[2]
