"""Whole networks with recurrent stacks: cached = uncached, batch = alone, and a real one, g2p_en's GRU."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from qkv.batch import Batch
from qkv.config import ModelConfig, validate
from qkv.convert.g2p import LETTERS, PHONEMES, read_g2p
from qkv.errors import ConfigError, FileError
from qkv.models.build import build

C, T, S = 8, 6, 5
KINDS = ("elman", "gru", "lstm")


def same(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=1e-10)


# --- whole networks

SIZES = {"vocab_size": 11, "d_model": C, "n_layers": 2, "position": "none", "dropout": 0.0}
TWO = SIZES | {"family": "encoder-decoder", "target_vocab_size": 7}
DECODERS = {
    "seq2seq": TWO | {"reverse_source": True},
    "fewer-layers": TWO | {"n_decoder_layers": 1},
    "more-layers": TWO | {"n_decoder_layers": 3, "bidirectional": True},
    "rnnenc": TWO | {"fixed_context": True},
    "rnnenc-both-ways": TWO | {"fixed_context": True, "bidirectional": True, "n_decoder_layers": 1},
    "rnnsearch": TWO | {"bidirectional": True, "decoder_attention": "additive", "d_embed": 5},
    "luong": TWO | {"decoder_attention": "bilinear", "input_feeding": True},
    "low-rank": TWO | {"decoder_attention": "low-rank", "score_rank": 2},
    "tied": TWO | {"target_vocab_size": 11, "tie": "all", "position": "sinusoidal"},
    "language-model": SIZES | {"family": "decoder", "tie": "output"},
}
writing = pytest.mark.parametrize(
    "config", [pytest.param(c | {"recurrent": k}, id=f"{k}-{n}") for k in KINDS for n, c in DECODERS.items()]
)


def network_and_batch(values: dict) -> tuple[nn.Module, Batch]:
    torch.manual_seed(0)
    network = build(validate(ModelConfig, values)).double().eval()
    ids, mask = (
        torch.randint(7, (3, T)),
        torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0], [0, 0, 0, 1, 1, 1]]).bool(),
    )
    if values["family"] != "encoder-decoder":
        return network, Batch(inputs=ids, mask=mask)
    source_mask = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1], [1, 1, 0, 0, 0]]).bool()
    return network, Batch(inputs=ids, mask=mask, source=torch.randint(11, (3, S)), source_mask=source_mask)


@writing
def test_network_cached_equals_uncached_and_alone(config):
    network, batch = network_and_batch(config)
    logits = network(batch).logits
    assert logits.shape == (3, T, config.get("target_vocab_size", 11))
    state, steps = network.start(batch), []
    for t in range(T):
        hidden, state = network.step(batch.inputs[:, t : t + 1], state, batch.mask[:, t : t + 1])
        steps.append(network.head(hidden))
    same(torch.cat(steps, 1), logits)
    for row in range(3):
        real = batch.mask[row]
        source = None if batch.source is None else batch.source[row][batch.source_mask[row]][None]
        same(network(Batch(inputs=batch.inputs[row][real][None], source=source)).logits[0], logits[row, real])


@writing
def test_network_reads_the_source_and_reaches_every_weight(config):
    network, batch = network_and_batch(config)
    output = network(batch).logits
    output.pow(2).sum().backward()
    assert not [n for n, p in network.named_parameters() if p.grad is None or p.grad.abs().sum() == 0]
    if batch.source is not None:
        other = Batch(
            inputs=batch.inputs, mask=batch.mask, source=(batch.source + 1) % 11, source_mask=batch.source_mask
        )
        changed = (network(other).logits != output).any(-1)  # (B, T)
        assert changed[batch.mask].all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [{}, {"bidirectional": True}, {"reverse_source": True}], ids=str)
def test_encoder_family(kind, options):
    network, batch = network_and_batch(SIZES | options | {"family": "encoder", "head": "tags", "recurrent": kind})
    logits = network(batch).logits
    for row in range(3):
        real = batch.mask[row]
        same(network(Batch(inputs=batch.inputs[row][real][None])).logits[0], logits[row, real])


def test_attention_without_rank_or_source_is_refused():
    with pytest.raises(ConfigError, match="score_rank"):
        validate(ModelConfig, TWO | {"recurrent": "gru", "decoder_attention": "low-rank"})
    with pytest.raises(ConfigError, match="encoder-decoder"):
        validate(ModelConfig, SIZES | {"family": "decoder", "recurrent": "gru", "decoder_attention": "dot"})


# --- a real network: g2p_en's GRU

G2P = Path(os.environ.get("QKV_DATA", Path(__file__).parents[1] / "../shared/data")) / "g2p_en_gru"
needs_g2p = pytest.mark.skipif(
    not (G2P / "checkpoint20.npz").is_file(), reason=f"no g2p_en_gru/checkpoint20.npz in {G2P.parent} (set QKV_DATA)"
)


def pronounce(network: nn.Module, config: ModelConfig, words: list[str]) -> list[str]:
    """Greedy, all words in one batch padded on the left, at most 20 phonemes."""
    longest = max(map(len, words)) + 1
    rows = [[*map(LETTERS.index, word), LETTERS.index("</s>")] for word in words]
    source = torch.tensor([[config.pad_id] * (longest - len(row)) + row for row in rows])
    state = network.start(Batch(source=source, source_mask=source != config.pad_id))
    ids, written = torch.full((len(words), 1), config.first_id), []
    for _ in range(20):
        hidden, state = network.step(ids, state)
        ids = network.head(hidden).argmax(-1)
        written.append(ids)
    ends = [row + [config.eos_id] for row in torch.cat(written, 1).tolist()]
    return [" ".join(PHONEMES[i] for i in row[: row.index(config.eos_id)]) for row in ends]


@needs_g2p
@pytest.mark.parametrize("fast", [True, False])
def test_g2p_pronounces_as_the_original(fast):
    config, weights = read_g2p(G2P / "checkpoint20.npz")
    network = build(config).eval()
    network.load_state_dict(weights)
    network.encoder.fast = network.decoder.fast = fast
    golden = json.loads((G2P / "golden.json").read_text())
    assert golden and dict(zip(golden, pronounce(network, config, list(golden)), strict=True)) == golden


def g2p_arrays(width: int = 4) -> dict[str, np.ndarray]:
    """A small network of the same make."""
    draw = lambda *shape: np.random.default_rng(0).normal(size=shape).astype(np.float32)  # noqa: E731
    cell = lambda side: {  # noqa: E731
        f"{side}_w_ih": draw(3 * width, width), f"{side}_w_hh": draw(3 * width, width),
        f"{side}_b_ih": draw(3 * width), f"{side}_b_hh": draw(3 * width),
    }  # fmt: skip
    outer = {"enc_emb": draw(29, width), "dec_emb": draw(74, width), "fc_w": draw(74, width), "fc_b": draw(74)}
    return outer | cell("enc") | cell("dec")


def test_read_g2p_fills_every_weight(tmp_path):
    arrays = g2p_arrays()
    np.savez(tmp_path / "small.npz", **arrays)
    config, weights = read_g2p(tmp_path / "small.npz")
    network = build(config)
    assert {n: p.shape for n, p in network.named_parameters()} == {n: w.shape for n, w in weights.items()}
    assert torch.equal(weights["decoder.cells.weight_hh_l0"], torch.from_numpy(arrays["dec_w_hh"]))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda a: a.pop("dec_w_hh"), "dec_w_hh is missing"),
        (lambda a: a.update(more=a["fc_b"]), "more is unknown"),
        (lambda a: a.update(enc_b_ih=a["enc_b_ih"][:-1]), "enc_b_ih"),
        (lambda a: a.update(fc_b=a["fc_b"].astype(np.float64)), "fc_b is float64"),
        (lambda a: a.update(g2p_arrays(0)), "expected"),
        (lambda a: a.update(fc_b=np.array([{}] * 74)), "cannot read"),
        (lambda a: a.update(fc_b=np.zeros(20_000_000, np.float32)), "unpacks to"),
    ],
)
def test_read_g2p_refuses_other_files(tmp_path, change, said):
    arrays = g2p_arrays()
    change(arrays)
    np.savez_compressed(tmp_path / "other.npz", **arrays)
    with pytest.raises(FileError, match=said):
        read_g2p(tmp_path / "other.npz")


def test_read_g2p_never_breaks_on_broken_bytes(tmp_path):
    """Cut or overwritten anywhere, the file is refused with a FileError or read as what it still says."""
    path, noise = tmp_path / "broken.npz", np.random.default_rng(0)
    np.savez_compressed(path, **g2p_arrays())
    good, refused = path.read_bytes(), 0
    for attempt in range(300):
        data = bytearray(good)
        at = int(noise.integers(len(data)))
        data[at : at + 4] = b"" if attempt % 3 == 0 else noise.bytes(4)
        path.write_bytes(bytes(data[: at if attempt % 10 == 0 else None]))
        try:
            read_g2p(path)
        except FileError:
            refused += 1
    assert refused > 150
    with pytest.raises(FileError, match="cannot read"):
        read_g2p(tmp_path / "absent.npz")
