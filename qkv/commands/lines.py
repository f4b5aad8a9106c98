"""Lines of text as the input of a command, in chunks, and what is printed for each of them."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import Any

import typer

from qkv.commands.common import writing
from qkv.commands.tables import rows

CHUNK = 512
"""Lines that are read, sorted by length and computed together."""
PAUSE = 0.05
"""Seconds without a new line on standard input after which the lines read so far are computed."""
Source = Path | list[str] | None
"""A file, the lines of a text, or standard input."""
Line = tuple[str | None, str]
"""The text, or None and what is wrong with it."""


def check_file(file: Path | str | None) -> Path | None:
    """Return the file to read, None for standard input (also given as -); raise an error for a wrong path, before a model is loaded."""
    from qkv.data.lines import open_binary

    if file is None or str(file) == "-":
        return None
    open_binary(file).close()
    return Path(file)


def count_lines(file: Path) -> int:
    """Count the lines of a file."""
    from qkv.data.lines import open_binary

    with open_binary(file) as f:
        return sum(block.count(b"\n") for block in iter(lambda: f.read(2**20), b""))


def read(file: Path | str) -> Iterator[Line]:
    from qkv.data.lines import lines

    skipped = Counter[str]()
    for text in lines(file, skipped):
        yield text, "" if text is not None else next(iter(skipped))
        skipped.clear()


def lines_of(source: Path | list[str], columns: Sequence[int | str]) -> Iterator[Line]:
    """Return the lines of a file or a text, or the texts of a table."""
    if isinstance(source, Path):
        return rows(source, columns) if columns else read(source)
    return iter([(line, "") for line in source])


def chunks(source: Source, columns: Sequence[int | str] = (), size: int = CHUNK) -> Iterator[list[Line]]:
    """Yield lines in chunks, or of a table the texts of these `columns`. Chunks of a file or a text have `size` lines; standard input
    yields a smaller chunk if no line arrives for PAUSE seconds, so that interactive input is answered at once."""
    if source is not None:
        lines = lines_of(source, columns)
        while chunk := list(islice(lines, size)):
            yield chunk
        return
    waiting: Queue[Line | BaseException | None] = Queue(2 * size)
    Thread(target=feed, args=(waiting,), daemon=True).start()
    chunk, line = list[Line](), waiting.get()
    while line is not None:
        if isinstance(line, BaseException):
            raise line
        chunk.append(line)
        try:
            line = waiting.get(timeout=PAUSE) if len(chunk) < size else waiting.get_nowait()
        except Empty:
            yield chunk
            chunk, line = [], waiting.get()
            continue
        if len(chunk) == size or line is None:
            yield chunk
            chunk = []


def feed(waiting: Any) -> None:
    """Put the lines of standard input into a queue, and None at the end."""
    try:
        for line in read("-"):
            waiting.put(line)
        waiting.put(None)
    except BaseException as error:
        waiting.put(error)


def print_answers(chunks: Iterable[Iterable[tuple[str, str]]], verb: str = "") -> None:
    """Print the output of each input as it arrives; a problem is reported on standard error (of lines: line N is not `verb`), with
    exit code 1."""
    done = problems = 0
    with writing():
        for chunk in chunks:
            for output, problem in chunk:
                done += 1
                if problem:
                    problems += 1
                    print(f"line {done} is not {verb}: {problem}" if verb else problem, file=sys.stderr)
                print(output)
            sys.stdout.flush()
    if problems:
        raise typer.Exit(1)
