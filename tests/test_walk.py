"""The walk through one head: each step follows from those before it, and all heads together are the layer."""

from __future__ import annotations

import pytest
import torch

from qkv.errors import QkvError
from qkv.look.walk import walk
from qkv.models.build import build
from qkv.models.example import example
from qkv.parts.tap import record
from qkv.presets import tiny


@pytest.mark.parametrize(
    ("name", "kind", "tap"),
    [
        ("gpt2", None, "stack.blocks.1.attention.tap_out"),
        ("llama2-70b", "self", "stack.blocks.1.attention.tap_out"),
        ("bert-base", None, "stack.blocks.1.attention.tap_out"),
        ("t5-small", "decoder", "decoder.blocks.1.attention.tap_out"),
        ("transformer-base", "cross", "decoder.blocks.1.cross.tap_out"),
        ("vit-b16", None, "stack.blocks.1.attention.tap_out"),
    ],
)
def test_each_step_follows_and_the_heads_add_up(name: str, kind: str | None, tap: str) -> None:
    torch.manual_seed(0)
    c = tiny(name)
    network, batch = build(c).eval(), example(c, 2)
    steps = [walk(network, batch, 1, head, kind) for head in range(c.n_heads)]
    for one in steps:
        masked = one.scores.masked_fill(~one.allowed, float("-inf"))
        torch.testing.assert_close(one.weights, masked.softmax(-1), atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(one.mixed, one.weights @ one.value, atol=1e-5, rtol=1e-4)
    with record(network, [tap]) as kept, torch.no_grad():
        network(batch)
    layer = network.get_submodule(tap.rpartition(".")[0]).layer
    bias = 0 if layer.output.bias is None else layer.output.bias.detach()
    torch.testing.assert_close(sum(one.output for one in steps) + bias, kept[tap][0], atol=1e-5, rtol=1e-4)
    last = walk(network, batch, -1, -1, kind)
    assert last.layer == 1 and last.head == c.n_heads - 1
    dot = steps[0].query @ steps[0].key.T
    if name in ("gpt2", "bert-base", "vit-b16", "transformer-base"):
        torch.testing.assert_close(steps[0].scores, dot / steps[0].query.size(1) ** 0.5, atol=1e-5, rtol=1e-4)


def test_what_has_no_softmax_cannot_be_walked_through() -> None:
    c = tiny("performer")
    with pytest.raises(QkvError, match="softmax"):
        walk(build(c).eval(), example(c, 1))
