"""The lectures' worked examples B1-B7 with the answers they state, and the demonstrations D1-D12."""

from __future__ import annotations

import math

import pytest
import torch

from qkv.commands import lectures
from qkv.config import ModelConfig
from qkv.errors import ConfigError
from qkv.lab.comparison_examples import context_of, ensemble_gaps, layer_costs, order_gaps, two_or_one
from qkv.lab.examples import EXAMPLES
from qkv.lab.ladder_examples import rungs
from qkv.lab.lookup_examples import SENTENCE, look_up, skip_gram_pairs
from qkv.lab.position_examples import d7
from qkv.lab.probability_examples import added_scores, d4, rotary_scores
from qkv.models.cost import cost
from qkv.models.params import count
from qkv.parts.attention import Attention
from qkv.parts.masks import Mask, causal
from qkv.parts.positions import sinusoids
from qkv.parts.scores import Dot, make_score
from qkv.parts.softmax import Softmax
from qkv.presets import preset


def rows(*values: list[float]) -> torch.Tensor:
    """Vectors as one batch of one head: (1, 1, T, D)."""
    return torch.tensor(values, dtype=torch.float32)[None, None]


def test_b1_scores_112_and_96_with_width_64_give_088_and_012() -> None:
    query = rows([1.0] + [0.0] * 63)
    key = rows([112.0] + [0.0] * 63, [96.0] + [0.0] * 63)
    score = make_score("scaled-dot", 1, 64)
    assert score(query, key).flatten().tolist() == [14.0, 12.0]
    weights = Softmax(score).weights(query, key, Mask(1, length=2))
    assert [round(w, 2) for w in weights.flatten().tolist()] == [0.88, 0.12]


def test_b2_flying_arrows() -> None:
    """Dimensions 1-2 are the query, 3-4 the key, 5-6 the value: projections that pick columns."""
    words = torch.tensor([[[0, 1, 1, 1, 1, 0], [1, 1, 0, -1, -1, 1]]], dtype=torch.float32)
    attention = Attention(6, 1, 1, 2, Softmax(make_score("scaled-dot", 1, 2)), bias="none")
    pick = torch.eye(6)
    with torch.no_grad():
        for part, columns in (("query", pick[0:2]), ("key", pick[2:4]), ("value", pick[4:6])):
            getattr(attention, part).weight.copy_(columns)
        attention.output.weight.copy_(torch.eye(6)[:, :2])
    output, _ = attention(words, Mask(2))
    assert [round(x, 4) for x in output[0, 0, :2].tolist()] == [0.6089, 0.1956]
    query, key = words[..., None, :, 0:2], words[..., None, :, 2:4]
    weights = attention.mixer.weights(query, key, Mask(2))
    assert [round(w, 4) for w in weights[0, 0, 0].tolist()] == [0.8044, 0.1956]


@pytest.mark.parametrize(
    ("a", "b", "product"),
    [([1, 2], [2, 3], 8), ([1, 2, 1], [2, 3, 4], 12), ([1, 2, 1, 1], [2, 3, 4, 8], 20)],
)
def test_b3_dot_products_grow_with_the_width(a: list[float], b: list[float], product: float) -> None:
    assert Dot()(rows(a), rows(b)).item() == product
    assert make_score("scaled-dot", 1, len(a))(rows(a), rows(b)).item() == pytest.approx(product / math.sqrt(len(a)))


def test_b4_gpt3_as_lecture_003_counts_it() -> None:
    counted = count(preset("gpt3-175b"))
    assert counted.lecture is not None
    assert counted.lecture.weights == 175_181_291_520
    assert counted.lecture.matrices == 27_938
    # our own count has biases, norms and positions too, and the tied word matrix once
    words, width, layers, length = 50_257, 12_288, 96, 2_048
    vectors = layers * (4 * width + 4 * width + width + 4 * width) + 2 * width  # attention, up, down, norms; final norm
    assert counted.parameters == 175_181_291_520 - words * width + length * width + vectors


def test_b5_the_sinusoid_table_of_width_5() -> None:
    table = sinusoids(torch.arange(5), 5)
    columns = [[round(x, 3) for x in table[:, i].tolist()] for i in range(5)]
    assert columns == [
        [0, 0.841, 0.909, 0.141, -0.757],
        [1, 0.540, -0.416, -0.990, -0.654],
        [0, 0.025, 0.050, 0.075, 0.100],
        [1, 1.000, 0.999, 0.997, 0.995],
        [0, 0.001, 0.001, 0.002, 0.003],
    ]


def test_b6_the_mask_of_ich_habe_einen_apfel_gegessen() -> None:
    words = "<sos> Ich habe einen Apfel gegessen <eos>".split()
    table = causal(len(words), len(words))
    for t in range(7):
        assert [words[s] for s in range(7) if table[t, s]] == words[: t + 1]
    assert torch.equal(Mask(7, causal=True).dense[0, 0], table)


