"""The embedded grammar: its German, its alignments, its splits."""

import hashlib
import itertools
import re
from collections import Counter

import pytest
from pydantic import ValidationError

from qkv.config import CorpusConfig, DataConfig
from qkv.data import grammar
from qkv.data.casual import PAIRS
from qkv.data.clauses import Clause, Phrase, Pronoun
from qkv.data.corpora import training
from qkv.data.german import ARTICLE, adjective_ending, conjugate, noun_form
from qkv.data.grammar import Grammar, pairs, split_of
from qkv.data.lexicon import ALL_NOUNS, ALL_VERBS
from qkv.data.sources import GrammarSource
from qkv.errors import ConfigError
from tests.schemas import schema_of

NOUN = {n.english[0]: n for n in ALL_NOUNS}
VERB = {v.base: v for v in ALL_VERBS}
I = Pronoun("s", ("I", "ich", "1s", "me", "mich", "mir"))  # noqa: E741
A, THE, MY, BARE = ("a", "ein", "ein"), ("the", "d", "der"), ("my", "mein", "ein"), ("-", "-", "none")


def words(tokens: list) -> str:
    return " ".join(t.text for t in tokens)


def test_i_ate_an_apple() -> None:
    clause = Clause("c", I, VERB["eat"], "past", direct=Phrase("o", NOUN["apple"], False, A))
    assert words(clause.english()) == "I ate an apple"
    assert words(clause.german()) == "ich habe einen Apfel gegessen"
    assert words(clause.german_last()) == "ich einen Apfel gegessen habe"
    assert words(clause.german(verb_first=True)) == "habe ich einen Apfel gegessen"


@pytest.mark.parametrize(
    ("determiner", "noun", "case", "german"),
    [
        (THE, "man", "nom", "der alte Mann"), (THE, "man", "acc", "den alten Mann"), (THE, "man", "gen", "des alten Mannes"),
        (A, "man", "nom", "ein alter Mann"), (A, "child", "acc", "ein altes Kind"), (MY, "woman", "dat", "meiner alten Frau"),
        (BARE, "child", "dat", "alten Kindern"), (BARE, "woman", "nom", "alte Frauen"), (THE, "boy", "dat", "dem alten Jungen"),
        (THE, "student", "gen", "des alten Studenten"), (THE, "teacher", "gen", "des alten Lehrers"),
    ],
)  # fmt: skip
def test_declension(determiner: tuple[str, str, str], noun: str, case: str, german: str) -> None:
    phrase = Phrase("k", NOUN[noun], determiner is BARE, determiner, ("old", "alt"))
    assert words(phrase.german(case)) == german


@pytest.mark.parametrize(
    ("verb", "forms"),
    [("eat", "esse isst isst essen"), ("read", "lese liest liest lesen"), ("work", "arbeite arbeitest arbeitet arbeiten"),
     ("sleep", "schlafe schläfst schläft schlafen"), ("invite", "lade lädst lädt laden"), ("dance", "tanze tanzt tanzt tanzen")],
)  # fmt: skip
def test_conjugation(verb: str, forms: str) -> None:
    assert " ".join(conjugate(VERB[verb], person) for person in range(4)) == forms


def test_separable_verbs_part_and_meet_again() -> None:
    clause = Clause("c", I, VERB["open"], "present", direct=Phrase("o", NOUN["door"], False, THE))
    assert words(clause.german()) == "ich mache die Tür auf"
    assert words(clause.german_last()) == "ich die Tür aufmache"


def test_somebody_always_shows_the_case() -> None:
    """Dative and genitive adjectives after any determiner end in -en; after der-words only -e or -en occur."""
    for case, gender in itertools.product(ARTICLE, "mfnp"):
        assert adjective_ending("der", case, gender) in ("e", "en")
        if case in ("dat", "gen"):
            assert adjective_ending("ein", case, gender) == "en"
    assert noun_form(NOUN["car"], True, "dat") == "Autos"


def test_pairs_are_a_function_of_seed_and_number() -> None:
    both = lambda seed, number: (pair := Grammar(seed).pair(number)).english + pair.german  # noqa: E731
    one = Grammar(3)
    assert [one.pair(i).english + one.pair(i).german for i in (7, 5)] == [both(3, 7), both(3, 5)]
    assert both(3, 5) != both(4, 5)


def test_sentences_stay_the_same() -> None:
    """The shipped model was trained on them, and a run is only continued with the text that it began with."""
    digest = hashlib.sha256()
    for seed, number in itertools.product((0, 7), range(1000)):
        pair = Grammar(seed).pair(number)
        links = " ".join(f"{i}-{j}" for i, j in pair.alignment)
        tags = " ".join(token.tag for token in (*pair.english, *pair.german))
        digest.update("\n".join((pair.source, pair.target, pair.tense, pair.kind, links, tags)).encode())
    assert digest.hexdigest() == "4dede017b926dc291735fd1b64aba9d952c0c12f9ebaf217a9972dbb7454faf9"


@pytest.fixture(scope="module")
def many() -> list:
    return [Grammar(1).pair(i) for i in range(6000)]


