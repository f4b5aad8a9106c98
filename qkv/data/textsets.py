"""Public data sets of single texts by name: glue/..., imdb, aeslc, ud/..., squad, tinyshakespeare.

Each is read from a path where one is given, and otherwise fetched into the cache where its address is public and stable.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from qkv.data.dataset_files import Held, Mapped, check_split, find, look_for
from qkv.data.documents import Documents
from qkv.data.fetch import cache, fetch
from qkv.data.glue import TASKS, glue
from qkv.data.lines import MAX_ROW, open_binary
from qkv.data.schema import ANSWERS, LABELLED, PLAIN, SCORED, SUMMARIES, TAGGED_WORDS, Column, Schema
from qkv.data.sources import Corpus, InMemorySource, Listing, Record, TableSource
from qkv.data.tagged import ConllSource
from qkv.errors import ConfigError, FileError

MB = 1_000_000
NAMES = ", ".join([*(f"glue/{task}" for task in TASKS), "imdb, aeslc, ud/en_ewt, squad, squad/2, tinyshakespeare"])
DEV = {"train": "train", "valid": "dev", "test": "test"}
"""Names of the splits in the files of data sets that call the validation set dev."""


def textset(name: str, split: str, local: Path | None, schema: Schema | None = None) -> Corpus:
    """The records of a named data set; with a schema, which must fit, or the texts alone where it is one of plain text."""
    if local is not None and not local.exists():
        raise FileError(f"{local} does not exist; correct the path")
    kind, _, rest = name.partition("/")
    known, plain = TEXTSETS[kind], schema is not None and schema.plain
    if schema is not None and not plain and schema.columns not in known.layouts:
        has, needs = (" and ".join(c.name for c in layout if not c.optional)
                      for layout in ((*known.layouts, (PLAIN,))[0], schema.columns))  # fmt: skip
        raise ConfigError(f"the data set {name} has {has}, and {schema.task} needs {needs}: there are {NAMES}")
    found = known.open(rest, split, local)
    return Mapped(found, known.text) if plain and known.text else found


def sentences(text: str) -> str:
    """One sentence per line, cut after a closing mark before a large letter; a rule of thumb."""
    lines = re.sub(r"(?<=[.!?])[ \t]+(?=[\"'(]?[A-Z0-9])", "\n", text).split("\n")
    return "\n".join(line.strip() for line in lines if line.strip())


def json_table(folder: Path, part: str, *columns: str) -> Corpus:
    """Fields of PART.jsonl in a folder or archive."""
    return TableSource(find([folder], [f"{part}.jsonl"]), columns, longest=MAX_ROW)


# --- IMDB (Maas et al. 2011): 50,000 reviews of films, positive or negative

SENTIMENTS = {"0": "negative", "1": "positive"}


def imdb(_: str, split: str, local: Path | None) -> Corpus:
    """(review, negative or positive), from train.jsonl and test.jsonl (text, label 0 or 1), or from the unpacked aclImdb.

    5 % of the training reviews are valid; "train+valid" is all of them. <br /> becomes a line end.
    """
    check_split("imdb", split, ("train", "valid", "test", "train+valid"))
    if local is None:
        raise ConfigError(
            "imdb is not fetched: unpack aclImdb_v1.tar.gz of https://ai.stanford.edu/~amaas/data/sentiment, and give its "
            "folder as data.root or path"
        )
    part = "test" if split == "test" else "train"
    folder = next((place / part for place in (local, local / "aclImdb") if (place / part / "pos").is_dir()), None)
    rows = Reviews(folder) if folder else json_table(local, part, "text", "label")
    reviews = Mapped(rows, review)
    return Held(reviews, split, percent=5) if split in ("train", "valid") else reviews


def review(record: Record) -> Record | None:
    text = re.sub(r"(<br ?/?>\s*)+", "\n", record[0]).strip()
    return (text, SENTIMENTS.get(record[1], record[1])) if text else None


class Reviews(Listing):
    """The files of aclImdb/train or aclImdb/test: one for each review, in a folder for each label; read when asked for."""

    def __init__(self, folder: Path):
        found = [(path.name, path.as_posix(), str(label)) for label, inner in enumerate(("neg", "pos"))
                 for path in (folder / inner).glob("*.txt")]  # fmt: skip
        super().__init__([(path, label) for _, path, label in sorted(found)])  # both kinds mixed: a share has both

    def read(self, start: int = 0, stride: int = 1) -> Iterator[tuple[int, Record]]:
        for number, (name, label) in super().read(start, stride):
            yield number, (Path(name).read_text("utf-8", "replace")[:MAX_ROW], label)


# --- AESLC (Zhang and Tetreault 2019): e-mails of Enron and their subject lines


def aeslc(_: str, split: str, local: Path | None) -> Corpus:
    """(body, subject) from train.jsonl, dev.jsonl and test.jsonl."""
    part = DEV[check_split("aeslc", split)]
    if local is None:
        raise ConfigError(
            "aeslc is not fetched: get it from https://github.com/ryanzhumich/AESLC, write train.jsonl, dev.jsonl and "
            "test.jsonl with the fields body and subject, and give their folder as data.root or path"
        )
    rows = json_table(local, part, "body", "subject")
    return Mapped(rows, lambda record: record if all(map(str.strip, record)) else None)


# --- Universal Dependencies (Nivre et al. 2020): words with their parts of speech

UD = "https://raw.githubusercontent.com/UniversalDependencies"
TREEBANKS = {
    "en_ewt": "UD_English-EWT",
    "en_gum": "UD_English-GUM",
    "de_gsd": "UD_German-GSD",
    "fr_gsd": "UD_French-GSD",
}


def treebank(code: str, split: str, local: Path | None) -> Corpus:
    """CODE-ud-train.conllu and its dev and test; the tags are UPOS."""
    if not re.fullmatch(r"[a-z]{2,3}_[a-z]+", code):
        raise ConfigError(f"treebanks have names like 'ud/en_ewt', not 'ud/{code}'")
    name = f"{code}-ud-{DEV[check_split(f'ud/{code}', split)]}.conllu"
    if local is not None:
        return ConllSource(find([local], [name]))
    if code not in TREEBANKS:
        raise ConfigError(
            f"ud/{code} is not fetched, only {', '.join('ud/' + c for c in TREEBANKS)}: get it from "
            "https://universaldependencies.org and give its folder as data.root or path"
        )
    return ConllSource(fetch(f"{UD}/{TREEBANKS[code]}/master/{name}", cache() / "ud" / name, 200 * MB))


# --- SQuAD (Rajpurkar et al. 2016, 2018): questions whose answer is a part of a text

SQUAD = "https://rajpurkar.github.io/SQuAD-explorer/dataset"


def squad(version: str, split: str, local: Path | None) -> Corpus:
    """(question, context, answer, start) from train-v1.1.json and dev-v1.1.json; of squad/2 some have no answer ("", -1).

    Of the valid set several people's answers are accepted: further ones stand behind the start. The test set is not public.
    """
    number = {"": "v1.1", "1": "v1.1", "1.1": "v1.1", "2": "v2.0", "2.0": "v2.0"}.get(version)
    part = {"train": "train", "valid": "dev"}.get(split)
    if number is None or part is None:
        raise ConfigError(
            f"squad{'/' + version if version else ''} has no split {split!r}: there are squad and squad/2, train and valid"
        )
    name = f"{part}-{number}.json"
    path = find([local], [name]) if local else fetch(f"{SQUAD}/{name}", cache() / "squad" / name, 100 * MB)
    return InMemorySource(read_squad(path))


def read_squad(path: Path) -> list[Record]:
    """The questions of a file in the layout of SQuAD."""
    with open_binary(path) as file:
        data = file.read(500 * MB + 1)
    try:
        if len(data) > 500 * MB:
            raise ValueError("over 500 MB")
        held = [(paragraph["context"], qa) for article in json.loads(data)["data"] for paragraph in article["paragraphs"]
                for qa in paragraph["qas"]]  # fmt: skip
        return [squad_record(context, qa) for context, qa in held]
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        raise FileError(f"{path} is no file of SQuAD ({type(error).__name__}: {error}); download it again") from None


def squad_record(context: str, qa: dict[str, Any]) -> Record:
    question, found = qa["question"].strip(), [] if qa.get("is_impossible") else qa["answers"]
    if not found:
        return question, context, "", "-1"
    answer, start = found[0]["text"], found[0]["answer_start"]
    others = dict.fromkeys(one["text"] for one in found if one["text"] != answer)
    if not all(isinstance(text, str) for text in others):
        raise ValueError(f"an answer to {question!r} is no text")
    if context[start : start + len(answer)] != answer:
        raise ValueError(f"the answer {answer!r} is not at character {start}")
    return question, context, answer, str(start), *others


# --- Tiny Shakespeare (Karpathy 2015): 1.1 million characters of his plays, one document

SHAKESPEARE = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
SHAKESPEARE_SHARES = {"train": ((0.0, 0.9),), "valid": ((0.9, 1.0),), "whole": ()}


def shakespeare(_: str, split: str, local: Path | None) -> Corpus:
    """The first 90 % of the characters are train, the rest valid, as in nanoGPT."""
    check_split("tinyshakespeare", split, [*SHAKESPEARE_SHARES])
    if local is None:
        path: Path | None = fetch(SHAKESPEARE, cache() / "tinyshakespeare" / "input.txt", 10 * MB)
    else:
        path = look_for([local, local / "tinyshakespeare"], ["input.txt"])
    if path is None:
        raise FileError(f"{local} has no input.txt; is it the right folder?")
    return Documents([path], "file", SHAKESPEARE_SHARES[split])


# --- all of them


class TextSet(NamedTuple):
    """A data set: how it is opened, which columns it has, and the text alone, for tasks that read plain text."""

    open: Callable[[str, str, Path | None], Corpus]
    layouts: tuple[tuple[Column, ...], ...] = ()
    text: Callable[[Record], Record] | None = None


TEXTSETS = {
    "glue": TextSet(glue, (LABELLED, SCORED), lambda record: ("\n".join(record[:-1]),)),
    "imdb": TextSet(imdb, (LABELLED,), lambda record: (sentences(record[0]),)),
    "aeslc": TextSet(aeslc, (SUMMARIES,), lambda record: (sentences(record[0]),)),
    "ud": TextSet(treebank, (TAGGED_WORDS,), lambda record: (record[0].replace("\t", " "),)),
    "squad": TextSet(squad, (ANSWERS,), lambda record: (sentences(record[1]),)),
    "tinyshakespeare": TextSet(shakespeare),
}
FOLDERS = TEXTSETS.keys() - {"tinyshakespeare"}
"""Those with a file for each split."""
