"""Domain adaptation: a translator learns a new domain, old text is mixed in, and further held-out sets are watched by name."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qkv.config import DataConfig, load_recipe, validate
from qkv.errors import ConfigError
from qkv.models.build import build
from qkv.recipes import find
from qkv.tasks.base import TASKS, task_of, unused
from qkv.train.warm_start import contradictions

Run = Callable[..., tuple[int, str, str]]

WORDS = "one two three four five six seven eight".split()
GENERAL = dict(zip(WORDS, "eins zwei drei vier fünf sechs sieben acht".split(), strict=True))
DOMAIN = GENERAL | {"two": "paar", "six": "halbes", "eight": "oktett"}
"""Other words for the same in sentences that begin with "order"."""

RECIPE = """
[model]
family = "encoder-decoder"
d_model = 32
n_layers = 1
n_heads = 2
d_ff = 64
norm_order = "pre"
position = "rotary"
tie = "all"
dropout = 0.0
[data]
train = [{ table = "general.tsv" }]
valid = { table = "general-valid.tsv" }
tokenizer = "words"
batch_tokens = 500
[data.extra_valid]
domain = { table = "domain-valid.tsv" }
[train]
steps = 120
learning_rate = 1e-2
optimizer = "muon"
schedule = "constant"
warmup = 10
evaluate_every = 60
save_every = 150
label_smoothing = 0.0
[decode]
beam = 1
"""


def pairs(count: int, seed: int, words: dict[str, str], begin: str) -> str:
    r = random.Random(seed)
    chosen = ([r.choice(WORDS) for _ in range(r.randint(2, 4))] for _ in range(count))
    return "".join(f"{begin} {' '.join(row)}\t{begin} {' '.join(words[word] for word in row)}\n" for row in chosen)


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two domains, their recipe, and the translator of the first in runs/general, which knows all words."""
    folder = tmp_path_factory.mktemp("adapt")
    (folder / "general.tsv").write_text(
        pairs(1000, 1, GENERAL, "say") + "order\torder\npaar halbes oktett\tpaar halbes oktett\n"
    )
    (folder / "general-valid.tsv").write_text(pairs(20, 2, GENERAL, "say"))
    (folder / "domain.tsv").write_text(pairs(300, 3, DOMAIN, "order"))
    (folder / "domain-valid.tsv").write_text(pairs(20, 4, DOMAIN, "order"))
    (folder / "general.toml").write_text(RECIPE)
    return folder


