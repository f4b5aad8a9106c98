"""Import and export of Hugging Face folders: config.json and weights of fourteen families <-> ModelConfig and weights in our names.

    config = read_config(config_json, tensors)                 what the folder describes
    weights = from_foreign(config, config_json, tensors)       its weights in our names
    config_json, tensors = to_foreign(config, weights)         the way back

Each family declares its config.json keys and one table of weights (hf_encoders, hf_prenorm_encoders, hf_deberta, hf_decoders,
hf_encoder_decoders). Which family can hold a network is not declared but tried: a config.json is written, read again, and
compared; first of the network as it stands, then of one with the same outputs in the family's parts (rewrite.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from qkv.config import INITIAL, ModelConfig
from qkv.config.rules import ABSOLUTE
from qkv.convert.hf_deberta import DEBERTA
from qkv.convert.hf_decoders import GPT2, LLAMA, STARCODER2
from qkv.convert.hf_encoder_decoders import BART, BLENDERBOT, MARIAN, T5
from qkv.convert.hf_encoders import BERT, ELECTRA, ROBERTA, VIT
from qkv.convert.hf_family import Family, Json, labels_json
from qkv.convert.hf_prenorm_encoders import ESM, MEGATRON_BERT
from qkv.convert.pooled_head import headless, poolable, without_head
from qkv.convert.rewrite import Rewrite, apply, rewritten
from qkv.convert.tables import Weights, active, complain, read_weights, write_weights
from qkv.errors import ConfigError, FileError, QkvError
from qkv.models.build import skeleton
from qkv.models.weights import weights

Foreign = tuple[dict[str, Any], dict[str, Tensor]]
"""config.json and weights."""
ENCODERS = (BERT, ROBERTA, ELECTRA, DEBERTA, MEGATRON_BERT, ESM)
FAMILIES = {f.model_type: f for f in (*ENCODERS, GPT2, LLAMA, STARCODER2, T5, BART, MARIAN, BLENDERBOT, VIT)}
WITHOUT_EFFECT = (
    *"dropout attention_dropout ffn_dropout balance_weight final_norm bos_id start_id forced_id".split(), *INITIAL
)  # fmt: skip
"""Fields that do not decide the outputs by themselves: only in training, or through a field that `effective` derives."""


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


def from_foreign(config: ModelConfig, config_json: Json, tensors: Weights) -> dict[str, Tensor]:
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


@dataclass(frozen=True)
class Plan:
    """How a network is written: as which family, after which rewrites."""

    family: Family
    config: ModelConfig
    """Of the network that is written: the same outputs as ours, in parts that the family has."""
    rewrites: tuple[Rewrite, ...]
    """What turns our weights into those of `config`."""
    config_json: dict[str, Any]
    pooled: bool = False
    """Classes of a pooled vector, which the family does not have: the network without a head, and the head beside it
    (pooled_head.py)."""

    @property
    def name(self) -> str:
        """What is written, for messages."""
        kind = self.config_json["architectures"][0]
        return f"{kind} and a linear layer on the {self.config.pooling} of its vectors" if self.pooled else kind


def plan(config: ModelConfig, model_type: str | None = None) -> Plan:
    """How to write a network: as the first family that can hold it, or as `model_type` if given.

    Families that hold it as it stands come before those that hold a rewritten one, and those with its head before those
    that are written without one. A ConfigError says what each family lacks where none can.
    """
    if model_type is not None and model_type not in FAMILIES:
        raise ConfigError(f"model_type = {model_type!r} is not supported; it is one of {', '.join(FAMILIES)}")
    wanted = list(FAMILIES.values()) if model_type is None else [FAMILIES[model_type]]
    found, reasons = find_plan(config, wanted)
    if found is None and poolable(config):
        found, others = find_plan(headless(config), wanted)
        if found is not None:
            return replace(found, config_json={**found.config_json, **labels_json(config)}, pooled=True)
        reasons = {name: min(reasons[name], others[name], key=len) for name in reasons}
    if found is None:
        raise ConfigError(why_none(config, reasons))
    return found


def find_plan(config: ModelConfig, families: Iterable[Family]) -> tuple[Plan | None, dict[str, list[str]]]:
    """The first family that holds a network, as it stands or else rewritten; and what each of the others lacks."""
    reasons: dict[str, list[str]] = {}
    for rewriting in (False, True):
        for family in families:
            of_kind = family.fixed["family"] == config.family
            other, used = apply(family.rewrites, config) if rewriting and of_kind else (config, ())
            config_json, lost = attempt(family, other, weights(skeleton(other)))
            if not lost:
                return Plan(family, other, used, config_json), {}
            reasons[family.model_type] = min(reasons.get(family.model_type, lost), lost, key=len)
    return None, reasons


def exportable(config: ModelConfig) -> tuple[str | None, str]:
    """What a network is exported to Hugging Face as (None = it cannot be), and what prevents it. No weights are made."""
    try:
        return plan(config).name, ""
    except ConfigError as error:
        return None, str(error)


def to_foreign(config: ModelConfig, tensors: Weights, model_type: str | None = None) -> Foreign:
    """config.json and weights of the first family that can hold the network, or of `model_type` if given."""
    ours = weights(skeleton(config))
    complain(sorted(ours.keys() - tensors.keys()), sorted(tensors.keys() - ours.keys()))
    return write_plan(plan(config, model_type), config, tensors)


def write_plan(chosen: Plan, config: ModelConfig, tensors: Weights) -> Foreign:
    """config.json and weights of a network as planned; a pooled head is left out, it has a file of its own."""
    family, config_json = chosen.family, dict(chosen.config_json)
    if chosen.pooled:
        config, tensors = headless(config), without_head(tensors)
    bare = family.architectures[config_json["architectures"][0]] == "base"
    written = write_weights(family.table(chosen.config), rewritten(chosen.rewrites, config, tensors))
    config_json["torch_dtype"] = str(next(iter(tensors.values())).dtype).removeprefix("torch.")
    return config_json, {family.full(name, bare): tensor for name, tensor in written.items()}


def attempt(family: Family, config: ModelConfig, ours: Weights) -> tuple[dict[str, Any], list[str]]:
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
    """What no family of this kind has, or else what the nearest one lacks."""
    kin = {name: fields for name, fields in reasons.items() if fields != [f"family = {config.family!r}"]} or reasons
    common = [field for field in next(iter(kin.values())) if all(field in fields for fields in kin.values())]
    if common and len(kin) > 1:
        known = f"no Hugging Face model that can be written has it; the families are {', '.join(kin)}"
        return f"{', '.join(common)}: {known}"
    name, fields = min(kin.items(), key=lambda item: len(item[1]))
    return f"no Hugging Face family can hold this model; the nearest one lacks {', '.join(fields)} ({name})"


def effective(c: ModelConfig) -> dict[str, Any]:
    """Return the fields that decide a network's outputs: derived sizes in place of None, without idle fields and dropout."""
    wordless = c.family == "encoder" and c.image_size is not None
    derived = {
        "n_kv_heads": c.kv_heads,
        "d_head": c.head_width,
        "d_embed": c.d_embed or c.d_model,
        "n_decoder_layers": c.decoder_layers,
        "target_vocab_size": c.target_size,
        "has_final_norm": c.has_final_norm,
        "first_id": None if wordless else c.first_id if c.family == "encoder-decoder" else c.bos_id,
        "eos_id": c.eos_ids,
        "causal": c.is_causal,
    }
    left_out = {*WITHOUT_EFFECT, *idle_fields(c, wordless)}
    return {name: value for name, value in (c.model_dump() | derived).items() if name not in left_out}


