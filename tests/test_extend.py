"""Extending a run: the same folder with another end goes on exactly, says what changed, and refuses what is another run."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from io import StringIO
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console

from qkv.commands.train import kept_text
from qkv.config import Recipe, load_recipe
from qkv.config.vectors import load_vectors_recipe
from qkv.convert.detect import open_config
from qkv.convert.files import read_tensors
from qkv.convert.manifest import MARKER
from qkv.data.batching import Batches
from qkv.data.sources import InMemorySource
from qkv.errors import ConfigError, FileError
from qkv.presets import PRESETS
from qkv.recipes import find
from qkv.train import checkpoint
from qkv.train import run as training
from qkv.train.extend import MAY_CHANGE, differences, flatten
from qkv.train.report import Report
from qkv.train.results import finish
from qkv.train.schedule import learning_rate
from qkv.train.training_log import TrainingLog

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
dropout = 0.1
[data]
train = [{ grammar = 60 }]
valid = { grammar = 4 }
test = { grammar = 3 }
vocab_size = 150
batch_tokens = 200
[train]
steps = 6
warmup = 3
evaluate_every = 2
save_every = 2
ema = 0.9
seed = 3
[decode]
beam = 2
"""


def train(folder: Path, *settings: str, text: str = TINY) -> tuple[training.Run, str]:
    """A run as `qkv train` starts it, and what it said."""
    path = folder.parent / f"{folder.name}.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    screen = StringIO()
    report = Report(Console(file=screen))
    return training.run(
        load_recipe(path, list(settings), open_config), kept_text(path, list(settings)), folder, report
    ), screen.getvalue()


