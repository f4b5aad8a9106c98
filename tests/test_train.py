"""The loop: it learns, and a run that was killed anywhere and resumed is the run that never stopped."""

import json
import math
import random
import signal
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import qkv
from qkv.batch import Batch, Loss
from qkv.config import DataConfig, ModelConfig, Recipe, TrainConfig, interval, validate
from qkv.convert.files import read_tensors
from qkv.errors import FileError, QkvError
from qkv.models.build import build
from qkv.train import checkpoint, loop
from qkv.train import run as training
from qkv.train.checkpoint import Progress
from qkv.train.report import Report
from qkv.train.schedule import learning_rate
from qkv.train.step import LossModule, step
from qkv.train.training_log import TrainingLog


def recipe(pairs: int = 60, dropout: float = 0.1, **train: object) -> Recipe:
    model = ModelConfig(family="encoder-decoder", vocab_size=300, d_model=32, n_layers=1, n_heads=2, d_ff=64, tie="all",
                        norm_order="pre", embed_scale=True, dropout=dropout)  # fmt: skip
    data = validate(
        DataConfig, {"train": [{"grammar": pairs}], "valid": {"grammar": 4}, "vocab_size": 200, "batch_tokens": 200}
    )
    fields = {"steps": 12, "evaluate_every": 4, "save_every": 3, "warmup": 4, "ema": 0.9, "seed": 3, **train}
    return Recipe(model=model, data=data, train=validate(TrainConfig, fields))


class Killed(BaseException):
    """Like SIGKILL: nothing of ours catches it."""


def run(folder: Path, r: Recipe, die_at: int | None = None, seed: int = 0) -> training.Run:
    """Train; with `die_at`, die at that step or the next one that has the moment which the seed chooses."""
    report = Report(quiet=True)
    dies = lambda step: die_at is not None and step >= die_at  # noqa: E731
    moment = random.Random(f"{seed}:{die_at}").choice(["best", "before log", "after log", "saving", "saved"])
    original_save, original_add, original_best = checkpoint.write_json, TrainingLog.add, training.keep_best

    def add(log, entry, *rest):  # noqa: ANN001, ANN202
        if dies(entry["step"]) and moment == "before log":
            log.file.write('{"step": ')  # half a line
            raise Killed
        original_add(log, entry, *rest)
        if dies(entry["step"]) and moment == "after log":
            raise Killed

    def best(r, network):  # noqa: ANN001, ANN202
        original_best(r, network)
        if dies(r.training.progress.step) and moment == "best":
            raise Killed  # best/ is newer than the newest checkpoint

    def json_file(path, value):  # noqa: ANN001, ANN202
        if dies(value["progress"]["step"]) and moment == "saving":
            raise Killed
        original_save(path, value)
        if dies(value["progress"]["step"]) and moment == "saved":
            raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainingLog, "add", add)
        patch.setattr(checkpoint, "write_json", json_file)
        patch.setattr(training, "keep_best", best)
        return training.run(r, "recipe", folder, report)


def contents(folder: Path) -> tuple[str, dict, dict]:
    last = checkpoint.newest(folder)
    return (folder / "log.jsonl").read_text(), read_tensors(last / checkpoint.TENSORS), read_tensors(folder / "best")


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple:
    folder = tmp_path_factory.mktemp("whole") / "run"
    run(folder, recipe())
    return contents(folder)


def same(a: tuple, b: tuple) -> None:
    assert a[0] == b[0]
    for first, second in zip(a[1:], b[1:], strict=True):
        assert first.keys() == second.keys()
        for name in first:
            assert torch.equal(first[name], second[name]), name


@pytest.mark.parametrize("seed", range(6))
def test_killed_anywhere_and_resumed_is_never_stopped(seed: int, tmp_path: Path, uninterrupted: tuple) -> None:
    r, folder = random.Random(seed), tmp_path / "run"
    for die_at in sorted(r.sample(range(1, 12), 3)):  # killed, resumed, killed again
        with pytest.raises(Killed):
            run(folder, recipe(), die_at, seed)
        torch.manual_seed(r.randrange(1000))  # another process starts with other random numbers
    run(folder, recipe())
    same(contents(folder), uninterrupted)


def test_an_ended_run_changes_nothing_when_run_again(tmp_path: Path, uninterrupted: tuple) -> None:
    run(tmp_path / "run", recipe())
    run(tmp_path / "run", recipe())
    same(contents(tmp_path / "run"), uninterrupted)


def test_the_log_has_every_update_and_no_times(uninterrupted: tuple) -> None:
    lines = [json.loads(line) for line in uninterrupted[0].splitlines()]
    assert [line["step"] for line in lines] == list(range(1, 13))
    assert [line["step"] for line in lines if "valid_bleu" in line] == [4, 8, 12]
    assert set().union(*lines) == {"step", "epoch", "loss", "learning_rate", "valid_bleu", "valid_loss"}


