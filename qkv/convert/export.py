"""Export: write a model in another format, read it back and compare, then rename the folder to its final name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from qkv.config import ModelConfig
from qkv.config.usage import Usage
from qkv.convert import folder as ours
from qkv.convert import huggingface
from qkv.convert.detect import open_model
from qkv.convert.files import new_folder, write_json, write_tensors, write_text
from qkv.convert.hf_files import card, write_beside
from qkv.convert.hf_usage import task_json
from qkv.convert.pooled_head import headless, without_head, write_head
from qkv.convert.rewrite import rewritten
from qkv.errors import FileError, QkvError
from qkv.models.build import Network
from qkv.models.example import example
from qkv.text.tokenizer import Tokenizer

TOLERANCE = 1e-5
Check = Callable[[Path], None]
"""Raises a QkvError where a written folder is not what it should be."""


def export(folder: str | Path, to: str, config: ModelConfig, network: Network, tokenizer: Tokenizer | None,
           target: Tokenizer | None = None, usage: Usage = ours.NO_USAGE, check: Check | None = None) -> float:  # fmt: skip
    """Write `folder` as "hf" or "qkv"; the largest difference of its outputs from the network's, after reading it back.

    Weights are written as the network has them, which is float32 for all that was read, whatever the file had. Task, languages
    and decoding defaults of `usage` go into config.json, tokenizer_config.json and generation_config.json. `check` is called
    with a written Hugging Face folder before that gets its name. Of a Hugging Face config.json, these are not known here and
    not written: that there is no padding token (0 stands in), settings of training and of bookkeeping (IGNORED in
    hf_family.py).
    """
    folder = Path(folder)
    if to not in ("hf", "qkv"):
        raise QkvError(f"export knows 'hf' (Hugging Face) and 'qkv' (our folder), not {to!r}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileError(f"{folder} exists and is not empty: choose another folder or remove it")
    with new_folder(folder) as new:
        stored = ours.weights(network)
        if to == "hf":
            stored = write_huggingface(new, config, stored, tokenizer, target, usage)
        else:
            ours.write(new, config, network, tokenizer, target, usage)
        difference = verify(new, config, network, stored)
        if to == "hf" and check is not None:
            check(new)
        return difference


def write_huggingface(folder: Path, config: ModelConfig, weights: dict[str, Tensor], tokenizer: Tokenizer | None,
                      target: Tokenizer | None = None, usage: Usage = ours.NO_USAGE) -> dict[str, Tensor]:  # fmt: skip
    """All files as `transformers` opens them; the weights that they hold, in our names."""
    chosen = huggingface.plan(config)
    values, tensors = huggingface.write_plan(chosen, config, weights)
    write_json(folder / "config.json", values | task_json(usage))
    write_tensors(folder / "model.safetensors", tensors)
    write_beside(folder, chosen.config, tokenizer, target, usage)
    write_text(folder / "README.md", card(config, chosen))
    if not chosen.pooled:
        return rewritten(chosen.rewrites, config, weights)
    write_head(folder, config, weights)
    head = {name: tensor for name, tensor in weights.items() if name.startswith("head.")}
    return rewritten(chosen.rewrites, headless(config), without_head(weights)) | head


def verify(folder: Path, config: ModelConfig, network: Network, stored: dict[str, Tensor]) -> float:
    """Read a written folder back: the very bits that were `stored`, and the outputs of the network."""
    _, again, _ = open_model(folder)
    after = ours.weights(again)
    differ = sorted(name for name in stored.keys() | after.keys() if not same_bits(stored.get(name), after.get(name)))
    if differ:
        raise QkvError(f"the exported weights differ from the model's ({', '.join(differ[:8])}): nothing was written")
    batch = example(config, draw=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = network(batch.to(next(network.parameters()).device)).logits.cpu()
        difference = float((expected - again(batch).logits).abs().max() / expected.abs().max().clamp(min=1))
    if not difference <= TOLERANCE:
        raise QkvError(f"the exported model's outputs differ from the model's by {difference:.1e}: nothing was written")
    return difference


def same_bits(a: Tensor | None, b: Tensor | None) -> bool:
    return a is not None and b is not None and a.shape == b.shape and bool(torch.equal(a.cpu(), b.cpu()))
