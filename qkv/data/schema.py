"""Schemas: which columns the records of a task have, and how files, tables and the embedded grammar become such records.

A task declares its schema, and everything in data/ that reads a corpus is given it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from qkv.config import CorpusConfig
from qkv.data.lines import MAX_ROW
from qkv.data.sources import Corpus, Record


@dataclass(frozen=True, eq=False)
class Column:
    """One column of a table of records."""

    name: str
    """What messages and reports call it."""
    usual: tuple[str, ...]
    """Names that tables give to such a column, the most usual first."""
    partners: Mapping[str, str] = field(default_factory=dict)
    """Names of a text -> of a second text that it is compared with, which is read too."""
    side: str = ""
    """"source" or "target" of a translation, a column that may also be named after its language."""
    identifies: bool = False
    """Two records with the same text here are the same record."""
    optional: bool = False
    """It is read where a table has it."""


@dataclass(frozen=True)
class Schema:
    """The records of a task. Records are the same, whichever kind of corpus they come from."""

    task: str
    columns: tuple[Column, ...]
    accepts: str
    """Which files a corpus can have, for messages."""
    read_files: Callable[[Sequence[Path], CorpusConfig], Corpus] | None = None
    """Read records from text files; None = they are always in a table."""
    n_files: int | None = None
    """How many text files a corpus has; None = any number."""
    numbered: bool = False
    """Text files have columns, chosen by number."""
    is_text: Callable[[Path], bool] = lambda _: False
    """Whether a file with the ending of a table is a text file all the same."""
    from_row: Callable[[Record], Record | None] | None = None
    """Make a record of the cells of a table; None = leave it out."""
    reason: str = ""
    """Why a row is left out."""
    longest: int = MAX_ROW
    """Bytes of a row at the most."""
    from_grammar: Callable[[str, int], Iterator[Record]] | None = None
    """The records of (split, seed) of the embedded grammar, without end."""

    @property
    def least(self) -> int:
        """Columns at the least, which are the default."""
        return sum(not column.optional for column in self.columns)

    @property
    def most(self) -> int:
        """Columns at the most."""
        return len(self.columns) + sum(bool(column.partners) for column in self.columns)

    @property
    def plain(self) -> bool:
        """Records are texts alone: any corpus of texts will do."""
        return self.columns == (PLAIN,)

    @property
    def pictures(self) -> bool:
        return self.columns[0] is IMAGE

    @property
    def parallel(self) -> bool:
        """Both columns are texts that say the same."""
        return self.n_files == 2 and not self.pictures

    def names(self, width: int) -> list[str]:
        """Name the parts of a record of this width."""
        known = [column.name for column in self.columns]
        if self.columns[0].partners and width > self.least:
            known.insert(1, f"second {known[0]}")
        return known[:width] + [f"further {self.columns[self.least - 1].name}"] * (width - len(known))


# --- columns, and the names that tables give to them

TEXT_NAMES = tuple(
    "text sentence content review comment tweet message body document utterance query phrase post statement question "
    "review_text review_body comment_text sentence1 text1 text_a premise question1 input passage article description title "
    "headline".split()
)
PARTNERS = {"sentence1": "sentence2", "sentence_1": "sentence_2", "text1": "text2", "text_1": "text_2", "text_a": "text_b",
            "sentence_a": "sentence_b", "premise": "hypothesis", "question1": "question2"}  # fmt: skip
LABEL_NAMES = tuple(
    "label labels class category sentiment polarity intent emotion topic rating stars score similarity gold_label gold "
    "is_duplicate relatedness_score label_text tag target y".split()
)

PLAIN = Column("text", TEXT_NAMES, identifies=True)
TEXT = Column("text", TEXT_NAMES, PARTNERS, identifies=True)
LABEL = Column("label", LABEL_NAMES)
SCORE = Column("label", ("score", "rating", "similarity", "stars", *LABEL_NAMES))
WORDS = Column("words", ("words", "tokens", "text", "sentence"), identifies=True)
TAGS = Column("tags", ("tags", "ner_tags", "pos_tags", "labels", "ner", "pos", "upos", "tag", "label"))
QUESTION = Column("question", ("question", "query"))
CONTEXT = Column("context", ("context", "passage", "paragraph", "document", "text"), identifies=True)
ANSWER = Column("answer", ("answer", "answer_text", "answers"))
START = Column("start", ("start", "answer_start"), optional=True)
SOURCE = Column("source", ("source", "src", "source_text"), side="source", identifies=True)
TARGET = Column("target", ("target", "tgt", "trg", "translation", "target_text"), side="target", identifies=True)
DOCUMENT = Column(
    "text", ("document", "article", "text", "body", "dialogue", "content", "source", "input"), identifies=True
)
SUMMARY = Column("summary", ("summary", "highlights", "abstract", "headline", "subject", "title", "target", "output"))
IMAGE = Column("image", ("image", "picture", "file", "filename", "file_name", "path", "image_path"), identifies=True)
IMAGE_LABEL = Column("label", (*LABEL_NAMES, "caption"))
CAPTION = Column("caption", ("caption", "text", "description", "sentence", "title", "label"))
MESSAGES = Column("messages", ("messages", "conversations", "conversation", "dialog"), identifies=True)

ANSWERS, TRANSLATIONS, LABELLED = (QUESTION, CONTEXT, ANSWER, START), (SOURCE, TARGET), (TEXT, LABEL)
SCORED, SUMMARIES, TAGGED_WORDS = (TEXT, SCORE), (DOCUMENT, SUMMARY), (WORDS, TAGS)
LAYOUTS = (ANSWERS, TRANSLATIONS, (IMAGE, IMAGE_LABEL), LABELLED, SUMMARIES, TAGGED_WORDS, (MESSAGES,))
"""Columns that tables have together; a table is taken for the first that its names fit."""
