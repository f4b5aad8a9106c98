"""Hugging Face folders both ways: config.json and weights of nine families <-> ModelConfig and weights in our names.

    config = read_config(config_json, tensors)                 what the folder describes
    weights = from_foreign(config, config_json, tensors)       its weights in our names
    config_json, tensors = to_foreign(config, weights)         the way back

Each family declares its config.json keys and one table of weights (hf_encoders, hf_decoders, hf_encoder_decoders).
Which family can hold a network is not declared but tried: a config.json is written, read again, and compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from qkv.config import ModelConfig
from qkv.convert.hf_decoders import GPT2, LLAMA
from qkv.convert.hf_encoder_decoders import BART, MARIAN, T5
from qkv.convert.hf_encoders import BERT, ELECTRA, ROBERTA, VIT
from qkv.convert.hf_family import Family, Json
from qkv.convert.tables import active, complain, read_weights, write_weights
from qkv.errors import ConfigError, FileError, QkvError
from qkv.models.build import skeleton
from qkv.models.weights import weights

FAMILIES = {f.model_type: f for f in (BERT, ROBERTA, ELECTRA, GPT2, LLAMA, T5, BART, MARIAN, VIT)}


def family_of(config_json: Json) -> Family:
    """The family that a config.json names."""
    if not isinstance(config_json, Mapping):
        raise FileError(f"config.json must hold an object of keys and values, not {type(config_json).__name__}")
    kind = config_json.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise FileError(f"config.json: model_type = {kind!r} is not supported; it is one of {', '.join(FAMILIES)}")
    return FAMILIES[kind]


def read_config(config_json: Json, keys: Iterable[str]) -> ModelConfig:
    """Our configuration of a Hugging Face model; `keys` are the names of its stored weights."""
    return family_of(config_json).read_config(config_json, keys)


def from_foreign(config: ModelConfig, config_json: Json, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights of a Hugging Face model in our names, as they are stored; strict about names, shapes and types."""
    family = family_of(config_json)
    plain: dict[str, Tensor] = {}
    twice = [name for name, tensor in tensors.items() if plain.setdefault(family.plain(name), tensor) is not tensor]
    if twice:
        raise FileError(f"the weights hold two spellings of one name: {', '.join(sorted(twice))}")
    stored = {family.plain(name): name for name in tensors}
    bare = not any(name.startswith(family.prefix) for name in tensors)
    called = lambda name: stored.get(name) or family.full(name, bare)  # noqa: E731
    return read_weights(family.table(config), weights(skeleton(config)), plain, called)


def to_foreign(
    config: ModelConfig, tensors: Mapping[str, Tensor], model_type: str | None = None
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """config.json and weights of the first family that can hold the network, or of `model_type` if given."""
    ours = weights(skeleton(config))
    complain(sorted(ours.keys() - tensors.keys()), sorted(tensors.keys() - ours.keys()))
    family, config_json = choose(config, ours, model_type)
    bare = family.architectures[config_json["architectures"][0]] == "base"
    written = write_weights(family.table(config), tensors)
    config_json["torch_dtype"] = str(next(iter(tensors.values())).dtype).removeprefix("torch.")
    return config_json, {family.full(name, bare): tensor for name, tensor in written.items()}


def choose(config: ModelConfig, ours: Mapping[str, Tensor], model_type: str | None) -> tuple[Family, dict[str, Any]]:
    """The family to write, with its config.json; a ConfigError with every family's reason where there is none."""
    if model_type is not None and model_type not in FAMILIES:
        raise ConfigError(f"model_type = {model_type!r} is not supported; it is one of {', '.join(FAMILIES)}")
    wanted = FAMILIES.values() if model_type is None else [FAMILIES[model_type]]
    reasons: dict[str, list[str]] = {}
    for family in wanted:
        config_json, reasons[family.model_type] = attempt(family, config, ours)
        if not reasons[family.model_type]:
            return family, config_json
    raise ConfigError(why_none(config, reasons))


def attempt(family: Family, config: ModelConfig, ours: Mapping[str, Tensor]) -> tuple[dict[str, Any], list[str]]:
    """The family's config.json of a network and what it does not carry: fields that come back with another value."""
    if family.fixed["family"] != config.family:
        return {}, [f"family = {config.family!r}"]
    try:
        config_json = family.write_config(config)
        names = [row.foreign for row in active(family.table(config), ours) if row.ours or row.fill]
        back = effective(family.read_config(config_json, names))
    except QkvError as error:
        return {}, [str(error)]
    # a field that counts in one of the two only does so because of another field, which differs and is named
    lost = [f"{name} = {value!r}" for name, value in effective(config).items() if back.get(name, value) != value]
    return config_json, lost


def why_none(config: ModelConfig, reasons: dict[str, list[str]]) -> str:
    """What no family of this kind has, or else each one's reason."""
    kin = {name: fields for name, fields in reasons.items() if fields != [f"family = {config.family!r}"]} or reasons
    common = [field for field in next(iter(kin.values())) if all(field in fields for fields in kin.values())]
    if common and len(kin) > 1:
        return (
            f"{', '.join(common)}: no Hugging Face model that can be written has it; the families are {', '.join(kin)}"
        )
    each = "; ".join(f"{name}: {', '.join(fields)}" for name, fields in kin.items())
    return f"no Hugging Face family can hold this model; what each does not have: {each}"


def effective(c: ModelConfig) -> dict[str, Any]:
    """What of a configuration decides the numbers: derived sizes in place of None, idle fields and dropout left out."""
    fields = c.model_dump()
    words = c.head in ("vocabulary", "masked", "masked-next", "classes-words")
    classes = c.head in ("classes", "classes-words", "tags")
    always = {"dropout", "attention_dropout", "ffn_dropout", "init_std", "final_norm", "bos_id", "start_id"}
    idle = {
        "max_length": c.position != "learned" and "linformer" not in c.mixer,
        "position_use": c.position not in ("learned", "sinusoidal"),
        "position_base": c.position != "sinusoidal" and not c.position.startswith("rotary"),
        "position_layout": c.position != "sinusoidal",
        "position_offset": c.position != "learned",
        "relative_distance": c.position not in ("t5", "relative"),
        "relative_buckets": c.position != "t5",
        "score_rank": c.score != "low-rank",
        "window": not {"window", "compressed"} & set(c.mixer),
        "n_global": "window" not in c.mixer,
        "mixer_rank": not {"linformer", "performer"} & set(c.mixer),
        "compression": "compressed" not in c.mixer,
        "patch_size": c.image_size is None,
        "n_channels": c.image_size is None,
        "n_classes": not classes,
        "labels": not classes,
        "pooler": c.head not in ("classes", "classes-words"),
        "pooling": c.head not in ("classes", "classes-words", "pooled"),
        "tie": not words,
        "output_bias": not words,
        "output_scale": not words,
        "pad_id": c.vocab_size == 0,
        "eos_id": c.vocab_size == 0,
    }
    derived = {
        "n_kv_heads": c.kv_heads,
        "d_head": c.head_width,
        "d_embed": c.d_embed or c.d_model,
        "n_decoder_layers": c.decoder_layers,
        "target_vocab_size": c.target_size,
        "has_final_norm": c.has_final_norm,
        "first_id": c.first_id if c.family == "encoder-decoder" else c.bos_id,
        "eos_id": c.eos_ids,
    }
    return {name: value for name, value in (fields | derived).items() if name not in always and not idle.get(name)}
