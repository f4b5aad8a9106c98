"""Encoder-decoder families of Hugging Face: T5, BART, Marian and Blenderbot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from qkv.config import ModelConfig
from qkv.convert.hf_family import (
    GATED,
    NOTHING,
    OPTIONAL_INT,
    Family,
    Json,
    Key,
    activation,
    activation_key,
    foreign_activation,
    token_ids,
    unless,
    usable_pad_id,
    usual_head,
)
from qkv.convert.rewrite import CHANNELS_IN_HALVES, POSITIONS_AS_TABLE, UNSCALED_SCORES, ZERO_BIASES
from qkv.convert.tables import ONE_ROW, Row, Weights, attention, both, drop, layers, row
from qkv.errors import ConfigError, FileError
from qkv.parts.positions import sinusoids

# --- T5


def read_t5(values: Json, names: set[str], head: str) -> dict[str, Any]:
    """Words are always shared by both halves; a stored lm_head.weight is an output matrix of its own (v1.1).

    T5 1.0 scales the last vectors by d_model^-0.5. Files before transformers 5 say so with tie_word_embeddings, later
    ones with scale_decoder_outputs, and tie_word_embeddings is then always true.
    """
    scaled, start = values["scale_decoder_outputs"], values["decoder_start_token_id"]
    return {
        "feedforward": t5_feedforward(values),
        "d_head": unless(usual_head(values["d_model"], values["num_heads"]), values["d_kv"]),
        "n_decoder_layers": unless(values["num_layers"], values["num_decoder_layers"]),
        "tie": "embeddings" if "lm_head.weight" in names else "all",
        "output_scale": values["tie_word_embeddings"] if scaled is None else scaled,
        "attention_dropout": values["dropout_rate"],
        "ffn_dropout": values["dropout_rate"],
        "start_id": usable_pad_id(values["pad_token_id"]) if start is None else start,
    }


def t5_feedforward(values: Json) -> str:
    """feed_forward_proj is an activation or "gated-" and one; "gated-gelu" means the tanh form unless dense_act_fn speaks."""
    given = values["feed_forward_proj"]
    name = given.removeprefix("gated-")
    meant = "gelu_new" if given == "gated-gelu" else name
    stated, stated_gate = values["dense_act_fn"], values["is_gated_act"]
    ours = activation(stated or meant, "dense_act_fn" if stated else "feed_forward_proj")
    gated = given != name
    if stated_gate not in (None, gated):
        raise FileError(f"config.json: is_gated_act = {stated_gate} and feed_forward_proj = {given!r} contradict")
    return GATED[ours] if gated else ours


def write_t5(c: ModelConfig) -> dict[str, Any]:
    gated = c.feedforward in GATED.values()
    name = foreign_activation(c.feedforward, gated)
    return {
        "feed_forward_proj": ("gated-" + ("gelu" if name == "gelu_new" else name)) if gated else name,
        "dense_act_fn": name,
        "is_gated_act": gated,
        "d_kv": c.head_width,
        "num_decoder_layers": c.decoder_layers,
        "scale_decoder_outputs": c.output_scale,
        "tie_word_embeddings": c.output_scale,  # read as the same by transformers before and after 5
        "decoder_start_token_id": c.first_id,
        "is_encoder_decoder": True,
    }


def t5_half(half: str, gated: bool) -> list[Row]:
    """The rows of one block; the decoder's cross-attention comes between."""
    last = 2 if half == "decoder" else 1
    foreign, ours = f"{half}.block.{{}}.layer", f"{half}.blocks.{{}}"
    dense = f"{foreign}.{last}.DenseReluDense"
    up = [(f"{dense}.wi_0", "gate"), (f"{dense}.wi_1", "up")] if gated else [(f"{dense}.wi", "up")]
    return both([
        (f"{foreign}.0.layer_norm", f"{ours}.attention.before"),
        *attention(f"{foreign}.0.SelfAttention", "q k v o", f"{ours}.attention"),
        *([(f"{foreign}.1.layer_norm", f"{ours}.cross.before")] if half == "decoder" else []),
        *attention(f"{foreign}.1.EncDecAttention", "q k v o", f"{ours}.cross"),
        (f"{foreign}.{last}.layer_norm", f"{ours}.feedforward.before"),
        *((name, f"{ours}.feedforward.layer.{part}") for name, part in up),
        (f"{dense}.wo", f"{ours}.feedforward.layer.down"),
    ])  # fmt: skip


