"""The command line: each verb does what it says, and what the user can mend is one line and exit code 2."""

from __future__ import annotations

import io
import json
import shlex
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import qkv
from qkv.errors import explain
from qkv.presets import ABOUT, PRESETS, tiny

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small LLaMA with a tokenizer of its own, saved."""
    import torch

    from qkv.api import Model
    from qkv.models.build import build
    from qkv.text.train import train_tokenizer

    torch.manual_seed(0)
    tokenizer = train_tokenizer(["the cat sat on the mat", "a dog ran to the cat"] * 20, "characters", 60)
    c = tiny("llama2-70b").changed(vocab_size=tokenizer.size)
    path = tmp_path_factory.mktemp("models") / "small"
    Model(c, build(c), tokenizer).save(path)
    return path


# --- what needs no model


def test_help_lists_every_verb_and_each_verb_shows_an_example(run: Run) -> None:
    code, out, _ = run("--help")
    verbs = "demo train translate evaluate compare presets params config generate check export lectures version".split()
    assert code == 0
    assert all(verb in out for verb in verbs)
    for verb in verbs:
        code, out, _ = run(verb, "--help")
        assert code == 0
        assert verb == "version" or out.count(f"qkv {verb}") >= 2, verb  # in the usage line and in an example


def test_examples_in_the_help_fit_into_80_columns() -> None:
    """A terminal's usual width: an example that breaks cannot be copied."""
    from qkv import commands

    for file in sorted(Path(commands.__path__[0]).glob("*.py")):
        for line in file.read_text().splitlines():
            shown = line.strip().removeprefix("[dim]").removesuffix("[/]")
            assert not line.strip().startswith("[dim]") or len(shown) <= 78, f"{file.name}: {shown}"


def test_version(run: Run) -> None:
    assert f"qkv {qkv.__version__} " in run("version")[1]
    assert run("--version") == run("version")


def test_presets_lists_each_with_its_source(run: Run) -> None:
    code, out, _ = run("presets")
    assert code == 0
    lines = {line.split()[0]: line for line in out.splitlines()}
    assert lines.keys() == PRESETS.keys()
    assert all(ABOUT[name] in line for name, line in lines.items())
    assert json.loads(run("presets", "--json")[1])["gpt2"]["d_model"] == 768


def test_config_explains_every_field(run: Run) -> None:
    from qkv.config import CorpusConfig, Recipe
    from qkv.config.vectors import TextConfig, VectorsConfig

    out, tables = run("config")[1], json.loads(run("config", "--json")[1])
    above = [f["field"] for f in tables.pop("top level")]
    assert {*above, *(title.strip("[]") for title in tables)} >= set(Recipe.model_fields)  # task, [tune], [corrupt] ...
    assert "Width of the residual stream" in out
    others = {"a corpus of [data]: train, valid, test": CorpusConfig, 'with task = "vectors": [vectors]': VectorsConfig,
              'with task = "vectors": [data]': TextConfig}  # fmt: skip
    for title, fields in tables.items():
        default = None if title in others else Recipe.model_fields[title.strip("[]")]
        kind = others[title] if default is None else default.annotation
        kind = getattr(kind, "__args__", (kind,))[0]  # of DataConfig | None
        assert title in out and [f["field"] for f in fields] == list(kind.model_fields)
        assert all(f["meaning"] and f["type"] and f["field"] in out for f in fields)


def test_params_of_gpt3_as_json(run: Run) -> None:
    code, out, _ = run("params", "gpt3-175b", "--json")
    counted = json.loads(out)
    assert code == 0
    assert counted["lecture"] == {"weights": 175_181_291_520, "matrices": 27_938}
    assert counted["parameters"] == sum(row["total"] for row in counted["rows"])


@pytest.mark.parametrize(
    "name", ["gpt3-175b", "transformer-big", "t5-v1.1-base", "bert-large", "rnnsearch", "mamba-130m"]
)
def test_a_table_of_parameters_fits_into_80_columns(run: Run, name: str) -> None:
    """No name is broken or cut; blocks are named once, above what repeats in them."""
    lines = run("params", name)[1].splitlines()
    assert max(map(len, lines)) <= 80 and not any("…" in line for line in lines)
    rows = json.loads(run("params", name, "--json")[1])["rows"]
    table = lines[1 : lines.index("")]
    group, found = "", []
    for line in table:
        inner, title = line.startswith("  "), len(line.split()) == 1
        group = f"{line.strip()}." if title else group if inner else ""
        found += [] if title else [group + line.split()[0]]
    assert found == [row["name"] for row in rows]


