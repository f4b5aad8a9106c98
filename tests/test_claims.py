"""The claims of the lectures: what they measure has known answers, what they say follows from it, and its core is asserted."""

from __future__ import annotations

import itertools
import math
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from qkv.batch import Batch
from qkv.config import ModelConfig
from qkv.lab import timing, translators
from qkv.lab.claims import (
    c03_gradients,
    c05_layer_cost,
    c06_feedforward,
    c07_order,
    c08_length,
    c12_heads,
    c13_residual,
    c16_transformer_cost,
    c17_summaries,
    c21_word_vectors,
    c22_alignment,
    c23_long_inputs,
    c25_vision,
)
from qkv.look.gradients import gradient_by_distance
from qkv.models.build import build
from qkv.models.decoder import Decoder


def network(**changes: Any) -> Decoder:
    settings = {"family": "decoder", "vocab_size": 9, "d_model": 8, "n_layers": 1, "dropout": 0.0} | changes
    torch.manual_seed(0)
    return build(ModelConfig(**settings)).double().eval()  # type: ignore[return-value]


def transformer(**changes: Any) -> Decoder:
    return network(n_heads=2, d_ff=16, norm_order="pre", **changes)


def directions(rows: int) -> Tensor:
    return nn.functional.normalize(torch.randn(rows, 8, dtype=torch.double), dim=-1)


# --- gradients against distance (C3)


@pytest.mark.parametrize("radius", [0.5, 1.0, 1.25])
def test_the_gradient_of_a_linear_elman_network_is_radius_to_the_power_of_the_distance(radius: float) -> None:
    """Where tanh is a line and both matrices turn, U by `radius`, the product of k Jacobians has the norm radius^k."""
    elman = network(recurrent="elman", position="none")
    for name, weight in elman.named_parameters():
        if "weight_ih" in name or "weight_hh" in name:
            nn.init.orthogonal_(weight, radius if "weight_hh" in name else 1.0)
        elif "bias" in name or "tokens" in name:
            nn.init.constant_(weight, 0.0)  # no input: tanh'(0) = 1 at every step
    norms = gradient_by_distance(elman, torch.randint(0, 9, (3, 41)), directions(3))
    wanted = torch.tensor([radius**k for k in range(41)], dtype=torch.double).expand(3, -1)
    torch.testing.assert_close(norms, wanted)


@pytest.mark.parametrize("make", [lambda: network(recurrent="lstm", position="none"), transformer])
def test_the_gradient_is_what_a_small_change_of_a_word_vector_does(make: Any) -> None:
    """Finite differences of the whole network, every word standing in one place alone."""
    model, ids, u = make(), torch.arange(5)[None], directions(1)
    model.embed.scale = 1.0
    table, step = model.embed.tokens.weight, 1e-5

    def out() -> float:
        with torch.no_grad():
            return float((model.read(ids, None, None)[0][0, -1] * u[0]).sum())

    def slope(word: int, channel: int) -> float:
        ends = []
        for change in (step, -step):
            table.data[word, channel] += change
            ends.append(out())
            table.data[word, channel] -= change
        return (ends[0] - ends[1]) / (2 * step)

    found = torch.tensor([[slope(word, c) for c in range(8)] for word in range(5)], dtype=torch.double).norm(dim=-1)
    torch.testing.assert_close(gradient_by_distance(model, ids, u)[0], found.flip(0), rtol=1e-5, atol=1e-9)


def test_to_attention_without_positions_all_distances_are_alike() -> None:
    """Equal words behind the last one: an average does not know which of them is near."""
    ids = torch.tensor([[3] * 20 + [5]])
    norms = gradient_by_distance(transformer(position="none"), ids, directions(1))[0]
    torch.testing.assert_close(norms[1:], norms[1].expand(20))
    assert norms[0] > norms[1] > 0


