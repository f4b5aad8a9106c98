"""Encoder families of Hugging Face: BERT, RoBERTa, ELECTRA and the Vision Transformer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qkv.config import ModelConfig
from qkv.convert.hf_family import (
    OPTIONAL_INT,
    Family,
    Json,
    Key,
    activation,
    activation_key,
    encoder_classes,
    size_keys,
    token_ids,
    usable_pad_id,
)
from qkv.convert.rewrite import POSITIONS_AS_TABLE, SCALED_WORDS, ZERO_BIASES, ZERO_SEGMENTS
from qkv.convert.tables import ONE_CELL, ONE_ROW, Row, both, drop, drop_both, layers, row
from qkv.errors import FileError

# --- what BERT, RoBERTa and ELECTRA share

PRENORM = {"family": "encoder", "norm": "layer", "norm_order": "pre", "attention_bias": "all"}
ENCODER = {**PRENORM, "norm_order": "post", "embed_norm": True, "position": "learned"}
ENCODER_MUST = {"position_embedding_type": "absolute", "is_encoder_decoder": False, "decoder_start_token_id": None}


def block_keys(width: int, n_layers: int, heads: int, inner: int, dropout: float = 0.1) -> dict[str, Key]:
    """Keys of the blocks with a family's defaults."""
    return {
        **size_keys(width, n_layers, heads, inner),
        **activation_key("hidden_act", "gelu"),
        "hidden_dropout_prob": Key(dropout, "dropout"),
        "attention_probs_dropout_prob": Key(dropout, "attention_dropout"),
        "layer_norm_eps": Key(1e-12, "norm_eps"),
    }


def encoder_keys(vocab_size: int, width: int, heads: int, inner: int, n_layers: int = 12) -> dict[str, Key]:
    """All keys but the special tokens, with a family's default sizes."""
    return {
        "vocab_size": Key(vocab_size, "vocab_size"),
        **block_keys(width, n_layers, heads, inner),
        "max_position_embeddings": Key(512),
        "type_vocab_size": Key(2, "n_segments"),
        "tie_word_embeddings": Key(True),
    }


def read_head(names: set[str], head: str) -> str:
    """Our head; a bare network has the pooler or none."""
    return head if head != "base" else "pooled" if "pooler.dense.weight" in names else "none"


def read_encoder(values: Json, names: set[str], head: str, offset: int = 0) -> dict[str, Any]:
    words = head in ("masked", "masked-next")
    return {
        "head": read_head(names, head),
        "max_length": values["max_position_embeddings"] - offset,
        "position_offset": offset,
        "tie": "output" if words and values["tie_word_embeddings"] else "none",
        "output_bias": words,
    }


def write_encoder(c: ModelConfig) -> dict[str, Any]:
    return {
        "max_position_embeddings": c.max_length + c.position_offset,
        "tie_word_embeddings": c.head not in ("masked", "masked-next") or c.tie == "output",
    }


def encoder_block(attention_norm: str, last_norm: str, slot: str = "before", attention: str = "self") -> list[Row]:
    """BERT's block with these names of its norms, which are before or after the sublayers, and of its attention."""
    return both([
        *((f"encoder.layer.{{}}.attention.{attention}.{name}", f"stack.blocks.{{}}.attention.layer.{name}")
          for name in ("query", "key", "value")),
        ("encoder.layer.{}.attention.output.dense", "stack.blocks.{}.attention.layer.output"),
        (f"encoder.layer.{{}}.{attention_norm}", f"stack.blocks.{{}}.attention.{slot}"),
        ("encoder.layer.{}.intermediate.dense", "stack.blocks.{}.feedforward.layer.up"),
        ("encoder.layer.{}.output.dense", "stack.blocks.{}.feedforward.layer.down"),
        (f"encoder.layer.{{}}.{last_norm}", f"stack.blocks.{{}}.feedforward.{slot}"),
    ])  # fmt: skip


ENCODER_BLOCK = encoder_block("attention.output.LayerNorm", "output.LayerNorm", "after")


