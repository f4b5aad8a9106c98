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

from qkv.config import ModelConfig, validate
from qkv.convert.files import read_bytes, read_tensors, some
from qkv.convert.folder import fill, plausible
from qkv.convert.tables import THIRDS, Row, both, layers, read_weights, row
from qkv.errors import FileError
from qkv.models.build import Network, skeleton
from qkv.models.weights import weights

ATTENTION = {"self_attn": "attention", "multihead_attn": "cross"}
NORMS = {"encoder": ("attention", "feedforward"), "decoder": ("attention", "cross", "feedforward")}


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
    missing = [name for name in words if name not in tensors or tensors[name].dim() != 2]
    if missing or "encoder.layers.0.self_attn.in_proj_weight" not in inside:
        raise FileError(
            f"{where} holds no nn.Transformer under {prefix!r} or lacks {', '.join(missing) or 'it'}; outside of it there is "
            f"{some(outside) or 'nothing'}: name them with prefix=, embedding=, target_embedding=, output="
        )
    ignored = set(ignore)
    known = {*words, f"{output}.bias", *ignored}
    if unknown := [name for name in outside if name not in known]:
        raise FileError(f"{where} also holds {some(unknown)}: name them, or list them in ignore=")
    sizes = {**sizes_of(inside, tensors[embedding]), "output_bias": f"{output}.bias" in tensors}
    if target_embedding:
        sizes["target_vocab_size"] = tensors[target_embedding].size(0)
    config = validate(ModelConfig, {"n_heads": n_heads, "tie": tie(target_embedding, output), **sizes, **settings})
    plausible(config, len(tensors), where)
    rows = [
        row(embedding, "source.tokens.weight"),
        *([row(target_embedding, "target.tokens.weight")] if target_embedding is not None else []),
        *(both([(output, "head")]) if output is not None else []),
        *table(config, prefix),
    ]
    given = {name: tensor for name, tensor in tensors.items() if name not in ignored}
    ours = read_weights(rows, weights(skeleton(config)), given)
    return config, fill(config, ours, where)


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
        reason = f"({' '.join(str(error).split())[:120]} ...)"
        raise FileError(f"{path} is no plain state dict of tensors {reason}: save model.state_dict() again") from None
    if not isinstance(found, dict) or not all(isinstance(k, str) and isinstance(v, Tensor) for k, v in found.items()):
        raise FileError(f"{path} holds more than tensors by name: save model.state_dict() alone")
    return found


def sizes_of(inside: dict[str, Tensor], words: Tensor) -> dict[str, Any]:
    """The fields of a configuration that nn.Transformer's tensors and the word matrix tell by themselves."""
    found = [re.match(r"(encoder|decoder)\.layers\.(\d{1,6})\.", name) for name in inside]
    last = lambda half: max((int(m[2]) for m in found if m and m[1] == half), default=-1)  # noqa: E731
    first = "encoder.layers.0."
    inner = inside.get(f"{first}linear1.weight", torch.zeros(1, 1))
    return {
        "family": "encoder-decoder",
        "vocab_size": words.size(0),
        "d_model": words.size(-1),
        "d_ff": inner.size(0) if inner.dim() else 1,
        "n_layers": last("encoder") + 1,
        "n_decoder_layers": max(last("decoder") + 1, 1),
        "attention_bias": "all" if f"{first}self_attn.in_proj_bias" in inside else "none",
        "ffn_bias": f"{first}linear1.bias" in inside,
        "norm": "layer" if f"{first}norm1.bias" in inside else "layer-without-bias",
        "final_norm": "encoder.norm.weight" in inside,
    }


def table(c: ModelConfig, prefix: str) -> list[Row]:
    """nn.Transformer's names and ours."""
    halves = {"encoder": c.n_layers, "decoder": c.decoder_layers}
    blocks = [r for half, count in halves.items() for r in layers(count, block(half, prefix, c.norm_order))]
    return [*blocks, *both([(f"{prefix}{half}.norm", f"{half}.norm") for half in halves])]


def block(half: str, prefix: str, order: str) -> list[Row]:
    """The rows of one layer."""
    theirs, ours = f"{prefix}{half}.layers.{{}}", f"{half}.blocks.{{}}"
    slot = "before" if order == "pre" else "after"
    rows = both([
        *((f"{theirs}.norm{n}", f"{ours}.{sublayer}.{slot}") for n, sublayer in enumerate(NORMS[half], 1)),
        (f"{theirs}.linear1", f"{ours}.feedforward.layer.up"),
        (f"{theirs}.linear2", f"{ours}.feedforward.layer.down"),
    ])  # fmt: skip
    for name, sublayer in ATTENTION.items():
        rows += both([(f"{theirs}.{name}.out_proj", f"{ours}.{sublayer}.layer.output")])
        for part in ("weight", "bias"):
            three = tuple(f"{ours}.{sublayer}.layer.{x}.{part}" for x in ("query", "key", "value"))
            rows.append(row(f"{theirs}.{name}.in_proj_{part}", three, THIRDS))
    return rows