def test_the_grammar_is_large_and_english_has_one_german(many: list) -> None:
    """By the birthday rule, 6,000 draws with so few repeats come from millions of sentences."""
    german: dict[str, str] = {}
    for pair in many:
        assert german.setdefault(pair.source, pair.target) == pair.target
    assert len(german) > 5850


def test_every_word_is_aligned(many: list) -> None:
    """All but commas, and English "do", which German says with the verb itself."""
    for pair in many[:2000]:
        links = pair.alignment
        for side, tokens in ((0, pair.english), (1, pair.german)):
            bare = {t.text for i, t in enumerate(tokens) if i not in {link[side] for link in links}}
            assert bare <= {",", "nicht"}, (pair.source, pair.target, bare)


def test_splits_are_disjoint_and_the_text_decides() -> None:
    sets = {
        split: {p.source for p in itertools.islice(pairs(split, seed), 150)}
        for split in ("train", "test", "valid")
        for seed in (0, 1)
    }
    assert not sets["train"] & sets["test"] and not sets["train"] & sets["valid"] and not sets["test"] & sets["valid"]
    assert {split_of(p.source) for p in itertools.islice(pairs("test", 5), 20)} == {"test"}


def test_sentences_are_generated_once_however_often_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """One pass over the numbers serves all splits; further passes read what is kept."""
    counted: list[int] = []
    original = grammar.Grammar.pair
    monkeypatch.setattr(grammar.Grammar, "pair", lambda self, number: counted.append(number) or original(self, number))
    monkeypatch.setattr(grammar, "MAX_KEPT", 300)
    source = GrammarSource("train", 200, seed=987)  # a seed that no other test reads
    first, again = list(source.read()), list(source.read())
    assert first == again and len(counted) == len(set(counted)) and len(first) == 200
    assert list(source.read(5)) == first[5:] and len(counted) == len(set(counted))
    drawn = len(counted)
    test = list(GrammarSource("test", 2, seed=987).read())
    assert len(counted) == drawn + 2  # the numbers of both were found on the way
    longer = list(GrammarSource("train", 400, seed=987).read())  # more than are kept: the rest is generated again
    assert longer[:200] == first and len(grammar.sentences(987).texts["train"]) == 300
    every = [original(Grammar(987), number) for number in range(450)]
    for split, found in (("train", longer), ("test", test)):
        texts = [(pair.source, pair.target) for pair in every if split_of(pair.source) == split]
        assert [record for _, record in found] == texts[: len(found)]


# --- as people type


def test_casual_pairs_are_the_same_pairs_varied() -> None:
    """Lower case, no closing mark, a name in place of a pronoun, a phrase of a list, and nothing else; half of the pairs stay."""
    plain, varied = (dict(GrammarSource("train", 2000, casual=casual).read()) for casual in (False, True))
    phrases = {re.sub(r"_.*|[.?!]", "", english).lower() for english, _ in PAIRS}
    bare = lambda text: text.rstrip(".?!").split()  # noqa: E731
    kinds = Counter[str]()
    for number, (source, target) in plain.items():
        new, new_target = varied[number]
        assert (new[-1] in ".?!") == (new_target[-1] in ".?!") and new_target[0].isupper()
        kinds["same"] += (new, new_target) == (source, target)
        kinds["lower"] += new == new.lower()
        kinds["no mark"] += new[-1] not in ".?!"
        named = bare(new_target)[0] != bare(target)[0]
        if bare(new.lower())[named:] == bare(source.lower())[named:]:
            assert bare(target)[named:] == bare(new_target)[named:]
            assert (
                not named or source.split()[0] in ("He", "She") and bare(new.lower())[0] == bare(new_target)[0].lower()
            )
            kinds["name"] += named
        else:
            assert any(new.lower().startswith(phrase) for phrase in phrases), new
            kinds["phrase"] += 1
    assert 0.4 < kinds["same"] / len(plain) < 0.6
    assert min(kinds["lower"], kinds["no mark"]) > 500 and kinds["name"] > 50 and 90 < kinds["phrase"] < 150
    assert list(GrammarSource("train", 60, casual=True).read(50)) == [(n, varied[n]) for n in range(51, 61)]


def test_casual_pairs_in_the_other_direction() -> None:
    """German in lower case to English with its capital letters."""
    records = [record for _, record in GrammarSource("train", 500, reverse=True, casual=True).read()]
    assert all(english[0].isupper() for _, english in records)
    assert 100 < sum(german == german.lower() for german, _ in records) < 200
    assert any((german, english) in {(g, e) for e, g in PAIRS} for german, english in records)


def test_casual_is_for_translation() -> None:
    for values in ({"stdlib": True}, {"table": "x.tsv"}):
        with pytest.raises(ValidationError, match="casual belongs to a corpus with a grammar"):
            CorpusConfig(**values, casual=True)
    data = DataConfig(train=[{"grammar": 5, "casual": True}], valid={"grammar": 5})
    with pytest.raises(ConfigError, match="casual is for pairs of sentences of the grammar, not for tagging"):
        training(data, schema_of("tagging"))
