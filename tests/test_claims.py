"""The claims that benchmarks/ measures (C3, C4, C5): what they measure has known answers, and what they say follows from it."""

from __future__ import annotations

import itertools
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from qkv.config import ModelConfig
from qkv.look.gradients import gradient_by_distance
from qkv.models.build import build
from qkv.models.decoder import Decoder

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture()
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Opens a script of benchmarks/ by its name."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    return import_module


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


def test_a_longer_memory_is_a_matter_of_the_forget_gate(script: Any) -> None:
    """The more a cell keeps, the more of a distant token is felt; and the gates stand where the bias says."""
    claim = script("gradient_distance")
    felt = []
    for bias in (-2.0, 1.0, 4.0):
        lstm = network(recurrent="lstm", position="none")
        claim.forget(bias)(lstm)
        biases = {name: p for name, p in lstm.named_parameters() if "bias_" in name}
        gate = sum(p[8:16] for p in biases.values())
        assert torch.equal(gate, torch.full((8,), bias, dtype=torch.double))  # type: ignore[arg-type]
        felt.append(claim.factor(gradient_by_distance(lstm, torch.randint(0, 9, (4, 30)), directions(4)).mean(0)))
    assert felt[0] < felt[1] < felt[2]


def test_the_factor_and_the_radius_are_what_they_are_called(script: Any) -> None:
    claim = script("gradient_distance")
    assert claim.factor(torch.tensor([5.0, *(0.7**k for k in range(30))])) == pytest.approx(0.7)
    elman = network(recurrent="elman", position="none", n_layers=2)
    claim.radius(1.5)(elman)
    for name, weight in elman.named_parameters():
        if "weight_hh" in name:
            torch.testing.assert_close(torch.linalg.svdvals(weight), torch.full((8,), 1.5, dtype=torch.double))
    table = "\n".join(claim.table({"short": torch.ones(12)}))
    assert "| short | 1 | 1 | 1 |  |  |  | 1.000 |" in table, "a model with a short context has no figure for k = 50"


# --- time against length (C4, C5)


def test_systems_have_equal_width_and_about_equal_weights(script: Any) -> None:
    claim = script("time_against_length")
    networks = claim.systems(256)
    counts = {name: sum(p.numel() for p in one.stack.parameters()) for name, one in networks.items()}
    assert {"Elman", "GRU", "LSTM", claim.FAST, claim.READABLE} <= counts.keys()
    assert all(abs(count / (24 * 256**2) - 1) < 0.15 for count in counts.values()), counts
    ids = torch.randint(0, claim.WORDS, (2, 16))
    fast, readable = (networks[name] for name in (claim.FAST, claim.READABLE))
    readable.load_state_dict(fast.state_dict())
    with torch.no_grad():
        same = [one.read(ids, None, None)[0] for one in (fast, readable)]
    torch.testing.assert_close(*same)


def test_serial_steps_grow_with_the_length_where_there_is_a_state(script: Any) -> None:
    claim = script("time_against_length")
    steps = {name: [claim.serial_steps(one, n) for n in (512, 1024)] for name, one in claim.systems(64).items()}
    assert steps["LSTM"] == [3 * 512, 3 * 1024] and steps["Elman"] == [12 * 512, 12 * 1024]
    assert steps[claim.FAST] == steps[claim.READABLE] == [2, 2]
    for name in claim.LINEAR:
        few, many = steps[name]
        assert few > 2 and many == 2 * few, name


@pytest.mark.parametrize("cross", [16, 20, 300, 3000, 4096])
def test_lines_that_cross_are_found_where_they_do(script: Any, cross: float) -> None:
    """One takes n, the other always `cross`: from there on the other is faster."""
    claim = script("time_against_length")
    growing, constant = ({n: f(n) for n in claim.WHOLE.lengths} for f in (float, lambda n: float(cross)))
    found = claim.winners(growing, constant)
    assert [is_a for is_a, _ in found] == ([True, False] if cross < 4096 else [True])
    assert found[-1][1] == pytest.approx(cross if cross < 4096 else 16)
    words = claim.verdict("a", "b", {"a": growing, "b": constant})
    assert words == (f"a up to n = {cross:,.0f}, then b" if cross < 4096 else "a at every length")
    assert claim.exponent(growing) == pytest.approx(1) and claim.exponent(constant) == pytest.approx(0)


def test_lines_may_cross_twice(script: Any) -> None:
    claim = script("time_against_length")
    bent = {n: 100 / n + n / 100 for n in claim.WHOLE.lengths}
    found = claim.winners(bent, dict.fromkeys(bent, 3.0))
    assert [is_a for is_a, _ in found] == [False, True, False]
    assert all(a < b for (_, a), (_, b) in itertools.pairwise(found))


# --- the page they write


def test_a_section_is_replaced_and_nothing_else(script: Any, tmp_path: Path) -> None:
    write, page = script("pages").write, tmp_path / "results.md"
    page.write_text("# Results\n\nby hand\n")
    write(page, "a", "one")
    write(page, "b", "two")
    whole = page.read_text()
    write(page, "a", "one")
    assert page.read_text() == whole, "the same again changes nothing"
    write(page, "a", "three")
    assert page.read_text() == whole.replace("one", "three")
    assert whole.startswith("# Results\n\nby hand\n\n<!-- a: begin -->\none\n<!-- a: end -->\n\n<!-- b: begin -->")
