"""int8 weights: close to float32, the same with and without compiled kernels and in any batch, stored and measured."""

import json
from pathlib import Path

import pytest
import torch
from conftest import needs_compiler
from safetensors.torch import load_file, save_file
from test_engine import network_of, padded
from torch import nn
from typer.testing import CliRunner

import qkv
from qkv import quantization
from qkv.batch import Batch
from qkv.check import example
from qkv.cli import app
from qkv.convert.manifest import seal
from qkv.engine import native
from qkv.engine.linear import QuantizedEmbedding, QuantizedLinear
from qkv.engine.native_stack import NativeStack
from qkv.engine.pack import pack
from qkv.engine.quantize import has_integers, quantize
from qkv.errors import FileError, QkvError
from qkv.presets import PRESETS, tiny

TEXTS = ["I ate an apple.", "The old woman sees a small dog.", "She sleeps."]


def cosine(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(torch.cosine_similarity(a.flatten().double(), b.flatten().double(), dim=0))


@pytest.mark.parametrize("name", sorted(PRESETS))
@torch.no_grad()
def test_every_preset_is_close_to_float32(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With padding and without; and what the kernels compute is what torch computes with the same integers."""
    c = tiny(name)
    network, batch = network_of(c), example(c)
    rounded = quantize(network)
    fast = pack(rounded)
    for one in (batch, padded(batch)):
        expected, found = network(one).hidden, fast(one).hidden
        real = (
            torch.ones_like(expected[..., 0], dtype=torch.bool) if one.mask is None else one.mask[:, : expected.size(1)]
        )
        assert cosine(found[real], expected[real]) > 0.98
    with_kernels = fast(batch).hidden
    monkeypatch.setattr(native, "library", lambda: None)
    assert cosine(pack(rounded)(batch).hidden, with_kernels) > 0.9999


@needs_compiler
@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("name", ["transformer-base", "gpt2", "llama2-70b", "t5-small", "bloom-560m", "gpt3-175b"])
@torch.no_grad()
def test_steps_give_the_same_bits_in_any_batch(name: str) -> None:
    c = tiny(name)
    fast, batch = pack(network_of(c), "int8"), padded(example(c))
    stack = fast.decoder if c.family == "encoder-decoder" else fast.stack
    assert isinstance(stack, NativeStack) and has_integers(stack)
    together = fast.start(Batch(source=batch.source, source_mask=batch.source_mask))
    alone = together.select(torch.tensor([1])) if together.memory is not None else together
    for t in range(5):
        a, together = fast.step(batch.inputs[:, t : t + 1], together)
        b, alone = fast.step(batch.inputs[1:2, t : t + 1], alone)
        assert torch.equal(a[1:2], b)


@torch.no_grad()
def test_matrices_are_integers_once_and_the_plain_network_is_unchanged() -> None:
    """Embedding and vocabulary share one matrix; packing makes no copy of it, nor of projections that are joined."""
    network = network_of(
        tiny("llama3-8b").changed(tie="output", d_model=64, n_heads=4, n_kv_heads=2, d_head=16, d_ff=96)
    )
    before = {name: weight.clone() for name, weight in network.named_parameters()}
    rounded = quantize(network)
    assert not any(type(module) is nn.Linear for module in rounded.modules())
    assert isinstance(rounded.embed.tokens, QuantizedEmbedding)
    assert rounded.embed.tokens.matrix.panels.data_ptr() == rounded.head.linear.panels.data_ptr()
    attention, inner = rounded.stack.blocks[0].attention.layer, rounded.stack.blocks[0].feedforward.layer
    fast = pack(rounded)
    joined = fast.stack.blocks[0].attention.layer.query_key_value, fast.stack.blocks[0].feedforward.layer.first
    assert [layer.panels.data_ptr() for layer in joined] == [
        layer.panels.data_ptr() for layer in (attention.query, inner.gate)
    ]
    assert all(torch.equal(weight, before[name]) for name, weight in network.named_parameters())
    ids = torch.tensor([[3, 0, 59]])
    assert torch.equal(rounded.embed.tokens(ids), rounded.embed.tokens.weight[ids])


def test_a_weight_is_wrong_by_half_a_step_at_most() -> None:
    weight = torch.randn(40, 30)
    layer = QuantizedLinear.of_float(weight)
    step = weight.abs().amax(1, keepdim=True) / 127
    assert ((layer.weight - weight).abs() <= step * 0.5001).all()
    assert torch.equal(layer.rows(torch.tensor([7, 39])), layer.weight[[7, 39]])


def test_four_bits_come_back() -> None:
    whole, scale = torch.randint(0, 16, (20, 64), dtype=torch.uint8), torch.rand(20, 2)
    layer = QuantizedLinear.of_int4(whole, scale)
    assert torch.equal(layer.integers() + 8, whole.to(torch.int8))
    expected = (whole.float() - 8).unflatten(1, (2, 32)) * scale[..., None]
    assert torch.equal(layer.weight, expected.flatten(1)) and torch.equal(
        layer.rows(torch.tensor([3])), layer.weight[[3]]
    )


@needs_compiler
def test_a_number_that_is_none_is_not_rounded_away() -> None:
    layer, x = QuantizedLinear.of_float(torch.randn(20, 64)), torch.randn(3, 64)
    x[1, 5], x[2, 9] = torch.nan, torch.inf
    y = layer(x)
    assert y[0].isfinite().all() and y[1:].isnan().all()


# --- folders


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("quantised") / "example"
    gate = qkv.quantize("example", folder)
    assert gate.passed
    return folder


def test_a_stored_model_translates_as_before(stored: Path) -> None:
    model = qkv.load(stored)
    expected = qkv.load("example", precision="int8").translate(TEXTS)
    assert has_integers(model.network) and model.translate(TEXTS) == expected == qkv.load("example").translate(TEXTS)
    assert model.translate(TEXTS, fast=False) == expected
    plain = qkv.load(stored, precision="float32")
    assert not has_integers(plain.network) and plain.translate(TEXTS) == expected


def test_a_quarter_of_the_size(stored: Path) -> None:
    tensors = load_file(stored / "model.safetensors")
    count = sum(weight.numel() for weight in qkv.load("example").network.parameters())
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    assert size < 0.3 * 4 * count
    assert {tensor.dtype for name, tensor in tensors.items() if name + "_scale" in tensors} == {torch.int8}


def test_saving_again_keeps_the_bits(stored: Path, tmp_path: Path) -> None:
    qkv.load(stored).save(tmp_path / "again")
    a, b = (load_file(folder / "model.safetensors") for folder in (stored, tmp_path / "again"))
    assert a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_the_gate_is_written_and_refuses(tmp_path: Path, stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = json.loads((stored / "config.json").read_text())["quantization"]["gate"]
    assert gate["passed"] and gate["metric"] == "cosine of the last vectors" and gate["int8"] > 0.99
    monkeypatch.setattr(quantization, "COSINE", 1.1)
    with pytest.raises(QkvError, match=r"beyond the limit of 1\.1: no folder was written"):
        qkv.quantize("example", tmp_path / "no")
    assert not (tmp_path / "no").exists()
    assert not qkv.quantize("example", tmp_path / "forced", force=True).passed
    assert not json.loads((tmp_path / "forced" / "config.json").read_text())["quantization"]["gate"]["passed"]
    with pytest.raises(QkvError, match="already quantised"):
        qkv.quantize(stored, tmp_path / "twice")


def test_bleu_is_measured_on_files(tmp_path: Path) -> None:
    (tmp_path / "test.en").write_text("\n".join(TEXTS) + "\n")
    (tmp_path / "test.de").write_text(
        "Ich habe einen Apfel gegessen.\nDie alte Frau sieht einen kleinen Hund.\nSie schläft.\n"
    )
    gate = qkv.quantize("example", tmp_path / "out", [tmp_path / "test.en", tmp_path / "test.de"])
    assert gate.metric == "BLEU" and gate.passed and gate.float32 > 50


def test_damaged_scales_are_refused(stored: Path, tmp_path: Path) -> None:
    tensors = load_file(stored / "model.safetensors")
    name = next(name for name in tensors if name.endswith("_scale"))
    for number, (change, words) in enumerate(
        [
            ({name: tensors[name] * torch.inf}, "finite scales"),
            ({name: tensors[name][:-1]}, r"expected \(out,\)"),
            ({name.removesuffix("_scale"): tensors[name.removesuffix("_scale")].float()}, "must be int8"),
        ]
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        for file in stored.iterdir():
            (folder / file.name).write_bytes(file.read_bytes())
        save_file(tensors | change, folder / "model.safetensors")
        seal(folder, {file.name for file in stored.iterdir()} - {"README.md", "COMPLETE"})
        with pytest.raises(FileError, match=words):
            qkv.load(folder)


def test_quantised_models_are_inspected_but_not_exported(stored: Path, tmp_path: Path) -> None:
    model = qkv.load(stored)
    weights = model.look("I ate an apple.").attention()
    assert weights is not None
    with pytest.raises(QkvError, match="quantised"):
        model.export(tmp_path / "hf")
    done = CliRunner().invoke(app, ["export", str(stored), str(tmp_path / "plain"), "--to", "qkv"])
    assert done.exit_code == 0 and not has_integers(qkv.load(tmp_path / "plain").network)


@pytest.mark.parametrize("command", ["translate", "embed"])
def test_verbs_take_a_precision(command: str, tmp_path: Path) -> None:
    (tmp_path / "texts").write_text("I ate an apple.\n")
    more = ["--out", str(tmp_path / "v.npy")] if command == "embed" else []
    done = CliRunner().invoke(app, [command, "example", str(tmp_path / "texts"), *more, "--precision", "int8"])
    assert done.exit_code == 0, done.output
    wrong = CliRunner().invoke(app, [command, "example", str(tmp_path / "texts"), *more, "--precision", "int3"])
    assert wrong.exit_code == 2


def test_an_unknown_precision_is_an_error() -> None:
    with pytest.raises(QkvError, match="precision is one of float32, int8, given 'int4'"):
        qkv.load("example", precision="int4")


# --- edges


@needs_compiler
@pytest.mark.parametrize("precision", ["float32", "int8"])
@pytest.mark.parametrize("name", ["gpt2", "llama2-70b", "bloom-560m"])
@torch.no_grad()
def test_a_prompt_gives_the_same_bits_alone_and_beside_longer_ones(name: str, precision: str) -> None:
    """Prompts on both sides of the length from which queries are computed in blocks, padded on the left."""
    c = tiny(name).changed(d_model=64, n_heads=4, n_kv_heads=2 if name == "llama2-70b" else 4, d_head=16, max_length=64)
    fast, ids = pack(network_of(c), precision), torch.randint(3, c.vocab_size, (3, 30))
    lengths = [30, 17, 9]
    mask = torch.arange(30) >= torch.tensor([[30 - n] for n in lengths])
    together, _ = fast.step(ids, fast.start(Batch(inputs=ids)), mask)
    for row, n in enumerate(lengths):
        alone, _ = fast.step(ids[row : row + 1, 30 - n :], fast.start(Batch(inputs=ids)))
        assert torch.equal(alone[0], together[row, 30 - n :])


@needs_compiler
@pytest.mark.parametrize("tokens", [14, 16, 30, 70])
@torch.no_grad()
def test_long_prompts_with_padding_anywhere(tokens: int) -> None:
    """Packed is plain, for the prompts and for the token after them, on both sides of the length from which queries form blocks."""
    network = network_of(tiny("gpt2").changed(d_model=64, n_heads=4, max_length=128))
    fast, ids = pack(network), torch.randint(60, (4, tokens))
    mask = torch.ones(4, tokens, dtype=torch.bool)
    mask[1, : tokens // 3], mask[2, tokens // 2 :], mask[3, 5:9] = False, False, False
    states = []
    for one in (network, fast):
        hidden, state = one.step(ids, one.start(Batch(inputs=ids)), mask)
        states.append((hidden[mask], one.step(ids[:, :1], state)[0]))
    for a, b in zip(*states, strict=True):
        torch.testing.assert_close(b, a, atol=1e-5, rtol=1e-5)


@needs_compiler
@torch.no_grad()
def test_a_cache_whose_rows_moved_takes_many_tokens() -> None:
    """As where prompts share a beginning: one row is read, selected several times, and continued by long texts."""
    network = network_of(tiny("gpt2").changed(d_model=64, n_heads=4, max_length=64))
    fast, ids = pack(network), torch.randint(60, (1, 5))
    rows, rest = torch.tensor([0, 0, 0]), torch.randint(60, (3, 20))
    results = []
    for one in (network, fast):
        _, state = one.step(ids, one.start(Batch(inputs=ids)))
        results.append(one.step(rest, state.select(rows))[0])
    torch.testing.assert_close(results[1], results[0], atol=1e-5, rtol=1e-5)


@needs_compiler
@torch.no_grad()
def test_parallel_blocks_without_norms() -> None:
    network, batch = network_of(tiny("gpt2").changed(norm="none", norm_order="parallel")), example(tiny("gpt2"))
    torch.testing.assert_close(pack(network)(batch).hidden, network(batch).hidden, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@torch.no_grad()
def test_other_types_do_not_reach_the_kernels(dtype: torch.dtype) -> None:
    c = tiny("gpt2")
    network, batch = network_of(c).to(dtype), example(c)
    fast = pack(network)
    a, b = network(batch).hidden, fast(batch).hidden
    torch.testing.assert_close(b, a, atol=0.1, rtol=0.1)
    torch.testing.assert_close(fast.head.log_probs(b), network.head.log_probs(b), atol=0.2, rtol=0.1)
    rounded = quantize(network_of(c)).to(dtype)
    assert cosine(pack(rounded)(batch).hidden, network_of(c)(batch).hidden) > 0.98


@needs_compiler
@torch.no_grad()
def test_a_packed_network_is_independent_of_the_quantised_one() -> None:
    rounded, batch = quantize(network_of(tiny("gpt2"))), example(tiny("gpt2"))
    fast = pack(rounded)
    before = fast(batch).hidden
    rounded.double()
    assert torch.equal(fast(batch).hidden, before)


@needs_compiler
@torch.no_grad()
def test_no_rows_give_no_rows() -> None:
    c = tiny("transformer-base")
    fast = pack(network_of(c), "int8")
    nothing = Batch(source=torch.zeros(0, 5, dtype=torch.long), inputs=torch.zeros(0, 1, dtype=torch.long))
    hidden, _ = fast.step(nothing.inputs, fast.start(nothing))
    assert hidden.shape == (0, 1, c.d_model)


def test_groups_that_the_kernels_do_not_support_are_refused() -> None:
    whole = torch.zeros(16, 24, dtype=torch.int8)
    assert QuantizedLinear.of_int8(whole, torch.ones(16, 3)).group == 8
    with pytest.raises(QkvError, match="groups of 8, 16, 24"):
        QuantizedLinear.of_int8(whole, torch.ones(16, 2))


def test_weights_are_counted(stored: Path) -> None:
    sizes = [repr(qkv.load(path)).split(",")[1] for path in ("example", stored)]
    assert sizes[0] == sizes[1]