def test_a_longer_memory_is_a_matter_of_the_forget_gate() -> None:
    """The more a cell keeps, the more of a distant token is felt; and the gates stand where the bias says."""
    felt = []
    for bias in (-2.0, 1.0, 4.0):
        lstm = network(recurrent="lstm", position="none")
        c03_gradients.set_forget_bias(lstm, bias)
        biases = {name: p for name, p in lstm.named_parameters() if "bias_" in name}
        gate = sum(p[8:16] for p in biases.values())
        assert torch.equal(gate, torch.full((8,), bias, dtype=torch.double))  # type: ignore[arg-type]
        norms = gradient_by_distance(lstm, torch.randint(0, 9, (4, 30)), directions(4)).mean(0)
        felt.append(c03_gradients.factor(norms.tolist()))
    assert felt[0] < felt[1] < felt[2]


def test_the_factor_and_the_radius_are_what_they_are_called() -> None:
    assert c03_gradients.factor([5.0, *(0.7**k for k in range(30))]) == pytest.approx(0.7)
    elman = network(recurrent="elman", position="none", n_layers=2)
    c03_gradients.set_radius(elman, 1.5)
    for name, weight in elman.named_parameters():
        if "weight_hh" in name:
            torch.testing.assert_close(torch.linalg.svdvals(weight), torch.full((8,), 1.5, dtype=torch.double))


def test_gradients_vanish_or_explode_in_recurrent_networks_alone() -> None:
    factors = {name: c03_gradients.factor(c03_gradients.gradients(name, 1, 60)) for name in c03_gradients.SYSTEMS}
    assert max(factors[name] for name in ("Elman", "Elman, radius 0.9", "GRU", "LSTM")) < 0.85
    assert factors["Elman, radius 2"] > 1.1 and 0.98 < factors["Transformer"] < 1.02


# --- order, heads, images, words (C7, C12, C25, C21)


def test_without_positions_a_permuted_text_gives_permuted_outputs() -> None:
    errors = {position: c07_order.reordering_error(position, 1) for position in c07_order.POSITIONS}
    assert errors.pop("none") < 1e-12 and min(errors.values()) > 1e-3


def test_the_order_task_says_nothing_about_the_words(tmp_path: Path) -> None:
    """Both labels are equally frequent, and every text has both words: only their order decides."""
    c07_order.write_order_task(tmp_path / "x.tsv", 500, 1)
    rows = [line.split("\t") for line in (tmp_path / "x.tsv").read_text().splitlines()]
    assert all(text.split().count("a") == text.split().count("b") == 1 for text, _ in rows)
    assert all(
        label == ("a first" if text.split().index("a") < text.split().index("b") else "b first") for text, label in rows
    )
    assert 200 < sum(label == "a first" for _, label in rows) < 300


def test_heads_cost_the_same_however_many_they_are() -> None:
    assert len({tuple(c12_heads.cost(heads).values()) for heads in c12_heads.HEADS}) == 1


def test_the_stack_of_a_vit_is_that_of_a_text_encoder() -> None:
    found = c25_vision.stack_difference(1)
    assert found["difference"] == 0 and found["weights"] > 30


def test_word_vectors_know_kinds_and_one_hot_vectors_do_not() -> None:
    found = c21_word_vectors.measure_vectors(3, 1)
    words, none = found["word2vec"], found["one-hot"]
    assert words["same kind"] > words["other kinds"] + 0.2 and words["nearest of its kind"] > 80
    assert none["same kind"] == none["other kinds"] == none["nearest of its kind"] == none["man - men"] == 0


# --- switches (C6, C11, C13, C14) and lengths (C8)


def test_attention_averages_its_values() -> None:
    found = c06_feedforward.averaging(1)
    assert found["difference"] < 1e-12 and found["sum of weights - 1"] < 1e-12
    assert found["smallest weight"] >= 0 and found["beyond the values"] < 1e-12
    sizes = [c06_feedforward.parameters(name) for name in c06_feedforward.SYSTEMS]
    assert max(sizes) < 1.01 * min(sizes)


def test_without_a_mask_a_decoder_copies_what_it_must_predict() -> None:
    """Two tokens ahead changes the prediction, so that the loss is no longer one of the next token."""
    cheating, honest = transformer(causal=False), transformer()
    ids = torch.arange(6)[None]
    changed = ids.clone()
    changed[0, 4] = 8
    with torch.no_grad():
        for model, sees in ((cheating, True), (honest, False)):
            before, after = (model(Batch(x)).logits[0, 3] for x in (ids, changed))
            assert torch.allclose(before, after) != sees


