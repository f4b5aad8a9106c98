"""Decoder families of Hugging Face: GPT-2, LLaMA and StarCoder2."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from qkv.config import ModelConfig
from qkv.convert.hf_family import (
    NOTHING,
    OPTIONAL_INT,
    Family,
    Json,
    Key,
    activation_key,
    check_type,
    size_keys,
    switch,
    token_ids,
    unless,
    usual_head,
)  # fmt: skip
from qkv.convert.rewrite import CLASSES_ONLY, POSITIONS_AS_TABLE, SCALED_WORDS, ZERO_BIASES
from qkv.convert.tables import THIRDS, THIRDS_TRANSPOSED, TRANSPOSED, Row, attention, both, drop, layers, row
from qkv.errors import ConfigError, FileError

DECODER_MUST = {"is_encoder_decoder": False, "decoder_start_token_id": None}


def decoder_head(head: str) -> dict[str, Any]:
    """The next word, or classes from the last vector."""
    return {"head": "classes", "pooling": "last", "pooler": False} if head == "classes" else {"head": "vocabulary"}


# --- GPT-2: its Conv1D layers hold the matrix transposed, and query, key and value in one


def read_gpt2(values: Json, names: set[str], head: str) -> dict[str, Any]:
    return {**decoder_head(head), "d_ff": values["n_inner"] or 4 * values["n_embd"]}


def qkv(part: str) -> tuple[str, ...]:
    """Our three layers that GPT-2 has in one."""
    return tuple(f"stack.blocks.{{}}.attention.layer.{name}.{part}" for name in ("query", "key", "value"))


GPT2_BLOCK = [
    *both([("h.{}.ln_1", "stack.blocks.{}.attention.before"), ("h.{}.ln_2", "stack.blocks.{}.feedforward.before")]),
    row("h.{}.attn.c_attn.weight", qkv("weight"), THIRDS_TRANSPOSED),
    row("h.{}.attn.c_attn.bias", qkv("bias"), THIRDS),
    *both(
        [
            ("h.{}.attn.c_proj", "stack.blocks.{}.attention.layer.output"),
            ("h.{}.mlp.c_fc", "stack.blocks.{}.feedforward.layer.up"),
            ("h.{}.mlp.c_proj", "stack.blocks.{}.feedforward.layer.down"),
        ],
        TRANSPOSED,
    ),
    drop("h.{}.attn.bias", "the causal mask"),
    drop("h.{}.attn.masked_bias", "the number that stands for minus infinity"),
]


def gpt2_table(c: ModelConfig) -> list[Row]:
    return [
        row("wte.weight", "embed.tokens.weight", copies=("lm_head.weight",)),
        row("wpe.weight", "embed.position.table"),
        *layers(c.n_layers, GPT2_BLOCK),
        *both([("ln_f", "stack.norm")]),
        row("lm_head.weight", "head.weight"),
        row("score.weight", "head.output.weight"),
    ]


GPT2 = Family(
    "gpt2",
    architectures={
        "GPT2LMHeadModel": "vocabulary", "GPT2Model": "vocabulary", "GPT2ForSequenceClassification": "classes",
    },
    fixed={"family": "decoder", "norm": "layer", "norm_order": "pre", "position": "learned", "attention_bias": "all"},
    keys={
        "vocab_size": Key(50257, "vocab_size"),
        "n_positions": Key(1024, "max_length"),
        "n_embd": Key(768, "d_model"),
        "n_layer": Key(12, "n_layers"),
        "n_head": Key(12, "n_heads"),
        "n_inner": Key(None, None, OPTIONAL_INT),
        **activation_key("activation_function", "gelu_new"),
        "resid_pdrop": Key(0.1, "dropout"),
        "attn_pdrop": Key(0.1, "attention_dropout"),
        "layer_norm_epsilon": Key(1e-5, "norm_eps"),
        "scale_attn_weights": switch(True, "score", "scaled-dot", "dot"),
        "tie_word_embeddings": switch(True, "tie", "output", "none"),
        **token_ids(pad=None, bos=50256, eos=50256),
    },
    must={**DECODER_MUST, "scale_attn_by_inverse_layer_idx": False},
    ignored=frozenset(
        # embd_pdrop: we have one dropout, which is resid_pdrop; reorder_and_upcast_attn: mixed precision only
        "n_ctx embd_pdrop reorder_and_upcast_attn summary_type summary_use_proj summary_activation "
        "summary_proj_to_labels summary_first_dropout".split()
    ),
    aliases={
        "hidden_size": "n_embd", "max_position_embeddings": "n_positions", "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
    },
    read=read_gpt2,
    write=lambda c: {"n_inner": c.d_ff, "embd_pdrop": c.dropout},
    table=gpt2_table,
    rewrites=(ZERO_BIASES, CLASSES_ONLY, SCALED_WORDS, POSITIONS_AS_TABLE),
    prefix="transformer.",
    heads=("lm_head.", "score."),
    marks=((("score.",), "classes"),),
)  # fmt: skip

# --- rotary positions, of LLaMA and StarCoder2


def rotary_keys(vocab_size: int, length: int, sizes: tuple[int, int, int, int], tied: bool) -> dict[str, Key]:
    """Keys with a family's defaults; `sizes` are those of `size_keys`."""
    return {
        "vocab_size": Key(vocab_size, "vocab_size"),
        **size_keys(*sizes),
        "max_position_embeddings": Key(length, "max_length"),
        "attention_dropout": Key(0.0, "attention_dropout"),
        "tie_word_embeddings": switch(tied, "tie", "output", "none"),
        "rope_parameters": Key(None, None, (dict, NOTHING)),
        "rope_scaling": Key(None, None, (dict, NOTHING)),
        "rope_theta": Key(None, None, (float, NOTHING)),
    }


