"""Tagging: every word has its pieces and its tag, in windows or whole, alone or in a batch; a small model learns it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers as hf
from conftest import Run
from hypothesis import given, settings
from hypothesis import strategies as st

import qkv
from qkv.batch import IGNORED
from qkv.config import CorpusConfig, DataConfig, ModelConfig, Recipe, TrainConfig
from qkv.convert import folder as ours
from qkv.errors import ConfigError, QkvError
from qkv.models.build import build
from qkv.tasks.tagging import TAGGED, WORD, SentenceCutter, Tagger, TaggingTask, looks_like_entities
from qkv.tasks.windows import by_length, pieces_of_words, unknown_id, windows
from qkv.text.kinds import around, put_around
from qkv.text.tokenizer import Tokenizer
from qkv.text.train import KINDS, train_tokenizer

TEXTS = ["The quick brown fox doesn't jump over 12,000 lazy dogs.", "A naïve café, an über-long sentence; why not?"]
TOKENIZERS = {kind: train_tokenizer(TEXTS * 5, kind, 150) for kind in KINDS}
LABELS = ("ADJ", "NOUN", "VERB")
WORDS = st.lists(st.text("abdefgox.'é-", min_size=1, max_size=9), min_size=1, max_size=12)


def config(**fields: Any) -> ModelConfig:
    base = {"family": "encoder", "head": "tags", "d_model": 16, "n_layers": 2, "n_heads": 2, "d_ff": 24, "vocab_size": 400,
            "n_classes": 3, "labels": LABELS, "dropout": 0.0, "bos_id": 1, "eos_id": 2}  # fmt: skip
    return ModelConfig(**{**base, **fields})


def tagger(tokenizer: Tokenizer = TOKENIZERS["wordpiece"], **fields: Any) -> Tagger:
    torch.manual_seed(0)
    c = config(**fields)
    network = build(c).eval()
    with torch.no_grad():
        network.head.output.weight.mul_(5)  # type: ignore[union-attr, operator]  # so that tags differ
    return Tagger(c, network, tokenizer)


# --- words and their pieces


@pytest.mark.parametrize("kind", KINDS)
@given(words=WORDS)
@settings(max_examples=30, deadline=None)
def test_the_pieces_of_the_words_are_those_of_the_text(kind: str, words: list[str]) -> None:
    """Nothing is lost or doubled: side by side they are what the tokenizer makes of the sentence."""
    (pieces,) = pieces_of_words(TOKENIZERS[kind], [words])
    assert len(pieces) == len(words) and all(pieces)
    assert [i for word in pieces for i in word] == TOKENIZERS[kind].plain([" ".join(words)])[0]


@given(words=WORDS)
@settings(max_examples=50, deadline=None)
def test_words_have_the_pieces_that_hugging_face_gives_them(words: list[str]) -> None:
    tokenizer = TOKENIZERS["wordpiece"]
    theirs = hf.PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend)(words, is_split_into_words=True)
    (pieces,) = pieces_of_words(tokenizer, [words])
    numbered = [(i, number) for number, word in enumerate(pieces) for i in word]
    assert numbered == [(i, n) for i, n in zip(theirs.input_ids, theirs.word_ids(), strict=True) if n is not None]


@pytest.mark.parametrize("kind", KINDS)
def test_a_word_of_which_nothing_is_left_is_unknown(kind: str) -> None:
    tokenizer = TOKENIZERS[kind]
    (pieces,) = pieces_of_words(tokenizer, [["the", "", "dogs"]])
    whole = pieces_of_words(tokenizer, [["the"], ["dogs"]])
    assert len(pieces) == 3 and all(pieces) and pieces[0] == whole[0][0]
    if kind == "wordpiece":
        assert pieces == [whole[0][0], [unknown_id(tokenizer)], whole[1][0]]
        assert pieces_of_words(tokenizer, [["the", "\u0000\u00ad", "dogs"]]) == [pieces]


def test_names_of_special_tokens_are_text() -> None:
    tokenizer = TOKENIZERS["wordpiece"]
    (pieces,) = pieces_of_words(tokenizer, [["[SEP]", "fox"]])
    assert tokenizer.id_of("[SEP]") not in pieces[0] and len(pieces[0]) > 1


def test_what_stands_around_texts_is_the_tokenizers_own_or_the_models() -> None:
    bert, bare = TOKENIZERS["wordpiece"], TOKENIZERS["bpe"]
    cls, sep = bert.id_of("[CLS]"), bert.id_of("[SEP]")
    assert around(bert, config()) == [[cls], [sep]]
    assert around(bert, config(), 2) == [[cls], [sep], [sep]]
    assert around(bare, config(), 2) == [[1], [2], [2]]
    assert around(bare, config(bos_id=None, eos_id=None)) == [[], []]
    ended = train_tokenizer(TEXTS, "bpe", 100)
    put_around(ended.backend, None, "</s>")
    assert around(ended, config()) == [[], [2]]


# --- windows


@given(st.integers(0, 60), st.integers(1, 20), st.integers(1, 20))
def test_windows_cover_everything_and_fit(length: int, room: int, step: int) -> None:
    parts = windows(length, room, min(step, room))
    assert sorted({place for part in parts for place in part}) == list(range(length))
    assert all(len(part) == min(length, room) for part in parts)
    assert len(parts) == len(set(parts))


@given(st.lists(st.integers(1, 30), max_size=30), st.integers(1, 60))
def test_batches_by_length_hold_each_row_once(lengths: list[int], tokens: int) -> None:
    batches = list(by_length(lengths, tokens))
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    assert all(len(batch) == 1 or len(batch) * max(lengths[i] for i in batch) <= tokens for batch in batches)


@given(words=WORDS, most=st.integers(3, 12))
@settings(max_examples=60, deadline=None)
def test_every_word_is_decided_once_where_its_first_piece_is(words: list[str], most: int) -> None:
    tokenizer = TOKENIZERS["wordpiece"]
    (pieces,) = pieces_of_words(tokenizer, [words])
    (cut,) = SentenceCutter(config(), tokenizer, most)([words])
    assert sorted(word for window in cut for word in window.words) == list(range(len(words)))
    assert all(len(window.ids) <= most for window in cut)
    for window in cut:
        assert [window.ids[place] for place in window.places] == [pieces[word][0] for word in window.words]
    (whole,) = SentenceCutter(config(), tokenizer, 1000)([words])
    assert [list(window.ids) for window in whole] == [tokenizer.encode(" ".join(words))]
    if len(whole[0].ids) <= most:
        assert cut == whole


def test_windows_decide_as_the_whole_where_words_do_not_look_around() -> None:
    """Without attention and positions a tag depends on the piece alone, so a window must give what the whole gives."""
    one, two = (tagger(position="none", max_length=most) for most in (6, 512))
    for network in (one.network, two.network):
        for block in network.stack.blocks:  # type: ignore[union-attr]
            torch.nn.init.zeros_(block.attention.layer.output.weight)
    sentence = " ".join(TEXTS * 3).split()
    assert len(one.cut([sentence])[0]) > 10 and len(two.cut([sentence])[0]) == 1
    torch.testing.assert_close(one.log_probs([sentence])[0], two.log_probs([sentence])[0])


def test_a_word_of_a_long_sentence_sees_its_neighbours() -> None:
    """It is decided in a window where at least a quarter of the room is on each side of it, or where the sentence ends."""
    cut = SentenceCutter(config(), TOKENIZERS["characters"], 22)  # room for 20 characters
    (found,) = cut([["a"] * 40])
    last = len(found) - 1
    for number, window in enumerate(found):
        assert all(place - 1 >= 5 or number == 0 for place in window.places)
        assert all(20 - place >= 5 - 1 or number == last for place in window.places)


# --- a tagger


def test_alone_or_in_a_batch() -> None:
    t = tagger(max_length=16)
    sentences = [TEXTS[0].split() * 4, ["fox"], [], TEXTS[1].split(), ["", "a"], ["jump", "over"]]
    together, small = t.tag(sentences), t.tag(sentences, batch_tokens=1)
    for sentence, tagged, other in zip(sentences, together, small, strict=True):
        (alone,) = t.tag([sentence])
        assert [one.word for one in tagged] == sentence
        assert [one.tag for one in tagged] == [one.tag for one in alone] == [one.tag for one in other]
        assert [one.probability for one in tagged] == pytest.approx([one.probability for one in alone], abs=1e-5)
    assert len({one.tag for tagged in together for one in tagged}) > 1


def test_raw_text_is_cut_into_words_and_marks() -> None:
    assert WORD.findall("He doesn't pay $3.50, (why) 1,000 times?") == \
        ["He", "doesn't", "pay", "$", "3.50", ",", "(", "why", ")", "1,000", "times", "?"]  # fmt: skip
    t = tagger()
    assert t.tag(["The fox, lazy."]) == t.tag([["The", "fox", ",", "lazy", "."]])


def test_as_hugging_face_tags(tmp_path: Path) -> None:
    """BertForTokenClassification in a folder of its own: our tags and probabilities are its, sentence by sentence."""
    tokenizer = TOKENIZERS["wordpiece"]
    torch.manual_seed(1)
    theirs = hf.BertForTokenClassification(hf.BertConfig(
        vocab_size=tokenizer.size, hidden_size=24, num_hidden_layers=2, num_attention_heads=4, intermediate_size=40,
        max_position_embeddings=40, num_labels=5, initializer_range=0.5)).eval()  # fmt: skip
    theirs.save_pretrained(tmp_path)
    fast = hf.PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend)
    fast.save_pretrained(tmp_path)
    sentences = [TEXTS[0].split(), ["lazy", "fox"], TEXTS[1].split()]
    found = qkv.load(tmp_path, "cpu").tag(sentences)
    for words, tagged in zip(sentences, found, strict=True):
        given = fast(words, is_split_into_words=True, return_tensors="pt")
        with torch.no_grad():
            table = theirs(given.input_ids).logits[0].softmax(-1)
        numbers = given.word_ids()
        best = [table[numbers.index(word)].max(0) for word in range(len(words))]
        assert [one.tag for one in tagged] == [theirs.config.id2label[int(b.indices)] for b in best]
        assert [one.probability for one in tagged] == pytest.approx([float(b.values) for b in best], abs=1e-5)


def test_wrong_models_and_arguments_are_said() -> None:
    c = config(head="classes")
    with pytest.raises(QkvError, match='task = "tagging"'):
        Tagger(c, build(c), TOKENIZERS["wordpiece"])
    with pytest.raises(QkvError, match="no room"):
        SentenceCutter(config(), TOKENIZERS["wordpiece"], 2)
    with pytest.raises(QkvError, match=r"pass \[text\]"):
        t = tagger()
        qkv.Model(t.config, t.network, TOKENIZERS["wordpiece"], "cpu").tag("The fox.")


# --- learning


def task(tmp_path: Path, train: str, valid: str, test: str = "", **data: Any) -> tuple[TaggingTask, list[str]]:
    """A task on files with these texts, and what it said while it was prepared."""
    for name, text in (("train", train), ("valid", valid), ("test", test)):
        (tmp_path / f"{name}.conll").write_text(text.replace("/", "\t").replace(" ", "\n"))
    corpora = {name: CorpusConfig(files=(f"{name}.conll",)) for name in ("train", "valid", "test")}
    fields = {"root": str(tmp_path), "tokenizer": "wordpiece", "vocab_size": 100, "batch_tokens": 64, **data}
    recipe = Recipe(task="tagging", model=config(), train=TrainConfig(),
                    data=DataConfig(**fields, **{**corpora, "train": (corpora["train"],)}))  # fmt: skip
    said: list[str] = []
    TaggingTask.possible(recipe)
    words = TaggingTask.prepare(recipe, said.append)
    return TaggingTask(recipe, TaggingTask.fitted(recipe, words), words), said


def test_targets_stand_at_first_pieces(tmp_path: Path) -> None:
    t, _ = task(tmp_path, "foxes/NOUN jumping/VERB\n\nlazy/ADJ dogs/NOUN sleep/VERB\n", "dogs/NOUN", max_length=6)
    assert t.config.labels == ("ADJ", "NOUN", "VERB") and t.config.n_classes == 3
    examples = t.encode([("foxes\tjumping", "NOUN\tVERB"), ("lazy\tdogs\tsleep", "ADJ\tNOUN\tVERB")])
    batch = t.collate(examples)
    assert batch.inputs is not None and batch.targets is not None and batch.mask is not None
    assert batch.count == 5 and bool((batch.targets[~batch.mask] == IGNORED).all())
    for record, number in (("foxes", 1), ("jumping", 2), ("lazy", 0)):
        first = pieces_of_words(t.tokenizer, [["x", record]])[0][1][0]
        assert number in batch.targets[batch.inputs == first].tolist()
    specials = [t.tokenizer.id_of(name) for name in ("[CLS]", "[SEP]")]
    assert all((batch.targets[batch.inputs == i] == IGNORED).all() for i in specials)


def test_a_tag_that_training_never_saw_counts_as_wrong_and_is_said(tmp_path: Path) -> None:
    t, said = task(tmp_path, "a/DET dog/NOUN", "a/DET dog/X dog/X", "a/DET dog/NOUN cat/Y\n\na/DET")
    assert any("2 words of the valid set" in line and "'X'" in line for line in said)
    network = build(t.config).eval()
    found = t.evaluate(network)
    assert found["accuracy"] <= 100 / 3 + 1e-6 and 0 < found["loss"] < 100
    said.clear()
    results = t.test(network, tmp_path, said.append)
    assert results is not None and results["examples"] == 2 and results["scores"][0]["value"] <= 75
    assert any("1 words of the test set" in line and "'Y'" in line for line in said)
    rows = [line.split("\t") for line in (tmp_path / TAGGED).read_text().split("\n")]
    assert [row[:2] for row in rows] == [["a", "DET"], ["dog", "NOUN"], ["cat", "Y"], [""], ["a", "DET"], [""]]
    right = sum(row[1] == row[2] for row in rows if len(row) == 3)
    assert results["scores"][0]["value"] == pytest.approx(100 * right / 4)


def test_names_are_scored_by_f1(tmp_path: Path) -> None:
    assert looks_like_entities(("B-PER", "I-PER", "O")) and looks_like_entities(
        ("O", "S-LOC", "B-LOC", "E-LOC", "I-LOC")
    )
    assert not looks_like_entities(("NOUN", "O")) and not looks_like_entities(("O",))
    t, _ = task(tmp_path, "Ada/B-PER Byron/I-PER wrote/O", "Ada/B-PER Byron/I-PER wrote/O")
    assert t.metric == "f1" and {"f1", "accuracy", "loss"} == t.evaluate(build(t.config).eval()).keys()


def test_what_cannot_be_tagged_is_said_at_once(tmp_path: Path) -> None:
    data = DataConfig(train=(CorpusConfig(grammar=5),), valid=CorpusConfig(grammar=5))
    with pytest.raises(ConfigError, match="head = 'tags'"):
        TaggingTask.possible(Recipe(task="tagging", model=config(head="classes"), data=data))
    with pytest.raises(ConfigError, match=r"\[data\]"):
        TaggingTask.possible(Recipe(task="tagging", model=config()))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """The recipe `tags` with fewer updates, run as `qkv train` runs it."""
    from qkv.commands.train import train_recipe

    folder = tmp_path_factory.mktemp("tags") / "run"
    changes = ["train.steps=120", "train.warmup=20", "train.evaluate_every=60", "data.train=[{grammar=3000}]",
               "data.valid={grammar=60}", "data.test={grammar=200}", "data.batch_tokens=800", "model.d_model=48"]  # fmt: skip
    return SimpleNamespace(folder=folder, run=train_recipe("tags", changes, folder, None, 1))


def test_a_small_model_learns_the_tags_of_the_grammar(trained: SimpleNamespace) -> None:
    (score,) = trained.run.results["test"]["scores"]
    assert score["name"] == "accuracy" and score["value"] >= 95
    rows = [line.split("\t") for line in (trained.folder / TAGGED).read_text().splitlines() if line]
    assert score["value"] == pytest.approx(100 * sum(gold == found for _, gold, found in rows) / len(rows))
    model = qkv.load(trained.folder, "cpu")
    tags = {one.word: one.tag for one in model.tag(["The old man sleeps in her garden."])[0]}
    assert tags == {"The": "DET", "old": "ADJ", "man": "NOUN", "sleeps": "VERB", "in": "ADP", "her": "DET",
                    "garden": "NOUN", ".": "PUNCT"}  # fmt: skip


# --- the command


def test_sentences_in_words_and_tags_out(trained: SimpleNamespace, run: Run, tmp_path: Path) -> None:
    code, out, _ = run("tag", trained.folder, given="You cry.\n\nThe man sleeps.\n")
    assert code == 0
    assert out == "You\tPRON\ncry\tVERB\n.\tPUNCT\n\n\nThe\tDET\nman\tNOUN\nsleeps\tVERB\n.\tPUNCT\n\n"
    code, out, _ = run("tag", trained.folder, "-", "--json", given="You cry.\n\n")
    first, second = (json.loads(line) for line in out.splitlines())
    assert code == 0 and first["tags"] == ["PRON", "VERB", "PUNCT"] and all(0 < p <= 1 for p in first["probabilities"])
    assert second == {"words": [], "tags": [], "probabilities": []}
    (tmp_path / "a.conll").write_text("You X\ncry X\n\nThe\nman\n")
    code, out, _ = run("tag", trained.folder, tmp_path / "a.conll", "--format", "conll")
    assert code == 0 and out == "You\tPRON\ncry\tVERB\n\nThe\tDET\nman\tNOUN\n\n"
    (tmp_path / "a.conllu").write_text("# text = You cry\n1\tYou\t_\n2\tcry\t_\n")
    code, out, _ = run("tag", trained.folder, tmp_path / "a.conllu", "--format", "conll")
    assert code == 0 and out == "You\tPRON\ncry\tVERB\n\n"


def test_standard_input_is_what_it_looks_like(trained: SimpleNamespace, run: Run) -> None:
    """CoNLL-U by its ten columns, whether comments and ranges of words come first or not; any other by its first column."""
    word = "{}\t{}" + "\t_" * 8 + "\n"
    rows = word.format(1, "You") + word.format(2, "cry")
    wanted = "You\tPRON\ncry\tVERB\n\n"
    for text in (rows, "# text = You cry\n\n" + rows, "# c\n" + word.format("1-2", "Youcry") + rows, "You X\ncry\n"):
        assert run("tag", trained.folder, "--format", "conll", given=text)[:2] == (0, wanted), text
    code, _, err = run("tag", trained.folder, "--format", "conll", given=rows + "3\n")
    assert code == 2 and "standard input, line 3: 1 of 2 columns" in err
    code, out, _ = run("tag", trained.folder, "--format", "conll", given="1 X\n2 X\n")
    assert code == 0 and [line.split("\t")[0] for line in out.splitlines()] == ["1", "2", ""], "numbers may be words"


def test_bad_input_is_one_line_and_exit_code_2(trained: SimpleNamespace, run: Run, tmp_path: Path) -> None:
    (tmp_path / "bad.conllu").write_text("1\tYou\tPRON\n\n1\tWe\tPRON\n2\n")
    code, _, err = run("tag", trained.folder, tmp_path / "bad.conllu", "--format", "conll")
    assert code == 2 and "bad.conllu, line 4" in err and len(err.splitlines()) == 1
    code, _, err = run("tag", trained.folder, tmp_path / "none.txt")
    assert code == 2 and "none.txt" in err
    code, _, err = run("tag", tmp_path, given="a\n")
    assert code == 2 and err.startswith("error: ")
    c = config(head="classes")
    ours.save(tmp_path / "classes", c, build(c), TOKENIZERS["wordpiece"])
    code, _, err = run("tag", tmp_path / "classes", given="a\n")
    assert code == 2 and 'task = "tagging"' in err


def test_a_line_that_is_no_text_is_said_and_the_others_are_tagged(
    trained: SimpleNamespace, run: Run, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_bytes(b"You cry.\n\xff\xfe\nYou cry.\n")
    code, out, err = run("tag", trained.folder, tmp_path / "a.txt")
    assert code == 1 and "line 2" in err and "UTF-8" in err
    assert out == "You\tPRON\ncry\tVERB\n.\tPUNCT\n\n\nYou\tPRON\ncry\tVERB\n.\tPUNCT\n\n"


def test_training_names_a_tag_line_with_missing_columns(run: Run, tmp_path: Path) -> None:
    (tmp_path / "train.conll").write_text("You PRON\ncry\n")
    files = [
        "--set",
        f'data.train=[{{files=["{tmp_path}/train.conll"]}}]',
        "--set",
        f'data.valid={{files=["{tmp_path}/train.conll"]}}',
    ]
    code, _, err = run("train", "tags", "--out", tmp_path / "run", *files)
    assert code == 2 and "train.conll, line 2" in err
