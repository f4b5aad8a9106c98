"""`qkv analogy`: A is to B as C is to which word?"""

from __future__ import annotations

import json
from typing import Annotated

import typer

from qkv.commands.common import Json, writing
from qkv.commands.nearest import HowMany, VectorsArgument, fields, format_near

Word = Annotated[str, typer.Argument()]


def run(vectors: VectorsArgument, a: Word, b: Word, c: Word, n: HowMany = 5, as_json: Json = False) -> None:
    """Solve an analogy: list the words nearest to B - A + C, without A, B and C (A is to B as C is to ...).

    [dim]qkv analogy runs/word2vec-imdb man woman king[/]
    [dim]qkv analogy vectors.txt france paris italy --n 1 --json[/]
    """
    from qkv.vectors.space import load_vectors

    near = load_vectors(vectors).analogy(a, b, c, n)
    found = {"a": a, "b": b, "c": c, "nearest": fields(near)}
    with writing():
        print(json.dumps(found, ensure_ascii=False) if as_json else format_near(near))
