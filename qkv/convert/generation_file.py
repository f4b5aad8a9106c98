"""generation_config.json: decoding defaults of a Hugging Face model, import and export.

Read are the search (num_beams, length_penalty, early_stopping), its bounds (max_length or max_new_tokens, min_length or
min_new_tokens, no_repeat_ngram_size) and forced tokens (forced_bos_token_id, which is part of the model's configuration, and
forced_eos_token_id). All other keys are ignored: sampling, penalties of repetition, lists of forbidden words, caches.
Folders without the file keep these keys in config.json.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from qkv.config import ModelConfig
from qkv.config.usage import DecodingDefaults
from qkv.convert.files import read_json
from qkv.convert.hf_family import NOTHING, OPTIONAL_INT, Json, check_type
from qkv.generate.beam import BeamParams
from qkv.generate.translate import suppressed_tokens

NAME = "generation_config.json"
INTEGERS = "num_beams max_length max_new_tokens min_length min_new_tokens no_repeat_ngram_size forced_bos_token_id"
KEYS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(INTEGERS.split(), OPTIONAL_INT),
    "length_penalty": (float, int, NOTHING),
    "early_stopping": (bool, str, NOTHING),
    "forced_eos_token_id": (int, list, NOTHING),
}
"""The keys that are read and their types."""


def settings(folder: Path, config_json: Json) -> dict[str, Any]:
    """The keys that are read, of generation_config.json or, where there is none, of config.json."""
    path = folder / NAME
    values = read_json(path) if path.is_file() else config_json
    found = {name: values.get(name) for name in KEYS}
    for name, kinds in KEYS.items():
        check_type(name, found[name], kinds)
    return found


def with_forced_id(config: ModelConfig, folder: Path, config_json: Json) -> ModelConfig:
    """The configuration with the token that every output begins with."""
    forced = settings(folder, config_json)["forced_bos_token_id"]
    if config.family != "encoder-decoder" or forced is None:
        return config
    return config.changed(forced_id=forced)


def read_defaults(folder: Path) -> DecodingDefaults:
    """Read the decoding defaults of a Hugging Face folder.

    transformers counts the start token in max_length, we do not. A max_length that equals the number of positions is no
    setting of decoding, and is left out.
    """
    config = read_json(folder / "config.json")
    values = settings(folder, config)
    both_halves = config.get("is_encoder_decoder", False) is True
    longest = values["max_new_tokens"]
    bounded = values["max_length"] is not None and values["max_length"] != config.get("max_position_embeddings")
    if longest is None and bounded and both_halves:
        longest = max(1, values["max_length"] - 1)
    shortest = values["min_length"] if values["min_new_tokens"] is None else values["min_new_tokens"] + 1
    return DecodingDefaults(
        beam=values["num_beams"],
        length_penalty=None if values["length_penalty"] is None else float(values["length_penalty"]),
        max_length=longest,
        min_length=shortest,
        no_repeat_ngram=values["no_repeat_ngram_size"],
        early=None if values["early_stopping"] is None else values["early_stopping"] is True,
        forced_end=None if values["forced_eos_token_id"] is None else True,
    )


def generation_json(c: ModelConfig, how: DecodingDefaults) -> dict[str, Any]:
    """Return the settings with which transformers' `generate` gives the same output. It divides by length^penalty only: of a search
    with another length formula only the exponent is kept."""
    ends = c.eos_ids[0] if len(c.eos_ids) == 1 else list(c.eos_ids) or None
    common = {"bos_token_id": c.bos_id, "eos_token_id": ends, "pad_token_id": c.pad_id, "do_sample": False}
    if c.family == "decoder":
        return {**common, "max_length": c.max_length}
    usual = BeamParams()
    chosen = how.resolve(beam=(None, usual.size), length_penalty=(None, usual.length_penalty), min_length=(None, 0),
                         no_repeat_ngram=(None, 0), early=(None, False))  # fmt: skip
    longest = c.max_length if how.max_length is None else min(how.max_length + 1, c.max_length)
    return {
        **common,
        "decoder_start_token_id": c.first_id,
        "forced_bos_token_id": c.forced_id,
        "forced_eos_token_id": c.eos_ids[0] if how.forced_end and c.eos_ids else None,
        "num_beams": chosen["beam"],
        "length_penalty": chosen["length_penalty"],
        "early_stopping": chosen["early"] or "never",  # false would stop where a better text may still come
        "max_length": longest,
        "min_length": chosen["min_length"],
        "no_repeat_ngram_size": chosen["no_repeat_ngram"],
        "suppress_tokens": list(suppressed_tokens(c)) or None,
    }
