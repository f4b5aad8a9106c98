"""State dicts of models made around torch.nn.Transformer: an embedding, nn.Transformer, a Linear on top.

nn.Transformer keeps query, key and value in one matrix (in_proj) and puts a norm on the end of both stacks whatever the
norm order. It knows neither words nor positions, so the names of those tensors and the settings are given by the caller.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qkv.config import ModelConfig, checked
from qkv.convert.files import read_bytes, read_tensors, some
from qkv.convert.folder import fill
from qkv.errors import FileError
from qkv.models.build import Network

ATTENTION = {"self_attn": "attention", "multihead_attn": "cross"}
FEEDFORWARD = {"linear1": "up", "linear2": "down"}
NORMS = {"encoder": ("attention", "feedforward"), "decoder": ("attention", "cross", "feedforward")}
LAYER = re.compile(r"(encoder|decoder)\.layers\.(\d+)\.(\w+)(?:\.(\w+))?\.?(\w+)?$")


def read(source: str | Path | Mapping[str, Tensor], n_heads: int, *, prefix: str = "transformer.",
         embedding: str = "embedding.weight", target_embedding: str | None = None, output: str | None = None,
         ignore: Iterable[str] = (), **settings: Any) -> tuple[ModelConfig, Network]:  # fmt: skip
    """A state dict, or the file of one (.pt without code, .safetensors), as configuration and network.

    `embedding`, `target_embedding` (None = the source's) and `output` (the Linear's name without .weight; None = the
    target embedding itself) say where the words are; `ignore` lists tensors that are none of the model's, such as stored
    sinusoids. `settings` are fields of ModelConfig: norm_order="pre" for norm_first, embed_scale, max_length, eos_id ...
    """
    tensors = dict(source) if isinstance(source, Mapping) else read_state_dict(Path(source))
    where = "the state dict" if isinstance(source, Mapping) else str(source)
    words = [embedding, *([target_embedding] if target_embedding else []), *([f"{output}.weight"] if output else [])]
    inside = {name[len(prefix) :]: tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    outside = [name for name in tensors if not name.startswith(prefix)]
    missing = [name for name in words if name not in tensors]
    if missing or "encoder.layers.0.self_attn.in_proj_weight" not in inside:
        raise FileError(
            f"{where} holds no nn.Transformer under {prefix!r} or lacks {', '.join(missing) or 'it'}; outside of it there is "
            f"{some(outside) or 'nothing'}: name them with prefix=, embedding=, target_embedding=, output="
        )
    known = {*words, f"{output}.bias", *ignore}
    if unknown := [name for name in outside if name not in known]:
        raise FileError(f"{where} also holds {some(unknown)}: name them, or list them in ignore=")
    sizes = sizes_of(inside, tensors, words, output)
    if target_embedding is not None:
        sizes |= {"target_vocab_size": tensors[target_embedding].size(0)}
    config = checked(ModelConfig, {"n_heads": n_heads, "tie": tie(target_embedding, output), **sizes, **settings})
    renamed = rename(inside, "before" if config.norm_order == "pre" else "after")
    renamed["source.tokens.weight"] = tensors[embedding]
    if target_embedding is not None:
        renamed["target.tokens.weight"] = tensors[target_embedding]
    if output is not None:
        renamed |= {
            f"head.{part}": tensors[name] for part in ("weight", "bias") if (name := f"{output}.{part}") in tensors
        }
    return config, fill(config, renamed, where)


def tie(target_embedding: str | None, output: str | None) -> str:
    if target_embedding is None:
        return "all" if output is None else "embeddings"
    return "output" if output is None else "none"


def read_state_dict(path: Path) -> dict[str, Tensor]:
    """Tensors by name. A .pt file is opened without running any code in it (weights_only)."""
    if path.suffix == ".safetensors":
        return read_tensors(path)
    read_bytes(path, 1)  # is it there at all?
    try:
        found = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # a pickle can fail in any way
        reason = " ".join(str(error).split())[:120]
        raise FileError(
            f"{path} is no plain state dict of tensors ({reason} ...): save model.state_dict() again"
        ) from None
    if not isinstance(found, dict) or not all(isinstance(k, str) and isinstance(v, Tensor) for k, v in found.items()):
        raise FileError(f"{path} holds more than tensors by name: save model.state_dict() alone")
    return found


def sizes_of(
    inside: dict[str, Tensor], tensors: dict[str, Tensor], words: list[str], output: str | None
) -> dict[str, Any]:
    """The fields of a configuration that the tensors tell by themselves."""
    counts = {
        half: 1
        + max((int(name.split(".")[2]) for name in inside if re.match(rf"{half}\.layers\.\d+\.", name)), default=-1)
        for half in ("encoder", "decoder")
    }
    first = "encoder.layers.0."
    return {
        "family": "encoder-decoder",
        "vocab_size": tensors[words[0]].size(0),
        "d_model": tensors[words[0]].size(-1),
        "d_ff": inside[f"{first}linear1.weight"].size(0) if f"{first}linear1.weight" in inside else 1,
        "n_layers": counts["encoder"],
        "n_decoder_layers": max(counts["decoder"], 1),
        "attention_bias": "all" if f"{first}self_attn.in_proj_bias" in inside else "none",
        "ffn_bias": f"{first}linear1.bias" in inside,
        "norm": "layer" if f"{first}norm1.bias" in inside else "layer-without-bias",
        "final_norm": "encoder.norm.weight" in inside,
        "output_bias": f"{output}.bias" in tensors,
    }


def rename(inside: dict[str, Tensor], slot: str) -> dict[str, Tensor]:
    """nn.Transformer's names -> ours; a name that is not of its making stays, and is refused as unknown later."""
    ours: dict[str, Tensor] = {}
    for name, tensor in inside.items():
        found = LAYER.match(name)
        if found is None:
            ours[name] = tensor  # encoder.norm, decoder.norm
            continue
        half, layer, module, *rest = [part for part in found.groups() if part]
        block = f"{half}.blocks.{layer}"
        if module in ATTENTION and rest[0].startswith("in_proj_"):
            kind = rest[0].removeprefix("in_proj_")
            for part, piece in zip(("query", "key", "value"), tensor.chunk(3), strict=True):
                ours[f"{block}.{ATTENTION[module]}.layer.{part}.{kind}"] = piece
        elif module in ATTENTION:  # out_proj
            ours[f"{block}.{ATTENTION[module]}.layer.output.{rest[-1]}"] = tensor
        elif module in FEEDFORWARD:
            ours[f"{block}.feedforward.layer.{FEEDFORWARD[module]}.{rest[0]}"] = tensor
        elif module.startswith("norm") and int(module[4:]) <= len(NORMS[half]):
            ours[f"{block}.{NORMS[half][int(module[4:]) - 1]}.{slot}.{rest[0]}"] = tensor
        else:
            ours[name] = tensor
    return ours
