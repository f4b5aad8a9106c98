"""The model folder: config.json, model.safetensors, tokenizer.json, README.md (card), and COMPLETE, written last.

A translator with one vocabulary per language also has target_tokenizer.json; a chat template is in tokenizer_config.json.
config.json is complete: `model` describes the network, `usage` what it is for and how it is used (task, languages, decoding
defaults ...), so that a folder copied anywhere can do all that its run could. Folders of format 0.1 have no `usage`.

A folder without the marker was not finished and is never opened. The marker lists checksums, and a file that differs from
its own is refused. Nothing is allocated before the configuration and the weights file are known to agree.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from torch import Tensor, nn

import qkv
from qkv.config import ModelConfig, validate
from qkv.config.rules import outside
from qkv.config.usage import Usage
from qkv.convert.files import (
    new_folder,
    read_headers,
    read_json,
    read_tensors,
    some,
    write_json,
    write_tensors,
    write_text,
)
from qkv.convert.folder_weights import copy_into
from qkv.convert.manifest import MARKER, seal, verify
from qkv.convert.quantized import build_with_integers, dequantize, plain_shapes
from qkv.convert.tokenizer_files import TARGET, open_tokenizer, save_tokenizer
from qkv.engine.quantize import has_integers, parameter_count, quantized_weights
from qkv.errors import FileError
from qkv.models.build import Network, NoDraws, build, skeleton
from qkv.models.weights import weights
from qkv.text.tokenizer import Tokenizer

MODEL_TYPE = "qkv"
FORMAT, INTEGER_FORMAT = "0.2", "0.3"
"""Of the folder: 0.3 has int8 weights and `quantization`. 0.1 had no `format` and no `usage`."""
SEALED = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", TARGET,
          "adapter_config.json", "adapter_model.safetensors"}  # fmt: skip
"""Files whose checksums are in the marker."""
FILES = SEALED | {"README.md", MARKER}
"""What a save replaces; other files in the folder stay."""
NO_USAGE = Usage()
Values = dict[str, Any]
MAX_TABLES = 2**28
"""Most elements of tables that a network computes for itself (sinusoids, random features)."""


# --- weights in and out of a network


def agree(config: ModelConfig, shapes: dict[str, tuple[int, ...]], where: str) -> None:
    """Would these tensors fill the network of `config`? All that differ are named at once; no memory is taken."""
    plausible(config, len(shapes), where)
    outline = skeleton(config)
    compare(shapes_of(weights(outline)), shapes, where)
    if wrong := ", ".join(outside(config)):
        size = f"the vocabulary of {config.target_size:,} words"
        raise FileError(f"{where}: {wrong} is outside {size}: correct the configuration")
    if sum(buffer.numel() for buffer in outline.buffers()) > MAX_TABLES:
        raise FileError(f"{where}: the configuration has tables of impossible size; correct config.json")


def plausible(config: ModelConfig, n_tensors: int, where: str) -> None:
    """Before even an outline is made: no more layers than there are tensors."""
    layers = max(config.n_layers, config.decoder_layers)
    if layers > n_tensors and not config.share_layers:
        sizes = f"{layers} layers in the configuration, {n_tensors} tensors"
        raise FileError(f"{where}: {sizes}: they do not belong together")


def compare(wanted: dict[str, tuple[int, ...]], shapes: dict[str, tuple[int, ...]], where: str) -> None:
    """Every missing, unknown or misshapen tensor in one error."""
    wrong = [name for name in sorted(wanted.keys() & shapes.keys()) if shapes[name] != wanted[name]]
    problems = {
        "missing": sorted(wanted.keys() - shapes.keys()),
        "unknown": sorted(shapes.keys() - wanted.keys()),
        "wrong shape:": [f"{name} is {shapes[name]} instead of {wanted[name]}" for name in wrong],
    }
    if listed := "; ".join(f"{problem} {some(names)}" for problem, names in problems.items() if names):
        raise FileError(f"{where}: weights and configuration do not belong together: {listed}")


def fill(config: ModelConfig, tensors: dict[str, Tensor], where: str) -> Network:
    """The network of `config` with these weights, in float32 and in evaluation mode."""
    agree(config, shapes_of(tensors), where)
    return network_with(config, tensors, where)


def network_with(config: ModelConfig, tensors: dict[str, Tensor], where: str = "the model") -> Network:
    """`fill` for tensors that are known to agree."""
    with NoDraws():
        network = build(config)
    copy_into(network, tensors, where)
    return network.eval()


def put(network: nn.Module, tensors: dict[str, Tensor], where: str) -> None:
    """Give a network these weights."""
    compare(shapes_of(weights(network)), shapes_of(tensors), where)
    copy_into(network, tensors, where)


def shapes_of(tensors: dict[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


# --- the folder


def save(folder: str | Path, config: ModelConfig, network: nn.Module, tokenizer: Tokenizer | None = None,
         target: Tokenizer | None = None, usage: Usage = NO_USAGE, quantization: Values | None = None) -> None:  # fmt: skip
    """Write a model folder, or replace one: the old one stays until the new one is complete."""
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise FileError(f"{folder} is a file: choose another name for the folder")
    used = folder.is_dir() and any(folder.iterdir())
    if used and not (folder / "config.json").is_file():
        raise FileError(f"{folder} is not empty and holds no model: choose another folder")
    if used and read_json(folder / "config.json").get("model_type") != MODEL_TYPE:
        raise FileError(f"{folder} holds a model of another kind, which would be overwritten: choose another folder")
    with new_folder(folder) as new:
        if used:
            others = lambda at, names: FILES & set(names) if Path(at) == folder else ()  # noqa: E731
            shutil.copytree(folder, new, symlinks=True, ignore=others, dirs_exist_ok=True)
        write(new, config, network, tokenizer, target, usage, quantization)


def write(folder: Path, config: ModelConfig, network: nn.Module, tokenizer: Tokenizer | None,
          target: Tokenizer | None = None, usage: Usage = NO_USAGE, quantization: Values | None = None) -> None:  # fmt: skip
    """Write the files into an empty folder; the marker comes last. `quantization`: how int8 weights were measured."""
    if has_integers(network):
        tensors = quantized_weights(network, list(weights(skeleton(config))))
        write_config(folder, config, usage, quantization or {"precision": "int8"})
    else:
        tensors = weights(network)
        write_config(folder, config, usage)
    write_tensors(folder / "model.safetensors", tensors)
    if tokenizer is not None:
        save_tokenizer(folder, tokenizer, target)
    write_text(folder / "README.md", card(config, network))
    seal(folder, SEALED)


def write_config(folder: Path, config: ModelConfig, usage: Usage, quantization: Values | None = None) -> None:
    model = config.model_dump(mode="json")  # all fields: a later default must not change an old model
    head = {
        "model_type": MODEL_TYPE,
        "format": INTEGER_FORMAT if quantization else FORMAT,
        "qkv_version": qkv.__version__,
    }
    integers = {"quantization": quantization} if quantization else {}
    write_json(folder / "config.json", {**head, "usage": usage.to_json(), **integers, "model": model})


def replace_usage(folder: Path, usage: Usage) -> None:
    """Store another `usage` in a model folder, which is replaced as a whole; a folder that has it already is not touched."""
    if read_usage(folder) == usage and "format" in read_json(folder / "config.json"):
        return
    with new_folder(folder) as new:
        shutil.copytree(folder, new, symlinks=True, dirs_exist_ok=True)
        write_config(new, read_config(folder), usage, read_quantization(folder))
        seal(new, SEALED)


def card(config: ModelConfig, network: nn.Module) -> str:
    """README.md: what the folder is and how to open it."""
    count = parameter_count(network)
    values = config.model_dump(mode="json", exclude_unset=True)
    fields = "\n".join(f"- {name}: {value}" for name, value in values.items())
    return (
        f"# A {config.family} with {count:,} parameters\n\n{fields}\n\n"
        "Open it with qkv:\n\n"
        '```python\nimport qkv\n\nmodel = qkv.load("this folder")\n```\n'
    )


def load(folder: str | Path, precision: str | None = "float32") -> tuple[ModelConfig, Network, Tokenizer | None]:
    """Read a folder that `save` has finished, each file verified; int8 weights become float32 where that is the precision."""
    folder, where = Path(folder), str(folder)
    verify(folder)
    config, integers = read_config(folder), read_quantization(folder) is not None
    shapes = {name: entry.shape for name, entry in read_headers(folder).items()}
    agree(config, plain_shapes(shapes, where) if integers else shapes, where)
    tensors = read_tensors(folder)
    if integers and precision != "float32":
        return config, build_with_integers(config, tensors, where), open_tokenizer(folder)
    tensors = dequantize(tensors, where) if integers else tensors
    return config, network_with(config, tensors, where), open_tokenizer(folder)


def read_config(folder: Path) -> ModelConfig:
    """Read the network's configuration from config.json."""
    return validate(ModelConfig, read_values(folder)["model"], "model")  # type: ignore[no-any-return]