def t5_table(c: ModelConfig) -> list[Row]:
    gated = c.feedforward in GATED.values()
    copies, distance = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight"), "relative_attention_bias.weight"
    return [
        row("shared.weight", "source.tokens.weight", copies=copies),
        row("lm_head.weight", "head.weight"),
        row(f"encoder.block.0.layer.0.SelfAttention.{distance}", "encoder.positions.0.table"),
        row(f"decoder.block.0.layer.0.SelfAttention.{distance}", "decoder.positions.0.table"),
        drop(f"decoder.block.0.layer.1.EncDecAttention.{distance}", "left in T5 1.0 files; never read"),
        *layers(c.n_layers, t5_half("encoder", gated)),
        *layers(c.decoder_layers, t5_half("decoder", gated)),
        *both([("encoder.final_layer_norm", "encoder.norm"), ("decoder.final_layer_norm", "decoder.norm")]),
    ]


T5 = Family(
    "t5",
    architectures={"T5ForConditionalGeneration": "vocabulary"},
    fixed={
        "family": "encoder-decoder", "head": "vocabulary", "norm": "rms", "norm_order": "pre", "position": "t5",
        "score": "dot", "attention_bias": "none", "ffn_bias": False,
    },
    keys={
        "vocab_size": Key(32128, "vocab_size"),
        "d_model": Key(512, "d_model"),
        "d_kv": Key(64),
        "d_ff": Key(2048, "d_ff"),
        "num_layers": Key(6, "n_layers"),
        "num_decoder_layers": Key(None, None, OPTIONAL_INT),
        "num_heads": Key(8, "n_heads"),
        "n_positions": Key(512, "max_length"),
        "relative_attention_num_buckets": Key(32, "relative_buckets"),
        "relative_attention_max_distance": Key(128, "relative_distance"),
        "dropout_rate": Key(0.1, "dropout"),
        "layer_norm_epsilon": Key(1e-6, "norm_eps"),
        "feed_forward_proj": Key("relu"),
        "dense_act_fn": Key(None, None, (str, NOTHING)),
        "is_gated_act": Key(None, None, (bool, NOTHING)),
        "tie_word_embeddings": Key(True),
        "scale_decoder_outputs": Key(None, None, (bool, NOTHING)),
        "decoder_start_token_id": Key(None, None, OPTIONAL_INT),
        **token_ids(pad=0, bos=None, eos=1),
    },
    must={"is_encoder_decoder": True},
    aliases={"hidden_size": "d_model", "num_attention_heads": "num_heads", "num_hidden_layers": "num_layers",
             "head_dim": "d_kv"},
    read=read_t5,
    write=write_t5,
    table=t5_table,
    rewrites=(UNSCALED_SCORES,),
)  # fmt: skip

# --- what BART, Marian and Blenderbot share

HALVES_MUST = {
    "is_encoder_decoder": True, "add_bias_logits": False, "add_final_layer_norm": False, "normalize_before": False,
    "normalize_embedding": False, "static_position_embeddings": False,
}  # fmt: skip
HALVES = {
    "family": "encoder-decoder", "head": "vocabulary", "norm": "layer", "norm_order": "post", "norm_eps": 1e-5,
    "attention_bias": "all",
}  # fmt: skip


def halves_keys(vocab_size: int, start: int, length: int = 1024, layers: tuple[int, int] = (12, 12), heads: int = 16,
                inner: int = 4096, width: int = 1024) -> dict[str, Key]:  # fmt: skip
    """Keys with a family's defaults."""
    return {
        "vocab_size": Key(vocab_size, "vocab_size"),
        "max_position_embeddings": Key(length, "max_length"),
        "encoder_layers": Key(layers[0], "n_layers"),
        "decoder_layers": Key(layers[1]),
        "encoder_attention_heads": Key(heads, "n_heads"),
        "decoder_attention_heads": Key(heads),
        "encoder_ffn_dim": Key(inner, "d_ff"),
        "decoder_ffn_dim": Key(inner),
        **activation_key("activation_function", "gelu"),
        "d_model": Key(width, "d_model"),
        "dropout": Key(0.1, "dropout"),
        "attention_dropout": Key(0.0, "attention_dropout"),
        "activation_dropout": Key(0.0, "ffn_dropout"),
        "scale_embedding": Key(False, "embed_scale"),
        "tie_word_embeddings": Key(True),
        "decoder_start_token_id": Key(start, "start_id", OPTIONAL_INT),
    }


