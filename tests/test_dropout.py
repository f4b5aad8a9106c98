"""Dropout draws four lanes from one random number: the share, the scale, independence and the seed must be right."""

import pytest
import torch

from qkv.parts.dropout import LEVELS, Dropout, keep_mask

N = 400_001  # not a multiple of four


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5, 0.9])
def test_share_and_scale(p: float) -> None:
    torch.manual_seed(0)
    kept = keep_mask(torch.empty(N, dtype=torch.float64), p)
    share = (kept == 0).double().mean().item()
    assert abs(share - p) < 5 * (p * (1 - p) / N) ** 0.5  # five standard deviations
    values = kept[kept > 0].unique()
    assert len(values) == 1 and abs(values.item() - 1 / (1 - p)) < 2 / LEVELS / (1 - p) ** 2


def test_lanes_and_neighbours_are_independent() -> None:
    torch.manual_seed(0)
    dropped = (keep_mask(torch.empty(400_000), 0.25) == 0).double()
    lanes = dropped.view(-1, 4)
    limit = 5 / len(lanes) ** 0.5
    together = torch.corrcoef(torch.cat([lanes[1:].T, lanes[:-1].T])) - torch.eye(
        8
    )  # with each other, and the next draw
    assert together.abs().max() < limit
    assert (lanes.mean(0) - 0.25).abs().max() < limit


def test_the_seed_decides_and_state_resumes() -> None:
    x, layer = torch.ones(3, 5, 7), Dropout(0.5)
    torch.manual_seed(1)
    layer(x)
    state = torch.get_rng_state()
    second, third = layer(x), layer(x)
    torch.set_rng_state(state)
    assert torch.equal(layer(x), second) and torch.equal(layer(x), third) and not torch.equal(second, third)


def test_gradient_flows_where_values_did() -> None:
    x = torch.randn(50, 20, requires_grad=True)
    y = Dropout(0.4)(x)
    y.sum().backward()
    torch.testing.assert_close(x.grad * x, y)  # dropout is linear: the gradient is the mask


def test_nothing_in_eval_or_without_p_and_never_everything() -> None:
    x = torch.randn(1000)
    assert Dropout(0.5).eval()(x) is x and Dropout(0.0)(x) is x
    assert torch.isfinite(Dropout(0.999_999)(x)).all()
