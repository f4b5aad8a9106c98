"""Export: write a model in another format, read it back, compare, and only then give the folder its name."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from qkv.config import ModelConfig
from qkv.convert import folder as ours
from qkv.convert import huggingface
from qkv.convert.detect import open_model
from qkv.convert.files import new_folder, write_json, write_tensors
from qkv.convert.tokenizer_files import save_tokenizer
from qkv.errors import FileError, QkvError
from qkv.models.build import Network
from qkv.models.example import example
from qkv.text.tokenizer import Tokenizer

TOLERANCE = 1e-5


def export(folder: str | Path, to: str, config: ModelConfig, network: Network, tokenizer: Tokenizer | None,
           target: Tokenizer | None = None) -> float:  # fmt: skip
    """Write `folder` as "hf" or "qkv"; the largest difference of its outputs from the network's, after reading it back.

    Weights are written as the network has them, which is float32 for all that was read, whatever the file had. Of a
    Hugging Face config.json, these are not known here and not written: names of labels (LABEL_0 ... stand in), that there
    is no padding token (0 stands in), settings of a search, of training and of bookkeeping (IGNORED in hf_family.py).
    """
    folder = Path(folder)
    if to not in ("hf", "qkv"):
        raise QkvError(f"export knows 'hf' (Hugging Face) and 'qkv' (our folder), not {to!r}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileError(f"{folder} exists and is not empty: choose another folder or remove it")
    with new_folder(folder) as new:
        (write_huggingface if to == "hf" else ours.write)(new, config, network, tokenizer, target)
        return verify(new, config, network)


def write_huggingface(folder: Path, config: ModelConfig, network: Network, tokenizer: Tokenizer | None,
                      target: Tokenizer | None = None) -> None:  # fmt: skip
    """config.json, model.safetensors and the tokenizer's files, as `transformers` opens them."""
    values, tensors = huggingface.to_foreign(config, ours.weights(network))
    write_json(folder / "config.json", values)
    write_tensors(folder / "model.safetensors", tensors)
    if tokenizer is not None:
        save_tokenizer(folder, tokenizer, target)


def verify(folder: Path, config: ModelConfig, network: Network) -> float:
    """Read a written folder back: the same bits in every weight, the same outputs."""
    _, again, _ = open_model(folder)
    before, after = ours.weights(network), ours.weights(again)
    differ = sorted(name for name in before.keys() | after.keys() if not same_bits(before.get(name), after.get(name)))
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
