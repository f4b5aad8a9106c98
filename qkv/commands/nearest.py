"""`qkv nearest`: nearest neighbours among word vectors."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qkv.commands.common import Json, writing

if TYPE_CHECKING:
    from qkv.vectors.space import Neighbour

VECTORS = typer.Argument(metavar="RUN|FILE", help="Word vectors: a run folder, or a word2vec file (text or binary).")
N = typer.Option("--n", min=1, help="Number of words.")
VectorsArgument = Annotated[Path, VECTORS]
HowMany = Annotated[int, N]


def run(
    vectors: VectorsArgument,
    words: Annotated[list[str], typer.Argument(help="Words to find neighbours of.")],
    n: HowMany = 10,
    as_json: Json = False,
) -> None:
    """List the nearest words by cosine similarity: cosine TAB word; several lists are headed by their word.

    A word without a vector gives a message on standard error and exit code 1; 2 if no word has one.

    [dim]qkv nearest runs/word2vec dog today[/]
    [dim]qkv nearest GoogleNews-vectors.bin.gz king --n 3 --json[/]
    """
    from qkv.vectors.space import load_vectors

    found = load_vectors(vectors)
    known = [word for word in words if word in found]
    if not known:
        found.nearest(words[0])  # the error says which words are spelled like it
    lists = {word: found.nearest(word, n) for word in known}
    with writing():
        for word, near in lists.items():
            if as_json:
                print(json.dumps({"word": word, "nearest": fields(near)}, ensure_ascii=False))
            else:
                print(format_near(near) if len(words) == 1 else f"{word}\n{format_near(near)}\n")
    for word in dict.fromkeys(words):
        if word not in lists:
            print(found.absent(word), file=sys.stderr)
    if len(lists) < len(set(words)):
        raise typer.Exit(1)


def fields(near: list[Neighbour]) -> list[dict[str, object]]:
    return [{"word": one.word, "similarity": one.similarity} for one in near]


def format_near(near: list[Neighbour]) -> str:
    """Format lines of cosine TAB word."""
    return "\n".join(f"{one.similarity:.4f}\t{one.word}" for one in near)