def test_residuals_keep_the_gradient_of_a_deep_network_alive() -> None:
    on, off = (c13_residual.surface(residual, "none", 16, 1)["gradient"] for residual in (True, False))
    assert on > 0.1 and off < 0.05


def test_the_rise_compares_late_positions_with_known_ones() -> None:
    assert c08_length.rise([9.0] * 4 + [2.0] * 4 + [5.0] * 8 + [7.0] * 16, 8) == pytest.approx(5)


# --- time against length (C4, C5)


def test_systems_have_equal_width_and_about_equal_weights() -> None:
    networks = timing.make_systems(256)
    counts = {name: sum(p.numel() for p in one.stack.parameters()) for name, one in networks.items()}
    assert {"Elman", "GRU", "LSTM", timing.FAST, timing.READABLE} <= counts.keys()
    assert all(abs(count / (24 * 256**2) - 1) < 0.15 for count in counts.values()), counts
    ids = torch.randint(0, timing.VOCABULARY, (2, 16))
    fast, readable = (networks[name] for name in (timing.FAST, timing.READABLE))
    readable.load_state_dict(fast.state_dict())
    with torch.no_grad():
        same = [one.read(ids, None, None)[0] for one in (fast, readable)]
    torch.testing.assert_close(*same)


def test_serial_steps_grow_with_the_length_where_there_is_a_state() -> None:
    """By the graph of the operations that were run: more tokens always add the same number of them, or none."""
    networks = {name: one.double() for name, one in timing.make_systems(64, kernels=False).items()}
    steps = {name: [timing.serial_steps(one, n) for n in (128, 256, 384)] for name, one in networks.items()}
    growth = {name: {b - a for a, b in itertools.pairwise(own)} for name, own in steps.items()}
    assert growth[timing.FAST] == growth[timing.READABLE] == {0}
    for name in ("Elman", "GRU", "LSTM", *timing.LINEAR):
        assert len(growth[name]) == 1 and min(growth[name]) > 0, name
    assert min(growth["LSTM"]) >= 128 > min(growth["linear attention"])  # every token; every chunk of tokens


