"""Recurrent translators: small ones learn to copy and show where they look, their recipes are equals, and operations are counted."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from qkv.batch import Batch
from qkv.config import ModelConfig, TrainConfig, load_recipe
from qkv.generate.alignment import attention
from qkv.generate.search import greedy
from qkv.models.build import build, skeleton
from qkv.models.flops import forward_flops, training_flops
from qkv.objectives import translation
from qkv.recipes import find
from qkv.tasks.translation import collate_pairs
from qkv.train.optimizer import make_optimizer
from qkv.train.step import LossModule, step

SIZES: dict[str, Any] = {"family": "encoder-decoder", "vocab_size": 13, "d_model": 32, "n_layers": 1, "dropout": 0.0,
                         "tie": "all", "embed_scale": True, "pad_id": 0, "bos_id": 1, "eos_id": 2}  # fmt: skip
ATTENTION = SIZES | {"n_heads": 2, "d_ff": 48}
CELLS = SIZES | {"position": "none"}
SEARCH = CELLS | {"recurrent": "gru", "bidirectional": True, "decoder_attention": "additive"}
SYSTEMS: dict[str, dict[str, Any]] = {
    "seq2seq": CELLS | {"recurrent": "lstm", "reverse_source": True, "n_layers": 2},
    "rnnenc": CELLS | {"recurrent": "gru", "fixed_context": True},
    "rnnsearch": SEARCH,
    "luong": SEARCH | {"decoder_attention": "bilinear", "input_feeding": True},
}
RECIPES = [f"multi30k-{name}" for name in SYSTEMS]


# --- small ones learn


def texts(count: int, shortest: int, longest: int, seed: int) -> list[list[int]]:
    """Random words, of which a copy is to be made."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(shortest, longest + 1, (count,), generator=generator)
    return [torch.randint(3, 13, (n,), generator=generator).tolist() for n in lengths.tolist()]


def copier(values: dict[str, Any], updates: int) -> tuple[nn.Module, ModelConfig]:
    config = ModelConfig(**values)
    torch.manual_seed(0)
    network = build(config).train()
    optimiser = make_optimizer(network, TrainConfig(learning_rate=1e-2))
    for update in range(updates):
        batch = collate_pairs([(text, text) for text in texts(32, 1, 3, update)], config)
        step(LossModule(network, lambda output, batch: translation(output, batch, 0.0)), optimiser, [batch], 1.0)
        for group in optimiser.param_groups:
            group["lr"] = 1e-2 * (1 - update / updates)
    return network.eval(), config


@pytest.mark.parametrize(("name", "updates"), [("seq2seq", 250), ("rnnenc", 300), ("rnnsearch", 200), ("luong", 150)])
def test_a_small_one_learns_to_copy(name: str, updates: int) -> None:
    network, config = copier(SYSTEMS[name] | {"n_layers": 1}, updates)
    unseen = texts(100, 1, 3, seed=10_000)
    written = greedy(network, collate_pairs([(text, []) for text in unseen], config), 8, config.eos_ids)  # type: ignore[arg-type]
    right = [
        [token for token in ids if token != config.eos_id] == text for ids, text in zip(written, unseen, strict=True)
    ]
    assert sum(right) >= 85
    if name in ("rnnsearch", "luong"):  # and it looks at the word that it copies
        looks = attention(network, collate_pairs([(text, text) for text in unseen if len(text) == 3], config))
        assert (looks[:, :3].argmax(-1) == torch.arange(3)).float().mean() > 0.4  # by chance 1 in 4


@pytest.mark.parametrize("name", [*SYSTEMS, "two ways", "two ways, lstm"])
def test_half_precision_is_nearly_single_precision(name: str) -> None:
    """Also where a bridge, whose product is done in bfloat16, hands its state to a kernel that is not."""
    both = CELLS | {"recurrent": "lstm" if "lstm" in name else "gru", "bidirectional": True}
    torch.manual_seed(0)
    config = ModelConfig(**SYSTEMS.get(name, both))
    network, batch = build(config), collate_pairs([(text, text) for text in texts(4, 2, 6, 0)], config)
    exact = network(batch).logits
    with torch.autocast("cpu", torch.bfloat16):
        half = network(batch).logits.float()
    half.sum().backward()
    assert (half - exact).norm() < 0.02 * exact.norm()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in network.parameters())


# --- operations


def counted(network: nn.Module, batch: Batch, backward: bool) -> int:
    """By torch, which sees every product of the readable paths."""
    for module in network.modules():
        if hasattr(module, "fast"):
            module.fast = False
    with FlopCounterMode(display=False) as counter:
        logits = network(batch).logits
        if backward:
            logits.sum().backward()
    return counter.get_total_flops()


DECODERS = {
    "gpt": {"n_heads": 4, "n_kv_heads": 2, "d_ff": 48, "position": "rotary"},
    "gated": {"n_heads": 2, "d_ff": 48, "feedforward": "swiglu", "tie": "output", "share_layers": True, "n_layers": 2},
    "lstm": {"recurrent": "lstm", "position": "none", "n_layers": 2},
}
NETWORKS = {
    **SYSTEMS,
    "transformer": ATTENTION | {"n_layers": 2, "n_decoder_layers": 3},
    "bilinear": ATTENTION | {"score": "bilinear"},
    "low-rank": SEARCH | {"decoder_attention": "low-rank", "score_rank": 3, "d_embed": 16},
    "additive": ATTENTION | {"score": "additive"},
    **{name: SIZES | {"family": "decoder", "tie": "none"} | changes for name, changes in DECODERS.items()},
}


@pytest.mark.parametrize("name", NETWORKS)
def test_operations_are_those_that_torch_counts(name: str) -> None:
    config, (rows, target, source) = ModelConfig(**NETWORKS[name]), (3, 7, 5)
    both = config.family == "encoder-decoder"
    batch = Batch(torch.randint(3, 13, (rows, target)), source=torch.randint(3, 13, (rows, source)) if both else None)
    shape = (rows, target, source if both else 0)
    network = build(config)
    assert forward_flops(config, [shape]) == counted(network, batch, backward=False)
    ours = training_flops(config, [shape])
    assert ours == counted(network, batch, backward=True)
    assert training_flops(config, [shape, shape]) == 2 * ours


# --- recipes


def test_the_systems_are_equals() -> None:
    """In data, vocabulary, minutes and search; the size of a batch is the optimiser's matter."""
    recipes = [load_recipe(find(name)) for name in [*RECIPES, "multi30k-de-en"]]
    assert len({r.data.changed(batch_tokens=1).model_dump_json() for r in recipes if r.data}) == 1
    assert len({r.decode.model_dump_json() for r in recipes}) == 1
    assert len({(r.train.time_budget, r.train.seed) for r in recipes[:-1]}) == 1
    sizes = [sum(p.numel() for p in skeleton(r.model).parameters()) for r in recipes]
    assert max(sizes) < 2 * min(sizes)


def test_the_recurrent_writer_of_subjects_is_the_transformers_equal() -> None:
    ours, theirs = load_recipe(find("aeslc-rnn")), load_recipe(find("aeslc-ed"))
    assert (ours.data, ours.decode, ours.task) == (theirs.data, theirs.decode, theirs.task)
    assert ours.train.time_budget == theirs.train.time_budget
