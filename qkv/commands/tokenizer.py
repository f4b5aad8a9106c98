"""`qkv tokenizer`: train a tokenizer, and encode and decode text with it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from qkv.commands.common import Json
from qkv.errors import FileError

app = typer.Typer(help="Train a tokenizer, and encode and decode text with it.", no_args_is_help=True)


class Kind(StrEnum):
    bpe = "bpe"
    byte_bpe = "byte-bpe"
    unigram = "unigram"
    wordpiece = "wordpiece"
    words = "words"
    characters = "characters"
    bytes = "bytes"


PATH = typer.Argument(metavar="TOKENIZER", help="A tokenizer.json, a SentencePiece .model file, or a model folder.")
INPUT = typer.Argument(metavar="[FILE]", help="A text file. Default, or -: standard input.")
TEXTS = typer.Argument(metavar="FILES", help="Text files to train on; .gz .xz .zst are decompressed.")
PIECES = typer.Option("--pieces", help="Print the tokens instead of their ids.")


@app.command()
def train(
    files: Annotated[list[Path], TEXTS],
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("tokenizer.json"),
    kind: Annotated[Kind, typer.Option(help="Tokenizer model.")] = Kind.bpe,
    size: Annotated[int, typer.Option(min=10, max=1_000_000, help="Vocabulary size.")] = 8000,
    sample: Annotated[int, typer.Option(min=1, help="Megabytes of text to train on; larger texts are sampled.")] = 100,
    seed: Annotated[int, typer.Option(help="Random seed of the sample.")] = 0,
) -> None:
    """Train a tokenizer on text files.

    [dim]qkv tokenizer train train.en train.de --kind bpe --size 8000[/]
    """
    from qkv.convert.files import write_text
    from qkv.text.train import train_tokenizer

    texts = (text for path in files for text in texts_of(path))
    made = train_tokenizer(texts, kind.value, size, sample * 1_000_000, seed)
    write_text(out, made.to_json())
    fewer = f" (fewer than {size:,}: the text has no more)" if made.size < size else ""
    print(f"wrote {out}: {made.size:,} entries, {kind.value}{fewer}")


@app.command()
def encode(
    path: Annotated[Path, PATH], file: Annotated[Path, INPUT] = Path("-"), pieces: Annotated[bool, PIECES] = False
) -> None:
    """Encode lines of text as lines of token ids.

    [dim]echo "Hello world" | qkv tokenizer encode tokenizer.json --pieces[/]
    """
    from qkv.convert.tokenizer_files import read_tokenizer

    tokenizer = read_tokenizer(path)
    for text in texts_of(file):
        ids = tokenizer.plain([text])[0]
        print(" ".join(str(tokenizer.backend.id_to_token(i) if pieces else i) for i in ids))


@app.command()
def decode(path: Annotated[Path, PATH], file: Annotated[Path, INPUT] = Path("-")) -> None:
    """Decode lines of token ids to lines of text.

    [dim]echo "17 4 2" | qkv tokenizer decode tokenizer.json[/]
    """
    from qkv.convert.tokenizer_files import read_tokenizer

    tokenizer = read_tokenizer(path)
    for number, line in enumerate(texts_of(file), 1):
        words = line.split()
        wrong = [word for word in words if not (word.isdecimal() and int(word) < tokenizer.size)]
        if wrong:
            place = "standard input" if str(file) == "-" else file
            raise FileError(f"{place}, line {number}: {wrong[0]!r} is not a number from 0 to {tokenizer.size - 1}")
        print(tokenizer.decode([int(word) for word in words]))


@app.command()
def info(path: Annotated[Path, PATH], as_json: Json = False) -> None:
    """Print the model, vocabulary size and special tokens of a tokenizer.

    [dim]qkv tokenizer info tokenizer.json[/]
    """
    from qkv.convert.tokenizer_files import read_tokenizer

    tokenizer = read_tokenizer(path)
    special = {t.content: i for i, t in tokenizer.backend.get_added_tokens_decoder().items() if t.special}
    kind = type(tokenizer.backend.model).__name__
    if as_json:
        found = {"kind": kind, "size": tokenizer.size, "special": special, "names": tokenizer.special_names()}
        print(json.dumps(found, indent=2))
        return
    print(f"{kind}, {tokenizer.size:,} entries")
    for token, index in sorted(special.items(), key=lambda item: item[1]):
        print(f"{index:>8}  {token}")


def texts_of(path: Path) -> Iterator[str]:
    """Yield the lines of a file; an unreadable line becomes an empty one and is counted on standard error."""
    import sys
    from collections import Counter

    from qkv.data.lines import lines

    skipped = Counter[str]()
    for text in lines(path, skipped):
        yield "" if text is None else text
    for reason, count in skipped.items():
        what = "1 line replaced by an empty one" if count == 1 else f"{count:,} lines replaced by empty ones"
        print(f"{path}: {what}: {reason}", file=sys.stderr)
