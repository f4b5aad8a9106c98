"""Fine-tuning: which weights change and how fast, low-rank updates, and that a resumed run is the run that never stopped."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import qkv
from qkv.api import Model
from qkv.batch import Batch
from qkv.config import ModelConfig, TrainConfig, TuneConfig, load_recipe
from qkv.convert import folder as ours
from qkv.convert.files import read_json, read_tensors
from qkv.errors import ConfigError
from qkv.models.build import build
from qkv.models.example import example
from qkv.models.weights import weights
from qkv.objectives import objective
from qkv.presets import tiny
from qkv.train import checkpoint, lora
from qkv.train import run as training
from qkv.train.average import weights_of
from qkv.train.checkpoint import Training
from qkv.train.loop import prepare
from qkv.train.optimizer import layer_positions, make_optimizer
from qkv.train.report import Report
from qkv.train.schedule import learning_rate
from qkv.train.step import LossModule, step

ENCODER = ModelConfig(family="encoder", head="classes", vocab_size=40, d_model=16, n_layers=3, n_heads=2, d_ff=24,
                      position="learned", max_length=12, n_classes=3, embed_norm=True)  # fmt: skip
DECODER = ModelConfig(family="decoder", vocab_size=40, d_model=16, n_layers=3, n_heads=2, d_ff=24, tie="output",
                      norm_order="pre", position="relative", max_length=12)  # fmt: skip
BOTH = ModelConfig(family="encoder-decoder", vocab_size=40, d_model=16, n_layers=3, n_decoder_layers=2, n_heads=2, d_ff=24,
                   tie="all", norm_order="pre", position="t5", max_length=12)  # fmt: skip
RECURRENT = ModelConfig(
    family="encoder", head="tags", vocab_size=40, d_model=16, n_layers=2, recurrent="gru", position="none"
)
KINDS = {"encoder": ENCODER, "decoder": DECODER, "encoder-decoder": BOTH, "recurrent": RECURRENT}


def network(c: ModelConfig, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return build(c)


def batch(c: ModelConfig, seed: int = 0) -> Batch:
    return example(c, draw=torch.Generator().manual_seed(seed))


def targets(c: ModelConfig, one: Batch, seed: int = 0) -> Batch:
    draw = torch.Generator().manual_seed(seed)
    shape = (one.inputs.size(0),) if c.head == "classes" else tuple(one.inputs.shape)
    return replace(one, targets=torch.randint(2, shape, generator=draw))


def update(t: Training, one: Batch, c: ModelConfig, how: TrainConfig, number: int) -> float:
    for group in t.optimizer.param_groups:
        group["lr"] = learning_rate(how, number + 1, 0.0) * group["scale"]
    return float(step(LossModule(t.network.train(), objective(c)), t.optimizer, [one], 1.0).mean)


def learn(t: Training, c: ModelConfig, how: TrainConfig, first: int, last: int) -> list[float]:
    """Updates first .. last - 1, each on a batch of its own number, with dropout."""
    return [update(t, targets(c, batch(c, number), number), c, how, number) for number in range(first, last)]


def scales(n: nn.Module, tune: TuneConfig, kind: str = "adamw") -> dict[str, float]:
    names = {p: name for name, p in n.named_parameters()}
    groups = make_optimizer(n, TrainConfig(optimizer=kind), tune).param_groups
    found = [(names[p], group["scale"]) for group in groups for p in group["params"]]
    assert len(dict(found)) == len(found), "in two groups"
    return dict(found)


# --- places


def test_each_layer_learns_slower_than_the_one_above() -> None:
    found = scales(network(ENCODER), TuneConfig(layer_decay=0.5, head_rate=10))
    assert {s for n, s in found.items() if n.startswith("head.")} == {10}
    for i in range(3):
        assert {s for n, s in found.items() if n.startswith(f"stack.blocks.{i}.")} == {0.5 ** (3 - i)}
    assert {s for n, s in found.items() if n.startswith("embed.")} == {0.5**4}


def test_a_shared_matrix_and_positions_belong_to_the_lowest_place() -> None:
    found = scales(network(DECODER), TuneConfig(layer_decay=0.5, head_rate=10))
    assert "head.weight" not in found and found["embed.tokens.weight"] == 0.5**4
    assert found["stack.norm.weight"] == 0.5
    assert [found[f"stack.positions.{i}.keys"] for i in range(3)] == [0.125, 0.25, 0.5]
    albert = scales(network(ENCODER.changed(share_layers=True)), TuneConfig(layer_decay=0.5))
    assert {s for n, s in albert.items() if ".blocks." in n} == {0.125}


def test_each_half_of_an_encoder_decoder_counts_for_itself() -> None:
    found = scales(network(BOTH), TuneConfig(layer_decay=0.5))
    top = found["encoder.blocks.2.attention.layer.query.weight"], found["decoder.blocks.1.cross.layer.key.weight"]
    assert top == (0.5, 0.5)
    assert found["encoder.blocks.0.attention.layer.query.weight"] == 0.125
    assert found["decoder.blocks.0.attention.layer.query.weight"] == 0.25
    assert found["source.tokens.weight"] == found["encoder.positions.0.table"] == 0.0625
    assert found["decoder.positions.0.table"] == 0.125


@pytest.mark.parametrize("name", ["bert-base", "gpt2", "llama-7b", "t5-small", "vit-b16", "rnnsearch"])
def test_every_parameter_of_a_preset_has_a_place(name: str) -> None:
    n = build(tiny(name))
    assert set(layer_positions(n)) == set(n.parameters())
    heads = {p for p, place in layer_positions(n).items() if place.head}
    assert heads <= set(n.head.parameters())


@pytest.mark.parametrize("c", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_without_settings_all_weights_learn_alike(c: ModelConfig, kind: str) -> None:
    n = network(c)
    found = scales(n, TuneConfig(), kind)
    assert found.keys() == dict(n.named_parameters()).keys() and set(found.values()) == {1}
    groups = make_optimizer(n, TrainConfig(optimizer=kind, weight_decay=0.1)).param_groups
    kinds = {(g["orthogonal"], g["weight_decay"] > 0, g["rows"]) for g in groups}
    assert len(kinds) == len(groups)  # no kind of weight is split
    assert {(orthogonal, decayed) for orthogonal, decayed, _ in kinds} == (
        {(False, True), (False, False), (True, True)} if kind == "muon" else {(False, True), (False, False)}
    )


@pytest.mark.parametrize("mixer", ["s4d", "selective"])
def test_the_rates_of_a_state_space_do_not_decay(mixer: str) -> None:
    n = build(tiny("gpt2").changed(mixer=[mixer], position="none", attention_dropout=0.0))
    groups = make_optimizer(n, TrainConfig(weight_decay=0.1)).param_groups
    decayed = {p for g in groups if g["weight_decay"] for p in g["params"]}
    for name, parameter in n.named_parameters():
        rate = name.endswith(("log_decay", "frequency"))
        assert (parameter in decayed) == (parameter.dim() > 1 and not rate), name
    assert any(name.endswith("log_decay") for name, _ in n.named_parameters())


@pytest.mark.parametrize(("freeze", "still"), [(1, {0}), (2, {0, 1}), (3, {0, 1, 2}), (-1, {0, 1, 2})])
@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_frozen_layers_stay_as_they_are(freeze: int, still: set[int], kind: str) -> None:
    how = TrainConfig(optimizer=kind, warmup=0, weight_decay=0.1)
    t = prepare(network(ENCODER), how, TuneConfig(freeze=freeze))
    before = {name: x.clone() for name, x in weights(t.network).items()}
    learn(t, ENCODER, how, 0, 2)
    changed = {name for name, x in weights(t.network).items() if not torch.equal(x, before[name])}
    learned = [f"stack.blocks.{i}." for i in range(3) if i not in still] + ["head."]
    assert changed == {name for name in before if name.startswith(tuple(learned))}
    assert all((p.grad is None) == (name not in changed) or kind == "muon" for name, p in t.network.named_parameters())


def test_a_layer_moves_by_its_share() -> None:
    """The first step of Adam is as long as the learning rate, whatever the gradient."""
    how = TrainConfig(warmup=0, clip=0.0, learning_rate=1e-3, schedule="constant")
    t = prepare(network(ENCODER.changed(dropout=0.0)), how, TuneConfig(layer_decay=0.5, head_rate=4))
    before = {name: x.clone() for name, x in weights(t.network).items()}
    learn(t, ENCODER, how, 0, 1)
    moved = {name: float((x - before[name]).abs().max()) for name, x in weights(t.network).items()}
    for name, share in (("head.output.weight", 4), ("stack.blocks.2.feedforward.layer.up.weight", 0.5),
                        ("stack.blocks.0.feedforward.layer.up.weight", 0.125), ("embed.tokens.weight", 0.0625)):  # fmt: skip
        assert moved[name] == pytest.approx(1e-3 * share, rel=1e-3)


@pytest.mark.parametrize("c", [ENCODER, RECURRENT], ids=["attention", "recurrent"])
def test_what_cannot_be_frozen(c: ModelConfig) -> None:
    with pytest.raises(ConfigError, match=r"tune\.freeze = 9 layers, but the network has"):
        make_optimizer(network(c), TrainConfig(), TuneConfig(freeze=9))
    with pytest.raises(ConfigError, match="no weights to train"):
        make_optimizer(network(c.changed(head="none")), TrainConfig(), TuneConfig(freeze=-1))


# --- low-rank updates


@pytest.mark.parametrize("c", [ENCODER, DECODER, BOTH], ids=["encoder", "decoder", "encoder-decoder"])
@pytest.mark.parametrize("feedforward", [False, True])
def test_at_the_start_updates_change_nothing_and_they_are_few(c: ModelConfig, feedforward: bool) -> None:
    n = network(c).eval()
    before, one = n(batch(c)).logits, batch(c)
    head = sum(p.numel() for p, place in layer_positions(n).items() if place.head)
    lora.apply(n, 2, 8.0, feedforward)
    assert torch.allclose(n(one).logits, before, atol=1e-6)
    attentions = 3 if c.family != "encoder-decoder" else 3 + 2 * 2
    blocks = 3 if c.family != "encoder-decoder" else 5
    expected = attentions * 4 * 2 * (16 + 16) + (blocks * 2 * 2 * (16 + 24) if feedforward else 0)
    assert sum(p.numel() for p in n.parameters() if p.requires_grad) == expected + head


@pytest.mark.parametrize("c", [ENCODER, BOTH], ids=["encoder", "encoder-decoder"])
@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_only_updates_and_the_head_learn_and_merged_they_are_a_plain_model(
    c: ModelConfig, kind: str, tmp_path: Path
) -> None:
    how = TrainConfig(optimizer=kind, warmup=0, learning_rate=3e-2)
    t = prepare(network(c), how, TuneConfig(lora_rank=2, lora_alpha=6.0))
    before = {name: x.clone() for name, x in weights(t.network).items()}
    learn(t, c, how, 0, 3)
    changed = {name for name, x in weights(t.network).items() if not torch.equal(x, before[name])}
    updates = {name for name in before if name.endswith(("weight.0.a", "weight.0.b"))}
    assert changed == updates | {name for name in before if name.startswith("head.")}
    adapted = t.network.eval()(batch(c, 9)).logits
    assert not torch.allclose(adapted, network(c).eval()(batch(c, 9)).logits, atol=1e-2)

    ours.save(tmp_path / "best", c, lora.plain(c, t.network))
    lora.save(tmp_path / "best", t.network)
    model = qkv.load(tmp_path / "best", "cpu")
    assert weights(model.network).keys() == weights(network(c)).keys()
    assert torch.allclose(model.network(batch(c, 9)).logits, adapted, atol=1e-5)
    assert not lora.updates(model.network) and lora.plain(c, model.network) is model.network


def test_a_model_with_updates_is_exported_to_hugging_face(tmp_path: Path) -> None:
    c = tiny("bert-base").changed(head="classes", n_classes=2)
    how = TrainConfig(warmup=0)
    t = prepare(network(c), how, TuneConfig(lora_rank=2))
    learn(t, c, how, 0, 2)
    model = Model(c, lora.plain(c, t.network), None, device="cpu")
    assert model.export(tmp_path / "theirs", "hf") < 1e-5
    again = qkv.load(tmp_path / "theirs", "cpu")
    assert torch.allclose(again.network(batch(c)).logits, t.network.eval()(batch(c)).logits, atol=1e-5)


def test_adapters_in_files_are_what_was_learned(tmp_path: Path) -> None:
    how = TrainConfig(warmup=0)
    n = network(ENCODER)
    base = {name: x.clone() for name, x in weights(n).items()}
    t = prepare(n, how, TuneConfig(lora_rank=3, lora_alpha=8.0, lora_feedforward=True))
    learn(t, ENCODER, how, 0, 2)
    lora.save(tmp_path, t.network)
    tensors, settings = read_tensors(tmp_path / lora.TENSORS), read_json(tmp_path / lora.SETTINGS)
    assert settings["r"] == 3 and settings["lora_alpha"] == 8 and len(settings["target_modules"]) == 3 * 6
    again = dict(base)
    for name in settings["target_modules"]:
        b, a = (tensors.pop(f"base_model.model.{name}.lora_{x}.weight") for x in "BA")
        again[f"{name}.weight"] = base[f"{name}.weight"] + 8 / 3 * b @ a
    again |= {name.removeprefix("base_model.model."): x for name, x in tensors.items()}
    merged = lora.merge_updates(weights(t.network))
    assert merged.keys() == again.keys()
    assert all(torch.allclose(merged[name], again[name], atol=1e-6) for name in merged)


def test_a_small_model_learns_with_updates_alone() -> None:
    """Which of two words is somewhere in the row? The body is random and frozen: attention must learn to look for it."""
    c = ENCODER.changed(dropout=0.0, n_classes=2, n_layers=1)
    how = TrainConfig(warmup=10, learning_rate=5e-3, schedule="constant")

    def examples(seed: int) -> Batch:
        draw = torch.Generator().manual_seed(seed)
        rows, answers = torch.randint(10, 40, (64, 8), generator=draw), torch.randint(2, (64,), generator=draw)
        rows[torch.arange(64), torch.randint(1, 8, (64,), generator=draw)] = torch.where(answers == 0, 5, 6)
        return Batch(inputs=rows, targets=answers)

    def share(tune: TuneConfig) -> float:
        t = prepare(network(c), how, tune)
        for number in range(100):
            update(t, examples(number), c, how, number)
        held_out = examples(10_000)
        return float((t.network.eval()(held_out).logits.argmax(1) == held_out.targets).float().mean())

    assert share(TuneConfig(lora_rank=4)) > 0.95
    assert share(TuneConfig(freeze=-1)) < 0.8  # the head alone cannot


def test_what_cannot_have_updates() -> None:
    with pytest.raises(ConfigError, match="networks with attention"):
        lora.apply(network(RECURRENT), 2)
    with pytest.raises(ConfigError, match="only rank 16"):
        lora.apply(network(ENCODER), 17)


# --- a resumed run is the run that never stopped

TUNED = {
    "scaled": TuneConfig(layer_decay=0.8, head_rate=3),
    "frozen": TuneConfig(layer_decay=0.8, freeze=1),
    "head": TuneConfig(freeze=-1),
    "updates": TuneConfig(lora_rank=2, layer_decay=0.8),
}


@pytest.mark.parametrize("kind", ["adamw", "muon"])
@pytest.mark.parametrize("tune", TUNED.values(), ids=TUNED)
def test_resumed_is_uninterrupted(tune: TuneConfig, kind: str, tmp_path: Path) -> None:
    how = TrainConfig(optimizer=kind, warmup=4, ema=0.9, weight_decay=0.01)
    whole = prepare(network(ENCODER), how, tune)
    torch.manual_seed(5)
    learn(whole, ENCODER, how, 0, 3)
    checkpoint.save(tmp_path / "checkpoint-3", whole)
    expected = learn(whole, ENCODER, how, 3, 6)

    torch.manual_seed(99)  # another process
    resumed = prepare(network(ENCODER, seed=7), how, tune)
    checkpoint.load(tmp_path / "checkpoint-3", resumed)
    assert learn(resumed, ENCODER, how, 3, 6) == expected
    for name, x in weights(whole.network).items():
        assert torch.equal(x, weights(resumed.network)[name]), name
    scale = [group["scale"] for group in whole.optimizer.param_groups]
    assert [group["scale"] for group in resumed.optimizer.param_groups] == scale


def test_checkpoints_from_before_there_were_scales_go_on(tmp_path: Path) -> None:
    t = prepare(network(ENCODER), TrainConfig())
    checkpoint.save(tmp_path / "checkpoint-0", t)
    path = tmp_path / "checkpoint-0" / checkpoint.NUMBERS
    numbers = json.loads(path.read_text())
    for group in numbers["groups"]:
        del group["scale"]
    path.write_text(json.dumps(numbers))
    checkpoint.load(tmp_path / "checkpoint-0", t)
    assert [group["scale"] for group in t.optimizer.param_groups] == [1.0, 1.0]


def test_checkpoints_with_updates_have_a_plain_mean(tmp_path: Path) -> None:
    how = TrainConfig(warmup=0)
    t = prepare(network(ENCODER), how, TuneConfig(lora_rank=2))
    learn(t, ENCODER, how, 0, 2)
    checkpoint.save(tmp_path / "checkpoint-2", t)
    again = ours.network_with(ENCODER, weights_of(tmp_path / "checkpoint-2"))
    assert torch.allclose(again(batch(ENCODER)).logits, t.network.eval()(batch(ENCODER)).logits, atol=1e-6)


# --- a whole run

RECIPE = """
[model]
family = "encoder-decoder"
d_model = 16
n_layers = 1
n_heads = 2
d_ff = 32
position = "learned"
max_length = 64
embed_norm = true
feedforward = "gelu"
tie = "all"
dropout = 0.0
[data]
train = [{ grammar = 60 }]
valid = { grammar = 3 }
max_length = 60
vocab_size = 120
batch_tokens = 200
[train]
steps = 4
warmup = 1
evaluate_every = 2
save_every = 2
ema = 0.5
[tune]
lora_rank = 2
lora_from_scratch = true
"""


def test_updates_of_random_weights_are_refused(tmp_path: Path, run: Callable[..., tuple[int, str, str]]) -> None:
    (tmp_path / "r.toml").write_text(RECIPE.replace("lora_from_scratch = true", ""))
    code, _, said = run("train", tmp_path / "r.toml", "--out", tmp_path / "run")
    assert code == 2 and said.count("\n") == 1 and "name the model to adapt in tune.start" in said
    assert not (tmp_path / "run").exists()


def test_a_run_with_updates_keeps_an_ordinary_model(tmp_path: Path, run: Callable[..., tuple[int, str, str]]) -> None:
    (tmp_path / "r.toml").write_text(RECIPE)
    recipe = load_recipe(tmp_path / "r.toml")
    done = training.run(recipe, RECIPE, tmp_path / "run", Report(quiet=True))
    model = qkv.load(tmp_path / "run", "cpu")
    one = batch(model.config)
    network = done.training.network if done.training.average is None else done.training.average.module
    assert done.training.progress.best_step == 4  # the last update, whose score was no worse
    assert torch.allclose(model.network(one).logits, network.eval()(one).logits, atol=1e-5)
    fresh = training.open_run(recipe, tmp_path / "other", Report(quiet=True)).training.network
    learned = {
        name
        for name, x in weights(model.network).items()
        if not torch.equal(x, lora.merge_updates(weights(fresh))[name])
    }
    assert learned == {f"{name}.weight" for name in lora.updates(fresh)}
    assert {lora.TENSORS, lora.SETTINGS, "model.safetensors"} <= {p.name for p in (tmp_path / "run" / "best").iterdir()}
    code, out, err = run("export", tmp_path / "run", tmp_path / "out", "--to", "qkv")
    assert code == 0 and "largest difference 0.0" in out, err


# --- GPT's auxiliary loss

CLASSES = """
task = "classification"
[model]
family = "decoder"
head = "classes-words"
pooling = "last"
d_model = 16
n_layers = 1
n_heads = 2
d_ff = 32
tie = "output"
dropout = 0.0
[data]
train = [{ grammar = 60 }]
valid = { grammar = 10 }
vocab_size = 120
batch_tokens = 200
[tune]
auxiliary = 0.5
"""


def test_the_recipe_weighs_the_next_word_beside_the_class(tmp_path: Path) -> None:
    """Classes' cross-entropy + auxiliary * the mean of -log p(next word) over each sequence, in plain torch."""
    (tmp_path / "r.toml").write_text(CLASSES)
    losses = {}
    for weight in (0.0, 0.5, 2.0):
        recipe = load_recipe(tmp_path / "r.toml", [f"tune.auxiliary={weight}"])
        opened = training.open_run(recipe, tmp_path / f"run-{weight}", Report(quiet=True))
        rows = opened.task.collate(next(iter(opened.task.batches)))
        output = opened.training.network.eval()(rows)
        losses[weight] = opened.task.objective(output, rows).sum.item()
    classes = nn.functional.cross_entropy(output.logits, rows.targets, reduction="sum").item()
    words = 0.0
    logits = output.hidden @ opened.training.network.embed.tokens.weight.T  # (B, T, V)
    for number, row in enumerate(rows.inputs):
        length = len(row) if rows.mask is None else int(rows.mask[number].sum())
        words += nn.functional.cross_entropy(logits[number, : length - 1], row[1:length]).item()
    for weight, loss in losses.items():
        assert loss == pytest.approx(classes + weight * words, rel=1e-4)


def test_an_auxiliary_loss_needs_its_head(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text(CLASSES.replace("classes-words", "classes"))
    with pytest.raises(ConfigError, match='needs head = "classes-words"'):
        training.run(load_recipe(tmp_path / "r.toml"), CLASSES, tmp_path / "run", Report(quiet=True))
