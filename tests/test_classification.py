"""Classification: pairs as Hugging Face reads them, alone or in a batch, cut or whole; a small model learns it; bad input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from conftest import Run
from hypothesis import given, settings
from hypothesis import strategies as st

import qkv
from qkv.config import CorpusConfig, DataConfig, ModelConfig, Recipe, TrainConfig
from qkv.convert import folder as ours
from qkv.errors import ConfigError, QkvError
from qkv.models.build import build
from qkv.tasks.base import Words, unused
from qkv.tasks.classification import PREDICTIONS, ClassificationTask, RegressionTask
from qkv.tasks.classifier import Classifier, TextEncoder, TextRow, collate, ends, shares
from qkv.text.tokenizer import Tokenizer
from qkv.text.train import KINDS, train_tokenizer

TEXTS = ["The quick brown fox doesn't jump over 12,000 lazy dogs.", "A naïve café, an über-long sentence; why not?"]
TOKENIZERS = {kind: train_tokenizer(TEXTS * 5, kind, 150) for kind in KINDS}
TEXT = st.lists(st.sampled_from("the quick fox . dogs café [SEP] why x".split()), max_size=14).map(" ".join)
LABELS = ("bad", "good", "so-so")
GRAMMAR = """
task = "{task}"
[model]
family = "encoder"
head = "classes"
d_model = 32
n_layers = 1
n_heads = 2
d_ff = 64
max_length = 64
norm_order = "pre"
pooling = "mean"
pooler = false
dropout = 0.0
[data]
train = [{{ grammar = 800 }}]
valid = {{ grammar = 60 }}
test = {{ grammar = 60 }}
tokenizer = "words"
vocab_size = 500
max_length = 64
batch_tokens = 512
[train]
steps = {steps}
learning_rate = 5e-3
schedule = "cosine"
warmup = 10
label_smoothing = 0.0
evaluate_every = 50
save_every = 100
"""


def config(**fields: Any) -> ModelConfig:
    base = {"family": "encoder", "head": "classes", "d_model": 16, "n_layers": 2, "n_heads": 2, "d_ff": 24, "dropout": 0.0,
            "vocab_size": 200, "n_classes": 3, "labels": LABELS, "n_segments": 2, "bos_id": 1, "eos_id": 2}  # fmt: skip
    return ModelConfig(**{**base, **fields})


def classifier(tokenizer: Tokenizer = TOKENIZERS["wordpiece"], most: int | None = None, **fields: Any) -> Classifier:
    torch.manual_seed(0)
    c = config(**fields)
    network: Any = build(c).eval()
    with torch.no_grad():
        network.head.output.weight.mul_(5)  # so that answers differ
    return Classifier(c, network, tokenizer, most)


def as_hugging_face(tokenizer: Tokenizer) -> Any:
    """The same vocabulary in Hugging Face's hands; "[SEP]" within a text is text for it too."""
    names = ["input_ids", "token_type_ids", "attention_mask"]
    copy = Tokenizer.from_json(tokenizer.to_json()).backend
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=copy, pad_token="[PAD]", model_input_names=names, split_special_tokens=True
    )


# --- reading


@settings(deadline=None, max_examples=60)
@given(first=TEXT, second=st.none() | TEXT.filter(bool), most=st.integers(6, 24))
def test_texts_and_pairs_are_read_as_hugging_face_reads_them(first: str, second: str | None, most: int) -> None:
    """Ids, segments and what is cut."""
    tokenizer = TOKENIZERS["wordpiece"]
    theirs = as_hugging_face(tokenizer)
    wanted = theirs(first, second, truncation="longest_first", max_length=most)
    (row,) = TextEncoder(config(), tokenizer, most)([first if second is None else (first, second)])
    assert list(row.ids) == wanted["input_ids"] and list(row.segments) == wanted["token_type_ids"]
    whole = theirs(first, second)["input_ids"]
    assert row.cut == (len(whole) > most)


