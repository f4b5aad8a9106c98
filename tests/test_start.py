"""Starting from a trained model: what is taken over, what is new, and which settings and vocabularies cannot be used."""

from __future__ import annotations

import re
from io import StringIO
from pathlib import Path

import pytest
import torch
from rich.console import Console
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers
from torch import Tensor

from qkv import load, recipes
from qkv.commands.train import kept_text
from qkv.config import (
    CorruptConfig,
    DataConfig,
    DecodeConfig,
    ModelConfig,
    Recipe,
    TrainConfig,
    TuneConfig,
    load_recipe,
    read_toml,
)
from qkv.convert import folder as ours
from qkv.convert.detect import open_config
from qkv.errors import ConfigError, QkvError
from qkv.models.build import build
from qkv.models.weights import weights
from qkv.presets import preset
from qkv.tasks.base import TASKS, Task, Words, task_of, unused
from qkv.tasks.vocabulary import special_ids
from qkv.text.kinds import kind_of, lowercases
from qkv.text.tokenizer import Tokenizer
from qkv.text.train import KINDS, train_tokenizer
from qkv.train import run as training
from qkv.train.report import Report
from qkv.train.warm_start import check_start, contradictions, start_from

SIZES = {"vocab_size": 30, "d_model": 8, "n_layers": 2, "n_heads": 2, "d_ff": 16, "max_length": 16, "dropout": 0.0}


def config(head: str, **fields: object) -> ModelConfig:
    decoder = head in ("vocabulary", "classes-words")
    own = {"family": "decoder" if decoder else "encoder", "pooling": "last" if decoder else "first"}
    return ModelConfig(**{**SIZES, **own, "head": head, **fields})  # type: ignore[arg-type]


def started(folder: Path, old: ModelConfig, new: ModelConfig) -> tuple[dict[str, Tensor], dict[str, Tensor], str]:
    """The weights of the old network, those of the new one that began from it, and what was said."""
    network, said = build(old), []
    ours.save(folder / "old", old, network)
    torch.manual_seed(1)
    beginner = build(new)
    start_from(str(folder / "old"), new, beginner, said.append)
    return weights(network), weights(beginner), said[0]


@pytest.mark.parametrize(("old", "new", "pairs"), [
    ("pooled", "classes", {"head.dense.weight": "head.pooler.dense.weight"}),
    ("masked-next", "classes", {"head.next.pooler.dense.weight": "head.pooler.dense.weight"}),
    ("masked", "masked-next", {"head.dense.weight": "head.words.dense.weight", "head.words.weight": "head.words.words.weight"}),
    ("masked-next", "masked", {"head.words.dense.weight": "head.dense.weight"}),
    ("vocabulary", "classes-words", {"head.weight": "head.words.weight"}),
    ("classes", "classes", {"head.output.weight": "head.output.weight"}),
    ("masked", "classes", {}),
    ("masked", "replaced", {}),
    ("classes", "span", {}),
])  # fmt: skip
def test_of_a_head_only_what_both_have_is_taken_over(old: str, new: str, pairs: dict[str, str], tmp_path: Path) -> None:
    """In particular, what BERT does before it chooses a word is no pooler, and two classes are no first and last token."""
    before, after, said = started(tmp_path, config(old), config(new))
    for name, other in pairs.items():
        assert torch.equal(before[name], after[other])
        assert f"{other}," not in f"{said},"
    for name, x in after.items():
        if not name.startswith("head."):
            assert torch.equal(x, before[name])
    if not pairs:
        assert all(name in said for name in after if name.startswith("head."))


def test_a_shared_word_matrix_is_taken_over_under_both_its_names(tmp_path: Path) -> None:
    before, after, said = started(tmp_path, config("vocabulary", tie="output"), config("vocabulary"))
    assert torch.equal(after["head.weight"], before["embed.tokens.weight"]) and "new weights" not in said


def test_classes_with_other_names_are_new(tmp_path: Path) -> None:
    old = config("classes", n_classes=2, labels=("yes", "no"))
    before, after, said = started(tmp_path, old, config("classes", n_classes=2, labels=("no", "yes")))
    assert not torch.equal(before["head.output.weight"], after["head.output.weight"]) and "head.output.weight" in said
    assert torch.equal(before["head.pooler.dense.weight"], after["head.pooler.dense.weight"])