def encoder_table(c: ModelConfig, output_words: str, block: list[Row] = ENCODER_BLOCK) -> list[Row]:
    """Embeddings and blocks; `output_words` is the output matrix, which tied files may store once more."""
    return [
        row("embeddings.word_embeddings.weight", "embed.tokens.weight", copies=(output_words,)),
        row("embeddings.token_type_embeddings.weight", "embed.segments.weight"),
        row("embeddings.position_embeddings.weight", "embed.position.table"),
        *both([("embeddings.LayerNorm", "embed.norm")]),
        drop("embeddings.position_ids", "0, 1, 2, ..."),
        drop("embeddings.token_type_ids", "all 0"),
        *layers(c.n_layers, block),
    ]


def output_bias(c: ModelConfig, decoder: str, bias: str, own: str = "head.words.bias") -> list[Row]:
    """Hugging Face has the bias of masked words twice; tied they are one, untied only the decoder's is added."""
    if c.tie == "output":
        return [row(bias, own, copies=(decoder,))]
    unused = drop(bias, "an untied head adds decoder.bias only", fill=lambda ours: ours[own].clone())
    return [row(decoder, own), unused]


CLASSIFIER = both([("classifier", "head.output")])
SPAN = both([("qa_outputs", "head.output")])
POOLER = both([("pooler.dense", "head.dense")])


def head_rows(c: ModelConfig, own: Mapping[str, list[Row]], pooler: bool = True) -> list[Row]:
    """The rows of a network's head: one of the family's own, or one that all families have.

    A bare network may have a `pooler`. Where a head does not read it, it is left out.
    """
    heads = {"tags": CLASSIFIER, "span": SPAN, "pooled": POOLER if pooler else [], **own}
    rows = heads.get(c.head, [])
    if not pooler or c.head == "none" or any(r.foreign.startswith("pooler.") for r in rows):
        return rows
    return rows + drop_both("pooler.dense", f"head {c.head!r} does not read the pooled vector")


def gelu_only(values: Json, head: str) -> None:
    """RoBERTa's and ELECTRA's masked-word heads have GELU whatever hidden_act is; ours has the network's activation."""
    if head == "masked" and activation(values["hidden_act"], "hidden_act") != "gelu":
        raise FileError(f"config.json: hidden_act = {values['hidden_act']!r} with a masked-word head must be 'gelu'")


def write_gelu(c: ModelConfig) -> dict[str, Any]:
    """RoBERTa and ELECTRA: a masked-word head with another activation comes back with GELU."""
    return {**write_encoder(c), **({"hidden_act": "gelu"} if c.head == "masked" else {})}


OLD_NORMS = ((r"LayerNorm\.gamma$", "LayerNorm.weight"), (r"LayerNorm\.beta$", "LayerNorm.bias"))

# --- BERT


def bert_words(c: ModelConfig, own: str) -> list[Row]:
    """The masked-word head; `own` is how our names of it begin."""
    return [
        *both([("cls.predictions.transform.dense", f"{own}.dense"), ("cls.predictions.transform.LayerNorm", f"{own}.norm")]),
        row("cls.predictions.decoder.weight", f"{own}.words.weight"),
        *output_bias(c, "cls.predictions.decoder.bias", "cls.predictions.bias", f"{own}.words.bias"),
    ]  # fmt: skip


def bert_heads(c: ModelConfig) -> list[Row]:
    no_next = drop_both("cls.seq_relationship", "head 'masked' does not ask for the next sentence")
    pooled = both([("pooler.dense", "head.next.pooler.dense"), ("cls.seq_relationship", "head.next.output")])
    return head_rows(c, {
        "masked": bert_words(c, "head") + no_next,
        "masked-next": bert_words(c, "head.words") + pooled,
        "classes": both([("pooler.dense", "head.pooler.dense"), ("classifier", "head.output")]),
    })  # fmt: skip


def bert_table(c: ModelConfig, block: list[Row] = ENCODER_BLOCK) -> list[Row]:
    return encoder_table(c, "cls.predictions.decoder.weight", block) + bert_heads(c)


