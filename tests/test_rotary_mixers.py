"""Rotary positions with every mixer that takes them: outputs depend on relative positions alone."""

from __future__ import annotations

from typing import Any, get_args

import pytest
import torch
from torch import Tensor, nn

from qkv.batch import Batch
from qkv.config import ModelConfig, validate
from qkv.config.model import Mixer
from qkv.errors import ConfigError
from qkv.models.build import build
from qkv.parts.masks import Mask
from qkv.parts.positions import PositionEncoding, Rotary, Rotation

FIELDS: dict[str, Any] = {
    "vocab_size": 30, "d_model": 16, "n_layers": 2, "n_heads": 2, "d_ff": 24, "position": "rotary", "max_length": 12,
    "window": 3, "mixer_rank": 6, "d_key": None,
}  # fmt: skip
IDS = torch.randint(1, 30, (2, 12), generator=torch.Generator().manual_seed(1))


class Shifted(nn.Module):
    """Rotary positions that begin at another number than 0."""

    def __init__(self, rotary: Rotary, by: int):
        super().__init__()
        self.rotary, self.by = rotary, by

    def forward(self, mask: Mask) -> PositionEncoding:
        angles = (mask.positions[:, None, :, None] + self.by) * self.rotary.rates.double()  # type: ignore[operator]
        return Rotation(angles, self.rotary.interleaved)


def config(mixer: str, family: str, **changes: Any) -> ModelConfig:
    head = "none" if family == "encoder" else "vocabulary"
    return validate(ModelConfig, FIELDS | {"family": family, "head": head, "mixer": mixer} | changes)


def effect_of_shift(c: ModelConfig) -> float:
    """The largest change of an output, relative to the largest output, when all positions grow by 7."""
    torch.manual_seed(0)
    network: Any = build(c).double().eval()

    def outputs(by: int) -> Tensor:
        network.stack.positions[0] = Shifted(rotary, by)
        with torch.no_grad():
            return network(Batch(IDS)).hidden

    rotary = network.stack.positions[0]
    before, after = outputs(0), outputs(7)
    return float((before - after).abs().max() / before.abs().max())


def takes_rotary(mixer: str, family: str) -> bool:
    try:
        config(mixer, family)
    except ConfigError:
        return False
    return True


CASES = [
    (mixer, family) for family in ("encoder", "decoder") for mixer in get_args(Mixer) if takes_rotary(mixer, family)
]


def test_linear_attention_refuses_rotary_positions() -> None:
    """elu(R x) + 1 is not R (elu(x) + 1): a product of features depends on both positions, not on their difference."""
    assert {mixer for mixer, _ in CASES} == {"softmax", "window", "linformer", "performer", "compressed"}
    with pytest.raises(ConfigError, match=r"mixer 'linear'.*relative position"):
        config("linear", "decoder")


@pytest.mark.parametrize(("mixer", "family"), [case for case in CASES if case[0] != "performer"])
def test_a_shift_of_all_positions_changes_nothing(mixer: str, family: str) -> None:
    """Of the compressed mixer this holds for fresh kernels, which average; trained ones mix channels."""
    assert effect_of_shift(config(mixer, family)) < 1e-10


@pytest.mark.parametrize("family", ["encoder", "decoder"])
def test_a_shift_changes_an_estimate_the_less_the_more_random_features_there_are(family: str) -> None:
    few, many = (effect_of_shift(config("performer", family, mixer_rank=rank, init_std=0.1)) for rank in (8, 4096))
    assert many < 0.002 and many < few / 5
