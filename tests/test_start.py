"""Starting from a trained model: what is taken over, what is new, and which settings and vocabularies cannot be used."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers
from torch import Tensor

from qkv.config import CorruptConfig, DataConfig, DecodeConfig, ModelConfig, Recipe, TrainConfig, TuneConfig
from qkv.convert import folder as ours
from qkv.errors import ConfigError, QkvError
from qkv.models.build import build
from qkv.models.weights import weights
from qkv.tasks.base import TASKS, Task, Words, task_of, unused
from qkv.tasks.vocabulary import special_ids
from qkv.text.tokenizer import Tokenizer
from qkv.text.train import train_tokenizer
from qkv.train.start import start_from

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
    assert "not used of it: stack.blocks.1." in said
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
])  # fmt: skip
def test_a_setting_that_a_task_does_not_read_is_refused(task: str, fields: dict[str, object], name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} means nothing to task '{task}'"):
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
