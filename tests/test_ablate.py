"""Ablations: variants are complete and checked first, runs are trained in parallel and resumed, significance is sacreBLEU's."""

from __future__ import annotations

import csv
import json
import math
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from conftest import Run

import qkv
from qkv.commands.train import train_recipe, word_vectors
from qkv.errors import ConfigError, FileError
from qkv.lab.ablation import Design, design, finish_ablation
from qkv.lab.parallel_runs import Outcome, PlannedRun, RunningRun, run_state, train_runs
from qkv.lab.runs_progress import train_with_progress
from qkv.lab.statistics import combine_p_values, correct_p_values
from qkv.lab.variant_results import MetricResult, Trial, compare_outputs
from qkv.lab.variants import Factor, make_variants, parse_factor, split_values
from qkv.look.charts import DotRow, dot_plot
from qkv.train.compare import compare_runs

RECIPE = """
task = "classification"
[model]
family = "encoder"
head = "classes"
pooling = "mean"
d_model = 16
n_layers = 1
n_heads = 2
d_ff = 16
max_length = 48
[data]
train = [{ grammar = 60 }]
valid = { grammar = 8 }
test = { grammar = 60 }
vocab_size = 150
max_length = 40
batch_tokens = 400
[train]
steps = 8
warmup = 1
learning_rate = 0.02
evaluate_every = 4
save_every = 4
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(RECIPE)
    return path


def plan(recipe: Path, *vary: str, **how: Any) -> Design:
    return design(str(recipe), [parse_factor(text) for text in vary], out=recipe.parent / "out", **how)


def train_here(runs: Sequence[PlannedRun]) -> None:
    """Train within this process, which has imported everything already."""
    for run in runs:
        train_recipe(str(run.source), list(run.settings), run.folder, None, 1, 1)


# --- variants


def test_values_are_split_at_commas_outside_of_brackets_and_quotes() -> None:
    assert split_values('a, [1, 2],"b,c",{ x = [1, 2] }') == ["a", "[1, 2]", '"b,c"', "{ x = [1, 2] }"]
    assert parse_factor("model.d_ff=16,32") == Factor("model.d_ff", ("16", "32"))
    for wrong in ("model.d_ff", "=1,2", "train.seed=1,2", "train.learning_rate=0.1,0.10"):
        with pytest.raises(ConfigError):
            parse_factor(wrong)


def test_a_grid_has_every_combination_once_and_the_baseline_first(recipe: Path) -> None:
    factors = [parse_factor("model.position=none,learned,rotary"), parse_factor("model.d_ff=8,16")]
    names = [variant.name for variant in make_variants(recipe, [], factors)]
    assert len(set(names)) == 6 and names[0] == "position=none, d_ff=8"
    chosen = make_variants(recipe, [], factors, baseline=["model.d_ff=16"])
    assert chosen[0].name == "position=none, d_ff=16" and {variant.name for variant in chosen} == set(names)
    with pytest.raises(ConfigError, match="none of the values"):
        make_variants(recipe, [], factors, baseline=["model.d_ff=32"])


def test_one_at_a_time_has_the_recipe_and_each_other_value_alone(recipe: Path) -> None:
    factors = [parse_factor("model.n_heads=1,2,4"), parse_factor("model.d_ff=8,16")]
    names = [variant.name for variant in make_variants(recipe, [], factors, one_at_a_time=True)]
    assert names == ["recipe", "n_heads=1", "n_heads=4", "d_ff=8"]  # 2 heads and d_ff = 16 are the recipe's own


def test_fields_with_one_last_name_are_told_apart(recipe: Path) -> None:
    d = plan(recipe, "model.max_length=48,64", "data.max_length=20,40", seeds=2)
    assert next(iter(d.plans)).name == "model.max_length=48, data.max_length=20"
    assert len({run.folder for run in d.runs}) == 8 == len(d.runs)
    assert [run.settings[-1] for run in d.runs] == ["train.seed=1"] * 4 + ["train.seed=2"] * 4


def test_folders_depend_on_the_variant_alone(recipe: Path) -> None:
    few, many = plan(recipe, "model.d_ff=8,16"), plan(recipe, "model.d_ff=4,8,16,32")
    assert {run.folder for run in few.runs} < {run.folder for run in many.runs}
    odd = plan(recipe, 'model.labels=["a/b", "c"],["a:b", "c"]', seeds=1)
    assert len({run.folder.name for run in odd.runs}) == 2 and all("/" not in run.folder.name for run in odd.runs)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--vary", "model.positon=none,rotary"], "did you mean 'position"),
        (["--vary", "model.position=none,rotten"], "--vary model.position=rotten"),
        (["--vary", "model.n_heads=1,2", "--vary", "model.d_model=16,15"], "does not divide"),
        (["--vary", "model.d_ff=8,16", "--set", "train.step=3"], "train.step"),
        (["--vary", "decode.beam=1,2"], "does not apply to task"),
        (["--vary", "model.d_ff=8"], "only one variant"),
        (["--vary", "model.d_ff=8,16", "--vary", "model.d_ff=32"], "twice"),
        (["--vary", "model.d_ff=8,16", "--baseline", "model.d_ff=9"], "none of the values"),
    ],
)
def test_bad_fields_are_one_line_before_anything_is_trained(
    run: Run, recipe: Path, arguments: list[str], words: str
) -> None:
    out = recipe.parent / "out"
    code, _, error = run("ablate", recipe, "--out", out, *arguments)
    assert code == 2 and words in error and error.count("\n") == 1 and not out.exists()


# --- runs


def test_finished_runs_are_kept_and_interrupted_ones_resume(run: Run, recipe: Path) -> None:
    """Two variants trained here, one of them without its results; the third is trained by the command. All are as if trained alone."""
    d = plan(recipe, "model.position=learned,none,rotary", seeds=1)
    first, second, third = d.runs
    train_here([first, second])
    wanted = (second.folder / "test.predictions.tsv").read_bytes()
    (second.folder / "results.json").unlink()
    assert [run_state(one) for one in d.runs] == ["finished", "started", "new"]
    before = (first.folder / "results.json").stat().st_mtime_ns
    out = recipe.parent / "out"
    arguments = ["ablate", recipe, "--vary", "model.position=learned,none,rotary", "--seeds", "1", "--out", out]
    code, text, messages = run(*arguments)
    assert not code and "1 of 3 runs finished before" in messages and text.startswith("| variant | seeds | accuracy")
    assert [run_state(one) for one in d.runs] == ["finished"] * 3
    assert (first.folder / "results.json").stat().st_mtime_ns == before
    assert (second.folder / "test.predictions.tsv").read_bytes() == wanted
    log = (third.folder / "log.jsonl").read_bytes()
    assert len(log.splitlines()) == 8 and (out / "logs" / f"{third.folder.name}.txt").stat().st_size
    assert all((out / name).stat().st_size for name in ("index.html", "table.md", "results.json", "figure.svg"))
    rows = list(csv.DictReader((out / "table.csv").open()))
    assert [row["model.position"] for row in rows] == ["learned", "none", "rotary"]
    compared = compare_runs([first.folder, third.folder], print)
    p = {row.metric: row.p for row in compared if row.system == str(third.folder)}
    assert float(rows[2]["accuracy_p_outputs"]) == p["accuracy"]

    def state_with(setting: str) -> str:
        return run_state(plan(recipe, "model.position=learned,none", seeds=1, settings=[setting]).runs[0])

    for setting in ("model.dropout=0.2", "train.learning_rate=0.01", "train.steps=4", "train.evaluate_every=2"):
        with pytest.raises(FileError, match=f"another recipe: {setting.partition('=')[0]} is .* there and .* here"):
            state_with(setting)
    assert state_with("train.save_every=2") == state_with("data.test={ grammar = 30 }") == "started"
    code, _, error = run(*arguments, "--set", "train.steps=4")
    assert code == 2 and error.count("\n") == 1 and f"{first.folder} holds" in error and "8 there and 4 here" in error


def test_finished_word_vectors_are_kept(recipe: Path) -> None:
    recipe.write_text('task = "vectors"\n[data]\ntrain = [{ grammar = 50 }]\n[vectors]\nwidth = 4\nepochs = 1\n')
    one = plan(recipe, "vectors.window=2,3", seeds=1).runs[0]
    word_vectors(str(one.source), list(one.settings), one.folder, None, 1)
    assert run_state(one) == "finished"


def test_scores_of_several_seeds(recipe: Path) -> None:
    """Means, paired differences and the parameters of the network are those of the runs."""
    d = plan(recipe, "model.d_ff=4,32", seeds=2)
    train_here(d.runs)
    found = finish_ablation(d, Outcome({}), "qkv ablate")
    base, other = found.variants
    scores = {run.name: json.loads((run.folder / "results.json").read_text()) for run in d.runs}
    values = {name: one["test"]["scores"][0]["value"] for name, one in scores.items()}
    own = [values["d_ff=32, seed 1"], values["d_ff=32, seed 2"]]
    assert found.metric == "accuracy" and list(other.metrics["accuracy"].values.values()) == own
    change = (own[0] - values["d_ff=4, seed 1"] + own[1] - values["d_ff=4, seed 2"]) / 2
    assert other.metrics["accuracy"].difference is not None
    assert other.metrics["accuracy"].difference.mean == pytest.approx(change)
    assert other.parameters == scores["d_ff=32, seed 1"]["model"]["parameters"] != base.parameters
    again = qkv.ablate(recipe, {"model.d_ff": [4, 32]}, seeds=2, out=d.folder, quiet=True)
    assert again.variants[1].metrics == other.metrics
    failed = finish_ablation(d, Outcome({"d_ff=32, seed 1": "no room", "d_ff=32, seed 2": "no room"}), "qkv ablate")
    assert "| d_ff=32 | 0 | failed |" in (d.folder / "table.md").read_text() and len(failed.failed) == 2


def test_the_recorded_command_has_the_whole_design(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[str] = []
    monkeypatch.setattr("qkv.lab.ablation.train_design", lambda *how: Outcome({}))
    monkeypatch.setattr("qkv.lab.ablation.finish_ablation", lambda d, outcome, command, *how: commands.append(command))
    vary = {"model.d_ff": [4, 32]}
    qkv.ablate(recipe, vary, baseline={"model.d_ff": 32}, metric="loss", out="other folder", samples=50)
    qkv.ablate(recipe, vary, one_at_a_time=True)
    assert commands[0].endswith("--baseline model.d_ff=32 --seeds 3 --out 'other folder' --metric loss --samples 50")
    assert commands[1].endswith("--one-at-a-time") and "--baseline" not in commands[1]


class Silent:
    """A display that keeps what it is given."""

    def __init__(self) -> None:
        self.most, self.ended = 0, dict[str, str]()

    def update(self, running: Sequence[RunningRun], waiting: Sequence[PlannedRun]) -> None:
        self.most = max(self.most, len(running))

    def end(self, run: RunningRun, error: str) -> None:
        self.ended[run.plan.name] = error

    def say(self, text: str) -> None:
        pass


def script(code: str) -> Callable[[PlannedRun], list[str]]:
    """A process in place of the training of a run."""
    return lambda run: [sys.executable, "-S", "-c", code, str(run.folder), run.name]


def test_a_run_that_fails_does_not_stop_the_others(recipe: Path) -> None:
    d = plan(recipe, "model.d_ff=4,8,16,32", seeds=1)
    code = (
        "import sys, time; time.sleep(.3); sys.exit('error: no room for it' if 'd_ff=8,' in sys.argv[2] + ',' else 0)"
    )
    display = Silent()
    outcome = train_runs(d.runs, 2, display, script(code))
    assert (
        list(outcome.failed) == ["d_ff=8, seed 1"] and "no room for it (exit code 1" in outcome.failed["d_ff=8, seed 1"]
    )
    assert len(display.ended) == 4 and display.most == 2


def test_ctrl_c_stops_the_runs_once_and_waits_for_their_checkpoints(recipe: Path) -> None:
    d = plan(recipe, "model.d_ff=4,8,16", seeds=1)
    code = (
        "import pathlib, signal, sys, time\n"
        "folder = pathlib.Path(sys.argv[1]); folder.mkdir(parents=True)\n"
        "def save(*_):\n time.sleep(.3); (folder / 'saved').touch(); sys.exit(130)\n"
        "signal.signal(signal.SIGINT, save); (folder / 'ready').touch(); time.sleep(60)"
    )

    def interrupt() -> None:
        while not all((run.folder / "ready").exists() for run in d.runs[:2]):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    outcome = train_runs(d.runs, 2, Silent(), script(code))
    assert outcome.signal == signal.SIGINT and not outcome.failed
    assert [(run.folder / "saved").exists() for run in d.runs] == [True, True, False]  # the third was never started


def test_progress_is_printed(recipe: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "import pathlib, sys, time\n"
        "folder = pathlib.Path(sys.argv[1]); folder.mkdir(parents=True)\n"
        "for i in (2, 4, 6):\n"
        '    (folder / \'log.jsonl\').write_text(\'{"step": %d, "loss": 1.5}\\n{"st\' % i); time.sleep(.5)'
    )
    monkeypatch.setattr("qkv.lab.runs_progress.SILENCE", 0.0)
    command = script(code)
    monkeypatch.setattr("qkv.lab.runs_progress.train_runs", lambda *how: train_runs(*how, command))
    assert train_with_progress(plan(recipe, "model.d_ff=4,8", seeds=1).runs, 1) == Outcome({})
    lines = capsys.readouterr().err
    assert "d_ff=4, seed 1: update 4, loss 1.500" in lines and "updates/s" in lines and "to go" in lines
    assert "d_ff=8, seed 1: finished in" in lines and "(2 of 2)" in lines


# --- significance


def fake_run(folder: Path, hypotheses: list[str], references: list[str]) -> Trial:
    """A finished run of a translator, as far as its test outputs go."""
    folder.mkdir()
    (folder / "recipe.toml").write_text(
        '[model]\nfamily = "encoder-decoder"\nd_model = 8\nn_layers = 1\nd_ff = 8\n[data]\ntrain = [{ grammar = 9 }]\n'
        "valid = { grammar = 9 }\n"
    )
    for name, texts in (("hyp", hypotheses), ("ref", references)):
        (folder / f"test.{name}.txt").write_text("".join(f"{text}\n" for text in texts))
    results = {"test": {"scores": [{"name": "BLEU", "value": 1.0}]}, "training": {"minutes": 1.0}, "model": {}}
    (folder / "results.json").write_text(json.dumps(results))
    return Trial(1, folder, results)


def test_significance_is_that_of_sacrebleu(tmp_path: Path) -> None:
    """The p-values of BLEU and chrF2 are those of the `sacrebleu` command on the same files."""
    words = random.Random(3)
    right = [" ".join(words.choices("der die das Hund Katze Haus sieht hat ein eine".split(), k=9)) for _ in range(60)]

    def translate(wrong: float) -> list[str]:
        return [" ".join("und" if words.random() < wrong else word for word in text.split()) for text in right]

    systems = [
        fake_run(tmp_path / name, translate(wrong), right) for name, wrong in zip("abc", (0.2, 0.2, 0.1), strict=True)
    ]
    files = [str(one.folder / "test.hyp.txt") for one in systems]
    command = [
        sys.executable,
        "-m",
        "sacrebleu",
        str(systems[0].folder / "test.ref.txt"),
        "-i",
        *files,
        "-m",
        "bleu",
        "chrf",
    ]
    theirs = subprocess.run([*command, "--paired-bs", "-f", "text"], capture_output=True, check=True, text=True)
    found = [float(p) for p in re.findall(r"p = ([0-9.]+)", theirs.stdout)]  # of each system but the first: BLEU, chrF2
    assert len(found) == 4
    for other, p_bleu, p_chrf in zip(systems[1:], found[::2], found[1::2], strict=True):
        compared, reason = compare_outputs({1: (systems[0], other)}, 1000)
        ours = {name: row.p for name, row in compared[1].items()}
        assert not reason and ours == pytest.approx({"BLEU": p_bleu, "chrF2": p_chrf}, abs=5e-5)
    assert found[0] > 0.05 > found[2]  # one difference is chance, the other is not


def test_other_test_sets_are_not_compared(tmp_path: Path) -> None:
    first, second = fake_run(tmp_path / "a", ["ein Hund"], ["ein Hund"]), fake_run(tmp_path / "b", ["ja"], ["nein"])
    compared, reason = compare_outputs({1: (first, second)}, 100)
    assert not compared and "different test sets" in reason


def test_a_test_set_without_labels_leaves_the_scores_of_the_validation_set(tmp_path: Path) -> None:
    one = Trial(1, tmp_path, {"test": {"scores": []}, "valid": {"metric": "accuracy", "value": 0.5}})
    assert one.set == "valid" and one.scores == {"accuracy": 0.5}


def test_p_values_are_combined_and_corrected() -> None:
    assert combine_p_values([0.03]) == 0.03
    assert combine_p_values([0.5, 0.02, 0.001]) == pytest.approx(1.5 * 0.02)  # twice as likely as half of them
    uniform = random.Random(1)
    equal = [combine_p_values([uniform.random() for _ in range(3)]) < 0.05 for _ in range(4000)]
    same = [combine_p_values([uniform.random()] * 3) < 0.05 for _ in range(4000)]
    assert (
        sum(equal) / 4000 < 0.05 and sum(same) / 4000 < 0.06
    )  # never more false results than 5 %, however they depend
    assert correct_p_values([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])  # Holm's own example


def test_verdicts() -> None:
    def result(p_outputs: float, p_seeds: float | None, change: float) -> MetricResult:
        from qkv.lab.statistics import Estimate

        return MetricResult({1: 1.0}, Estimate(change, 0.1), p_seeds, {1: p_outputs}, "paired bootstrap")

    assert result(0.01, 0.02, 1.0).verdict("BLEU") == "better" == result(0.01, None, -1.0).verdict("loss")
    assert result(0.01, 0.02, -1.0).verdict("BLEU") == "worse" == result(0.01, 0.02, 1.0).verdict("TER")
    assert result(0.01, 0.2, 1.0).verdict("BLEU") == "outputs only"
    assert result(0.3, 0.01, 1.0).verdict("BLEU") == "seeds only"
    assert result(0.3, 0.2, 1.0).verdict("BLEU") == "no difference shown"
    assert result(0.3, math.nan, 1.0).verdict("BLEU") == "no difference shown"
    assert result(0.01, math.nan, math.nan).verdict("BLEU") == ""  # a run diverged


def test_a_dot_plot_has_all_rows_within_its_frame() -> None:
    rows = [DotRow("a", [1.0, 2.0], 1.5, 6.0), DotRow("b < c", [3.0], 3.0, float("inf"))]
    drawing = dot_plot(rows, "title", "x", 1.5)
    assert "b &lt; c" in drawing and drawing.count("<circle") == 5
    places = [float(part.split('"')[1]) for part in drawing.split("cx=")[1:]]
    width = float(drawing.split('width="')[1].split('"')[0])
    assert all(0 < place < width for place in places)
