"""GGUF files (llama.cpp) of LLaMA models: one file with the sizes, the tokenizer and the weights, quantised or not.

Blocks of Q8_0 and Q4_0 are used as they are (int8 or int4 weights, one scale for 32 inputs), unless float32 is requested; other
types become float32. llama.cpp stores queries and keys with rotary pairs side by side; here they are put back half a
head apart, as Hugging Face has them, so that the model can be exported there.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qkv.config import ModelConfig, validate
from qkv.convert.files import read_bytes
from qkv.convert.folder import agree, network_with
from qkv.convert.quantized import fill_with
from qkv.engine.linear import QuantizedLinear
from qkv.errors import ConfigError, FileError
from qkv.models.build import Network
from qkv.text.kinds import SPLITS, byte_level_bpe, put_around, scored_bpe
from qkv.text.tokenizer import Tokenizer

NAMES = {
    "token_embd.weight": "embed.tokens.weight",
    "output_norm.weight": "stack.norm.weight",
    "output.weight": "head.weight",
}
BLOCK = {
    "attn_norm": "attention.before", "attn_q": "attention.layer.query", "attn_k": "attention.layer.key",
    "attn_v": "attention.layer.value", "attn_output": "attention.layer.output", "ffn_norm": "feedforward.before",
    "ffn_gate": "feedforward.layer.gate", "ffn_up": "feedforward.layer.up", "ffn_down": "feedforward.layer.down",
}  # fmt: skip
"""Layers of a block, each with one weight: blk.3.attn_q.weight."""
REQUIRED = {
    "llama.block_count": "n_layers",
    "llama.context_length": "max_length",
    "llama.embedding_length": "d_model",
    "llama.feed_forward_length": "d_ff",
    "llama.attention.head_count": "n_heads",
    "llama.attention.layer_norm_rms_epsilon": "norm_eps",
}
FIELDS = {
    **REQUIRED,
    "llama.attention.head_count_kv": "n_kv_heads",
    "llama.attention.key_length": "d_head",
    "llama.rope.freq_base": "position_base",
    "tokenizer.ggml.padding_token_id": "pad_id",
    "tokenizer.ggml.bos_token_id": "bos_id",
}
"""For those that are not required llama.cpp has a default, which is ours too."""
CHECKED = {"llama.vocab_size", "llama.rope.dimension_count", "llama.attention.value_length", "llama.rope.scaling.type"}
"""Fields that must agree with the others; any further llama.* field is something this reader does not know."""
NORMAL, CONTROL, USER = 1, 3, 4
BLOCKS, GROUP = {"Q8_0", "Q4_0"}, 32
"""Types that are used as they are, and the inputs that share a scale."""
SMALLEST = 8
"""Rows and columns of a matrix that is used as it is (engine/quantize.py); smaller ones become float32."""
BROKEN = (ValueError, LookupError, OverflowError, RecursionError, OSError)
"""What the package's reader raises on a broken file; any other exception is a bug, which must not be taken for one."""


def read(path: str | Path, precision: str | None = "float32") -> tuple[ModelConfig, Network, Tokenizer | None]:
    """A .gguf file of architecture llama; precision "float32" converts all weights, otherwise integers stay."""
    path = Path(path)
    fields, stored = open_file(path)
    shapes = shapes_of(stored)
    config = config_of(fields, shapes, path)
    agree(config, shapes, str(path))
    heads = {"query": config.n_heads, "key": config.kv_heads}
    tensors, blocks = {}, {}
    for name, tensor in stored.items():
        ours = our_name(name)
        own = heads.get(ours.split(".")[-2])
        if precision != "float32" and tensor.tensor_type.name in BLOCKS and min(shapes[ours]) >= SMALLEST:
            blocks[ours] = tensor, own
        else:
            plain = dequantise(tensor, path)
            tensors[ours] = plain if own is None else halves(plain, own)
    network = (
        network_with(config, tensors, str(path)) if not blocks else network_of_blocks(config, tensors, blocks, path)
    )
    return config, network, read_tokenizer(fields, path)


def network_of_blocks(config: ModelConfig, tensors: dict[str, Tensor], blocks: dict[str, Any], path: Path) -> Network:
    """The network with quantised tensors as they are."""

    def make(name: str, bias: Tensor | None) -> QuantizedLinear | None:
        if name not in blocks:
            return None
        tensor, heads = blocks[name]
        return read_blocks(tensor, heads, path)

    return fill_with(config, tensors, blocks, make, str(path))


