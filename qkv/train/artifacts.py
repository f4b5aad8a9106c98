"""Artifacts that a task derives from its data before training, in the run's folder: tokenizer.json, target_tokenizer.json, labels.json."""

from __future__ import annotations

from pathlib import Path

from qkv.convert.files import read_json, write_json
from qkv.convert.tokenizer_files import open_target_tokenizer, open_tokenizer, save_tokenizer
from qkv.tasks.base import Words

LABELS = "labels.json"
FILES = (LABELS, "tokenizer.json", "tokenizer_config.json", "target_tokenizer.json")


def has_words(folder: Path) -> bool:
    return (folder / LABELS).exists() or (folder / "tokenizer.json").exists()


def save_words(folder: Path, words: Words) -> None:
    if words.labels:
        write_json(folder / LABELS, {"labels": words.labels})
    if words.source is not None:
        save_tokenizer(folder, words.source, words.target)


def open_words(folder: Path) -> Words:
    source, target = open_tokenizer(folder), open_target_tokenizer(folder)
    labels = tuple(read_json(folder / LABELS)["labels"]) if (folder / LABELS).exists() else ()
    return Words(source, target or source, labels)
