"""DeBERTa (the first version) of Hugging Face: disentangled attention with both position terms and no absolute positions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from qkv.config import ModelConfig
from qkv.convert.hf_encoders import BERT, ENCODER_BLOCK, bert_words, encoder_keys, encoder_table, head_rows
from qkv.convert.hf_family import NOTHING, Family, Json, Key, encoder_classes, token_ids
from qkv.convert.rewrite import SCALED_WORDS
from qkv.convert.tables import Change, Row, both, layers, row
from qkv.errors import FileError

ONLY: Mapping[str, Any] = {"relative_attention": True, "position_biased_input": False, "pos_att_type": ("c2p", "p2c")}
"""Keys whose default in Hugging Face is another network, and the value that they must have."""


def read_deberta(values: Json, names: set[str], head: str) -> dict[str, Any]:
    terms = values["pos_att_type"]
    terms = tuple(part.strip() for part in terms.lower().split("|")) if isinstance(terms, str) else terms
    for name, wanted in ONLY.items():
        given = tuple(sorted(terms or ())) if name == "pos_att_type" else values[name]
        if given != wanted:
            raise FileError(f"config.json: {name} = {values[name]!r} is not supported; it must be {wanted!r}")
    farthest = values["max_relative_positions"]
    distance = farthest if farthest > 0 else values["max_position_embeddings"]
    return {**BERT.read(values, names, head), "relative_distance": distance}


def write_deberta(c: ModelConfig) -> dict[str, Any]:
    lengths = {"max_position_embeddings": c.max_length, "max_relative_positions": c.relative_distance}
    return {**BERT.write(c), **ONLY, **lengths}


def per_head(n_heads: int) -> Change:
    """Query, key and value rows of the first head, then those of the second, ... <-> three tensors."""

    def read(x: Tensor) -> tuple[Tensor, ...]:
        # (H * 3 * D, C) -> (H, 3, D, C) -> three of (H * D, C)
        return tuple(part.flatten(0, 1) for part in x.unflatten(0, (n_heads, 3, -1)).unbind(1))

    def write(*parts: Tensor) -> Tensor:
        return torch.stack([part.unflatten(0, (n_heads, -1)) for part in parts], 1).flatten(0, 2)

    return Change(read, write)


def deberta_block(c: ModelConfig) -> list[Row]:
    theirs, ours = "encoder.layer.{}.attention.self", "stack.blocks.{}.attention.layer"
    return [
        row(f"{theirs}.in_proj.weight", tuple(f"{ours}.{name}.weight" for name in ("query", "key", "value")),
            per_head(c.n_heads)),
        row(f"{theirs}.q_bias", f"{ours}.query.bias"),
        row(f"{theirs}.v_bias", f"{ours}.value.bias"),
        row(f"{theirs}.pos_proj.weight", "stack.positions.{}.key.weight"),
        *both([(f"{theirs}.pos_q_proj", "stack.positions.{}.query")]),
        *(r for r in ENCODER_BLOCK if ".self." not in r.foreign),
    ]  # fmt: skip


def deberta_table(c: ModelConfig) -> list[Row]:
    return [
        *encoder_table(c, "cls.predictions.decoder.weight", []),
        row("encoder.rel_embeddings.weight", "stack.positions.0.vectors"),
        *layers(c.n_layers, deberta_block(c)),
        *head_rows(c, {"masked": bert_words(c, "head")}, pooler=False),
    ]


DEBERTA = Family(
    "deberta",
    architectures=encoder_classes("Deberta", "masked", "tags", "span"),
    fixed={**BERT.fixed, "position": "disentangled", "attention_bias": "all-but-key"},
    keys={
        **encoder_keys(50265, 768, 12, 3072),
        "type_vocab_size": Key(0, "n_segments"),
        "layer_norm_eps": Key(1e-7, "norm_eps"),
        "relative_attention": Key(False),
        "position_biased_input": Key(True),
        "pos_att_type": Key(None, None, (list, str, NOTHING)),
        "max_relative_positions": Key(-1),
        **token_ids(pad=0, bos=None, eos=None),
    },
    must={**BERT.must, "talking_head": False},
    # `legacy` renames the masked-word head; the pooler belongs to sequence classification
    ignored=frozenset({"legacy", "pooler_dropout", "pooler_hidden_act", "pooler_hidden_size", "padding_idx"}),
    read=read_deberta,
    write=write_deberta,
    table=deberta_table,
    rewrites=(SCALED_WORDS,),
    prefix="deberta.",
    heads=BERT.heads,
    marks=((("cls.predictions.",), "masked"), (("classifier.",), "tags"), (("qa_outputs.",), "span")),
    spellings=(
        *BERT.spellings,
        (r"^lm_predictions\.lm_head\.(dense|LayerNorm)", r"cls.predictions.transform.\1"),
        (r"^lm_predictions\.lm_head\.bias$", "cls.predictions.bias"),
    ),
)  # fmt: skip