def read_blocks(tensor: Any, heads: int | None, path: Path) -> QuantizedLinear:
    """Q8_0 (a float16 scale and 32 int8) or Q4_0 (a float16 scale and 32 numbers of four bits, w + 8: first those in the low
    half-bytes) as int8 or int4 weights."""
    d_out, d_in = (int(n) for n in reversed(tensor.shape))
    data = torch.from_numpy(np.array(tensor.data)).view(d_out, d_in // GROUP, -1)  # (out, groups, bytes)
    data = data if heads is None else halves(data, heads)
    scale = data[..., :2].contiguous().view(torch.float16)[..., 0].float()  # (out, groups)
    if not scale.isfinite().all():
        raise FileError(
            f"{path}: tensor {tensor.name} has scales that are infinite or not a number: download the file again"
        )
    if tensor.tensor_type.name == "Q8_0":
        return QuantizedLinear.of_int8(data[..., 2:].contiguous().view(torch.int8).flatten(1), scale)
    return QuantizedLinear.of_int4(torch.cat([data[..., 2:] & 15, data[..., 2:] >> 4], -1).flatten(1), scale)


def read_config(path: str | Path) -> ModelConfig:
    """Only the sizes."""
    fields, stored = open_file(Path(path))
    return config_of(fields, shapes_of(stored), Path(path))


def shapes_of(stored: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Shapes by our names; GGUF writes them the other way round."""
    return {our_name(name): tuple(int(n) for n in reversed(tensor.shape)) for name, tensor in stored.items()}


def open_file(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Metadata and stored tensors by name; everything is checked to lie inside the file."""
    try:
        from gguf import GGUFReader
    except ImportError:
        raise FileError(f"{path} needs the gguf package: pip install 'qkv[gguf]'") from None

    class Reader(GGUFReader):
        """The package's reader takes what lies beyond the end of the file as empty; this one stops."""

        def _get(self, offset: int, dtype: Any, count: int = 1, override_order: str | None = None) -> Any:
            kind = np.dtype(dtype).newbyteorder(override_order or self.byte_order)
            # frombuffer refuses to go beyond the end; and its plain arrays are made ten times faster than views of a
            # memory map, of which there would be 100,000
            return np.frombuffer(self.data.data, dtype=kind, count=int(count), offset=int(offset))

    if not read_bytes(path, 4) == b"GGUF":
        raise FileError(f"{path} is not a GGUF file (or a git-lfs pointer or web page in its place); download it again")
    try:
        reader = Reader(path)
        fields = {name: field.contents() for name, field in reader.fields.items()}
        return fields, {tensor.name: tensor for tensor in reader.tensors}
    except BROKEN as error:
        reason = " ".join(str(error).split())[:120]
        raise FileError(f"{path} is truncated or corrupt ({reason}); download it again") from None


def config_of(fields: dict[str, Any], shapes: dict[str, tuple[int, ...]], path: Path) -> ModelConfig:
    if (kind := fields.get("general.architecture")) != "llama":
        raise FileError(f"{path} holds architecture {kind!r}; only 'llama' GGUF files are read")
    if "embed.tokens.weight" not in shapes:
        raise FileError(f"{path} has no tensor token_embd.weight: it is not a complete model")
    unknown = sorted(n for n in fields if n.startswith("llama.") and n not in FIELDS and n not in CHECKED)
    if unknown or fields.get("llama.rope.scaling.type", "none") != "none":
        raise FileError(f"{path} uses {', '.join(unknown) or 'llama.rope.scaling.type'}, which is not known here")
    missing = [name for name in REQUIRED if name not in fields]
    if missing:
        raise FileError(f"{path} does not say {', '.join(missing)}: it is not a complete model; download it again")
    if "rope_freqs.weight" in shapes:
        raise FileError(
            f"{path} has Llama 3's stretched rotary wavelengths: take the Hugging Face folder of this model"
        )
    values = {ours: fields[name] for name, ours in FIELDS.items() if name in fields}
    for name in ("position_base", "norm_eps"):
        if isinstance(values.get(name), float):
            values[name] = float(f"{values[name]:.7g}")  # stored as float32: 1e-05, not 9.999999747e-06
    ends = [fields[name] for name in ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id") if name in fields]
    try:
        config: ModelConfig = validate(ModelConfig, {
            "family": "decoder", "vocab_size": shapes["embed.tokens.weight"][0], "feedforward": "swiglu", "norm": "rms",
            "norm_order": "pre", "position": "rotary", "attention_bias": "none", "ffn_bias": False, "dropout": 0.0,
            "tie": "none" if "head.weight" in shapes else "output", "eos_id": tuple(dict.fromkeys(ends)) or None, **values,
        })  # fmt: skip
    except ConfigError as error:
        raise FileError(f"{path} describes an impossible model: {error}") from None
    wanted = {
        "llama.vocab_size": config.vocab_size,
        "llama.rope.dimension_count": config.head_width,
        "llama.attention.value_length": config.head_width,
    }
    for name, value in wanted.items():
        if fields.get(name, value) != value:
            raise FileError(
                f"{path}: {name} is {fields[name]}, but the rest of the file says {value}; download it again"
            )
    return config


def our_name(name: str) -> str:
    """blk.3.attn_q.weight -> stack.blocks.3.attention.layer.query.weight; a name that is not in the table stays."""
    found = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", name)
    return f"stack.blocks.{found[1]}.{BLOCK[found[2]]}.weight" if found and found[2] in BLOCK else NAMES.get(name, name)


def dequantise(tensor: Any, path: Path) -> Tensor:
    """float32, in the shape that the layers have."""
    from gguf.quants import dequantize

    try:
        plain = dequantize(tensor.data, tensor.tensor_type)
    except (NotImplementedError, ValueError) as error:
        raise FileError(f"{path}: tensor {tensor.name} cannot be read: {' '.join(str(error).split())}") from None
    return torch.tensor(plain, dtype=torch.float32).view([int(n) for n in reversed(tensor.shape)])


def halves(weight: Tensor, heads: int) -> Tensor:
    """Rows of each head from pairs side by side (0 1 | 2 3 | ...) to pairs half a head apart; (H * D, ...)."""
    pairs = weight.unflatten(0, (heads, -1, 2))  # (H, D / 2, 2, ...)
    return pairs.transpose(1, 2).flatten(0, 2)  # (H * D, ...)


# --- tokenizer


def read_tokenizer(fields: dict[str, Any], path: Path) -> Tokenizer | None:
    """tokenizer.ggml.*: byte-level BPE ("gpt2") or SentencePiece BPE ("llama")."""
    kind, tokens = fields.get("tokenizer.ggml.model"), fields.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list):
        return None
    types = fields.get("tokenizer.ggml.token_type") or [NORMAL] * len(tokens)
    special = [token for token, type_ in zip(tokens, types, strict=False) if type_ in (CONTROL, USER)]
    settings = names_of(fields, tokens)
    starts = fields.get("tokenizer.ggml.add_bos_token", kind == "llama")
    bos = settings.get("bos_token") if starts else None
    if kind == "llama":
        prefix = bool(fields.get("tokenizer.ggml.add_space_prefix", True))
        scores = fields.get("tokenizer.ggml.scores", [])
        if len(scores) != len(tokens):
            raise FileError(f"{path}: {len(tokens)} tokens but {len(scores)} scores; download it again")
        return scored_bpe(tokens, scores, special, bos, settings.get("unk_token"), prefix, settings)
    split = {"default": "gpt-2"}.get(name := fields.get("tokenizer.ggml.pre", "default"), name)
    if kind != "gpt2" or split not in SPLITS:
        raise FileError(
            f"{path}: tokenizer {kind!r} with pre-tokenizer {name!r} is not known; known: gpt2, llama; {list(SPLITS)}"
        )
    merges = [tuple(merge.split(" ", 1)) for merge in fields.get("tokenizer.ggml.merges", [])]
    vocab = {token: index for index, token in enumerate(tokens)}
    tokenizer = byte_level_bpe(vocab, merges, special, split, settings)
    put_around(tokenizer.backend, bos)
    return tokenizer


def names_of(fields: dict[str, Any], tokens: list[str]) -> dict[str, Any]:
    """What tokenizer_config.json would hold: the special tokens by name, and the chat template."""
    settings: dict[str, Any] = {}
    for name, theirs in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        index = fields.get(f"tokenizer.ggml.{theirs}_token_id")
        if isinstance(index, int) and index < len(tokens):
            settings[f"{name}_token"] = tokens[index]
    if isinstance(template := fields.get("tokenizer.chat_template"), str):
        settings["chat_template"] = template
    return settings
