"""The embedded default: English-German sentence pairs from a built-in grammar, with word alignments and tags.

The German is real German: three genders, four cases, strong, weak and mixed adjective endings, weak nouns, the finite
verb second in main clauses and last in subordinate ones, separable verbs, the perfect with haben or sein ("I ate an
apple" -> "Ich habe einen Apfel gegessen"). A pair is a function of (seed, number); which split it belongs to is a
function of its English text, so training and test never share a sentence.
"""

from __future__ import annotations

import random
from array import array
from bisect import bisect
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from hashlib import blake2b, sha512
from itertools import count, pairwise
from typing import TypeVar

from qkv.data import lexicon
from qkv.data.clauses import COMMA, Adjunct, Clause, Nominal, Phrase, Pronoun, Token, token
from qkv.data.lexicon import Noun, Verb

Split = str  # "train", "valid" or "test"
T = TypeVar("T")


class Pair:
    """One sentence in both languages. German is generated on demand: most pairs are drawn for their split alone."""

    def __init__(self, english: tuple[Token, ...], make_german: Callable[[], list[Token]], tense: str, kind: str):
        self.english, self.make_german, self.tense = english, make_german, tense
        self.kind = kind
        """statement, question or complex: labels for classification."""
        self.source = detokenize(english)

    @property
    def german(self) -> tuple[Token, ...]:
        """The German tokens; of two commas in a row, or a comma before the closing mark, the first is left out."""
        mark = self.english[-1]
        tokens = pairwise([*self.make_german(), mark])
        return (*[one for one, following in tokens if one is not COMMA or following[1] != "PUNCT"], mark)

    @property
    def target(self) -> str:
        return detokenize(self.german)

    @property
    def alignment(self) -> list[tuple[int, int]]:
        """(English token, German token) pairs, as in the Pharaoh format 0-0 1-2."""
        german = list(enumerate(self.german))
        return [(i, j) for i, a in enumerate(self.english) for j, b in german if not set(a.keys).isdisjoint(b.keys)]


def detokenize(tokens: Iterable[Token]) -> str:
    """Join words with spaces, without one before a punctuation mark, and capitalize the first letter."""
    text = " ".join([token[0] for token in tokens]).replace(" ,", ",").replace(" .", ".").replace(" ?", "?")
    return text[:1].upper() + text[1:]


# --- random choices


class Choices(random.Random):
    """random.Random with faster choices, which come from the same numbers as its own."""

    def restart(self, key: str) -> None:
        """Begin the random numbers of a key, as random.Random(key) does."""
        data = key.encode()
        super().seed(int.from_bytes(data + sha512(data).digest(), "big"))

    def pick(self, options: Sequence[T]) -> T:
        count = len(options)
        bits = count.bit_length()
        number = self.getrandbits(bits)
        while number >= count:
            number = self.getrandbits(bits)
        return options[number]

    def weighted(self, options: Sequence[T], cumulative: Sequence[float]) -> T:
        """One of the options, with the probabilities whose running sum is proportional to `cumulative`."""
        return options[bisect(cumulative, self.random() * cumulative[-1], 0, len(options) - 1)]


# --- generation

RELATIVE_VERBS = [verb for verb in lexicon.ALL_VERBS if verb.pattern in ("none", "acc")]
SHAPES = ("plain", "time first", "question", "because", "if first", "that")
SHAPE_WEIGHTS = (40.0, 55.0, 70.0, 82.0, 90.0, 100.0)
TENSES = ("present", "past", "future", "modal")
TENSE_WEIGHTS = (4.0, 8.0, 9.0, 11.0)
"""Running sums."""
FULL_STOP, QUESTION_MARK = token(".", "PUNCT", "mark"), token("?", "PUNCT", "mark")
PERSON, PLACE = frozenset({"person"}), frozenset({"place"})
LIVING = frozenset({"person", "animal"})
THE = ("the", "d", "der")
MODALS, KNOWING, CONJUNCTIONS, TIMES = ([tuple(row.split()) for row in table.split("|")] for table in
                                        (lexicon.MODALS, lexicon.KNOWING, lexicon.CONJUNCTIONS, lexicon.TIMES))  # fmt: skip


