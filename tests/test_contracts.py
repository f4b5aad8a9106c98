"""The contracts of docs/architecture.md on every preset (tiny), and proof that each one fails when its code is broken."""

import copy
import os
import socket
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F

import qkv.check
from qkv.batch import Batch, Loss
from qkv.check import CONTRACTS, check
from qkv.config import ModelConfig
from qkv.models.build import build
from qkv.models.example import example
from qkv.objectives import objective
from qkv.parts import linear_attention, mixers
from qkv.parts.attention import Attention
from qkv.parts.masks import Mask
from qkv.parts.state import State
from qkv.presets import PRESETS, tiny
from qkv.train.step import data_parallel, gradients, loss_module


def randomised(c: ModelConfig, seed: int = 0) -> torch.nn.Module:
    """A network in which no weight is 0 or 1: fresh biases and norms would hide what they should show."""
    torch.manual_seed(seed)
    network = build(c)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return network


ENCODERS = ("albert", "bert", "deberta", "electra", "linformer", "longformer", "minilm", "roberta", "roformer", "vit")
DOES_NOT_APPLY: dict[str, tuple[str, ...]] = {
    "causal": ENCODERS,
    "padding": ("vit",),
    "batch": (),
    "cache": ENCODERS,
    "kernel": ("linear-transformer", "linformer", "mamba", "performer"),
    "accumulate": (),
    "resume": (),
    "round trip": (
        *("albert", "based", "bloom", "gla", "gpt-", "gpt3-xl", "gpt3-13b", "gru", "linear-transformer", "linformer"),
        *("longformer", "lstm", "luong", "mamba", "palm", "performer", "rnn", "roformer", "s4d", "transformer-dmca"),
        "transformer-relative",
    ),
    "export": (),
}
"""Contract -> the presets to which it does not apply, by how their names (and a dash) begin. On all others it is measured."""


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_every_preset_keeps_every_contract_that_applies(name: str) -> None:
    c = tiny(name)
    results = check(randomised(c), c)
    expected = {
        contract: "does not apply" if f"{name}-".startswith(names) else "holds"
        for contract, names in DOES_NOT_APPLY.items()
    }
    assert {r.contract: r.status for r in results} == expected, [r for r in results if r.status == "broken"]


VARIANTS: dict[str, dict[str, object]] = {
    "bilinear": {"score": "bilinear"},
    "low-rank": {"score": "low-rank", "score_rank": 3},
    "additive": {"score": "additive"},
    "shaw": {"position": "relative", "relative_distance": 3},
    "disentangled": {"position": "disentangled", "relative_distance": 3, "attention_bias": "all-but-key"},
    "disentangled, grouped": {"position": "disentangled", "relative_distance": 9, "n_kv_heads": 2},
    "t5 bias": {"position": "t5", "relative_buckets": 8},
    "rotary, grouped": {"position": "rotary", "n_kv_heads": 2},
    "concatenated": {"position_use": "concat", "d_embed": 24},
    "every layer": {"position_use": "every-layer"},
    "linear positions": {"position": "linear"},
    "geometric positions": {"position": "geometric", "position_use": "concat", "d_embed": 24},
    "exponential positions": {"position": "exponential", "position_use": "every-layer"},
    "binary positions": {"position": "binary"},
    "unitary": {"position": "unitary"},
    "learned rotation": {"position": "rotary-learned", "n_kv_heads": 2},
    "attention dropout": {"attention_dropout": 0.2, "ffn_dropout": 0.1},
    "experts": {"n_experts": 4, "experts_per_token": 2},
    "switch": {
        "n_experts": 3,
        "experts_per_token": 1,
        "expert_softmax": "all",
        "feedforward": "swiglu",
        "ffn_bias": False,
    },
    "window": {"mixer": "window", "window": 2, "n_global": 1},
    "performer": {"mixer": "performer", "mixer_rank": 32},
    "linear": {"mixer": "linear"},
    "compressed": {"mixer": ["window", "compressed"], "window": 2},
    "gated, state spaces": {"mixer": ["gated-linear", "s4d", "selective"], "n_layers": 3, "d_state": 4},
    "without residual connections": {"residual": False},
    "without norms": {"norm": "none"},
    "linear feed-forward": {"feedforward": "linear"},
    "without feed-forward": {"feedforward": "none"},
    "without projections": {"projections": False, "position": "learned"},
    "linear without projections": {"projections": False, "mixer": "linear"},
    "causal": {"causal": True},
    "not causal": {"causal": False, "position": "t5"},
}


