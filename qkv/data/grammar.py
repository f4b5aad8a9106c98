"""The embedded default: English-German sentence pairs from a grammar of our own, with word alignments and tags.

The German is real German: three genders, four cases, strong, weak and mixed adjective endings, weak nouns, the finite
verb second in main clauses and last in subordinate ones, separable verbs, the perfect with haben or sein ("I ate an
apple" -> "Ich habe einen Apfel gegessen"). A pair is a function of (seed, number); which split it belongs to is a
function of its English text, so training and test never share a sentence.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import islice

from qkv.data import lexicon
from qkv.data.clauses import Adjunct, Clause, Nominal, Phrase, Pronoun, Token
from qkv.data.lexicon import Noun, Verb

Split = str  # "train", "valid" or "test"


@dataclass(frozen=True)
class Pair:
    """One sentence in both languages."""

    english: tuple[Token, ...]
    german: tuple[Token, ...]
    tense: str
    kind: str
    """statement, question or complex: labels for classification."""

    @property
    def source(self) -> str:
        return detokenise(self.english)

    @property
    def target(self) -> str:
        return detokenise(self.german)

    @property
    def alignment(self) -> list[tuple[int, int]]:
        """(English token, German token) pairs, as in the Pharaoh format 0-0 1-2."""
        return [
            (i, j)
            for i, a in enumerate(self.english)
            for j, b in enumerate(self.german)
            if not set(a.keys).isdisjoint(b.keys)
        ]


def detokenise(tokens: tuple[Token, ...]) -> str:
    """Words joined, no space before a mark, the first letter large."""
    text = "".join(t.text if t.tag == "PUNCT" else " " + t.text for t in tokens).strip()
    return text[:1].upper() + text[1:]


@dataclass
class Draft:
    """A pair whose German is not said before it is asked for: of most sentences only the split is wanted."""

    clause: Clause
    english: list[Token]
    german: Callable[[], list[Token]]
    mark: str
    kind: str

    @property
    def split(self) -> Split:
        return place_of(detokenise((*self.english, Token(self.mark, "PUNCT"))))

    def pair(self) -> Pair:
        """The closing mark; two commas in a row, or one before the mark, are one."""
        end = Token(self.mark, "PUNCT", ("mark",))
        both = [*self.german(), end]
        both = [t for i, t in enumerate(both) if not (t.text == "," and both[i + 1].tag == "PUNCT")]
        tense = "modal" if self.clause.modal else self.clause.tense
        return Pair((*self.english, end), tuple(both), tense, self.kind)


# --- choosing


class Grammar:
    """Sentence pairs by number. `Grammar(seed).pair(n)` is always the same pair."""

    def __init__(self, seed: int = 0):
        self.seed = seed
        self.pronouns = [tuple(row) for row in lexicon.lines(lexicon.PRONOUNS)]
        self.times = [tuple(t.split()) for t in lexicon.TIMES.split("|")]
        self.modals = [tuple(m.split()) for m in lexicon.MODALS.split("|")]
        self.knowing = [tuple(k.split()) for k in lexicon.KNOWING.split("|")]
        self.conjunctions = [tuple(c.split()) for c in lexicon.CONJUNCTIONS.split("|")]

    def pair(self, number: int) -> Pair:
        return self.draft(number).pair()

    def draft(self, number: int) -> Draft:
        r = random.Random(f"{self.seed}:{number}")
        shape = r.choices(["plain", "time first", "question", "because", "if first", "that"], [40, 15, 15, 12, 8, 10])[
            0
        ]
        first = self.clause(r, "a", timed=shape == "time first", simple=shape in ("because", "if first", "that"))
        if shape == "question":
            return Draft(first, first.english_question(), lambda: first.german(verb_first=True), "?", "question")
        if shape == "plain":
            return Draft(first, first.english(), first.german, ".", "statement")
        if shape == "time first":
            untimed = [t for t in first.english() if t not in first.english_time()]
            english = first.english_time() + untimed
            return Draft(first, english, lambda: first.german(time_first=True), ".", "statement")
        return self.complex(r, shape, first)

    def complex(self, r: random.Random, shape: str, first: Clause) -> Draft:
        """Two clauses: because ..., if ..., I know that ...."""
        comma = Token(",", "PUNCT")
        if shape == "that":
            who, (base, *german) = self.nominal(r, "k", {"person"}, simple=True), r.choice(self.knowing)
            knows = Token(base + "s" if who.person == 2 else base, "VERB", ("k.v",))
            that, dass = (Token(word, "SCONJ", ("that",)) for word in ("that", "dass"))
            weiss = Token(german[who.person], "VERB", ("k.v",))
            return Draft(first, [*who.english(), knows, that, *first.english()],
                         lambda: [*who.german("nom"), weiss, comma, dass, *first.german_last()], ".", "complex")  # fmt: skip
        second = self.clause(r, "b", simple=True)
        word, german_word = r.choice(self.conjunctions) if shape == "because" else self.conjunctions[-1]
        link, german_link = Token(word, "SCONJ", ("c",)), Token(german_word, "SCONJ", ("c",))
        if shape == "because":
            return Draft(first, [*first.english(), link, *second.english()],
                         lambda: [*first.german(), comma, german_link, *second.german_last()], ".", "complex")  # fmt: skip
        return Draft(first, [link, *second.english(), comma, *first.english()],
                     lambda: [german_link, *second.german_last(), comma, *first.german(verb_first=True)], ".", "complex")  # fmt: skip

    def clause(self, r: random.Random, key: str, timed: bool = False, simple: bool = False) -> Clause:
        verb = r.choice(lexicon.ALL_VERBS)
        subject = self.nominal(
            r, key + "s", {"person", "animal"} if verb.pattern == "none" else {"person"}, simple, subject=True
        )
        tense = r.choices(["present", "past", "future", "modal"], [4, 4, 1, 2])[0]
        tense = "present" if tense == "past" and verb.past == verb.base else tense  # "I read": which one?
        modal = r.choice(self.modals) if tense == "modal" else ()
        negated = r.random() < 0.15 and modal[:1] not in (("must",), ("can",))
        time = self.time(r, tense) if timed or r.random() < 0.2 else None
        indirect = direct = None
        if verb.pattern == "both":
            indirect = self.nominal(r, key + "i", {"person"}, True, unlike=subject)
        if verb.pattern in ("acc", "dat", "both"):
            direct = self.nominal(
                r, key + "o", set(verb.kinds), simple, unlike=subject, pronouns=verb.pattern != "both"
            )
        return Clause(
            key, subject, verb, tense, negated, indirect, direct, self.adjuncts(r, key, verb, simple), time, modal
        )

    def adjuncts(self, r: random.Random, key: str, verb: Verb, simple: bool) -> tuple[Adjunct, ...]:
        if verb.pattern == "go":
            place = self.nominal(r, key + "g", {"place"}, simple, pronouns=False)
            return (Adjunct("into", "in", "acc", place) if r.random() < 0.5 else Adjunct("to", "zu", "dat", place),)
        if simple or r.random() > 0.3:
            return ()
        if r.random() < 0.6:
            return (Adjunct("in", "in", "dat", self.nominal(r, key + "l", {"place"}, True, pronouns=False)),)
        return (Adjunct("with", "mit", "dat", self.nominal(r, key + "w", {"person"}, True, pronouns=False)),)

    def time(self, r: random.Random, tense: str) -> tuple[str, str]:
        excluded = {"past": lexicon.FUTURE_TIMES | {"now"}, "present": lexicon.PAST_TIMES | lexicon.FUTURE_TIMES}
        out = excluded.get(tense, lexicon.PAST_TIMES | {"now"})
        fits = [t for t in self.times if t[0] not in out]
        english, german = r.choice(fits)
        return english, german

    def nominal(self, r: random.Random, key: str, kinds: set[str], simple: bool = False, subject: bool = False,
                unlike: Nominal | None = None, pronouns: bool = True) -> Nominal:  # fmt: skip
        """A pronoun or a noun phrase of one of these kinds; never the same pronoun as the subject's."""
        if pronouns and "person" in kinds and r.random() < 0.4:
            taken = unlike.row[2] if isinstance(unlike, Pronoun) else ""
            return Pronoun(key, r.choice([p for p in self.pronouns if p[2] != taken]))
        noun = r.choice(nouns(frozenset(kinds)))
        plural = r.random() < 0.3
        english, stem, declension, _ = r.choice(determiners("p" if plural else "s"))
        determiner = (english, stem, declension)
        adjective = r.choice(adjectives(noun.kind)) if r.random() < (0.2 if simple else 0.4) else None
        owner = relative = None
        if not simple and determiner[0] == "the" and r.random() < 0.2:
            owner = self.owner(r, key + "w")
        elif subject and not simple and noun.kind == "person" and r.random() < 0.12:
            relative = self.relative(r, key + "r", Phrase(key, noun, plural, determiner))
        return Phrase(key, noun, plural, determiner, adjective, owner, relative)

    def owner(self, r: random.Random, key: str) -> Phrase:
        noun = r.choice(nouns(frozenset({"person"})))
        return Phrase(key, noun, r.random() < 0.2, ("the", "d", "der"))

    def relative(self, r: random.Random, key: str, whose: Phrase) -> Clause:
        verb = r.choice([v for v in lexicon.ALL_VERBS if v.pattern in ("none", "acc")])
        direct = self.nominal(r, key + "o", set(verb.kinds), True, pronouns=False) if verb.pattern == "acc" else None
        return Clause(
            key, whose, verb, "present" if verb.past == verb.base else r.choice(["present", "past"]), direct=direct
        )