def log(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def same_weights(one: Path, other: Path, best: bool = True) -> None:
    places = [(checkpoint.newest(one) / checkpoint.TENSORS, checkpoint.newest(other) / checkpoint.TENSORS)]
    places += [(one / "best", other / "best")] if best else []
    for first, second in ((read_tensors(a), read_tensors(b)) for a, b in places):
        assert first.keys() == second.keys()
        for name in first:
            assert torch.equal(first[name], second[name]), name


# --- what an extended run learns


@pytest.mark.parametrize("schedule", ["constant", "inverse-sqrt"])
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_extended_is_the_longer_run_bit_for_bit(schedule: str, optimizer: str, tmp_path: Path) -> None:
    same = [f"train.schedule={schedule}", f"train.optimizer={optimizer}"]
    train(tmp_path / "whole", *same, "train.steps=10")
    train(tmp_path / "run", *same, "train.steps=4")
    train(tmp_path / "run", *same, "train.steps=10")
    assert (tmp_path / "run" / "log.jsonl").read_text() == (tmp_path / "whole" / "log.jsonl").read_text()
    same_weights(tmp_path / "run", tmp_path / "whole")


def test_the_look_at_the_old_end_changes_no_weights(tmp_path: Path) -> None:
    """An end is looked at, also where evaluate_every would not: the log has that look more, and the weights are the same."""
    train(tmp_path / "whole", "train.steps=8")
    train(tmp_path / "run", "train.steps=3")
    train(tmp_path / "run", "train.steps=8")
    same_weights(tmp_path / "run", tmp_path / "whole", best=False)
    extended = log(tmp_path / "run")
    assert "valid_bleu" in extended[2]
    extended[2] = {name: x for name, x in extended[2].items() if not name.startswith("valid_")}
    assert extended == log(tmp_path / "whole")


@pytest.mark.parametrize("schedule", ["linear", "cosine", "stable-decay"])
def test_a_schedule_spans_the_new_length_and_that_is_said(schedule: str, tmp_path: Path) -> None:
    train(tmp_path / "run", f"train.schedule={schedule}", "train.steps=4")
    done, said = train(tmp_path / "run", f"train.schedule={schedule}", "train.steps=8")
    c = done.recipe.train
    assert [line["learning_rate"] for line in log(tmp_path / "run")[4:]] == [
        learning_rate(c, step, (step - 1) / 8) for step in range(5, 9)
    ]
    rate = learning_rate(c, 5, 4 / 8)
    assert f"the learning rate continues at {rate:.3g} (update 5)" in said
    assert f'"{schedule}" now spans the new length' in said


@pytest.mark.parametrize(("settings", "refused"), [
    (["train.schedule=inverse-sqrt"], ""),
    (["train.schedule=linear"], 'train.schedule = "linear"'),
    (["train.schedule=constant", "train.optimizer=muon"], 'train.optimizer = "muon"'),
])  # fmt: skip
def test_a_run_of_earlier_rules_goes_on_only_where_they_are_the_same(
    settings: list[str], refused: str, tmp_path: Path
) -> None:
    train(tmp_path / "run", *settings, "train.steps=4")
    numbers = checkpoint.newest(tmp_path / "run") / checkpoint.NUMBERS
    stored = json.loads(numbers.read_text())
    del stored["progress"]["rules"]  # as the first version wrote it, which had no checksums either
    numbers.write_text(json.dumps(stored))
    (numbers.parent / MARKER).unlink()
    train(tmp_path / "run", *settings, "train.steps=4")  # it has ended: there is no rest to train in another way
    if not refused:
        train(tmp_path / "run", *settings, "train.steps=6")
        assert (
            json.loads((checkpoint.newest(tmp_path / "run") / checkpoint.NUMBERS).read_text())["progress"]["rules"] == 1
        )
        return
    with pytest.raises(FileError, match=re.escape(refused) + r" had a different meaning.*tune\.start="):
        train(tmp_path / "run", *settings, "train.steps=6")
    assert (tmp_path / "run" / "results.json").exists()  # nothing of it was touched


def test_a_run_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    """And nobody is told to remove its checkpoint."""
    train(tmp_path / "run", "train.steps=4")
    numbers = checkpoint.newest(tmp_path / "run") / checkpoint.NUMBERS
    stored = json.loads(numbers.read_text())
    stored["progress"] |= {"rules": stored["progress"]["rules"] + 1, "unknown": 0}
    numbers.write_text(json.dumps(stored))
    (numbers.parent / MARKER).unlink()
    with pytest.raises(FileError, match=r"^[^;]*newer version of qkv: update qkv$"):
        train(tmp_path / "run", "train.steps=6")


@pytest.mark.parametrize(("fields", "refused"), [
    ({"norm_eps": 1e-6}, "model.norm_eps is 1e-05 there and 1e-06 here"),
    ({"d_ff": 24}, "model.d_ff is 32 there and 24 here"),
    ({"init_std": 0.02}, ""),  # decides fresh weights alone
])  # fmt: skip
def test_a_run_whose_preset_has_changed_is_refused(
    fields: dict[str, Any], refused: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its recipe names the preset, and both recipes have the new fields: only the saved model knows the old ones."""
    (tmp_path / "whole.toml").write_text(TINY)
    c, text = load_recipe(tmp_path / "whole.toml").model, 'preset = "mine"\n[data]' + TINY.partition("[data]")[2]
    monkeypatch.setitem(PRESETS, "mine", c)
    train(tmp_path / "run", "train.steps=4", text=text)
    monkeypatch.setitem(PRESETS, "mine", c.changed(**fields))
    if not refused:
        train(tmp_path / "run", "train.steps=6", text=text)
        return
    with pytest.raises(FileError, match=re.escape(refused) + r".*tune\.start="):
        train(tmp_path / "run", "train.steps=6", text=text)
    train(tmp_path / "new", "train.steps=2", f"tune.start={tmp_path / 'run'}", text=text)
    kept = open_config(tmp_path / "new" / "best")
    assert all(getattr(kept, name) == getattr(c, name) for name in fields)


def test_another_learning_rate_is_used_from_the_next_update_on(tmp_path: Path) -> None:
    train(tmp_path / "run", "train.schedule=constant", "train.steps=4")
    _, said = train(tmp_path / "run", "train.schedule=constant", "train.steps=6", "train.learning_rate=5e-4")
    assert [line["learning_rate"] for line in log(tmp_path / "run")[3:]] == [1e-3, 5e-4, 5e-4]
    assert (
        "changed: train.learning_rate 0.001 -> 0.0005" in said and "continues at 0.0005 (update 5), after 0.001" in said
    )


def test_evaluations_by_shares_go_on_in_the_extended_run(tmp_path: Path) -> None:
    """Ten tenths of the first run, then those tenths of the longer one that are left."""
    train(tmp_path / "run", "train.steps=10", 'train.evaluate_every="10%"')
    train(tmp_path / "run", "train.steps=40", 'train.evaluate_every="10%"')
    looked = [line["step"] for line in log(tmp_path / "run") if "valid_bleu" in line]
    assert looked == [*range(1, 11), 12, 16, 20, 24, 28, 32, 36, 40]


# --- what a folder holds afterwards


def test_an_ended_run_goes_on_and_says_what_changed(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    first, _ = train(folder, "train.steps=1000", "train.patience=1", "train.learning_rate=1e-9")
    assert first.why == "no better score in 1 evaluations"
    steps = first.training.progress.step
    settings = [f"train.steps={steps + 4}", "train.patience=0", "train.learning_rate=1e-9", "train.keep=2"]
    done, said = train(folder, *settings)
    assert f"changed: train.steps 1,000 -> {steps + 4}" in said and "changed: train.patience 1 -> 0" in said
    assert f"resuming after update {steps}" in said and "train.keep 1 -> 2" in said
    assert done.results["training"]["updates"] == steps + 4 == done.training.progress.step
    assert f"{steps + 4} updates" in (folder / "README.md").read_text()
    assert json.loads((folder / "results.json").read_text()) == done.results
    assert [line["step"] for line in log(folder)] == list(range(1, steps + 5))
    assert len(checkpoint.all_of(folder)) == 2
    assert load_recipe(folder / "recipe.toml").train.steps == steps + 4  # so that a copy of it is what was trained


def test_while_it_goes_on_it_has_no_results_of_an_earlier_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, original, seen = tmp_path / "run", training.train, []
    train(folder)

    def watched(*arguments: object) -> str:
        seen.append({name: (folder / name).exists() for name in ("results.json", "README.md", "best")})
        return original(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(training, "train", watched)
    train(folder, "train.steps=8")
    assert seen == [{"results.json": False, "README.md": False, "best": True}]


def test_comments_and_formatting_are_no_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, _ = train(tmp_path / "run")
    monkeypatch.setattr(training, "train", lambda *_: pytest.fail("trained again"))
    text = "# tidied up\n" + TINY.replace("steps = 6\n", "").replace("seed = 3", "seed = 3 # chosen by dice\nsteps = 6")
    again, said = train(tmp_path / "run", text=text)
    assert again.results == first.results and "changed" not in said
    assert (tmp_path / "run" / "recipe.toml").read_text() == text


def test_another_test_set_is_scored_without_training(tmp_path: Path) -> None:
    first, _ = train(tmp_path / "run")
    again, said = train(tmp_path / "run", "data.test={ grammar = 5 }", "decode.beam=1")
    assert "changed: data.test { grammar = 3 } -> { grammar = 5 }" in said
    assert (first.results["test"]["examples"], again.results["test"]["examples"]) == (3, 5)
    assert again.results["test"]["how"] == "greedy" and again.training.progress.step == 6


class Killed(BaseException):
    """Like SIGKILL: nothing of ours catches it."""


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("then", [6, 10])
def test_killed_while_extending_it_is_a_run_of_one_recipe(
    written: bool, then: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before or after recipe.toml takes its place; the next command may be the old one or the new one."""
    folder, original = tmp_path / "run", training.write_text
    train(folder)

    def write(path: Path, text: str) -> None:
        if written:
            original(path, text)
        raise Killed

    monkeypatch.setattr(training, "write_text", write)
    with pytest.raises(Killed):
        train(folder, "train.steps=10")
    monkeypatch.setattr(training, "write_text", original)
    assert load_recipe(folder / "recipe.toml").train.steps == (10 if written else 6)
    done, _ = train(folder, f"train.steps={then}")
    train(tmp_path / "whole", f"train.steps={then}")
    assert done.results["training"]["updates"] == then and (folder / "README.md").exists()
    assert (folder / "log.jsonl").read_text() == (tmp_path / "whole" / "log.jsonl").read_text()
    same_weights(folder, tmp_path / "whole")


# --- what is another run


def test_other_fields_are_named_with_both_values(tmp_path: Path) -> None:
    train(tmp_path / "run", "train.steps=2")
    before = (tmp_path / "run" / "recipe.toml").read_text(), (tmp_path / "run" / "results.json").read_text()
    with pytest.raises(FileError) as refused:
        train(tmp_path / "run", "train.steps=9", "model.dropout=0.3", "data.train=[{ grammar = 80 }]", "train.seed=4")
    for said in ("model.dropout is 0.1 there and 0.3 here", "train.seed is 3 there and 4 here",
                 "data.train is [{ grammar = 60 }] there and [{ grammar = 80 }] here",
                 f"--out NEW --set tune.start={tmp_path / 'run'}"):  # fmt: skip
        assert said in str(refused.value), said
    assert "train.steps is" not in str(refused.value)
    assert before == ((tmp_path / "run" / "recipe.toml").read_text(), (tmp_path / "run" / "results.json").read_text())


@pytest.mark.parametrize("setting", ["model.d_model=32", "model.position=rotary", "data.vocab_size=100"])
def test_weights_that_do_not_fit_are_not_suggested(setting: str, tmp_path: Path) -> None:
    train(tmp_path / "run", "train.steps=2")
    with pytest.raises(FileError, match=setting.partition("=")[0]) as refused:
        train(tmp_path / "run", "train.steps=2", setting)
    assert "--out NEW" in str(refused.value) and "tune.start" not in str(refused.value)


def test_a_run_without_a_checkpoint_takes_any_recipe(tmp_path: Path) -> None:
    """Nothing was learned: the attempt before it may have failed for its recipe."""
    with pytest.raises(FileError, match="nowhere"):
        train(tmp_path / "run", 'data.train=[{ files = ["nowhere.en", "nowhere.de"] }]')
    assert train(tmp_path / "run", "train.steps=2")[0].training.progress.step == 2


def test_what_may_change_is_a_field_of_a_recipe() -> None:
    """A field that was renamed must be renamed there too."""
    known = flatten(load_recipe(find("demo"))).keys() | flatten(load_vectors_recipe(find("word2vec"))).keys()
    assert known >= MAY_CHANGE


def test_a_preset_is_compared_by_what_it_says(tmp_path: Path) -> None:
    (tmp_path / "one.toml").write_text('preset = "transformer-base"\n[model]\nd_model = 64\n')
    one = load_recipe(tmp_path / "one.toml")
    other = Recipe(model=one.model)
    assert one.preset != other.preset and differences(one, other) == {}


# --- passes over the data as the end


def test_epochs_end_a_run_with_the_last_batch_of_a_pass(tmp_path: Path) -> None:
    done, _ = train(tmp_path / "run", "train.steps=1000", "train.epochs=1", "train.schedule=constant", "train.warmup=0")
    batches = done.task.batches
    examples, _, _ = batches.read_pool()
    once = len(batches.cut(examples, "any"))
    assert done.training.progress.step == once and done.why == "train.epochs = 1 is reached"
    assert done.results["training"]["epochs"] == 1 and done.training.progress.position.share == 1
    more, said = train(
        tmp_path / "run", "train.steps=1000", "train.epochs=2.5", "train.schedule=constant", "train.warmup=0"
    )
    assert "changed: train.epochs 1 -> 2.5" in said
    assert more.training.progress.step == 2 * once + -(-once // 2)
    assert [line["epoch"] for line in log(tmp_path / "run")] == [n // once for n in range(more.training.progress.step)]


def test_a_schedule_over_passes_falls_to_its_end_and_resumes_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ["train.steps=1000", "train.epochs=2", "train.schedule=linear", "train.warmup=1000"]
    train(tmp_path / "whole", *settings)
    rates = [line["learning_rate"] for line in log(tmp_path / "whole")]
    assert max(rates) > 0.8e-3 and 0 < rates[-1] < 0.2 * max(rates)  # the warm-up is a tenth of the run at the most
    original = TrainingLog.add

    def line(log: TrainingLog, entry: dict, *rest: bool) -> None:
        original(log, entry, *rest)
        if entry["step"] == len(rates) - 3:  # in the second pass, in which the first process kept the corpus in memory
            raise Killed

    monkeypatch.setattr(TrainingLog, "add", line)
    with pytest.raises(Killed):
        train(tmp_path / "run", *settings)
    monkeypatch.setattr(TrainingLog, "add", original)
    train(tmp_path / "run", *settings)
    assert (tmp_path / "run" / "log.jsonl").read_text() == (tmp_path / "whole" / "log.jsonl").read_text()


@pytest.mark.parametrize("pool", [7, 10, 100])
def test_the_share_of_a_pass_grows_to_one(pool: int) -> None:
    source = InMemorySource([(str(number),) for number in range(30)])
    batches = Batches(source, lambda records: [int(record[0]) for record in records], lambda _: 1, tokens=2, pool=pool)
    stream, passes = iter(batches), []
    for _ in range(60):
        next(stream)
        passes.append((batches.position.epoch, batches.position.passes))
    assert all(a[1] <= b[1] for a, b in pairwise(passes))
    first = [share for epoch, share in passes if epoch == 0]
    assert 0 < first[0] < 0.2 and first[-1] == pytest.approx(1, abs=0.05)
    if pool != 10:  # a corpus that ends with a pool shows its end when the next one is read
        assert first[-1] == 1


def test_a_mixture_has_no_passes(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"train\.epochs = 3: a mixture of 2 corpora .* has no passes"):
        train(tmp_path / "run", "train.epochs=3", "data.train=[{ grammar = 60 }, { grammar = 30 }]")


def test_a_field_that_counts_only_where_it_is_set_is_a_difference(tmp_path: Path) -> None:
    """Unset means no smoothing to a classifier, whatever the default says."""
    (tmp_path / "a.toml").write_text(find("sentences").read_text().replace("label_smoothing = 0.0\n", ""))
    unset, told = (load_recipe(tmp_path / "a.toml", changes) for changes in ([], ["train.label_smoothing=0.1"]))
    assert differences(unset, told) == {"train.label_smoothing": (None, 0.1)} and not differences(told, told)


def test_a_run_that_is_shortened_before_its_first_evaluation_says_so(tmp_path: Path) -> None:
    progress = SimpleNamespace(best_step=0)
    ended = SimpleNamespace(folder=tmp_path, why="all updates are done", training=SimpleNamespace(progress=progress))
    with pytest.raises(ConfigError, match=r"has never been evaluated: raise train\.steps"):
        finish(ended, Report(quiet=True))  # type: ignore[arg-type]


# --- by command


def test_the_demo_is_extended_in_its_folder(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    small = ("data.train=[{ grammar = 100 }]", "data.valid={ grammar = 3 }", "data.test={ grammar = 6 }", "model.d_model=16",
             "model.d_ff=16", "model.n_layers=1", "data.batch_tokens=300", "train.steps=100000")  # fmt: skip
    command = ["demo", *(word for setting in small for word in ("--set", setting))]
    code, _, err = run(*command, "--time-budget", "1s")
    assert code == 0, err
    before = log(tmp_path / "runs" / "demo")
    code, _, err = run(*command, "--time-budget", "2s")
    assert code == 0 and "changed: train.time_budget 1 s -> 2 s" in err, err
    after = log(tmp_path / "runs" / "demo")
    assert len(after) > len(before) and after[: len(before)] == before


VECTORS = """
task = "vectors"
[data]
train = [{ files = ["text.txt"] }]
[vectors]
width = 4
min_count = 1
epochs = 1
workers = 1
"""


def test_word_vectors_take_more_passes(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("the king sees the queen\nthe dog sees the cat\n" * 20)
    (tmp_path / "w2v.toml").write_text(VECTORS)
    assert run("train", "w2v.toml")[0] == 0
    code, _, err = run("train", "w2v.toml", "--set", "vectors.epochs=3")
    assert code == 0 and "changed: vectors.epochs 1 -> 3" in err
    assert len({line["step"] for line in log(tmp_path / "runs" / "w2v")}) == 3
    assert load_vectors_recipe(tmp_path / "runs" / "w2v" / "recipe.toml").vectors.epochs == 3
    code, _, err = run("train", "w2v.toml", "--set", "vectors.width=8")
    assert code == 2 and "vectors.width is 4 there and 8 here" in err and "tune.start" not in err
