"""A packed network answers as the plain one does, with a compiler and without: every preset, padding, few and many rows,
cached steps."""

import platform
import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from conftest import needs_compiler
from torch import Tensor, nn

from qkv.batch import Batch
from qkv.check import example
from qkv.config import ModelConfig
from qkv.engine import linear as engine
from qkv.engine import native
from qkv.engine.linear import PackedLinear
from qkv.engine.native_stack import NativeStack
from qkv.engine.pack import PackedAttention, pack
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


def without_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "library", lambda: None)


@pytest.mark.parametrize("how", ["native", "few rows", "many rows"])
@pytest.mark.parametrize("name", sorted(PRESETS))
@torch.no_grad()
def test_packed_is_plain(name: str, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if how != "native":
        without_compiler(monkeypatch)
        few = 256 if how == "few rows" else 0
        monkeypatch.setattr(engine, "FEW_ROWS", {1: few, 2: few})
    c = tiny(name)
    network = network_of(c)
    fast, batch = pack(network), example(c)
    for one in (batch, padded(batch)):
        close(fast(one).logits, network(one).logits)
    if batch.targets is not None:
        close(objective(c)(fast(batch), batch).sum, objective(c)(network(batch), batch).sum)


@pytest.mark.parametrize("how", ["native", "torch"])
@pytest.mark.parametrize("name", [n for n in sorted(PRESETS) if PRESETS[n].family != "encoder"])
@torch.no_grad()
def test_packed_steps_are_plain_steps(name: str, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Token by token and in chunks, with the state chosen anew in between as a beam does."""
    if how == "torch":
        without_compiler(monkeypatch)
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
        close(fast.head.log_probs(b), network.head.log_probs(a))
        plain_state, fast_state = plain_state.select(rows), fast_state.select(rows)


@torch.no_grad()
@needs_compiler
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


# --- the kernels


@needs_compiler
@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("outputs", [1, 15, 16, 64, 130])
@pytest.mark.parametrize("inputs", [1, 40, 600, 1100])
@torch.no_grad()
def test_a_product_is_right_and_the_same_for_a_row_alone(inputs: int, outputs: int) -> None:
    torch.manual_seed(0)
    weight, bias, x = torch.randn(outputs, inputs) / inputs**0.5, torch.randn(outputs), torch.randn(200, inputs)
    product, exact = PackedLinear(weight, bias), F.linear(x.double(), weight.double(), bias.double())
    for rows in (1, 2, 5, 6, 7, 13, 200):
        y = product(x[:rows])
        close(y, exact[:rows].float())
        assert torch.equal(y[:1], product(x[:1]))
    close(PackedLinear(weight, None)(x), (exact - bias).float())
    assert product(x[:0]).shape == (0, outputs)


@needs_compiler
@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("width", [1, 7, 8, 9, 5000])
def test_log_probabilities(width: int) -> None:
    x = torch.randn(3, width) * torch.tensor([[1.0], [30.0], [0.0]])
    x[0, width // 2] = -torch.inf if width > 1 else 0.0
    y = x.clone()
    native.library().log_softmax(y.data_ptr(), 3, width, torch.get_num_threads())
    torch.testing.assert_close(y.double(), x.double().log_softmax(-1), atol=1e-5, rtol=1e-6)


VARIANTS: list[dict[str, Any]] = [
    {"feedforward": "gelu", "norm_order": "pre", "norm": "rms"},
    {"feedforward": "silu", "n_kv_heads": 1, "attention_bias": "none", "ffn_bias": False},
    {"feedforward": "gelu-tanh", "d_head": 5, "norm_order": "pre", "final_norm": False},
    {"score": "dot", "share_layers": True},
    {"feedforward": "relu", "n_kv_heads": 2},  # of four: neighbouring heads share one
]


@needs_compiler
@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: " ".join(map(str, v.values())))
@pytest.mark.parametrize("name", ["transformer-base", "gpt2"])
@torch.no_grad()
def test_native_steps_with_padding_anywhere(name: str, variant: dict[str, Any]) -> None:
    """Rows that begin with padding, or have some in the middle, and sources with padding."""
    c = tiny(name).model_copy(update=variant)
    network, batch = network_of(c), padded(example(c))
    fast, ids = pack(network), batch.inputs
    assert isinstance(fast.decoder if name == "transformer-base" else fast.stack, NativeStack)
    mask = torch.arange(ids.size(1)) >= torch.tensor([[0], [2], [1]])
    mask[2, 4] = False
    plain_state, fast_state = network.start(batch), fast.start(batch)
    for at in ([0, 1, 2, 3], [4], [5]):
        a, plain_state = network.step(ids[:, at], plain_state, mask[:, at])
        b, fast_state = fast.step(ids[:, at], fast_state, mask[:, at])
        close(b[mask[:, at]], a[mask[:, at]])


@needs_compiler
@pytest.mark.usefixtures("threads")
@torch.no_grad()
def test_a_row_gets_the_same_bits_in_any_batch() -> None:
    c = tiny("transformer-base")
    fast, batch = pack(network_of(c)), padded(example(c))
    together = fast.start(batch)
    alone = together.select(torch.tensor([1]))
    for t in range(4):
        a, together = fast.step(batch.inputs[:, t : t + 1], together)
        b, alone = fast.step(batch.inputs[1:2, t : t + 1], alone)
        assert torch.equal(a[1:2], b)


@needs_compiler
@pytest.mark.usefixtures("threads")
@torch.no_grad()
def test_states_can_be_used_again() -> None:
    """What one continuation writes into the shared store is not seen by another one."""
    c = tiny("transformer-base")
    network, batch = network_of(c), example(c)
    fast, ids = pack(network), batch.inputs
    _, state = fast.step(ids[:, :2], fast.start(batch))
    first, kept = fast.step(ids[:, 2:3], state)
    other, _ = fast.step(ids[:, 3:4], state)
    again, _ = fast.step(ids[:, 2:3], state)
    assert torch.equal(first, again) and not torch.equal(first, other)
    _, plain = network.step(ids[:, :2], network.start(batch))
    _, plain = network.step(ids[:, 2:3], plain)
    close(fast.step(ids[:, 4:5], kept)[0], network.step(ids[:, 4:5], plain)[0])


@needs_compiler
@torch.no_grad()
def test_a_beam_that_moves_copies_nothing() -> None:
    c = tiny("transformer-base")
    fast, batch = pack(network_of(c)), example(c)
    _, state = fast.step(batch.inputs[:, :1], fast.start(batch))
    store = state.layers[0]["cache"].buffer
    for t in range(1, 6):
        state = state.move(torch.tensor([2, 2, 0]))
        _, state = fast.step(batch.inputs[:, t : t + 1], state)
        assert state.layers[0]["cache"].buffer is store
    assert store.used == 6


@pytest.mark.parametrize("name", ["gpt2", "llama-7b", "llama2-70b", "bloom-560m", "t5-small"])
@torch.no_grad()
def test_a_cache_is_not_copied_for_every_token(name: str) -> None:
    """Learned, rotary, ALiBi and T5 positions, grouped heads: one buffer until it is full, then a larger one."""
    c = tiny(name)
    fast, batch = pack(network_of(c)), example(c)
    state, buffers = fast.start(batch), []
    for _ in range(40):
        _, state = fast.step(batch.inputs[:, :1], state)
        buffers.append(state.layers[0]["cache"].buffer.vectors.data_ptr())
    assert len(set(buffers)) <= 3
    half = state.first(20) if state.memory is None else None
    if half is not None:  # what follows the first tokens does not touch what others remember
        fast.step(batch.inputs[:, 1:2], half)
        close(fast.step(batch.inputs[:, :1], state)[0], fast.step(batch.inputs[:, :1], state)[0])


@needs_compiler
@torch.no_grad()
def test_a_score_that_is_no_number_is_not_dropped(threads: int) -> None:
    c = tiny("transformer-base")
    fast, batch = pack(network_of(c)), example(c)
    _, state = fast.step(batch.inputs[:, :3], fast.start(batch))
    state.layers[0]["cache"].buffer.vectors[0, 1, 0, 0, 0] = torch.nan  # the first key of row 1
    hidden, _ = fast.step(batch.inputs[:, 3:4], state)
    assert hidden[1].isnan().all() and not hidden[[0, 2]].isnan().any()
    assert fast.head.log_probs(hidden[:, -1])[1].isnan().all()


def test_other_numbers_take_the_plain_product() -> None:
    network = network_of(tiny("gpt2")).double()
    batch = example(tiny("gpt2"))
    fast = pack(network)
    assert fast.stack.blocks[0].attention.layer.output.blocks is None
    torch.testing.assert_close(fast(batch).logits, network(batch).logits.detach())


def test_glibc_keeps_freed_memory_and_elsewhere_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 32 MiB that are freed and asked for again come to need no new pages of the system."""
    assert keep_freed_memory() is (platform.libc_ver()[0] == "glibc")
    if keep_freed_memory():
        pages = []
        for _ in range(40):
            torch.ones(2**23)
            pages.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
        assert pages[-1] - pages[-11] < 10_000  # of 4 KiB; all anew they would be 81,920
    monkeypatch.setattr("sys.platform", "darwin")
    assert keep_freed_memory() is False


ARENAS = """
import ctypes, sys, threading
from qkv.memory import keep_freed_memory
keep_freed_memory()
together = threading.Barrier(9)
def work():
    together.wait()
    some = [bytearray(2**20) for _ in range(4)]
    together.wait()
threads = [threading.Thread(target=work) for _ in range(8)]
[one.start() for one in threads]
together.wait()
together.wait()
libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
file = libc.fopen(sys.argv[1].encode(), b"w")
libc.malloc_info(0, ctypes.c_void_p(file))
libc.fclose(ctypes.c_void_p(file))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has arenas")
def test_threads_share_what_they_freed(tmp_path: Path) -> None:
    """One arena for all, not one for each thread that keeps what it freed from the others."""
    subprocess.run([sys.executable, "-c", ARENAS, str(tmp_path / "info.xml")], check=True)
    assert (tmp_path / "info.xml").read_text().count("<heap nr=") == 1
