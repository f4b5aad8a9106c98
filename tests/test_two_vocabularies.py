"""A translator of every kind of tokenizer, with one vocabulary or two: what was trained is what the folder gives."""

from itertools import pairwise
from pathlib import Path

import pytest
from conftest import Run

import qkv
from qkv.api import Model
from qkv.config import DataConfig, ModelConfig, Recipe, TrainConfig, validate
from qkv.data import lines as line_module
from qkv.data import sources as source_module
from qkv.errors import ConfigError, QkvError
from qkv.generate.translate import TranslationParams, Translator
from qkv.tasks import translation as task
from qkv.tasks import vocabulary
from qkv.tasks.translation import collate_pairs
from qkv.text.train import KINDS
from qkv.train import run as training
from qkv.train.report import Report

TEXTS = ["The old man sees a dog.", "I ate an apple", "</s> [SEP] ist Text", ""]


def recipe(kind: str = "bpe", joint: bool = True, **fields: object) -> Recipe:
    model = ModelConfig(family="encoder-decoder", vocab_size=300, d_model=16, n_layers=1, n_heads=2, d_ff=32,
                        tie="all" if joint else "output", norm_order="pre", dropout=0.0)  # fmt: skip
    data = {"train": [{"grammar": 80}], "valid": {"grammar": 3}, "vocab_size": 300, "batch_tokens": 400,
            "tokenizer": kind, "joint": joint, **fields}  # fmt: skip
    train = {"steps": 3, "evaluate_every": 3, "save_every": 3, "learning_rate": 1e-2, "warmup": 0}
    return Recipe(model=model, data=validate(DataConfig, data), train=validate(TrainConfig, train))


def trained(folder: Path, r: Recipe) -> training.Run:
    return training.run(r, "recipe", folder, Report(quiet=True))


