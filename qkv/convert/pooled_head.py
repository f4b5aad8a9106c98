"""Classifiers on pooled vectors, exported as a Hugging Face encoder and a linear layer in the format of sentence-transformers.

No family of `transformers` has a plain linear layer on the mean of the vectors. The library sentence-transformers has: its
folder lists the network, the pooling and a dense layer in modules.json, without any code. So a classifier that reads the mean
is written as such a folder. `SentenceTransformer(folder).encode(texts)` gives one score per class, `AutoModel` opens the
network, and config.json names the classes (id2label).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from qkv.config import ModelConfig
from qkv.convert.files import read_json, read_tensors, write_json, write_tensors
from qkv.convert.hf_family import labels, n_classes

POOLINGS = {"mean": "pooling_mode_mean_tokens", "first": "pooling_mode_cls_token", "last": "pooling_mode_lasttoken"}
"""Our pooling and sentence-transformers' switch for it."""
IDENTITY = "torch.nn.modules.linear.Identity"
PARTS = {"": "Transformer", "1_Pooling": "Pooling", "2_Dense": "Dense"}
"""The folder of each module ("" = this one) and its class in sentence_transformers.models."""
MODULES = [{"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
           for i, (path, kind) in enumerate(PARTS.items())]  # fmt: skip


def poolable(c: ModelConfig) -> bool:
    """Whether a network is one without a head and a linear layer on a pooled vector of it."""
    return c.family == "encoder" and c.head == "classes" and not c.pooler


def headless(c: ModelConfig) -> ModelConfig:
    return c.changed(head="none", labels=(), n_classes=2)


def without_head(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in tensors.items() if not name.startswith("head.")}


def write_head(folder: Path, c: ModelConfig, tensors: Mapping[str, Tensor]) -> None:
    """modules.json, the pooling, and the dense layer with its weights."""
    write_json(folder / "modules.json", MODULES)
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": c.max_length, "do_lower_case": False})
    pooling, dense = (folder / path for path in list(PARTS)[1:])
    pooling.mkdir()
    dense.mkdir()
    modes = {switch: c.pooling == ours for ours, switch in POOLINGS.items()}
    write_json(pooling / "config.json", {"word_embedding_dimension": c.d_model, **modes})
    sizes = {"in_features": c.d_model, "out_features": c.n_classes}
    write_json(dense / "config.json", {**sizes, "bias": True, "activation_function": IDENTITY})
    linear = {f"linear.{part}": tensors[f"head.output.{part}"] for part in ("weight", "bias")}
    write_tensors(dense / "model.safetensors", linear)


def head_of(folder: Path) -> tuple[str, Path] | None:
    """The pooling and the folder of the dense layer, where a folder has both as `write_head` writes them."""
    if not all((folder / path).is_file() for path in ("modules.json", "1_Pooling/config.json", "2_Dense/config.json")):
        return None
    modules = read_json(folder / "modules.json", kind=list)
    dense, pooling = read_json(folder / "2_Dense/config.json"), read_json(folder / "1_Pooling/config.json")
    on = [ours for ours, switch in POOLINGS.items() if pooling.get(switch) is True]
    plain = dense.get("activation_function") == IDENTITY and dense.get("bias") is True
    return (on[0], folder / "2_Dense") if modules == MODULES and plain and len(on) == 1 else None


def read_head(folder: Path, c: ModelConfig, config_json: Mapping[str, Any]) -> tuple[ModelConfig, dict[str, Tensor]]:
    """The configuration with the head of a folder that has one, and the head's weights in our names."""
    if (found := head_of(folder)) is None:
        return c, {}
    pooling, dense = found
    own = {"n_classes": n_classes(config_json), "labels": labels(config_json)}
    tensors = {name.replace("linear.", "head.output."): tensor for name, tensor in read_tensors(dense).items()}
    return c.changed(head="classes", pooler=False, pooling=pooling, **own), tensors