def idle_fields(c: ModelConfig, wordless: bool) -> list[str]:
    """Return the fields that this configuration does not use."""
    words = c.head in ("vocabulary", "masked", "masked-next", "classes-words")
    classes = c.head in ("classes", "classes-words", "tags")
    idle = {
        "vocab_size target_vocab_size pad_id eos_id": wordless,
        "max_length": c.position != "learned" and "linformer" not in (*c.mixer, c.cross_mixer),
        "position_use": c.position not in ABSOLUTE,
        "position_base": c.position in ("none", "learned", "binary", "relative", "t5", "alibi", "disentangled"),
        "position_layout": c.position != "sinusoidal",
        "position_offset": c.position != "learned",
        "relative_distance": c.position not in ("t5", "relative", "disentangled"),
        "relative_buckets": c.position != "t5",
        "relative_per_head": c.position != "relative",
        "experts_per_token expert_softmax": c.n_experts == 0,
        "score_rank": c.score != "low-rank",
        "window": not {"window", "compressed"} & set(c.mixer),
        "n_global": "window" not in c.mixer,
        "mixer_rank": not {"linformer", "performer"} & {*c.mixer, c.cross_mixer},
        "compression": "compressed" not in c.mixer,
        "patch_size n_channels": c.image_size is None,
        "n_classes labels": not classes,
        "pooler": c.head not in ("classes", "classes-words"),
        "pooling": c.head not in ("classes", "classes-words", "pooled"),
        "tie output_bias output_scale": not words,
    }
    return [name for names, unused in idle.items() if unused for name in names.split()]
