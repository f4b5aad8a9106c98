"""`qkv cost`: parameters, operations and activation memory by part, against torch's own counters."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from qkv import objectives
from qkv.batch import IGNORED, Batch
from qkv.config import ModelConfig
from qkv.models.build import build, skeleton
from qkv.models.cost import cost
from qkv.models.example import example
from qkv.models.flops import Shape, forward_flops, training_flops
from qkv.models.params import count
from qkv.parts.compressed import Compressed
from qkv.parts.recurrent import RecurrentStack
from qkv.parts.softmax import Softmax
from qkv.presets import PRESETS, preset, tiny
from qkv.train.activation_memory import activation_memory, blank_batch
from qkv.train.training_cost import PUBLISHED

Run = Callable[..., tuple[int, str, str]]
ROWS, TOKENS, SOURCE = 2, 17, 13


def shape_of(c: ModelConfig, rows: int = ROWS, tokens: int = TOKENS, source: int = SOURCE) -> Shape:
    return rows, tokens, source if c.family == "encoder-decoder" else 0


def visible(network: nn.Module) -> nn.Module:
    """Products that torch's counter sees: its fused attention and recurrent kernels are opaque to it."""
    for module in network.modules():
        if isinstance(module, Softmax | Compressed | RecurrentStack):
            module.fast = False
    return network


def counted(run: Callable[[], Any]) -> int:
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


@cache
def count_both(c: ModelConfig, shape: Shape) -> tuple[int, int]:
    """Operations of torch's counter: forward, and forward with backward; sizes of one architecture are the same when tiny."""
    network, batch = visible(build(c)), blank_batch(c, shape)
    return counted(lambda: network(batch).logits), counted(lambda: network(batch).logits.sum().backward())


# --- operations


@pytest.mark.parametrize("name", PRESETS)
def test_operations_of_every_preset_are_those_that_torch_counts(name: str) -> None:
    """Reduced to a tiny size; exactly, which is stricter than the 1 % that the command promises."""
    c = tiny(name)
    shape = shape_of(c)
    assert (forward_flops(c, [shape]), training_flops(c, [shape])) == count_both(c, shape)


@pytest.mark.parametrize("name", PRESETS)
def test_operations_at_full_width_are_those_that_torch_counts(name: str) -> None:
    """On the meta device, with one layer of each kind; the others are the same."""
    c = preset(name)
    layers = len(c.mixer)
    c = c.changed(n_layers=layers, n_decoder_layers=c.n_decoder_layers and layers)
    shape, network = shape_of(c), visible(skeleton(c))
    with torch.device("meta"):
        batch = blank_batch(c, shape)
        theirs = counted(lambda: network(batch).logits)
    assert forward_flops(c, [shape]) == pytest.approx(theirs, rel=0.001)


BASE: dict[str, Any] = {
    "family": "decoder",
    "vocab_size": 30,
    "d_model": 16,
    "n_layers": 2,
    "n_heads": 2,
    "d_ff": 24,
    "max_length": 600,
}
READER = BASE | {"family": "encoder", "head": "masked"}
VARIANTS: dict[str, dict[str, Any]] = {
    "narrow encoder": BASE | {"family": "encoder-decoder", "d_encoder": 8},
    **{f"narrow recurrent encoder, {name}":
           BASE | {"family": "encoder-decoder", "recurrent": "gru", "position": "none", "d_encoder": 8, **fields}
       for name, fields in {"additive": {"decoder_attention": "additive"},
                            "bilinear": {"decoder_attention": "bilinear", "projections": False, "input_feeding": True},
                            "low rank": {"decoder_attention": "low-rank", "projections": False, "score_rank": 3}}.items()},
    "unitary": BASE | {"position": "unitary"},
    **{f"{mixer}, causal": BASE | {"mixer": mixer, "position": "none", "window": 8, "mixer_rank": 5, "d_key": d_key}
       for mixer, d_key in (("window", None), ("linear", None), ("performer", None), ("taylor", 4), ("compressed", None),
                            ("gated-linear", 4), ("s4d", None), ("selective", None))},
    **{f"{mixer}, both ways": READER | {"mixer": mixer, "position": "none", "window": 8, "n_global": 2, "mixer_rank": 5, "d_key": d_key}
       for mixer, d_key in (("window", None), ("linear", None), ("performer", None), ("taylor", 4), ("compressed", None),
                            ("linformer", None))},
    **{f"position {name}": READER | {"position": name}
       for name in ("none", "sinusoidal", "learned", "rotary", "relative", "t5", "alibi", "disentangled")},
    **{f"score {name}": BASE | {"score": name, "score_rank": 3} for name in ("dot", "bilinear", "low-rank", "additive")},
    "positions beside the words": READER | {"position_use": "concat", "d_embed": 12},
    "pairs of words": READER | {"bigram_buckets": 50},
    "few key heads": BASE | {"n_heads": 4, "n_kv_heads": 2, "mixer": "compressed"},
    "experts": BASE | {"n_experts": 4, "experts_per_token": 2, "feedforward": "swiglu"},
    "no projections": BASE | {"projections": False},
    "linear, no projections": BASE | {"projections": False, "mixer": "linear", "position": "none"},
    "a causal reader": READER | {"causal": True, "mixer": "linear", "position": "none"},
    "no mask": BASE | {"causal": False, "mixer": "linear", "position": "none"},
    **{f"{mixer} in a reader": READER | {"mixer": mixer, "position": "none", "d_key": d_key}
       for mixer, d_key in (("gated-linear", 4), ("s4d", None), ("selective", None))},
    **{f"cross-attention {mixer}": BASE | {"family": "encoder-decoder", "cross_mixer": mixer, "mixer_rank": 5}
       for mixer in ("linear", "performer", "linformer")},
    "copies": BASE | {"family": "encoder-decoder", "copy_source": True, "tie": "all", "d_embed": 12},
    "shared sides": BASE | {"family": "encoder-decoder", "share_encoder_decoder": True},
    "bare": BASE | {"residual": False, "norm": "none", "feedforward": "none"},
    "captions": BASE | {"family": "encoder-decoder", "image_size": 12, "patch_size": 4, "target_vocab_size": 30, "vocab_size": 0},
}  # fmt: skip


