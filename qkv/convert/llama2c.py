"""llama2.c's .bin files: seven int32 (the sizes), then float32 weights in a fixed order; tokenizers in tok*.bin files.

The format is that of llama2.c's first `export` (github.com/karpathy/llama2.c): LLaMA with neighbouring rotary pairs.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from qkv.config import ModelConfig, validate
from qkv.convert.files import read_bytes
from qkv.convert.folder import fill
from qkv.errors import ConfigError, FileError
from qkv.models.build import Network
from qkv.text.kinds import scored_bpe
from qkv.text.tokenizer import Tokenizer

HEADER = struct.Struct("<7i")
BOS, EOS = 1, 2
MAX_TOKENIZER = 50_000_000


def read(path: str | Path, tokenizer: str | Path | None = None) -> tuple[ModelConfig, Network, Tokenizer | None]:
    """A model file, with the tokenizer given or the only tok*.bin beside it."""
    path = Path(path)
    config, shapes = read_header(path)
    # one copy out of the map: the weights must outlive the file
    numbers = torch.from_numpy(np.memmap(path, dtype="<f4", mode="r", offset=HEADER.size).astype(np.float32))
    tensors: dict[str, Tensor] = {}
    at = 0
    for name, shape in shapes:
        count = math.prod(shape)
        tensors |= name_layers(name, numbers[at : at + count].view(shape))
        at += count
    found = [Path(tokenizer)] if tokenizer is not None else sorted(path.parent.glob("tok*.bin"))
    words = read_tokenizer(found[0], config.vocab_size) if len(found) == 1 else None
    return config, fill(config, tensors, str(path)), words


def read_header(path: Path) -> tuple[ModelConfig, list[tuple[str, tuple[int, ...]]]]:
    """The sizes, checked against the length of the file before anything else is read."""
    start = read_bytes(path, HEADER.size)
    if len(start) < HEADER.size:
        raise FileError(f"{path} is truncated ({len(start)} bytes); download it again")
    dim, hidden, layers, heads, kv_heads, vocab, length = HEADER.unpack(start)
    sizes = {
        "d_model": dim, "d_ff": hidden, "n_layers": layers, "n_heads": heads, "n_kv_heads": kv_heads,
        "vocab_size": abs(vocab), "max_length": length,
    }  # fmt: skip
    try:
        config = validate(ModelConfig, {
            "family": "decoder", **sizes, "tie": "output" if vocab > 0 else "none", "feedforward": "swiglu", "norm": "rms",
            "norm_eps": 1e-5, "norm_order": "pre", "position": "rotary-interleaved", "attention_bias": "none",
            "ffn_bias": False, "dropout": 0.0, "bos_id": BOS,
            "eos_id": (BOS, EOS),  # a new begin also ends a story
        })  # fmt: skip
    except ConfigError:
        raise FileError(
            f"{path} is not a llama2.c model: its first numbers, {sizes}, are no sizes of one (word vectors: qkv nearest)"
        ) from None
    shapes = layout(config)
    needed = HEADER.size + 4 * sum(math.prod(shape) for _, shape in shapes)
    size = path.stat().st_size
    if needed != size:
        raise FileError(
            f"{path} has {size:,} bytes, but its sizes ({dim} wide, {layers} layers, {abs(vocab)} words ...) need {needed:,}: "
            "it is truncated, or not a llama2.c model (version 0); download it again"
        )
    return config, shapes


def layout(c: ModelConfig) -> list[tuple[str, tuple[int, ...]]]:
    """Our names and the shapes, in the order of the file; {} stands for the layer, the first dimension; "" is skipped."""
    d, n, f = c.d_model, c.n_layers, c.d_ff
    q, kv, half = c.n_heads * c.head_width, c.kv_heads * c.head_width, c.head_width // 2
    attention, feedforward = "stack.blocks.{}.attention", "stack.blocks.{}.feedforward"
    return [
        ("embed.tokens.weight", (c.vocab_size, d)),
        (f"{attention}.before.weight", (n, d)),
        (f"{attention}.layer.query.weight", (n, q, d)),
        (f"{attention}.layer.key.weight", (n, kv, d)),
        (f"{attention}.layer.value.weight", (n, kv, d)),
        (f"{attention}.layer.output.weight", (n, d, q)),
        (f"{feedforward}.before.weight", (n, d)),
        (f"{feedforward}.layer.gate.weight", (n, f, d)),
        (f"{feedforward}.layer.down.weight", (n, d, f)),
        (f"{feedforward}.layer.up.weight", (n, f, d)),
        ("stack.norm.weight", (d,)),
        ("", (2, c.max_length, half)),  # cosines and sines of the rotation, which we compute
        *([] if c.tie == "output" else [("head.weight", (c.vocab_size, d))]),
    ]


def name_layers(name: str, tensor: Tensor) -> dict[str, Tensor]:
    """One entry of the layout as named tensors: one per layer where the name has a {}."""
    if "{}" in name:
        return {name.format(layer): part for layer, part in enumerate(tensor)}
    return {name: tensor} if name else {}


def read_tokenizer(path: str | Path, vocab_size: int) -> Tokenizer:
    """tok*.bin: the longest piece's length, then for each id a float32 score, an int32 length and the bytes."""
    path = Path(path)
    data = read_bytes(path, MAX_TOKENIZER)
    pieces: list[str] = []
    scores: list[float] = []
    at = 4
    for _ in range(vocab_size):
        if at + 8 > len(data):
            read = f"{len(pieces)} of {vocab_size} pieces"
            raise FileError(f"{path} ends after {read}; is it the tokenizer of this model?")
        score, length = struct.unpack_from("<fi", data, at)
        if length < 0 or at + 8 + length > len(data):
            raise FileError(f"{path} is corrupt at piece {len(pieces)}; download it again")
        pieces.append(data[at + 8 : at + 8 + length].decode("utf-8", "replace").replace(" ", "\u2581"))
        scores.append(score)
        at += 8 + length
    if at != len(data):
        raise FileError(f"{path} holds more than the {vocab_size} pieces of this model; is it its tokenizer?")
    names = ["<unk>", "<s>", "</s>"]  # of ids 0-2; llama2.c stores them with newlines around them
    return scored_bpe(names + pieces[3:], scores, names, names[BOS])
