"""`qkv embed`: embed texts as vectors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.commands.common import Device, DeviceOption, Folder, Json, PrecisionOption, writing
from qkv.commands.lines import check_file, chunks
from qkv.errors import QkvError

if TYPE_CHECKING:
    from qkv.tasks.embed import Embedder

FILE = typer.Argument(metavar="[FILE]", help="A file with one text per line. Default, or -: standard input.")
Pooling = StrEnum("Pooling", "mean cls last tokens")
POOLING = typer.Option(help="Mean, first (cls) or last of the token vectors; tokens: one vector per token.")
LAYER = typer.Option(help="Layer: 0 = embeddings, 1 = first layer; -1 = last layer, -2 = the one before.")
TRUNCATE = typer.Option("--truncate", help="Cut a text that is longer than the context; otherwise it is an error.")
OUT = typer.Option(metavar="FILE", help="Write .npy (numpy), .safetensors or .tsv (TensorBoard's projector).")


def run(
    folder: Folder,
    file: Annotated[Path | None, FILE] = None,
    pooling: Annotated[Pooling, POOLING] = Pooling.mean,
    layer: Annotated[int, LAYER] = -1,
    normalize: Annotated[bool, typer.Option(help="Scale every vector to length 1.")] = True,
    truncate: Annotated[bool, TRUNCATE] = False,
    out: Annotated[Path | None, OUT] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Texts per batch.")] = 32,
    as_json: Json = False,
    device: DeviceOption = Device.auto,
    precision: PrecisionOption = None,
) -> None:
    """Embed texts as vectors: one vector per text, or one per token.

    Without --out, prints one line of numbers per text; with --pooling tokens, one
    line per token (token TAB numbers) and a blank line after each text; with --json,
    one object per text. A line that cannot be read is an error.

    [dim]echo "The old man sleeps." | qkv embed my-encoder --json[/]
    [dim]qkv embed my-encoder texts.txt --pooling cls --layer -2 --out vectors.npy[/]
    """
    from qkv.api import load
    from qkv.tasks.embed import fits

    file = check_file(file)
    if out is not None:
        fits(out)
    model = load(folder, device.value, precision)
    if model.config.image_size is not None:
        raise QkvError("this model reads images, not texts: embed them in Python with model.embed(images)")
    embedder = model.embedder(layer, batch_size)
    each = pooling is Pooling.tokens
    how: dict[str, Any] = {"normalize": normalize, "truncate": truncate} | ({} if each else {"pooling": pooling.value})
    if out is not None:
        keep(embedder, file, out, how, each)
        return
    with writing():
        for texts in lines(file):
            found = embedder.tokens(texts, **how) if each else embedder.embed(texts, **how).tolist()
            for text, one in zip(texts, found, strict=True):
                print(format_vectors(text, one, each, as_json), flush=True)


def lines(file: Path | None) -> Iterator[list[str]]:
    """Yield chunks of texts; a line that cannot be read is an error, so that vector i belongs to line i."""
    done = 0
    for chunk in chunks(file):
        for number, (text, problem) in enumerate(chunk, done + 1):
            if text is None:
                raise QkvError(f"line {number} cannot be read ({problem}): correct or remove it")
        done += len(chunk)
        yield [text or "" for text, _ in chunk]


def keep(embedder: Embedder, file: Path | None, out: Path, how: dict[str, Any], each: bool) -> None:
    """Write all vectors to a file."""
    import torch

    from qkv.tasks.embed import write, write_tokens

    texts: list[str] = []
    found: list[Any] = []
    for some in lines(file):
        texts += some
        found += embedder.tokens(some, **how) if each else [embedder.embed(some, **how).cpu()]
    if each:
        write_tokens(out, found, embedder.config.d_model)
    else:
        write(out, torch.cat(found) if found else torch.zeros(0, embedder.config.d_model), texts)
    print(f"wrote {out}: {len(texts):,} texts, vectors of width {embedder.config.d_model}")


def format_vectors(text: str, one: Any, each: bool, as_json: bool) -> str:
    """Format the vector, or the tokens and their vectors, of one text."""
    from qkv.tasks.embed import numbers, one_line

    if as_json:
        found = {"tokens": one.pieces, "vectors": one.vectors.tolist()} if each else {"vector": one}
        return json.dumps({"text": text, **found}, ensure_ascii=False)
    if not each:
        return numbers(one)
    rows = zip(one.pieces, one.vectors.tolist(), strict=True)
    return "".join(f"{one_line(piece)}\t{numbers(row)}\n" for piece, row in rows)  # print adds the blank line