def test_what_is_to_be_copied_is_never_wrapped(tmp_path: Path) -> None:
    """At 80 columns, in a terminal as in a pipe: each command of the demo's next steps is one line, and paths are quoted."""
    from rich.console import Console

    from qkv.commands.demo import NEXT, next_steps
    from qkv.train.report import Report

    out, said = tmp_path / ("a long name " * 8).strip(), "x" * 60 + f" {tmp_path} " + "y" * 60
    for terminal in (True, False):
        screen = io.StringIO()
        console = Console(file=screen, force_terminal=terminal, width=80, color_system=None)
        next_steps(console, out)
        Report(console).say(said)
        lines = screen.getvalue().splitlines()
        assert len(lines) == 2 + 2 * len(NEXT) + 1 and lines[-1] == said
        own = [line for line in lines if shlex.quote(str(out)) in line]
        assert len(own) == sum("{out}" in command for command, _ in NEXT) > 3


def test_params_of_a_preset_a_recipe_and_a_folder(run: Run, tmp_path: Path, folder: Path) -> None:
    assert "124,439,808 parameters" in run("params", "gpt2")[1]
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('preset = "gpt2"\n')
    assert "124,439,808 parameters" in run("params", recipe)[1]
    half = json.loads(run("params", "gpt2", "--json", "--set", "model.n_layers=6")[1])
    assert half["parameters"] == 124_439_808 - 6 * 7_087_872
    assert half == json.loads(run("params", recipe, "--json", "--set", "model.n_layers=6")[1])

    from qkv.models.params import count

    c = qkv.load(folder).config
    assert json.loads(run("params", folder, "--json")[1])["parameters"] == count(c).parameters


def test_lectures_shows_the_answers_the_lectures_state(run: Run) -> None:
    code, out, _ = run("lectures")
    assert code == 0
    stated = ["14, 12", "0.88, 0.12", "0.8044, 0.1956", "0.6089, 0.1956", "175,181,291,520 weights in 27,938 matrices"]
    assert all(answer in out for answer in stated)
    assert all(f"B{i}" in out for i in range(1, 8))
    tables = [" ".join(line.split()) for line in out.splitlines()]
    assert "dim 2 1.000 0.540 -0.416 -0.990 -0.654" in tables
    assert "Apfel x x x x x . ." in tables
    assert "[1, 2, 1, 1] . [2, 3, 4, 8] 20 10.00" in tables
    assert "B3" in run("lectures", "b3")[1] and "B1" not in run("lectures", "b3")[1]
    assert "no worked example B9" in run("lectures", "B9")[2]


