"""Language models: packed documents see only themselves, windows give every token once, and a small model learns."""

import json
import math
import random
from collections import Counter

import numpy as np
import pytest
import torch

import qkv
from qkv.batch import IGNORED, Batch
from qkv.config import DataConfig, ModelConfig, Recipe, TrainConfig, validate
from qkv.convert.files import read_tensors
from qkv.data.windows import Windows, chunks, collate, documents, length, pack_windows, rows_of, windows
from qkv.errors import ConfigError, QkvError
from qkv.models.build import build
from qkv.models.output import Output
from qkv.tasks.language import LanguageTask
from qkv.tasks.losses import Losses
from qkv.train import run as training
from qkv.train.report import Report
from qkv.train.training_log import TrainingLog

SIZES = {"vocab_size": 31, "d_model": 16, "n_layers": 2, "n_heads": 2, "d_ff": 32, "max_length": 24, "init_std": 0.3,
         "dropout": 0.0}  # fmt: skip
POSITIONS = ["none", "learned", "sinusoidal", "rotary", "alibi", "t5", "relative"]


def network_of(family, **fields):
    torch.manual_seed(0)
    head = "masked" if family == "encoder" else "vocabulary"
    network = build(ModelConfig(family=family, head=head, norm_order="pre", **{**SIZES, **fields})).eval()
    with torch.no_grad():
        for name, p in network.named_parameters():
            if "position" in name:
                p.normal_()  # fresh tables are so small that a wrong position would hardly show
    return network


def set_fast(network, fast):
    for module in network.modules():
        if hasattr(module, "fast"):
            module.fast = fast


def packed_batch(lengths=((5, 3, 7), (4, 8), (9,)), width=16):
    """Rows of documents of random tokens, and each document alone: (batch, [(row, slice, ids)])."""
    r = np.random.default_rng(1)
    rows, alone = [], []
    for number, row in enumerate(lengths):
        at, found = 0, []
        for n in row:
            ids = r.integers(0, 31, n + 1).astype(np.int32)
            found.append(ids)
            alone.append((number, slice(at, at + n), torch.from_numpy(ids[:-1].astype(np.int64))))
            at += n
        rows.append(found)
    return collate(rows, 0), alone


# --- packing: documents in one row = each alone


@pytest.mark.parametrize("fast", [True, False], ids=["kernel", "readable"])
@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("family", ["decoder", "encoder"])
def test_packed_documents_are_what_each_is_alone(family, position, fast):
    network = network_of(family, position=position)
    set_fast(network, fast)
    batch, alone = packed_batch()
    together = network(batch).logits
    for row, places, ids in alone:
        assert torch.allclose(together[row, places], network(Batch(inputs=ids[None])).logits[0], atol=1e-5)


@pytest.mark.parametrize("fields", [{"mixer": ("window",), "window": 2, "n_global": 1, "position": "rotary"},
                                    {"position": "rotary", "n_kv_heads": 1}, {"score": "additive", "position": "learned"},
                                    {"position": "learned", "position_use": "every-layer"}])  # fmt: skip
def test_packed_documents_with_other_parts(fields):
    network = network_of("decoder", **fields)
    batch, alone = packed_batch()
    together = network(batch).logits
    for row, places, ids in alone:
        assert torch.allclose(together[row, places], network(Batch(inputs=ids[None])).logits[0], atol=1e-5)


def test_packed_gradients_are_those_of_each_alone():
    from qkv.objectives import causal

    network = network_of("decoder", position="rotary").train()
    batch, alone = packed_batch()
    causal(network(batch), batch).sum.backward()
    together = [p.grad.clone() for p in network.parameters()]
    network.zero_grad()
    for row, places, ids in alone:
        one = Batch(inputs=ids[None], targets=batch.targets[row, places][None])
        causal(network(one), one).sum.backward()
    for a, p in zip(together, network.parameters(), strict=True):
        assert torch.allclose(a, p.grad, atol=1e-4)