BERT = Family(
    "bert",
    architectures=encoder_classes("Bert", "masked", "masked-next", "classes", "tags", "span"),
    fixed=ENCODER,
    keys={**encoder_keys(30522, 768, 12, 3072), **token_ids(pad=0, bos=None, eos=None)},
    must=ENCODER_MUST,
    ignored=frozenset(
        "directionality pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head "
        "pooler_type".split()
    ),  # left in multilingual BERT by the TensorFlow program; nothing reads them
    read=read_encoder,
    write=write_encoder,
    table=bert_table,
    rewrites=(POSITIONS_AS_TABLE, ZERO_BIASES, ZERO_SEGMENTS, SCALED_WORDS),
    prefix="bert.",
    heads=("cls.", "classifier.", "qa_outputs."),
    marks=(
        (("cls.predictions.", "cls.seq_relationship.", "pooler."), "masked-next"), (("cls.predictions.",), "masked"),
        (("classifier.", "pooler."), "classes"), (("classifier.",), "tags"), (("qa_outputs.",), "span"),
    ),
    spellings=OLD_NORMS,
)  # fmt: skip

# --- RoBERTa


def read_roberta(values: Json, names: set[str], head: str) -> dict[str, Any]:
    gelu_only(values, head)
    # positions are counted from the pad id
    return read_encoder(values, names, head, offset=usable_pad_id(values["pad_token_id"]) + 1)


def roberta_heads(c: ModelConfig, bias: list[Row]) -> list[Row]:
    """The heads, with the rows of the masked-word head's bias."""
    dense = both([("lm_head.dense", "head.dense"), ("lm_head.layer_norm", "head.norm")])
    return head_rows(c, {
        "masked": [*dense, row("lm_head.decoder.weight", "head.words.weight"), *bias],
        "classes": both([("classifier.dense", "head.pooler.dense"), ("classifier.out_proj", "head.output")]),
    })  # fmt: skip


def roberta_table(c: ModelConfig) -> list[Row]:
    bias = output_bias(c, "lm_head.decoder.bias", "lm_head.bias")
    return encoder_table(c, "lm_head.decoder.weight") + roberta_heads(c, bias)


ROBERTA = Family(
    "roberta",
    architectures=encoder_classes("Roberta", "masked", "classes", "tags", "span"),
    fixed=ENCODER,
    keys={**encoder_keys(50265, 768, 12, 3072), **token_ids(pad=1, bos=0, eos=2)},
    must=ENCODER_MUST,
    read=read_roberta,
    write=write_gelu,
    table=roberta_table,
    prefix="roberta.",
    heads=("lm_head.", "classifier.", "qa_outputs."),
    marks=((("lm_head.",), "masked"), (("classifier.dense.",), "classes"), (("classifier.",), "tags"),
           (("qa_outputs.",), "span")),
    spellings=OLD_NORMS,
)  # fmt: skip

# --- ELECTRA: words narrower than the stream, a generator (masked words) and a discriminator (replaced or not)


def read_electra(values: Json, names: set[str], head: str) -> dict[str, Any]:
    gelu_only(values, head)
    return {**read_encoder(values, names, head), "d_embed": values["embedding_size"]}


def electra_table(c: ModelConfig) -> list[Row]:
    words, replaced = "generator_predictions", "discriminator_predictions"
    heads = {
        "masked": both([
            (f"{words}.dense", "head.dense"), (f"{words}.LayerNorm", "head.norm"), ("generator_lm_head", "head.words"),
        ]),
        "replaced": both([(f"{replaced}.dense", "head.dense"), (f"{replaced}.dense_prediction", "head.output")]),
    }  # fmt: skip
    project = both([("embeddings_project", "embed.project")])
    return encoder_table(c, "generator_lm_head.weight") + project + head_rows(c, heads, pooler=False)


