"""Records of other kinds from the embedded grammar: its sentences, their tags and kinds, questions about them, and short
documents. A split as in the grammar, by the text of the first sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

from qkv.data.clauses import Clause, Nominal, Phrase, Pronoun, Token
from qkv.data.grammar import THE, Choices, Grammar, detokenize, pairs, split_of
from qkv.data.sources import GeneratedCorpus, Record

WHO, WHAT = (Pronoun("q", (word, "", "3s", word)) for word in ("who", "what"))
END = Token(".", "PUNCT")


@dataclass
class GrammarRecords(GeneratedCorpus):
    """Records that `generate(split, seed)` makes."""

    generate: Callable[[str, int], Iterator[Record]]

    def every(self) -> Iterator[Record]:
        return islice(self.generate(self.split, self.seed), self.size)


# --- records of one sentence


def plain_sentences(split: str, seed: int) -> Iterator[Record]:
    return ((pair.source,) for pair in pairs(split, seed))


def sentence_kinds(split: str, seed: int) -> Iterator[Record]:
    """A sentence, and whether it is a statement, a question or complex."""
    return ((pair.source, pair.kind) for pair in pairs(split, seed))


def sentence_lengths(split: str, seed: int) -> Iterator[Record]:
    """A sentence, and how many words it has."""
    return ((pair.source, str(len(pair.source.split()))) for pair in pairs(split, seed))


def tagged_sentences(split: str, seed: int) -> Iterator[Record]:
    """Words as in the text, and their universal parts of speech."""
    for pair in pairs(split, seed):
        words = [token.text for token in pair.english]
        words[0] = words[0][:1].upper() + words[0][1:]
        yield "\t".join(words), "\t".join(token.tag for token in pair.english)


# --- records of several sentences


def documents(make: Callable[[Grammar, Choices, Clause], Record | None], split: str, seed: int) -> Iterator[Record]:
    """Records that begin with a clause whose sentence is in the split; number n is a function of (seed, n)."""
    grammar, number = Grammar(seed), 0
    while True:
        r = Choices(f"{seed}:{number}:document")
        first = grammar.clause(r, "a")
        if split_of(sentence(first)) == split and (record := make(grammar, r, first)):
            yield record
        number += 1


def sentence(clause: Clause) -> str:
    return detokenize((*clause.english(), END))


def following(grammar: Grammar, r: Choices, first: Clause) -> list[Clause]:
    """The first clause and two to four more about the same person: that is what makes them one document."""
    subject = first.subject
    if isinstance(subject, Phrase):
        subject = subject._replace(determiner=THE, adjective=None, owner=None, relative=None)
    drawn = iter(lambda: grammar.clause(r, "b", simple=True)._replace(subject=subject), None)
    others = (clause for clause in drawn if subject_alone(clause))
    return [first, *islice(others, r.randint(2, 4))]


def subject_alone(clause: Clause) -> bool:
    """Exclude clauses such as "I call me"."""
    people = [n.row for n in (clause.subject, clause.indirect, clause.direct) if isinstance(n, Pronoun)]
    return clause.subject.english()[0].tag != "PRON" or people.count(people[0]) == 1


def lines(grammar: Grammar, r: Choices, first: Clause) -> Record:
    """A sentence per line."""
    return ("\n".join(map(sentence, following(grammar, r, first))),)


def summary(grammar: Grammar, r: Choices, first: Clause) -> Record:
    """The document, and who did what in its first sentence: without adjectives, owners, places and times."""
    core = first._replace(subject=bare(first.subject), indirect=first.indirect and bare(first.indirect),
                   direct=first.direct and bare(first.direct), adjuncts=(), time=None)  # fmt: skip
    return " ".join(map(sentence, following(grammar, r, first))), sentence(core)


def bare(nominal: Nominal) -> Nominal:
    return nominal if isinstance(nominal, Pronoun) else nominal._replace(adjective=None, owner=None, relative=None)


def question(grammar: Grammar, r: Choices, first: Clause) -> Record | None:
    """Who, what, where or when, about one of up to three sentences, no two of which have the same verb; the answer is in
    the text exactly once."""
    others = [grammar.clause(r, key, simple=True) for key in "bc"[: r.randint(0, 2)]]
    if len({clause.verb.base for clause in (first, *others)}) <= len(others):
        return None
    asked, words = r.pick(questions_about(first))
    clauses = [first, *others]
    r.shuffle(clauses)
    context = " ".join(map(sentence, clauses))
    answer = " ".join(token.text for token in words)
    if words == first.subject.english():  # it begins the sentence
        answer = answer[:1].upper() + answer[1:]
    if context.count(answer) != 1:
        return None
    return detokenize((*asked, Token("?", "PUNCT"))), context, answer, str(context.index(answer))


def questions_about(clause: Clause) -> list[tuple[list[Token], list[Token]]]:
    """Questions about a clause, and the words that answer them."""

    def ask(word: str, tag: str, **left: Any) -> list[Token]:
        return [Token(word, tag), *clause._replace(**left).english_question()]

    found = [(clause._replace(subject=WHO if is_person(clause.subject) else WHAT).english(), clause.subject.english())]
    if clause.direct:
        word = "whom" if is_person(clause.direct) else "what"
        found.append((ask(word, "PRON", direct=None), clause.direct.english("acc")))
    for adjunct in clause.adjuncts:
        if adjunct.english_word != "with":
            left = tuple(a for a in clause.adjuncts if a is not adjunct)
            found.append((ask("where", "ADV", adjuncts=left), adjunct.english()))
    if clause.time:
        found.append((ask("when", "ADV", time=None), clause.english_time()))
    return found


def is_person(nominal: Nominal) -> bool:
    return isinstance(nominal, Pronoun) or nominal.noun.kind == "person"


short_documents, summaries, questions = (partial(documents, make) for make in (lines, summary, question))
"""Documents of a sentence per line; documents with a summary; questions about documents."""
