"""Tiny random Hugging Face models, saved as folders and opened as ours. No network access, no stored weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
import transformers as hf
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from qkv.config import ModelConfig
from qkv.convert.huggingface import from_foreign, read_config, to_foreign
from qkv.models.build import build

hf.logging.set_verbosity_error()
hf.logging.disable_progress_bar()

PAD = 1
VOCAB = 60

_ENCODER = {
    "vocab_size": VOCAB, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40,
    "max_position_embeddings": 30, "pad_token_id": PAD,
}  # fmt: skip
_DEBERTA = {
    **_ENCODER, "relative_attention": True, "position_biased_input": False, "pos_att_type": ["c2p", "p2c"],
}  # fmt: skip
_ESM = {**_ENCODER, "position_embedding_type": "rotary", "eos_token_id": 2}
_GPT2 = {
    "vocab_size": VOCAB,
    "n_embd": 24,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 80,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
_LLAMA = {
    "vocab_size": VOCAB, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40,
    "max_position_embeddings": 80,
}  # fmt: skip
_T5 = {"vocab_size": VOCAB, "d_model": 24, "d_kv": 10, "d_ff": 40, "num_layers": 3, "num_decoder_layers": 2, "num_heads": 3,
       "relative_attention_num_buckets": 8, "relative_attention_max_distance": 20, "decoder_start_token_id": 0}  # fmt: skip
_HALVES = {
    "vocab_size": VOCAB, "d_model": 24, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 40, "decoder_ffn_dim": 40, "max_position_embeddings": 80,
    "pad_token_id": PAD, "decoder_start_token_id": 2, "eos_token_id": 2, "forced_eos_token_id": None,
}  # fmt: skip
_VIT = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40, "image_size": 12,
        "patch_size": 4, "num_labels": 3}  # fmt: skip
_LLAMA3 = {"rope_type": "llama3", "rope_theta": 5000.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
           "original_max_position_embeddings": 32}  # fmt: skip


def _model(kind: str, **fields: object) -> Callable[[], nn.Module]:
    """A function that makes a model of a Hugging Face class, so that a list of them costs nothing."""
    config = kind.split("For")[0].removesuffix("LMHeadModel").removesuffix("MTModel").removesuffix("Model")
    return lambda: getattr(hf, kind)(getattr(hf, config + "Config")(**fields))


ENCODERS = {
    "bert-base": _model("BertModel", **_ENCODER),
    "bert-masked": _model("BertForMaskedLM", **_ENCODER),
    "bert-masked-untied": _model("BertForMaskedLM", **_ENCODER, tie_word_embeddings=False, hidden_act="gelu_new"),
    "bert-pretraining": _model("BertForPreTraining", **_ENCODER),
    "bert-classes": _model("BertForSequenceClassification", **_ENCODER, num_labels=3),
    "bert-labels": _model("BertForSequenceClassification", **_ENCODER, id2label={0: "no", 1: "yes", 2: "maybe"},
                          label2id={"no": 0, "yes": 1, "maybe": 2}),
    "bert-span": _model("BertForQuestionAnswering", **_ENCODER),
    "bert-tags": _model("BertForTokenClassification", **_ENCODER, num_labels=5, hidden_act="relu"),
    "roberta-base": _model("RobertaModel", **_ENCODER),
    "roberta-masked": _model("RobertaForMaskedLM", **{**_ENCODER, "pad_token_id": 3}),
    "roberta-masked-untied": _model("RobertaForMaskedLM", **_ENCODER, tie_word_embeddings=False),
    "roberta-classes": _model("RobertaForSequenceClassification", **_ENCODER, num_labels=4, type_vocab_size=1),
    "roberta-span": _model("RobertaForQuestionAnswering", **_ENCODER),
    "roberta-tags": _model("RobertaForTokenClassification", **_ENCODER),
    "electra-base": _model("ElectraModel", **_ENCODER, embedding_size=24),
    "electra-masked": _model("ElectraForMaskedLM", **_ENCODER, embedding_size=16),
    "electra-masked-untied": _model("ElectraForMaskedLM", **_ENCODER, embedding_size=16, tie_word_embeddings=False),
    "electra-replaced": _model("ElectraForPreTraining", **_ENCODER, embedding_size=16, hidden_act="silu"),
    "electra-tags": _model("ElectraForTokenClassification", **_ENCODER, embedding_size=24, num_labels=3),
    "electra-span": _model("ElectraForQuestionAnswering", **_ENCODER, embedding_size=16),
    "megatron-base": _model("MegatronBertModel", **_ENCODER),
    "megatron-masked": _model("MegatronBertForMaskedLM", **_ENCODER, hidden_act="relu"),
    "megatron-masked-untied": _model("MegatronBertForMaskedLM", **_ENCODER, tie_word_embeddings=False),
    "megatron-pretraining": _model("MegatronBertForPreTraining", **_ENCODER),
    "megatron-classes": _model("MegatronBertForSequenceClassification", **_ENCODER, num_labels=3),
    "megatron-tags": _model("MegatronBertForTokenClassification", **_ENCODER, num_labels=5, hidden_act="silu"),
    "megatron-span": _model("MegatronBertForQuestionAnswering", **_ENCODER),
    "deberta-base": _model("DebertaModel", **_DEBERTA),
    "deberta-masked": _model("DebertaForMaskedLM", **_DEBERTA, max_relative_positions=4),
    "deberta-masked-untied": _model("DebertaForMaskedLM", **_DEBERTA, tie_word_embeddings=False, type_vocab_size=2),
    "deberta-tags": _model("DebertaForTokenClassification", **_DEBERTA, num_labels=5, hidden_act="relu"),
    "deberta-span": _model("DebertaForQuestionAnswering", **_DEBERTA),
    "esm-base": _model("EsmModel", **_ESM),
    "esm-masked": _model("EsmForMaskedLM", **_ESM),
    "esm-masked-untied": _model("EsmForMaskedLM", **_ESM, tie_word_embeddings=False),
    "esm-classes": _model("EsmForSequenceClassification", **_ESM, num_labels=3),
    "esm-tags": _model("EsmForTokenClassification", **_ESM, num_labels=5),
    "esm-table": _model("EsmForMaskedLM", **{**_ESM, "position_embedding_type": "absolute"}, emb_layer_norm_before=True),
}  # fmt: skip
VISION = {
    "vit-base": _model("ViTModel", **_VIT),
    "vit-classes": _model("ViTForImageClassification", **_VIT),
}
DECODERS = {
    "gpt2": _model("GPT2LMHeadModel", **_GPT2),
    "gpt2-untied": _model("GPT2LMHeadModel", **_GPT2, tie_word_embeddings=False, n_inner=36, activation_function="relu",
                          scale_attn_weights=False),
    "llama": _model("LlamaForCausalLM", **_LLAMA),
    "llama-grouped-tied": _model("LlamaForCausalLM", **_LLAMA, num_key_value_heads=2, tie_word_embeddings=True,
                                 eos_token_id=[2, 5], rope_parameters={"rope_type": "default", "rope_theta": 500.0}),
    "llama-3": _model("LlamaForCausalLM", **_LLAMA, num_key_value_heads=1, head_dim=8, rope_parameters=_LLAMA3),
    "llama-biased": _model("LlamaForCausalLM", **_LLAMA, attention_bias=True, mlp_bias=True, hidden_act="gelu"),
    "starcoder2": _model("Starcoder2ForCausalLM", **_LLAMA, num_key_value_heads=2, hidden_act="relu"),
    "starcoder2-without-bias": _model("Starcoder2ForCausalLM", **_LLAMA, num_key_value_heads=4, use_bias=False,
                                      tie_word_embeddings=False, bos_token_id=1, eos_token_id=2),
}  # fmt: skip
ENCODER_DECODERS = {
    "t5": _model("T5ForConditionalGeneration", **_T5),
    "t5-1.1": _model("T5ForConditionalGeneration", **_T5, feed_forward_proj="gated-gelu", tie_word_embeddings=False),
    "t5-silu": _model("T5ForConditionalGeneration", **_T5, feed_forward_proj="gated-silu"),
    "bart": _model("BartForConditionalGeneration", **_HALVES),
    "bart-untied": _model("BartForConditionalGeneration", **_HALVES, tie_word_embeddings=False, scale_embedding=True),
    "marian": _model("MarianMTModel", **_HALVES, scale_embedding=True, activation_function="swish"),
    "marian-two-vocabularies": _model("MarianMTModel", **_HALVES, decoder_vocab_size=50,
                                      share_encoder_decoder_embeddings=False),
    "marian-untied": _model("MarianMTModel", **_HALVES, tie_word_embeddings=False),
    "blenderbot": _model("BlenderbotForConditionalGeneration", **_HALVES, scale_embedding=True, activation_function="relu"),
    "blenderbot-untied": _model("BlenderbotForConditionalGeneration", **_HALVES, tie_word_embeddings=False),
}  # fmt: skip
CLASSIFIERS = {
    "gpt2-classes": _model("GPT2ForSequenceClassification", **_GPT2, num_labels=3, pad_token_id=PAD),
    "llama-classes": _model("LlamaForSequenceClassification", **_LLAMA, num_labels=4, pad_token_id=PAD),
    "starcoder2-classes": _model(
        "Starcoder2ForSequenceClassification", **_LLAMA, num_key_value_heads=4, num_labels=3, pad_token_id=PAD
    ),
}
"""Decoders whose last vector is asked for a class."""
EVERY = {**ENCODERS, **VISION, **DECODERS, **ENCODER_DECODERS, **CLASSIFIERS}


def make(name: str) -> nn.Module:
    """The model of that name with every weight random, norms, biases and stored buffers too, so that nothing hides
    behind ones and zeros."""
    torch.manual_seed(len(name) + sum(map(ord, name)))
    model = EVERY[name]().eval()
    with torch.no_grad():
        for key, weight in model.named_parameters():
            if not weight.requires_grad:
                continue  # Marian's sinusoids
            centre = 1.0 if ("norm" in key.lower() or ".ln_" in key) and key.endswith("weight") else 0.0
            small = weight.dim() < 2 or any(part in key for part in ("embed", "shared", "wte", "wpe"))
            spread = 0.3 if small else weight[0].numel() ** -0.5
            weight.copy_(centre + torch.randn_like(weight) * spread)
            if "ttention.q." in key:
                # T5 does not divide scores by sqrt(D) and starts from smaller queries instead; without that its
                # softmax is so sharp that float32 rounding alone, which transformers' norm has too, exceeds 1e-5
                weight.mul_(model.config.d_kv**-0.5)
        for key, buffer in model.named_buffers():
            if key == "final_logits_bias":
                buffer.copy_(torch.randn_like(buffer))
    if name == "t5-1.1":  # transformers always ties T5's words when it builds, and keeps a stored output of its own
        model.lm_head.weight = nn.Parameter(torch.randn_like(model.lm_head.weight) * 0.3)
        model.all_tied_weights_keys.pop("lm_head.weight")
    return model


def save(model: nn.Module, folder: Path) -> Path:
    model.save_pretrained(folder)
    return folder


def read_folder(folder: Path) -> tuple[dict, dict[str, Tensor]]:
    """config.json and the tensors of a folder."""
    return json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")


def fill(config: ModelConfig, weights: dict[str, Tensor]) -> nn.Module:
    """Our network with these weights; every parameter must be given."""
    network = build(config).eval()
    parameters = dict(network.named_parameters())
    assert parameters.keys() == weights.keys()
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(weights[name])
    return network


def open_ours(folder: Path) -> tuple[ModelConfig, dict[str, Tensor], nn.Module]:
    """A Hugging Face folder as our configuration, weights and network."""
    config_json, tensors = read_folder(folder)
    config = read_config(config_json, tensors)
    weights = from_foreign(config, config_json, tensors)
    return config, weights, fill(config, weights)


def save_ours(config: ModelConfig, weights: dict[str, Tensor], folder: Path, model_type: str | None = None) -> Path:
    """Our network as a Hugging Face folder."""
    config_json, tensors = to_foreign(config, weights, model_type)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config_json))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def opened(folders) -> Callable:
    """(theirs, our config, our weights, our network, folder) of a name, made once; `folders` makes temporary ones."""

    @cache
    def pair(name: str):
        theirs = make(name)
        folder = save(theirs, folders.mktemp(name))
        return theirs, *open_ours(folder), folder

    return pair


def close(ours: Tensor, theirs: Tensor, mask: Tensor | None = None) -> None:
    """Equal within 1e-5 where the mask is true."""
    assert ours.shape == theirs.shape
    difference = (ours - theirs).abs()
    difference = difference if mask is None else difference[mask]
    assert difference.max() <= 1e-5, f"largest difference {difference.max():.2e}"
