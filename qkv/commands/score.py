"""`qkv score`: log-probability and perplexity of texts."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.commands.common import Device, DeviceOption, Folder, Json, PrecisionOption, writing
from qkv.commands.lines import chunks
from qkv.commands.tables import columns_to_read
from qkv.errors import QkvError

if TYPE_CHECKING:
    from qkv.api import Model
    from qkv.tasks.text_scores import TextScore

GIVEN = typer.Argument(
    metavar="[FILE|TEXT]...",
    show_default=False,
    help="A file with one text per line (or a table), two files line by line (source, target), or the texts themselves. "
    "Default, or -: standard input.",
)
PAIRS = typer.Option(
    "--pairs",
    help="Decoder: each line is CONTEXT TAB TEXT; score the text after the context. Encoder-decoders always read pairs.",
)
END = typer.Option(
    "--end/--no-end", show_default=False, help="Score the end token too. Default: only in encoder-decoders."
)
TOKENS = typer.Option("--tokens", help="Also print every token with its log-probability.")
Pair = tuple[Any, str | None, str]
"""Source or context, text, and what is wrong with the line."""


def run(
    folder: Folder,
    given: Annotated[list[str] | None, GIVEN] = None,
    pairs: Annotated[bool, PAIRS] = False,
    end: Annotated[bool | None, END] = None,
    tokens: Annotated[bool, TOKENS] = False,
    as_json: Json = False,
    device: DeviceOption = Device.auto,
    precision: PrecisionOption = None,
) -> None:
    """Score texts: log-probability TAB tokens TAB perplexity TAB text, one line each; totals on standard error.

    Logarithms are natural. A decoder sums log p(token | tokens before it); an
    encoder-decoder scores a target given its source; a masked model gives the
    pseudo-log-likelihood, the sum of log p(token | all other tokens), which is not
    a log-probability. Long texts are read in windows that overlap by half. Bits
    per byte are printed if the tokens decode to exactly the same text.

    [dim]qkv score my-gpt "She ate an apple." "She ate an table." --tokens[/]
    [dim]qkv score my-gpt texts.txt --json[/]
    [dim]qkv score example "The dog sleeps." "Der Hund schläft."[/]
    [dim]qkv score my-translator test.en test.de[/]
    """
    from qkv.api import load
    from qkv.tasks.text_scores import total

    model = load(folder, device.value, precision)
    pairs = pairs or model.config.family == "encoder-decoder"
    model.score([], [] if pairs else None)  # a model without probabilities says so before anything is read
    scores: list[TextScore] = []
    with writing():
        for chunk in read(given or [], pairs):
            for one in score_chunk(model, chunk, pairs, end):
                scores.append(one)
                if one.problem:
                    print(f"line {len(scores)} is not scored: {one.problem}", file=sys.stderr)
                print(json.dumps(one.to_json(tokens), ensure_ascii=False) if as_json else format_score(one, tokens))
            sys.stdout.flush()
        whole = total(scores)
        if as_json and whole.tokens:
            found = {key: value for key, value in whole.to_json().items() if key != "text"}
            print(json.dumps({"total": {"texts": sum(bool(one.tokens) for one in scores), **found}}))
    if whole.tokens and not as_json:
        print(summary(scores, whole), file=sys.stderr)
    if any(one.problem for one in scores):
        raise typer.Exit(1)


def read(given: Sequence[str], pairs: bool) -> Iterator[list[Pair]]:
    """Yield chunks of lines, or the texts of the command line."""
    from qkv.data.lines import open_binary

    paths = [Path(one) for one in given]
    files = [one for one in paths if is_file(one)]
    if not given or given == ["-"] or (len(files) == len(given) == 1):
        file = files[0] if files else None
        columns = columns_to_read(file, "translation" if pairs else "classification", count=2 if pairs else 1)
        for chunk in chunks(file, columns):
            yield [split_line(text, problem, pairs) for text, problem in chunk]
    elif len(files) == len(given) == 2 and pairs:
        for path in files:
            open_binary(path).close()
        yield from parallel(*files)
    elif pairs and len(given) != 2:
        raise QkvError(f"give a source and a target, as two texts or as two files; given {len(given)} arguments")
    else:
        yield [(given[0], given[1], "")] if pairs else [(None, text, "") for text in given]


def is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a text may be too long for a name
        return False


def split_line(line: str | None, problem: str, pairs: bool) -> Pair:
    if line is None or problem or not pairs:
        return None, line, problem
    parts = line.split("\t")
    if len(parts) != 2:
        return None, line, f"a line needs two texts separated by a tab, given {len(parts)}"
    return parts[0], parts[1], ""


def parallel(sources: Path, targets: Path) -> Iterator[list[Pair]]:
    """Yield the lines of two files in step."""
    for first, second in zip_longest(chunks(sources), chunks(targets), fillvalue=()):
        if len(first) != len(second):
            raise QkvError(f"{sources} and {targets} have different numbers of lines")
        yield [(s, t, wrong or problem) for (s, wrong), (t, problem) in zip(first, second, strict=True)]


def score_chunk(model: Model, chunk: Sequence[Pair], pairs: bool, end: bool | None) -> list[TextScore]:
    from qkv.tasks.text_scores import TextScore

    good = [(source, text) for source, text, problem in chunk if not problem and text is not None]
    found = iter(model.score([text for _, text in good], [source for source, _ in good] if pairs else None, end))
    return [TextScore(text or "", problem=problem) if problem or text is None else next(found)
            for _, text, problem in chunk]  # fmt: skip


def format_score(one: TextScore, tokens: bool) -> str:
    """Format the scores and the text as a line; with `tokens`, followed by one line per token and a blank line."""
    if not one.tokens:
        return ""
    text = " ".join(one.text.split())
    line = f"{one.log_prob:.4f}\t{len(one.tokens)}\t{one.perplexity:.4f}\t{text}"
    if not tokens:
        return line
    rows = zip(one.tokens, one.token_log_probs, strict=True)
    return "\n".join([line, *(f"  {p:.4f}\t{token}" for token, p in rows), ""])


def summary(scores: Sequence[TextScore], whole: TextScore) -> str:
    from qkv.text.wording import plural

    count = sum(bool(one.tokens) for one in scores)
    bits = "" if whole.bits_per_byte is None else f", {whole.bits_per_byte:.4f} bits per byte"
    pseudo = "pseudo-" if whole.measure != "log-probability" else ""
    return (
        f"{plural(count, 'texts')}, {plural(len(whole.tokens), 'tokens')}: {whole.measure} {whole.log_prob:.4f}, "
        f"{pseudo}perplexity {whole.perplexity:.4f}{bits}"
    )
