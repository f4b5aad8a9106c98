"""What makes learning and reading fast changes nothing: attention and GELU in C++, and batches without their padding."""

import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from conftest import needs_compiler
from torch import Tensor, nn

from qkv.batch import Batch
from qkv.check import example
from qkv.config import ModelConfig
from qkv.engine import native
from qkv.engine.native_stack import NativeStack
from qkv.engine.pack import pack
from qkv.engine.ragged import concatenate_rows, possible, without_padding
from qkv.engine.scan import Scan
from qkv.engine.training_kernels import Attend, Gelu, quick_attend, quick_gelu, quicken, slow_gelu
from qkv.models.build import build
from qkv.objectives import objective
from qkv.parts.masks import Mask
from qkv.parts.softmax import Softmax, attend
from qkv.presets import PRESETS, tiny


def heads(*sizes: int) -> Tensor:
    """(B, H, T, D) in float64, lying as a projection leaves them."""
    batch, count, tokens, width = sizes
    return torch.randn(batch, tokens, count, width, dtype=torch.float64).transpose(1, 2).requires_grad_()


def close(a: Tensor, b: Tensor, atol: float = 1e-5) -> None:
    torch.testing.assert_close(a.double(), b.double(), atol=atol, rtol=1e-5)


def exact(query: Tensor, key: Tensor, value: Tensor, mask: Mask, scale: float) -> Tensor:
    """By the readable formula, in float64."""
    groups = query.size(1) // key.size(1)
    scores = query @ key.repeat_interleave(groups, 1).transpose(-1, -2) * scale  # (B, H, T, S)
    return scores.masked_fill(~mask.dense, float("-inf")).softmax(-1) @ value.repeat_interleave(groups, 1)


SHAPES = [(2, 4, 2, 37, 16), (1, 3, 3, 1, 32), (2, 2, 1, 150, 64), (1, 1, 1, 48, 16), (3, 2, 2, 6, 48)]
"""(B, H, H_kv, T, D): strips and panels that are full or not, one token, more than a block."""


@needs_compiler
@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_attention_and_its_gradients(shape: tuple[int, ...], causal: bool) -> None:
    torch.manual_seed(0)
    batch, n, n_kv, tokens, width = shape
    slow = [heads(batch, n, tokens, width), heads(batch, n_kv, tokens, width), heads(batch, n_kv, tokens, width)]
    fast = [x.detach().float().requires_grad_() for x in slow]
    mask = Mask(tokens, causal=causal)
    a, b = exact(*slow, mask, 0.3), quick_attend(*fast, mask, 0.3)  # type: ignore[arg-type]
    assert b.grad_fn is not None and "Attend" in b.grad_fn.name()
    change = torch.randn_like(a)
    a.backward(change)
    b.backward(change.float())
    close(b, a)
    for x, y in zip(fast, slow, strict=True):
        close(x.grad, y.grad, 2e-5)  # type: ignore[arg-type]


DOCUMENTS = torch.tensor(
    [[0, 0, 0, 1, 1, 2, 2, 2, 2, 2], [5, 5, 5, 5, 5, 5, 5, 5, 5, 5], [1, 2, 3, 4, 5, 6, 7, 7, 7, 7]]
)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("how", [pytest.param(quick_attend, marks=needs_compiler), attend], ids=["quick", "torch"])
@pytest.mark.usefixtures("threads")
def test_documents_do_not_see_each_other(how: object, rows: int, causal: bool) -> None:
    torch.manual_seed(0)
    mask = Mask(10, causal=causal, documents=DOCUMENTS[:rows])
    slow = [heads(rows, 2, 10, 16) for _ in range(3)]
    fast = [x.detach().float().requires_grad_() for x in slow]
    a, b = exact(*slow, mask, 0.25), how(*fast, mask, 0.25)  # type: ignore[operator]
    a.sin().sum().backward()
    b.sin().sum().backward()
    close(b, a)
    for x, y in zip(fast, slow, strict=True):
        close(x.grad, y.grad)  # type: ignore[arg-type]


def test_spans_are_the_documents() -> None:
    found = Mask(10, documents=DOCUMENTS[:2]).spans(2)
    assert found is not None and found.tolist() == [[0, 0, 3], [0, 3, 5], [0, 5, 10], [1, 0, 10]]
    assert Mask(4).spans(2).tolist() == [[0, 0, 4], [1, 0, 4]]  # type: ignore[union-attr]
    padding = torch.tensor([[True, True, False]])
    assert Mask(3, padding).spans(1) is None and Mask(3, padding, causal=True).spans(1) is not None
    assert Mask(1, None, 5, causal=True).spans(1) is None  # one query over a cache
    assert Mask(3, padding, documents=torch.zeros(1, 3)).spans(1) is None


@needs_compiler
def test_what_the_kernel_does_not_know_goes_the_plain_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Attend, "apply", lambda *_: pytest.fail("this is not for training_kernels.cpp"))
    x = torch.randn(2, 2, 6, 16)
    padded = torch.arange(6) < torch.tensor([[6], [4]])
    for given, mask in [
        (x.double(), Mask(6)),
        (x[..., :9], Mask(6)),
        (x, Mask(6, padded)),
        (x[:, :, :1], Mask(1, None, 6)),
    ]:
        keys = given if mask.queries == 6 else x
        close(
            quick_attend(given, keys, keys, mask, 0.25),
            F.scaled_dot_product_attention(given, keys, keys, mask.dense, scale=0.25),
        )


