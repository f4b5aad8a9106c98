"""`qkv embed`: embed texts as vectors."""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.commands.common import Device, DeviceOption, Folder, Json, PrecisionOption, writing
from qkv.commands.lines import Line, Source, check_file
from qkv.commands.workers import Workers, compute_chunks, with_workers
from qkv.errors import QkvError

if TYPE_CHECKING:
    from qkv.tasks.embed import Embedder

FILE = typer.Argument(metavar="[FILE]", help="A file with one text per line. Default, or -: standard input.")
Pooling = StrEnum("Pooling", "mean cls last tokens")
POOLING = typer.Option(help="Mean, first (cls) or last of the token vectors; tokens: one vector per token.")
LAYER = typer.Option(help="Layer: 0 = embeddings, 1 = first layer; -1 = last layer, -2 = the one before.")
TRUNCATE = typer.Option("--truncate", help="Cut a text that is longer than the context; otherwise it is an error.")
OUT = typer.Option(metavar="FILE", help="Write .npy (numpy), .safetensors or .tsv (TensorBoard's projector).")


@with_workers
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
    workers: Workers = 1,
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
    from qkv.distributed import is_rank_zero
    from qkv.tasks.embed import fits

    # the other workers may be on machines without the file
    source: Source = check_file(file) if is_rank_zero() else []
    if out is not None:
        fits(out)
    model = load(folder, device.value, precision)
    if model.config.image_size is not None:
        raise QkvError("this model reads images, not texts: embed them in Python with model.embed(images)")
    embedder = model.embedder(layer, batch_size)
    each = pooling is Pooling.tokens
    how: dict[str, Any] = {"normalize": normalize, "truncate": truncate} | ({} if each else {"pooling": pooling.value})
    if out is not None:
        keep(embedder, source, out, how, each)
        return
    show = lambda found: print(*(format_vectors(one, each, as_json) for one in found), sep="\n", flush=True)  # noqa: E731
    with writing():
        embed_lines(embedder, source, show, how, each)


def embed_lines(
    embedder: Embedder, source: Source, show: Callable[[list[Any]], None], how: dict[str, Any], each: bool
) -> None:
    """Embed the lines of a file chunk by chunk: `show` gets (text, pieces, vectors) of each line, without pieces of the whole text."""

    def compute(done: int, chunk: list[Line]) -> list[Any]:
        texts, embedder.seen = texts_of(done, chunk), done
        if not each:
            return [(text, [], vector.cpu()) for text, vector in zip(texts, embedder.embed(texts, **how), strict=True)]
        found = embedder.tokens(texts, **how)
        return [(text, one.pieces, one.vectors.cpu()) for text, one in zip(texts, found, strict=True)]

    compute_chunks(compute, show, source)


def texts_of(done: int, chunk: list[Line]) -> list[str]:
    """Return the texts of a chunk, before which there are `done` lines; one that cannot be read is an error, so that vector i belongs
    to line i."""
    for number, (text, problem) in enumerate(chunk, done + 1):
        if text is None:
            raise QkvError(f"line {number} cannot be read ({problem}): correct or remove it")
    return [text or "" for text, _ in chunk]


def keep(embedder: Embedder, source: Source, out: Path, how: dict[str, Any], each: bool) -> None:
    """Write all vectors to a file."""
    import torch

    from qkv.distributed import is_rank_zero
    from qkv.tasks.embed import Tokens, write, write_tokens

    found: list[Any] = []
    embed_lines(embedder, source, found.extend, how, each)
    if not is_rank_zero():
        return
    if each:
        write_tokens(out, [Tokens(pieces, vectors) for _, pieces, vectors in found], embedder.config.d_model)
    else:
        vectors = torch.stack([vector for *_, vector in found]) if found else torch.zeros(0, embedder.config.d_model)
        write(out, vectors, [text for text, *_ in found])
    print(f"wrote {out}: {len(found):,} texts, vectors of width {embedder.config.d_model}")


def format_vectors(found: tuple[str, list[str], Any], each: bool, as_json: bool) -> str:
    """Format the vector, or the tokens and their vectors, of one text."""
    from qkv.tasks.embed import numbers, one_line

    text, pieces, vectors = found
    if as_json:
        fields = {"tokens": pieces, "vectors": vectors.tolist()} if each else {"vector": vectors.tolist()}
        return json.dumps({"text": text, **fields}, ensure_ascii=False)
    if not each:
        return numbers(vectors.tolist())
    rows = zip(pieces, vectors.tolist(), strict=True)
    return "".join(f"{one_line(piece)}\t{numbers(row)}\n" for piece, row in rows)  # print adds the blank line