def read_usage(folder: Path) -> Usage:
    """Read what a model is for from config.json; a folder of format 0.1 does not say it."""
    return validate(Usage, read_values(folder).get("usage", {}), "usage")  # type: ignore[no-any-return]


def read_quantization(folder: Path) -> Values | None:
    """Read how the int8 weights of a folder were measured from config.json; None for float32."""
    found: Values | None = read_values(folder).get("quantization")
    return found


def read_values(folder: Path) -> dict[str, Any]:
    """Read config.json, with the parts that it must have."""
    if not (folder / MARKER).is_file():
        raise FileError(f"{folder} has no {MARKER} file: its saving was interrupted; save or download it again")
    verify(folder, "config.json")
    values: dict[str, Any] = read_json(folder / "config.json")
    if values.get("format", FORMAT) not in (FORMAT, INTEGER_FORMAT):
        given = f"format {values['format']!r}"
        raise FileError(
            f"{folder} has {given}, and this version of qkv reads 0.1, {FORMAT} and {INTEGER_FORMAT}: update qkv"
        )
    if ("quantization" in values) != (values.get("format") == INTEGER_FORMAT) or not isinstance(
        values.get("quantization", {}), dict
    ):
        raise FileError(
            f"{folder / 'config.json'}: format {INTEGER_FORMAT} has a table 'quantization', and no other format has one"
        )
    unknown = sorted(values.keys() - {"model_type", "format", "qkv_version", "model", "usage", "quantization"})
    if values.get("model_type") != MODEL_TYPE or not isinstance(values.get("model"), dict) or unknown:
        raise FileError(
            f"{folder / 'config.json'} must hold model_type = 'qkv', format, qkv_version, usage and model"
            + (f", not {some(unknown)}" if unknown else "")
        )
    return values
