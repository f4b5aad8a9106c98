"""Recurrent language models: one changed line of a Transformer's recipe, state carried from window to window, "hello"."""

from __future__ import annotations

import math
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import qkv
from qkv.api import Model
from qkv.batch import IGNORED, Batch
from qkv.config import ModelConfig, Recipe, TrainConfig, load_recipe
from qkv.convert.files import read_tensors
from qkv.data.corpora import corpus
from qkv.data.windows import Streams, StreamWindow, chunks, length, side_by_side
from qkv.errors import ConfigError, QkvError
from qkv.models.build import build
from qkv.models.inputs import carries
from qkv.objectives import causal
from qkv.parts.state import State
from qkv.recipes import find
from qkv.tasks.base import unused
from qkv.tasks.language import LanguageTask
from qkv.train import checkpoint
from qkv.train import run as training
from qkv.train.optimizer import make_optimizer, orthogonalise
from qkv.train.report import Report
from qkv.train.step import LossModule, gradients
from qkv.train.training_log import TrainingLog
from tests.schemas import schema_of
from tests.test_language import Killed, recipe_of, task_of

KINDS = ("elman", "gru", "lstm")
CARRYING = {kind: {"recurrent": kind} for kind in KINDS} | {
    mixer: {"mixer": (mixer,), "position": "none"} for mixer in ("gated-linear", "s4d", "selective")
}
carrying = pytest.mark.parametrize("fields", CARRYING.values(), ids=CARRYING)


def network_of(**fields: Any) -> nn.Module:
    torch.manual_seed(0)
    sizes = {"vocab_size": 13, "d_model": 16, "n_layers": 2, "n_heads": 2, "d_ff": 24, "max_length": 8, "dropout": 0.0,
             "norm_order": "pre", "position": "rotary"}  # fmt: skip
    network = build(ModelConfig(family="decoder", **{**sizes, **fields}))
    with torch.no_grad():
        for p in network.parameters():
            p.mul_(2)  # fresh weights are small: what is remembered would hardly show
    return network


def text_of(rows: int, tokens: int, seed: int = 1) -> Batch:
    ids = torch.randint(0, 13, (rows, tokens + 1), generator=torch.Generator().manual_seed(seed))
    return Batch(ids[:, :-1], targets=ids[:, 1:])


def window(batch: Batch, first: int, last: int, **more: Any) -> Batch:
    assert batch.inputs is not None and batch.targets is not None
    return Batch(batch.inputs[:, first:last], targets=batch.targets[:, first:last], **more)


def carry_on(network: nn.Module, batches: list[Batch]) -> list[torch.Tensor]:
    """The sum of the losses of each batch, the state going on."""
    state, losses = State(), []
    for batch in batches:
        output = network(batch, state)
        losses.append(causal(output, batch).sum)
        state = output.state.carried()
    return losses


# --- a carried state


@carrying
def test_carried_windows_are_one_long_window(fields):
    network, whole = network_of(**fields), text_of(3, 24)
    parts = [window(whole, a, b) for a, b in ((0, 7), (7, 8), (8, 24))]
    together = causal(network(whole), whole).sum
    assert sum(carry_on(network, parts)).item() == pytest.approx(together.item(), rel=1e-5)
    alone = sum(causal(network(part), part).sum for part in parts)
    assert alone.item() != pytest.approx(together.item(), rel=1e-4)  # what is remembered matters


@carrying
def test_gradients_end_at_the_border(fields):
    """Those of the second window are the ones with the state as a given number; those of a long window are others."""
    network, whole = network_of(**fields), text_of(3, 12)
    first, second = window(whole, 0, 6), window(whole, 6, 12)
    state = network(first, State()).state.carried()
    given = State(tuple({name: x.clone() for name, x in layer.items()} for layer in state.layers))
    expected = torch.autograd.grad(causal(network(second, given), second).sum, list(network.parameters()))
    carried = [State()]
    for part in (first, second):
        gradients(LossModule(network, causal), [part], carried)
    count = 3 * 6
    for p, gradient in zip(network.parameters(), expected, strict=True):
        torch.testing.assert_close(p.grad, gradient / count)
    through = network(second, network(first, State()).state)
    full = torch.autograd.grad(causal(through, second).sum, list(network.parameters()))
    assert any(not torch.allclose(a, b, rtol=1e-3) for a, b in zip(full, expected, strict=True))
    assert all(not x.requires_grad for layer in carried[0].layers for x in layer.values())


