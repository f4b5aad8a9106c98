"""Start from a trained model: its weights where the new network has a matching parameter, initial ones in a new head.

The network and the vocabulary come from the model. Fields of the recipe that contradict them are errors; fields that say
the same, and those that fine-tuning may change (TUNABLE), are not.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from qkv.config import INITIAL, DataConfig, ModelConfig, Recipe, format_value
from qkv.convert.detect import open_config, open_model, open_usage
from qkv.convert.files import some
from qkv.convert.tokenizer_files import open_target_tokenizer, open_tokenizer, read_tokenizer
from qkv.errors import ConfigError, QkvError
from qkv.models.weights import weights
from qkv.presets import preset
from qkv.tasks.vocabulary import describe_vocabulary
from qkv.text.kinds import kind_of, lowercases
from qkv.text.tokenizer import Tokenizer

MOVED = {
    ("pooled", "classes"): ("head.", "head.pooler."),
    ("masked-next", "classes"): ("head.next.pooler.", "head.pooler."),
    ("masked-next", "masked"): ("head.words.", "head."),
    ("masked", "masked-next"): ("head.", "head.words."),
    ("vocabulary", "classes-words"): ("head.", "head.words."),
    ("classes-words", "vocabulary"): ("head.words.", "head."),
    ("classes-words", "classes"): ("head.", "head."),
    ("classes", "classes-words"): ("head.", "head."),
}
"""Pairs of heads that have a layer in common, and its name in each. For all others equal names are a coincidence: "dense" is the
pooler in one head of BERT and the transform before the output layer in another."""


TUNABLE = {
    "head", "n_classes", "labels", "pooling", "pooler", "keep", "output_bias", "copy_source", *INITIAL,  # what the new head is
    "dropout", "attention_dropout", "ffn_dropout",
    "max_length", "rotary_scaling", "position_base", "mixer", "window", "n_global",  # for longer texts
    "n_layers", "n_decoder_layers", "tie",  # fewer layers are the lowest ones; matrices that were one can become two
}  # fmt: skip
"""Fields of [model] in which a network may differ from the one that it starts from; `contradicts` has the limits of some."""
VOCABULARY = ("vocabulary", "vocab_size", "tokenizer", "lower", "joint")
"""Fields of [data] that say how text becomes tokens."""
TIES = {"none": set[str](), "embeddings": {"embeddings"}, "output": {"output"}, "all": {"embeddings", "output"}}


def check_start(recipe: Recipe, say: Callable[[str], None]) -> None:
    """Raise a ConfigError that names every field of the recipe that contradicts the model of tune.start."""
    folder = recipe.tune.start
    assert folder is not None and recipe.data is not None
    start = open_config(folder)
    wrong = [
        f"model.{name} = {format_value(now)} (there {format_value(was)})"
        for name, was, now in contradictions(start, recipe.model)
    ]
    wrong += vocabulary_contradictions(folder, start, recipe.data)
    if wrong:
        raise ConfigError(
            f"tune.start = {folder!r} brings its own network and vocabulary, which the recipe contradicts: {some(wrong)}; leave "
            'these fields out or set them to the same values, or train from random weights with tune.start = ""'
        )
    if recipe.preset and contradictions(start, preset(recipe.preset)):
        say(f"preset {recipe.preset!r} is not used: the network is that of {folder}")


def contradictions(start: ModelConfig, new: ModelConfig) -> list[tuple[str, Any, Any]]:
    """List (field, value of the start, value of the new network) where fine-tuning cannot change the field."""
    return [(name, sizes(start)[name], value) for name, value in sizes(new).items() if contradicts(start, new, name)]


def contradicts(start: ModelConfig, new: ModelConfig, name: str) -> bool:
    """Whether the new network's value of a field is incompatible with the weights of the start model."""
    was, now = sizes(start)[name], sizes(new)[name]
    if was == now or (name == "vocab_size" and not was):  # a model of images has no words
        return False
    if name == "max_length":  # tables with a row for each place
        return start.position == "learned" or "linformer" in start.mixer
    if name in ("n_layers", "n_decoder_layers"):
        return bool(now > was)
    if name == "tie":
        return start.head == new.head and not TIES[now] <= TIES[was]
    return name not in TUNABLE


