"""`qkv export`: convert a model to another format."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from qkv.commands.common import Folder


class ExportFormat(StrEnum):
    hf = "hf"
    qkv = "qkv"
    text = "word2vec-text"
    binary = "word2vec-binary"


TO = typer.Option(help="hf: Hugging Face transformers; qkv: a qkv folder; word2vec-*: word vectors.")


def run(
    folder: Folder,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder (for word2vec formats: file) to write.")],
    to: Annotated[ExportFormat, TO] = ExportFormat.hf,
) -> None:
    """Convert a model: to a Hugging Face folder, to a qkv folder, or word vectors to word2vec files.

    The result is read back and compared with the original before the command ends.

    [dim]qkv export my-model my-model-hf --to hf[/]
    [dim]qkv export model.gguf my-model --to qkv[/]
    [dim]qkv export runs/word2vec vectors.txt --to word2vec-text[/]
    [dim]qkv export vectors.txt vectors.bin --to word2vec-binary[/]
    """
    from qkv.api import load
    from qkv.vectors.space import load_vectors
    from qkv.vectors.store import holds_vectors

    if holds_vectors(folder):
        difference = load_vectors(folder).export(out, to.value)
    else:
        difference = load(folder, "cpu", "float32").export(out, to.value, say=print)
    print(f"wrote {out}; read back and compared: largest difference {difference:.1e}")