def log(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


ADAPT = ("tune.start=runs/general", 'data.valid={ table = "domain-valid.tsv" }',
         'data.extra_valid={ general = { table = "general-valid.tsv" } }', "train.steps=60", "train.evaluate_every=30",
         "train.learning_rate=3e-3")  # fmt: skip
MIXED = 'data.train=[{ table = "domain.tsv", weight = 3 }, { table = "general.tsv", weight = 1 }]'


def adapt(here: Path, run: Run, name: str, data: str) -> tuple[dict[str, Any], str, str]:
    """The results of a run that adapts runs/general, and what was printed."""
    settings = [word for setting in (*ADAPT, data) for word in ("--set", setting)]
    code, out, err = run("train", "general.toml", "--out", f"runs/{name}", *settings)
    assert code == 0, err
    return json.loads((here / "runs" / name / "results.json").read_text()), out, err


def test_adapted_it_knows_the_domain_and_both_scores_are_reported(
    here: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(here)
    code, out, err = run("train", "general.toml")
    assert code == 0, err
    before = json.loads((here / "runs" / "general" / "results.json").read_text())
    assert before["valid"]["value"] > 70
    ignorant = before["extra_valid"]["domain"]["scores"]["bleu"]
    assert (
        f"domain BLEU {ignorant:.2f}, of the same weights" in out.replace(f"{ignorant:.4f}", f"{ignorant:.2f}")
        and ignorant < 20
    )

    forgets, _, _ = adapt(here, run, "alone", 'data.train=[{ table = "domain.tsv" }]')
    after, out, err = adapt(here, run, "mixed", MIXED)
    kept, lost = after["extra_valid"]["general"], forgets["extra_valid"]["general"]
    assert min(after["valid"]["value"], forgets["valid"]["value"]) > ignorant + 30
    assert kept["scores"]["bleu"] > lost["scores"]["bleu"] + 20  # the old pairs that were mixed in
    folder = here / "runs" / "mixed"
    lines = log(folder)
    assert kept["examples"] == 20 and kept["metric"] == "bleu"
    assert f"general BLEU {kept['scores']['bleu']:.2f}, of the same weights" in out
    assert "vocabulary of runs/general" in err

    looked = [line for line in lines if "valid_bleu" in line]
    assert len(looked) == 2 and all({"valid_general_bleu", "valid_general_loss"} <= line.keys() for line in looked)
    best = next(line for line in looked if line["step"] == after["valid"]["update"])
    assert best["valid_general_bleu"] == pytest.approx(kept["scores"]["bleu"])
    assert f"general BLEU {looked[-1]['valid_general_bleu']:.2f}" in err and "general loss" in err
    card = (folder / "README.md").read_text()
    assert "| validation, general | 20 | greedy | BLEU |" in card and "validation, general: general-valid.tsv" in card
    assert "general not used for selection" in card and "weight 3" in card
    assert "held out general" in (folder / "curves.svg").read_text()
    assert b"valid/general_bleu" in next((folder / "tensorboard").iterdir()).read_bytes()


def test_a_further_set_decides_nothing(here: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same run without it: the same weights, and the same log but for its scores."""
    monkeypatch.chdir(here)
    short = ("--set", "train.steps=6", "--set", "train.evaluate_every=2", "--set", "train.patience=1")
    assert run("train", "general.toml", "--out", "runs/with", *short)[0] == 0
    assert run("train", "general.toml", "--out", "runs/without", *short, "--set", "data.extra_valid={}")[0] == 0
    with_it, without = log(here / "runs" / "with"), log(here / "runs" / "without")
    assert any("valid_domain_bleu" in line for line in with_it)
    assert [{k: v for k, v in line.items() if "domain" not in k} for line in with_it] == without
    files = [(here / "runs" / name / "best" / "model.safetensors").read_bytes() for name in ("with", "without")]
    assert files[0] == files[1]


def test_a_set_added_to_an_ended_run_is_scored_without_training(
    here: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(here)
    short = ("--out", "runs/later", "--set", "train.steps=2")
    assert run("train", "general.toml", *short, "--set", "data.extra_valid={}")[0] == 0
    code, out, err = run("train", "general.toml", *short)
    assert code == 0 and "domain BLEU" in out and "changed: data.extra_valid" in err
    assert len(log(here / "runs" / "later")) == 2


RECIPES = {"translation": "demo", "summary": "summaries", "language": "grammar-lm", "masked": "masked", "span-corruption": "spans",
           "denoising": "denoising", "classification": "sentences", "regression": "sentences", "tagging": "tags",
           "answering": "answers", "images": "digits", "captions": "shapes", "conversation": "chat-grammar"}  # fmt: skip


@pytest.mark.parametrize("task", RECIPES)
def test_every_task_scores_further_sets(task: str, tmp_path: Path) -> None:
    """A further set gets the numbers that it would have as data.valid."""
    (tmp_path / "numbers.tsv").write_text("".join(f"a text of {n}\t{n % 5}\n" for n in range(20)))
    numbers = f'{{ table = "{tmp_path}/numbers.tsv" }}', f'{{ table = "{tmp_path}/numbers.tsv", share = [0.0, 0.4] }}'
    pictures = '{ dataset = "digits" }', '{ dataset = "digits", split = "test" }'
    drawings = "{ shapes = 20 }", "{ shapes = 5 }"
    texts = "{ grammar = 40 }", "{ grammar = 3 }"
    train, other = {"regression": numbers, "images": pictures, "captions": drawings}.get(task, texts)
    small = [f"task={task}", f"data.train=[{train}]", f"data.valid={train}", f"data.test={other}", "model.n_layers=1"]
    watching = load_recipe(find(RECIPES[task]), [*small, f"data.extra_valid.more={other}"])
    swapped = load_recipe(find(RECIPES[task]), [*small, f"data.valid={other}"])
    kind = task_of(watching)
    words = kind.prepare(watching, lambda _: None)
    config = kind.fitted(watching, words)
    network = build(config).eval()
    (more,) = kind(watching, config, words).extra.values()
    alone = kind(swapped, config, words)
    assert len(more.valid) == len(alone.valid) and more.metric == alone.metric
    assert more.evaluate(network) == alone.evaluate(network)


def test_all_tasks_score_further_sets_but_the_one_that_refuses_them() -> None:
    assert set(TASKS) == RECIPES.keys() | {"replaced"}


def test_the_recipe_of_the_guide_adapts_a_run(tmp_path: Path) -> None:
    """docs/adapt.md: its recipe is whole with the network of its start, and contradicts nothing of it."""
    text = (Path(__file__).parents[1] / "docs" / "adapt.md").read_text().partition("```toml\n")[2].partition("```")[0]
    (tmp_path / "adapt.toml").write_text(text)
    start = load_recipe(find("demo")).model
    recipe = load_recipe(tmp_path / "adapt.toml", None, lambda _: start)
    assert recipe.tune.start == "runs/general" and set(recipe.data.extra_valid) == {"general"}  # type: ignore[union-attr]
    assert [corpus.weight for corpus in recipe.data.train] == [3, 1] and not contradictions(start, recipe.model)  # type: ignore[union-attr]
    task_of(recipe).possible(recipe)
    unused(recipe)


# --- what cannot be watched


@pytest.mark.parametrize("name", ["", "a b", "macro", "generator", "über", "a_b", "1st"])
def test_names_that_could_not_be_told_apart_in_the_log_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="extra_valid: the name of a set has letters"):
        validate(
            DataConfig, {"train": [{"grammar": 3}], "valid": {"grammar": 3}, "extra_valid": {name: {"grammar": 3}}}
        )


def test_what_is_wrong_with_a_set_is_said_with_its_name_before_training(
    here: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(here)
    (here / "empty.tsv").write_text("")
    for table, said in (("empty.tsv", "data.extra_valid.domain: "), ("nowhere.tsv", "nowhere.tsv")):
        code, _, err = run(
            "train", "general.toml", "--out", f"runs/{table}", "--set", f'data.extra_valid.domain.table="{table}"'
        )
        assert code == 2 and said in err and not (here / "runs" / table / "best").exists()


def test_a_discriminator_has_none() -> None:
    recipe = load_recipe(find("replaced"), ["data.extra_valid={ more = { grammar = 5 } }"])
    with pytest.raises(ConfigError, match=r"data\.extra_valid: the inputs of a discriminator"):
        task_of(recipe).possible(recipe)