@pytest.mark.parametrize("family", ["encoder", "decoder", "encoder-decoder"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_part_keeps_every_contract_in_every_family(family: str, variant: str) -> None:
    head = "masked" if family == "encoder" else "vocabulary"
    fields = {"vocab_size": 60, "d_model": 32, "n_layers": 2, "n_heads": 4, "d_ff": 48, **VARIANTS[variant]}
    c = ModelConfig(family=family, head=head, **fields)
    results = {r.contract: r for r in check(randomised(c), c)}
    skipped = {name for name, r in results.items() if r.status == "does not apply"} - {"kernel", "round trip"}
    assert skipped == ({"causal"} if not c.is_causal else set()) | (
        {"cache"} if family == "encoder" or not c.is_causal else set()
    )
    assert not [r for r in results.values() if r.status == "broken"]


HALVES: dict[str, dict[str, object]] = {
    "shared weights": {"share_encoder_decoder": True},
    "linear cross-attention": {"cross_mixer": "linear", "n_kv_heads": 2},
    "performer cross-attention": {"cross_mixer": "performer", "mixer_rank": 32},
    "taylor cross-attention": {"cross_mixer": "taylor", "d_key": 4},
    "linformer cross-attention": {"cross_mixer": "linformer", "mixer_rank": 4, "n_kv_heads": 2},
}


@pytest.mark.parametrize("variant", HALVES)
def test_every_connection_of_encoder_and_decoder_keeps_every_contract(variant: str) -> None:
    fields = {"vocab_size": 60, "d_model": 32, "n_layers": 2, "n_heads": 4, "d_ff": 48, **HALVES[variant]}
    c = ModelConfig(family="encoder-decoder", **fields)
    assert {r.status for r in check(randomised(c), c) if r.contract != "round trip"} == {"holds"}


HEADS: dict[str, dict[str, object]] = {
    "masked, next": {"family": "encoder", "head": "masked-next", "n_segments": 2, "tie": "output"},
    "span": {"family": "encoder", "head": "span"},
    "score": {"family": "encoder", "head": "classes", "n_classes": 1},
    "mean": {"family": "encoder", "head": "classes", "pooling": "mean", "pooler": False},
    "pairs of words": {
        "family": "encoder",
        "head": "classes",
        "pooling": "mean",
        "bigram_buckets": 50,
    },
    "last": {"family": "encoder", "head": "classes", "pooling": "last"},
    "pooled mean": {"family": "encoder", "head": "pooled", "pooling": "mean"},
    "decoder, last": {"family": "decoder", "head": "classes", "pooling": "last", "pooler": False},
    "decoder, words": {
        "family": "decoder",
        "head": "classes-words",
        "pooling": "last",
        "n_classes": 3,
        "tie": "output",
    },
    "recurrent, mean": {"family": "decoder", "head": "classes-words", "pooling": "mean", "recurrent": "gru"},
}


@pytest.mark.parametrize("position", ["sinusoidal", "rotary", "t5", "relative"])
def test_a_prefix_mask_keeps_every_contract(position: str) -> None:
    c = ModelConfig(family="decoder", vocab_size=60, d_model=32, n_layers=2, n_heads=4, d_ff=48, bos_id=1, eos_id=2,
                    prefix_mask=True, position=position)  # fmt: skip
    assert {r.status for r in check(randomised(c), c) if r.contract != "round trip"} == {"holds"}


@pytest.mark.parametrize("head", HEADS)
def test_every_head_keeps_every_contract(head: str) -> None:
    c = ModelConfig(vocab_size=60, d_model=32, n_layers=2, n_heads=4, d_ff=48, **HEADS[head])
    assert not [r for r in check(randomised(c), c) if r.status == "broken"]


# --- several workers


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def _worker(rank: int, port: int, c: ModelConfig, network: torch.nn.Module, batch: Batch, out: mp.SimpleQueue) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=2)
    for batches in (
        [batch],
        [batch.rows(slice(0, 1)), batch.rows(slice(1, 4))],
    ):  # one row: nothing for the second worker
        loss = gradients(data_parallel(loss_module(network, objective(c))), batches)
        if rank == 1:
            out.put([loss.mean.item(), [p.grad.tolist() for p in network.parameters()]])
    dist.destroy_process_group()


def test_two_workers_give_the_gradient_of_one() -> None:
    """Also with accumulation, with experts of which some have no token of a worker, and where a batch has fewer rows than there
    are workers."""
    c = ModelConfig(family="encoder-decoder", vocab_size=20, d_model=16, n_layers=1, n_heads=2, d_ff=16, tie="all",
                    n_experts=8, experts_per_token=2, balance_weight=1.0)  # fmt: skip
    network, batch = randomised(c).eval(), example(c, rows=4)
    context = mp.get_context("spawn")
    out = context.SimpleQueue()
    started = mp.start_processes(_worker, (_free_port(), c, network, batch, out), 2, join=False, start_method="spawn")
    found = [out.get(), out.get()]  # before the join: a full pipe would hold the worker
    started.join()
    loss = gradients(loss_module(network, objective(c)), [batch])
    for mean, together in found:
        assert loss.mean.item() == pytest.approx(mean, rel=1e-6)
        for parameter, gradient in zip(network.parameters(), together, strict=True):
            torch.testing.assert_close(parameter.grad, torch.tensor(gradient), atol=1e-6, rtol=1e-5)


# --- each contract fails when its code is broken on purpose

Patch = pytest.MonkeyPatch
DECODER = ModelConfig(family="decoder", vocab_size=60, d_model=32, n_layers=2, n_heads=4, d_ff=48, position="learned",
                      norm_order="pre", feedforward="gelu-tanh", tie="output")  # fmt: skip


def lets_the_future_in(patch: Patch) -> None:
    original = Mask.kernel.func
    patch.setattr(Mask, "kernel", property(lambda self: (original(self)[0], False)))


def attends_to_padding(patch: Patch) -> None:
    original = Mask.__init__

    def forgetful(self: Mask, queries: int, keys: object = None, *rest: object, **more: object) -> None:
        original(self, queries, None, *rest, **more)

    patch.setattr(Mask, "__init__", forgetful)


def counts_positions_from_the_left_edge(patch: Patch) -> None:
    patch.setattr(Mask, "key_positions", property(lambda self: torch.arange(self.length)[None]))


def gives_all_rows_the_positions_of_the_first(patch: Patch) -> None:
    original = Mask.key_positions.func
    patch.setattr(Mask, "key_positions", property(lambda self: original(self)[:1]))


def takes_all_rows_for_as_long_as_the_longest(patch: Patch) -> None:
    original = mixers.real_lengths
    patch.setattr(mixers, "real_lengths", lambda *a: original(*a).amax(0, keepdim=True).expand_as(original(*a)))


def forgets_padding_between_steps(patch: Patch) -> None:
    original = State.seen
    patch.setattr(State, "seen", lambda self, n, mask: original(replace(self, keys=None), n, mask))


def leaves_rows_where_they_are(patch: Patch) -> None:
    patch.setattr(State, "select", lambda self, rows: self)


def normalises_over_the_batch(patch: Patch) -> None:
    patch.setattr(
        "qkv.parts.norm.LayerNorm.forward", lambda self, x: (x - x.mean()) / x.std() * self.weight + self.bias
    )


def forgets_the_first_key(patch: Patch) -> None:
    original = Attention.extend

    def extend(self: Attention, x: torch.Tensor, place: object, state: dict | None) -> tuple:
        key, value, kept = original(self, x, place, state)
        return (
            key,
            value,
            {n: torch.cat([t[:, :, 1:2], t[:, :, 1:]], 2) if t.size(2) > 1 else t for n, t in kept.items()},
        )

    patch.setattr(Attention, "extend", extend)


def scales_the_kernel_otherwise(patch: Patch) -> None:
    original = F.scaled_dot_product_attention
    patch.setattr(F, "scaled_dot_product_attention", lambda q, *rest, **more: original(q * 1.01, *rest, **more))


def moves_the_window_wrongly(patch: Patch) -> None:
    patch.setattr(mixers.Window, "band", lambda self, q, k, v, m: q * 0 + 7)


def forgets_what_came_before_a_chunk(patch: Patch) -> None:
    patch.setattr(linear_attention.Sum, "add", lambda self, features, sizes, value: self)


def divides_each_micro_batch_by_its_own_count(patch: Patch) -> None:
    def own_mean(c: ModelConfig) -> Callable[..., Loss]:
        return lambda output, batch: Loss(objective(c)(output, batch).mean, 1)

    patch.setattr(qkv.check, "objective", own_mean)


def forgets_the_random_numbers(patch: Patch) -> None:
    patch.setattr(torch, "set_rng_state", lambda state: None)


def forgets_the_optimiser(patch: Patch) -> None:
    patch.setattr(torch.optim.AdamW, "load_state_dict", lambda self, state: None)


def rounds_on_import(patch: Patch) -> None:
    original = qkv.check.huggingface.from_foreign
    patch.setattr(qkv.check.huggingface, "from_foreign",
                  lambda *a: {n: t.bfloat16().float() for n, t in original(*a).items()})  # fmt: skip


def reads_another_configuration(patch: Patch) -> None:
    original = qkv.check.huggingface.read_config
    patch.setattr(qkv.check.huggingface, "read_config", lambda *a: original(*a).changed(norm_eps=0.5))


def saves_half_precision(patch: Patch) -> None:
    original = qkv.check.ours.save
    patch.setattr(
        qkv.check.ours, "save", lambda where, c, n, *a: original(where, c, copy.deepcopy(n).half().float(), *a)
    )


BREAKS = [
    (lets_the_future_in, DECODER, "causal"),
    (attends_to_padding, DECODER, "padding"),
    (attends_to_padding, tiny("transformer-base"), "padding"),
    (attends_to_padding, tiny("rnnsearch"), "padding"),
    (counts_positions_from_the_left_edge, DECODER, "padding"),
    (counts_positions_from_the_left_edge, tiny("t5-small"), "padding"),
    (gives_all_rows_the_positions_of_the_first, tiny("llama-7b"), "padding"),
    (takes_all_rows_for_as_long_as_the_longest, tiny("longformer-base"), "padding"),
    (normalises_over_the_batch, DECODER, "batch"),
    (forgets_the_first_key, DECODER, "cache"),
    (forgets_padding_between_steps, tiny("llama-7b"), "cache"),
    (forgets_padding_between_steps, tiny("t5-small"), "cache"),
    (leaves_rows_where_they_are, DECODER, "cache"),
    (leaves_rows_where_they_are, tiny("rnnsearch"), "cache"),
    (forgets_what_came_before_a_chunk, tiny("linear-transformer"), "cache"),
    (scales_the_kernel_otherwise, DECODER, "kernel"),
    (scales_the_kernel_otherwise, tiny("bert-base"), "kernel"),
    (moves_the_window_wrongly, tiny("longformer-base"), "kernel"),
    (divides_each_micro_batch_by_its_own_count, DECODER, "accumulate"),
    (forgets_the_random_numbers, DECODER, "resume"),
    (forgets_the_optimiser, DECODER, "resume"),
    (rounds_on_import, DECODER, "round trip"),
    (reads_another_configuration, DECODER, "round trip"),
    (saves_half_precision, DECODER, "export"),
]


@pytest.mark.parametrize(
    ("broken", "c", "name"), BREAKS, ids=[f"{f.__name__}-{name}-{i}" for i, (f, _, name) in enumerate(BREAKS)]
)
def test_each_contract_sees_the_break_it_is_there_for(
    broken: Callable[[Patch], None], c: ModelConfig, name: str, monkeypatch: Patch
) -> None:
    network = randomised(c)
    assert [r.status for r in check(network, c, only=name)] == ["holds"]
    broken(monkeypatch)
    result = check(network, c, only=name)
    assert [r.status for r in result] == ["broken"], result


def test_every_contract_has_a_break() -> None:
    assert {name for _, _, name in BREAKS} == set(CONTRACTS)


def test_a_network_with_a_nan_keeps_no_contract() -> None:
    network = randomised(DECODER)
    with torch.no_grad():
        network.stack.norm.weight[0] = float("nan")
    results = check(network, DECODER)
    assert {r.status for r in results} == {"broken"}, [r.contract for r in results if r.status != "broken"]


def test_short_models_are_checked_too() -> None:
    for length in (1, 4, 6):
        c = DECODER.changed(max_length=length)
        found = {r.contract: r.status for r in check(randomised(c), c)}
        assert {name for name, status in found.items() if status != "holds"} <= {"batch"}, length