@cache
def nouns(kinds: frozenset[str]) -> list[Noun]:
    return [noun for noun in lexicon.ALL_NOUNS if noun.kind in kinds]


@cache
def determiners(number: str) -> list[list[str]]:
    """Those of the singular (s) or the plural (p)."""
    return [row for row in lexicon.lines(lexicon.DETERMINERS) if number in row[3]]


@cache
def adjectives(kind: str) -> list[tuple[str, str]]:
    return [(english, german) for english, german, kinds in lexicon.ALL_ADJECTIVES if kind in kinds]


def split_of(pair: Pair) -> Split:
    """Which split a pair belongs to: that of its English text."""
    return place_of(pair.source)


def place_of(text: str) -> Split:
    """Which split a sentence belongs to, by its text alone: 2 % valid, 2 % test, whatever the seed."""
    place = hashlib.blake2b(text.encode(), digest_size=4).digest()
    number = int.from_bytes(place, "little") % 100
    return "valid" if number < 2 else "test" if number < 4 else "train"


def pairs(split: Split, seed: int = 0, start: int = 0) -> Iterator[Pair]:
    """The endless pairs of a split in order, from pair number `start` on."""
    grammar, number = Grammar(seed), start
    while True:
        draft = grammar.draft(number)
        if draft.split == split:
            yield draft.pair()
        number += 1


KEPT = 200_000
"""Generated sentences of a split that are kept for the next reading; about 40 MB."""


class Texts:
    """The endless pairs of a split as (English, German). The first ones are generated once, however often they are read: the
    vocabulary and the first epoch of a run need the same sentences."""

    def __init__(self, split: Split, seed: int):
        self.split, self.seed = split, seed
        self.kept: list[tuple[str, str]] = []
        self.new = self.generate()

    def generate(self) -> Iterator[tuple[str, str]]:
        return ((pair.source, pair.target) for pair in pairs(self.split, self.seed))

    def __iter__(self) -> Iterator[tuple[str, str]]:
        for place in range(KEPT):
            if place == len(self.kept):
                self.kept.append(next(self.new))
            yield self.kept[place]
        yield from islice(self.generate(), KEPT, None)


@cache
def texts(split: Split, seed: int = 0) -> Texts:
    """The sentences of a split, one object per process."""
    return Texts(split, seed)
