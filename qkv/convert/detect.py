"""Load configuration, network and tokenizer from a path of any supported format: qkv folder, Hugging Face folder, GGUF, llama2.c ..."""

from __future__ import annotations

from pathlib import Path

from qkv.config import ModelConfig
from qkv.config.usage import Usage
from qkv.convert import folder as ours
from qkv.convert import g2p, generation_file, gguf_file, hf_usage, huggingface, llama2c
from qkv.convert.files import NO_PICKLE, backup_path, read_bytes, read_headers, read_json, read_tensors
from qkv.convert.pooled_head import read_head, without_head
from qkv.convert.quantized import PRECISIONS
from qkv.convert.tokenizer_files import open_target_tokenizer, open_tokenizer
from qkv.engine.quantize import quantize
from qkv.errors import ConfigError, FileError
from qkv.models.build import Network
from qkv.pretrained import find
from qkv.text.tokenizer import Tokenizer


def open_model(path: str | Path, precision: str | None = "float32") -> tuple[ModelConfig, Network, Tokenizer | None]:
    """Read a model of any kind; precision "int8" rounds its matrices, None leaves them as they are stored."""
    if precision not in (None, *PRECISIONS):
        raise ConfigError(f"precision is one of {', '.join(PRECISIONS)}, given {precision!r}")
    config, network, tokenizer = read_model(path, precision)
    return config, quantize(network) if precision == "int8" else network, tokenizer


def read_model(path: str | Path, precision: str | None) -> tuple[ModelConfig, Network, Tokenizer | None]:
    kind, path = detect(Path(path))
    if kind == "qkv":
        return ours.load(path, precision)
    if kind == "huggingface":
        return open_huggingface(path)
    if kind == "gguf":
        return gguf_file.read(path, precision)
    if kind == "g2p":
        config, tensors = g2p.read_g2p(path)
        return config, ours.fill(config, tensors, str(path)), None
    return llama2c.read(path)


def open_target(path: str | Path) -> Tokenizer | None:
    """The tokenizer of the target language, where that has a vocabulary of its own."""
    return open_target_tokenizer(detect(Path(path))[1])


def open_usage(path: str | Path) -> Usage:
    """Read what a model is for and how it is used, as far as its folder says so."""
    kind, path = detect(Path(path))
    if kind == "qkv":
        return ours.read_usage(path)
    return hf_usage.read_usage(path) if kind == "huggingface" else Usage()


def open_config(path: str | Path) -> ModelConfig:
    """Only the configuration; no weights are read (but their names and sizes are)."""
    kind, path = detect(Path(path))
    if kind == "qkv":
        return ours.read_config(path)
    if kind == "huggingface":
        values = read_json(path / "config.json")
        config = read_head(path, huggingface.read_config(values, read_headers(path)), values)[0]
        return generation_file.with_forced_id(config, path, values)
    if kind == "gguf":
        return gguf_file.read_config(path)
    if kind == "g2p":
        return g2p.read_g2p(path)[0]
    return llama2c.read_header(path)[0]


def open_huggingface(folder: Path) -> tuple[ModelConfig, Network, Tokenizer | None]:
    values = read_json(folder / "config.json")
    entries = read_headers(folder)
    config = huggingface.read_config(values, entries)
    ours.plausible(config, len(entries), str(folder))
    tensors = huggingface.from_foreign(config, values, read_tensors(folder))
    config, head = read_head(folder, config, values)
    config = generation_file.with_forced_id(config, folder, values)
    if head:  # a pooler is not read by a head of its own
        tensors = without_head(tensors) | head
    return config, ours.fill(config, tensors, str(folder)), open_tokenizer(folder)


def detect(path: Path) -> tuple[str, Path]:
    """What kind of model is it, and where exactly; the name of a shipped model is a path too."""
    path = find(path)
    if path.is_dir() and (path / "best").is_dir() and not (path / "config.json").exists():
        path = path / "best"  # the folder of a run: its best model
    if path.is_dir():
        return detect_folder(path)
    if not path.is_file() and backup_path(path).is_dir():
        raise FileError(f"the saving of {path} was interrupted: the model before it is {backup_path(path)}, rename it")
    if not path.is_file():
        raise FileError(f"{path} does not exist: give a model folder, a .gguf file or a llama2.c .bin file")
    start = read_bytes(path, 4)
    if path.suffix == ".gguf" or start == b"GGUF":
        return "gguf", path
    if path.suffix == ".npz":
        return "g2p", path
    pickled = start.startswith((b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"))
    if path.suffix in (".pt", ".pth", ".ckpt", ".pkl") or (path.suffix == ".bin" and pickled):
        raise FileError(
            f"{path} is a pickle; {NO_PICKLE}; for a plain state dict of torch.nn.Transformer, see "
            "qkv.convert.torch_transformer.read(path, n_heads=...)"
        )
    if path.suffix == ".bin":
        return "llama2c", path
    if path.suffix == ".safetensors":
        raise FileError(f"{path} holds weights only: give the folder that has config.json beside them")
    raise FileError(f"{path} has no supported format: give a model folder, a .gguf file or a llama2.c .bin file")


def find_run(path: Path) -> Path | None:
    """Return the folder of a training run, given it or its best/; None for a model that is not inside a run.

    Only for what belongs to a run: its recipe, its test set and its scores. A model is used without it.
    """
    path = path.resolve()
    folder = path.parent if path.name == "best" else path
    return folder if (folder / "recipe.toml").is_file() and not (folder / "config.json").exists() else None


def detect_folder(path: Path) -> tuple[str, Path]:
    if (path / "config.json").is_file():
        return ("qkv" if read_json(path / "config.json").get("model_type") == ours.MODEL_TYPE else "huggingface"), path
    files = sorted(path.glob("*.gguf"))
    if len(files) == 1:
        return "gguf", files[0]
    if files:
        names = ", ".join(file.name for file in files)
        raise FileError(f"{path} holds several models, {names}: give the path of one of them")
    if (path / "vectors.safetensors").is_file():
        raise FileError(f"{path} holds word vectors and no network: see qkv nearest and qkv analogy")
    raise FileError(f"no model in {path}: looked for config.json and a .gguf file; is it the right folder?")