def test_serial_steps_are_the_longest_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine additions one after the other, a tenth one with a short branch, the sum, and the weight itself."""
    w = torch.zeros(1, requires_grad=True)
    loss = (sum([w] * 9, start=w) + w.tanh()).sum()
    monkeypatch.setattr(timing, "causal", lambda *_: SimpleNamespace(mean=loss))
    assert timing.serial_steps(lambda batch: None, 5) == 9 + 1 + 1 + 1  # type: ignore[arg-type]


LENGTHS = [2**k for k in range(4, 13)]


@pytest.mark.parametrize("cross", [16, 20, 300, 3000, 4096])
def test_lines_cross_where_they_do(cross: float) -> None:
    """One takes n, the other always `cross`: from there on the other is faster."""
    growing, constant = ({n: f(n) for n in LENGTHS} for f in (float, lambda n: float(cross)))
    found = timing.crossings(growing, constant)
    assert [is_a for is_a, _ in found] == ([True, False] if cross < 4096 else [True])
    assert found[-1][1] == pytest.approx(cross if cross < 4096 else 16)
    words = timing.describe_crossings("a", "b", {"a": growing, "b": constant})
    assert words == (f"a up to n = {cross:,.0f}, then b" if cross < 4096 else "a at every length")
    assert timing.exponent(growing) == pytest.approx(1) and timing.exponent(constant) == pytest.approx(0)


def test_lines_may_cross_twice() -> None:
    bent = {n: 100 / n + n / 100 for n in LENGTHS}
    found = timing.crossings(bent, dict.fromkeys(bent, 3.0))
    assert [is_a for is_a, _ in found] == [False, True, False]
    assert all(a < b for (_, a), (_, b) in itertools.pairwise(found))


def test_layers_cost_as_the_lecture_says() -> None:
    assert c05_layer_cost.operations(10, 10) == {"recurrent": 2000, "attention": 2000}
    assert c05_layer_cost.operations(20, 10) == {"recurrent": 4000, "attention": 8000}
    two_heads = c05_layer_cost.operations(20, 128)
    assert two_heads == {"recurrent": 2 * 20 * 128**2, "attention": 2 * 20**2 * 128}
    assert c05_layer_cost.seconds(16, 64, 1)["attention"] > 0


# --- translators (C2, C16, C22)


def test_texts_have_as_many_sentences_as_asked(tmp_path: Path) -> None:
    translators.write_texts(tmp_path / "x.tsv", [(f"s{i}", f"t{i}") for i in range(9)], (1, 2, 3))
    assert (tmp_path / "x.tsv").read_text().splitlines() == [
        "s0\tt0",
        "s1 s2\tt1 t2",
        "s3 s4 s5\tt3 t4 t5",
        "s6\tt6",
        "s7 s8\tt7 t8",
    ]
    assert translators.join(["a b", "c", "d", "e f", "g"], 2) == ["a b c", "d e f", "g"]


def test_operations_to_a_score_are_interpolated() -> None:
    one = {"operations": 10.0, "curve": [{"step": 1, "bleu": 4.0}, {"step": 2, "bleu": 8.0}, {"step": 3, "bleu": 6.0}]}
    assert (
        c16_transformer_cost.operations_to_reach(one, 6.0) == 15
        and c16_transformer_cost.operations_to_reach(one, 2.0) == 5
    )
    assert math.isinf(c16_transformer_cost.operations_to_reach(one, 8.5))


def test_the_example_model_aligns_words_and_random_weights_do_not() -> None:
    found = c22_alignment.example_errors(8, 1)
    assert found["best head"] < 0.2 < 0.4 < min(found["diagonal"], found["best head, random weights"])


# --- long inputs and summaries (C23, C17)


@pytest.mark.parametrize("name", c23_long_inputs.METHODS)
def test_methods_for_long_inputs_run_and_approximations_compute_less(name: str) -> None:
    assert min(c23_long_inputs.seconds(name, 64, 2)) > 0
    work = {n: c23_long_inputs.forward_flops(c23_long_inputs.config(name, n), [(1, n, 0)]) for n in (2048, 4096)}
    full = c23_long_inputs.forward_flops(c23_long_inputs.config(c23_long_inputs.READABLE, 4096), [(1, 4096, 0)])
    assert work[4096] == full if name in (c23_long_inputs.FAST, c23_long_inputs.READABLE) else work[4096] < full / 2


def test_the_fast_kernel_computes_what_the_readable_formula_does() -> None:
    networks = [c23_long_inputs.make_network(name, 64) for name in (c23_long_inputs.FAST, c23_long_inputs.READABLE)]
    ids = torch.randint(0, 100, (2, 64))
    torch.testing.assert_close(*(network(Batch(ids)).hidden for network in networks))


def test_exponents_are_slopes() -> None:
    assert c23_long_inputs.exponent({1024: 1.0, 2048: 4.0, 4096: 16.0}) == pytest.approx(2)


@pytest.mark.parametrize("name", c17_summaries.SYSTEMS)
def test_every_writer_of_summaries_can_be_trained(name: str) -> None:
    recipe = c17_summaries.summary_recipe(name, 10, "", 1)
    assert recipe.task == "summary" and recipe.train.steps == 10
    assert recipe.model.copy_source == name.endswith("copying")
    assert set(c17_summaries.PUBLISHED) < set(c17_summaries.SYSTEMS)


# --- the page that benchmarks write


def test_a_section_is_replaced_and_nothing_else(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent.parent / "benchmarks")
    write, page = import_module("pages").write, tmp_path / "results.md"
    page.write_text("# Results\n\nby hand\n")
    write(page, "a", "one")
    write(page, "b", "two")
    whole = page.read_text()
    write(page, "a", "one")
    assert page.read_text() == whole, "the same again changes nothing"
    write(page, "a", "three")
    assert page.read_text() == whole.replace("one", "three")
    assert whole.startswith("# Results\n\nby hand\n\n<!-- a: begin -->\none\n<!-- a: end -->\n\n<!-- b: begin -->")
