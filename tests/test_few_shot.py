"""Few-shot evaluation: log-probabilities of labels, prompts with solved examples, and what it refuses."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Run

import qkv
from qkv.batch import Batch
from qkv.config import ModelConfig
from qkv.engine.pack import pack
from qkv.generate.scoring import continuation_log_probs
from qkv.models.build import build
from qkv.tasks.few_shot import FewShot, Prompting, accuracy, best_labels
from qkv.text.train import train_tokenizer

FIELDS: dict[str, Any] = {"family": "decoder", "vocab_size": 40, "d_model": 16, "n_layers": 2, "n_heads": 2, "d_ff": 32,
                          "max_length": 64, "dropout": 0.0, "init_std": 0.5, "norm_order": "pre", "position": "rotary"}  # fmt: skip
ROWS = [(f"film number {i} was {word}", label) for i, (word, label) in
        enumerate([("fine", "good"), ("dull", "bad"), ("great", "good"), ("poor", "bad"), ("lovely", "good")] * 2)]  # fmt: skip


@pytest.mark.parametrize(
    "fields",
    [{}, {"position": "alibi"}, {"recurrent": "lstm", "position": "none"}, {"mixer": ("linear",), "position": "none"}],
)
@pytest.mark.parametrize("packed", [False, True])
def test_log_probabilities_are_those_of_each_text_alone(fields: dict[str, Any], packed: bool) -> None:
    torch.manual_seed(0)
    network = build(ModelConfig(**{**FIELDS, **fields})).eval()
    prompts = [[1, 5, 9], [7], [1, 2, 3, 4, 5, 6]]
    continuations = [[[3], [4, 4, 8]], [[9, 1]], [[2, 2, 2, 2], [5], [6, 7]]]
    found = continuation_log_probs(pack(network) if packed else network, prompts, continuations)  # type: ignore[arg-type]
    for prompt, some, sums in zip(prompts, continuations, found, strict=True):
        for ids, total in zip(some, sums, strict=True):
            with torch.no_grad():
                table = network(Batch(inputs=torch.tensor([prompt + ids]))).logits[0].log_softmax(-1)
            alone = sum(table[len(prompt) + t - 1, token].item() for t, token in enumerate(ids))
            assert total == pytest.approx(alone, abs=1e-4)


def few_shot(**how: Any) -> FewShot:
    tokenizer = train_tokenizer([text for text, _ in ROWS] + ["Text: Label: good bad"], "byte-bpe", 300)
    tokenizer.settings["chat_template"] = (
        "{% for m in messages %}{{ m['role'][0] + m['content'] + eos_token }}{% endfor %}"
    )
    config = ModelConfig(
        **{**FIELDS, "vocab_size": tokenizer.size, "max_length": how.pop("max_length", 400), "bos_id": 1, "eos_id": 2}
    )
    return FewShot(config, build(config).eval(), tokenizer, ROWS, Prompting(**how))


def test_a_prompt_has_other_solved_examples_and_the_item_unsolved() -> None:
    model = few_shot(shots=3)
    text = model.tokenizer.decode(model.prompt(4, ROWS[4], 4))
    *shots, item = text.split("\n\n")
    solved = [f"Text: {text}\nLabel: {label}" for text, label in ROWS]
    assert len({*shots}) == 3 and {*shots} <= {*solved} and solved[4] not in shots
    assert item == "Text: film number 4 was lovely\nLabel:"
    assert (
        model.prompt(4, ROWS[4], 4)
        == few_shot(shots=3).prompt(4, ROWS[4], 4)
        != few_shot(shots=3, seed=1).prompt(4, ROWS[4], 4)
    )
    assert model.tokenizer.decode(model.label_ids("good")) == " good"  # its space is part of it


def test_the_same_shots_are_read_once_and_change_no_answer() -> None:
    """All rows but those of the shots themselves have one prompt up to the item; the labels are those of each row alone."""
    model, read = few_shot(shots=3, same_shots=True), list[int]()
    prompts = [model.tokenizer.decode(model.prompt(n, row, 5)) for n, row in enumerate(ROWS)]
    beginnings = [prompt[: prompt.rindex("Text:")] for prompt in prompts]
    assert max(map(beginnings.count, beginnings)) >= 7 and all(
        prompt.count(ROWS[n][0]) == 1 for n, prompt in enumerate(prompts)
    )
    alone = [model.answer([row], ["good", "bad"]) for row in ROWS]
    model.network.embed.register_forward_hook(lambda module, inputs, output: read.append(inputs[0].numel()))
    together = model.answer(ROWS, ["good", "bad"])
    assert [list(both) for both in zip(*together, strict=True)] == [[a[0], b[0]] for a, b in alone]
    assert sum(read) < 0.6 * sum(len(model.prompt(n, row, 5)) for n, row in enumerate(ROWS))


def test_a_text_that_contains_a_placeholder_is_left_as_it_is() -> None:
    assert FewShot.fill("{text} / {second}: {label}", ("a {label}", "{text}", "good")) == "a {label} / {text}: good"


def test_shots_that_do_not_fit_are_left_out_and_then_the_beginning() -> None:
    model = few_shot(shots=5, max_length=60)
    ids = model.prompt(0, ROWS[0], 4)
    assert len(ids) <= 56 and model.tokenizer.decode(ids).endswith("film number 0 was fine\nLabel:")
    assert model.counts["with fewer shots, which is all that fits"] == 1 and not model.counts["cut at the beginning"]
    short = few_shot(shots=0, max_length=10)
    assert len(short.prompt(0, ROWS[0], 4)) == 6 and short.counts["cut at the beginning"] == 1


def test_shots_as_turns_of_a_conversation() -> None:
    model = few_shot(shots=1, template="chat")
    text = model.tokenizer.decode(model.prompt(2, ROWS[2], 4), special=True)
    user, answer, item, rest = text.split("</s>")
    assert (user[1:], answer[1:]) in ROWS and item == "ufilm number 2 was great" and not rest
    assert model.label_ids("good")[-1] == 2


def test_the_best_label_and_the_best_per_byte() -> None:
    assert best_labels([-2.0, -3.0], ["no", "maybe"]) == ("no", "maybe")
    score = accuracy("accuracy", ["a"] * 8 + ["b"] * 2, ["a"] * 10)
    assert score.value == 80 and score.details == "(95 % interval 49.0 to 94.3)"  # statsmodels' proportion_confint


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A language model that has seen the template: only the last word of a text tells its label."""
    place = tmp_path_factory.mktemp("few-shot")
    drawn = random.Random(0).choices([(*text.split()[2:], label) for text, label in ROWS], k=200)
    text = "\n\n".join(f"Text: film number {number} was {word}\nLabel: {label}" for number, _, word, label in drawn)
    (place / "text.txt").write_text(text + "\n\n")
    (place / "dev.tsv").write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in ROWS))
    files = {"files": [str(place / "text.txt")]}
    recipe = {
        "task": "language", "model": {**{k: v for k, v in FIELDS.items() if k not in ("vocab_size", "init_std")}, "d_model": 32},
        "data": {"train": [files], "valid": files, "tokenizer": "byte-bpe", "vocab_size": 330, "max_length": 64, "batch_tokens": 512},
        "train": {"steps": 120, "learning_rate": 1e-2, "schedule": "cosine", "warmup": 5, "label_smoothing": 0.0, "evaluate_every": 120,
                  "save_every": 120},
    }  # fmt: skip
    qkv.train(recipe, place / "run", quiet=True)
    return place


