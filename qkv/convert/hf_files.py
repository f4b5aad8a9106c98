"""Files of a Hugging Face folder besides the weights: tokenizer, decoding defaults, image preprocessing.

`AutoTokenizer` then gives the very ids that the network was trained on: the tokens around a text, which some tasks add
themselves, are put into tokenizer.json.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import processors

from qkv.config import ModelConfig
from qkv.config.usage import Usage
from qkv.convert.files import write_json, write_text
from qkv.convert.generation_file import NAME, generation_json
from qkv.convert.hf_family import CLASSES
from qkv.convert.hf_usage import languages_json
from qkv.convert.huggingface import Plan
from qkv.convert.tokenizer_files import TARGET
from qkv.text.kinds import around
from qkv.text.tokenizer import Tokenizer

NAMES = {
    "pad_token": ("<pad>", "[PAD]"), "unk_token": ("<unk>", "[UNK]"), "bos_token": ("<s>", "[CLS]", "<|endoftext|>"),
    "eos_token": ("</s>", "[SEP]", "<|endoftext|>"), "cls_token": ("[CLS]",), "sep_token": ("[SEP]",),
    "mask_token": ("[MASK]", "<mask>"),
}  # fmt: skip
"""The special tokens of tokenizer_config.json and the names that they usually have."""


def write_beside(
    folder: Path, c: ModelConfig, tokenizer: Tokenizer | None, target: Tokenizer | None, usage: Usage
) -> None:
    """All files but config.json and the weights. `c` is the configuration of the network that is written."""
    if tokenizer is not None:
        write_text(folder / "tokenizer.json", framing(tokenizer, c).to_str(pretty=True))
        write_json(folder / "tokenizer_config.json", tokenizer_json(tokenizer, c) | languages_json(usage))
    if target is not None and target is not tokenizer:
        write_text(folder / TARGET, target.to_json())
    if c.head == "vocabulary":
        write_json(folder / NAME, generation_json(c, usage.decoding))
    if c.image_size is not None:
        write_json(folder / "preprocessor_config.json", image_json(c))


def card(c: ModelConfig, chosen: Plan) -> str:
    """README.md: the lines that open the folder in transformers."""
    head = chosen.family.architectures[chosen.config_json["architectures"][0]]
    auto = "AutoModelForSeq2SeqLM" if c.family == "encoder-decoder" else "AutoModel" + CLASSES.get(head, "")
    reader = "AutoTokenizer" if c.image_size is None else "AutoImageProcessor"
    lines = [f"from transformers import {auto}, {reader}", "", f'reader = {reader}.from_pretrained("this folder")',
             f'model = {auto}.from_pretrained("this folder")']  # fmt: skip
    if c.head == "vocabulary":
        lines += ['ids = model.generate(**reader("A text.", return_tensors="pt"))',
                  "print(reader.decode(ids[0], skip_special_tokens=True))"]  # fmt: skip
    if chosen.pooled:
        given = "picture" if c.image_size is not None else '"A text."'
        vector = {"mean": "mean(0)", "first": "[0]", "last": "[-1]"}[c.pooling]
        lines = ["from safetensors.torch import load_file", *lines,
                 'dense = load_file("this folder/2_Dense/model.safetensors")',
                 f'vectors = model(**reader({given}, return_tensors="pt")).last_hidden_state[0]',
                 f'scores = dense["linear.weight"] @ vectors.{vector} + dense["linear.bias"]',
                 "print(model.config.id2label[int(scores.argmax())])"]  # fmt: skip
    note = "; ".join(rewrite.does for rewrite in chosen.rewrites)
    changed = f"\nWritten by qkv as another network with the same outputs: {note}.\n" if note else ""
    return f"# {chosen.name}\n{changed}\n```python\n" + "\n".join(lines).replace("vectors.[", "vectors[") + "\n```\n"


def framing(tokenizer: Tokenizer, c: ModelConfig) -> tokenizers.Tokenizer:
    """The tokenizer that puts around a text what our tasks put there: an end token behind a source, [CLS] and [SEP] around what
    an encoder or a classifier reads. One that does so by itself stays as it is, and so does that of a language model."""
    backend = tokenizers.Tokenizer.from_str(tokenizer.to_json())
    if c.family == "encoder-decoder":
        ids = backend.encode("a").ids
        if c.image_size is not None or not c.eos_ids or (ids and ids[-1] in c.eos_ids):
            return backend
        gaps, pair = [[], [c.eos_ids[0]]], [[], [c.eos_ids[0]], [c.eos_ids[0]]]
    elif (c.family == "encoder" or c.head == "classes") and not any(backend.encode("a").special_tokens_mask):
        gaps, pair = around(tokenizer, c, 1), around(tokenizer, c, 2)
    else:
        return backend
    names = {i: backend.id_to_token(i) or "" for gap in [*gaps, *pair] for i in gap}
    single = template(["$A"], gaps, names)
    double = template(["$A", "$B:1"], pair, names)
    backend.post_processor = processors.TemplateProcessing(single, double, [(name, i) for i, name in names.items()])
    return backend


def template(texts: list[str], gaps: list[list[int]], names: dict[int, str]) -> list[str]:
    """Pieces of a TemplateProcessing: special tokens before, between and after texts."""
    parts = [names[i] for i in gaps[0]]
    for number, (text, gap) in enumerate(zip(texts, gaps[1:], strict=True)):
        parts += [text, *(f"{names[i]}:{number}" for i in gap)]
    return parts


def tokenizer_json(tokenizer: Tokenizer, c: ModelConfig) -> dict[str, Any]:
    """tokenizer_config.json: a tokenizer.json that is used as it stands, whatever the family's own class would do."""
    own = {"pad_token": c.pad_id, "bos_token": c.bos_id, "eos_token": c.eos_ids[0] if c.eos_ids else None}
    special = {role: tokenizer.backend.id_to_token(i) for role, i in own.items() if i is not None}
    for role, usual in NAMES.items():
        known = next((name for name in usual if tokenizer.id_of(name) is not None), None)
        if known is not None and special.get(role) is None:
            special[role] = known
    special |= tokenizer.special_names()
    inputs = ["input_ids", "attention_mask", *(["token_type_ids"] if c.n_segments else [])]
    kept = tokenizer.settings.keys() & {"chat_template", "added_tokens_decoder"}
    return {
        **{name: tokenizer.settings[name] for name in sorted(kept)},
        **{role: name for role, name in special.items() if name is not None},
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_input_names": inputs,
        "model_max_length": c.max_length,
        "padding_side": "left" if c.family == "decoder" and c.head == "vocabulary" else "right",
        "clean_up_tokenization_spaces": False,
    }


def image_json(c: ModelConfig) -> dict[str, Any]:
    """preprocessor_config.json: the shorter side becomes image_size, the middle is cut out, 0 ... 255 becomes -1 ... 1."""
    size = {"height": c.image_size, "width": c.image_size}
    half = [0.5] * c.n_channels
    return {
        "image_processor_type": "CLIPImageProcessor",
        "do_resize": True, "size": {"shortest_edge": c.image_size}, "resample": 3,
        "do_center_crop": True, "crop_size": size,
        "do_rescale": True, "rescale_factor": 1 / 255,
        "do_normalize": True, "image_mean": half, "image_std": half,
        "do_convert_rgb": c.n_channels == 3,
    }  # fmt: skip
