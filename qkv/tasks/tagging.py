"""The tagging task: a tag for each word, such as its part of speech, or where a name begins and ends.

Words are cut into pieces, and the vector of a word's first piece decides its tag (Devlin et al. 2019, 5.3): having seen all
the others through attention it knows as much as their mean would, and one place per word is the simpler rule.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from qkv.batch import IGNORED, Batch, Loss, pad
from qkv.config import CorpusConfig, ModelConfig, Recipe
from qkv.convert.files import write_text
from qkv.data.corpora import corpus, training
from qkv.data.grammar_tasks import tagged_sentences
from qkv.data.lines import lines
from qkv.data.schema import TAGGED_WORDS, Schema
from qkv.data.sources import Record, ending
from qkv.data.tagged import ConllSource
from qkv.errors import ConfigError, QkvError
from qkv.evaluate.class_report import class_report, entity_report
from qkv.evaluate.metrics import entity_f1, tag_accuracy
from qkv.evaluate.scores import Score
from qkv.models.output import Output
from qkv.objectives import tagging
from qkv.tasks.base import Say, Task, Words, held_out
from qkv.tasks.vocabulary import given_tokenizer, learn_tokenizer
from qkv.tasks.windows import map_by_length, pieces_of_words, windows
from qkv.text.kinds import around
from qkv.text.tokenizer import Tokenizer

WORD = re.compile(r"\w+(?:[.,'’]\w+)*|[^\w\s]")
"""A word of raw text: letters and digits, with points, commas and apostrophes inside (3.5, don't); a mark is a word."""
MOST_TAGS = 10_000
TAGGED = "test.tagged.conll"
"""The test set: word, its tag, the model's tag."""


# --- what a tagger does


class Tagged(NamedTuple):
    word: str
    tag: str
    probability: float


@dataclass(frozen=True)
class WordWindow:
    """Pieces of a sentence that are read together, special tokens around them, and the words whose tags it decides."""

    ids: Sequence[int]
    words: Sequence[int]
    """Their numbers in the sentence."""
    places: Sequence[int]
    """Where the first piece of each stands in `ids`."""


class SentenceCutter:
    """Sentences (lists of words) -> windows of at most `most` tokens. A long sentence gives windows that overlap by half;
    each word is decided in the one where it stands furthest from the edges."""

    def __init__(self, c: ModelConfig, tokenizer: Tokenizer, most: int):
        self.tokenizer = tokenizer
        self.before, self.after = around(tokenizer, c)
        self.room = most - len(self.before) - len(self.after)
        if self.room < 1:
            raise QkvError(f"{most} tokens leave no room for a word: raise max_length")

    def __call__(self, sentences: Sequence[Sequence[str]]) -> list[list[WordWindow]]:
        return [self.cut(pieces) if pieces else [] for pieces in pieces_of_words(self.tokenizer, sentences)]

    def cut(self, words: list[list[int]]) -> list[WordWindow]:
        pieces = [piece for word in words for piece in word]
        firsts = [0]  # where the words begin
        for word in words[:-1]:
            firsts.append(firsts[-1] + len(word))
        spans = windows(len(pieces), self.room, max(1, self.room // 2))
        borders = [(one.stop - 1 + other.start) / 2 for one, other in pairwise(spans)]  # the middle of what they share
        own: list[list[int]] = [[] for _ in spans]
        for number, place in enumerate(firsts):
            own[bisect_left(borders, place)].append(number)
        found = []
        for span, decided in zip(spans, own, strict=True):
            ids = [*self.before, *pieces[span.start : span.stop], *self.after]
            found.append(WordWindow(ids, decided, [firsts[n] - span.start + len(self.before) for n in decided]))
        return found


class Tagger:
    """A network with a tag head at work: sentences in, a tag for every word out."""

    def __init__(self, c: ModelConfig, network: nn.Module, tokenizer: Tokenizer, most: int | None = None):
        if c.head != "tags":
            raise QkvError(f'this model has a head for {c.head!r}: to tag it must be trained with task = "tagging"')
        self.config, self.network = c, network
        self.cut = SentenceCutter(c, tokenizer, min(most or c.max_length, c.max_length))
        self.labels = c.labels or tuple(f"LABEL_{i}" for i in range(c.n_classes))

    def tag(self, sentences: Sequence[str | Sequence[str]], batch_tokens: int = 4096) -> list[list[Tagged]]:
        """Each sentence is a list of words, or raw text, which WORD cuts into words."""
        words = [WORD.findall(s) if isinstance(s, str) else list(s) for s in sentences]
        found = []
        for sentence, table in zip(words, self.log_probs(words, batch_tokens), strict=True):
            best, tags = table.max(1) if sentence else (table, table)
            rows = zip(sentence, tags.tolist(), best.exp().tolist(), strict=True)
            found.append([Tagged(word, self.labels[tag], p) for word, tag, p in rows])
        return found

    @torch.no_grad()
    def log_probs(self, sentences: Sequence[Sequence[str]], batch_tokens: int = 4096) -> list[Tensor]:
        """For each sentence (words, tags): the logarithm of each tag's probability."""
        device = next(self.network.parameters()).device
        found = [torch.zeros(len(words), len(self.labels)) for words in sentences]
        todo = [(n, window) for n, cut in enumerate(self.cut(sentences)) for window in cut]

        def compute(numbers: list[int]) -> list[Tensor]:
            rows = [todo[i][1] for i in numbers]
            table = (
                self.network(collate(rows, self.config).to(device)).logits.float().log_softmax(-1).cpu()
            )  # (B, T, n)
            return [own[list(row.places)] for own, row in zip(table, rows, strict=True)]

        tables = map_by_length(compute, [len(window.ids) for _, window in todo], batch_tokens)
        for (number, window), table in zip(todo, tables, strict=True):
            found[number][list(window.words)] = table
        return found


def collate(rows: Sequence[WordWindow], c: ModelConfig) -> Batch:
    """Windows side by side, without targets."""
    inputs, mask = pad([list(row.ids) for row in rows], c.pad_id)
    return Batch(inputs, mask)


# --- how one is trained

Example = tuple[Sequence[int], Sequence[int]]
"""Ids, and the number of a tag at the first piece of each word that counts, else IGNORED."""


def read_conll(paths: Sequence[Path], c: CorpusConfig) -> ConllSource:
    """A file with a word and its tag per line."""
    numbers = [column for column in c.columns if isinstance(column, int)]
    if len(numbers) != len(c.columns) or len(numbers) not in (0, 2):
        raise ConfigError(f"{paths[0]} has columns by number, word and tag, given {list(c.columns)}")
    return ConllSource(paths[0], numbers)


def is_conll(path: Path) -> bool:
    """Whether a .tsv file has a word and its tag per line, and a blank line after each sentence: it is no table then."""
    return ending(path) == ".tsv" and any(text is not None and not text.strip() for text in islice(lines(path), 1000))


def split_cells(record: Record) -> Record | None:
    """Words and tags of a row of a table, which have spaces between them."""
    words, tags = (text.split() for text in record)
    return ("\t".join(words), "\t".join(tags)) if words and len(words) == len(tags) else None


class TaggingTask(Task):
    """Sentences with a tag per word, cross-entropy of the tags, accuracy on the held-out set."""

    name, noun, hub_tag = "tagging", "a tagger", "token-classification"
    schema = Schema("tagging", TAGGED_WORDS, "give one .conllu or CoNLL file, a word and its tag per line, or one table of words and tags",
                    read_conll, n_files=1, numbered=True, is_text=is_conll, from_row=split_cells,
                    reason="as many tags as words are needed", from_grammar=tagged_sentences)  # fmt: skip
    unit = "words"

    @classmethod
    def possible(cls, recipe: Recipe) -> None:
        cls.needs(recipe, "encoder", "tags")
        cls.fits(recipe)

    @classmethod
    def prepare(cls, recipe: Recipe, say: Say) -> Words:
        """The vocabulary, and all tags of the training text; tags that only the valid set has are said."""
        data = recipe.data
        assert data is not None
        corpora = [corpus(c, data, "train", cls.schema) for c in data.train]
        labels = {tag for one in corpora for _, (_, tags) in one.read() for tag in tags.split("\t")}
        if not 0 < len(labels) <= MOST_TAGS:
            raise QkvError(
                f"the training text has {len(labels):,} different tags, not 1 to {MOST_TAGS:,}: wrong column?"
            )
        say_unknown(labels, held_out(corpus(data.valid, data, "valid", cls.schema), "valid"), "valid", say)
        tokenizer = given_tokenizer(recipe) or learn_tokenizer(
            corpora, lambda r: [r[0].replace("\t", " ")], data, say, nouns="sentences"
        )
        return Words(tokenizer, tokenizer, tuple(sorted(labels)))

    @classmethod
    def fitted(cls, recipe: Recipe, words: Words) -> ModelConfig:
        fields = {"labels": words.labels, "n_classes": len(words.labels)}
        return super().fitted(recipe, words).changed(**fields)  # type: ignore[no-any-return]

    def __init__(self, recipe: Recipe, config: ModelConfig, words: Words):
        super().__init__(recipe, config, words)
        assert words.source is not None
        self.tokenizer = words.source
        self.number = {tag: number for number, tag in enumerate(config.labels)}
        self.entities = looks_like_entities(config.labels)
        self.metric = "f1" if self.entities else "accuracy"
        self.cut = SentenceCutter(config, self.tokenizer, self.data.max_length)
        self.batches = self.batched(training(self.data, self.schema), lambda example: len(example[0]))
        valid = corpus(self.data.valid, self.data, "valid", self.schema)
        self.valid = sentences(held_out(valid, "valid"))
        self.left_out += valid.skipped

    # --- learning

    def examples(self, records: Sequence[Record]) -> list[Example]:
        rows = sentences(records)
        cuts = self.cut([words for words, _ in rows])
        return [self.example(window, tags) for (_, tags), cut in zip(rows, cuts, strict=True) for window in cut]

    def example(self, window: WordWindow, tags: Sequence[str]) -> Example:
        targets = array("i", [IGNORED]) * len(window.ids)
        for word, place in zip(window.words, window.places, strict=True):
            targets[place] = self.number.get(tags[word], IGNORED)  # of a text that has changed since training began
        return array("i", window.ids), targets

    def collate(self, examples: list[Any]) -> Batch:
        inputs, mask = pad([list(ids) for ids, _ in examples], self.config.pad_id)
        targets, _ = pad([list(tags) for _, tags in examples], IGNORED)
        return Batch(inputs, mask, targets)

    def objective(self, output: Output, batch: Batch) -> Loss:
        return tagging(output, batch)

    # --- asking

    def evaluate(self, network: nn.Module) -> dict[str, float]:
        """Accuracy, the loss per word, and of names also F1. A tag that training never saw counts as wrong."""
        tables = Tagger(self.config, network, self.tokenizer, self.data.max_length).log_probs(
            [words for words, _ in self.valid]
        )
        gold = [tag for _, tags in self.valid for tag in tags]
        known = torch.tensor([self.number.get(tag, -1) for tag in gold])  # (N,)
        table = torch.cat(tables)  # (N, n)
        losses = -table[known >= 0].gather(1, known[known >= 0, None])  # (n, 1)
        found = self.scores([tags for _, tags in self.valid], [self.named(t) for t in tables])
        return {score.name: score.value for score in found} | ({"loss": losses.mean().item()} if losses.numel() else {})

    def named(self, table: Tensor) -> list[str]:
        """The likeliest tags, (words, n) -> words."""
        return [self.config.labels[i] for i in table.argmax(1).tolist()]

    def scores(self, gold: list[list[str]], found: list[list[str]]) -> list[Score]:
        """In per cent: the words with the right tag and, where tags tell of names, F1 of the names."""
        n = sum(map(len, gold))
        scores = [Score("accuracy", 100 * tag_accuracy(found, gold), "")]
        names = [Score("f1", 100 * entity_f1(found, gold), f"metric:f1|spans:exact|words:{n}")]
        return scores + (names if self.entities else [])

    def test(self, network: nn.Module, folder: Path, say: Say) -> dict[str, Any] | None:
        """All words of the test set, in a file with their tags and the model's."""
        if self.data.test is None:
            return None
        records, left_out = self.test_records(say)
        say_unknown(set(self.config.labels), records, "test", say)
        rows = sentences(records)
        tables = Tagger(self.config, network, self.tokenizer, self.data.max_length).log_probs(
            [words for words, _ in rows]
        )
        found = [self.named(table) for table in tables]
        columns = (zip(words, gold, tags, strict=True) for (words, gold), tags in zip(rows, found, strict=True))
        write_text(folder / TAGGED, "\n".join("".join("\t".join(row) + "\n" for row in block) for block in columns))
        gold = [tags for _, tags in rows]
        return {"examples": len(rows), "left_out": dict(left_out), "how": f"{sum(map(len, found)):,} words",
                "scores": [score.to_json() for score in self.scores(gold, found)],
                "report": self.by_class(gold, found)}  # fmt: skip

    def by_class(self, gold: list[list[str]], found: list[list[str]]) -> dict[str, Any]:
        """Precision, recall and F1 of every kind of entity, or else of every tag, and which are confused."""
        if self.entities:
            return entity_report(found, gold).to_json()
        return class_report(*([tag for tags in some for tag in tags] for some in (found, gold))).to_json()

    # --- telling

    def use(self, folder: str) -> tuple[str, str]:
        return f'echo "A short sentence." | qkv tag {folder}', 'model.tag(["A short sentence."])'


def sentences(records: Sequence[Record]) -> list[tuple[list[str], list[str]]]:
    """Records as words and tags."""
    return [(words.split("\t"), tags.split("\t")) for words, tags in records]


def looks_like_entities(labels: Sequence[str]) -> bool:
    """IOB2 or BIOES: O outside, B-PER at the beginning of a name, I-PER within it."""
    kinds = [re.fullmatch(r"O|([BIES])-\S+", label) for label in labels]
    return all(kinds) and any(kind and kind[1] in ("B", "S") for kind in kinds)


def say_unknown(labels: set[str], records: Sequence[Record], name: str, say: Say) -> None:
    """Tags of a held-out set that the training text has not: no answer can be right, and that is said."""
    tags = Counter(tag for _, row in records for tag in row.split("\t") if tag not in labels)
    if tags:
        shown = ", ".join(f"{tag!r}" for tag, _ in tags.most_common(5))
        say(
            f"{tags.total():,} words of the {name} set have tags that the training text never has ({shown}): counted as wrong"
        )