def test_of_equal_scores_the_later_weights_are_kept_but_patience_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At BLEU 0 (or 100) more was learned by the later ones; a score that only stays is no better one."""
    monkeypatch.setattr(
        "qkv.tasks.translation.TranslationTask.evaluate", lambda self, network: {"bleu": 0.0, "loss": 1.0}
    )
    finished = run(tmp_path / "run", recipe(steps=12, evaluate_every=2, patience=3))
    assert "no better score in 3 evaluations" in finished.why
    assert finished.training.progress.best_step == finished.training.progress.step == 8


def test_it_trains_in_a_thread_too(tmp_path: Path) -> None:
    """Where no signal handler can be installed."""
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(run, tmp_path / "run", recipe(steps=2)).result().training.progress.step == 2


def test_it_learns(tmp_path: Path) -> None:
    finished = run(
        tmp_path / "run",
        recipe(steps=80, evaluate_every=80, save_every=80, ema=0.0, learning_rate=1e-2, schedule="constant"),
    )
    losses = [json.loads(line)["loss"] for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert sum(losses[-5:]) < 0.75 * sum(losses[:5])
    assert qkv.load(tmp_path / "run").config == finished.config  # a run's folder opens as its best model
    assert finished.training.progress.best_step == 80 and (tmp_path / "run" / "curves.svg").exists()


def test_a_folder_that_is_no_run_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("of a model")
    with pytest.raises(FileError, match="contains files that are not a run"):
        run(tmp_path, recipe(steps=1))
    assert (tmp_path / "tokenizer.json").read_text() == "of a model"


def test_a_loss_that_is_not_finite_stops_before_the_update(tmp_path: Path) -> None:
    r = training.open_run(recipe(), tmp_path / "run", Report(quiet=True))
    with torch.no_grad():
        next(r.training.network.parameters()).fill_(math.nan)
    others = [p.clone() for p in list(r.training.network.parameters())[1:]]
    with pytest.raises(QkvError, match="update 1, batch 1 of pool 0, epoch 0: the loss of micro-batch 0 is nan"):
        training.train(r.training, r.task, r.recipe.train, training.Hooks(print, print, print, print))
    for before, after in zip(others, list(r.training.network.parameters())[1:], strict=True):
        assert torch.equal(before, after)


@pytest.mark.parametrize("clip", [0.0, 1.0])
def test_a_gradient_that_is_not_finite_stops_before_the_update(clip: float) -> None:
    """The loss is finite: the root of 0 is 0, with an infinite slope."""

    class Root(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(()))

        def forward(self, batch: Batch) -> torch.Tensor:
            return self.weight.sqrt()

    network, batch = Root(), Batch(targets=torch.zeros(1, 1, dtype=torch.long))
    with pytest.raises(QkvError, match="the norm of the gradient is"):
        step(
            LossModule(network, lambda output, _: Loss(output, 1)),
            torch.optim.SGD(network.parameters(), 1.0),
            [batch],
            clip,
        )
    assert network.weight == 0


@pytest.mark.parametrize("every", [3, "25%", "10%", "100%"])
def test_intervals_are_due_at_every_multiple_and_after_a_resume(every: int | str, tmp_path: Path) -> None:
    r = recipe(evaluate_every=every)
    run(tmp_path / "run", r)
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    points = [line["step"] for line in lines if "valid_bleu" in line]
    assert points == {3: [3, 6, 9, 12], "25%": [3, 6, 9, 12], "100%": [12]}.get(
        every, [2, 3, 4, 5, 6, 8, 9, 10, 11, 12]
    )
    with pytest.raises(Killed):
        run(tmp_path / "parts", r, 7)
    run(tmp_path / "parts", r)
    same(contents(tmp_path / "run"), contents(tmp_path / "parts"))


def test_minutes_and_a_time_budget_give_points_on_a_slow_machine() -> None:
    """Updates of 20 s in a budget of 10 minutes: ten points all the same."""
    c = TrainConfig(steps=1000, time_budget=10.0)
    marks = [(step, max(step / 1000, step / 30), step / 3) for step in range(31)]
    for every, expected in (("10%", 10), ("2m", 5), (250, 0), ("20%", 5)):
        last, points = marks[0], 0
        for now in marks[1:]:
            unit, value = loop.next_due(interval(every), last)
            if now[unit] >= value:
                last, points = now, points + 1
        assert points == expected, every
    assert loop.Clock(Progress(step=10, seconds=300.0), c, []).mark == (10, 0.5, 5.0)


def test_a_second_sigterm_does_not_interrupt_what_a_second_interrupt_does() -> None:
    with loop.catch_signals() as received:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert received == [signal.SIGTERM, signal.SIGTERM]


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_a_run_with_a_time_budget_resumes_at_its_place_in_the_schedule(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a clock that only updates move, 15 s each, a budget of 5 minutes is 20 updates, whether they are interrupted or not."""
    r = recipe(steps=1000, time_budget=5.0, schedule="cosine", save_every=3, evaluate_every="20%")
    update, now = loop.one_update, [0.0]

    def timed(t, *rest):  # noqa: ANN001, ANN002, ANN202
        now[0] += 15
        if how == "stopped" and t.progress.step == stop_at:
            signal.raise_signal(signal.SIGTERM)
        return update(t, *rest)

    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(loop, "one_update", timed)
    stop_at = -1
    run(tmp_path / "whole", r)
    stop_at = 7
    if how == "stopped":
        assert run(tmp_path / "parts", r).ending.signal == signal.SIGTERM
    else:
        with pytest.raises(Killed):
            run(tmp_path / "parts", r, 8)
    stop_at = -1
    now[0] = 1e6  # much later, and counted from elsewhere
    ended = run(tmp_path / "parts", r)
    whole, parts = ((tmp_path / name / "log.jsonl").read_text() for name in ("whole", "parts"))
    assert parts == whole and whole.count("\n") == 20
    assert ended.training.progress.seconds == 300 and "time budget" in ended.why


