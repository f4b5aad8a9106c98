"""Decoders that translate: source and target in one row, with or without a prefix mask that shows the source in both directions."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Run, needs_compiler
from served import served

from qkv.api import load
from qkv.batch import IGNORED, Batch
from qkv.config import ModelConfig, load_recipe
from qkv.convert.huggingface import exportable
from qkv.engine.native_stack import NativeStack
from qkv.engine.pack import pack
from qkv.errors import ConfigError, QkvError
from qkv.generate.beam import BeamParams
from qkv.generate.translate import Translator
from qkv.look.attention import attention_maps
from qkv.models.build import build
from qkv.objectives import translation
from qkv.recipes import find
from qkv.serve.scheduling.served_model import load_for_serving
from qkv.tasks.base import task_of
from qkv.tasks.translation import TranslationTask

FIRST, END = 1, 2
FIELDS: dict[str, Any] = {"family": "decoder", "vocab_size": 20, "d_model": 16, "n_layers": 2, "n_heads": 2, "d_ff": 24,
                          "dropout": 0.0, "bos_id": FIRST, "eos_id": END}  # fmt: skip
ROW = torch.tensor([[5, 6, 7, 8, END, FIRST, 9, 10, 11, 12]])
SOURCE = 5
"""Tokens of the source, its end token included."""


def network_of(**fields: Any) -> Any:
    torch.manual_seed(0)
    network = build(ModelConfig(**{**FIELDS, "prefix_mask": True, **fields})).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return network


def close(a: torch.Tensor, b: torch.Tensor) -> None:
    torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


# --- the prefix mask


@pytest.mark.parametrize("position", ["sinusoidal", "rotary", "t5", "alibi"])
@torch.no_grad()
def test_the_source_is_read_in_both_directions_and_the_target_is_not(position: str) -> None:
    network = network_of(position=position)
    whole = network(Batch(inputs=ROW)).hidden[0]
    for t in range(ROW.size(1)):
        if t == SOURCE:
            continue  # the start token, without which there is no source
        changed = ROW.clone()
        changed[0, t] = 13
        moved = (network(Batch(inputs=changed)).hidden[0] - whole).abs().amax(-1) > 1e-6  # (T,)
        assert moved.tolist() == [i >= t or (t < SOURCE and i < SOURCE) for i in range(ROW.size(1))]


@torch.no_grad()
def test_the_source_is_what_a_network_without_a_mask_makes_of_it() -> None:
    network, encoder = network_of(), network_of(prefix_mask=False, causal=False)
    encoder.load_state_dict(network.state_dict())
    close(network(Batch(inputs=ROW)).hidden[:, :SOURCE], encoder(Batch(inputs=ROW[:, :SOURCE])).hidden)


@torch.no_grad()
def test_a_row_without_a_start_token_is_causal() -> None:
    network, causal = network_of(), network_of(prefix_mask=False)
    for row in (ROW[:, :SOURCE], ROW[:, SOURCE:]):  # a source alone; a text that begins with the start token
        assert torch.equal(network(Batch(inputs=row)).hidden, causal(Batch(inputs=row)).hidden)


@torch.no_grad()
def test_attention_maps_have_the_mask() -> None:
    weights = attention_maps(network_of(), Batch(inputs=ROW), 0)[0, 0]  # (T, S)
    rows = attention_maps(network_of(), Batch(inputs=ROW), 0, rows=[0, 7])[0, 0]
    close(rows, weights[[0, 7]])
    for i, row in enumerate(weights):
        assert (row > 0).tolist() == [j <= i or (i < SOURCE and j < SOURCE) for j in range(ROW.size(1))]


@needs_compiler
@torch.no_grad()
def test_a_packed_network_reads_a_source_and_goes_on() -> None:
    """Rows of unequal length, padded on the left as in generation, and beams that move."""
    network = network_of()
    fast = pack(network)
    assert isinstance(fast.stack, NativeStack)
    ids = torch.cat([ROW, ROW.roll(2, 1), ROW])
    ids[2, 0] = 13
    mask = torch.ones_like(ids).bool()
    mask[1, :2] = False
    close(fast(Batch(ids, mask)).hidden[mask], network(Batch(ids, mask)).hidden[mask])
    outputs = []
    for one in (network, fast):
        hidden, state = one.step(ids[:, :8], one.start(Batch(ids)), mask[:, :8])
        pieces = [hidden[mask[:, :8]]]
        state = state.select(torch.tensor([1, 1, 0]))
        for t in (8, 9):
            hidden, state = one.step(ids[[1, 1, 0], t : t + 1], state)
            pieces.append(hidden[:, 0])
        outputs.append(torch.cat(pieces))
    close(outputs[1], outputs[0])


def test_it_cannot_be_exported_nor_packed_into_rows() -> None:
    base = {"position": "learned", "norm_order": "pre", "feedforward": "gelu-tanh", "tie": "output"}
    assert exportable(ModelConfig(**FIELDS, **base))[0] == "GPT2LMHeadModel"
    name, why = exportable(ModelConfig(**FIELDS, **base, prefix_mask=True))
    assert name is None and "prefix_mask = True" in why
    with pytest.raises(QkvError, match="one text per row"):
        network_of()(Batch(inputs=ROW, documents=torch.zeros_like(ROW)))


# --- training

SMALL = ["model.d_model=32", "model.n_layers=1", "model.d_ff=64", 'model.family="decoder"', 'model.tie="output"', "data.max_length=40",
         "data.train=[{grammar=300}]", "data.valid={grammar=20}", "data.test={grammar=10}", "data.batch_tokens=1024",
         "train.warmup=1"]  # fmt: skip
KINDS = {"prefix": ["model.prefix_mask=true"], "causal": [], "language model": ["train.source_weight=0.5"]}
TEXTS = ["The old man saw the dog.", "She reads a book.", "It rains."]
PAIRS = [([10, 11, 12], [13]), ([14], [15, 16, 17])]


def recipe_of(settings: list[str]) -> Any:
    return load_recipe(find("demo"), [*SMALL, *settings])


@pytest.fixture(scope="module")
def words() -> Any:
    recipe = recipe_of([])
    return task_of(recipe).prepare(recipe, lambda _: None)


def task(settings: list[str], words: Any) -> TranslationTask:
    recipe = recipe_of(settings)
    task_of(recipe).possible(recipe)
    found = task_of(recipe)(recipe, task_of(recipe).fitted(recipe, words), words)
    assert isinstance(found, TranslationTask)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_is_that_of_the_target(kind: str, words: Any) -> None:
    """Every token of the target and its end count; those of the source only by source_weight."""
    t = task(KINDS[kind], words)
    batch, scored = t.collate(PAIRS), t.scored(PAIRS)
    end, first = t.config.eos_ids[0], t.config.first_id
    for row, (source, target) in zip(batch.inputs, PAIRS, strict=True):
        whole = [*source, end, first, *target]
        assert row[: len(whole)].tolist() == whole
    targets = sum(len(target) + 1 for _, target in PAIRS)
    sources = sum(len(source) + 1 for source, _ in PAIRS)  # all but the first token, the end and the start token
    assert scored.count == targets
    assert batch.count == targets + (sources if kind == "language model" else 0)
    assert (batch.targets == IGNORED).logical_not().sum() == batch.count


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("beam", [1, 3])
def test_a_translation_has_the_probability_that_is_trained(kind: str, beam: int, words: Any) -> None:
    """Alone and in a batch, packed and not."""
    t = task(KINDS[kind], words)
    torch.manual_seed(0)
    network = build(t.config).eval()
    how = replace(t.request(), beam=BeamParams(beam), max_length=8)
    found = [Translator(t.config, one, t.source, t.target).translate(TEXTS, how) for one in (network, pack(network))]
    for text, plain, fast in zip(TEXTS, *found, strict=True):
        (alone,) = Translator(t.config, network, t.source, t.target).translate([text], how)
        assert alone.text == plain.text == fast.text
        ids = [t.target.id_of(token) for token in plain.tokens]
        pair = (t.source.plain([text])[0], ids[:-1] if ids[-1] in t.config.eos_ids else ids)
        batch = t.scored([pair])
        if len(ids) == len(pair[1]):  # cut at the limit: its end was not searched
            batch.targets[batch.targets == t.config.eos_ids[0]] = IGNORED
        loss = translation(network(batch), batch, 0.0).sum.item()
        for one in (alone, plain, fast):
            assert -one.log_prob == pytest.approx(loss, rel=1e-4, abs=1e-4)


def test_impossible_recipes_say_so() -> None:
    for settings, said in (
        (["model.prefix_mask=true", "train.source_weight=1.0"], "cannot be predicted"),
        (["data.joint=false"], "two vocabularies"),
        (["data.max_length=256"], "at least 514"),
    ):
        with pytest.raises(ConfigError, match=said):
            recipe = recipe_of(settings)
            task_of(recipe).possible(recipe)
    with pytest.raises(ConfigError, match="source_weight is for family 'decoder'"):
        TranslationTask.possible(load_recipe(find("demo"), ["train.source_weight=0.5"]))


# --- the commands


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from qkv.train.report import Report
    from qkv.train.run import run as train

    where = tmp_path_factory.mktemp("run") / "run"
    recipe = recipe_of(["model.prefix_mask=true", "train.steps=2", "train.evaluate_every=2", "train.save_every=2"])
    train(recipe, "x", where, Report(quiet=True))
    return where


def test_train_translate_evaluate_and_look(folder: Path, run: Run, tmp_path: Path) -> None:
    code, out, err = run("translate", folder, "The old man saw the dog.", "--beam", "2", "--n-best", "2")
    assert code == 0, err
    assert len(out.splitlines()) == 2
    code, out, err = run("evaluate", folder, "--json")
    assert code == 0, err
    test = json.loads((folder / "results.json").read_text())["test"]
    assert [one["value"] for one in json.loads(out)["scores"]] == [one["value"] for one in test["scores"]]
    code, out, err = run("look", folder, "It rains.", "-w", "attention", "--layer", "0", "--json")
    assert code == 0, err  # its rows are those of the output, from the start token on
    (found,) = json.loads(out).values()
    model = load(folder)
    source, whole = model.translator().read("It rains.")[0], model.look("It rains.").attention(0)
    assert whole.rows[len(source) :] == found["rows"]
    weights = whole.weights[0]  # (T, S)
    assert (weights[0, : len(source)] > 0).all() and not weights[0, len(source) :].any()
    assert weights.size(0) - len(source) > 1  # the start token and a translation
    code, _, err = run("translate", folder, "It rains. " * 100)
    assert code == 1 and "this model reads at most 256" in err


def test_a_language_model_does_not_translate(folder: Path) -> None:
    model = load(folder)
    model.usage = model.usage.model_copy(update={"task": "language"})
    with pytest.raises(QkvError, match="not trained to translate"):
        model.translate(["It rains."])


def test_it_is_served(folder: Path) -> None:
    model = load(folder)
    with served([load_for_serving(folder, "one")]) as client:
        (about,) = client.get("/api/models").json()["models"]
        assert {"translate", "generate", "look"} <= set(about["can"])
        found = client.post("/api/translate", json={"model": "one", "texts": TEXTS, "beam": 2}).json()["results"]
        assert [one["text"] for one in found] == model.translate(TEXTS, beam=2)
        generated = client.post("/api/generate", json={"model": "one", "prompt": TEXTS[0], "temperature": 0}).json()
        assert generated["text"].strip().startswith(model.translate(TEXTS[:1], beam=1, max_length=20)[0])
        looked = client.post("/api/look/attention", json={"model": "one", "text": TEXTS[2], "layer": 0})
        assert looked.status_code == 200, looked.text