class Grammar:
    """Sentence pairs by number. `Grammar(seed).pair(n)` is always the same pair."""

    def __init__(self, seed: int = 0):
        self.seed, self.random = seed, Choices()

    def pair(self, number: int) -> Pair:
        """The pair with this number, a function of (seed, number)."""
        r = self.random
        r.restart(f"{self.seed}:{number}")
        shape = r.weighted(SHAPES, SHAPE_WEIGHTS)
        simple = shape in ("because", "if first", "that")
        first = self.clause(r, "a", timed=shape == "time first", simple=simple)
        tense = "modal" if first.modal else first.tense
        if simple:
            return Pair(*self.join(r, shape, first), tense, "complex")
        if shape == "question":
            english = first.english_question()
            return Pair((*english, QUESTION_MARK), partial(first.german, verb_first=True), tense, shape)
        english = first.english()
        if shape == "plain":
            return Pair((*english, FULL_STOP), first.german, tense, "statement")
        time = first.english_time()
        english = [*time, *english[: -len(time)]]
        return Pair((*english, FULL_STOP), partial(first.german, time_first=True), tense, "statement")

    def join(self, r: Choices, shape: str, first: Clause) -> tuple[tuple[Token, ...], Callable[[], list[Token]]]:
        """Two clauses: because ..., if ..., I know that ...."""
        if shape == "that":
            who, (base, *german) = self.nominal(r, "k", PERSON, simple=True), r.pick(KNOWING)
            knows = token(base + "s" if who.person == 2 else base, "VERB", "k.v")
            that, dass = token("that", "SCONJ", "that"), token("dass", "SCONJ", "that")
            weiss = token(german[who.person], "VERB", "k.v")
            return ((*who.english(), knows, that, *first.english(), FULL_STOP),
                    lambda: [*who.german("nom"), weiss, COMMA, dass, *first.german_last()])  # fmt: skip
        second = self.clause(r, "b", simple=True)
        word, german_word = r.pick(CONJUNCTIONS) if shape == "because" else CONJUNCTIONS[-1]
        link, german_link = token(word, "SCONJ", "c"), token(german_word, "SCONJ", "c")
        if shape == "because":
            return ((*first.english(), link, *second.english(), FULL_STOP),
                    lambda: [*first.german(), COMMA, german_link, *second.german_last()])  # fmt: skip
        return ((link, *second.english(), COMMA, *first.english(), FULL_STOP),
                lambda: [german_link, *second.german_last(), COMMA, *first.german(verb_first=True)])  # fmt: skip

    def clause(self, r: Choices, key: str, timed: bool = False, simple: bool = False) -> Clause:
        verb = r.pick(lexicon.ALL_VERBS)
        subject = self.nominal(r, key + "s", LIVING if verb.pattern == "none" else PERSON, simple, subject=True)
        tense = r.weighted(TENSES, TENSE_WEIGHTS)
        tense = "present" if tense == "past" and verb.past == verb.base else tense  # "I read": which one?
        modal = r.pick(MODALS) if tense == "modal" else ()
        negated = r.random() < 0.15 and modal[:1] not in (("must",), ("can",))
        time = r.pick(times_of(tense)) if timed or r.random() < 0.2 else None
        indirect = direct = None
        if verb.pattern == "both":
            indirect = self.nominal(r, key + "i", PERSON, True, unlike=subject)
        if verb.pattern in ("acc", "dat", "both"):
            direct = self.nominal(r, key + "o", verb.kinds, simple, unlike=subject, pronouns=verb.pattern != "both")
        adjuncts = self.adjuncts(r, key, verb, simple)
        return Clause(key, subject, verb, tense, negated, indirect, direct, adjuncts, time, modal)

    def adjuncts(self, r: Choices, key: str, verb: Verb, simple: bool) -> tuple[Adjunct, ...]:
        if verb.pattern == "go":
            place = self.nominal(r, key + "g", PLACE, simple, pronouns=False)
            return (Adjunct("into", "in", "acc", place) if r.random() < 0.5 else Adjunct("to", "zu", "dat", place),)
        if simple or r.random() > 0.3:
            return ()
        if r.random() < 0.6:
            return (Adjunct("in", "in", "dat", self.nominal(r, key + "l", PLACE, True, pronouns=False)),)
        return (Adjunct("with", "mit", "dat", self.nominal(r, key + "w", PERSON, True, pronouns=False)),)

    def nominal(self, r: Choices, key: str, kinds: frozenset[str], simple: bool = False, subject: bool = False,
                unlike: Nominal | None = None, pronouns: bool = True) -> Nominal:  # fmt: skip
        """A pronoun or a noun phrase of one of these kinds; never the same pronoun as the subject's."""
        if pronouns and "person" in kinds and r.random() < 0.4:
            taken = unlike.row[2] if isinstance(unlike, Pronoun) else ""
            return Pronoun(key, r.pick(pronouns_but(taken)))
        noun = r.pick(nouns(kinds))
        plural = r.random() < 0.3
        determiner = r.pick(determiners("p" if plural else "s"))
        adjective = r.pick(adjectives(noun.kind)) if r.random() < (0.2 if simple else 0.4) else None
        owner = relative = None
        if not simple and determiner[0] == "the" and r.random() < 0.2:
            owner = Phrase(key + "w", r.pick(nouns(PERSON)), r.random() < 0.2, THE)
        elif subject and not simple and noun.kind == "person" and r.random() < 0.12:
            relative = self.relative(r, key + "r", Phrase(key, noun, plural, determiner))
        return Phrase(key, noun, plural, determiner, adjective, owner, relative)

    def relative(self, r: Choices, key: str, whose: Phrase) -> Clause:
        verb = r.pick(RELATIVE_VERBS)
        direct = self.nominal(r, key + "o", verb.kinds, True, pronouns=False) if verb.pattern == "acc" else None
        tense = "present" if verb.past == verb.base else r.pick(["present", "past"])
        return Clause(key, whose, verb, tense, direct=direct)