@pytest.mark.parametrize("schedule", ["inverse-sqrt", "cosine", "linear", "stable-decay", "constant"])
def test_schedules_rise_then_fall(schedule: str) -> None:
    c = TrainConfig(steps=100, warmup=10, learning_rate=1.0, schedule=schedule)
    rates = [learning_rate(c, step, (step - 1) / 100) for step in range(1, 101)]
    assert rates[:10] == pytest.approx([step / 10 for step in range(1, 11)])  # in the warm-up nothing falls
    assert max(rates) == rates[9] == 1.0
    assert all(a >= b for a, b in pairwise(rates[9:]))
    last = {"inverse-sqrt": 10**-0.5, "cosine": 0.1, "linear": 1 / 90, "stable-decay": 5 / 90, "constant": 1.0}[
        schedule
    ]
    assert rates[-1] == pytest.approx(last, abs=1e-3) and rates[-1] > 0


@pytest.mark.parametrize("schedule", ["cosine", "linear", "stable-decay"])
@pytest.mark.parametrize("end", [{"time_budget": 10.0}, {"epochs": 3.0}])
def test_a_schedule_of_unknown_length_also_falls_after_its_warm_up(schedule: str, end: dict[str, float]) -> None:
    """300 updates fit, which get slower; a warm-up of 20 of them, or of a tenth of the run where the recipe asks for more."""
    shares = [(update / 300) ** 1.5 for update in range(300)]
    for warmup in (0, 20, 1000):
        c = TrainConfig(steps=1000, warmup=warmup, learning_rate=1.0, schedule=schedule, cosine_floor=0.0, **end)
        rates = [learning_rate(c, step, done) for step, done in enumerate(shares, 1)]
        top = rates.index(max(rates))
        assert max(rates) == pytest.approx(1, abs=0.02) and 0 < rates[-1] < 0.05
        assert (top + 1 == max(warmup, 1)) if warmup < 1000 else shares[top - 1] < 0.1 <= shares[top]
        assert all(a <= b for a, b in pairwise(rates[: top + 1])) and all(a >= b for a, b in pairwise(rates[top:]))


def test_the_cosine_ends_at_its_floor() -> None:
    for floor in (0.0, 0.1, 0.5):
        c = TrainConfig(steps=1000, warmup=10, learning_rate=2.0, schedule="cosine", cosine_floor=floor)
        assert learning_rate(c, 1000, 0.999) == pytest.approx(2 * floor, abs=1e-4)
        assert learning_rate(c, 11, 0.01) == 2.0


def test_the_average_of_the_weights_is_short_at_first_then_as_long_as_asked() -> None:
    """average = d average + (1 - d) weights with d = min(ema, (1 + step) / (10 + step)): 2/11 after the first update."""
    t = loop.prepare(build(recipe().model), TrainConfig(ema=0.5))
    expected = {name: p.clone() for name, p in t.average.module.named_parameters()}
    for update in range(1, 15):
        t.progress.step = update
        with torch.no_grad():
            for name, p in t.network.named_parameters():
                p.add_(torch.randn_like(p))
                share = min(0.5, (1 + update) / (10 + update))
                expected[name] = share * expected[name] + (1 - share) * p
        t.average.update_parameters(t.network)
    for name, p in t.average.module.named_parameters():
        torch.testing.assert_close(p, expected[name], atol=1e-5, rtol=1e-5)
