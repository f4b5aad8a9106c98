"""Conversations about sentences of the embedded grammar, with known answers. Most turns need an earlier one.

user       The old man saw a dog in the garden. Who saw a dog in the garden?
assistant  The old man.
user       Where?                          about the sentence of the first turn
assistant  In the garden.
user       What is dog in German?
assistant  Der Hund.
user       And the plural?                 about the word of the turn before
assistant  Die Hunde.
user       Make it a question.             the sentence again
assistant  Did the old man see a dog in the garden?
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from qkv.data.clauses import Clause, Phrase, Pronoun, Token
from qkv.data.conversations import conversation_record
from qkv.data.german import ARTICLE
from qkv.data.grammar import FULL_STOP, QUESTION_MARK, Choices, Grammar, detokenize
from qkv.data.grammar_tasks import documents, questions_about, sentence
from qkv.data.lexicon import Noun
from qkv.data.sources import Record

Turn = tuple[str, str]
"""A message of the user and the assistant's answer."""
TURNS = (2, 5)
"""Fewest and most turns of a conversation."""


def conversation(grammar: Grammar, r: Choices, first: Clause) -> Record | None:
    """Make a conversation about one sentence; None where it speaks of me, you or us, who are others for each side."""
    if any(isinstance(n, Pronoun) and n.row[2][0] != "3" for n in (first.subject, first.indirect, first.direct)):
        return None
    questions = questions_about(first)
    words, answer = questions.pop(r.randrange(len(questions)))
    turns = [(f"{sentence(first)} {to_text(words, QUESTION_MARK)}", to_text(answer))]
    blocks = [[(to_text(words[:1], QUESTION_MARK), to_text(answer))] for words, answer in questions]  # "Where?"
    blocks += [[turn] for turn in changes(first)] + [word_turns(r, noun) for noun in nouns_of(first)]
    r.shuffle(blocks)
    length = r.randint(*TURNS)
    for block in blocks:
        turns += block if len(turns) < length else []
    return conversation_record([{"role": role, "content": text} for turn in turns
                                for role, text in zip(("user", "assistant"), turn, strict=True)])  # fmt: skip


def to_text(words: Sequence[Token], mark: Token = FULL_STOP) -> str:
    return detokenize((*words, mark))


def changes(clause: Clause) -> list[Turn]:
    """Requests to change the sentence: a question, its negation, the future."""
    found = [("Make it a question.", to_text(clause.english_question(), QUESTION_MARK))]
    if clause.modal[:1] not in (("must",), ("can",)):  # "must not" and "can not" are other statements
        verb = "Do not negate it." if clause.negated else "Negate it."
        found.append((verb, sentence(clause._replace(negated=not clause.negated))))
    if clause.tense in ("present", "past") and not clause.time:
        found.append(("Say it in the future.", sentence(clause._replace(tense="future"))))
    return found


def nouns_of(clause: Clause) -> list[Noun]:
    return [n.noun for n in (clause.subject, clause.indirect, clause.direct) if isinstance(n, Phrase)]


def word_turns(r: Choices, noun: Noun) -> list[Turn]:
    """A word in German or in the plural, then the other one of the two, of which only the turn before says the word."""
    singular, plural = (noun.english[n] for n in (0, 1))
    german, germans = f"{ARTICLE['nom'][noun.gender].capitalize()} {noun.german[0]}.", f"Die {noun.german[1]}."
    if r.random() < 0.5:
        return [(f"What is {singular} in German?", german), ("And the plural?", germans)]
    return [(f"What is the plural of {singular}?", f"{plural.capitalize()}."), ("And in German?", germans)]


conversations = partial(documents, conversation)
"""The records of (split, seed), without end."""
