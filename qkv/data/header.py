"""Column names of a table: recognise a header row, and choose columns by their names.

A first row is a header only where the evidence is strong: its cells are names that tables usually have (text, label, source,
en ...), each occurs nowhere else in its column, and it has as many cells as the other rows. In doubt it is data.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from statistics import median

from qkv.data.lines import MAX_ROW, lines
from qkv.data.schema import CAPTION, LAYOUTS, PARTNERS, PLAIN, SCORE, TRANSLATIONS, Column, Schema
from qkv.data.sources import JSON_LINES, TABLES, ending, read_csv
from qkv.errors import ConfigError

SAMPLE = 1000
"""Rows that are compared with the first one."""
MAX_COLUMNS = 1000
"""A row with more cells is no header."""

LANGUAGES = {
    "english": "en", "german": "de", "french": "fr", "spanish": "es", "italian": "it", "portuguese": "pt", "dutch": "nl",
    "polish": "pl", "russian": "ru", "ukrainian": "uk", "czech": "cs", "swedish": "sv", "danish": "da", "finnish": "fi",
    "hungarian": "hu", "turkish": "tr", "greek": "el", "japanese": "ja", "chinese": "zh", "korean": "ko", "arabic": "ar",
    "hebrew": "he", "hindi": "hi", "romanian": "ro", "bulgarian": "bg", "croatian": "hr", "serbian": "sr", "slovak": "sk",
    "slovenian": "sl", "estonian": "et", "latvian": "lv", "lithuanian": "lt", "norwegian": "no", "icelandic": "is",
    "irish": "ga", "welsh": "cy", "catalan": "ca", "basque": "eu", "persian": "fa", "vietnamese": "vi", "thai": "th",
    "indonesian": "id", "malay": "ms", "swahili": "sw", "latin": "la", "esperanto": "eo", "tamil": "ta", "bengali": "bn",
}  # fmt: skip
CODES = frozenset(LANGUAGES.values())
WORDS = frozenset("text texts label labels sentence sentences source target class category sentiment question answer context "
                  "id idx index src tgt lang language score split tags tokens summary document title".split())  # fmt: skip
"""Words that make a name of several a usual one: review_text, label-coarse, SentimentText."""
KNOWN = WORDS.union(
    *(column.usual for layout in (*LAYOUTS, (SCORE, CAPTION)) for column in layout if not column.optional)
)
NAME = re.compile(r"[^\W\d][\w .:/()#-]{0,39}")
"""What a column may be called."""


# --- recognise


def names_of(path: str | Path, kind: str = "") -> tuple[str, ...]:
    """The names of a table's columns: its header, or the fields of its first JSON object; () where it has none.

    `kind` is .tsv, .csv or .jsonl, where the ending of the file's name does not tell.
    """
    kind = kind or ending(path)
    if kind not in JSON_LINES:
        rows = list(islice(cells(path, kind), SAMPLE))
        return tuple(rows[0]) if is_header(rows) else ()
    for text in islice(lines(path, longest=MAX_ROW), SAMPLE):
        try:
            row = json.loads(text or "")
        except (ValueError, RecursionError):
            continue
        return tuple(row) if isinstance(row, dict) else ()
    return ()


def cells(path: str | Path, kind: str) -> Iterator[list[str]]:
    """The cells of each row of a .tsv or .csv file."""
    if kind == ".csv":
        yield from (row for row, _ in read_csv(path, Counter(), MAX_ROW))
    else:
        yield from (text.split("\t") for text in lines(path, longest=MAX_ROW) if text is not None)


def is_header(rows: Sequence[Sequence[str]]) -> bool:
    """Is the first of these rows a header? Needs two usual names; or one, beside a column that the rest of the rows show to
    be of another kind; or one alone, above texts."""
    first, rest = [cell.strip() for cell in rows[0]] if rows else [], [row for row in rows[1:] if any(row)]
    if not any(first) or not rest or len(first) > MAX_COLUMNS:
        return False
    different = {name.casefold() for name in first if name}
    if Counter(map(len, rest)).most_common(1)[0][0] != len(first) or len(different) < sum(map(bool, first)):
        return False
    columns = [(name, [row[i].strip() for row in rest if i < len(row)]) for i, name in enumerate(first) if name]
    if not all(NAME.fullmatch(name) and name.casefold() not in map(str.casefold, below) for name, below in columns):
        return False
    usual = sum(is_usual(name, below) for name, below in columns)
    if len(first) == 1:
        return usual == 1 and is_prose(columns[0][1])
    return usual >= 2 or usual == 1 and any(is_other(name, below) for name, below in columns)


def is_usual(name: str, below: Sequence[str]) -> bool:
    """A name that tables usually have. Codes of languages are words too (it, es, no): they count above texts alone."""
    plain = simple(name)
    if language(plain):
        return is_prose(below)
    return plain in KNOWN or " " not in name and any(word in WORDS for word in plain.split("_"))


def is_prose(below: Sequence[str]) -> bool:
    """Do these cells hold texts, not single words?"""
    return bool(below) and (median(map(len, below)) >= 12 or sum(" " in cell for cell in below) * 2 >= len(below))


def is_other(name: str, below: Sequence[str]) -> bool:
    """Is the name of another kind than all cells below it: these are numbers, or each of them recurs?"""
    if is_usual(name, below) or len(below) < 10:
        return False
    numeric = all(re.fullmatch(r"[-+]?\d+(\.\d+)?", cell) for cell in below)
    return numeric or min(Counter(below).values()) > 1


def simple(name: str) -> str:
    """SentimentText, Sentiment-Text, sentiment text -> sentiment_text."""
    return re.sub(r"[\s-]+|(?<=[a-z])(?=[A-Z])", "_", name.strip()).casefold()


def language(plain: str) -> str:
    """The code of a language that a name stands for: en of en, en_gb, english; "" for others."""
    code = LANGUAGES.get(plain) or re.sub(r"(?<=^[a-z]{2})_[a-z]{2,4}\Z", "", plain)
    return code if code in CODES else ""


# --- choose


def match_columns(
    names: Sequence[str], columns: Sequence[Column], source: str = "", target: str = ""
) -> list[tuple[Column, str]] | None:
    """Find the name of each column, or return None where the names do not tell.

    `source` and `target` are the languages of a translation. A column that is left over is the one without a usual name.
    """
    plain = {simple(name): name for name in reversed(names) if name.strip()}
    needed = [column for column in columns if not column.optional]
    found: list[str | None] = []
    for column in needed:
        code = {"source": source, "target": target}.get(column.side, "")
        spoken = [name for name in plain if code and language(name) == language(simple(code))]
        exact = [name for name in (*column.usual, *spoken) if name in plain and name not in found]
        partly = [name for name in plain if name not in found and set(name.split("_")) & {*column.usual}]
        found.append(exact[0] if exact else partly[0] if len(partly) == 1 else None)
    if (second := needed[0].partners.get(found[0] or "")) in plain:
        needed, found = [needed[0], *needed], [found[0], second, *found[1:]]
    left = [name for name in plain if name not in found and not (needed[0].side and language(name))]
    if found.count(None) == 1 and len(left) == 1 and len(plain) == len(found):
        found[found.index(None)] = left[0]
    if None in found:
        return None
    extra = [(column, name) for column in columns if column.optional for name in column.usual if name in plain][:1]
    return [(column, plain[name]) for column, name in (*zip(needed, found, strict=True), *extra) if name is not None]


def columns_for(names: Sequence[str], columns: Sequence[Column], *languages: str) -> list[str] | None:
    """The names of the columns, in their order, or None where the names do not tell; `languages` are source and target."""
    found = match_columns(names, columns, *languages)
    return None if found is None else [name for _, name in found]


def find_columns(path: str | Path, schema: Schema, *languages: str) -> list[str] | None:
    """The columns of a table that a task reads, by their names; None where the table has no names."""
    names = names_of(path)
    found = columns_for(names, schema.columns, *languages) if names else None
    if names and found is None:
        roles = [column.name for column in schema.columns if not column.optional]
        raise ConfigError(
            f"{path} has the columns {', '.join(names)[:300]}, and it is not clear which of them {schema.task} reads as "
            f"{' and '.join(roles)}: name {'it' if len(roles) == 1 else 'them in this order'}, such as columns = "
            f"{json.dumps(list(names[: len(roles)]), ensure_ascii=False)}"
        )
    return found


def guess_columns(names: Sequence[str]) -> list[tuple[Column, str]] | None:
    """What the columns of a table with these names are, of a known layout; None where the names do not tell."""
    languages = [code for name in names if (code := language(simple(name)))]
    if len(languages) == 2 and (found := match_columns(names, TRANSLATIONS, *languages)):
        return found
    plain = {simple(name) for name in names}
    for layout in LAYOUTS:
        fits = all(column.optional or not plain.isdisjoint(column.usual) for column in layout)
        if fits and (found := match_columns(names, layout)):
            return found
    return None


def text_columns(
    path: str | Path, columns: Sequence[Column], source: str = "", target: str = "", count: int = 1
) -> list[int | str]:
    """The columns of a table that a trained model reads: one text, or a pair; its labels and translations may be missing."""
    names = names_of(path)
    if not names:
        return list(range(count))
    whole = columns_for(names, columns, source, target)
    pair = next(([a, b] for a in names for b in names if PARTNERS.get(simple(a)) == simple(b)), None)
    spoken = [name for name in names if source and language(simple(name)) == language(simple(source))]
    found = whole[:count] if whole else (spoken or columns_for(names, (PLAIN,))) if count == 1 else pair
    if found is None or len(found) < count:
        texts = "one is the text" if count == 1 else f"{count} are the texts"
        raise ConfigError(f"{path} has the columns {', '.join(names)[:300]}, and it is not clear which {texts}: name it text, or give "
                          "a file with a text per line")  # fmt: skip
    return list(found[:count])


# --- notes for the user


def describe_header(path: str | Path, columns: Sequence[int | str], schema: Schema, *languages: str) -> tuple[str, str]:
    """Describe which columns of a table are read, in words before and behind its name; empty where there is nothing to say.
    `columns` are those that the recipe names; none = found by name."""
    if ending(path) not in TABLES or any(isinstance(c, str) for c in columns) or not (names := names_of(path)):
        return "", ""
    shown, json_lines = ", ".join(names)[:300], ending(path) in JSON_LINES
    if columns and json_lines:
        return "", ""
    if columns:
        named = [names[c] for c in columns if isinstance(c, int) and 0 <= c < len(names)]
        return "the first row of", (
            f"looks like a header ({shown}), but is read as a record, because the columns are given by number: "
            f"to leave it out, columns = {json.dumps(named, ensure_ascii=False)}"
        )
    chosen = find_columns(path, schema, *languages) or []
    if json_lines:
        return f"reading the fields {', '.join(chosen)} of", ""
    reads = "" if {*names} == {*chosen} else f", of which {', '.join(chosen)} are read"
    numbers = list(range(len(chosen)))
    return "the first row of", f"is a header ({shown}){reads}; columns = {numbers} would read it as a record"