@pytest.mark.parametrize("family,fields", [
    ("decoder", {"mixer": ("linear",)}), ("decoder", {"mixer": ("performer",)}), ("decoder", {"mixer": ("compressed",)}),
    ("encoder", {"mixer": ("linformer",)}), ("decoder", {"mixer": ("softmax", "linear")}),
    ("decoder", {"recurrent": "gru", "position": "none"}),
])  # fmt: skip
def test_who_cannot_keep_documents_apart_says_so(family, fields):
    from qkv.models.inputs import packs

    network = network_of(family, **fields)
    assert not packs(
        ModelConfig(family=family, head="masked" if family == "encoder" else "vocabulary", **{**SIZES, **fields})
    )
    with pytest.raises(QkvError, match="packed into one row"):
        network(packed_batch()[0])


def test_one_document_a_row_goes_without_a_table():
    from qkv.parts.masks import Mask

    batch, _ = packed_batch(((9,), (9,)))
    assert batch.documents is None and batch.mask is None
    assert Mask(9, batch.mask, causal=True, documents=batch.documents).kernel[0] is None
    several, _ = packed_batch(((4, 5), (9,)))
    assert Mask(9, several.mask, causal=True, documents=several.documents).kernel[0].shape == (2, 1, 9, 9)


# --- windows


@pytest.mark.parametrize("seed", range(20))
def test_windows_predict_every_token_but_the_first_once(seed):
    r = random.Random(seed)
    size = r.randint(2, 9)
    texts = [np.arange(1000 * i, 1000 * i + r.randint(2, 40), dtype=np.int32) for i in range(r.randint(1, 12))]
    for drawn in (None, r):
        for pack in (True, False):
            rows = rows_of(texts, size, pack, drawn)
            assert all(1 <= length(row) <= size for row in rows) and (pack or all(len(row) == 1 for row in rows))
            batch = collate(rows, 0)
            real = batch.targets != IGNORED
            assert sorted(batch.targets[real].tolist()) == sorted(t for text in texts for t in text[1:].tolist())
            assert (batch.targets - batch.inputs)[real].eq(1).all()  # ids count up: each target follows its input


def test_without_random_numbers_windows_are_cut_from_the_beginning():
    text = np.arange(11, dtype=np.int32)
    assert [w.tolist() for w in windows(text, 4, 4)] == [[0, 1, 2, 3, 4], [4, 5, 6, 7, 8], [8, 9, 10]]
    assert [w.tolist() for w in windows(text, 4, 1)] == [[0, 1], [1, 2, 3, 4, 5], [5, 6, 7, 8, 9], [9, 10]]
    assert windows(text[:1], 4, 2) == []


@pytest.mark.parametrize("size", [1, 3, 100])
def test_chunks_become_the_documents_they_were(size):
    texts = [list(range(n)) for n in (5, 1, 9, 3)]
    found = [p for text in texts for p in chunks(text, size)]
    assert max(len(p.ids) for p in found) <= size
    assert [d.tolist() for d in documents(found, None, None)] == texts
    assert [d.tolist() for d in documents(found, 98, 99)] == [[98, *text, 99] for text in texts]
    two = [*chunks(range(4), size, more=True), *chunks(range(4, 7), size), *chunks([7], size, more=True)]
    assert [d.tolist() for d in documents(two, 98, 99)] == [[98, *range(7), 99], [98, 7]]


def test_packing_wastes_little():
    r = random.Random(0)
    short = [np.zeros(r.randint(3, 30), dtype=np.int32) for _ in range(2000)]
    rows = pack_windows(short, 64)
    assert sum(map(length, rows)) == sum(len(w) - 1 for w in short)
    assert sum(map(length, rows)) / (64 * len(rows)) > 0.97


class Numbered:
    """A corpus of records (text,); here the text is its number."""

    skipped: dict = {}

    def __init__(self, count):
        self.count = count

    def read(self, start=0):
        return ((n + 1, (str(n),)) for n in range(start, self.count))