@needs_compiler
@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("count", [1, 8, 1000, 10_003])
def test_gelu_and_its_slope(count: int) -> None:
    slow = torch.cat([torch.linspace(-12, 12, count), torch.tensor([-80.0, 80.0, 0.0])]).double().requires_grad_()
    fast = slow.detach().float().requires_grad_()
    a, b = slow_gelu(slow), quick_gelu(fast)
    a.sin().sum().backward()
    b.sin().sum().backward()
    close(b, a, 2e-6)
    close(fast.grad, slow.grad, 2e-5)  # type: ignore[arg-type]
    assert quick_gelu(torch.tensor([float("nan"), 1.0])).isnan().tolist() == [True, False]
    close(quick_gelu(slow.detach()), slow_gelu(slow.detach()), 0)  # float64 goes the plain way


NO_KERNEL = (
    "based",
    "deberta",
    "gla",
    "gru",
    "linformer",
    "longformer",
    "lstm",
    "luong",
    "rnn",
    "s4d",
    "transformer-dmca",
)
"""Presets of which training_kernels.cpp and scan.cpp know no part, by how their names begin."""


@needs_compiler
@pytest.mark.parametrize("name", [name for name in sorted(PRESETS) if not name.startswith(NO_KERNEL)])
def test_a_quickened_network_learns_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loss and gradients of all weights, with heads of 16, which training_kernels.cpp can do."""
    c = tiny(name)
    if c.mixer != ("selective",):
        c = c.model_copy(update={"d_model": 16 * c.n_heads, "d_ff": 40, "d_head": c.d_head and 16})
    batch, calls = example(c), counted(monkeypatch)
    torch.manual_seed(0)
    network = build(c).eval()  # the same without dropout
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)  # so that every part matters
    slow = gradients(network, c, batch)
    assert not calls
    fast = gradients(quicken(copy.deepcopy(network)), c, batch)
    assert calls and fast.keys() == slow.keys()
    for name, change in slow.items():
        atol = 1e-5 * max(1.0, float(change.abs().max()))
        torch.testing.assert_close(fast[name], change, atol=atol, rtol=1e-4, msg=lambda m, name=name: f"{name}: {m}")


def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the kernels as they are called."""
    calls: list[str] = []
    for kernel in (Attend, Gelu, Scan):
        run = lambda *inputs, kernel=kernel, apply=kernel.apply: (calls.append(kernel.__name__), apply(*inputs))[1]  # noqa: E731
        monkeypatch.setattr(kernel, "apply", run)
    return calls


def gradients(network: nn.Module, c: ModelConfig, batch: Batch) -> dict[str, Tensor]:
    network.zero_grad()
    loss = objective(c)(network(batch), batch).mean
    loss.backward()
    return {"loss": loss.detach()} | {n: p.grad.clone() for n, p in network.named_parameters() if p.grad is not None}


@needs_compiler
def test_a_quickened_network_is_packed_like_any_other() -> None:
    network = quicken(build(tiny("gpt2")).eval())
    assert isinstance(pack(network).stack, NativeStack)
    assert all(m.attend is quick_attend for m in network.modules() if isinstance(m, Softmax))


def test_without_a_compiler_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "library", lambda: None)
    network = quicken(build(tiny("gpt2")))
    assert all(m.attend is attend for m in network.modules() if isinstance(m, Softmax))


# --- no padding


PADDED = torch.arange(7) < torch.tensor([[7], [2], [4]])
HOLES = torch.tensor([[1, 1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 0, 0], [1, 0, 1, 1, 0, 1, 1]]).bool()
ONE_STACK = [
    name for name in sorted(PRESETS) if PRESETS[name].family != "encoder-decoder" and not PRESETS[name].image_size
]


@pytest.mark.parametrize("mask", [PADDED, HOLES], ids=["right", "anywhere"])
@pytest.mark.parametrize("name", ONE_STACK)
def test_without_padding_is_with_padding(name: str, mask: Tensor) -> None:
    c = tiny(name)
    torch.manual_seed(0)
    network, batch = build(c).eval(), example(c)
    mask = nn.functional.pad(mask, (0, batch.inputs.size(1) - 7))  # type: ignore[union-attr]
    batch = replace(batch, mask=mask)
    plain, lean = network(batch), without_padding(network, batch)
    close(lean.hidden[mask], plain.hidden[mask])
    rows = mask if plain.logits.shape[:2] == mask.shape else slice(None)
    close(lean.logits[rows], plain.logits[rows])


def test_padding_is_not_read_and_everything_learns() -> None:
    c = tiny("bert-base")
    network, batch = build(c).eval(), replace(example(c), mask=PADDED)
    assert possible(network, batch) and not possible(network, replace(batch, mask=None))
    one = concatenate_rows(batch)
    assert one.inputs is not None and one.inputs.shape == (1, 13) and one.documents is not None
    assert one.documents.tolist() == [[0] * 7 + [1] * 2 + [2] * 4]
    slow, fast = ([*torch.autograd.grad(read(batch).hidden[PADDED].sin().sum(), list(network.stack.parameters()))]
                  for read in (network, lambda b: without_padding(network, b)))  # fmt: skip
    for a, b in zip(fast, slow, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


def test_a_table_of_all_pairs_is_never_formed(monkeypatch: pytest.MonkeyPatch) -> None:
    network, batch = build(tiny("bert-base")).eval(), replace(example(tiny("bert-base")), mask=PADDED)
    monkeypatch.setattr(Mask, "dense", property(lambda _: pytest.fail("a table of all pairs")))
    without_padding(network, batch)


@pytest.mark.parametrize("name", ["longformer-base", "lstm-lm", "transformer-base"])
def test_others_are_read_as_they_are(name: str) -> None:
    c = tiny(name)
    assert not possible(build(c), replace(example(c), mask=PADDED))