@given(st.integers(0, 50), st.integers(0, 50), st.integers(2, 60))
def test_the_longer_text_is_cut_first(first: int, second: int, room: int) -> None:
    kept = shares([first, second], room)
    assert sum(kept) == min(first + second, room)
    assert all(k == n or k >= room // 2 for k, n in zip(kept, (first, second), strict=True))


@given(st.lists(st.integers(0, 9), max_size=30), st.integers(0, 40))
def test_of_a_long_text_both_ends_are_kept_or_the_start(text: list[int], keep: int) -> None:
    kept = ends(text, keep)
    assert len(kept) == min(len(text), keep)
    half = len(kept) // 2
    assert kept[:half] == text[:half] and kept[half:] == text[len(text) - (len(kept) - half) :]


def test_a_model_says_which_part_of_a_long_text_it_reads() -> None:
    words = "the quick brown fox jumps over the lazy dog again and again"
    start, both = (TextEncoder(config(keep=keep), TOKENIZERS[KINDS[0]], 8)([words])[0] for keep in ("start", "ends"))
    assert start.cut and both.cut and len(start.ids) == len(both.ids) == 8
    whole = TOKENIZERS[KINDS[0]].plain([words])[0]
    assert list(start.ids[1:-1]) == whole[:6] and list(both.ids[1:-1]) == whole[:3] + whole[-3:]


@pytest.mark.parametrize("kind", KINDS)
def test_something_stands_between_two_texts(kind: str) -> None:
    """Also with tokenizers that put nothing around a text by themselves: the model's begin and end tokens."""
    reader = TextEncoder(config(), TOKENIZERS[kind], 60)
    one, two = (TOKENIZERS[kind].plain([text])[0] for text in ("the fox", "lazy dogs"))
    row, single = reader([("the fox", "lazy dogs"), "the fox"])
    middle = len(row.ids) - len(two) - 1
    assert list(row.ids[1 : 1 + len(one)]) == one and list(row.ids[middle:-1]) == two
    assert middle > 1 + len(one) and row.ids[0] == single.ids[0] and row.ids[-1] == single.ids[-1]
    assert row.segments[0] == 0 and row.segments[-1] == 1 and set(single.segments) == {0}


def test_a_model_of_one_segment_has_only_segment_zero() -> None:
    """RoBERTa: two texts, one row of the segment table."""
    (row,) = TextEncoder(config(n_segments=1), TOKENIZERS["wordpiece"], 60)([("the fox", "lazy dogs")])
    assert set(row.segments) == {0}
    assert collate([row], config(n_segments=0)).segments is None


# --- answering


@pytest.mark.parametrize("n_labels", [3, 1])
def test_pairs_as_bert_for_sequence_classification_judges_them(n_labels: int, tmp_path: Path) -> None:
    """The whole way: a folder that Hugging Face wrote, its tokenizer, pairs and single texts; classes and regression."""
    torch.manual_seed(1)
    c = hf.BertConfig(vocab_size=200, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
                      max_position_embeddings=40, num_labels=n_labels, initializer_range=0.5)  # fmt: skip
    theirs = hf.BertForSequenceClassification(c).eval()
    theirs.save_pretrained(tmp_path)
    tokenizer = TOKENIZERS["wordpiece"]
    (tmp_path / "tokenizer.json").write_text(tokenizer.to_json())
    texts: list[Any] = [
        ("The quick fox", "why not?"),
        "lazy dogs",
        ("dogs " * 50, "fox"),
        ("a", "jump over the fox " * 20),
    ]
    found = qkv.load(tmp_path, "cpu").classify(texts)
    tokens = as_hugging_face(tokenizer)
    for text, answer in zip(texts, found, strict=True):
        both = (text, None) if isinstance(text, str) else text
        given = tokens(*both, truncation="longest_first", max_length=40, return_tensors="pt")
        with torch.no_grad():
            logits = theirs(**given).logits[0]
        if n_labels == 1:
            assert answer.score == pytest.approx(logits.item(), abs=1e-4) and answer.label is None
        else:
            wanted = logits.softmax(-1)
            assert answer.label == f"LABEL_{int(wanted.argmax())}"
            named = [answer.probabilities[f"LABEL_{i}"] for i in range(3)]
            assert named == pytest.approx(wanted.tolist(), abs=1e-5)
    assert [answer.cut for answer in found] == [False, False, True, True]


MANY: list[Any] = ["a", "the fox", ("the fox", "dogs"), "why not " * 12, "", ("", "x"), "lazy dogs jump"]


@pytest.mark.parametrize("pooling", ["first", "mean", "last"])
def test_alone_in_a_batch_and_in_any_order_the_same(pooling: str) -> None:
    """Padding changes nothing, whichever vector stands for the sequence."""
    asked = classifier(pooling=pooling, pooler=False)
    together, backwards = asked.classify(MANY), asked.classify(MANY[::-1], batch_tokens=20)[::-1]
    for text, one, other in zip(MANY, together, backwards, strict=True):
        (alone,) = asked.classify([text])
        for probabilities in (one.probabilities, other.probabilities):
            assert probabilities == pytest.approx(alone.probabilities, abs=1e-5)
    assert len({round(one.probability or 0, 4) for one in together}) > 3  # the answers do differ


def test_probabilities_are_sorted_and_add_up() -> None:
    (answer,) = classifier().classify(["the fox"])
    values = list(answer.probabilities.values())
    assert sum(values) == pytest.approx(1, abs=1e-5) and values == sorted(values, reverse=True)
    assert answer.label == next(iter(answer.probabilities)) and answer.probability == values[0]
    assert list(classifier().classify(["the fox"], top_k=2)[0].probabilities) == list(answer.probabilities)[:2]


def test_a_decoder_classifies_by_its_last_vector() -> None:
    """Changing the first word changes the answer; padding behind the text does not."""
    asked = classifier(family="decoder", pooling="last", pooler=False, n_segments=0, position="learned")
    one, other, padded = asked.classify(["fox jump", "dogs jump", "fox jump"] + ["the fox " * 10])[:3]
    assert one.probabilities == pytest.approx(padded.probabilities, abs=1e-6)
    assert one.probabilities != pytest.approx(other.probabilities, abs=1e-3)


BOTH = {"family": "encoder-decoder", "pooling": "last", "n_segments": 0, "tie": "all"}


def test_an_encoder_decoder_reads_the_text_with_both_halves() -> None:
    """Every word changes the answer, the last one through the encoder alone; padding and order of the batch do not."""
    asked = classifier(**BOTH, pooler=False)
    texts: list[Any] = [
        "fox jump over",
        "dogs jump over",
        "fox why over",
        "fox jump why",
        ("fox", "jump"),
        "why not " * 12,
    ]
    found = asked.classify(texts)
    for text, one in zip(texts, found, strict=True):
        assert asked.classify([text])[0].probabilities == pytest.approx(one.probabilities, abs=1e-5)
    for other in found[1:]:
        assert other.probabilities != pytest.approx(found[0].probabilities, abs=1e-3)


def test_an_encoder_decoder_classifies_as_bart_for_sequence_classification(tmp_path: Path) -> None:
    torch.manual_seed(2)
    c = hf.BartConfig(vocab_size=200, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
                      decoder_attention_heads=2, encoder_ffn_dim=24, decoder_ffn_dim=24, max_position_embeddings=40,
                      num_labels=3, init_std=0.5, bos_token_id=1, eos_token_id=2, pad_token_id=0, decoder_start_token_id=2)  # fmt: skip
    theirs = hf.BartForSequenceClassification(c).eval()
    writer = hf.BartForConditionalGeneration(c)
    writer.model.load_state_dict(theirs.model.state_dict())
    writer.save_pretrained(tmp_path)
    body = qkv.load(tmp_path, "cpu")
    ours_config = body.config.changed(head="classes", pooling="last", pooler=True, n_classes=3, output_bias=False)
    network: Any = build(ours_config).eval()
    words = {name: value for name, value in body.network.state_dict().items() if not name.startswith("head.")}
    missing = network.load_state_dict(words, strict=False).missing_keys
    assert all(name.startswith("head.") for name in missing)
    network.head.pooler.dense.load_state_dict(theirs.classification_head.dense.state_dict())
    network.head.output.load_state_dict(theirs.classification_head.out_proj.state_dict())
    ids = [[1, 7, 9, 30, 2], [1, 8, 2]]
    rows = [TextRow(row, [0] * len(row), False) for row in ids]
    found = network(collate(rows, ours_config)).logits
    for row, logits in zip(ids, found, strict=True):
        assert torch.allclose(theirs(torch.tensor([row])).logits[0], logits, atol=1e-5)


def test_a_classifier_with_two_halves_is_inspected_and_writes_nothing() -> None:
    asked = classifier(**BOTH, pooler=False)
    model = qkv.Model(asked.config, asked.network, TOKENIZERS["wordpiece"])
    look = model.look("fox jump")
    assert len(look.tokens) == len(look.source) and look.batch.inputs is not None and look.batch.source is not None
    assert torch.equal(look.batch.inputs[0, 1:], look.batch.source[0, :-1])
    assert look.target().answer == asked.labels.index(asked.classify(["fox jump"])[0].label or "")
    for use in (model.generate, model.translate):
        with pytest.raises(QkvError):
            use(["fox jump"] if use == model.translate else "fox jump")


# --- learning


def task(train: list[tuple[str, ...]], valid: list[tuple[str, ...]], folder: Path, kind: type = ClassificationTask,
         test: list[tuple[str, ...]] | None = None, **fields: Any) -> Any:  # fmt: skip
    """A task on records that are written to tables."""
    corpora = {}
    for name, rows in {"train": train, "valid": valid, "test": test}.items():
        if rows is not None:
            (folder / f"{name}.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
            corpora[name] = CorpusConfig(table=f"{name}.tsv", columns=tuple(range(len(rows[0]))))
    data = DataConfig(root=str(folder), train=(corpora["train"],), valid=corpora["valid"], test=corpora.get("test"),
                      tokenizer="words", vocab_size=100)  # fmt: skip
    recipe = Recipe(task=kind.name, model=config(**fields), data=data, train=TrainConfig())  # type: ignore[attr-defined]
    kind.possible(recipe)  # type: ignore[attr-defined]
    words: Words = kind.prepare(recipe, lambda _: None)  # type: ignore[attr-defined]
    return kind(recipe, kind.fitted(recipe, words), words)  # type: ignore[attr-defined]


def test_labels_are_those_of_the_training_set_in_their_order(tmp_path: Path) -> None:
    named = task([("x", "pos"), ("y", "neg"), ("z", "pos")], [("x", "pos")], tmp_path)
    assert named.config.labels == ("neg", "pos") and named.config.n_classes == 2
    stars = task([("x", "10"), ("y", "9"), ("z", "-1")], [("x", "10")], tmp_path)
    assert stars.config.labels == ("-1", "9", "10")  # by size, not by letters
    scored = task([("x", "u", "0.5"), ("y", "v", "4")], [("x", "u", "1")], tmp_path, RegressionTask)
    assert scored.config.labels == () and scored.config.n_classes == 1


def test_examples_that_cannot_be_learned_from_are_counted(tmp_path: Path) -> None:
    found = task([("x", "1.5"), (" ", "2"), ("y", "many"), ("z", "nan")], [("x", "1")], tmp_path, RegressionTask)
    kept = found.encode([("x", "1.5"), (" ", "2"), ("y", "many"), ("z", "nan")])
    assert [row.target for row in kept] == [1.5]
    assert found.dropped == {
        "an empty text": 1,
        "the label 'many', which is none": 1,
        "the label 'nan', which is none": 1,
    }


@pytest.mark.parametrize("kind, name, least", [(ClassificationTask, "accuracy", 95), (RegressionTask, "spearman", 90)])
def test_a_small_model_learns_it(kind: Any, name: str, least: float, run: Run, tmp_path: Path) -> None:
    """From the embedded grammar by the real command: which kind of sentence, and how long it is; then it is asked."""
    recipe, out = tmp_path / "recipe.toml", tmp_path / "out"
    recipe.write_text(GRAMMAR.format(task=kind.name, steps=150 if name == "accuracy" else 200))
    code, said, err = run("train", recipe, "--out", out, "--threads", "1")
    assert code == 0, err
    results = json.loads((out / "results.json").read_text())
    scores = {score["name"]: score["value"] for score in results["test"]["scores"]}
    assert scores[name] >= least, said
    lines = (out / PREDICTIONS).read_text().splitlines()
    assert len(lines) == 61 and lines[0].startswith("index\tprediction")
    code, told, _ = run("classify", out, given="Does the dog sleep?\n\nThe man sleeps.\n")
    first, empty, second = told.splitlines()
    assert code == 0 and empty == ""
    if name == "accuracy":
        assert first.split("\t")[0] == "question" and second.split("\t")[0] == "statement"
    else:
        assert float(first) > float(second)


def test_an_unlabelled_test_set_is_answered_for_glue(tmp_path: Path) -> None:
    """SST-2 as GLUE hands it out: a file for its server, no score; the valid set is measured as the task asks."""
    (tmp_path / "train.tsv").write_text("sentence\tlabel\nlovely\t1\nawful\t0\n")
    (tmp_path / "dev.tsv").write_text("sentence\tlabel\nlovely\t1\n")
    (tmp_path / "test.tsv").write_text("index\tsentence\n0\tlovely\n1\t \n2\tawful\n")
    data = DataConfig(root=str(tmp_path), train=(CorpusConfig(dataset="glue/sst2"),), valid=CorpusConfig(dataset="glue/sst2"),
                      test=CorpusConfig(dataset="glue/sst2", split="submission"), tokenizer="words", vocab_size=50)  # fmt: skip
    recipe = Recipe(task="classification", model=config(), data=data)
    words = ClassificationTask.prepare(recipe, lambda _: None)
    task = ClassificationTask(recipe, ClassificationTask.fitted(recipe, words), words)
    network = task.network().eval()
    result = task.test(network, tmp_path, lambda _: None)
    assert result is not None and result["examples"] == 3 and result["scores"] == []
    lines = (tmp_path / "SST-2.tsv").read_text().splitlines()
    assert lines[0] == "index\tprediction" and [line.split("\t")[0] for line in lines[1:]] == ["0", "1", "2"]
    assert all(line.split("\t")[1] in ("0", "1") for line in lines[1:])
    assert task.metric == "accuracy" and set(task.evaluate(network)) == {"accuracy", "loss"}


@pytest.mark.parametrize("given, wanted", [({}, 0.0), ({"label_smoothing": 0.2}, 0.2), ({"label_smoothing": 0.0}, 0.0)])
@pytest.mark.parametrize("head", ["classes", "classes-words"])
def test_labels_are_smoothed_only_if_the_recipe_says_so(given: Any, wanted: float, head: str, tmp_path: Path) -> None:
    """The default of 0.1 is for words."""
    decoder = {"family": "decoder", "head": head, "pooling": "last", "n_segments": 0} if head != "classes" else {}
    found = task([("x", "bad"), ("y", "good"), ("z", "so-so")], [("x", "bad")], tmp_path, **decoder)
    found.recipe = found.recipe.model_copy(update={"train": TrainConfig(**given)})
    unused(found.recipe)
    network = found.network().eval()
    batch = found.collate(found.read_rows([("x", "good"), ("y z", "bad")]))
    output = network(batch)
    loss, right = found.objective(output, batch), torch.tensor([1, 0])
    expected = torch.nn.functional.cross_entropy(output.logits, right, reduction="sum", label_smoothing=wanted)
    assert found.smoothing == wanted and loss.count == 2
    torch.testing.assert_close(loss.sum, expected)


# --- bad input


def test_a_label_that_was_never_learned_is_named(tmp_path: Path) -> None:
    train = [("x", "yes"), ("y", "no")]
    with pytest.raises(QkvError, match=r"the valid set has the label 'maybe', .* known are 'no', 'yes'"):
        task(train, [("x", "maybe")], tmp_path)
    with pytest.raises(QkvError, match="the test set has the label 'perhaps'"):
        task(train, [("x", "yes")], tmp_path, test=[("x", "no"), ("y", "perhaps")])
    with pytest.raises(QkvError, match="the valid set has 'high' where a number should be"):
        task([("x", "1"), ("y", "2")], [("x", "high")], tmp_path, RegressionTask)


def test_what_cannot_be_learned_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(QkvError, match="all training examples have the same label"):
        task([("x", "1"), ("y", "1")], [("x", "1")], tmp_path)
    with pytest.raises(QkvError, match="no training example has a number"):
        task([("x", "yes"), ("y", "no")], [("x", "1")], tmp_path, RegressionTask)
    recipe = Recipe(task="classification", model=ModelConfig(family="encoder-decoder", d_model=8, d_ff=8, vocab_size=9,
                    n_layers=1), data=DataConfig(train=(CorpusConfig(grammar=1),), valid=CorpusConfig(grammar=1)))  # fmt: skip
    with pytest.raises(ConfigError, match="first vector depends on the first token only"):
        ClassificationTask.possible(recipe)


def test_an_unknown_label_through_the_command(run: Run, tmp_path: Path) -> None:
    """One line that names it, exit code 2, and nothing was trained."""
    (tmp_path / "train.tsv").write_text("good film\tpos\nbad film\tneg\n")
    (tmp_path / "test.tsv").write_text("odd film\tweird\n")
    recipe = GRAMMAR.format(task="classification", steps=1)
    for name in ("train", "valid", "test"):
        table = {
            "train": "[{ table = 'train.tsv' }]",
            "valid": "{ table = 'train.tsv' }",
            "test": "{ table = 'test.tsv' }",
        }
        recipe = "\n".join(
            f"{name} = {table[name]}" if line.startswith(f"{name} =") else line for line in recipe.splitlines()
        )
    (tmp_path / "recipe.toml").write_text(recipe)
    code, _, err = run("train", tmp_path / "recipe.toml", "--set", f"data.root={tmp_path}", "--out", tmp_path / "out")
    assert code == 2 and err.strip().splitlines()[-1].startswith("error: the test set has the label 'weird'")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    asked = classifier()
    ours.save(tmp_path / "model", asked.config, asked.network, TOKENIZERS["wordpiece"])
    return tmp_path / "model"


def test_the_command_keeps_lines_and_counts_what_is_wrong(run: Run, folder: Path) -> None:
    """Empty lines stay empty; a line without its second text is told by its number; the others are answered."""
    code, out, err = run("classify", folder, "--pairs", given="the fox\tdogs\n\nonly one\nwhy\tnot\n")
    lines = out.splitlines()
    assert code == 1 and len(lines) == 4 and lines[1] == lines[2] == "" and "line 3 is not classified" in err
    label, probability = lines[0].split("\t")
    assert label in LABELS and 0 < float(probability) <= 1
    code, out, _ = run("classify", folder, "--pairs", "--json", given="the fox\tdogs\n")
    assert code == 0 and json.loads(out)["label"] == label and set(json.loads(out)["probabilities"]) == set(LABELS)
    code, out, _ = run("classify", folder, "--top-k", "2", given="the fox\n")
    assert code == 0 and len(out.strip().split("\t")) == 4


def test_of_a_table_the_text_column_is_read(run: Run, folder: Path, tmp_path: Path) -> None:
    """Not whole rows, and not its header; pairs by their names."""
    texts = ["the fox", "why not,\nsaid the fox", "dogs"]
    _, wanted, _ = run("classify", folder, given="".join(text.replace("\n", " ") + "\n" for text in texts))
    (tmp_path / "x.csv").write_text(
        "label,text\n" + "".join(f'{label},"{text}"\n' for label, text in zip("abc", texts, strict=True))
    )
    code, out, err = run("classify", folder, tmp_path / "x.csv")
    assert code == 0 and out == wanted and "reading column text" in err
    (tmp_path / "x.jsonl").write_text("".join(json.dumps({"id": 1, "text": text}) + "\n" for text in texts))
    assert run("classify", folder, tmp_path / "x.jsonl")[:2] == (0, wanted)
    (tmp_path / "x.tsv").write_text("the fox\tpos\n")
    code, out, err = run("classify", folder, tmp_path / "x.tsv")
    assert (code, out) == (0, wanted.splitlines(keepends=True)[0]) and "column 0; it has no header" in err
    _, wanted, _ = run("classify", folder, "--pairs", given="the fox\tdogs\n")
    (tmp_path / "p.tsv").write_text("label\tsentence1\tsentence2\n0\tthe fox\tdogs\n")
    assert run("classify", folder, "--pairs", tmp_path / "p.tsv")[:2] == (0, wanted)
    (tmp_path / "q.jsonl").write_text('{"when": "now", "where": "here"}\n')
    code, _, err = run("classify", folder, tmp_path / "q.jsonl")
    assert code == 2 and "has the columns when, where" in err and len(err.splitlines()) == 1


def test_a_text_that_is_too_long_is_cut_and_that_is_said(run: Run, folder: Path) -> None:
    code, out, err = run("classify", folder, given="the fox " * 600 + "\nthe fox\n")
    assert code == 0 and len(out.splitlines()) == 2 and "1 of 2 texts were cut to 512 tokens" in err


def test_a_model_without_classes_says_what_it_has(run: Run, tmp_path: Path) -> None:
    c = config(head="masked")
    ours.save(tmp_path / "model", c, build(c), TOKENIZERS["wordpiece"])
    code, _, err = run("classify", tmp_path / "model", given="the fox\n")
    assert code == 2 and "this model has no classes, its head is 'masked'" in err
    c = config()
    ours.save(tmp_path / "mute", c, build(c))
    code, _, err = run("classify", tmp_path / "mute", given="the fox\n")
    assert code == 2 and "has no tokenizer" in err


def test_an_empty_text_is_read_or_refused() -> None:
    """What stands around it is read; a model with nothing around it has nothing to read."""
    assert classifier().classify([""])[0].label in LABELS
    bare = classifier(TOKENIZERS["bpe"], bos_id=None, eos_id=None)
    with pytest.raises(QkvError, match="an empty text"):
        bare.classify([""])
    with pytest.raises(QkvError, match="no special token to stand between two texts"):
        bare.classify([("the", "fox")])
    with pytest.raises(QkvError, match=r"pass \[text\]"):
        classifier().classify("the fox")  # type: ignore[arg-type]