def read_rotary(values: Json, names: set[str], head: str) -> dict[str, Any]:
    """Head, number of key-value heads, and what `read_positions` gives."""
    kv_heads = unless(values["num_attention_heads"], values["num_key_value_heads"])
    return {**decoder_head(head), "n_kv_heads": kv_heads, **read_positions(values)}


def read_positions(values: Json) -> dict[str, Any]:
    """Base and stretching, from rope_parameters (transformers 5) or rope_theta and rope_scaling (before)."""
    given = dict(values["rope_scaling"] or values["rope_parameters"] or {})
    theta = given.pop("rope_theta", values["rope_theta"])
    kind = given.pop("rope_type", given.pop("type", "default"))
    given.pop("type", None)
    check_type("rope_theta", theta, (float, int, NOTHING))
    fields = {"position_base": 10_000.0 if theta is None else float(theta)}
    if kind == "llama3":
        return fields | {"rotary_scaling": read_llama3(given)}
    if kind not in ("default", None):
        raise FileError(f"config.json: rope_type = {kind!r} is not supported; it is one of 'default', 'llama3'")
    if given and given != {"partial_rotary_factor": 1.0}:
        raise FileError(f"config.json: rope parameters {given} are not supported with rope_type = 'default'")
    return fields


LLAMA3 = {
    "factor": "factor",
    "low_freq_factor": "low_freq_factor",
    "high_freq_factor": "high_freq_factor",
    "original_max_position_embeddings": "original_length",
}
"""Llama 3's rope parameters and the fields of our RotaryScaling."""


def read_llama3(given: Mapping[str, Any]) -> dict[str, Any]:
    if odd := ", ".join(sorted(given.keys() ^ LLAMA3.keys())):
        raise FileError(f"config.json: llama3 rope parameters are {', '.join(LLAMA3)}; missing or unknown: {odd}")
    for name, value in given.items():
        check_type(name, value, (int,) if name.startswith("original") else (int, float))
    return {ours: given[name] if ours == "original_length" else float(given[name]) for name, ours in LLAMA3.items()}


def write_rotary(c: ModelConfig) -> dict[str, Any]:
    """Both spellings of the positions, so that transformers before and after 5 open the folder."""
    if c.d_model % c.n_heads != 0:
        raise ConfigError(f"d_model = {c.d_model} with n_heads = {c.n_heads}, which does not divide it")
    scaling = c.rotary_scaling
    stretched = {name: getattr(scaling, ours) for name, ours in LLAMA3.items()} if scaling is not None else {}
    kind = {"rope_type": "llama3" if stretched else "default"}
    return {
        "num_key_value_heads": c.kv_heads,
        "rope_parameters": {"rope_theta": c.position_base, **kind, **stretched},
        "rope_theta": c.position_base,
        "rope_scaling": {**kind, **stretched} if stretched else None,
    }