@cache
def nouns(kinds: frozenset[str]) -> list[Noun]:
    return [noun for noun in lexicon.ALL_NOUNS if noun.kind in kinds]


@cache
def pronouns_but(taken: str) -> list[tuple[str, ...]]:
    """All but those of one person and number."""
    return [tuple(row) for row in lexicon.lines(lexicon.PRONOUNS) if row[2] != taken]


@cache
def determiners(number: str) -> list[tuple[str, str, str]]:
    """Those of the singular (s) or the plural (p): English, German stem, declension."""
    rows = lexicon.lines(lexicon.DETERMINERS)
    return [(english, stem, declension) for english, stem, declension, numbers in rows if number in numbers]


@cache
def times_of(tense: str) -> list[tuple[str, str]]:
    """Times that a clause of this tense can have: nothing happens tomorrow in the past."""
    excluded = {"past": lexicon.FUTURE_TIMES | {"now"}, "present": lexicon.PAST_TIMES | lexicon.FUTURE_TIMES}
    out = excluded.get(tense, lexicon.PAST_TIMES | {"now"})
    return [(english, german) for english, german in TIMES if english not in out]


@cache
def adjectives(kind: str) -> list[tuple[str, str]]:
    return [(english, german) for english, german, kinds in lexicon.ALL_ADJECTIVES if kind in kinds]


def split_of(text: str) -> Split:
    """The split of a sentence, by its English text alone: 2 % valid, 2 % test, whatever the seed."""
    number = int.from_bytes(blake2b(text.encode(), digest_size=4).digest(), "little") % 100
    return "valid" if number < 2 else "test" if number < 4 else "train"


SPLITS = ("train", "valid", "test")
MAX_KEPT = 200_000
"""Texts of a split that are kept for the next pass; about 40 MB."""


class GrammarTexts:
    """The endless pairs of a seed, by split. One pass over the numbers finds the pairs of all splits, and the first texts of
    each split are kept: the tokenizer and the first epoch of a run read the same ones."""

    def __init__(self, seed: int):
        self.grammar, self.drawn = Grammar(seed), 0
        self.numbers = {split: array("Q") for split in SPLITS}
        """The numbers of the pairs that were drawn so far."""
        self.texts: dict[Split, list[tuple[str, str]]] = {split: [] for split in SPLITS}

    def pair(self, split: Split, index: int) -> Pair:
        """Pair `index` of a split."""
        while index >= len(self.numbers[split]):
            pair = self.grammar.pair(self.drawn)
            found = split_of(pair.source)
            self.numbers[found].append(self.drawn)
            self.drawn += 1
            if found == split and index < len(self.numbers[split]):
                return pair
        return self.grammar.pair(self.numbers[split][index])

    def read(self, split: Split, start: int, stop: int) -> Iterator[tuple[str, str]]:
        """(English, German) of the pairs from `start` to `stop`."""
        texts = self.texts[split]
        for index in range(start, stop):
            if index < len(texts):
                yield texts[index]
                continue
            pair = self.pair(split, index)
            text = pair.source, pair.target
            if index == len(texts) < MAX_KEPT:
                texts.append(text)
            yield text


@cache
def sentences(seed: int = 0) -> GrammarTexts:
    """The sentences of a seed, one object per process."""
    return GrammarTexts(seed)


def pairs(split: Split, seed: int = 0) -> Iterator[Pair]:
    """The endless pairs of a split, in order."""
    return (sentences(seed).pair(split, index) for index in count())