def stream(pool=50, size=8, position=None):
    """Rows of documents of 3 to 30 tokens."""

    def encode(records):
        return [
            p for (text,) in records for p in chunks(range(100 * int(text), 100 * int(text) + 3 + int(text) % 28), size)
        ]

    found = Windows(Numbered(60), encode, length, tokens=32, pool=pool, seed=4)
    found.size, found.pack = size, True
    if position is not None:
        found.position = position
    return found


@pytest.mark.parametrize("pool", [5000, 50])
def test_windows_resume_at_the_very_next_row_and_differ_between_epochs(pool):
    plain = lambda rows: [[w.tolist() for w in row] for row in rows]  # noqa: E731
    whole, seen = stream(pool), []
    for rows in whole:
        seen.append((plain(rows), whole.position))
        if whole.position.epoch == 2:
            break
    for at in (0, 3, len(seen) // 2, len(seen) - 2):
        again = stream(pool, position=seen[at][1])
        assert plain(next(iter(again))) == seen[at + 1][0]
    of = lambda epoch: sorted(w for rows, p in seen if p.epoch == epoch for row in rows for w in row)  # noqa: E731
    assert of(0) != of(1)
    targets = lambda epoch: sorted(t for w in of(epoch) for t in w[1:])  # noqa: E731
    if pool == 5000:  # a smaller pool cuts a document at its border
        assert targets(0) == targets(1)


# --- the task


def recipe_of(train, valid=None, model=None, data=None, **fields):
    sizes = {"family": "decoder", "vocab_size": 300, "d_model": 32, "n_layers": 1, "n_heads": 2, "d_ff": 64, "max_length": 32,
             "norm_order": "pre", "position": "rotary", "tie": "output", "dropout": 0.1}  # fmt: skip
    texts = {"train": [train], "valid": valid or train, "vocab_size": 300, "max_length": 16, "batch_tokens": 128}
    steps = {
        "steps": 12,
        "evaluate_every": 4,
        "save_every": 3,
        "warmup": 4,
        "seed": 3,
        "label_smoothing": 0.0,
        **fields,
    }
    return validate(Recipe, {
        "task": "language", "model": validate(ModelConfig, {**sizes, **(model or {})}),
        "data": validate(DataConfig, {**texts, **(data or {})}), "train": validate(TrainConfig, steps),
    })  # fmt: skip


def task_of(recipe):
    LanguageTask.possible(recipe)
    words = LanguageTask.prepare(recipe, lambda _: None)
    return LanguageTask(recipe, LanguageTask.fitted(recipe, words), words)


@pytest.fixture
def books(tmp_path):
    """Two text files of several thousand characters, and a short one with letters of more than one byte."""
    r = random.Random(5)
    for name in ("one", "two"):
        words = " ".join(r.choice(["to", "be", "or", "not", "question"]) for _ in range(900))
        (tmp_path / f"{name}.txt").write_text(words + "\n")
    (tmp_path / "short.txt").write_text("naïve façade — ok\n")
    return tmp_path


def files(books, *names, **fields):
    return {"files": [str(books / f"{name}.txt") for name in names], **fields}


class Uniform(torch.nn.Module):
    """Every token is as likely as any other."""

    copies = False

    def __init__(self, size):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(size, 4))
        self.bias = None

    def features(self, x):
        return x

    def forward(self, batch):
        return Output(torch.ones(*batch.inputs.shape, 4), self, batch.mask)


@pytest.mark.parametrize("tokenizer", ["bytes", "characters", "byte-bpe"])
@pytest.mark.parametrize("names", [("short",), ("one", "short"), ("one", "two")])
def test_a_uniform_model_has_the_loss_it_must_have(books, tokenizer, names):
    task = task_of(recipe_of(files(books, "one", "two", "short"), files(books, *names), data={"tokenizer": tokenizer}))
    texts = [(books / f"{name}.txt").read_text() for name in names]
    targets = sum(map(len, task.tokenizer.plain(texts))) + len(names)  # each text has an end token
    size, n_bytes = task.config.vocab_size, sum(len(text.encode()) for text in texts)
    found = task.evaluate(Uniform(size))
    assert found["loss"] == pytest.approx(math.log(size)) and found["perplexity"] == pytest.approx(size)
    assert found["bits_per_byte"] == pytest.approx(targets * math.log2(size) / n_bytes)