def read_halves(values: Json, names: set[str], head: str) -> dict[str, Any]:
    for one, other in (("encoder_attention_heads", "decoder_attention_heads"), ("encoder_ffn_dim", "decoder_ffn_dim")):
        if values[one] != values[other]:
            raise FileError(f"config.json: {one} = {values[one]} and {other} = {values[other]} must be equal")
    one_vocabulary = values.get("share_encoder_decoder_embeddings", True)
    own = None if one_vocabulary else values["decoder_vocab_size"]
    return {
        "n_decoder_layers": unless(values["encoder_layers"], values["decoder_layers"]),
        "tie": read_tie(one_vocabulary, values["tie_word_embeddings"], "encoder.embed_tokens.weight" in names),
        "target_vocab_size": unless(values["vocab_size"], own),
        "output_bias": "final_logits_bias" in names,
    }


def read_tie(one_vocabulary: bool, tied: bool, own_words: bool) -> str:
    """transformers 5 unties all three matrices at once; before, both halves kept sharing theirs (no `own_words`)."""
    if one_vocabulary:
        return "all" if tied else "none" if own_words else "embeddings"
    return "output" if tied else "none"


def write_halves(c: ModelConfig) -> dict[str, Any]:
    if c.tie == "embeddings":
        raise ConfigError("tie = 'embeddings'")  # transformers 5 would fill the decoder's words at random
    return {
        "decoder_layers": c.decoder_layers,
        "decoder_attention_heads": c.n_heads,
        "decoder_ffn_dim": c.d_ff,
        "tie_word_embeddings": c.tie in ("output", "all"),
        "decoder_start_token_id": c.first_id,
        "forced_eos_token_id": None,
        "is_encoder_decoder": True,
    }


def halves_block(half: str, norm: str) -> list[Row]:
    """The rows of one block; cross-attention rows concern the decoder alone. `norm`: which slot has the norms."""
    foreign, ours = f"{half}.layers.{{}}", f"{half}.blocks.{{}}"
    names = "q_proj k_proj v_proj out_proj"
    return both([
        *attention(f"{foreign}.self_attn", names, f"{ours}.attention"),
        (f"{foreign}.self_attn_layer_norm", f"{ours}.attention.{norm}"),
        *attention(f"{foreign}.encoder_attn", names, f"{ours}.cross"),
        (f"{foreign}.encoder_attn_layer_norm", f"{ours}.cross.{norm}"),
        (f"{foreign}.fc1", f"{ours}.feedforward.layer.up"),
        (f"{foreign}.fc2", f"{ours}.feedforward.layer.down"),
        (f"{foreign}.final_layer_norm", f"{ours}.feedforward.{norm}"),
    ])  # fmt: skip


def halves_words(c: ModelConfig) -> list[Row]:
    """The three word matrices: shared by both halves, or one each."""
    source, target, output = "encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"
    own_output = row(output, "head.weight")
    if c.tie in ("all", "embeddings"):
        return [row("shared.weight", "source.tokens.weight", copies=(source, target, output)), own_output]
    return [row(source, "source.tokens.weight"), row(target, "target.tokens.weight", copies=(output,)), own_output]


def unshared_words(c: ModelConfig, fill: Callable[[Weights], Tensor] | None = None) -> list[Row]:
    """The shared words, which are stored even where each half has its own."""
    return [drop("shared.weight", "each half has its own words", fill)] if c.tie in ("none", "output") else []


def halves_table(c: ModelConfig, norm: str = "after") -> list[Row]:
    return [
        *halves_words(c),
        *layers(c.n_layers, halves_block("encoder", norm)),
        *layers(c.decoder_layers, halves_block("decoder", norm)),
        row("final_logits_bias", "head.bias", ONE_ROW),
    ]


# --- BART


