"""Initial weights: fresh networks start with the scores, the stream and the logits that their papers intend."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from qkv.batch import Batch
from qkv.config import ModelConfig
from qkv.models.build import build
from qkv.parts.attention import Attention
from qkv.parts.scores import Dot
from qkv.parts.tap import Tap
from qkv.presets import PRESETS, preset

IDS = torch.randint(5, 1000, (2, 64), generator=torch.Generator().manual_seed(0))


def small(name: str, **changes: Any) -> ModelConfig:
    """A preset at width 256 with 4 layers and 1,000 words; what initialises it is as it was."""
    c = preset(name)
    sizes: dict[str, Any] = {
        "vocab_size": 1000, "d_model": 256,
        "n_layers": min(c.n_layers, 4), "n_heads": min(c.n_heads, 4), "d_head": c.d_head and 64, "n_kv_heads": c.n_kv_heads and 1,
        "d_ff": min(c.d_ff, 1024), "max_length": min(c.max_length, 64),
        "dropout": 0.0, "attention_dropout": 0.0, "ffn_dropout": 0.0, "pad_id": 0, "bos_id": 1, "eos_id": 2, "start_id": None,
    }  # fmt: skip
    return c.changed(**(sizes | changes))


def fresh(c: ModelConfig) -> tuple[nn.Module, Tensor, dict[str, list[Tensor]]]:
    """A fresh network, its logits for random words, and what each of its taps saw, in the order of the pass."""
    torch.manual_seed(0)
    network, seen = build(c).eval(), defaultdict(list)
    for name, module in network.named_modules():
        if isinstance(module, Tap):
            module.register_forward_hook(lambda _m, _x, y, kind=name.rpartition(".")[2]: seen[kind].append(y))
    source = {"source": IDS} if c.family == "encoder-decoder" else {}
    with torch.no_grad():
        return network, network(Batch(IDS, **source)).logits, seen


def scores(network: nn.Module, seen: dict[str, list[Tensor]]) -> Tensor:
    """Of the first layer's attention: (B, H, T, S)."""
    layer = next(module for module in network.modules() if isinstance(module, Attention))
    score = layer.mixer.score
    assert isinstance(score, Dot)
    return score(seen["tap_query"][0], seen["tap_key"][0])


T5S = [name for name in PRESETS if name.startswith("t5-")]


@pytest.mark.parametrize("name", T5S)
def test_t5_starts_with_scores_of_unit_size(name: str) -> None:
    """Without its smaller queries an unscaled dot product of width 64 has standard deviation 8, and one word takes all."""
    network, logits, seen = fresh(small(name))
    found = scores(network, seen)
    assert found.std().item() == pytest.approx(1.0, rel=0.1)
    assert 0.08 < found.softmax(-1).amax(-1).mean() < 0.14
    assert logits.std().item() == pytest.approx(1.0, rel=0.1)


def test_t5_starts_as_t5() -> None:
    """q: (d_model d_kv)^-0.5; k, v: d_model^-0.5; o: (heads d_kv)^-0.5; wi: d_model^-0.5; wo: d_ff^-0.5; embedding: 1."""
    c = preset("t5-small").changed(vocab_size=1000, n_layers=1, n_heads=6)
    network: Any = build(c)
    block = network.encoder.blocks[0]
    attention, feedforward = block.attention.layer, block.feedforward.layer
    expected = {
        attention.query: (512 * 64) ** -0.5, attention.key: 512**-0.5, attention.value: 512**-0.5,
        attention.output: (6 * 64) ** -0.5, feedforward.up: 512**-0.5, feedforward.down: 2048**-0.5,
        network.source.tokens: 1.0,
    }  # fmt: skip
    for module, std in expected.items():
        assert module.weight.std().item() == pytest.approx(std, rel=0.02)
    cross = network.decoder.blocks[0].cross.layer
    assert cross.query.weight.std().item() == pytest.approx((512 * 64) ** -0.5, rel=0.02)


@pytest.mark.parametrize("name", [name for name in PRESETS if name.startswith("palm-")])
def test_palm_starts_with_logits_of_unit_size(name: str) -> None:
    """Word vectors of size 1 and logits scaled by d_model^-0.5; with small word vectors they would be 0.06 here."""
    network, logits, seen = fresh(small(name))
    assert logits.std().item() == pytest.approx(1.0, rel=0.1)
    assert scores(network, seen).std().item() == pytest.approx(1.0, rel=0.1)
    assert network.embed.tokens.weight.std().item() == pytest.approx(1.0, rel=0.02)  # type: ignore[union-attr]
    up = network.stack.blocks[0].feedforward.up.weight  # type: ignore[union-attr, index]
    assert up.std().item() == pytest.approx(256**-0.5, rel=0.02)


RESIDUAL = {name: c for name, c in PRESETS.items() if c.init_residual}