@pytest.mark.parametrize(("tokenizer", "held_out", "lossy"), [
    ("wordpiece", "one", True),  # which forgets where spaces are
    ("characters", "one", False),
    ("characters", "strange", True),  # a character that no training text has
    ("bytes", "strange", False),
])  # fmt: skip
def test_bits_per_byte_are_a_lower_bound_where_the_tokens_do_not_give_the_text_back(
    books, tokenizer, held_out, lossy, tmp_path
):
    """Many texts have these tokens: their probability is more than that of the text, and the figure too good."""
    (books / "strange.txt").write_text("An odd letter: \u2603\n")
    data = {"tokenizer": tokenizer, "test": files(books, held_out)}
    task = task_of(recipe_of(files(books, "one"), files(books, held_out), data=data))
    network = task.network().eval()
    name = "bits_per_byte_at_least" if lossy else "bits_per_byte"
    results = task.test(network, tmp_path, lambda _: None)
    assert list(task.evaluate(network)) == ["loss", "perplexity", name] == [s["name"] for s in results["scores"]]
    assert all(("do not decode to the text" in how) == lossy for how in (task.how, results["how"]))
    assert (Losses.open(tmp_path).bytes == 0) == lossy  # which `qkv compare` takes for no bits per byte


@pytest.mark.parametrize(
    "fields", [{}, {"recurrent": "gru", "position": "none"}, {"mixer": ("linear",), "position": "learned"}]
)
def test_the_loss_is_that_of_each_window_alone(books, fields):
    task = task_of(recipe_of(files(books, "one", "short"), model=fields, data={"tokenizer": "characters"}))
    torch.manual_seed(0)
    network = task.network().eval()
    total = count = 0
    for name in ("one", "short"):
        ids = [1, *task.tokenizer.plain([(books / f"{name}.txt").read_text()])[0], 2]
        for at in range(0, len(ids) - 1, 16):
            inputs, targets = torch.tensor([ids[at : at + 16]]), torch.tensor(ids[at + 1 : at + 17])
            logits = network(Batch(inputs=inputs[:, : len(targets)])).logits[0]
            total += torch.nn.functional.cross_entropy(logits, targets, reduction="sum").item()
            count += len(targets)
    assert task.evaluate(network)["loss"] == pytest.approx(total / count, rel=1e-5)
    assert task.test(network, books, print) is None


def test_training_reads_every_token_of_every_document_once_an_epoch(books):
    task = task_of(recipe_of(files(books, "one", "two", "short")))
    expected = sorted(t for text in ("one", "two", "short")
                      for t in [*task.tokenizer.plain([(books / f"{text}.txt").read_text()])[0], 2])  # fmt: skip
    assert task.read == 0  # the held-out text is not counted
    read = []
    for rows in task.batches:
        if task.batches.position.epoch > 0:
            break
        batch = task.collate(rows)
        assert batch.inputs.numel() <= 128
        read += batch.targets[batch.targets != IGNORED].tolist()
    assert sorted(read) == expected


def test_long_files_go_on_over_their_pieces(books, monkeypatch):
    from qkv.data import documents as cutting

    whole = task_of(recipe_of(files(books, "one", "short"), data={"tokenizer": "characters"}))
    monkeypatch.setattr(cutting, "PIECE", 500)
    in_pieces = task_of(recipe_of(files(books, "one", "short"), data={"tokenizer": "characters"}))
    assert [d.tolist() for d in in_pieces.valid] == [d.tolist() for d in whole.valid] and len(whole.valid) == 2


