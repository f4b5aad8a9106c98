"""Pre-norm encoder families of Hugging Face: Megatron-BERT (a table of positions) and ESM (rotary
positions, or a table)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from qkv.config import ModelConfig
from qkv.convert.hf_encoders import BERT, PRENORM, bert_table, encoder_block, encoder_keys, read_encoder, roberta_heads
from qkv.convert.hf_family import NOTHING, Family, Json, Key, encoder_classes, token_ids, usable_pad_id
from qkv.convert.rewrite import SCALED_WORDS, ZERO_BIASES
from qkv.convert.tables import Row, Weights, both, drop, layers, row
from qkv.errors import FileError

# --- Megatron-BERT: BERT but for the place of the norms

MEGATRON_BERT = replace(
    BERT,
    model_type="megatron-bert",
    architectures=encoder_classes("MegatronBert", "masked", "masked-next", "classes", "tags", "span"),
    fixed={**PRENORM, "position": "learned"},
    keys={**encoder_keys(29056, 1024, 16, 4096, n_layers=24), **token_ids(pad=0, bos=None, eos=None)},
    ignored=frozenset(),
    table=lambda c: bert_table(c, encoder_block("attention.ln", "ln")) + both([("encoder.ln", "stack.norm")]),
    spellings=(),
)

# --- ESM: always GELU, no segments

ESM_POSITIONS = {"rotary": "rotary", "absolute": "learned"}


def read_esm(values: Json, names: set[str], head: str) -> dict[str, Any]:
    """Positions are rotary, or a table that counts from the pad id as RoBERTa's does."""
    kind = values["position_embedding_type"]
    if kind not in ESM_POSITIONS:
        known = ", ".join(ESM_POSITIONS)
        raise FileError(f"config.json: position_embedding_type = {kind!r} is not supported; it is one of {known}")
    offset = usable_pad_id(values["pad_token_id"]) + 1 if kind == "absolute" else 0
    return {
        **read_encoder(values, names, head, offset),
        "position": ESM_POSITIONS[kind],
        "position_base": float(values["rope_theta"]),
        "embed_norm": bool(values["emb_layer_norm_before"]),
    }


def write_esm(c: ModelConfig) -> dict[str, Any]:
    kind = "absolute" if c.position == "learned" else "rotary"
    return {**BERT.write(c), "position_embedding_type": kind, "rope_theta": c.position_base,
            "emb_layer_norm_before": c.embed_norm, "token_dropout": False}  # fmt: skip


def esm_table(c: ModelConfig) -> list[Row]:
    def contacts(*size: int) -> Callable[[Weights], Tensor]:
        return lambda ours: torch.zeros(size, dtype=ours["embed.tokens.weight"].dtype)

    def rates(ours: Weights) -> Tensor:
        return c.position_base ** -(torch.arange(0, c.head_width, 2).float() / c.head_width)  # (D / 2,)

    reason = "predicts contacts of amino acids from attention maps"
    block = encoder_block("attention.LayerNorm", "LayerNorm")
    waves = "encoder.layer.{}.attention.self.rotary_embeddings.inv_freq"
    return [
        row("embeddings.word_embeddings.weight", "embed.tokens.weight", copies=("lm_head.decoder.weight",)),
        row("embeddings.position_embeddings.weight", "embed.position.table"),
        *both([("embeddings.layer_norm", "embed.norm"), ("encoder.emb_layer_norm_after", "stack.norm")]),
        drop("embeddings.position_ids", "0, 1, 2, ..."),
        drop("rotary_embeddings.inv_freq", "computed from the base", fill=rates if c.position == "rotary" else None),
        drop("contact_head.regression.weight", reason, fill=contacts(1, c.n_layers * c.n_heads)),
        drop("contact_head.regression.bias", reason, fill=contacts(1)),
        drop(waves.replace("{}", "*"), "computed from the base; so transformers 5 saves it"),
        *layers(c.n_layers, [*block, drop(waves, "computed from the base")]),
        *roberta_heads(c, bias=[row("lm_head.bias", "head.words.bias")]),
    ]


ESM_KEYS = {name: key for name, key in encoder_keys(0, 768, 12, 3072).items()
            if name not in ("hidden_act", "type_vocab_size", "max_position_embeddings")}  # fmt: skip

ESM = Family(
    "esm",
    architectures=encoder_classes("Esm", "masked", "classes", "tags"),
    fixed={**PRENORM, "feedforward": "gelu", "n_segments": 0},
    keys={
        **ESM_KEYS,
        **token_ids(pad=None, bos=None, eos=2),
        "max_position_embeddings": Key(1026),
        "position_embedding_type": Key("absolute"),
        "rope_theta": Key(10_000.0),
        "emb_layer_norm_before": Key(None, None, (bool, NOTHING)),
    },
    must={"token_dropout": False, "is_folding_model": False, "esmfold_config": None, "is_encoder_decoder": False,
          "decoder_start_token_id": None},
    ignored=frozenset({"mask_token_id", "vocab_list"}),  # of token_dropout; of the tokenizer
    read=read_esm,
    write=write_esm,
    table=esm_table,
    rewrites=(ZERO_BIASES, SCALED_WORDS),
    prefix="esm.",
    heads=("lm_head.", "classifier."),
    marks=((("lm_head.",), "masked"), (("classifier.dense.",), "classes"), (("classifier.",), "tags")),
    spellings=BERT.spellings,
)  # fmt: skip