ELECTRA = Family(
    "electra",
    architectures=encoder_classes("Electra", "masked", "replaced", "tags", "span"),
    fixed=ENCODER,
    keys={**encoder_keys(30522, 256, 4, 1024), **token_ids(pad=0, bos=None, eos=None), "embedding_size": Key(128)},
    must=ENCODER_MUST,
    ignored=frozenset("summary_type summary_use_proj summary_activation summary_last_dropout".split()),
    read=read_electra,
    write=lambda c: {**write_gelu(c), "embedding_size": c.d_embed or c.d_model},
    table=electra_table,
    prefix="electra.",
    heads=("generator_", "discriminator_", "classifier.", "qa_outputs."),
    marks=((("generator_",), "masked"), (("discriminator_",), "replaced"), (("classifier.",), "tags"),
           (("qa_outputs.",), "span")),
    spellings=OLD_NORMS,
)  # fmt: skip

# --- Vision Transformer


def square(values: Json, key: str) -> int:
    """The side of a square given as one number or two equal ones."""
    sides = values[key] if isinstance(values[key], tuple) else (values[key],)
    if len(set(sides)) != 1:
        raise FileError(f"config.json: {key} = {list(sides)} is not square; only square ones are supported")
    return sides[0]


def read_vit(values: Json, names: set[str], head: str) -> dict[str, Any]:
    image, patch = square(values, "image_size"), square(values, "patch_size")
    if values["pooler_output_size"] not in (None, values["hidden_size"]):
        raise FileError(f"config.json: pooler_output_size = {values['pooler_output_size']} must be hidden_size")
    length = 1 + (image // max(patch, 1)) ** 2
    return {"head": read_head(names, head), "image_size": image, "patch_size": patch, "max_length": length}


VIT_SPELLINGS = (
    (r"^layers\.(\d+)\.attention\.q_proj\.", r"encoder.layer.\1.attention.attention.query."),
    (r"^layers\.(\d+)\.attention\.k_proj\.", r"encoder.layer.\1.attention.attention.key."),
    (r"^layers\.(\d+)\.attention\.v_proj\.", r"encoder.layer.\1.attention.attention.value."),
    (r"^layers\.(\d+)\.attention\.o_proj\.", r"encoder.layer.\1.attention.output.dense."),
    (r"^layers\.(\d+)\.mlp\.fc1\.", r"encoder.layer.\1.intermediate.dense."),
    (r"^layers\.(\d+)\.mlp\.fc2\.", r"encoder.layer.\1.output.dense."),
    (r"^layers\.(\d+)\.layernorm_", r"encoder.layer.\1.layernorm_"),
)
"""transformers 5 has other names in memory, and turns them into the old ones when it saves."""


def vit_table(c: ModelConfig) -> list[Row]:
    return [
        row("embeddings.cls_token", "embed.cls", ONE_CELL),
        row("embeddings.position_embeddings", "embed.position.table", ONE_ROW),
        drop("embeddings.mask_token", "hides patches in masked-image training only"),
        *both([("embeddings.patch_embeddings.projection", "embed.patches"), ("layernorm", "stack.norm")]),
        *layers(c.n_layers, encoder_block("layernorm_before", "layernorm_after", attention="attention")),
        *head_rows(c, {"classes": CLASSIFIER}),
    ]


VIT = Family(
    "vit",
    architectures={"ViTModel": "base", "ViTForImageClassification": "classes"},
    fixed={**PRENORM, "position": "learned", "pooler": False},
    keys={
        **block_keys(768, 12, 12, 3072, dropout=0.0),
        "image_size": Key(224, None, (int, list)),
        "patch_size": Key(16, None, (int, list)),
        "num_channels": Key(3, "n_channels"),
        "pooler_output_size": Key(None, None, OPTIONAL_INT),
    },
    must={"qkv_bias": True, "pooler_act": "tanh", "is_encoder_decoder": False},
    ignored=frozenset({"encoder_stride"}),  # of the masked-image decoder
    read=read_vit,
    write=lambda c: {"image_size": c.image_size or 224, "patch_size": c.patch_size or 16, "pooler_output_size": c.d_model},
    table=vit_table,
    rewrites=(ZERO_BIASES,),
    prefix="vit.",
    heads=("classifier.",),
    marks=((("classifier.",), "classes"),),
    spellings=VIT_SPELLINGS,
)  # fmt: skip