def test_the_demo_trains_scores_and_shows(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole way on a smaller corpus and a smaller network; a second time it shows the same at once."""
    monkeypatch.chdir(tmp_path)
    small = ["data.train=[{grammar=300}]", "data.valid.grammar=5", "data.test.grammar=20", "model.d_model=16",
             "data.batch_tokens=400", "train.steps=4", "train.evaluate_every=2"]  # fmt: skip
    command = ["demo", *(word for setting in small for word in ("--set", setting))]
    code, out, err = run(*command)
    assert code == 0, err
    assert (
        "This model is not trained yet" in out and "train.steps=6" in out.partition("Continue with: qkv demo --set")[2]
    )
    assert "I ate an apple." not in out and "Next steps" not in out  # no sample is shown as a success
    monkeypatch.setattr("qkv.commands.demo.GOOD", 0.0)
    code, out, err = run(*command)
    run_folder = tmp_path / "runs" / "demo"
    for said in ("I ate an apple.", "alignment", "BLEU|nrefs:1", "translate runs/demo", "lectures", "alignment.svg"):
        assert said in out, said
    assert out.count("\ntranslation ") == 6
    for name in ("alignment.svg", "curves.svg"):
        ET.fromstring((run_folder / name).read_text())
    log, (code, again, err) = (run_folder / "log.jsonl").read_bytes(), run(*command)
    assert (code, again) == (0, out) and "translating" not in err
    assert (run_folder / "log.jsonl").read_bytes() == log


def test_the_demo_trains_until_the_held_out_score_is_good(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1,500 updates are not enough, 2,250 are; a number that the user has set is kept, and so is the end of the time."""
    given: list[list[str]] = []
    scores, why, step = iter([50.0, 97.0, 50.0, 50.0]), ["all updates are done"], [10**9]

    def train_recipe(recipe: str, changes: list[str], *rest: object) -> SimpleNamespace:
        given.append(changes)
        steps = int(changes[-1].partition("=")[2]) if changes else 1500
        train = SimpleNamespace(steps=steps)
        return SimpleNamespace(progress=SimpleNamespace(best=next(scores), step=step[0]),
                               recipe=SimpleNamespace(train=train), why=why[0], results={"test": None}, folder=tmp_path)  # fmt: skip

    monkeypatch.setattr("qkv.commands.demo.train_recipe", train_recipe)
    monkeypatch.setattr("qkv.commands.demo.show", lambda *_: None)
    assert "continuing to 2,250 updates" in run("demo", "--out", tmp_path)[1]
    assert given == [[], ["train.steps=2250"]]
    assert "not trained yet" in run("demo", "--out", tmp_path, "--set", "train.steps=100")[1]
    why[0], step[0] = "the time budget of 10 min is over", 9
    out = run("demo", "--out", tmp_path)[1]
    assert (
        "after 9 of 1,500 updates because the time budget" in out
        and "Continue with: qkv demo --time-budget 30m --out" in out
    )
    assert len(given) == 4


def test_compare_takes_runs(run: Run, tmp_path: Path) -> None:
    for name, text in (("a", "Ein Hund läuft im Garten .\n"), ("b", "Ein Hund schläft im Garten .\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "test.hyp.txt").write_text(text)
        (tmp_path / name / "test.ref.txt").write_text("Ein Hund läuft im Garten .\n")
        (tmp_path / name / "recipe.toml").write_text((Path(__file__).parent.parent / "recipes/demo.toml").read_text())
        (tmp_path / name / "results.json").write_text('{"test": {"scores": [{"name": "BLEU", "value": 1.0}]}}')
    code, out, _ = run("compare", tmp_path / "a", tmp_path / "b", "--samples", "10", "--json")
    values = [row["value"] for row in json.loads(out) if row["metric"] == "BLEU"]
    assert code == 0 and values[0] == pytest.approx(100) and values[1] < 99
    (tmp_path / "b" / "test.ref.txt").write_text("Ein anderer Satz .\n")
    assert "different test sets" in run("compare", tmp_path / "a", tmp_path / "b")[2]


# --- with a model


def test_generate_is_what_the_library_writes(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, err = run("generate", folder, "the cat", "--max-new-tokens", "8", "--device", "cpu")
    assert (code, err) == (0, "")
    assert out == "".join(qkv.load(folder).generate("the cat", max_new_tokens=8)) + "\n"

    import io

    monkeypatch.setattr(sys, "stdin", io.StringIO("the cat\n"))
    assert run("generate", folder, "--max-new-tokens", "8")[1] == out
    sampled = ["generate", folder, "the", "--max-new-tokens", "20", "--temperature", "5", "--seed"]
    assert run(*sampled, "1")[1] == run(*sampled, "1")[1] != run(*sampled, "2")[1]


def test_chat_without_a_template_is_refused(run: Run, folder: Path) -> None:
    code, _, err = run("generate", folder, "hello", "--chat")
    assert code == 2
    assert "chat template" in err


def test_check_measures_every_contract(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from qkv.check import CONTRACTS

    code, out, _ = run("check", folder, "--json")
    results = json.loads(out)
    assert code == 0
    assert [r["contract"] for r in results] == list(CONTRACTS)
    assert {r["status"] for r in results} == {"holds"}  # GPT-2: all of them apply

    from qkv.check import Result

    made_up = [Result("causal", "x", 1e-6, 0.5), Result("cache", "y", 1e-6, None, "why not")]
    monkeypatch.setattr("qkv.check.check_folder", lambda folder: made_up)
    code, out, _ = run("check", folder)
    assert code == 1
    assert "BROKEN" in out
    assert "does not apply" in out
    assert "why not" in out


def test_export_there_and_back(run: Run, folder: Path, tmp_path: Path) -> None:
    code, out, _ = run("export", folder, tmp_path / "hf", "--to", "hf")
    assert code == 0
    assert str(tmp_path / "hf") in out.replace("\n", "")
    assert run("export", tmp_path / "hf", tmp_path / "ours", "--to", "qkv")[0] == 0
    first, back = qkv.load(folder), qkv.load(tmp_path / "ours")
    theirs = dict(back.network.named_parameters())
    assert all(bool((p == theirs[name]).all()) for name, p in first.network.named_parameters())


# --- what goes wrong


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["params", "gtp2"], "did you mean 'gpt2'"),
        (["params", "gpt2", "--set", "model.n_heads=5"], "n_heads = 5"),
        (["params", "gpt2", "--set", "d_model=5"], "model.FIELD=VALUE"),
        (["params", "gpt2", "--set", "model=5"], "table"),
        (["params", "no/such/folder"], "no/such/folder"),
        (["params", "no-such.toml"], "no-such.toml"),
        (["check", "no/such/folder"], "no/such/folder"),
        (["generate", "no/such/folder", "hello"], "no/such/folder"),
        (["export", "no/such/folder", "out"], "no/such/folder"),
    ],
)
def test_an_error_is_one_line_and_code_2(run: Run, arguments: list[str], said: str) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert said in err


@pytest.mark.parametrize("arguments", [["sing"], ["params"], ["params", "gpt2", "--loud"], ["generate", "x", "y", "--top-p", "2"],
                                       ["generate", "x", "y", "--device", "abacus"], ["export", "x", "y", "--to", "z"]])  # fmt: skip
def test_wrong_usage_is_code_2(run: Run, arguments: list[str]) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert "Usage" in err
    assert "Traceback" not in err


def test_a_device_that_is_not_here_is_an_error(run: Run, folder: Path) -> None:
    import torch

    if torch.backends.mps.is_available():
        pytest.skip("this machine has it")
    code, _, err = run("generate", folder, "x", "--device", "mps")
    assert code == 2
    assert err.startswith("error: ")


def test_interrupted_is_130_without_a_traceback(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(config: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("qkv.models.params.count", interrupt)
    code, _, err = run("params", "gpt2")
    assert code == 130
    assert "Traceback" not in err


def test_a_reader_that_goes_away_is_no_error() -> None:
    command = [sys.executable, "-m", "qkv", "presets", "--json"]  # more than a pipe holds
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    process.wait(60)


def test_help_and_presets_do_not_import_torch() -> None:
    code = (
        "import sys; sys.argv = ['qkv', {!r}]\n"
        "from qkv.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "sys.exit('torch' in sys.modules)"
    )
    for argument in ("--help", "presets", "config", "version"):
        done = subprocess.run([sys.executable, "-c", code.format(argument)], capture_output=True, check=False)
        assert done.returncode == 0, argument
        assert done.stdout


def test_what_the_system_refuses_is_one_line_too(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for arguments in (
        ["check", "a" * 5000],
        ["export", folder, "b" * 300],
        ["generate", folder, "a", "--seed", 10**25],
    ):
        code, _, err = run(*arguments)
        assert code == 2 and err.startswith("error: ") and err.count("\n") == 1, err
    monkeypatch.setattr(sys, "stdin", None)
    code, _, err = run("generate", folder)
    assert code == 2 and "give a prompt" in err


def test_lack_of_memory_is_one_line_too() -> None:
    """An allocation that really fails, on a CPU; a GPU's error is a RuntimeError too. Other errors keep their traceback."""
    with pytest.raises(RuntimeError) as refused:
        torch.empty(2**60, dtype=torch.uint8)
    for error in (
        refused.value,
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        MemoryError(),
    ):
        assert explain(error).startswith("not enough memory")
    assert explain(RuntimeError("the shapes differ")) == ""


def test_a_prompt_longer_than_the_context_is_refused(run: Run, folder: Path) -> None:
    code, _, err = run("generate", folder, "a " * 500)
    assert code == 2 and "shorten the prompt" in err


def test_a_typo_in_a_setting_gets_a_hint(run: Run) -> None:
    code, _, err = run("params", "gpt2", "--set", "model.d_modle=256")
    assert code == 2 and "did you mean 'd_model'" in err


# --- how much is imported

HEAVY = "torch._dynamo torch._inductor sympy scipy sklearn nltk rouge_score pandas matplotlib PIL transformers plotly fastapi".split()


def test_translating_imports_nothing_that_it_does_not_use(tmp_path: Path) -> None:
    """Two thirds of the time of one sentence were imports: of ROUGE, and of torch's compiler by an outline on the meta device."""
    import torch

    from qkv.api import Model
    from qkv.models.build import build
    from qkv.text.train import train_tokenizer

    torch.manual_seed(0)
    tokenizer = train_tokenizer(["the cat sat on the mat", "a dog ran to the cat"] * 20, "bpe", 60)
    c = tiny("transformer-base").changed(vocab_size=tokenizer.size, pad_id=0, bos_id=1, eos_id=2, position="sinusoidal")
    Model(c, build(c), tokenizer).save(tmp_path / "m")
    code = (
        "import sys\nfrom qkv.cli import main\n"
        f"sys.argv = ['qkv', 'translate', {str(tmp_path / 'm')!r}, 'the cat sat.', '--max-length', '5']\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[-1] == "[]"
