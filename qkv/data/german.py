"""German forms: declension of determiners, adjectives and nouns by gender and case, conjugation of verbs."""

from __future__ import annotations

from functools import cache

from qkv.data.lexicon import Noun, Verb

# endings by gender (m f n p) for each case

STRONG = {  # dieser, and adjectives without an article
    "nom": {"m": "er", "f": "e", "n": "es", "p": "e"},
    "acc": {"m": "en", "f": "e", "n": "es", "p": "e"},
    "dat": {"m": "em", "f": "er", "n": "em", "p": "en"},
    "gen": {"m": "es", "f": "er", "n": "es", "p": "er"},
}
ARTICLE = {  # der
    "nom": {"m": "der", "f": "die", "n": "das", "p": "die"},
    "acc": {"m": "den", "f": "die", "n": "das", "p": "die"},
    "dat": {"m": "dem", "f": "der", "n": "dem", "p": "den"},
    "gen": {"m": "des", "f": "der", "n": "des", "p": "der"},
}
CONTRACTED = {("in", "dem"): "im", ("in", "das"): "ins", ("zu", "dem"): "zum", ("zu", "der"): "zur"}
HAVE = ("habe", "hast", "hat", "haben")
BE = ("bin", "bist", "ist", "sind")
WILL = ("werde", "wirst", "wird", "werden")


@cache
def determiner_form(stem: str, declension: str, case: str, gender: str) -> str:
    """den, diesen, einen, mein: an ein-word has no ending where only STRONG would tell masculine from neuter."""
    if stem == "d":
        return ARTICLE[case][gender]
    bare = declension == "ein" and (case == "nom" and gender in "mn" or case == "acc" and gender == "n")
    return stem + ("" if bare else STRONG[case][gender])


def adjective_ending(declension: str, case: str, gender: str) -> str:
    """The ending shows gender and case where the determiner does not."""
    bare = case == "nom" and gender in "mn" or case == "acc" and gender == "n"
    if declension == "none" or declension == "ein" and bare:
        return "en" if case == "gen" and gender in "mn" else STRONG[case][gender]
    return "e" if gender != "p" and (case == "nom" or case == "acc" and gender in "fn") else "en"


@cache
def adjective_form(stem: str, declension: str, case: str, gender: str) -> str:
    """alter, alten; of a stem in e, that e is the ending's: müde, müder."""
    return stem.removesuffix("e") + adjective_ending(declension, case, gender)


@cache
def noun_form(noun: Noun, plural: bool, case: str) -> str:
    """Kindern, Kindes, den Jungen."""
    word = noun.german[plural]
    if plural:
        return word + "n" if case == "dat" and word[-1] not in "ns" else word
    if noun.weak:
        return word if case == "nom" else noun.german[1]
    if case == "gen" and noun.gender in "mn":
        return word + ("es" if word[-1] in "sßz" or syllables(word) == 1 else "s")
    return word


def syllables(word: str) -> int:
    vowels = [c in "aeiouyäöüAEIOUÄÖÜ" for c in word]
    return sum(v and not (i and vowels[i - 1]) for i, v in enumerate(vowels))


@cache
def conjugate(verb: Verb, person: int) -> str:
    """Present tense: 0 ich, 1 du, 2 er, 3 wir or sie. du borrows the third person's vowel: liest, schläfst."""
    stem = verb.german_third[:-1]
    second = stem + ("t" if stem[-1] in "sßz" else "st")
    return (verb.infinitive[:-1], second, verb.german_third, verb.infinitive)[person]
