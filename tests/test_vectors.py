"""word2vec: its gradients are autograd's, the fast way is the readable one, the pairs do not depend on the workers,
the steps are gensim's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import needs_compiler
from torch import Tensor

from qkv.config.vectors import VectorsConfig
from qkv.errors import QkvError
from qkv.vectors import kernel, reference
from qkv.vectors.corpus import END, next_part, sentence_bounds
from qkv.vectors.huffman import huffman
from qkv.vectors.model import Word2Vec
from qkv.vectors.random import RandomStream, alias_table, to_range
from qkv.vectors.space import Vectors
from qkv.vectors.vocabulary import WordCounts, count_words

LOSSES, MODELS = ["negative", "hierarchical", "softmax"], ["skip-gram", "cbow"]


def text(words: int = 37, sentences: int = 24, seed: int = 0) -> np.ndarray:
    """A row of ids in which small ones are frequent."""
    r = np.random.default_rng(seed)
    chance = 1 / (np.arange(words) + 2.7)
    drawn = [r.choice(words, r.integers(2, 25), p=chance / chance.sum()) for _ in range(sentences)]
    return np.concatenate([x for one in drawn for x in (one, [END])]).astype(np.int32)


def vocabulary_of(ids: np.ndarray) -> WordCounts:
    counts = np.maximum(np.bincount(ids[ids >= 0]), 1).astype(np.int64)
    return WordCounts([f"w{i}" for i in range(len(counts))], counts)


def begun(ids: np.ndarray, **fields: object) -> Word2Vec:
    c = VectorsConfig(**{"workers": 1, "width": 21, "window": 3, "learning_rate": 0.2, **fields})  # type: ignore[arg-type]
    return Word2Vec.create(c, vocabulary_of(ids), len(ids))


# --- gradients


def test_the_gradients_of_both_losses() -> None:
    r = np.random.default_rng(0)
    x, u = torch.tensor(r.normal(size=5), requires_grad=True), torch.tensor(r.normal(size=(7, 5)), requires_grad=True)
    labels = torch.tensor([1.0, 0, 0, 1, 0, 1, 0], dtype=torch.float64)
    by_torch = [
        (reference.logistic, labels.numpy(), F.binary_cross_entropy_with_logits(u @ x, labels, reduction="sum")),
        (reference.softmax, 3, F.cross_entropy((u @ x)[None], torch.tensor([3]))),
    ]
    for function, target, wanted in by_torch:
        loss, dx, du = function(x.detach().numpy(), u.detach().numpy(), target)  # type: ignore[operator]
        gradients = torch.autograd.grad(wanted, (x, u))
        assert loss == pytest.approx(wanted.item(), rel=1e-12)
        np.testing.assert_allclose(dx, gradients[0].numpy(), rtol=1e-10)
        np.testing.assert_allclose(du, gradients[1].numpy(), rtol=1e-10)


def defined(m: Word2Vec, v: Tensor, u: Tensor, around: list[int], word: int, rows: list[int]) -> Tensor:
    """The loss of one place as the lecture has it."""
    inputs = [v[j] for j in around] if m.config.model == "skip-gram" else [v[around].mean(0)]
    if m.config.loss == "softmax":
        return sum(-F.log_softmax(u @ x, 0)[word] for x in inputs)  # type: ignore[return-value]
    if m.tree is None:
        return sum(-F.logsigmoid(u[word] @ x) - sum(F.logsigmoid(-u[k] @ x) for k in rows) for x in inputs)  # type: ignore
    signs = torch.tensor(2 * m.tree.path(word)[1] - 1, dtype=torch.float64)
    nodes = torch.tensor(m.tree.path(word)[0], dtype=torch.long)
    return sum(-F.logsigmoid(signs * (u[nodes] @ x)).sum() for x in inputs)  # type: ignore[return-value]


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("model", MODELS)
def test_one_place_goes_down_the_gradient(model: str, loss: str) -> None:
    m = begun(text(), model=model, loss=loss)
    r = np.random.default_rng(1)
    m.input[:], m.output[:] = r.normal(size=m.input.shape) / 3, r.normal(size=m.output.shape) / 3
    around = (
        [4, 9, 2] if (model, loss) != ("skip-gram", "softmax") else [4]
    )  # softmax changes all rows for each neighbour
    word, drawn = 7, [1, 5, 1]  # one of them twice
    v, u = (torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (m.input, m.output))
    wanted = defined(m, v, u, around, word, drawn)
    gradients = torch.autograd.grad(wanted, (v, u))
    before = m.input.copy(), m.output.copy()
    rows, labels = (
        reference.targets(m, word, RandomStream(0, 0))
        if loss != "negative"
        else (np.array([word, *drawn]), np.array([1.0, 0, 0, 0]))
    )
    groups = np.array(around)[:, None] if model == "skip-gram" else np.array(around)[None]
    found = reference.predict(m, groups, word, rows, labels.astype(np.float32), np.float32(0.25))
    assert found == pytest.approx(wanted.item(), rel=1e-5)
    for old, new, gradient in zip(before, (m.input, m.output), gradients, strict=True):
        np.testing.assert_allclose((old - new) / 0.25, gradient.numpy(), atol=2e-6)


# --- the fast way is the readable one


@needs_compiler
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("width", [3, 24])
def test_fast_is_readable(model: str, loss: str, width: int) -> None:
    """Two passes with a large learning rate, subsampling, and more rows than fit into a register."""
    ids = text()
    fast, slow = (begun(ids, model=model, loss=loss, width=width, sample=0.05, negative=9, epochs=2) for _ in range(2))
    for epoch in range(2):
        a, b = kernel.learn(fast, ids, epoch, 0), reference.learn(slow, ids, epoch, 0)
        assert a[1] == b[1] > 150 and a[0] == pytest.approx(b[0], rel=1e-6)
    np.testing.assert_allclose(fast.input, slow.input, atol=1e-5)
    np.testing.assert_allclose(fast.output, slow.output, atol=1e-5)
    assert np.abs(slow.output).max() > 0.02
    assert not fast.input.base[:, width:].any() and not fast.output.base[:, width:].any()  # what is behind a vector


@pytest.mark.parametrize(
    "learn", [pytest.param(kernel.learn, marks=needs_compiler), reference.learn], ids=["fast", "readable"]
)
def test_parts_are_the_whole_and_one_worker_repeats_itself(learn) -> None:  # type: ignore[no-untyped-def]
    ids = text()
    whole, again, parts = (begun(ids) for _ in range(3))
    found = learn(whole, ids, 0, 0)
    assert learn(again, ids, 0, 0) == found
    place, total, count = 0, 0.0, 0
    while place < len(ids):
        some = next_part(ids, place, 50)
        assert len(some) >= min(50, len(ids) - place) and some[-1] == END
        loss, n = learn(parts, some, 0, place)
        place, total, count = place + len(some), total + loss, count + n
    assert place == len(ids) and count == found[1] and total == pytest.approx(found[0], rel=1e-9)
    for other in (again, parts):
        assert np.array_equal(whole.input, other.input) and np.array_equal(whole.output, other.output)


@needs_compiler
def test_the_loss_does_not_depend_on_the_workers() -> None:
    ids = text(words=200, sentences=600)
    ones = [begun(ids, workers=workers, learning_rate=0.05, epochs=2) for workers in (1, 3)]
    for epoch in range(2):
        (a, n), (b, m) = (kernel.learn(one, ids, epoch, 0) for one in ones)
        assert n == m  # the very same pairs
        assert a / n == pytest.approx(b / m, rel=0.005)


@pytest.mark.parametrize(
    "learn", [pytest.param(kernel.learn, marks=needs_compiler), reference.learn], ids=["fast", "readable"]
)
@pytest.mark.parametrize("loss", LOSSES)
def test_vectors_that_explode_have_no_finite_loss(learn, loss: str) -> None:  # type: ignore[no-untyped-def]
    """What is not a number must not count as certain and right."""
    ids = text()
    m = begun(ids, loss=loss, learning_rate=1e30)
    with np.errstate(all="ignore"):
        assert not np.isfinite(learn(m, ids, 0, 0)[0])


def test_other_seeds_and_passes_draw_other_pairs() -> None:
    ids = text()
    found = {reference.learn(begun(ids, seed=seed), ids, epoch, 0)[1] for seed in (1, 2) for epoch in (0, 1)}
    assert len(found) > 1


@pytest.mark.parametrize(
    "learn", [pytest.param(kernel.learn, marks=needs_compiler), reference.learn], ids=["fast", "readable"]
)
def test_how_many_predictions_there_are(learn) -> None:  # type: ignore[no-untyped-def]
    """Window 1, no subsampling: a sentence of n words has 2 (n - 1) pairs, or n means. Wider windows: between 1 and all."""
    ids = np.array([0, 1, 2, 3, 4, END, 0, 1, END], dtype=np.int32)
    assert learn(begun(ids, sample=0.0, window=1), ids, 0, 0)[1] == 8 + 2
    assert learn(begun(ids, sample=0.0, window=1, model="cbow"), ids, 0, 0)[1] == 5 + 2
    assert 8 + 2 <= learn(begun(ids, sample=0.0, window=9), ids, 0, 0)[1] <= 20 + 2


def test_the_first_loss_is_known() -> None:
    """Output vectors begin as 0, so that every answer is a coin, and of softmax a die with V sides."""
    ids = np.array([0, 1, END], dtype=np.int32)
    for loss, wanted in (("negative", np.log(2)), ("hierarchical", np.log(2)), ("softmax", np.log(2))):
        m = begun(ids, loss=loss, sample=0.0, negative=1, last_rate=0.0, learning_rate=1e-9)
        total, count = reference.learn(m, ids, 0, 0)
        rows = total / count / wanted  # of "negative", the drawn word may be the right one, which does not count
        assert rows == pytest.approx(1) or (loss == "negative" and 1 <= rows <= 2)


@needs_compiler
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("model", MODELS)
def test_words_that_stand_together_come_to_lie_together(model: str, loss: str) -> None:
    """Six words about one thing and six about another; no sentence is about both."""
    r = np.random.default_rng(0)
    ids = np.concatenate([[*(r.integers(6, size=8) + 6 * (i % 2)), END] for i in range(300)]).astype(np.int32)
    m, fresh = (begun(ids, model=model, loss=loss, sample=0.0, width=16, epochs=10, learning_rate=rate, last_rate=0.0)
                for rate in (0.1, 1e-9))  # fmt: skip
    (first, n), *_, (last, k) = kernel.learn(fresh, ids, 0, 0), *(kernel.learn(m, ids, epoch, 0) for epoch in range(10))
    assert last / k < 0.9 * first / n
    v = Vectors([f"w{i}" for i in range(12)], torch.from_numpy(m.input.copy()))
    for i in range(12):
        assert {int(near.word[1:]) // 6 for near in v.nearest(f"w{i}", 5)} == {i // 6}


# --- what is drawn


def test_draws_are_a_row_of_numbers() -> None:
    a, b = RandomStream(3, 14), RandomStream(3, 14)
    np.testing.assert_array_equal(np.concatenate([a.take(3), a.take(4)]), b.take(7))
    assert not np.array_equal(RandomStream(3, 15).take(4), RandomStream(3, 14).take(4))
    drawn = to_range(RandomStream(0, 0).take(10_000), 7)
    assert set(drawn) == set(range(7)) and np.bincount(drawn).min() > 1200


@pytest.mark.parametrize("weights", [[1], [1, 1, 1], [5, 1, 0.01, 3, 3], list(range(1, 200))])
def test_an_alias_table_has_the_chances_it_was_made_of(weights: list[float]) -> None:
    table = alias_table(weights)
    own = table.coins.astype(np.float64) / 2**32
    found = own.copy()
    np.add.at(found, table.others, 1 - own)
    np.testing.assert_allclose(found / len(weights), np.array(weights) / sum(weights), atol=1e-8)


def test_the_huffman_tree_is_one() -> None:
    """Its probabilities sum to 1, its mean way is within a bit of the entropy, and rarer words have no shorter ways."""
    counts = vocabulary_of(text(words=60, sentences=200)).counts
    tree = huffman(np.sort(counts)[::-1])
    r = np.random.default_rng(0)
    u, x = r.normal(size=(59, 8)), r.normal(size=8)
    p = [np.prod(1 / (1 + np.exp(-(2 * labels - 1) * (u[nodes] @ x)))) for nodes, labels in map(tree.path, range(60))]
    assert sum(p) == pytest.approx(1)
    lengths, share = np.diff(tree.starts), np.sort(counts)[::-1] / counts.sum()
    entropy = -(share * np.log2(share)).sum()
    assert entropy <= (lengths * share).sum() < entropy + 1
    assert all(lengths[rarer] >= lengths[word] for word, rarer in np.argwhere(share[:, None] > share))
    assert huffman(np.array([5, 3])).nodes.tolist() == [0, 0]


def test_counting() -> None:
    sentences = [["b", "a", "c", "a"], ["b", "a", "d"], ["c"]]
    found = count_words(sentences, 2, 100)
    assert found.words == ["a", "b", "c"] and found.counts.tolist() == [3, 2, 2]
    assert count_words(sentences, 1, 2).words == ["a", "b"]
    assert count_words([["x"], *([["y", "z"]] * 9), ["x"]], 1, 100, most=2).words == [
        "y",
        "z",
    ]  # the rare one was forgotten
    for wrong, min_count, why in (([], 1, "no word"), ([["a", "b"]], 5, "no word occurs 5"), ([["a", "a"]], 1, "one word"),
                                  ([["a", "a", "b"]], 2, "one word")):  # fmt: skip
        with pytest.raises(QkvError, match=why):
            count_words(wrong, min_count, 100)


# --- gensim


def gensim_model(sentences: list[list[str]], **fields: object):  # type: ignore[no-untyped-def]
    models = pytest.importorskip("gensim.models", reason="gensim is not installed: pip install gensim")
    return models.Word2Vec(sentences, min_count=1, workers=1, seed=1, **fields)


def test_subsampling_is_gensims() -> None:
    ids = text(words=50, sentences=300)
    names = [[f"w{i}" for i in ids[a:b]] for a, b in zip(*sentence_bounds(ids), strict=True)]
    theirs = gensim_model(names, vector_size=4, sample=1e-2, epochs=1)
    ours = count_words(names, 1, 10**6)
    wanted = [min(theirs.wv.get_vecattr(word, "sample_int"), 2**32 - 1) for word in ours.words]
    np.testing.assert_allclose(ours.keep(1e-2), wanted, atol=2)
    assert [theirs.wv.get_vecattr(word, "count") for word in ours.words] == ours.counts.tolist()


def test_steps_are_gensims() -> None:
    """Hierarchical softmax with window 1 draws nothing, so both do the same steps from the same start;
    small ones, since gensim changes the rows after each neighbour."""
    ids = np.concatenate(
        [[*np.repeat(range(5), [9, 6, 4, 2, 1])[np.random.default_rng(i).permutation(22)], END] for i in range(20)]
    ).astype(np.int32)
    names = [[f"w{i}" for i in ids[a:b]] for a, b in zip(*sentence_bounds(ids), strict=True)]
    how = {
        "vector_size": 8,
        "window": 1,
        "hs": 1,
        "negative": 0,
        "sg": 1,
        "sample": 0,
        "alpha": 0.02,
        "min_alpha": 0.02,
    }
    theirs = gensim_model(names, epochs=1, **how)
    start = np.random.default_rng(0).normal(size=(5, 8), scale=0.3).astype(np.float32)
    theirs.wv.vectors[:] = start[[int(word[1:]) for word in theirs.wv.index_to_key]]
    theirs.syn1[:] = 0
    theirs.train(names, total_examples=len(names), epochs=4, start_alpha=0.02, end_alpha=0.02)
    m = begun(ids, width=8, window=1, loss="hierarchical", sample=0.0, learning_rate=0.02, last_rate=0.02, epochs=4)
    m.input[:] = start
    for epoch in range(4):
        reference.learn(m, ids, epoch, 0)
    change = m.input - start
    wanted = np.stack([theirs.wv[f"w{i}"] for i in range(5)]) - start
    assert np.linalg.norm(change - wanted) < 0.05 * np.linalg.norm(wanted)  # gensim's sigma is a table
