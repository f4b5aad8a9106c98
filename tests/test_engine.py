"""A packed network answers as the plain one does: every preset, padding, few and many rows, cached steps."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from qkv.batch import Batch
from qkv.check import example
from qkv.config import ModelConfig
from qkv.engine import pack as engine
from qkv.engine.pack import PackedAttention, PackedLinear, pack
from qkv.memory import keep_freed_memory
from qkv.models.build import build
from qkv.objectives import objective
from qkv.parts.attention import Attention
from qkv.parts.tap import Tap
from qkv.presets import PRESETS, tiny


def network_of(c: ModelConfig) -> nn.Module:
    """Weights none of which is 0 or 1, so that a forgotten bias or norm shows."""
    torch.manual_seed(0)
    network = build(c).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return network


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


def padded(batch: Batch) -> Batch:
    """The same with the last tokens of some rows marked as padding."""
    mask = lambda x: None if x is None else torch.arange(x.size(1)) < torch.tensor([[x.size(1)], [2], [4]])  # noqa: E731
    return replace(batch, mask=mask(batch.inputs), source_mask=mask(batch.source))


@pytest.mark.parametrize("few", [0, 256], ids=["many rows", "few rows"])
@pytest.mark.parametrize("name", sorted(PRESETS))
@torch.no_grad()
def test_packed_is_plain(name: str, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "FEW_ROWS", {1: few, 2: few})
    c = tiny(name)
    network = network_of(c)
    fast, batch = pack(network), example(c)
    for one in (batch, padded(batch)):
        close(fast(one).logits, network(one).logits)
    if batch.targets is not None:
        close(objective(c)(fast(batch), batch).sum, objective(c)(network(batch), batch).sum)


@pytest.mark.parametrize("name", [n for n in sorted(PRESETS) if PRESETS[n].family != "encoder"])
@torch.no_grad()
def test_packed_steps_are_plain_steps(name: str) -> None:
    """Token by token and in chunks, with the state chosen anew in between as a beam does."""
    c = tiny(name)
    network, batch = network_of(c), padded(example(c))
    fast, ids = pack(network), batch.inputs
    start = Batch(source=batch.source, source_mask=batch.source_mask, images=batch.images)
    plain_state, fast_state = network.start(start), fast.start(start)
    rows = torch.tensor([2, 0, 0])
    for chunk in ids.split([3, 1, 1, ids.size(1) - 5], 1):
        a, plain_state = network.step(chunk, plain_state)
        b, fast_state = fast.step(chunk, fast_state)
        close(fast.head(b), network.head(a))
        plain_state, fast_state = plain_state.select(rows), fast_state.select(rows)


@torch.no_grad()
def test_the_source_is_projected_once() -> None:
    c = tiny("transformer-base")
    fast, batch = pack(network_of(c)), example(c)
    _, first = fast.step(batch.inputs[:, :1], fast.start(batch))
    _, second = fast.step(batch.inputs[:, 1:2], first)
    assert all(a["memory_heads"] is b["memory_heads"] for a, b in zip(first.layers, second.layers, strict=True))


def test_nothing_plain_is_left_and_the_plain_network_is_untouched() -> None:
    c = tiny("transformer-base")
    network = network_of(c).train()
    before = {name: p.clone() for name, p in network.named_parameters()}
    for tap in (module for module in network.modules() if isinstance(module, Tap)):
        tap.register_forward_hook(lambda *_: pytest.fail("somebody listens to the plain network"))
    fast = pack(network)
    kinds = {type(module) for module in fast.modules()}
    assert {PackedAttention, PackedLinear, Tap} <= kinds and not kinds & {Attention, nn.Linear}
    assert not any(module.training for module in fast.modules()) and all(
        module.training for module in network.modules()
    )
    out = fast(example(c)).logits
    assert not out.requires_grad  # no graph is built, even outside of no_grad
    assert all(p.requires_grad and torch.equal(p, before[name]) for name, p in network.named_parameters())


def test_tensors_are_shared_not_copied() -> None:
    """Tied stays tied, one block used by many layers stays one, and word vectors are not doubled."""
    network = network_of(tiny("albert-base"))
    fast = pack(network)
    assert fast.embed.tokens.weight.data_ptr() == network.embed.tokens.weight.data_ptr()
    assert fast.stack.blocks[0] is fast.stack.blocks[1]


def test_one_product_where_there_were_three() -> None:
    c = tiny("llama3-8b")
    attention = pack(network_of(c)).stack.blocks[0].attention.layer
    assert attention.query_key_value.shape == ((c.n_heads + 2 * c.kv_heads) * c.head_width, c.d_model)


def test_other_numbers_take_the_plain_product() -> None:
    network = network_of(tiny("gpt2")).double()
    batch = example(tiny("gpt2"))
    fast = pack(network)
    assert fast.stack.blocks[0].attention.layer.output.blocks is None
    torch.testing.assert_close(fast(batch).logits, network(batch).logits.detach())


def test_the_allocator_can_be_asked_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    assert keep_freed_memory() in (True, False)
    monkeypatch.setattr("sys.platform", "darwin")
    assert keep_freed_memory() is False
