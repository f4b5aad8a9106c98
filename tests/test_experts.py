"""Mixture of experts: the sum over the chosen experts, padding, the load-balancing loss, counts, and Mixtral's layer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from transformers import MixtralConfig
from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock, load_balancing_loss_func

from qkv.batch import Batch
from qkv.config import ModelConfig, load_recipe
from qkv.engine.pack import pack
from qkv.errors import ConfigError
from qkv.models.build import build
from qkv.models.example import example
from qkv.models.flops import forward_flops
from qkv.models.params import count
from qkv.objectives import objective
from qkv.parts.experts import Experts
from qkv.parts.feedforward import ACTIVATIONS, GATED, FeedForward
from qkv.parts.masks import Mask
from qkv.parts.tap import record
from qkv.recipes import find
from qkv.train import run as training
from qkv.train.report import Report
from qkv.train.step import gradients, loss_module

KINDS = sorted((ACTIVATIONS.keys() | GATED.keys()) - {"tanh"})
WIDTH, INNER = 12, 20


def experts(n: int, k: int, kind: str = "relu", softmax: str = "chosen", bias: bool = True) -> Experts:
    torch.manual_seed(0)
    return Experts([FeedForward(WIDTH, INNER, kind, bias) for _ in range(n)], WIDTH, k, softmax)


def balance_of(layer: Experts, x: Tensor, mask: Mask | None = None) -> Tensor:
    with record(layer, ["tap_balance"]) as kept:
        layer(x, mask)
    return kept["tap_balance"]


@pytest.mark.parametrize("kind", KINDS)
def test_one_expert_is_the_plain_layer(kind: str) -> None:
    layer, x = experts(1, 1, kind), torch.randn(3, 5, WIDTH)
    assert torch.equal(layer(x), layer.experts[0](x))


@pytest.mark.parametrize("softmax", ["chosen", "all"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "k"), [(5, 2), (4, 4), (6, 1)])
def test_tokens_get_the_weighted_sum_of_their_experts(kind: str, softmax: str, n: int, k: int) -> None:
    """Every expert on every token, and a weight of 0 for all but the k with the largest logits."""
    layer, x = experts(n, k, kind, softmax), torch.randn(3, 7, WIDTH)
    logits = layer.router(x)  # (B, T, n)
    smallest = logits.topk(k, -1).values[..., -1:]
    if softmax == "chosen":
        weights = logits.masked_fill(logits < smallest, float("-inf")).softmax(-1)
    else:
        weights = logits.softmax(-1) * (logits >= smallest)
    every = torch.stack([expert(x) for expert in layer.experts], -1)  # (B, T, C, n)
    torch.testing.assert_close(layer(x), (every * weights[:, :, None]).sum(-1), atol=1e-6, rtol=1e-5)


def test_padding_is_neither_routed_nor_counted() -> None:
    layer, x = experts(4, 2), torch.randn(2, 6, WIDTH)
    real = torch.tensor([[True] * 6, [False, False, True, True, True, False]])
    x[~real] = torch.nan
    mixed, balance = layer(x, Mask(6, real)), balance_of(layer, torch.nan_to_num(x, 7.0), Mask(6, real))
    assert torch.equal(mixed[~real], torch.zeros(3, WIDTH))
    torch.testing.assert_close(mixed[1:, 2:5], layer(x[1:, 2:5]))
    torch.testing.assert_close(balance[1:], balance_of(layer, x[1:, 2:5]))


def test_the_loss_is_1_for_an_even_load_and_n_for_one_expert() -> None:
    layer = experts(4, 1, softmax="all")
    with torch.no_grad():
        layer.router.weight.zero_()[:, :4] = 40 * torch.eye(4)
    even = torch.eye(4, WIDTH).repeat(2, 1)[None]  # (1, 8, C): each expert is chosen by two tokens
    torch.testing.assert_close(balance_of(layer, even), torch.ones(1))
    torch.testing.assert_close(balance_of(layer, even[:, :1].repeat(1, 8, 1)), torch.full((1,), 4.0))


def mixtral(layer: Experts) -> MixtralSparseMoeBlock:
    """Their layer with the weights of ours."""
    n, k = len(layer.experts), layer.per_token
    block = MixtralSparseMoeBlock(MixtralConfig(
        hidden_size=WIDTH, intermediate_size=INNER, num_local_experts=n, num_experts_per_tok=k, hidden_act="silu",
    ))  # fmt: skip
    with torch.no_grad():
        block.gate.weight.copy_(layer.router.weight)
        for i, expert in enumerate(layer.experts):
            block.experts.gate_up_proj[i] = torch.cat([expert.gate.weight, expert.up.weight])
            block.experts.down_proj[i] = expert.down.weight
    return block


@pytest.mark.parametrize("k", [1, 2, 3])
def test_mixtral_has_the_same_outputs_logits_and_balance(k: int) -> None:
    layer, x = experts(6, k, "swiglu", bias=False), torch.randn(1, 9, WIDTH)
    block = mixtral(layer)
    with record(layer, ["tap_router", "tap_balance"]) as kept:
        torch.testing.assert_close(layer(x), block(x), atol=1e-6, rtol=1e-5)
    theirs = block.gate(x)[0]  # (T, n)
    torch.testing.assert_close(kept["tap_router"].flatten(0, 1), theirs)
    loss = load_balancing_loss_func((theirs,), 6, k)
    torch.testing.assert_close(k * kept["tap_balance"][0], loss)  # they count each of the k choices as a whole one


SMALL = {"vocab_size": 40, "d_model": 16, "n_layers": 2, "n_heads": 2, "d_ff": 24, "n_experts": 4}
FAMILIES = {
    "encoder": {"family": "encoder", "head": "masked"},
    "decoder": {"family": "decoder", "norm_order": "parallel", "feedforward": "swiglu"},
    "encoder-decoder": {"family": "encoder-decoder", "norm_order": "pre"},
    "classifier": {"family": "encoder", "head": "classes", "share_layers": True},
    "score": {"family": "encoder", "head": "classes", "n_classes": 1},
    "answers": {"family": "encoder", "head": "span"},
}


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_adds_the_balance_of_every_layer(name: str) -> None:
    """The training loss is the objective and, for each row, its targets times the weighted balance of all layers."""
    c = ModelConfig(**SMALL, **FAMILIES[name], balance_weight=0.5)
    network, batch = build(c).eval(), example(c, rows=3)
    taps = [n for n, _ in network.named_modules(remove_duplicate=False) if n.endswith("tap_balance")]
    assert len(taps) == (4 if c.family == "encoder-decoder" else 2)
    with record(network, taps) as kept:
        plain = objective(c)(network(batch), batch)
    loss = gradients(loss_module(network, objective(c)), [batch])
    balances = torch.stack(list(kept.values())).sum(0)  # (B,)
    torch.testing.assert_close(loss.sum, plain.sum.detach() + 0.5 * (balances * batch.row_counts).sum().detach())
    assert batch.row_counts.sum() == loss.count == batch.count


def test_the_balance_alone_evens_a_load() -> None:
    layer, x = experts(4, 1, softmax="all"), torch.randn(1, 64, WIDTH)
    with torch.no_grad():
        layer.router.weight[0] += x.mean((0, 1)) * 20  # most tokens choose the first expert
    adam, before = torch.optim.Adam(layer.router.parameters(), 0.05), balance_of(layer, x).item()
    for _ in range(60):
        adam.zero_grad()
        balance_of(layer, x).sum().backward()
        adam.step()
    assert balance_of(layer, x).item() < 1.1 < 1.4 < before


@pytest.mark.parametrize("name", FAMILIES)
def test_a_packed_network_gives_the_same(name: str) -> None:
    c = ModelConfig(**SMALL, **FAMILIES[name])
    network, batch = build(c).eval(), example(c, rows=3)
    with torch.no_grad():
        torch.testing.assert_close(pack(network)(batch).logits, network(batch).logits, atol=1e-5, rtol=1e-5)


def test_counts_tell_active_from_all() -> None:
    sizes = {"family": "decoder", "vocab_size": 50, "d_model": 16, "n_layers": 3, "n_heads": 2, "d_ff": 40}
    plain, mixed = ModelConfig(**sizes), ModelConfig(**sizes, n_experts=5, experts_per_token=2)
    layer, router = 16 * 40 * 2 + 40 + 16, 5 * 16
    assert count(mixed).parameters == count(plain).parameters + 3 * (4 * layer + router)
    assert count(mixed).active == count(plain).active + 3 * (layer + router)
    assert count(plain).active == count(plain).parameters
    batches = [(2, 7, 0)]
    assert forward_flops(mixed, batches) == forward_flops(plain, batches) + 2 * 2 * 7 * 3 * (16 * 40 * 2 + router)


def test_the_initial_residual_stream_does_not_depend_on_the_number_of_experts() -> None:
    c = ModelConfig(family="decoder", **{**SMALL, "d_model": 64, "d_ff": 256}, init_residual=True)
    (some,) = {round(m.down.weight.std().item(), 2) for m in build(c).modules() if isinstance(m, FeedForward)}
    (one,) = {
        round(m.down.weight.std().item(), 2)
        for m in build(c.changed(n_experts=0)).modules()
        if isinstance(m, FeedForward)
    }
    assert some == one


@pytest.mark.parametrize(("fields", "message"), [
    ({"experts_per_token": 5}, "experts_per_token = 5 is more than n_experts = 4"),
    ({"experts_per_token": 1}, "the router would not be trained"),
    ({"feedforward": "none"}, "needs attention blocks with a feed-forward layer"),
    ({"recurrent": "lstm"}, "needs attention blocks with a feed-forward layer"),
])  # fmt: skip
def test_experts_that_cannot_be(fields: dict[str, object], message: str) -> None:
    from qkv.config import validate

    with pytest.raises(ConfigError, match=message):
        validate(ModelConfig, {"family": "decoder", "position": "none", **SMALL, **fields})


def test_a_run_logs_the_balance(tmp_path: Path) -> None:
    changes = ["model.n_experts=3", "train.steps=2", "data.train=[{grammar=200}]", "data.valid={grammar=8}",
               "data.vocab_size=200", "train.evaluate_every=2", "train.workers=1"]  # fmt: skip
    run = training.open_run(load_recipe(find("grammar-lm"), changes), tmp_path / "run", Report(quiet=True))
    training.learn(run, Report(quiet=True))
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert len(lines) == 2 and all(1 <= line["expert_balance"] <= 3 for line in lines)


def test_router_and_experts_learn() -> None:
    """Every weight of a mixture has a gradient, also where no token chose an expert."""
    c = ModelConfig(family="decoder", **{**SMALL, "n_experts": 16}, experts_per_token=1, expert_softmax="all")
    network: nn.Module = build(c)
    gradients(loss_module(network, objective(c)), [Batch(torch.tensor([[5, 6]]), targets=torch.tensor([[6, 7]]))])
    assert all(p.grad is not None for p in network.parameters())
    assert all(m.router.weight.grad.abs().max() > 0 for m in network.modules() if isinstance(m, Experts))