def rotary_table(c: ModelConfig, **feedforward: str) -> list[Row]:
    """All weights, with these layers of the feed-forward: our name = theirs."""
    block = [
        *both([
            ("layers.{}.input_layernorm", "stack.blocks.{}.attention.before"),
            *attention("layers.{}.self_attn", "q_proj k_proj v_proj o_proj", "stack.blocks.{}.attention"),
            ("layers.{}.post_attention_layernorm", "stack.blocks.{}.feedforward.before"),
            *((f"layers.{{}}.mlp.{proj}", f"stack.blocks.{{}}.feedforward.layer.{name}") for name, proj in feedforward.items()),
        ]),
        drop("layers.{}.self_attn.rotary_emb.inv_freq", "computed from the base"),
    ]  # fmt: skip
    return [
        row("embed_tokens.weight", "embed.tokens.weight", copies=("lm_head.weight",)),
        *layers(c.n_layers, block),
        *both([("norm", "stack.norm")]),
        row("lm_head.weight", "head.weight"),
        row("score.weight", "head.output.weight"),
    ]


# --- LLaMA


def read_llama(values: Json, names: set[str], head: str) -> dict[str, Any]:
    usual = usual_head(values["hidden_size"], values["num_attention_heads"])
    return {**read_rotary(values, names, head), "d_head": unless(usual, values["head_dim"])}


LLAMA = Family(
    "llama",
    architectures={
        "LlamaForCausalLM": "vocabulary", "LlamaModel": "vocabulary", "LlamaForSequenceClassification": "classes",
    },
    fixed={"family": "decoder", "norm": "rms", "norm_order": "pre", "position": "rotary", "dropout": 0.0},
    keys={
        **rotary_keys(32000, 2048, (4096, 32, 32, 11008), tied=False),
        "num_key_value_heads": Key(None, None, OPTIONAL_INT),
        "head_dim": Key(None, None, OPTIONAL_INT),
        **activation_key("hidden_act", "silu", gated=True),
        "rms_norm_eps": Key(1e-6, "norm_eps"),
        "attention_bias": switch(False, "attention_bias", "all", "none"),
        "mlp_bias": Key(False, "ffn_bias"),
        **token_ids(pad=None, bos=1, eos=2),
    },
    must={**DECODER_MUST, "rope_interleaved": False},
    ignored=frozenset({"pretraining_tp", "is_llama_config", "max_sequence_length", "transformers.js_config"}),
    read=read_llama,
    write=lambda c: {**write_rotary(c), "head_dim": c.head_width},
    table=lambda c: rotary_table(c, gate="gate_proj", up="up_proj", down="down_proj"),
    rewrites=(CLASSES_ONLY, SCALED_WORDS),
    prefix="model.",
    heads=("lm_head.", "score."),
    marks=((("score.",), "classes"),),
)  # fmt: skip

# --- StarCoder2: as LLaMA but for norms and feed-forward layer, which are GPT-2's

STARCODER2 = replace(
    LLAMA,
    model_type="starcoder2",
    architectures={
        "Starcoder2ForCausalLM": "vocabulary", "Starcoder2Model": "vocabulary",
        "Starcoder2ForSequenceClassification": "classes",
    },
    fixed={"family": "decoder", "norm": "layer", "norm_order": "pre", "position": "rotary"},
    keys={
        **rotary_keys(49152, 4096, (3072, 30, 24, 12288), tied=True),
        "num_key_value_heads": Key(2),
        **activation_key("hidden_act", "gelu_pytorch_tanh"),
        "norm_epsilon": Key(1e-5, "norm_eps"),
        "residual_dropout": Key(0.0, "dropout"),
        "use_bias": switch(True, "attention_bias", "all", "none"),
        **token_ids(pad=None, bos=50256, eos=50256),
    },
    # a null is no window; mlp_type and norm_type stand in old files
    must={**DECODER_MUST, "sliding_window": None, "mlp_type": "default", "norm_type": "layer_norm"},
    ignored=frozenset({"embedding_dropout"}),  # we have one dropout, which is residual_dropout
    read=lambda values, names, head: {**read_rotary(values, names, head), "ffn_bias": values["use_bias"]},
    write=lambda c: {**write_rotary(c), "embedding_dropout": c.dropout, "use_bias": c.ffn_bias},
    table=lambda c: rotary_table(c, up="c_fc", down="c_proj"),
    rewrites=(ZERO_BIASES, CLASSES_ONLY, SCALED_WORDS),
)  # fmt: skip
