"""The chunked loss is the readable one in value and gradient; each objective is a sum over the targets that count."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import qkv.objectives
from qkv.batch import IGNORED, Batch
from qkv.check import example
from qkv.config import ModelConfig
from qkv.models.build import build
from qkv.models.output import Output
from qkv.objectives import (
    ChunkedCrossEntropy,
    causal,
    classes_words,
    classification,
    cross_entropy,
    masked_lm,
    masked_next,
    next_words,
    readable_cross_entropy,
    regression,
    replaced_token_detection,
    span,
    tagging,
    translation,
)
from qkv.parts.heads import Vocabulary
from qkv.presets import tiny


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qkv.objectives, "CHUNK", 4)  # several chunks, the last one not full
    torch.manual_seed(0)


def some_targets(rows: int = 3, length: int = 5, words: int = 11) -> Tensor:
    targets = torch.randint(0, words, (rows, length))
    targets[0, 3:], targets[2, 0] = IGNORED, IGNORED
    return targets


def grads(loss: Tensor, *leaves: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(loss, leaves)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("project", [False, True])
def test_chunked_is_readable(smoothing: float, bias: bool, project: bool) -> None:
    head = Vocabulary(11, 6 if project else 8, 8, bias=bias, scale=0.5)
    for parameter in head.parameters():
        nn.init.normal_(parameter)
    hidden, targets = torch.randn(3, 5, 8, requires_grad=True), some_targets()
    leaves = (hidden, *head.parameters())
    fast, slow = (f(Output(hidden, head), targets, smoothing) for f in (cross_entropy, readable_cross_entropy))
    assert fast.count == slow.count == 12
    torch.testing.assert_close(fast.sum, slow.sum)
    for a, b in zip(grads(fast.mean * 3, *leaves), grads(slow.mean * 3, *leaves), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("weights", [None, [1.0, 0.5, 2.0, 0.0, 1.0, 3.0]], ids=["even", "weighted"])
def test_gradcheck_in_double(weights: list[float] | None) -> None:
    own = None if weights is None else torch.tensor(weights, dtype=torch.double)
    x, weight = torch.randn(6, 3, dtype=torch.double), torch.randn(5, 3, dtype=torch.double)
    leaves = [x.requires_grad_(), weight.requires_grad_(), torch.randn(5, dtype=torch.double, requires_grad=True)]
    assert torch.autograd.gradcheck(
        lambda *t: ChunkedCrossEntropy.apply(*t, torch.tensor([0, 1, 4, 4, 2, 0]), 0.1, own), leaves
    )


def test_huge_logits_stay_finite() -> None:
    x, weight = torch.tensor([[1e3]]), torch.tensor([[1.0], [-1.0], [0.5]])
    loss = ChunkedCrossEntropy.apply(x, weight, None, torch.tensor([1]), 0.0)
    torch.testing.assert_close(loss, torch.tensor(2e3))


def test_no_word_matrix_for_ignored_rows() -> None:
    head = Vocabulary(11, 8, 8)
    hidden = torch.randn(3, 5, 8)
    hidden[0, 3:] = float("nan")  # what stands where no target counts is never read
    targets = some_targets()
    assert torch.isfinite(cross_entropy(Output(hidden, head), targets).sum)


def test_all_ignored_is_zero_with_zero_gradient() -> None:
    head, hidden = Vocabulary(11, 8, 8), torch.randn(2, 3, 8, requires_grad=True)
    loss = cross_entropy(Output(hidden, head), torch.full((2, 3), IGNORED), 0.1)
    assert loss.count == 0 and loss.mean == 0
    assert all((g == 0).all() for g in grads(loss.mean, hidden, head.weight))


def test_a_second_backward_gives_the_same() -> None:
    head, hidden = Vocabulary(11, 8, 8), torch.randn(2, 3, 8, requires_grad=True)
    loss = cross_entropy(Output(hidden, head), torch.randint(0, 11, (2, 3))).mean
    first = torch.autograd.grad(loss, hidden, retain_graph=True)[0]
    torch.testing.assert_close(torch.autograd.grad(loss, hidden)[0], first)


@pytest.mark.parametrize("name", ["transformer-base", "t5-small", "gpt2", "albert-base", "bart-base"])
def test_tied_words_learn_from_both_ends(name: str) -> None:
    """Through a whole network: the word matrix gets gradient from the loss and from the embedding it also is."""
    c = tiny(name)
    network, batch = build(c).eval(), example(c)
    for fast, slow in zip(*(whole(network, batch, f) for f in (cross_entropy, readable_cross_entropy)), strict=True):
        torch.testing.assert_close(fast, slow, atol=1e-5, rtol=1e-4)


def whole(network: nn.Module, batch: Batch, loss: object) -> list[Tensor]:
    network.zero_grad()
    loss(network(batch), batch.targets, 0.1).mean.backward()  # type: ignore[operator]
    return [p.grad for p in network.parameters() if p.grad is not None]


def test_memory_of_logits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """No chunk forms more rows than CHUNK."""
    seen = []
    plain = torch.mm
    monkeypatch.setattr(torch, "mm", lambda x, *rest, **out: seen.append(len(x)) or plain(x, *rest, **out))
    ChunkedCrossEntropy.apply(torch.randn(11, 3), torch.randn(7, 3), None, torch.zeros(11, dtype=torch.long), 0.0)
    assert seen == [4, 4, 3]


# --- each objective against its definition


def sums_over_examples(objective: object, c: ModelConfig) -> None:
    """A batch's loss is the sum of its examples' losses: what accumulation over micro-batches stands on."""
    network, batch = build(c).eval(), example(c)
    loss = objective(network(batch), batch)  # type: ignore[operator]
    parts = [objective(network(one), one) for i in range(3) for one in [batch.rows(slice(i, i + 1))]]  # type: ignore[operator]
    assert loss.count == batch.count == sum(part.count for part in parts) > 0
    torch.testing.assert_close(loss.sum, sum(part.sum for part in parts), atol=1e-4, rtol=1e-5)


CASES = [
    (causal, {"family": "decoder"}),
    (masked_lm, {"family": "encoder", "head": "masked"}),
    (translation, {"family": "encoder-decoder"}),
    (classification, {"family": "encoder", "head": "classes", "n_classes": 3}),
    (tagging, {"family": "encoder", "head": "tags", "n_classes": 4}),
    (replaced_token_detection, {"family": "encoder", "head": "replaced"}),
    (span, {"family": "encoder", "head": "span"}),
]
BESIDE = [
    (regression, {"family": "encoder", "head": "classes", "n_classes": 1}),
    (masked_next, {"family": "encoder", "head": "masked-next", "n_segments": 2, "tie": "output"}),
    (classes_words, {"family": "decoder", "head": "classes-words", "pooling": "last", "tie": "output"}),
    (classes_words, {"family": "decoder", "head": "classes-words", "pooling": "mean", "n_classes": 1}),
]
"""Those that are more than one choice among logits."""


@pytest.mark.parametrize(("objective", "fields"), CASES + BESIDE)
def test_objectives_are_sums(objective: object, fields: dict[str, object]) -> None:
    sums_over_examples(objective, ModelConfig(vocab_size=30, d_model=16, n_layers=1, n_heads=2, d_ff=24, **fields))


@pytest.mark.parametrize(("objective", "fields"), CASES, ids=[f[0].__name__ for f in CASES])
def test_objectives_by_their_definition(objective: object, fields: dict[str, object]) -> None:
    """-sum log p(target), with p written out: softmax over the logits, or a sigmoid for replaced tokens."""
    c = ModelConfig(vocab_size=30, d_model=16, n_layers=1, n_heads=2, d_ff=24, **fields)
    network, batch = build(c).eval(), example(c)
    output = network(batch)
    real = batch.targets != IGNORED
    answers = batch.targets[real]
    logits = (output.logits.transpose(1, 2) if objective is span else output.logits)[real].double()
    if objective is replaced_token_detection:
        p = torch.sigmoid(logits)
        expected = -torch.where(answers == 1, p, 1 - p).log().sum()
    else:
        log_p = logits.softmax(-1).log()
        expected = -log_p[torch.arange(len(answers)), answers].sum()
        if objective is translation:  # a tenth of the belief is spread evenly over all words
            expected = 0.9 * expected - 0.1 * log_p.mean(-1).sum()
    torch.testing.assert_close(objective(output, batch).sum.double(), expected, atol=1e-4, rtol=1e-5)


def small(**fields: object) -> ModelConfig:
    return ModelConfig(vocab_size=30, d_model=16, n_layers=1, n_heads=2, d_ff=24, **fields)


def test_weighed_rows_are_the_readable_loss_of_each() -> None:
    """Weights of the chunked loss, in value and gradient, with a smoothing and a bias."""
    head, targets, weights = Vocabulary(11, 8, 8, bias=True), some_targets(), torch.rand(3, 5)
    hidden = torch.randn(3, 5, 8, requires_grad=True)
    nn.init.normal_(head.bias)
    leaves = (hidden, *head.parameters())
    fast = cross_entropy(Output(hidden, head), targets, 0.1, weights).sum
    each = F.cross_entropy(head(hidden).flatten(0, 1), targets.flatten(), label_smoothing=0.1, reduction="none")
    slow = (each * weights.flatten()).sum()
    torch.testing.assert_close(fast, slow)
    for a, b in zip(grads(fast, *leaves), grads(slow, *leaves), strict=True):
        torch.testing.assert_close(a, b)


def test_regression_is_the_squared_error_of_every_number() -> None:
    """-100 marks an ignored class or word; as a number it is one like any other."""
    c = small(family="encoder", head="classes", n_classes=1)
    numbers = [0.5, float(IGNORED), 4.0]
    network, batch = build(c).eval(), replace(example(c), targets=torch.tensor(numbers))
    output = network(batch)
    loss = regression(output, batch)
    assert loss.count == batch.count == 3
    scores = output.logits[:, 0].tolist()
    assert loss.sum.item() == pytest.approx(sum((s - n) ** 2 for s, n in zip(scores, numbers, strict=True)), rel=1e-5)


def test_a_span_is_chosen_among_real_tokens_only() -> None:
    c = small(family="encoder", head="span")
    network, batch = build(c).eval(), example(c)
    mask = torch.tensor([[1] * 7, [1] * 4 + [0] * 3, [0] * 2 + [1] * 5]).bool()
    batch = replace(batch, mask=mask, targets=torch.tensor([[1, 6], [0, 3], [2, 5]]))
    loss = span(network(batch), batch)
    assert loss.count == 6
    alone = [Batch(batch.inputs[i : i + 1, mask[i]], targets=batch.targets[i : i + 1] - int(mask[i].int().argmax()))
             for i in range(3)]  # fmt: skip
    torch.testing.assert_close(loss.sum, sum(span(network(one), one).sum for one in alone))


def test_masked_next_is_two_questions() -> None:
    c = small(family="encoder", head="masked-next", n_segments=2, tie="output")
    network, batch = build(c).eval(), example(c)
    output = network(batch)
    following = F.cross_entropy(network.head.next(output.hidden), batch.answers, reduction="sum")
    words = readable_cross_entropy(output, batch.targets)
    found = masked_next(output, batch, weight=3.0)
    torch.testing.assert_close(found.sum, words.sum + 3 * following)
    assert found.count == words.count == batch.count


@pytest.mark.parametrize("padded", [False, True])
def test_classes_and_words_are_the_equation_of_gpt(padded: bool) -> None:
    """Per sequence: -log p(class) - auxiliary * mean of log p(next word)."""
    c = small(family="decoder", head="classes-words", pooling="last", n_classes=3)
    network, batch = build(c).eval(), example(c)
    mask = torch.tensor([[1] * 7, [1] * 4 + [0] * 3, [1] * 2 + [0] * 5]).bool() if padded else None
    batch = replace(batch, mask=mask)
    output, lengths = network(batch), (7, 4, 2) if padded else (7, 7, 7)
    expected = F.cross_entropy(output.logits, batch.targets, reduction="sum")
    for row, n in enumerate(lengths):
        words = network.head.words(output.hidden[row, : n - 1])
        expected = expected + 0.3 * F.cross_entropy(words, batch.inputs[row, 1:n])
    torch.testing.assert_close(classes_words(output, batch, 0.3).sum, expected)
    torch.testing.assert_close(classes_words(output, batch, 0.0).sum, classification(output, batch).sum)


def test_the_next_words_do_not_cross_padding() -> None:
    batch = Batch(torch.tensor([[5, 6, 7, 0], [0, 8, 9, 7]]), torch.tensor([[1, 1, 1, 0], [0, 1, 1, 1]]).bool())
    assert next_words(batch).tolist() == [[6, 7, IGNORED, IGNORED], [IGNORED, 9, 7, IGNORED]]


def test_ignored_class_does_not_count() -> None:
    c = ModelConfig(family="encoder", head="classes", vocab_size=30, d_model=16, n_layers=1, n_heads=2, d_ff=24)
    network, batch = build(c).eval(), example(c)
    some = replace(batch, targets=torch.tensor([1, IGNORED, 0]))
    loss, rest = classification(network(some), some), some.rows(torch.tensor([0, 2]))
    torch.testing.assert_close(loss.sum, classification(network(rest), rest).sum)
    assert loss.count == 2