def learned_halves(c: ModelConfig) -> list[Row]:
    """Tables of positions, and the unused words that transformers insists on."""
    return [
        row("encoder.embed_positions.weight", "source.position.table"),
        row("decoder.embed_positions.weight", "target.position.table"),
        *unshared_words(c, fill=lambda ours: ours["source.tokens.weight"].clone()),
    ]


def bart_table(c: ModelConfig) -> list[Row]:
    norms = [("encoder.layernorm_embedding", "source.norm"), ("decoder.layernorm_embedding", "target.norm")]
    return [*both(norms), *learned_halves(c), *halves_table(c)]


BART = Family(
    "bart",
    architectures={"BartForConditionalGeneration": "vocabulary", "BartModel": "vocabulary"},
    fixed={**HALVES, "position": "learned", "position_offset": 2, "embed_norm": True},
    keys={**halves_keys(50265, start=2), **token_ids(pad=1, bos=0, eos=2)},
    must={**HALVES_MUST, "normalize_embedding": True, "extra_pos_embeddings": 2},
    aliases={"num_hidden_layers": "encoder_layers", "num_attention_heads": "encoder_attention_heads",
             "hidden_size": "d_model"},
    read=read_halves,
    write=write_halves,
    table=bart_table,
    prefix="model.",
    heads=("lm_head.", "final_logits_bias"),
)  # fmt: skip

# --- Marian: BART but for sinusoids and for two vocabularies


def write_marian(c: ModelConfig) -> dict[str, Any]:
    own = {"share_encoder_decoder_embeddings": c.tie == "all", "decoder_vocab_size": c.target_size}
    return {**write_halves(c), **own, "static_position_embeddings": True}


def marian_table(c: ModelConfig) -> list[Row]:
    """The waves of the positions are computed here, so the stored table is left out; it is written for older programs."""

    def waves(ours: Weights) -> Tensor:
        table = sinusoids(torch.arange(c.max_length), c.d_model, layout="halves")
        return table.to(ours["source.tokens.weight"].dtype)

    return [
        drop("encoder.embed_positions.weight", "sinusoids, which are computed", fill=waves),
        drop("decoder.embed_positions.weight", "sinusoids, which are computed", fill=waves),
        *unshared_words(c),
        *halves_table(c),
    ]


MARIAN = replace(
    BART,
    model_type="marian",
    architectures={"MarianMTModel": "vocabulary", "MarianModel": "vocabulary"},
    fixed={**HALVES, "position": "sinusoidal", "position_layout": "halves", "position_base": 10_000.0},
    keys={
        **halves_keys(58101, start=58100),
        **token_ids(pad=58100, bos=None, eos=0),
        "decoder_vocab_size": Key(None, None, OPTIONAL_INT),
        "share_encoder_decoder_embeddings": Key(True),
    },
    must={**HALVES_MUST, "static_position_embeddings": True},
    ignored=frozenset({"extra_pos_embeddings"}),  # of the learned table that Marian does not have
    write=write_marian,
    table=marian_table,
    rewrites=(CHANNELS_IN_HALVES, ZERO_BIASES),
)

# --- Blenderbot: BART with norms before the sublayers, that is, the 2017 network with learned positions


def blenderbot_table(c: ModelConfig) -> list[Row]:
    final = [("encoder.layer_norm", "encoder.norm"), ("decoder.layer_norm", "decoder.norm")]
    return [*both(final), *learned_halves(c), *halves_table(c, norm="before")]


BLENDERBOT = replace(
    BART,
    model_type="blenderbot",
    architectures={"BlenderbotForConditionalGeneration": "vocabulary", "BlenderbotModel": "vocabulary"},
    fixed={**HALVES, "norm_order": "pre", "position": "learned"},
    keys={
        **halves_keys(8008, start=1, length=128, layers=(2, 24), heads=32, inner=10240, width=2560),
        **token_ids(pad=0, bos=1, eos=2),
    },
    must={**HALVES_MUST, "add_final_layer_norm": True, "normalize_before": True, "layernorm_variant": "prelayernorm",
          "extra_layer_norm": False},
    ignored=frozenset({"extra_pos_embeddings", "do_blenderbot_90_layernorm"}),  # of files before transformers 4
    write=lambda c: {**write_halves(c), "encoder_no_repeat_ngram_size": 0},
    table=blenderbot_table,
    rewrites=(POSITIONS_AS_TABLE, ZERO_BIASES),
)  # fmt: skip