@carrying
def test_a_fresh_row_remembers_nothing_and_the_others_go_on(fields):
    network, before, after = network_of(**fields).eval(), text_of(3, 6), text_of(3, 5, seed=2)
    state = network(before, State()).state.carried()
    fresh = torch.tensor([False, True, False])
    mixed = network(window(after, 0, 5, fresh=fresh), state).logits
    on, new = network(after, state).logits, network(after).logits
    torch.testing.assert_close(mixed, torch.where(fresh[:, None, None], new, on))
    assert not torch.allclose(on, new, atol=1e-3)
    all_new = network(window(text_of(2, 5), 0, 5, fresh=torch.ones(2).bool()), state)  # also where the rows are others
    torch.testing.assert_close(all_new.logits, network(text_of(2, 5)).logits)


@carrying
def test_padding_behind_a_window_is_not_remembered(fields):
    network, short, after = network_of(**fields).eval(), text_of(2, 4), text_of(2, 5, seed=2)
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]]).bool()
    state = network(Batch(short.inputs, mask), State()).state.carried()
    one = network(Batch(short.inputs[1:, :2]), State()).state.carried()
    together = network(after, state).logits[1:]
    torch.testing.assert_close(together, network(after.rows(slice(1, 2)), one).logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_padding_is_read_over_where_no_state_is_asked_for(kind):
    """Rows padded on the right give what each gives alone, gradients too, on the way that packs nothing."""
    network, batch = network_of(recurrent=kind), text_of(3, 9)
    mask = torch.arange(9) < torch.tensor([[9], [4], [1]])
    padded = Batch(batch.inputs, mask, batch.targets.masked_fill(~mask, IGNORED))
    results = []
    for state in (None, State()):  # read over; packed
        network.zero_grad()
        output = network(padded, state)
        loss = causal(output, padded).sum
        loss.backward()
        results.append((output.logits, output.state, [p.grad.clone() for p in network.parameters()]))
    (over, none, left), (packed, kept, right) = results
    assert none is None and kept is not None
    torch.testing.assert_close(over[mask], packed[mask])
    torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("fields", [{}, {"mixer": ("linear", "s4d"), "position": "none"}, {"mixer": ("window",)},
                                    {"recurrent": "lstm", "position": "sinusoidal"},
                                    {"recurrent": "lstm", "position": "learned"}])  # fmt: skip
def test_what_cannot_be_carried_is_said_at_once(fields):
    recipe = recipe_of({"grammar": 50}, model=fields, data={"carry": True})
    assert not carries(recipe.model)
    with pytest.raises(ConfigError, match=r"data\.carry = true .* fixed size"):
        LanguageTask.possible(recipe)
    with pytest.raises(ConfigError, match=r"data\.carry does not apply to task 'masked'"):
        unused(recipe.changed(task="masked"))


# --- streams


def streams(sizes: list[int], size: int = 4, tokens: int = 12, together: int = 1, **how: Any) -> Streams:
    """Documents of so many tokens; ids count up, 1000 apart."""
    texts = [chunks(range(1000 * i, 1000 * i + n), size) for i, n in enumerate(sizes)]
    records = type(
        "Source", (), {"skipped": {}, "read": lambda _, start=0: enumerate([(t,) for t in texts][start:], start + 1)}
    )
    found = Streams(records(), lambda some: [c for (text,) in some for c in text], length, tokens=tokens, seed=3, **how)
    found.size, found.together = size, together
    return found


def one_epoch(found: Streams) -> list[list[StreamWindow]]:
    batches = []
    for batch in found:
        if found.position.epoch > 0:
            break
        batches.append(batch)
    return batches


@pytest.mark.parametrize("sizes", [[100], [50, 3, 1, 27, 2, 40], [5] * 30])
@pytest.mark.parametrize("together", [1, 2, 3])
def test_rows_go_on_where_they_ended_and_every_token_is_predicted_once(sizes, together):
    batches = one_epoch(streams(sizes, together=together))
    rows = len(batches[0])
    assert len(batches) % together == 0 and {len(batch) for batch in batches} == {rows} and rows <= 3
    targets = [t for batch in batches for part in batch for t in part.ids[1:].tolist()]
    assert len(targets) == len(set(targets))
    left_out = sum(n - 1 for n in sizes if n > 1) - len(targets)
    assert 0 <= left_out < 4 * rows * together  # less than a window a row
    for side in range(together):
        for row in range(rows):
            stream = [batch[row] for batch in batches[side::together]]
            assert stream[0].fresh
            for last, part in pairwise(stream):
                assert part.fresh == (part.ids[0] != last.ids[-1])
                assert not part.fresh or part.ids[0] % 1000 == 0  # a document begins


def test_streams_differ_between_epochs_and_resume():
    found, seen = streams([100, 30]), []
    for batch in found:
        seen.append(([part.ids.tolist() for part in batch], found.position))
        if found.position.epoch == 2:
            break
    again = streams([100, 30])
    again.position = seen[4][1]
    assert [part.ids.tolist() for part in next(iter(again))] == seen[5][0]
    of = lambda epoch: [ids for ids, position in seen if position.epoch == epoch]  # noqa: E731
    assert of(0) != of(1)


def test_a_text_too_short_for_an_update_is_said():
    with pytest.raises(QkvError, match="too short for a batch"):
        one_epoch(streams([6], together=4))


@pytest.mark.parametrize("kind", ["lstm", "elman"])
def test_the_loss_of_a_carried_text_is_that_of_each_document_whole(kind):
    r = random.Random(1)
    words = lambda n: " ".join(r.choice(["to", "be", "or", "not"]) for _ in range(n))  # noqa: E731
    task = task_of(
        recipe_of({"text": words(60)}, model={"recurrent": kind}, data={"tokenizer": "characters", "carry": True})
    )
    task.text = type(task.text)([np.array([1, *r.choices(range(4, 9), k=n), 2]) for n in (90, 5, 33, 90)], 100)
    network = task.network().eval()
    total = count = 0
    for document in task.text.documents:
        ids = torch.from_numpy(document)
        logits = network(Batch(ids[None, :-1])).logits[0]
        total += nn.functional.cross_entropy(logits, ids[1:], reduction="sum").item()
        count += len(ids) - 1
    assert task.evaluate(network)["loss"] == pytest.approx(total / count, rel=1e-5)
    assert "carried" in task.how


def test_side_by_side_the_longest_leave_last():
    found = [np.arange(n) for n in (9, 5, 4, 1)]
    lengths = [[len(row) for row in rows] for rows in side_by_side(found, 3)]
    assert lengths == [[4, 4, 4], [4, 2], [3]]


# --- training


def shakes(steps: int = 6, model: dict[str, Any] | None = None, **fields: Any) -> Recipe:
    r = random.Random(2)
    text = " ".join(r.choice(["to", "be", "or", "not"]) for _ in range(400))
    data = {"tokenizer": "characters", "max_length": 8, "batch_tokens": 24, "carry": True}
    model = {"recurrent": "lstm", "n_layers": 2, "dropout": 0.0} | (model or {})
    return recipe_of({"text": text}, {"text": text[:200]}, model, data, steps=steps, **fields)


def train(recipe: Recipe, folder: Path) -> training.Run:
    return training.run(recipe, "recipe", folder, Report(quiet=True))


@pytest.mark.parametrize("fields", [{"recurrent": "lstm"}, {"recurrent": None, "mixer": ("s4d", "selective"), "position": "none"}],
                         ids=["lstm", "state spaces"])  # fmt: skip
def test_killed_and_resumed_is_uninterrupted(fields, tmp_path, monkeypatch):
    """With dropout, two micro-batches, and a kill that leaves two windows to be read again."""
    recipe = shakes(9, {"dropout": 0.2, **fields}, accumulate=2, save_every=3)
    train(recipe, tmp_path / "whole")
    original = TrainingLog.add

    def dies(log: TrainingLog, line: dict[str, Any], *rest: bool) -> None:
        if line["step"] == 6:
            raise Killed
        original(log, line, *rest)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(TrainingLog, "add", dies)
        train(recipe, tmp_path / "parts")
    assert checkpoint.newest(tmp_path / "parts") == tmp_path / "parts" / "checkpoint-0000003"
    stored = [
        name
        for name in read_tensors(tmp_path / "parts" / "checkpoint-0000003" / checkpoint.TENSORS)
        if "carried" in name
    ]
    assert {name.split(".")[1] for name in stored} == {"0", "1"}  # of each micro-batch
    torch.manual_seed(5)
    train(recipe, tmp_path / "parts")
    assert (tmp_path / "whole" / "log.jsonl").read_text() == (tmp_path / "parts" / "log.jsonl").read_text()
    a, b = (read_tensors(tmp_path / name / "checkpoint-0000009" / checkpoint.TENSORS) for name in ("whole", "parts"))
    assert a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_the_carried_state_decides_what_is_learned_next(tmp_path):
    """A resumed run whose state was lost would go another way: the test above can fail."""
    recipe = shakes(4, save_every=2)
    whole = train(recipe, tmp_path / "whole").training.carried[0].layers[0]["hidden"]
    train(recipe.changed(train=recipe.train.changed(steps=2)), tmp_path / "parts")
    forgetful = training.open_run(recipe, tmp_path / "parts", Report(quiet=True))
    assert forgetful.training.progress.step == 2 and forgetful.training.carried
    forgetful.training.carried = [State()]
    training.learn(forgetful, Report(quiet=True))
    assert not torch.allclose(whole, forgetful.training.carried[0].layers[0]["hidden"], atol=1e-6)


def test_micro_batches_are_one_batch_of_all_their_rows(tmp_path):
    """Two of three rows = one of six: other stretches of the text in the rows, but as many windows and equal borders."""
    small, large = (task_of(r) for r in (shakes(accumulate=2), shakes()))
    large.batches.tokens = 48
    few, many = iter(small.batches), iter(large.batches)
    for _ in range(5):
        halves, whole = [small.collate(next(few)) for _ in range(2)], large.collate(next(many))
        for name in ("inputs", "targets", "fresh"):
            both = torch.cat([getattr(half, name) for half in halves])
            assert torch.equal(both, getattr(whole, name)[:, : both.size(1)] if name != "fresh" else whole.fresh)


def test_a_carrying_model_learns_what_only_a_carried_state_can_know(tmp_path):
    """Windows of 2 tokens of "aab aab ...": within a window nobody knows which a is the second; a carried state does."""
    losses = {}
    for carry in (True, False):
        data = {"tokenizer": "characters", "max_length": 2, "batch_tokens": 16, "carry": carry, "vocab_size": 11}
        recipe = recipe_of({"text": "aab" * 200}, model={"recurrent": "gru", "dropout": 0.0}, data=data, steps=80,
                           learning_rate=2e-2, warmup=5, evaluate_every=80, save_every=80)  # fmt: skip
        losses[carry] = train(recipe, tmp_path / f"{carry}").results["valid"]["value"]
    assert losses[True] < 0.1 and losses[False] > 0.95 * math.log(2) / 3  # a third of the letters is a coin's toss


# --- one changed line, and hello


@pytest.mark.parametrize("name", ["grammar-lm", "shakespeare-char", "shakespeare-fast", "shakespeare-transformer"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_transformers_recipe_becomes_recurrent_by_one_line(name, kind):
    recipe = load_recipe(find(name), [f"model.recurrent={kind}", "model.d_model=16", "model.n_heads=2"])
    LanguageTask.possible(recipe)
    network = build(recipe.model)
    ids = torch.randint(0, 50, (2, 6))
    assert network(Batch(ids)).logits.shape == (2, 6, recipe.model.vocab_size)
    assert any(isinstance(module, nn.RNNBase) for module in network.modules())


@pytest.mark.parametrize("mixer", ["gated-linear", "s4d", "selective"])
def test_a_transformers_recipe_gets_another_mixer_by_two(mixer):
    """As the README has it."""
    recipe = load_recipe(find("grammar-lm"), [f"model.mixer={mixer}", "model.position=none", "data.carry=true"])
    LanguageTask.possible(recipe)
    assert carries(recipe.model)


def test_recipes_of_shakespeare_are_of_one_size():
    names = ["transformer", "elman", "gru", "lstm", "gla", "mamba"]
    recipes = [load_recipe(find(f"shakespeare-{name}")) for name in names]
    sizes = [sum(p.numel() for p in build(r.model.changed(vocab_size=68)).parameters()) for r in recipes]
    assert all(0.89e6 < size < 1.0e6 for size in sizes) and max(sizes) < 1.07 * min(sizes)
    budget = lambda r: (r.train.time_budget, r.data.batch_tokens, r.data.max_length, r.train.seed)  # noqa: E731
    assert len({budget(r) for r in recipes}) == 1
    assert [r.data.carry for r in recipes] == [False, True, True, True, True, True]


def test_hello(tmp_path):
    recipe = load_recipe(find("hello"))
    assert recipe.model.recurrent == "elman"
    train(recipe, tmp_path / "hello")
    model = qkv.load(tmp_path / "hello")
    letters = {model.words().decode([i]) for i in range(model.config.vocab_size)} - {""}
    assert letters == set("helo")
    assert "".join(model.generate("h")) == "ello"  # and then its end
    assert "".join(model.generate("hel")) == "lo" and "".join(model.generate("hell")) == "o"


def test_a_recurrent_model_writes_on_without_end():
    """Past max_length, with a state that does not grow: as if the text had been read as a whole."""
    network = network_of(recurrent="lstm").eval()
    config = ModelConfig(family="decoder", vocab_size=13, d_model=16, n_layers=2, recurrent="lstm", max_length=8,
                         position="rotary")  # fmt: skip
    model = Model(config, network)
    long = text_of(1, 20).inputs[0].tolist()
    written = list(model.generate(long, max_new_tokens=30))
    assert len(written) == 30 and written == list(model.generate(long, max_new_tokens=30, slide=True))
    logits = model.logits([long + written])[0]
    assert logits[19:-1].argmax(-1).tolist() == written
    state = State()
    sizes = set()
    for token in long:
        _, state = network.step(torch.tensor([[token]]), state)
        sizes.add(sum(x.numel() for layer in state.layers for x in layer.values()))
    assert sizes == {2 * 2 * 16} and state.keys is None


def test_muon_treats_each_gate_as_a_map_of_its_own():
    network = network_of(recurrent="lstm")
    o = make_optimizer(network, TrainConfig(optimizer="muon", learning_rate=0.1))
    weight = network.stack.cells.weight_hh_l1
    before = weight.detach().clone()
    batch = text_of(2, 6)
    causal(network(batch), batch).sum.backward()
    expected = torch.cat([orthogonalise(gate[None])[0] for gate in weight.grad.chunk(4)])
    o.step()
    step = (weight - before).detach() / (-0.1 * 0.2 * 16**0.5)
    torch.testing.assert_close(step, expected, atol=1e-4, rtol=1e-4)
    assert {group["rows"] for group in o.param_groups} == {(), (16,) * 4}


@carrying
def test_half_precision_carries_too(fields):
    network, carried, whole = network_of(**fields), [State()], text_of(3, 12)
    for a in (0, 6):
        loss = gradients(LossModule(network, causal, half=True), [window(whole, a, a + 6)], carried)
    exact = carry_on(network, [window(whole, 0, 6), window(whole, 6, 12)])[1]
    assert loss.sum.item() == pytest.approx(exact.item(), rel=0.05)


def test_a_text_in_the_recipe_is_for_language_models():
    data = recipe_of({"text": "hello"}).data
    with pytest.raises(ConfigError, match="text is one document"):
        corpus(data.valid, data, "valid", schema_of("translation"))
    assert list(corpus(data.valid, data, "valid", schema_of("language")).read()) == [(1, ("hello",))]
