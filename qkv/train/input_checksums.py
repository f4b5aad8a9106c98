"""Check that a resumed run has the inputs that it began with: vocabulary and training data (checksums in each checkpoint) and the
network (in best/)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from qkv.config import INITIAL, ModelConfig
from qkv.convert import folder as ours
from qkv.convert.files import some
from qkv.convert.manifest import sha256
from qkv.data.fingerprint import fingerprint
from qkv.data.sources import Source
from qkv.errors import FileError
from qkv.train.artifacts import FILES, has_words
from qkv.train.extend import describe_differences, differences

Checksums = dict[str, str]


def word_checksums(folder: Path) -> Checksums:
    """File name -> SHA-256 of the vocabulary and the labels in a run's folder."""
    return {name: sha256(folder / name) for name in FILES if (folder / name).is_file()}


def check_words(folder: Path, began: Checksums) -> None:
    """FileError unless the run still has the vocabulary and the labels that it began with: a new vocabulary would change the
    meaning of the weights. `began` is empty for a checkpoint of an older version."""
    tokenizer = ["tokenizer.json"] if not has_words(folder) or (folder / "best" / "tokenizer.json").is_file() else []
    lost = [name for name in sorted({*began, *tokenizer}) if not (folder / name).is_file()]
    if lost:
        raise FileError(
            f"{folder} lacks {some(lost)}, which its checkpoints were trained with: put it back (from a copy, or from "
            f"{folder / 'best'}), or start a new run with --out NEW"
        )
    now = word_checksums(folder)
    changed = [name for name, checksum in began.items() if now[name] != checksum]
    if changed:
        raise FileError(
            f"{folder}: {some(changed)} is not the file that its checkpoints were trained with: put that back (from a copy, or "
            f"from {folder / 'best'}), or start a new run with --out NEW"
        )


def check_network(folder: Path, config: ModelConfig) -> None:
    """FileError unless the recipe still describes the network of the run's best model: a preset of another version may have
    other fields. Fields that only affect initial weights are ignored."""
    best = folder / "best"
    if not best.is_dir():
        return
    changes = differences(ours.read_config(best), config)
    changed = describe_differences({f"model.{name}": pair for name, pair in changes.items() if name not in INITIAL})
    if changed:
        raise FileError(
            f"{folder} was begun with another network than its recipe describes in this version: {some(changed, 6)}; start from "
            f"its weights with --out NEW --set tune.start={folder}, or finish it with the version that began it"
        )


def check_data(source: Source, began: Checksums, allowed: bool, say: Callable[[str], None]) -> Checksums:
    """Return the checksums of the training data; FileError if they differ from those that the run began with, unless
    this is `allowed`. `began` is empty for a new run, and for a checkpoint of an older version."""
    now = fingerprint(source)
    same = not began or list(began.values()) == list(now.values())  # files that were moved are the same files
    changed = [] if same else [name for name in began | now if began.get(name) != now.get(name)]
    if changed and not allowed:
        raise FileError(
            f"the training data have changed since the run began ({some(changed)}): put the old files back, start a new run "
            "with --out NEW, or continue on the new data with --changed-data"
        )
    if changed:
        say(f"continuing on changed training data: {some(changed)}")
    return now
