"""Phrases and clauses that can be expressed in English and in German, with the alignment of every word.

Every token carries the keys of what it expresses; two tokens with a key in common are aligned.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from qkv.data.german import ARTICLE, BE, CONTRACTED, HAVE, WILL, adjective_form, conjugate, determiner_form, noun_form
from qkv.data.lexicon import Noun, Verb


class Token(NamedTuple):
    """A word, its universal part of speech, and the keys of what it expresses."""

    text: str
    tag: str
    keys: tuple[str, ...] = ()


@cache
def token(text: str, tag: str, *keys: str) -> Token:
    """A token; the same words recur in the same roles, so each is made once."""
    return Token(text, tag, keys)


COMMA = Token(",", "PUNCT")


class Phrase(NamedTuple):
    """A noun phrase: determiner, adjective, noun, owner, relative clause. `key` is unique within a sentence."""

    key: str
    noun: Noun
    plural: bool
    determiner: tuple[str, str, str]
    adjective: tuple[str, str] | None = None
    owner: Phrase | None = None
    relative: Clause | None = None

    @property
    def person(self) -> int:
        """0 I, 1 you, 2 he, she or it, 3 we or they."""
        return 3 if self.plural else 2

    @property
    def indefinite(self) -> bool:
        return self.determiner[0] in ("a", "-")

    def english(self, case: str = "nom") -> list[Token]:
        key, noun, plural, (article, _, _), adjective, owner, relative = self
        word = noun.english[plural]
        tokens = []
        if article != "-":
            vowel = article == "a" and (adjective[0] if adjective else word)[0] in "aeiou"
            tokens.append(token("an" if vowel else article, "DET", key + ".d"))
        if adjective:
            tokens.append(token(adjective[0], "ADJ", key + ".a"))
        tokens.append(token(word, "NOUN", key + ".n"))
        if owner:
            tokens += [token("of", "ADP", owner.key + ".d"), *owner.english()]
        if relative:
            tokens += [token("who", "PRON", key + ".r"), *relative.english_verb_phrase()]
        return tokens

    def german(self, case: str, negated: bool = False) -> list[Token]:
        key, noun, plural, (_, stem, declension), adjective, owner, relative = self
        gender = "p" if plural else noun.gender
        tokens = []
        if negated:  # not a -> kein
            declension = "ein"
            tokens.append(token(determiner_form("kein", "ein", case, gender), "DET", key + ".d", "not"))
        elif stem != "-":
            tokens.append(token(determiner_form(stem, declension, case, gender), "DET", key + ".d"))
        if adjective:
            tokens.append(token(adjective_form(adjective[1], declension, case, gender), "ADJ", key + ".a"))
        tokens.append(token(noun_form(noun, plural, case), "NOUN", key + ".n"))
        if owner:
            tokens += owner.german("gen")
        if relative:
            who = token(ARTICLE["nom"][gender], "PRON", key + ".r")
            tokens += [COMMA, who, *relative.german_last(with_subject=False), COMMA]
        return tokens


class Pronoun(NamedTuple):
    """I, you, he, she, we, they."""

    key: str
    row: tuple[str, ...]

    @property
    def person(self) -> int:
        return 3 if self.row[2][1] == "p" else int(self.row[2][0]) - 1

    @property
    def indefinite(self) -> bool:
        return False

    def english(self, case: str = "nom") -> list[Token]:
        return [token(self.row[0] if case == "nom" else self.row[3], "PRON", self.key + ".n")]

    def german(self, case: str, negated: bool = False) -> list[Token]:
        word = self.row[1 if case == "nom" else 4 if case == "acc" else 5]
        return [token(word, "PRON", self.key + ".n")]


Nominal = Phrase | Pronoun


class Adjunct(NamedTuple):
    """A preposition with its phrase: in the garden / im Garten."""

    english_word: str
    german_word: str
    case: str
    phrase: Nominal

    def english(self) -> list[Token]:
        return [token(self.english_word, "ADP", self.phrase.key + ".p"), *self.phrase.english("acc")]

    def german(self) -> list[Token]:
        first, *rest = self.phrase.german(self.case)
        contracted = CONTRACTED.get((self.german_word, first.text))
        if contracted and first.tag == "DET":
            return [token(contracted, "ADP", self.phrase.key + ".p", *first.keys), *rest]
        return [token(self.german_word, "ADP", self.phrase.key + ".p"), first, *rest]


# --- clauses


class Clause(NamedTuple):
    """Who does what to whom, when and where; it can be expressed in the word order of either language."""

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
    modal: tuple[str, ...] = ()

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
        """Everything after the subject; in a question the auxiliary has moved to the front."""
        key, verb = self.key, self.key + ".v"
        if helpers is None:
            helpers, form = self.helped() if self.negated else self.auxiliary()
        tokens = [token(helper, "AUX", key + ".aux") for helper in helpers]
        if self.negated:
            tokens.append(token("not", "PART", "not", key + ".not"))
        words, particle = english_verb(form, self.verb.base)
        tokens += [token(w, "VERB", key + ".aux" if w in ("want", "wants", "to") else verb) for w in words]
        if self.indirect:
            tokens += self.indirect.english("dat")
        if self.direct:
            tokens += self.direct.english("acc")
        if particle:
            tokens.append(token(particle, "ADP", verb))
        for adjunct in self.adjuncts:
            tokens += adjunct.english()
        return tokens + self.english_time()

    def english_time(self) -> list[Token]:
        return times(self.time[0], self.key) if self.time else []

    def english(self) -> list[Token]:
        return self.subject.english() + self.english_verb_phrase()

    def english_question(self) -> list[Token]:
        helpers, form = self.helped()
        front = [token(helper, "AUX", self.key + ".aux") for helper in helpers]
        return front + self.subject.english() + self.english_verb_phrase([], form)

    # --- German

    def german_verbs(self) -> tuple[Token, list[Token]]:
        """The finite verb and what closes the clause: habe ... gegessen, macht ... auf, kann ... essen."""
        verb, person, v, aux = self.verb, self.subject.person, self.key + ".v", self.key + ".aux"
        if self.modal or self.tense == "future":
            helper = (self.modal[1:] or WILL)[person]
            return token(helper, "AUX", aux), [token(verb.prefix + verb.infinitive, "VERB", v)]
        if self.tense == "past":
            helper = (BE if verb.to_be else HAVE)[person]
            return token(helper, "AUX", v, aux), [token(verb.participle, "VERB", v)]
        finite = token(conjugate(verb, person), "VERB", v, aux)
        return finite, [token(verb.prefix, "ADP", v)] if verb.prefix else []

    def german_middle(self, with_time: bool = True) -> list[Token]:
        """Pronouns, time, persons, things, nicht, places."""
        direct, indirect = self.direct, self.indirect
        tokens: list[Token] = []
        case = "dat" if self.verb.pattern == "dat" else "acc"
        kein = self.negated and direct is not None and direct.indefinite
        if isinstance(direct, Pronoun):
            tokens += direct.german(case)
        if isinstance(indirect, Pronoun):
            tokens += indirect.german("dat")
        if self.time and with_time:
            tokens += times(self.time[1], self.key)
        if isinstance(indirect, Phrase):
            tokens += indirect.german("dat")
        if isinstance(direct, Phrase):
            tokens += direct.german(case, kein)
        if self.negated and not kein:
            tokens.append(token("nicht", "PART", "not", self.key + ".not"))
        for adjunct in self.adjuncts:
            tokens += adjunct.german()
        return tokens

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
            finite, tail = token(tail[0].text + finite.text, "VERB", *finite.keys), []
        subject = self.subject.german("nom") if with_subject else []
        return [*subject, *self.german_middle(), *tail, finite]


@cache
def english_verb(form: str, base: str) -> tuple[list[str], str]:
    """Words of the verb and the particle that goes behind the object: picks the guest up, but looks for the guest."""
    words = form.split("_")
    if base.rpartition("_")[2] in ("up", "along", "aloud"):
        return words[:-1], words[-1]
    return words, ""


@cache
def times(words: str, key: str) -> list[Token]:
    """in the evening / am Abend: the last words belong together, and what leads up to them."""
    *lead, last = words.split("_")
    return [*(token(w, "ADP", key + ".at") for w in lead), token(last, "NOUN" if lead else "ADV", key + ".t")]