@pytest.mark.parametrize("tokens", [7, 150])
@pytest.mark.parametrize("name", VARIANTS)
def test_operations_of_every_part_are_those_that_torch_counts(name: str, tokens: int) -> None:
    """150 tokens are several chunks of linear attention and many windows."""
    c = ModelConfig(**VARIANTS[name])
    shape = shape_of(c, 2, tokens, 10)
    assert (forward_flops(c, [shape]), training_flops(c, [shape])) == count_both(c, shape)


HEADS = ("masked", "masked-next", "replaced", "classes", "tags", "span")


@pytest.mark.parametrize("head", [*HEADS, "vocabulary", "classes-words"])
def test_operations_of_an_update_are_those_of_its_loss(head: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a masked word model the logits of the masked positions alone; the second question of masked-next, the auxiliary loss."""
    c = ModelConfig(
        **(READER if head in HEADS else BASE)
        | {"head": head, "pooling": "mean", "n_segments": 2 if head == "masked-next" else 0}
    )
    # products in place, as in the chunked form, are not seen by torch's counter
    monkeypatch.setattr(
        objectives,
        "cross_entropy",
        lambda output, targets, *_, **__: objectives.readable_cross_entropy(output, targets),
    )
    network, batch = visible(build(c)), example(c, ROWS, length=TOKENS)
    targets = int((batch.targets != IGNORED).sum()) if batch.targets is not None and batch.targets.dim() == 2 else None
    targets = (
        batch.inputs.numel() - ROWS if head == "classes-words" else targets
    )  # every word but the last of a row has a next one
    training = cost(c, (ROWS, TOKENS, 0), targets).total.training
    assert training == counted(lambda: objectives.objective(c)(network(batch), batch).sum.backward())


# --- parts


@pytest.mark.parametrize(
    "name", ["gpt2", "transformer-base", "rnnsearch", "albert-base", "vit-b16", "mamba-130m", "t5-v1.1-small"]
)
def test_parts_sum_to_the_whole(name: str) -> None:
    c = preset(name)
    shape = shape_of(c)
    total = cost(c, shape).total
    assert total.parameters == count(c).parameters
    assert total.forward == forward_flops(c, [shape])
    assert total.training == training_flops(c, [shape])


def test_parts_of_gpt2_are_those_of_the_formulas() -> None:
    c, n = preset("gpt2"), 1024
    parts = {one.part: one for one in cost(c, (1, n, 0)).parts}
    layers, d, words = 12, 768, 50_257
    assert parts["attention projections"].forward == layers * 2 * n * 4 * d * d
    assert parts["attention scores"].forward == layers * 2 * 2 * n * n * d
    assert parts["feed-forward"].forward == layers * 2 * n * 8 * d * d
    assert parts["feed-forward"].parameters == layers * (8 * d * d + 5 * d)
    assert parts["head"].forward == 2 * n * d * words
    assert (parts["head"].parameters, parts["embeddings"].parameters) == (0, words * d)  # tied
    assert (parts["embeddings"].forward, parts["norms"].forward) == (0, 0)


def test_window_attention_is_linear_in_the_length_and_softmax_quadratic() -> None:
    def scores(mixer: str, tokens: int) -> int:
        c = ModelConfig(**READER | {"mixer": mixer, "window": 8})
        return next(one.forward for one in cost(c, (1, tokens, 0)).parts if one.part == "attention scores")

    assert scores("window", 512) == 2 * scores("window", 256)
    assert scores("softmax", 512) == 4 * scores("softmax", 256)


# --- activations


class Kept:
    def __init__(self, x: Tensor):
        self.x = x


def kept_by_autograd(network: nn.Module, batch: Batch) -> int:
    """Bytes of the storages that autograd keeps up to the word matrix, each once, the weights not."""
    entries: list[weakref.ref[Kept]] = []

    def keep(x: Tensor) -> Kept:
        entries.append(weakref.ref(kept := Kept(x)))
        return kept

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda kept: kept.x):
        output = network(batch)
        head: Any = output.head
        answer = head.features(output.hidden) if hasattr(head, "features") else output.logits
    storages = {kept.x.untyped_storage().data_ptr(): kept.x.untyped_storage().nbytes()
                for entry in entries if (kept := entry()) is not None}  # fmt: skip
    for weight in network.parameters():
        storages.pop(weight.untyped_storage().data_ptr(), None)
    loss = answer.nbytes if hasattr(head, "features") else 0  # the gradient of what it reads
    return sum(storages.values()) + loss


@pytest.mark.parametrize(
    "name",
    ["transformer-base", "t5-small", "bert-base", "deberta-base", "longformer-base", "vit-b16", "gpt2", "llama3-8b", "bloom-560m",
     "transformer-dmca", "performer", "gla-340m", "s4d", "palm-8b", "rnnsearch", "luong", "lstm-lm",
     "experts", "no projections", "shared sides"],
)  # fmt: skip
def test_activation_memory_is_what_autograd_keeps(name: str) -> None:
    c = ModelConfig(**VARIANTS[name]) if name in VARIANTS else tiny(name)
    network, shape = build(c).train(), shape_of(c)
    for module in network.modules():
        if isinstance(module, RecurrentStack):
            module.fast = False
    assert activation_memory(c, shape).total() == kept_by_autograd(network, blank_batch(c, shape))


def test_attention_dropout_keeps_three_tables_per_layer() -> None:
    """The weights, the mask of the dropout and their product, B H T S numbers each; without it the kernel keeps none."""
    c = tiny("gpt3-small")
    shape = (2, 50, 0)
    plain, dropping = (
        activation_memory(c.changed(attention_dropout=p), shape)["", "attention scores"] for p in (0.0, 0.1)
    )
    tables = 3 * c.n_layers * 2 * c.n_heads * 50 * 50 * 4
    assert tables * 0.9 < dropping - plain < tables * 1.1


# --- the command


@pytest.mark.parametrize("name", ["transformer-base", "rnnsearch", "demo", "masked", "replaced", "digits", "example"])
def test_the_table_fits_into_80_columns(run: Run, name: str) -> None:
    code, out, _ = run("cost", name)
    assert code == 0 and max(map(len, out.splitlines())) <= 80


def test_training_cost_of_2017(run: Run) -> None:
    """Table 2 of the paper: 3.3e18 for base, 2.3e19 for big."""
    assert [f"{PUBLISHED[f'transformer-{size}'].operations:.1e}" for size in ("base", "big")] == ["3.3e+18", "2.3e+19"]
    found = json.loads(run("cost", "transformer-base", "--json", "--batch", 1, "--length", 32)[1])
    counted = found["published"]["counted"]
    update = cost(preset("transformer-base"), (round(25_000 / 32), 32, 32)).total.training
    assert counted["operations"] == 100_000 * update
    assert 0.1 < counted["operations"] / found["published"]["operations"] < 0.5


def test_cost_of_a_recipe_is_that_of_all_its_updates(run: Run, tmp_path: Path) -> None:
    found = json.loads(run("cost", "demo", "--json")[1])
    assert found["batch"] == {"rows": 64, "tokens": 32, "source_tokens": 32, "targets": None}
    assert found["training"]["operations"] == 1500 * found["total"]["training"]
    assert sum(part["activation_bytes"] for part in found["parts"]) == found["total"]["activation_bytes"] > 0
    twice = json.loads(run("cost", "demo", "--json", "--set", "train.accumulate=2")[1])
    assert twice["training"]["operations"] == 2 * found["training"]["operations"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gtp2"], "did you mean 'gpt2'"),
        (["gpt2", "--length", 5000], "reads at most 1,024"),
        (["word2vec"], "word vectors"),
    ],
)
def test_what_cannot_be_counted_is_an_error_in_one_line(run: Run, arguments: list[Any], message: str) -> None:
    code, _, error = run("cost", *arguments)
    assert code == 2 and message in error and len(error.splitlines()) == 1
