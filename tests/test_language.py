"""Language models: packed documents see only themselves, windows give every token once, and a small model learns."""

import math
import random

import numpy as np
import pytest
import torch

from qkv.batch import IGNORED, Batch
from qkv.config import ModelConfig
from qkv.data.windows import Windows, chunks, collate, documents, length, packed, rows_of, windows
from qkv.errors import QkvError
from qkv.models.build import build

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
    assert not packs(ModelConfig(family=family, head="masked" if family == "encoder" else "vocabulary", **{**SIZES, **fields}))
    with pytest.raises(QkvError, match="packed into one row"):
        network(packed_batch()[0])


def test_one_document_a_row_goes_without_a_table():
    from qkv.parts.masks import Mask

    batch, _ = packed_batch(((9,), (9,)))
    assert batch.documents is None and batch.mask is None
    assert Mask(9, batch.mask, causal=True, documents=batch.documents).allowed is None
    several, _ = packed_batch(((4, 5), (9,)))
    assert Mask(9, several.mask, causal=True, documents=several.documents).allowed.shape == (2, 1, 9, 9)


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
    rows = packed(short, 64)
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
        return [p for (text,) in records for p in chunks(range(100 * int(text), 100 * int(text) + 3 + int(text) % 28), size)]

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