def test_prompts_get_the_begin_token_where_beginnings_are_common(books):
    long = task_of(recipe_of(files(books, "one", "two"), data={"tokenizer": "bytes"}))
    short = task_of(recipe_of(files(books, "short"), data={"tokenizer": "bytes"}))
    assert long.tokenizer.encode("a") == long.tokenizer.plain(["a"])[0]
    assert short.tokenizer.encode("a") == [1, *short.tokenizer.plain(["a"])[0]]


@pytest.mark.parametrize("wrong,message", [
    ({"model": {"family": "encoder", "head": "masked"}}, "family 'decoder'"),
    ({"data": {"max_length": 33}}, "do not fit model.max_length = 32"),
    ({"model": {"head": "classes", "pooling": "last"}}, "with head 'classes'"),
])  # fmt: skip
def test_what_can_never_work_is_said_at_once(books, wrong, message):
    with pytest.raises(ConfigError, match=message):
        LanguageTask.possible(recipe_of(files(books, "one"), **wrong))


def test_empty_documents_are_left_out_and_said(books):
    (books / "gaps.txt").write_text("a line of text\n\n   \nanother line of text\n" * 20)
    task = task_of(recipe_of(files(books, "gaps", documents="lines")))
    assert task.left_out["an empty document"] == 40 and len(task.valid) == 40
    (books / "empty.txt").write_text(" \n\n")
    with pytest.raises(QkvError, match="no text"):
        task_of(recipe_of(files(books, "one"), files(books, "empty")))
    with pytest.raises(QkvError, match="no text"):
        task_of(recipe_of(files(books, "empty"), files(books, "one")))


# --- training


def test_resumed_is_uninterrupted(books, tmp_path):
    recipe = recipe_of(files(books, "one", "short"), ema=0.9)
    folders = [tmp_path / name for name in ("whole", "stopped")]
    training.run(recipe, "recipe", folders[0], Report(quiet=True))
    original = TrainingLog.add

    def dies(at):
        def line(log, entry, *rest):
            if entry["step"] == at:
                raise Killed
            original(log, entry, *rest)

        return line

    for at in (5, 8, 11):
        with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
            patch.setattr(TrainingLog, "add", dies(at))
            training.run(recipe, "recipe", folders[1], Report(quiet=True))
        torch.manual_seed(at)
    training.run(recipe, "recipe", folders[1], Report(quiet=True))
    assert (folders[0] / "log.jsonl").read_text() == (folders[1] / "log.jsonl").read_text()
    a, b = (read_tensors(folder / "best") for folder in folders)
    assert a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


class Killed(BaseException):
    """Like SIGKILL: nothing of ours catches it."""


def test_a_small_model_learns_the_grammar_and_writes(tmp_path):
    """Its loss falls well below the entropy of single words, which is all that a model without a context could know."""
    data = {"tokenizer": "words", "vocab_size": 400, "max_length": 32, "batch_tokens": 1024, "test": {"grammar": 50}}
    recipe = recipe_of({"grammar": 1500}, {"grammar": 100}, {"d_model": 64, "d_ff": 128, "dropout": 0.0}, data, steps=150,
                       learning_rate=1e-2, schedule="cosine", warmup=10, evaluate_every=75, save_every=150)  # fmt: skip
    done = training.run(recipe, "recipe", tmp_path / "run", Report(quiet=True))
    tokens = [t for document in done.task.valid for t in document[1:].tolist()]
    unigram = -sum(n / len(tokens) * math.log(n / len(tokens)) for n in Counter(tokens).values())
    log = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    best = min(line["valid_loss"] for line in log if "valid_loss" in line)
    assert best < unigram - 1.5
    scores = {score["name"]: score["value"] for score in done.results["test"]["scores"]}
    assert scores["perplexity"] == pytest.approx(math.exp(scores["loss"])) and scores["loss"] < unigram - 1.5
    model = qkv.load(tmp_path / "run" / "best")
    assert "".join(model.generate("", max_new_tokens=30)).endswith((".", "?", "!"))  # a whole sentence, then its end