def test_a_model_that_knows_the_words_is_right(trained: Path, run: Run) -> None:
    options = (
        "evaluate",
        trained / "run",
        "--data",
        trained / "dev.tsv",
        "--template",
        r"Text: {text}\nLabel: {label}\n\n",
    )
    for more in ((), ("--generate",)):
        code, out, err = run(*options, "--shots", "1", "--json", *more)
        found = json.loads(out)
        scores = {score["name"]: score["value"] for score in found["scores"]}
        assert code == 0 and scores["accuracy"] >= 80 > 60 == scores["majority"], err
        assert ("report" in found) is not bool(more)
    code, out, _ = run(*options, "--shots", "2", "--shots-from", trained / "dev.tsv")
    assert code == 0 and "95 % interval" in out and "2 shots, seed 0, log-probabilities of 2 labels" in out
    assert qkv.evaluate(trained / "run", trained / "dev.tsv", shots=0).examples == 10


@pytest.mark.parametrize(("options", "message"), [
    (["--shots", "2"], "give it with --data FILE"),
    (["--data", "dev.tsv", "--shots", "12"], "there are 9 other examples"),
    (["--data", "dev.tsv", "--shots", "1", "--template", "{label} {text}"], "needs {text} and after it {label}"),
    (["--data", "dev.tsv", "--shots", "1", "--template", "chat"], "no chat template"),
    (["--data", "dev.tsv", "--shots", "1", "--beam", "2"], "--beam does not apply with --shots"),
    (["--data", "dev.tsv", "--template", "x"], "need --shots K"),
    (["--data", "none.tsv", "--shots", "1"], "does not exist"),
    (["--data", "empty.tsv", "--shots", "1"], "no rows at all"),
])  # fmt: skip
def test_what_is_refused(
    options: list[str], message: str, trained: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(trained)
    Path("empty.tsv").write_text("")
    code, _, err = run("evaluate", trained / "run", *options)
    assert code == 2 and message in " ".join(err.split()) and "Traceback" not in err, err


def test_other_models_are_refused(run: Run, trained: Path) -> None:
    code, _, err = run("evaluate", "example", "--data", trained / "dev.tsv", "--shots", "1")
    assert code == 2 and "--shots is for language models" in err