def test_b7_the_2017_base_and_the_eight_sizes_of_gpt3() -> None:
    base = preset("transformer-base")
    assert (base.n_layers, base.d_model, base.d_ff, base.n_heads, base.head_width) == (6, 512, 2048, 8, 64)
    published = {  # name: (billions as published, layers, d_model, heads, d_head)
        "gpt3-small": (0.125, 12, 768, 12, 64),
        "gpt3-medium": (0.350, 24, 1024, 16, 64),
        "gpt3-large": (0.760, 24, 1536, 16, 96),
        "gpt3-xl": (1.3, 24, 2048, 24, 128),
        "gpt3-2.7b": (2.7, 32, 2560, 32, 80),
        "gpt3-6.7b": (6.7, 32, 4096, 32, 128),
        "gpt3-13b": (13.0, 40, 5140, 40, 128),
        "gpt3-175b": (175.0, 96, 12288, 96, 128),
    }
    for name, (billions, layers, width, heads, d_head) in published.items():
        c = preset(name)
        assert (c.n_layers, c.d_model, c.n_heads, c.head_width) == (layers, width, heads, d_head), name
        # XL's 24 heads of 128 are wider than its 2048 channels, so its count is above the published 1.3 billion
        assert count(c).parameters / 1e9 == pytest.approx(billions, rel=0.17 if name == "gpt3-xl" else 0.05), name


# --- smaller demonstrations


def test_d1_a_soft_lookup_is_exact_blended_and_parallel() -> None:
    keys = torch.eye(11)
    exact, _ = look_up(keys[[4]][None, None], 100.0)
    assert exact[0, 4].item() == pytest.approx(1)
    blend, out = look_up(((keys[4] + keys[6]) / 2)[None, None, None], 100.0)
    assert blend[0, [4, 6]].tolist() == pytest.approx([0.5, 0.5])
    assert torch.allclose(out[0], blend[0])  # values are one-hot
    both, _ = look_up(keys[[4, 6]][None, None], 3.0)
    assert torch.equal(both[1], look_up(keys[[6]][None, None], 3.0)[0][0])


def test_d3_the_wampimuk_has_the_four_pairs_of_the_slide() -> None:
    pairs = dict(skip_gram_pairs(SENTENCE, 2))
    assert pairs["wampimuk"] == ["furry", "little", "hiding", "in"]
    assert sum(map(len, pairs.values())) == 2 * (9 + 8)  # every pair of words one and two places apart, both ways


def test_d4_and_d5_take_any_model() -> None:
    assert "log p" in " ".join(step for step in d4() if isinstance(step, str))
    assert rotary_scores() == pytest.approx([rotary_scores()[0]] * 3, abs=1e-5)
    assert max(added_scores()) - min(added_scores()) > 0.1


def test_d6_each_rung_changes_what_it_says() -> None:
    found = {name: (without, with_it) for name, _, without, with_it in rungs()}
    for rung in ("queries, keys, values", "feed-forward", "positions"):
        assert found[rung][0] < 1e-5 < 0.01 < found[rung][1], rung
    assert found["mask"][1] == 0 < found["mask"][0]
    assert found["two heads"][1] == 0 < found["two heads"][0]
    assert found["residual"][0] < 1e-3 < 1 < found["residual"][1]
    assert found["norm"][1] < 0.5 < 0.99 < found["norm"][0]


def test_d7_only_powers_of_an_orthogonal_matrix_lack_nothing() -> None:
    table = next(step for step in d7() if not isinstance(step, str))
    lacks = {row[0]: row[-1] for row in table.rows}
    assert {name for name, missing in lacks.items() if missing == "nothing"} == {"unitary", "sinusoidal"}
    assert "bounded" in lacks["linear"] and "unique" in lacks["one sine"] and "steps" in lacks["geometric"]


def test_d8_two_stacks_cost_about_as_much_as_one_of_half_the_parameters() -> None:
    totals = [cost(config, shape, targets).total for _, config, shape, targets in two_or_one()]
    separate, shared, one, twice = totals
    assert shared.parameters < separate.parameters and shared.training == separate.training
    assert one.training < separate.training < 1.2 * one.training and separate.parameters > 1.6 * one.parameters
    assert twice.training > 1.4 * separate.training


def test_d9_experts_add_parameters_but_hardly_operations() -> None:
    dense, experts = (preset("transformer-dmca").changed(n_experts=n) for n in (0, 128))
    assert count(experts).parameters > 40 * count(dense).parameters > 30 * count(experts).active
    assert cost(experts, (1, 64, 0)).total.forward < 1.5 * cost(dense, (1, 64, 0)).total.forward


def test_d10_features_read_both_sides_and_averaged_weights_are_no_ensemble() -> None:
    assert context_of(bidirectional=False) == (True, False)
    assert context_of(bidirectional=True) == (True, True)
    linear, hidden = ensemble_gaps()
    assert linear < 1e-6 < 0.01 < hidden
    ModelConfig(
        family="encoder",
        head="masked",
        recurrent="lstm",
        bidirectional=True,
        vocab_size=50,
        d_model=8,
        n_layers=1,
        position="none",
    )


def test_d11_the_quiz() -> None:
    d, n = 512, 64
    found = layer_costs(d, n)
    parameters, operations, steps = found["Transformer layer"]
    assert operations == 2 * (12 * d * d + 2 * n * d)
    assert found["LSTM layer"][:2] == (8 * d * d + 8 * d, 2 * 8 * d * d)
    assert parameters > found["LSTM layer"][0] and steps == 1 < found["LSTM layer"][2] == n
    attention, lstm = order_gaps()
    assert attention < 1e-6 < 0.01 < lstm


def test_every_example_prints_in_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lectures.run(None)
    out = capsys.readouterr().out
    assert all(len(line) <= 80 or line.startswith("qkv ") for line in out.splitlines())
    assert all(f"\n{name} " in "\n" + out for name in EXAMPLES)
    with pytest.raises(ConfigError, match="no worked example D13"):
        lectures.run(["D13"])