def test_fewer_layers_are_the_lowest_and_that_is_said(tmp_path: Path) -> None:
    before, after, said = started(tmp_path, config("masked"), config("masked", n_layers=1))
    assert "unused weights: stack.blocks.1." in said
    assert all(torch.equal(x, before[name]) for name, x in after.items())


@pytest.mark.parametrize(("changes", "message"), [
    ({"family": "decoder", "head": "classes", "pooling": "last"}, "of family 'encoder', this model of family 'decoder'"),
    ({"d_ff": 32}, "does not have the weights of this model"),
    ({"n_layers": 3}, "does not have the weights of this model: stack.blocks.2"),
])  # fmt: skip
def test_what_does_not_fit_is_said(changes: dict[str, object], message: str, tmp_path: Path) -> None:
    old = config("masked")
    ours.save(tmp_path / "old", old, build(old))
    new = old.changed(**changes)
    with pytest.raises(QkvError, match=message):
        start_from(str(tmp_path / "old"), new, build(new), lambda _: None)


# --- settings that would be passed over


def recipe(task: str, **fields: object) -> Recipe:
    data = DataConfig(train=({"grammar": 5},), valid={"grammar": 5})  # type: ignore[arg-type]
    return Recipe(**{"task": task, "model": config("masked"), "data": data, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(("task", "fields", "name"), [
    ("tagging", {"train": TrainConfig(label_smoothing=0.1)}, "train.label_smoothing"),
    ("language", {"tune": TuneConfig(auxiliary=0.5)}, "tune.auxiliary"),
    ("translation", {"corrupt": CorruptConfig(rate=0.3)}, "corrupt"),
    ("answering", {"decode": DecodeConfig(beam=2)}, "decode"),
    ("language", {"train": TrainConfig(source_weight=0.5)}, "train.source_weight"),
    ("masked", {"corrupt": CorruptConfig(generator_size=0.5)}, "corrupt.generator_size"),
    ("summary", {"decode": DecodeConfig(extra_length=50)}, "decode.extra_length"),
])  # fmt: skip
def test_a_setting_that_a_task_does_not_read_is_refused(task: str, fields: dict[str, object], name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} does not apply to task '{task}'"):
        unused(recipe(task, **fields))


@pytest.mark.parametrize("task", TASKS)
def test_defaults_are_no_settings(task: str) -> None:
    unused(recipe(task))
    unused(recipe(task, train=TrainConfig(label_smoothing=0.0)))


# --- given vocabularies


def words_of(*special: str) -> Tokenizer:
    names = [*special, "[UNK]", "a", "b"]
    backend = Backend(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return Tokenizer(backend)


def test_special_tokens_go_by_the_names_of_each_kind() -> None:
    named = lambda *names: tuple(special_ids(words_of(*names)).values())  # noqa: E731
    assert named("<pad>", "<s>", "</s>") == (0, 1, 2, None)
    assert named("[PAD]", "[CLS]", "[SEP]") == (0, 1, 2, None)
    assert named("!", "<|endoftext|>") == (0, 1, 1, None)  # GPT-2
    assert named("x", "<pad>", "</s>") == (1, None, 2, 1)  # T5 begins with padding
    told = Tokenizer(
        words_of("x", "<begin>", "<end>").backend, {"bos_token": "<begin>", "eos_token": {"content": "<end>"}}
    )
    assert tuple(special_ids(told).values()) == (0, 1, 2, None)


@pytest.mark.parametrize("name", ["translation", "summary", "span-corruption", "denoising"])
def test_a_writer_needs_tokens_to_begin_and_to_end_with(name: str) -> None:
    c = ModelConfig(**{**SIZES, "family": "encoder-decoder"})  # type: ignore[arg-type]
    r = recipe(name, model=c)
    bare, good = (Words(words, words) for words in (words_of("x"), words_of("<pad>", "<s>", "</s>")))
    with pytest.raises(ConfigError, match="no token that begins or ends a text"):
        task_of(r).fitted(r, bare)
    assert task_of(r).fitted(r, good).eos_ids == (2,)


def test_a_vocabulary_larger_than_the_model_it_starts_from_is_refused() -> None:
    data = DataConfig(train=({"grammar": 5},), valid={"grammar": 5}, vocabulary="words.json")  # type: ignore[arg-type]
    r = recipe("masked", data=data, tune=TuneConfig(start="somewhere"), model=config("masked", vocab_size=4))
    with pytest.raises(ConfigError, match=r"has 5 entries, but the model of tune.start knows only 4"):
        Task.fitted(r, Words(words_of("x", "y")))


def test_a_start_with_two_vocabularies_brings_both(tmp_path: Path) -> None:
    first, second = (train_tokenizer([text], "words", 40) for text in ("one two three", "eins zwei drei"))
    c = ModelConfig(**{**SIZES, "family": "encoder-decoder", "target_vocab_size": 7, "vocab_size": 7})  # type: ignore[arg-type]
    ours.save(tmp_path / "old", c, build(c), first, second)
    r = recipe("translation", model=c, tune=TuneConfig(start=str(tmp_path / "old")))
    words = task_of(r).prepare(r, lambda _: None)
    assert words.source is not None and words.target is not None
    assert words.source.id_of("\u2581two") is not None and words.target.id_of("\u2581zwei") is not None


def test_small_letters_are_for_wordpiece() -> None:
    data = DataConfig(train=({"grammar": 5},), valid={"grammar": 5}, lower=True)  # type: ignore[arg-type]
    r = recipe("masked", data=data)
    with pytest.raises(ConfigError, match=r"data.lower is for data.tokenizer = 'wordpiece'"):
        task_of(r).prepare(r, lambda _: None)


# --- what the model of tune.start brings along

STARTS = """
[model]
family = "encoder-decoder"
d_model = 16
n_layers = 1
n_heads = 2
d_ff = 32
tie = "all"
[data]
train = [{ grammar = 60 }]
valid = { grammar = 3 }
vocab_size = 180
batch_tokens = 200
[train]
steps = 2
"""


def train(folder: Path, *settings: str, text: str = STARTS) -> str:
    """What a run said."""
    path = folder.parent / f"{folder.name}.toml"
    path.write_text(text)
    screen = StringIO()
    report = Report(Console(file=screen))
    training.run(load_recipe(path, list(settings), open_config), kept_text(path, list(settings)), folder, report)
    return screen.getvalue()


@pytest.fixture(scope="module")
def general(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("start") / "general"
    train(folder)
    return folder


def test_the_same_recipe_starts_from_its_run_and_the_vocabulary_is_announced(general: Path, tmp_path: Path) -> None:
    """As the message of a folder with another run suggests; what the recipe says of the vocabulary is what was asked for then."""
    for start in (general, general / "best"):
        said = train(tmp_path / start.name, f"tune.start={start}", "model.dropout=0.3", "train.learning_rate=1e-4")
        size = load(general).tokenizer.size  # type: ignore[union-attr]
        assert f"vocabulary of {start}: {size} BPE tokens" in said and f"starting from {start}" in said


@pytest.mark.parametrize("settings", [
    ("data.vocab_size=999",), ("data.tokenizer=wordpiece",), ("data.tokenizer=byte-bpe",),
    ("data.tokenizer=wordpiece", "data.lower=true"), ("data.joint=false", "model.tie=output"), ("model.position=rotary",),
    ("model.d_model=32",), ("model.d_ff=64",), ("model.n_layers=2",), ("model.norm_order=pre",), ("model.feedforward=gelu",),
    ("model.embed_scale=true",), ("model.n_kv_heads=1",), ("model.vocab_size=300",),
])  # fmt: skip
def test_what_contradicts_the_start_is_named(settings: tuple[str, ...], general: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        train(tmp_path / "run", f"tune.start={general}", *settings)
    message = str(refused.value)
    assert "leave these fields out or set them to the same values" in message
    for name, _, value in (setting.partition("=") for setting in settings):
        if name != "model.tie":  # a matrix that was one can become two
            assert re.search(rf'{name} = "?{value}"? \(there ', message), name


def test_all_contradictions_are_named_at_once(general: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model.d_ff = 8 \(there 32\), .*data.vocab_size = 500 \(there "):
        train(tmp_path / "run", f"tune.start={general}", "model.d_ff=8", "data.vocab_size=500")
    assert not (tmp_path / "run" / "tokenizer.json").exists()


def test_another_vocabulary_is_refused_and_the_same_is_not(general: Path, tmp_path: Path) -> None:
    other = train_tokenizer(["ein anderer Text"], "bpe", 60)
    (tmp_path / "other.json").write_text(other.to_json())
    with pytest.raises(ConfigError, match=r"data.vocabulary = .*other.json"):
        train(tmp_path / "run", f"tune.start={general}", f"data.vocabulary={tmp_path / 'other.json'}")
    said = train(tmp_path / "run", f"tune.start={general}", f"data.vocabulary={general}")
    assert f"vocabulary of {general}" in said


def test_fields_that_say_the_same_and_those_that_are_tuned_are_no_contradiction(general: Path, tmp_path: Path) -> None:
    size = load(general).tokenizer.size  # type: ignore[union-attr]
    settings = (f"data.vocab_size={size}", "data.tokenizer=bpe", "data.lower=false", "data.joint=true", "model.n_kv_heads=2",
                "model.d_head=8", "model.position=sinusoidal", "model.max_length=300", "model.attention_dropout=0.1",
                "model.n_decoder_layers=1")  # fmt: skip
    assert "starting from" in train(tmp_path / "run", f"tune.start={general}", *settings)


def test_a_vocabulary_given_without_a_start_is_announced(general: Path, tmp_path: Path) -> None:
    """What README has for the same network from fresh weights; the size that the recipe asks for is that of a learned one."""
    said = train(
        tmp_path / "run", "tune.start=", f"data.vocabulary={general}", "data.vocab_size=999", "model.d_model=32"
    )
    assert f"vocabulary of {general}: " in said and "starting from" not in said


def test_a_model_without_a_tokenizer_takes_a_given_one(general: Path, tmp_path: Path) -> None:
    model = load(general)
    ours.save(tmp_path / "bare", model.config, model.network)
    said = train(tmp_path / "run", f"tune.start={tmp_path / 'bare'}", f"data.vocabulary={general}")
    assert f"starting from {tmp_path / 'bare'}" in said and f"vocabulary of {general}" in said


def test_learned_positions_keep_their_number(tmp_path: Path) -> None:
    old = config("masked", position="learned")
    assert [name for name, *_ in contradictions(old, old.changed(max_length=8, n_layers=1))] == ["max_length"]
    assert [name for name, *_ in contradictions(old.changed(position="rotary"), old.changed(max_length=8))] == [
        "position"
    ]


def test_matrices_may_be_parted_but_not_joined() -> None:
    apart, joint = config("vocabulary"), config("vocabulary", tie="output")
    assert not contradictions(joint, apart) and [name for name, *_ in contradictions(apart, joint)] == ["tie"]


def test_a_preset_that_is_not_that_of_the_start_is_not_used_and_that_is_said(tmp_path: Path) -> None:
    c = config("masked", norm_order="post", position="learned")
    ours.save(tmp_path / "old", c, build(c), train_tokenizer(["a b c d e f g"], "words", 30))
    said: list[str] = []
    check_start(
        recipe("masked", preset="bert-base", model=c, tune=TuneConfig(start=str(tmp_path / "old"))), said.append
    )
    assert said == [f"preset 'bert-base' is not used: the network is that of {tmp_path / 'old'}"]


TUNED = [name for name in recipes.names() if "\nstart = " in recipes.find(name).read_text()]


@pytest.mark.parametrize("name", TUNED)
def test_shipped_recipes_start_from_what_they_are_for(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their own fields contradict neither a model of their preset nor, of imdb-tuned, that of imdb-bert."""
    values = read_toml(recipes.find(name))
    old = preset(values["preset"]) if "preset" in values else load_recipe(recipes.find("imdb-bert")).model
    r = load_recipe(recipes.find(name), None, lambda _: old)
    monkeypatch.setattr("qkv.train.warm_start.open_config", lambda _: old)
    check_start(r, lambda line: pytest.fail(line))


# --- kinds of tokenizers


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lower", [False, True])
def test_a_tokenizer_is_recognised_as_what_it_was_trained_as(kind: str, lower: bool) -> None:
    tokenizer = train_tokenizer(["The dog sees a cat", "A cat sees the dog"] * 3, kind, 280, lower=lower)
    assert kind_of(tokenizer) == kind
    assert lowercases(tokenizer) == (lower and kind == "wordpiece")
