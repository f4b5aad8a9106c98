"""An encoder of another width than its decoder, and bilinear scores between vectors of different widths."""

from __future__ import annotations

import pytest
import torch

from qkv.check import check
from qkv.config import ModelConfig, validate
from qkv.engine.pack import pack
from qkv.errors import ConfigError
from qkv.look.walk import walk
from qkv.models.build import build
from qkv.models.example import example
from qkv.parts.recurrent import StepAttention
from qkv.parts.scores import make_score
from tests.test_contracts import randomised

SIZES = {"family": "encoder-decoder", "vocab_size": 60, "d_model": 32, "n_layers": 2, "n_heads": 4, "d_ff": 48}
RECURRENT = {"recurrent": "gru", "position": "none", "decoder_attention": "bilinear"}
WIDTHS = {
    "narrow": {"d_encoder": 24},
    "wide, tied": {"d_encoder": 48, "d_embed": 16, "tie": "all", "norm_order": "pre"},
    "linear cross-attention": {"d_encoder": 24, "cross_mixer": "linear"},
    "images": {"d_encoder": 24, "vocab_size": 0, "target_vocab_size": 60, "image_size": 16, "patch_size": 8},
    "bilinear, no projections": {"d_encoder": 20, **RECURRENT, "projections": False, "bidirectional": True},
    "low rank, no projections, input feeding": {
        "d_encoder": 40, **RECURRENT, "decoder_attention": "low-rank", "score_rank": 3, "projections": False,
        "input_feeding": True, "recurrent": "lstm",
    },
    "additive": {"d_encoder": 24, **RECURRENT, "decoder_attention": "additive", "n_decoder_layers": 1},
    "equal widths, no projections": {**RECURRENT, "decoder_attention": "scaled-dot", "projections": False},
    "fixed context": {"d_encoder": 24, **RECURRENT, "decoder_attention": None, "fixed_context": True},
    "state alone": {"d_encoder": 24, **RECURRENT, "decoder_attention": None},
}  # fmt: skip


@pytest.mark.parametrize("name", WIDTHS)
def test_contracts_hold(name: str) -> None:
    c = ModelConfig(**{**SIZES, **WIDTHS[name]})
    assert not [r for r in check(randomised(c), c) if r.status == "broken"]


@pytest.mark.parametrize("name", WIDTHS)
@torch.no_grad()
def test_packed_networks_agree(name: str) -> None:
    c = ModelConfig(**{**SIZES, **WIDTHS[name]})
    network, batch = build(c).eval(), example(c, rows=3)
    torch.testing.assert_close(pack(network)(batch).logits, network(batch).logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["bilinear", "low-rank"])
@torch.no_grad()
def test_bilinear_scores_compare_vectors_of_different_widths(kind: str) -> None:
    """s^T W h with W (d_q, d_k), of rank 2 for the second."""
    torch.manual_seed(0)
    attention = StepAttention(6, kind, rank=2, d_memory=9, projections=False)
    for weight in attention.parameters():
        weight.normal_()
    w = attention.score.weight[0] if kind == "bilinear" else (attention.score.left @ attention.score.right)[0]
    assert w.shape == (6, 9) and torch.linalg.matrix_rank(w) == (6 if kind == "bilinear" else 2)
    hidden, memory = torch.randn(2, 6), torch.randn(2, 5, 9)
    context, weights = attention(hidden, memory[:, None], memory, torch.ones(2, 1, 1, 5, dtype=torch.bool))
    scores = torch.stack([torch.stack([s @ w @ h for h in rows]) for s, rows in zip(hidden, memory, strict=True)])
    torch.testing.assert_close(weights[:, 0, 0], scores.softmax(-1))
    torch.testing.assert_close(context, torch.einsum("bs,bse->be", scores.softmax(-1), memory))


def test_other_scores_need_equal_widths() -> None:
    for kind in ("dot", "scaled-dot", "additive"):
        with pytest.raises(AssertionError, match="as wide as queries"):
            make_score(kind, 1, 6, key_width=9)


def test_the_steps_of_such_a_decoder_can_be_shown() -> None:
    c = ModelConfig(**SIZES, **WIDTHS["bilinear, no projections"])
    steps = walk(build(c).eval(), example(c, rows=2))
    torch.testing.assert_close(steps.scores.masked_fill(~steps.allowed, float("-inf")).softmax(-1), steps.weights)


@pytest.mark.parametrize(("fields", "message"), [
    ({"family": "decoder", "d_encoder": 24}, "belongs to family 'encoder-decoder'"),
    ({"d_encoder": 26}, "does not divide d_encoder"),
    ({"d_encoder": 24, "tie": "all"}, "set d_embed"),
    ({"d_encoder": 24, "share_encoder_decoder": True}, "sides of one width"),
    ({"d_encoder": 24, "projections": False}, "vectors of different widths"),
    ({"d_encoder": 24, **RECURRENT, "decoder_attention": "additive", "projections": False}, "vectors of different widths"),
    ({"d_encoder": 25, **RECURRENT, "bidirectional": True}, "half of d_encoder"),
    ({**RECURRENT, "decoder_attention": None, "projections": False}, "set decoder_attention"),
])  # fmt: skip
def test_what_cannot_be(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        validate(ModelConfig, {**SIZES, **fields})
