"""DeBERTa's disentangled attention: its three terms, clipped distances, parts of a pass; parity in files is in test_huggingface."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

hf = pytest.importorskip("transformers")

from qkv.batch import Batch  # noqa: E402
from qkv.config import ModelConfig, validate  # noqa: E402
from qkv.convert.huggingface import from_foreign, read_config  # noqa: E402
from qkv.errors import ConfigError, FileError  # noqa: E402
from qkv.look.embedding_space import positions  # noqa: E402
from qkv.models.build import build  # noqa: E402
from qkv.parts.disentangled import Disentangled, distance_vectors  # noqa: E402
from qkv.parts.masks import Mask  # noqa: E402
from qkv.parts.scores import Dot  # noqa: E402
from qkv.parts.softmax import Softmax  # noqa: E402
from qkv.presets import tiny  # noqa: E402

HEADS, WIDTH, C = 4, 6, 10
SCALE = 1 / math.sqrt(3 * WIDTH)


def scheme(max_distance: int) -> Disentangled:
    torch.manual_seed(0)
    made = Disentangled(distance_vectors(max_distance, C), HEADS, WIDTH, SCALE)
    with torch.no_grad():
        made.vectors.normal_()
    return made


def heads(length: int, kv_heads: int = HEADS) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(2, HEADS, length, WIDTH), torch.randn(2, kv_heads, length, WIDTH)


def three_terms(made: Disentangled, query: Tensor, key: Tensor) -> Tensor:
    """The scores number by number."""
    k, group = made.vectors.size(0) // 2, query.size(1) // key.size(1)
    scores = torch.zeros(*query.shape[:3], key.size(2))
    for b, h, i, j in torch.cartesian_prod(*map(torch.arange, scores.shape)).tolist():
        p, own = made.vectors[min(max(i - j, -k), k - 1) + k], slice(h * WIDTH, (h + 1) * WIDTH)
        q, x = query[b, h, i], key[b, h // group, j]
        scores[b, h, i, j] = (q @ x + q @ made.key(p)[own] + made.query(p)[own] @ x) / math.sqrt(3 * WIDTH)
    return scores


@pytest.mark.parametrize("max_distance", [2, 5, 40])
@pytest.mark.parametrize("kv_heads", [HEADS, 2])
@torch.no_grad()
def test_scores_are_the_three_terms(max_distance: int, kv_heads: int) -> None:
    made, (query, key), mask = scheme(max_distance), heads(5, kv_heads), Mask(5)
    weights = Softmax(Dot(SCALE)).weights(query, key, mask, made(mask))
    torch.testing.assert_close(weights, three_terms(made, query, key).softmax(-1))


@torch.no_grad()
def test_some_heads_and_rows_are_those_of_the_whole() -> None:
    made, (query, key), mask = scheme(3), heads(7), Mask(7, causal=True)
    few, rows = torch.tensor([3, 1]), torch.tensor([0, 4, 6])
    whole, mixer = made(mask), Softmax(Dot(SCALE))
    part = mixer.weights(query[:, few[:, None], rows], key[:, few], mask.of(rows), whole.select(few, rows))
    torch.testing.assert_close(part, mixer.weights(query, key, mask, whole)[:, few[:, None], rows])


def test_layers_share_the_vectors_and_nothing_else() -> None:
    network = build(tiny("deberta-base"))
    first, second = network.stack.positions
    assert first.vectors is second.vectors and first.key.weight is not second.key.weight
    assert positions(network).scheme == "disentangled"


def test_every_family_has_a_plain_scale_in_cross_attention() -> None:
    c = ModelConfig(
        family="encoder-decoder", vocab_size=20, d_model=12, n_layers=1, n_heads=2, d_ff=8, position="disentangled"
    )
    (block,) = build(c).decoder.blocks
    scales = [block.attention.layer.mixer.score.scale, block.cross.layer.mixer.score.scale]
    assert scales == pytest.approx([1 / math.sqrt(18), 1 / math.sqrt(6)])


DEBERTA = {
    "vocab_size": 40, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40,
    "relative_attention": True, "position_biased_input": False, "pos_att_type": "p2c|c2p",
}  # fmt: skip


@torch.no_grad()
def test_the_newer_names_of_the_masked_head_are_read() -> None:
    """Released files have `lm_predictions`, which transformers reads with legacy = False alone."""
    config = hf.DebertaConfig(**DEBERTA, legacy=False, architectures=["DebertaForMaskedLM"])
    theirs = hf.DebertaForMaskedLM(config).eval()
    tensors, values = (
        theirs.state_dict(),
        {"model_type": "deberta", **DEBERTA},
    )  # no class is named: the weights tell the head
    c = read_config(values, tensors)
    ours = build(c).eval()
    ours.load_state_dict(from_foreign(c, values, tensors), strict=False)
    ids = torch.randint(40, (2, 9))
    torch.testing.assert_close(ours(Batch(ids)).logits, theirs(ids).logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("change", [{"pos_att_type": "c2p"}, {"relative_attention": False}, {"position_biased_input": True},
                                    {"pos_att_type": None}])  # fmt: skip
def test_other_kinds_of_deberta_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(FileError, match=next(iter(change))):
        read_config({"model_type": "deberta", **DEBERTA, **change}, [])


def test_other_scores_and_mixers_are_refused() -> None:
    base = {"family": "decoder", "vocab_size": 20, "d_model": 12, "n_layers": 1, "n_heads": 2, "d_ff": 8}
    for fields in ({"score": "additive"}, {"mixer": "window"}):
        with pytest.raises(ConfigError, match="disentangled"):
            validate(ModelConfig, {**base, "position": "disentangled", **fields})
