"""Lecture 004's candidates for positions: which are unique, bounded, relative and of equal steps; learned rotations."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from qkv.batch import Batch
from qkv.config import ModelConfig, validate
from qkv.errors import ConfigError
from qkv.look.embedding_space import positions
from qkv.models.build import build
from qkv.parts.masks import Mask
from qkv.parts.position_candidates import CANDIDATES, LearnedRotary, Unitary, candidate_vectors
from qkv.parts.positions import Rotary, sinusoids

WIDTH, LENGTH = 16, 300
PROPERTIES = {  # unique, bounded, P(t + c) = M_c P(t), equal steps
    "linear": (True, False, False, True),
    "geometric": (True, True, True, False),
    "exponential": (True, True, False, False),
    "binary": (True, True, False, False),
    "unitary": (True, True, True, True),
    "sinusoidal": (True, True, True, True),
}


def trained(width: int) -> Unitary:
    """An orthogonal matrix that is no longer the one of the sinusoids."""
    torch.manual_seed(0)
    scheme = Unitary(width)
    with torch.no_grad():
        scheme.generator.add_(torch.randn(width, width) * 0.1)
        scheme.first.add_(torch.randn(width))
    return scheme


def vectors(name: str, length: int, width: int = WIDTH) -> Tensor:
    if name == "sinusoidal":
        return sinusoids(torch.arange(length), width).double()
    if name == "unitary":
        with torch.no_grad():
            return trained(width).vectors(Mask(length))[0].double()
    return candidate_vectors(name, length, width).double()


def is_unique(table: Tensor) -> bool:
    return len(table.unique(dim=0)) == len(table)


def is_bounded(name: str) -> bool:
    """Whether the numbers of twice as many positions are no larger."""
    short, long = (vectors(name, n).abs().max() for n in (LENGTH, 2 * LENGTH))
    return bool(long < short * 1.2)


def is_relative(table: Tensor, shift: int = 5) -> bool:
    """Whether one matrix, found from half of the positions, maps every P(t) to P(t + c)."""
    before, after = table[:-shift], table[shift:]
    half = len(before) // 2
    matrix = torch.linalg.lstsq(before[:half], after[:half], driver="gelsd").solution
    return torch.allclose(before @ matrix, after, atol=1e-3)


def has_equal_steps(table: Tensor) -> bool:
    steps = (table[1:] - table[:-1]).norm(dim=1)
    return bool(steps.max() < steps.min() * 1.01)


@pytest.mark.parametrize("name", PROPERTIES)
def test_properties_are_those_of_the_table(name: str) -> None:
    table = vectors(name, LENGTH)
    assert (is_unique(table), is_bounded(name), is_relative(table), has_equal_steps(table)) == PROPERTIES[name]


@pytest.mark.parametrize(("name", "rule"), [
    ("linear", lambda p, r: p + r),
    ("geometric", lambda p, r: p * (-r).exp()),
    ("exponential", lambda p, r: (p * r / torch.e).exp()),
])  # fmt: skip
def test_each_position_follows_from_the_one_before(name: str, rule) -> None:
    table, rates = vectors(name, 40), 10_000.0 ** (-torch.arange(WIDTH).double() / WIDTH)
    torch.testing.assert_close(table[1:], rule(table[:-1], rates), atol=1e-6, rtol=1e-6)


def test_exponentials_come_together_and_growing_ones_overflow() -> None:
    """Its steps fall with 1 / t^2; with a factor of 1 the same rule passes the largest float after a few positions."""
    steps = (vectors("exponential", 2001)[1:] - vectors("exponential", 2001)[:-1]).norm(dim=1)
    assert steps[1999] < 2e-6 < 1e-2 < steps[19]
    p = torch.zeros(())
    for _ in range(6):
        p = p.exp()
    assert p.isinf()


def test_binary_positions_are_the_digits() -> None:
    table = candidate_vectors("binary", 70, 80)
    assert (table[:, :8] @ 2.0 ** torch.arange(8)).tolist() == list(range(70)) and table[:, 8:].sum() == 0


@pytest.mark.parametrize("width", [WIDTH, 7])
def test_fresh_powers_are_the_sinusoids(width: int) -> None:
    table = Unitary(width).vectors(Mask(50))[0]
    whole = width - width % 2  # an odd width leaves a sine without its cosine
    torch.testing.assert_close(table[:, :whole], sinusoids(torch.arange(50), width)[:, :whole], atol=1e-4, rtol=0)


def test_powers_are_those_of_one_orthogonal_matrix() -> None:
    scheme = trained(WIDTH)
    matrix = scheme.matrix()
    torch.testing.assert_close(matrix @ matrix.T, torch.eye(WIDTH), atol=1e-5, rtol=0)
    table = scheme.vectors(Mask(20))[0]
    torch.testing.assert_close(table[1:], table[:-1] @ matrix.T, atol=1e-5, rtol=1e-4)
    table.square().mean().backward()
    assert scheme.first.grad.abs().max() > 0
    (scheme.vectors(Mask(20))[0] @ torch.randn(WIDTH)).sum().backward()
    assert scheme.generator.grad.abs().max() > 0


def test_learned_rotations_start_as_rotary_and_learn() -> None:
    scheme, x = LearnedRotary(8), torch.randn(2, 3, 6, 8)
    assert torch.equal(scheme(Mask(6)).rotate(x), Rotary(8)(Mask(6)).rotate(x))
    (scheme(Mask(6)).rotate(x) * torch.randn_like(x)).sum().backward()
    assert (scheme.rates.grad != 0).all()


def test_any_orthogonal_matrix_is_a_rotation_of_pairs_in_another_basis() -> None:
    """Scores of q and k rotated by U^m and U^n are those of V^T q and V^T k rotated by rates: nothing more can be learned."""
    torch.manual_seed(0)
    skew = torch.randn(8, 8).double()
    skew = skew - skew.T
    angles, basis = torch.linalg.eigh(1j * skew)  # U = exp(skew) turns the plane of each conjugate pair by its angle
    rates, planes = angles[4:], basis[:, 4:] * 2**0.5  # the positive ones
    pairs = torch.cat([planes.real, planes.imag], 1)  # V: (8, 8) in the order of Rotary's halves
    scheme = LearnedRotary(8)
    with torch.no_grad():
        scheme.rates.copy_(rates)
    q, k = torch.randn(2, 1, 1, 6, 8).double()
    rotated = [scheme(Mask(6)).rotate((x @ pairs).float()).double() for x in (q, k)]
    powers = torch.stack([torch.linalg.matrix_exp(t * skew) for t in range(6)])  # (T, 8, 8)
    turned = [torch.einsum("tij,bhtj->bhti", powers, x) for x in (q, k)]
    one, other = (a @ b.transpose(-1, -2) for a, b in (rotated, turned))
    torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


SMALL = {"family": "decoder", "vocab_size": 30, "d_model": 16, "n_layers": 2, "n_heads": 2, "d_ff": 16}


@pytest.mark.parametrize("name", [*CANDIDATES, "unitary", "rotary-learned"])
def test_networks_of_any_length_and_of_half_precision(name: str) -> None:
    network = build(ModelConfig(**SMALL, position=name)).eval()
    long = Batch(torch.randint(30, (1, 600)))
    with torch.no_grad():
        whole, start = network(long).hidden, network(Batch(long.inputs[:, :40])).hidden
        torch.testing.assert_close(whole[:, :40], start, atol=1e-4, rtol=1e-4)
        assert network.bfloat16()(Batch(long.inputs[:, :40])).hidden.isfinite().all()
    assert positions(network.float(), 8).scheme == ("rotary" if name == "rotary-learned" else name)


def test_what_cannot_be() -> None:
    scaling = {"factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_length": 64}
    for fields in ({"rotary_scaling": scaling}, {"d_head": 7}, {"position_use": "concat"}):
        with pytest.raises(ConfigError):
            validate(ModelConfig, {**SMALL, "position": "rotary-learned", **fields})
