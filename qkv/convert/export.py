"""Export: write a model in another format, read it back, compare, and only then give the folder its name."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from torch import Tensor

from qkv.batch import Batch
from qkv.config import ModelConfig
from qkv.convert import folder as ours
from qkv.convert import huggingface
from qkv.convert.detect import open_model
from qkv.convert.files import write_json, write_tensors
from qkv.convert.tokenizer_files import save_tokenizer
from qkv.errors import FileError, QkvError
from qkv.models.build import Network
from qkv.text.tokenizer import Tokenizer

TOLERANCE = 1e-5


def export(folder: str | Path, to: str, config: ModelConfig, network: Network, tokenizer: Tokenizer | None) -> float:
    """Write `folder` as "hf" or "qkv"; the largest difference of its outputs from the network's, after reading it back."""
    folder = Path(folder)
    if to not in ("hf", "qkv"):
        raise QkvError(f"export knows 'hf' (Hugging Face) and 'qkv' (our folder), not {to!r}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileError(f"{folder} exists and is not empty: choose another folder or remove it")
    partial = folder.parent / f".{folder.name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    try:
        if to == "hf":
            write_huggingface(partial, config, network, tokenizer)
        else:
            ours.save(partial, config, network, tokenizer)
        difference = verify(partial, config, network)
        partial.replace(folder)
        return difference
    except OSError as error:
        raise FileError(f"cannot write {folder}: {error.strerror}; choose another folder") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def write_huggingface(folder: Path, config: ModelConfig, network: Network, tokenizer: Tokenizer | None) -> None:
    """config.json, model.safetensors and the tokenizer's files, as `transformers` opens them."""
    values, tensors = huggingface.to_foreign(config, ours.weights(network))
    folder.mkdir(parents=True)
    write_json(folder / "config.json", values)
    write_tensors(folder / "model.safetensors", tensors)
    if tokenizer is not None:
        save_tokenizer(folder, tokenizer)


def verify(folder: Path, config: ModelConfig, network: Network) -> float:
    """Read a written folder back: the same bits in every weight, the same outputs."""
    again_config, again, _ = open_model(folder)
    before, after = ours.weights(network), ours.weights(again)
    differ = sorted(name for name in before.keys() | after.keys() if not same_bits(before.get(name), after.get(name)))
    if differ and again_config.position == config.position:
        raise QkvError(f"the exported weights differ from the model's ({', '.join(differ[:8])}): nothing was written")
    batch = example(config)
    with torch.no_grad():
        expected = network(batch.to(next(network.parameters()).device)).logits.cpu()
        difference = float((expected - again(batch).logits).abs().max() / expected.abs().max().clamp(min=1))
    if not difference <= TOLERANCE:
        raise QkvError(f"the exported model's outputs differ from the model's by {difference:.1e}: nothing was written")
    return difference


def same_bits(a: Tensor | None, b: Tensor | None) -> bool:
    return a is not None and b is not None and a.shape == b.shape and bool(torch.equal(a.cpu(), b.cpu()))


def example(config: ModelConfig, length: int = 8) -> Batch:
    """A small input of the right kind, always the same."""
    draw = torch.Generator().manual_seed(0)
    length = min(length, config.max_length)
    words = lambda size: torch.randint(size, (2, length), generator=draw)  # noqa: E731
    images = None
    if config.image_size is not None:
        images = torch.randn(2, config.n_channels, config.image_size, config.image_size, generator=draw)
    if config.family == "encoder-decoder":
        source = None if images is not None else words(config.vocab_size)
        return Batch(inputs=words(config.target_size), source=source, images=images)
    return Batch(images=images) if images is not None else Batch(inputs=words(config.vocab_size))
