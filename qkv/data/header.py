"""Column names of a table: recognise a header row, and choose the columns that a task reads by their names.

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
from qkv.data.sources import JSON_LINES, TABLES, ending, quoted
from qkv.errors import ConfigError

SAMPLE = 1000
"""Rows that are compared with the first one."""
MAX_COLUMNS = 1000
"""A row with more cells is no header."""

TEXT = tuple(
    "text sentence content review comment tweet message body document utterance query phrase post statement question "
    "review_text review_body comment_text sentence1 text1 text_a premise question1 input passage article description title "
    "headline".split()
)
"""Names of a text, the most usual first; so are the following lists."""
PAIRS = {"sentence1": "sentence2", "sentence_1": "sentence_2", "text1": "text2", "text_1": "text_2", "text_a": "text_b",
         "sentence_a": "sentence_b", "premise": "hypothesis", "question1": "question2"}  # fmt: skip
"""Names of a text -> of the one it is compared with."""
LABEL = tuple(
    "label labels class category sentiment polarity intent emotion topic rating stars score similarity gold_label gold "
    "is_duplicate relatedness_score label_text tag target y".split()
)
IMAGE = tuple("image picture file filename file_name path image_path".split())
SOURCE, TARGET = ("source", "src", "source_text"), ("target", "tgt", "trg", "translation", "target_text")
ROLES: dict[str, dict[str, Sequence[str]]] = {
    "classification": {"text": TEXT, "label": LABEL},
    "regression": {"text": TEXT, "label": ("score", "rating", "similarity", "stars", *LABEL)},
    "tagging": {"words": ("words", "tokens", "text", "sentence"),
                "tags": ("tags", "ner_tags", "pos_tags", "labels", "ner", "pos", "upos", "tag", "label")},
    "answering": {"question": ("question", "query"), "context": ("context", "passage", "paragraph", "document", "text"),
                  "answer": ("answer", "answer_text", "answers")},
    "translation": {"source": SOURCE, "target": TARGET},
    "summary": {"text": ("document", "article", "text", "body", "dialogue", "content", "source", "input"),
                "summary": ("summary", "highlights", "abstract", "headline", "subject", "title", "target", "output")},
    "images": {"image": IMAGE, "label": (*LABEL, "caption")},
    "captions": {"image": IMAGE, "caption": ("caption", "text", "description", "sentence", "title", "label")},
}  # fmt: skip
"""task -> what its columns are, and the names that each may have."""
OPTIONAL = {"answering": ("start", "answer_start")}
"""task -> names of a last column that it reads where there is one."""

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
KNOWN = frozenset(name for roles in ROLES.values() for names in roles.values() for name in names) | WORDS
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
        yield from (row for row, _ in quoted(path, Counter(), MAX_ROW))
    else:
        yield from (text.split("\t") for text in lines(path, longest=MAX_ROW) if text is not None)


def is_header(rows: Sequence[Sequence[str]]) -> bool:
    """Is the first of these rows a header? Needs two usual names; or one, beside a column that the rest of the rows show to
    be of another kind; or one alone, above texts."""
    first, rest = rows[0] if rows else [], [row for row in rows[1:] if any(row)]
    named = [cell.strip() for cell in first if cell.strip()]
    if not named or not rest or len(first) > MAX_COLUMNS:
        return False
    if Counter(map(len, rest)).most_common(1)[0][0] != len(first) or len({name.casefold() for name in named}) < len(
        named
    ):
        return False
    columns = [(cell.strip(), [row[i].strip() for row in rest if i < len(row)]) for i, cell in enumerate(first)]
    columns = [(name, below) for name, below in columns if name]
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
    code = LANGUAGES.get(plain) or re.fullmatch(r"([a-z]{2})(_[a-z]{2,4})?", plain)
    code = code if isinstance(code, str) else code[1] if code else ""
    return code if code in CODES else ""


# --- choose


def columns_for(names: Sequence[str], task: str, source: str = "", target: str = "") -> list[str] | None:
    """The columns that a task reads, in its order, or None where the names do not tell.

    `source` and `target` are the languages of a translation. A column that is left over is the one without a usual name.
    """
    plain = {simple(name): name for name in reversed(names) if name.strip()}
    roles = ROLES.get(task, {"text": TEXT})
    found: list[str | None] = []
    for role, usual in roles.items():
        code = {"source": source, "target": target}.get(role, "") if task == "translation" else ""
        spoken = [name for name in plain if code and language(name) == language(simple(code))]
        exact = [name for name in (*usual, *spoken) if name in plain and name not in found]
        partly = [name for name in plain if name not in found and set(name.split("_")) & {*usual}]
        found.append(exact[0] if exact else partly[0] if len(partly) == 1 else None)
    if task in ("classification", "regression") and found[0] in PAIRS and PAIRS[found[0]] in plain:
        found.insert(1, PAIRS[found[0]])
    left = [name for name in plain if name not in found and not (task == "translation" and language(name))]
    if found.count(None) == 1 and len(left) == 1 and len(plain) == len(found):
        found[found.index(None)] = left[0]
    if None in found:
        return None
    found += [name for name in OPTIONAL.get(task, ()) if name in plain][:1]
    return [plain[name] for name in found if name is not None]


def usual_columns(path: str | Path, task: str, source: str = "", target: str = "") -> list[str] | None:
    """The columns that a task reads of a table, by their names; None where the table has no names."""
    names = names_of(path)
    if not names:
        return None
    found = columns_for(names, task, source, target)
    if found is None:
        roles = list(ROLES.get(task, {"text": TEXT}))
        raise ConfigError(
            f"{path} has the columns {', '.join(names)[:300]}, and it is not clear which of them {task} reads as "
            f"{' and '.join(roles)}: name {'it' if len(roles) == 1 else 'them in this order'}, such as columns = "
            f"{json.dumps(list(names[: len(roles)]), ensure_ascii=False)}"
        )
    return found


def guess_task(names: Sequence[str]) -> tuple[str, list[str]] | None:
    """The task that a table with these columns is for, and its columns; None where the names do not tell."""
    languages = [code for name in names if (code := language(simple(name)))]
    if len(languages) == 2 and (found := columns_for(names, "translation", *languages)):
        return "translation", found
    for task in ("answering", "translation", "images", "classification", "summary", "tagging"):
        roles = ROLES[task]
        plain = [simple(name) for name in names]
        if all(any(name in plain for name in usual) for usual in roles.values()) and (
            found := columns_for(names, task)
        ):
            return task, found
    return None


def text_columns(path: str | Path, task: str, source: str = "", target: str = "", count: int = 1) -> list[int | str]:
    """The columns of a table that a trained model reads: one text, or a pair; its labels and translations may be missing."""
    names = names_of(path)
    if not names:
        return list(range(count))
    whole = columns_for(names, task, source, target)
    pair = next(([a, b] for a in names for b in names if PAIRS.get(simple(a)) == simple(b)), None)
    spoken = [name for name in names if source and language(simple(name)) == language(simple(source))]
    found = whole[:count] if whole else (spoken or columns_for(names, "text")) if count == 1 else pair
    if found is None or len(found) < count:
        texts = "one is the text" if count == 1 else f"{count} are the texts"
        raise ConfigError(f"{path} has the columns {', '.join(names)[:300]}, and it is not clear which {texts}: name it text, or give "
                          "a file with a text per line")  # fmt: skip
    return list(found[:count])


# --- say


def note(
    path: str | Path, columns: Sequence[int | str], task: str, source: str = "", target: str = ""
) -> tuple[str, str]:
    """What is to be said of the columns that are read of a table: the words before and behind its name; empty where there is
    nothing to say. `columns` are those that were asked for: none = found by name."""
    if ending(path) not in TABLES or any(isinstance(c, str) for c in columns) or not (names := names_of(path)):
        return "", ""
    shown, json_lines = ", ".join(names)[:300], ending(path) in JSON_LINES
    if columns:
        named = json.dumps(
            [names[c] for c in columns if isinstance(c, int) and 0 <= c < len(names)], ensure_ascii=False
        )
        return ("", "") if json_lines else (
            "the first row of", f"looks like a header ({shown}), but is read as a record, because the columns are given by number: "
            f"to leave it out, columns = {named}"
        )  # fmt: skip
    chosen = usual_columns(path, task, source, target) or []
    if json_lines:
        return f"reading the fields {', '.join(chosen)} of", ""
    reads = "" if {*names} == {*chosen} else f", of which {', '.join(chosen)} are read"
    return (
        "the first row of",
        f"is a header ({shown}){reads}; columns = {list(range(len(chosen)))} would read it as a record",
    )