@pytest.mark.parametrize("joint", [True, False], ids=["joint", "two"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_folder_translates_as_the_run_in_memory(kind: str, joint: bool, tmp_path: Path) -> None:
    r = trained(tmp_path / "run", recipe(kind, joint))
    model = qkv.load(tmp_path / "run")
    assert (model.target_tokenizer is model.tokenizer) == joint
    assert (tmp_path / "run" / "best" / "target_tokenizer.json").exists() != joint
    alike = joint or kind == "bytes"  # of bytes nothing is learned
    assert (r.words.source.to_json() == r.words.target.to_json()) == alike
    alive = Translator(r.config, r.training.network.eval(), r.words.source, r.words.target).translate(
        TEXTS, TranslationParams()
    )
    assert model.translate(TEXTS, fast=False) == [one.text for one in alive]
    assert any(one.text for one in alive) and not any(one.problem for one in alive)


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_is_read_as_in_training(kind: str, tmp_path: Path) -> None:
    """The source ends with the end token, once, and nothing stands before it: WordPiece's [CLS] neither."""
    r = trained(tmp_path / "run", recipe(kind, joint=False))
    translator = qkv.load(tmp_path / "run").translator()
    end = r.config.eos_ids[0]
    assert r.words.source.decode([end]) == "" and r.words.source.backend.id_to_token(end) in ("</s>", "[SEP]")
    for text in TEXTS[:3]:
        own = r.words.source.plain([text])[0]
        assert translator.read(text)[0] == [*own, end] == collate_pairs([(own, [])], r.config).source[0].tolist()
        assert end not in own and r.config.bos_id not in own  # names of special tokens in a text are text
    batch = collate_pairs([([7], [8, 9])], r.config)
    assert batch.inputs.tolist() == [[r.config.bos_id, 8, 9]] and batch.targets.tolist() == [[8, 9, end]]


def test_a_word_piece_translator_writes_capital_letters(tmp_path: Path) -> None:
    r = trained(tmp_path / "run", recipe("wordpiece"))
    assert r.words.target.decode(r.words.target.plain(["Der Mann schläft."])[0]) == "Der Mann schläft."


def test_every_way_out_keeps_both_vocabularies(tmp_path: Path, run: Run) -> None:
    trained(tmp_path / "run", recipe("words", joint=False))
    model = qkv.load(tmp_path / "run")
    assert model.config.target_vocab_size != model.config.vocab_size
    expected = model.translate(TEXTS)
    model.save(tmp_path / "saved")
    assert qkv.load(tmp_path / "saved").translate(TEXTS) == expected
    code, _, err = run("export", tmp_path / "run", tmp_path / "exported", "--to", "qkv")
    assert code == 0, err
    assert qkv.load(tmp_path / "exported").translate(TEXTS) == expected
    (tmp_path / "in").write_text("\n".join(TEXTS) + "\n")
    code, out, err = run("translate", tmp_path / "run", tmp_path / "in")
    assert (code, out.split("\n")) == (0, [*expected, ""])
    (tmp_path / "ref").write_text("\n".join("x" for _ in TEXTS) + "\n")
    code, _, err = run("evaluate", tmp_path / "run", "--source", tmp_path / "in", "-r", tmp_path / "ref", "--output",
                       tmp_path / "out", "--bootstrap", "0")  # fmt: skip
    assert code == 0 and (tmp_path / "out").read_text() == out, err


def test_a_joint_model_in_the_place_of_one_with_two_leaves_no_second_tokenizer(tmp_path: Path) -> None:
    trained(tmp_path / "two", recipe("words", joint=False))
    trained(tmp_path / "one", recipe("words"))
    qkv.load(tmp_path / "two").save(tmp_path / "m")
    qkv.load(tmp_path / "one").save(tmp_path / "m")
    assert not (tmp_path / "m" / "target_tokenizer.json").exists()


def test_a_missing_target_tokenizer_is_said(tmp_path: Path) -> None:
    trained(tmp_path / "run", recipe("words", joint=False))
    (tmp_path / "run" / "best" / "target_tokenizer.json").unlink()
    with pytest.raises(QkvError, match=r"target_tokenizer\.json"):
        qkv.load(tmp_path / "run").translate(TEXTS)
    with pytest.raises(QkvError, match=r"target_tokenizer\.json"):
        "".join(qkv.load(tmp_path / "run").generate(TEXTS[0]))


def test_text_is_written_with_the_target_vocabulary(tmp_path: Path) -> None:
    trained(tmp_path / "run", recipe("words", joint=False))
    model: Model = qkv.load(tmp_path / "run")
    ids = list(model.generate(model.encode(TEXTS[0]), max_new_tokens=5))
    assert "".join(model.generate(TEXTS[0], max_new_tokens=5)).strip() == model.target_tokenizer.decode(ids)


def test_two_vocabularies_cannot_share_one_matrix(tmp_path: Path) -> None:
    r = recipe(joint=False)
    with pytest.raises(ConfigError, match=r'or model.tie = "output"'):
        trained(tmp_path / "run", r.changed(model=r.model.changed(tie="all")))
    assert not (tmp_path / "run").exists()


# --- where the vocabulary comes from


def test_of_a_large_corpus_a_spread_sample_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """About as many pairs as asked for, from all parts of the corpus, said, and the same ones every time."""
    for module in (line_module, source_module):
        monkeypatch.setattr(module, "RUN", 3)
    monkeypatch.setattr(vocabulary, "RECORDS", 100)
    for name in ("en", "de"):
        (tmp_path / name).write_text("".join(f"{name}{i:04}\n" for i in range(1000)))
    corpus = {"files": (str(tmp_path / "en"), str(tmp_path / "de"))}
    data = validate(DataConfig, {"train": [corpus], "valid": {"grammar": 1}, "tokenizer": "words", "joint": False})
    said: list[str] = []
    source, target = task.learn_tokenizers(data, said.append)
    assert source.to_json() == task.learn_tokenizers(data)[0].to_json()
    numbers = sorted(int(word[-4:]) for word in source.backend.get_vocab() if word[-4:].isdecimal())
    assert 80 < len(numbers) < 125 and max(b - a for a, b in pairwise([0, *numbers, 1000])) < 40
    assert source.size == target.size and f"on {len(numbers)} of about " in said[0]
    assert sum("Training the tokenizer" in line for line in said) == 2  # one for each side


def test_little_text_is_read_whole(tmp_path: Path) -> None:
    said: list[str] = []
    task.learn_tokenizers(recipe().data, said.append)
    assert said[0] == "Training the tokenizer on 160 sentences"