def test_which_presets_scale_their_residual_outputs() -> None:
    assert {"gpt2", "gpt2-xl", "gpt3-175b", "mamba-130m", "gla-340m", "bloom-560m"} <= RESIDUAL.keys()
    assert not {"gpt", "transformer-base", "bert-base", "llama-7b", "t5-small", "palm-8b"} & RESIDUAL.keys()


@pytest.mark.parametrize("name", ["gpt2", "gpt3-small", "mamba-130m"])
def test_the_stream_does_not_grow_with_depth(name: str) -> None:
    """With outputs divided by sqrt(N), what N sublayers add has the size of what one adds; without, it grows with sqrt(N)."""
    added = {}
    for n_layers in (2, 32):
        for scaled in (True, False):
            _, _, seen = fresh(small(name, d_model=64, n_heads=4, d_ff=256, n_layers=n_layers, init_residual=scaled))
            added[n_layers, scaled] = sum(seen["tap_out"]).std().item()  # type: ignore[union-attr]
    assert added[32, True] / added[2, True] == pytest.approx(1.0, rel=0.35)
    assert added[32, False] / added[2, False] > 2.5


@pytest.mark.parametrize(("name", "sublayers"), [("gpt2", 2), ("gla-340m", 2), ("mamba-130m", 1)])
def test_residual_outputs_start_smaller(name: str, sublayers: int) -> None:
    """By sqrt(2 n_layers) where a block has attention and a feed-forward layer, by sqrt(n_layers) in Mamba."""
    c = small(name, n_layers=8)
    scaled, plain = build(c), build(c.changed(init_residual=False))
    changed = []
    for (key, one), other in zip(scaled.named_parameters(), plain.parameters(), strict=True):
        if one.std() / other.std() < 0.9:
            changed.append(key)
            assert (one.std() / other.std()).item() == pytest.approx((8 * sublayers) ** -0.5, rel=0.05)
    assert len(changed) == 8 * sublayers and all(key.endswith(("output.weight", "down.weight")) for key in changed)


def test_mamba_starts_as_its_reference_code() -> None:
    """Maps uniform within 1 / sqrt(in), words of 0.02, output maps divided by sqrt(n_layers)."""
    network: Any = build(small("mamba-130m", n_layers=9))
    layer = network.stack.blocks[4].attention.layer
    for module, limit in ((layer.enter, 256**-0.5), (layer.select, 512**-0.5), (layer.output, 512**-0.5 / 3)):
        assert module.weight.abs().max().item() == pytest.approx(limit, rel=0.01)
    assert network.embed.tokens.weight.std().item() == pytest.approx(0.02, rel=0.02)


def test_blocks_that_are_one_count_as_often_as_they_are_used() -> None:
    c = small("albert-base", n_layers=8, init_std=None, init_residual=True)
    shared, plain = (build(c.changed(init_residual=scaled)) for scaled in (True, False))
    one, other = (network.stack.blocks[0].attention.layer.output.weight.std() for network in (shared, plain))  # type: ignore[union-attr, index]
    assert (one / other).item() == pytest.approx(16**-0.5, rel=0.05)


def test_init_std_is_that_of_every_matrix() -> None:
    """Also of output words that are not tied, and whatever init says."""
    network: Any = build(small("llama-7b", init_std=0.05, init="lecun"))
    matrices = {name: weight for name, weight in network.named_parameters() if weight.dim() == 2}
    assert "head.weight" in matrices
    for name, weight in matrices.items():
        assert weight.std().item() == pytest.approx(0.05, rel=0.03), name


def test_word_vectors_can_have_a_size_of_their_own() -> None:
    network: Any = build(small("gpt2", init_std=0.05, init_embed_std=0.3, init_residual=False))
    assert network.embed.tokens.weight.std().item() == pytest.approx(0.3, rel=0.03)
    assert network.stack.blocks[0].feedforward.layer.up.weight.std().item() == pytest.approx(0.05, rel=0.03)


def test_a_recurrent_network_has_no_residual_stream_to_scale() -> None:
    plain = ModelConfig(family="decoder", vocab_size=9, d_model=8, n_layers=2, recurrent="gru", position="none")
    networks = []
    for c in (plain, plain.changed(init_residual=True)):
        torch.manual_seed(0)
        networks.append(build(c).state_dict())
    assert all(torch.equal(weight, networks[1][name]) for name, weight in networks[0].items())


WORDS = [
    name
    for name, c in PRESETS.items()
    if c.mixer == ("softmax",) and c.vocab_size and not c.recurrent and c.head != "replaced"
]
FAMILIES = {repr(small(name)): name for name in WORDS}  # sizes of one family are the same when small


@pytest.mark.parametrize("name", FAMILIES.values())
def test_no_fresh_network_is_sure_of_anything(name: str) -> None:
    """Neither of where to look nor of the word: scores and logits start at about 1 or below, and logits do not vanish."""
    network, logits, seen = fresh(small(name))
    assert scores(network, seen).std() < 1.5
    assert 0.1 < logits.std() < 2.0
    streams = [x.std().item() for x in seen["tap_stream"]]
    assert max(streams) < 4.0