def sizes(c: ModelConfig) -> dict[str, Any]:
    """Return all fields, with defaults that depend on other fields resolved."""
    derived = {"n_kv_heads": c.kv_heads, "d_head": c.head_width, "n_decoder_layers": c.decoder_layers,
               "target_vocab_size": c.target_size, "final_norm": c.has_final_norm, "start_id": c.first_id}  # fmt: skip
    return {name: getattr(c, name) for name in type(c).model_fields} | derived


def vocabulary_contradictions(folder: str, start: ModelConfig, data: DataConfig) -> list[str]:
    """List the fields of [data] that describe another vocabulary than the one that comes with the model."""
    own = open_tokenizer(folder) if Path(folder).is_dir() else None
    if own is None:  # then data.vocabulary is needed
        return []
    there: dict[str, tuple[Any, ...]] = {  # the size of the vocabulary comes first, then the one its recipe asked for
        "vocab_size": (own.size, start.vocab_size, open_usage(folder).vocab_size), "tokenizer": (kind_of(own),),
        "lower": (lowercases(own),), "joint": (open_target_tokenizer(folder) is None,),
    }  # fmt: skip
    wrong = [
        f"data.{name} = {format_value(getattr(data, name))} (there {format_value(there[name][0])})"
        for name in there
        if name in data.model_fields_set and getattr(data, name) not in there[name]
    ]
    if data.vocabulary and not same_vocabulary(read_tokenizer(data.vocabulary), own):
        wrong.append(f'data.vocabulary = "{data.vocabulary}" (there {describe_vocabulary(own)} of its own)')
    return wrong


def same_vocabulary(one: Tokenizer, other: Tokenizer) -> bool:
    """Whether two tokenizers split texts alike, regardless of the special tokens that they add."""
    first, second = (json.loads(tokenizer.to_json()) for tokenizer in (one, other))
    return all(first[part] == second[part] for part in ("model", "normalizer", "pre_tokenizer"))


def start_from(folder: str, config: ModelConfig, network: nn.Module, say: Callable[[str], None]) -> None:
    """Copy the weights of the model in `folder` into `network`, which is that of `config`. All weights except those of a head must fit;
    a head of another kind is new, and so is an output layer for other labels."""
    start, started, _ = open_model(folder)
    if start.family != config.family:
        raise QkvError(
            f"{folder} is of family {start.family!r}, this model of family {config.family!r}: start from another"
        )
    known = rename_weights(started.state_dict(), start, config)  # each name of a shared matrix
    fresh, misfits, wanted = [], [], weights(network)
    with torch.no_grad():
        for name, weight in wanted.items():
            found = known.get(name)
            if found is not None and len(found) == start.vocab_size < len(weight) == config.vocab_size:
                found = with_new_rows(found, config.vocab_size)
            if found is not None and found.shape == weight.shape:
                weight.copy_(found)
            elif name.startswith("head."):
                fresh.append(name)
            else:
                there = "" if found is None else f" (there {tuple(found.shape)})"
                misfits.append(f"{name} {tuple(weight.shape)}{there}")
    if misfits:
        raise QkvError(f"{folder} does not have the weights of this model: {some(misfits, 5)}; leave the sizes out of [model], "
                       "they come from the folder")  # fmt: skip
    unused = [name for name in weights(started) if name not in wanted and not name.startswith("head.")]
    say(f"starting from {folder}" + (f"; new weights: {', '.join(fresh)}" if fresh else "")
        + (f"; unused weights: {some(unused, 5)}" if unused else ""))  # fmt: skip


def with_new_rows(matrix: Tensor, size: int) -> Tensor:
    """Add rows for new tokens of a vocabulary, such as those of a chat template: the mean of the others, (V, ...) -> (size, ...)."""
    new = matrix.mean(0, keepdim=True).expand(size - len(matrix), *matrix.shape[1:])
    return torch.cat([matrix, new])


def rename_weights(known: Mapping[str, Tensor], start: ModelConfig, new: ModelConfig) -> dict[str, Tensor]:
    """Return the weights under the names of the new network; leave out an output layer for other labels."""
    alike = ("head.", "head.") if start.head == new.head else None
    old, now = alike or MOVED.get((start.head, new.head), ("nothing", ""))
    found = {name: x for name, x in known.items() if not name.startswith("head.")}
    found |= {now + name.removeprefix(old): x for name, x in known.items() if name.startswith(old)}
    if start.labels and start.labels != new.labels:
        found = {name: x for name, x in found.items() if not name.startswith("head.output.")}
    return found
