"""Summaries: two families learn them, what is cut is cut the same way everywhere, and the command says what it does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from conftest import Run

from qkv.api import Model
from qkv.batch import IGNORED, Batch
from qkv.config import load_recipe
from qkv.errors import ConfigError
from qkv.models.build import build
from qkv.recipes import find
from qkv.tasks.base import task_of
from qkv.tasks.summary import Summarizer, SummaryTask
from qkv.train.report import Report
from qkv.train.run import run as train

SMALL = ["model.d_model=32", "model.n_layers=1", "model.d_ff=64", "data.train=[{grammar=300}]", "data.valid={grammar=20}",
         "data.test={grammar=10}", "data.batch_tokens=1024", "train.warmup=1", "train.time_budget=1000"]  # fmt: skip
FAMILIES = {
    "ed": [],
    "d": ['model.family="decoder"', 'model.tie="output"'],
    "dmca": ['model.family="decoder"', 'model.tie="output"', 'model.mixer=["window","compressed"]', "model.n_layers=2",
             "model.window=8"],
}  # fmt: skip
TEXTS = [
    "The old man saw the dog. The dog sleeps.",
    "She reads a book.",
    "A boy gave the girl an apple. They laugh. It rains.",
]


def task(settings: list[str]) -> SummaryTask:
    recipe = load_recipe(find("summaries"), [*SMALL, *settings])
    words = task_of(recipe).prepare(recipe, lambda _: None)
    found = task_of(recipe)(recipe, task_of(recipe).fitted(recipe, words), words)
    assert isinstance(found, SummaryTask)
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_a_batch_gives_what_each_text_gives_alone(family: str) -> None:
    t = task(FAMILIES[family])
    torch.manual_seed(0)
    writer = Summarizer(t.config, build(t.config).eval(), t.source, t.target)  # type: ignore[arg-type]
    together = writer.translate(TEXTS, t.request())
    for text, one in zip(TEXTS, together, strict=True):
        (alone,) = writer.translate([text], t.request())
        assert alone.text == one.text and alone.log_prob == pytest.approx(one.log_prob, abs=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_searched_is_what_was_trained(family: str) -> None:
    """The log-probability of a summary in the search is the loss of that pair in training."""
    t = task(FAMILIES[family])
    torch.manual_seed(0)
    network = build(t.config).eval()
    (one,) = Summarizer(t.config, network, t.source, t.target).translate(TEXTS[:1], t.request())  # type: ignore[arg-type]
    assert one.tokens and t.source.backend.id_to_token(t.config.eos_ids[0])
    ids = [t.target.id_of(token) for token in one.tokens]
    ended = ids[-1] in t.config.eos_ids
    pair = (t.source.plain(TEXTS[:1])[0], ids[:-1] if ended else ids)
    batch = t.scored([pair])
    loss = t.objective(network(batch), batch).sum.item()
    if ended:
        assert -one.log_prob == pytest.approx(loss, rel=1e-4)
    else:  # cut off: training counts one end token more
        assert -one.log_prob < loss


PAIRS = [([10, 11, 12], [13]), ([14], [15, 16, 17])]


def test_a_decoder_is_scored_by_the_summary_alone() -> None:
    """Every word of the summary and its end count, nothing of the text does, whatever stands beside it."""
    t = task(FAMILIES["d"])
    assert t.scored(PAIRS).count == sum(len(target) + 1 for _, target in PAIRS)


def test_a_decoder_learns_text_and_summary_as_a_language_model() -> None:
    """Each token of the row but the first is a target, and the loss is the sum of their -log p (Liu et al. 2018, 4.2.3)."""
    t = task(FAMILIES["d"])
    torch.manual_seed(0)
    network, batch = build(t.config).eval(), t.collate(PAIRS)
    end, first = t.config.eos_ids[0], t.config.first_id
    total = 0.0
    for row, (text, summary) in zip(batch.targets, PAIRS, strict=True):
        whole = torch.tensor([*text, end, first, *summary, end])
        assert row[row != IGNORED].tolist() == whole[1:].tolist()
        log_probs = network(Batch(whole[None, :-1])).logits[0].log_softmax(-1)  # (T, V)
        total -= log_probs.gather(1, whole[1:, None]).sum().item()
    assert t.objective(network(batch), batch).sum.item() == pytest.approx(total, rel=1e-5)


def test_the_text_counts_as_much_as_source_weight_says() -> None:
    """The loss is that of the summary + source_weight times that of the text; held-out losses do not know the weight."""
    losses, held_out = [], []
    for weight in (0.0, 0.25, 1.0):
        t = task([*FAMILIES["d"], f"train.source_weight={weight}"])
        torch.manual_seed(0)
        network, batch = build(t.config).eval(), t.collate(PAIRS)
        losses.append(t.objective(network(batch), batch).sum.item())
        held_out.append(t.loss(network))
    summary, some, whole = losses
    assert some == pytest.approx(summary + 0.25 * (whole - summary), rel=1e-5) and whole > summary
    assert held_out == pytest.approx([held_out[0]] * 3)


def test_a_weight_of_the_text_needs_a_decoder() -> None:
    recipe = load_recipe(find("summaries"), ["train.source_weight=0.5"])
    with pytest.raises(ConfigError, match="source_weight is for family 'decoder'"):
        SummaryTask.possible(recipe)


def test_a_long_text_is_cut_as_in_training() -> None:
    t = task([])
    (example,) = t.examples([(" ".join(TEXTS * 40), "A dog.")])
    (ids, _) = t.translator(build(t.config).eval()).read(" ".join(TEXTS * 40))
    assert list(example[0]) == ids[:-1] and len(example[0]) == t.data.max_length


@pytest.mark.parametrize(("family", "weight"), [("ed", []), ("d", ["train.source_weight=0.1"])])
def test_a_small_model_learns_it(family: str, weight: list[str], tmp_path: Path) -> None:
    """The loss of held-out summaries falls to a fraction of what it was, and words of the summary are found. (A decoder that
    learns the text as much as the summary takes longer than this.)"""
    changes = [*SMALL, *FAMILIES[family], *weight, "model.d_model=64", "data.train=[{grammar=3000}]", "train.steps=120",
               "train.evaluate_every=40", "train.save_every=120", "train.learning_rate=5e-3"]  # fmt: skip
    recipe = load_recipe(find("summaries"), changes)
    r = train(recipe, "x", tmp_path / "run", Report(quiet=True))
    looks = [json.loads(line) for line in (tmp_path / "run/log.jsonl").read_text().splitlines()]
    losses = [line["valid_loss"] for line in looks if "valid_loss" in line]
    assert losses[-1] < 0.85 * losses[0] and r.results["valid"]["value"] > 20
    assert [s["name"] for s in r.results["test"]["scores"]][:3] == ["ROUGE-1", "ROUGE-2", "ROUGE-L"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    t = task([])
    torch.manual_seed(0)
    Model(t.config, build(t.config), t.source, target_tokenizer=t.target).save(tmp_path / "model")  # type: ignore[arg-type]
    return tmp_path / "model"


def test_the_command_keeps_the_order_and_says_what_is_wrong(folder: Path, run: Run, tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_bytes(b"A dog sleeps.\n\nbad \xff bytes\nShe reads a book.\n")
    code, out, err = run("summarize", folder, texts, "--json", "--max-length", "5")
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 1 and len(rows) == 4 and rows[1]["summary"] == "" and "not UTF-8" in rows[2]["problem"]
    assert "line 3 is not summarised: not UTF-8" in err
    code, out, _ = run("summarize", folder, texts.parent / "nothing.txt")
    assert code == 2


def test_the_whole_file_is_one_text(folder: Path, run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("A dog sleeps.\nShe reads a book.\n")
    code, out, _ = run("summarize", folder, tmp_path / "a.txt", "--whole")
    assert code == 0 and len(out.splitlines()) == 1
    (tmp_path / "empty.txt").write_text("")
    code, _, err = run("summarize", folder, tmp_path / "empty.txt", "--whole")
    assert code == 1 and "the file is empty" in err


def test_impossible_recipes_say_so() -> None:
    for change, said in (('model.family="encoder"', "writes"), ("model.max_length=100", "need model.max_length = 121")):
        with pytest.raises(ConfigError, match=said):
            recipe = load_recipe(
                find("summaries"), [change, *(['model.head="tags"', 'model.tie="none"'] if "family" in change else [])]
            )
            SummaryTask.possible(recipe)


@pytest.mark.parametrize("family", ["ed", "d"])
@pytest.mark.parametrize("target", [8, 40])
def test_what_is_possible_is_what_the_longest_pair_takes(family: str, target: int) -> None:
    sizes = ["data.max_length=20", f"data.target_length={target}"]
    c = task([*FAMILIES[family], *sizes])
    batch = c.collate([([5] * 20, [6] * target)])
    longest = max(x.size(1) for x in (batch.inputs, batch.source) if x is not None)
    changes = [*SMALL, *FAMILIES[family], *sizes]
    SummaryTask.possible(load_recipe(find("summaries"), [*changes, f"model.max_length={longest}"]))
    with pytest.raises(ConfigError, match=f"need model.max_length = {longest}"):
        SummaryTask.possible(load_recipe(find("summaries"), [*changes, f"model.max_length={longest - 1}"]))


def test_a_run_of_any_task_is_scored_again(run: Run, tmp_path: Path) -> None:
    """`qkv evaluate RUN` gives the digits that training ended with."""
    changes = [*SMALL, "train.steps=2", "train.evaluate_every=2", "train.save_every=2"]
    settings = [part for change in changes for part in ("--set", change)]
    code, _, err = run("train", "summaries", "--out", tmp_path / "run", *settings)
    assert code == 0, err
    code, out, _ = run("evaluate", tmp_path / "run", "--json")
    test = json.loads((tmp_path / "run/results.json").read_text())["test"]
    assert code == 0 and json.loads(out)["scores"] == test["scores"]
