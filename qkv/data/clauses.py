"""Phrases and clauses that can be said in English and in German, word for word accounted for.

Every token carries the keys of what it expresses; two tokens with a key in common are aligned.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from qkv.data.german import ARTICLE, BE, CONTRACTED, HAVE, WILL, adjective_ending, conjugate, determiner_form, noun_form
from qkv.data.lexicon import Noun, Verb


@dataclass(frozen=True)
class Token:
    """A word, its universal part of speech, and the keys of what it expresses."""

    text: str
    tag: str
    keys: tuple[str, ...] = ()


@dataclass(frozen=True)
class Phrase:
    """A noun phrase: determiner, adjective, noun, of whom, who does what. `key` tells it from the others."""

    key: str
    noun: Noun
    plural: bool
    determiner: tuple[str, str, str]
    adjective: tuple[str, str] | None = None
    owner: Phrase | None = None
    relative: Clause | None = None

    pronoun = False
    person = property(lambda self: 3 if self.plural else 2)
    indefinite = property(lambda self: self.determiner[0] in ("a", "-"))

    def english(self, case: str = "nom") -> list[Token]:
        word, k = self.noun.english[self.plural], self.key
        article = self.determiner[0]
        if article == "a" and (self.adjective[0] if self.adjective else word)[0] in "aeiou":
            article = "an"
        tokens = [] if article == "-" else [Token(article, "DET", (k + ".d",))]
        tokens += [Token(self.adjective[0], "ADJ", (k + ".a",))] if self.adjective else []
        tokens.append(Token(word, "NOUN", (k + ".n",)))
        if self.owner:
            tokens += [Token("of", "ADP", (self.owner.key + ".d",)), *self.owner.english()]
        if self.relative:
            tokens += [Token("who", "PRON", (k + ".r",)), *self.relative.english_verb_phrase()]
        return tokens

    def german(self, case: str, negated: bool = False) -> list[Token]:
        _, stem, declension = self.determiner
        gender, k = "p" if self.plural else self.noun.gender, self.key
        keys: tuple[str, ...] = (k + ".d",)
        if negated:  # not a -> kein
            stem, declension, keys = "kein", "ein", (k + ".d", "not")
        tokens = [] if stem == "-" else [Token(determiner_form(stem, declension, case, gender), "DET", keys)]
        if self.adjective:
            tokens.append(Token(self.adjective[1] + adjective_ending(declension, case, gender), "ADJ", (k + ".a",)))
            if self.adjective[1].endswith("e"):  # müde, müder: one e
                tokens[-1] = Token(
                    self.adjective[1][:-1] + adjective_ending(declension, case, gender), "ADJ", (k + ".a",)
                )
        tokens.append(Token(noun_form(self.noun, self.plural, case), "NOUN", (k + ".n",)))
        if self.owner:
            tokens += self.owner.german("gen")
        if self.relative:
            who = Token(ARTICLE["nom"][gender], "PRON", (k + ".r",))
            tokens += [Token(",", "PUNCT"), who, *self.relative.german_last(with_subject=False), Token(",", "PUNCT")]
        return tokens


@dataclass(frozen=True)
class Pronoun:
    """I, you, he, she, we, they."""

    key: str
    row: tuple[str, ...]

    pronoun = True
    indefinite = False
    person = property(lambda self: 3 if self.row[2][1] == "p" else int(self.row[2][0]) - 1)

    def english(self, case: str = "nom") -> list[Token]:
        return [Token(self.row[0] if case == "nom" else self.row[3], "PRON", (self.key + ".n",))]

    def german(self, case: str, negated: bool = False) -> list[Token]:
        word = self.row[{"nom": 1, "acc": 4, "dat": 5}[case]]
        return [Token(word, "PRON", (self.key + ".n",))]


Nominal = Phrase | Pronoun


@dataclass(frozen=True)
class Adjunct:
    """A preposition with its phrase: in the garden / im Garten."""

    english_word: str
    german_word: str
    case: str
    phrase: Nominal

    def english(self) -> list[Token]:
        return [Token(self.english_word, "ADP", (self.phrase.key + ".p",)), *self.phrase.english("acc")]

    def german(self) -> list[Token]:
        first, *rest = self.phrase.german(self.case)
        joined = CONTRACTED.get((self.german_word, first.text))
        if joined and first.tag == "DET":
            return [Token(joined, "ADP", (self.phrase.key + ".p", *first.keys)), *rest]
        return [Token(self.german_word, "ADP", (self.phrase.key + ".p",)), first, *rest]


# --- clauses


@dataclass(frozen=True)
class Clause:
    """Who does what to whom, when and where; it can be said in any order that either language asks for."""

    key: str
    subject: Nominal
    verb: Verb
    tense: str
    """present, past, future, or an English modal."""
    negated: bool = False
    indirect: Nominal | None = None
    direct: Nominal | None = None
    adjuncts: tuple[Adjunct, ...] = ()
    time: tuple[str, str] | None = None
    modal: tuple[str, ...] = field(default=())

    # --- English

    def auxiliary(self) -> tuple[list[str], str]:
        """Helping words and the form of the verb: does not eat -> ["does"], "eat"."""
        third = self.subject.person == 2
        if self.tense == "future":
            return ["will"], self.verb.base
        if self.modal and self.modal[0] != "want":
            return [self.modal[0]], self.verb.base
        if self.modal:
            return [], ("wants" if third else "want") + "_to_" + self.verb.base
        if self.tense == "past":
            return [], self.verb.past
        return [], self.verb.third if third else self.verb.base

    def helped(self) -> tuple[list[str], str]:
        """The same with do, which questions and negations need."""
        helpers, form = self.auxiliary()
        if helpers:
            return helpers, form
        do = "did" if self.tense == "past" else "does" if self.subject.person == 2 else "do"
        return [do], ("want_to_" if self.modal else "") + self.verb.base

    def english_verb_phrase(self, helpers: list[str] | None = None, form: str = "") -> list[Token]:
        """Everything after the subject; in a question the helping word has gone to the front."""
        if helpers is None:
            helpers, form = self.helped() if self.negated else self.auxiliary()
        tokens = [Token(h, "AUX", (self.key + ".aux",)) for h in helpers]
        if self.negated:
            tokens.append(Token("not", "PART", ("not", self.key + ".not")))
        words, particle = english_verb(form, self.verb.base)
        tokens += [
            Token(w, "VERB", (self.modal_key if w in ("want", "wants", "to") else self.key + ".v",)) for w in words
        ]
        for nominal, case in ((self.indirect, "dat"), (self.direct, "acc")):
            tokens += nominal.english(case) if nominal else []
        tokens += [Token(particle, "ADP", (self.key + ".v",))] if particle else []
        return tokens + [t for a in self.adjuncts for t in a.english()] + self.english_time()

    @property
    def modal_key(self) -> str:
        return self.key + ".aux"

    def english_time(self) -> list[Token]:
        return times(self.time[0], self.key) if self.time else []

    def english(self) -> list[Token]:
        return self.subject.english() + self.english_verb_phrase()

    def english_question(self) -> list[Token]:
        helpers, form = self.helped()
        front = [Token(h, "AUX", (self.key + ".aux",)) for h in helpers]
        return front + self.subject.english() + self.english_verb_phrase([], form)

    # --- German

    def german_verbs(self) -> tuple[Token, list[Token]]:
        """The finite verb and what closes the clause: habe ... gegessen, macht ... auf, kann ... essen."""
        v, person, prefix = self.key + ".v", self.subject.person, self.verb.prefix
        aux = (self.key + ".aux",)
        if self.modal:
            return Token(self.modal[1:][person], "AUX", aux), [Token(prefix + self.verb.infinitive, "VERB", (v,))]
        if self.tense == "future":
            return Token(WILL[person], "AUX", aux), [Token(prefix + self.verb.infinitive, "VERB", (v,))]
        if self.tense == "past":
            helper = (BE if self.verb.to_be else HAVE)[person]
            return Token(helper, "AUX", (v, *aux)), [Token(self.verb.participle, "VERB", (v,))]
        finite = Token(conjugate(self.verb, person), "VERB", (v, *aux))
        return finite, [Token(prefix, "ADP", (v,))] if prefix else []

    def german_middle(self, with_time: bool = True) -> list[Token]:
        """Pronouns, time, persons, things, nicht, places."""
        objects = [(self.indirect, "dat"), (self.direct, "dat" if self.verb.pattern == "dat" else "acc")]
        light = [t for n, case in sorted(objects, key=lambda o: o[1]) if n and n.pronoun for t in n.german(case)]
        kein = self.negated and self.direct is not None and self.direct.indefinite
        heavy = [t for n, case in objects if n and not n.pronoun for t in n.german(case, kein and n is self.direct)]
        nicht = [Token("nicht", "PART", ("not", self.key + ".not"))] if self.negated and not kein else []
        time = times(self.time[1], self.key) if self.time and with_time else []
        return light + time + heavy + nicht + [t for a in self.adjuncts for t in a.german()]

    def german(self, time_first: bool = False, verb_first: bool = False) -> list[Token]:
        """Main clause: the finite verb second (first in a question), the rest of the verb last."""
        finite, tail = self.german_verbs()
        subject = self.subject.german("nom")
        if verb_first:
            return [finite, *subject, *self.german_middle(), *tail]
        if time_first and self.time:
            return [*times(self.time[1], self.key), finite, *subject, *self.german_middle(with_time=False), *tail]
        return [*subject, finite, *self.german_middle(), *tail]

    def german_last(self, with_subject: bool = True) -> list[Token]:
        """Subordinate clause: the finite verb last, a separable prefix in front of it again."""
        finite, tail = self.german_verbs()
        if tail and tail[0].tag == "ADP":
            finite, tail = Token(tail[0].text + finite.text, "VERB", finite.keys), []
        subject = self.subject.german("nom") if with_subject else []
        return [*subject, *self.german_middle(), *tail, finite]


def english_verb(form: str, base: str) -> tuple[list[str], str]:
    """Words of the verb and the particle that goes behind the object: picks the guest up, but looks for the guest."""
    words = form.split("_")
    if base.rpartition("_")[2] in ("up", "along", "aloud"):
        return words[:-1], words[-1]
    return words, ""


def times(words: str, key: str) -> list[Token]:
    """in the evening / am Abend: the last words belong together, and what leads up to them."""
    *lead, last = words.split("_")
    return [*(Token(w, "ADP", (key + ".at",)) for w in lead), Token(last, "NOUN" if lead else "ADV", (key + ".t",))]
