"""The answering task: a question and a text in, the words of the text that answer it out (Rajpurkar et al. 2016).

The network reads [CLS] question [SEP] context [SEP] and scores every token as the first and as the last one of the answer
(Devlin et al. 2019, 4.2). A window without the answer has it at position 0, the [CLS] token, which is also where
"there is no answer" stands (SQuAD 2.0; Rajpurkar et al. 2018).
"""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.batch import Batch, Loss, pad
from qkv.config import CorpusConfig, ModelConfig, Recipe
from qkv.convert.files import write_text
from qkv.data.batching import Unusable
from qkv.data.corpora import corpus, training
from qkv.data.grammar_tasks import questions
from qkv.data.schema import ANSWERS, Schema
from qkv.data.sources import InMemorySource, Record, ending
from qkv.data.textsets import read_squad
from qkv.errors import ConfigError, QkvError
from qkv.evaluate.metrics import answer_f1, exact_match
from qkv.evaluate.scores import Score
from qkv.models.output import Output
from qkv.objectives import span
from qkv.tasks.base import Say, Task, Words, held_out
from qkv.tasks.vocabulary import given_tokenizer, learn_tokenizer
from qkv.tasks.windows import encode_texts, map_by_length, windows
from qkv.text.kinds import around
from qkv.text.tokenizer import Tokenizer

STRIDE = 128
"""A window of a long context begins so many tokens behind the one before it (BERT), at the most half a window."""
MOST_QUESTION = 64
"""Tokens of a question that are read (BERT), at the most half of the room."""
MOST_ANSWER = 30
"""Tokens of the longest answer (BERT)."""
ANSWERED = "test.answers.jsonl"
"""The test set: each question, the answers that are accepted, the model's."""


# --- what a reader does


class AnswerSpan(NamedTuple):
    """context[start:end] == text; without an answer the text is empty."""

    text: str
    score: float
    """Probability, in its window, of the first token times that of the last one."""
    start: int
    end: int


@dataclass(frozen=True)
class ContextWindow:
    """A question and a stretch of its context, as the network reads them."""

    ids: Sequence[int]
    first: int
    """Where the context begins in `ids`."""
    offsets: Sequence[tuple[int, int]]
    """Of each piece of the context, the characters it stands for, without blanks around them."""
    target: tuple[int, int] = (0, 0)
    """First and last token of the answer, in `ids`; 0 where it is not here."""


class ContextCutter:
    """(question, context) -> windows of at most `most` tokens; a long context gives several, which overlap."""

    def __init__(self, c: ModelConfig, tokenizer: Tokenizer, most: int):
        self.tokenizer = tokenizer
        self.before, self.between, self.after = around(tokenizer, c, 2)
        self.room = most - len(self.before) - len(self.between) - len(self.after)
        if self.room < 2:
            raise QkvError(f"{most} tokens leave no room for a question and a text: raise max_length")

    def __call__(self, pairs: Sequence[tuple[str, str]]) -> list[list[ContextWindow]]:
        questions = encode_texts(self.tokenizer, [question for question, _ in pairs])
        contexts = encode_texts(self.tokenizer, [context for _, context in pairs])
        rows = zip(questions, contexts, pairs, strict=True)
        return [list(self.cut(q.ids, c.ids, c.offsets, context)) for q, c, (_, context) in rows]

    def cut(
        self, question: list[int], pieces: list[int], offsets: list[tuple[int, int]], context: str
    ) -> Iterator[ContextWindow]:
        head = [*self.before, *question[: min(MOST_QUESTION, self.room // 2)], *self.between]
        room = self.room + len(self.before) + len(self.between) - len(head)
        places = [strip_span(context, *place) for place in offsets]
        for part in windows(len(pieces), room, max(1, min(STRIDE, room // 2))):
            ids = [*head, *pieces[part.start : part.stop], *self.after]
            yield ContextWindow(ids, len(head), places[part.start : part.stop])


def strip_span(text: str, start: int, end: int) -> tuple[int, int]:
    """The same stretch without blanks at its ends."""
    kept = text[start:end]
    start += len(kept) - len(kept.lstrip())
    return start, max(start, start + len(kept.strip()))


class QuestionAnswerer:
    """A network with a span head at work: questions and contexts in, answers out."""

    def __init__(self, c: ModelConfig, network: nn.Module, tokenizer: Tokenizer, most: int | None = None):
        if c.head != "span":
            raise QkvError(
                f'this model has a head for {c.head!r}: to answer it must be trained with task = "answering"'
            )
        self.config, self.network = c, network
        self.cut = ContextCutter(c, tokenizer, min(most or c.max_length, c.max_length))

    def answer(self, question: str, context: str, no_answer: bool = False, max_answer: int = MOST_ANSWER) -> AnswerSpan:
        """The likeliest answer to one question; with `no_answer` it may be that there is none."""
        return self.answers([(question, context)], no_answer, max_answer)[0]

    @torch.no_grad()
    def answers(self, pairs: Sequence[tuple[str, str]], no_answer: bool = False, max_answer: int = MOST_ANSWER,
                batch_tokens: int = 4096) -> list[AnswerSpan]:  # fmt: skip
        """The likeliest span of all windows of each context. No answer is as likely as it is in the window that knows best,
        which is the one that thinks least of it."""
        device = next(self.network.parameters()).device
        best = [AnswerSpan("", -math.inf, 0, 0)] * len(
            pairs
        )  # scores are logarithms up to the end: far from 0 they still differ
        none = [0.0] * len(pairs)
        todo = [(n, window) for n, cut in enumerate(self.cut(pairs)) for window in cut]

        def compute(numbers: list[int]) -> list[tuple[float, int, int, float]]:
            rows = [todo[i][1] for i in numbers]
            logits = self.network(collate(rows, self.config).to(device)).logits.float().cpu()  # (B, T, 2)
            return spans(logits, rows, max_answer)

        answers = map_by_length(compute, [len(window.ids) for _, window in todo], batch_tokens)
        for (n, window), (score, first, last, nothing) in zip(todo, answers, strict=True):
            none[n] = min(none[n], nothing)
            if score > best[n].score:
                start, end = window.offsets[first][0], window.offsets[last][1]
                best[n] = AnswerSpan(pairs[n][1][start:end], score, start, end)
        found = zip(best, none, strict=True)
        chosen = [AnswerSpan("", nothing, 0, 0) if no_answer and nothing > one.score else one for one, nothing in found]
        return [one._replace(score=math.exp(one.score)) for one in chosen]


def spans(logits: Tensor, rows: Sequence[ContextWindow], longest: int) -> list[tuple[float, int, int, float]]:
    """For each window: the log-probability of its best span, its first and last piece, the log-probability of no answer.

    max over i <= j < i + longest of p_start(i) p_end(j),   p = softmax over the context and position 0
    """
    width = logits.size(1)
    longest = min(longest, width)
    legal = torch.zeros(len(rows), width, dtype=torch.bool)  # (B, T): an answer may begin or end here
    for row, window in enumerate(rows):
        legal[row, window.first : window.first + len(window.offsets)] = torch.tensor([a < b for a, b in window.offsets])
    seen = legal.clone()
    seen[:, 0] = True
    table = logits.masked_fill(~seen[..., None], -torch.inf).log_softmax(1)  # (B, T, 2)
    nothing = table[:, 0].sum(-1).tolist()  # (B,)
    starts, ends = table.masked_fill(~legal[..., None], -torch.inf).unbind(-1)  # (B, T) each
    behind = F.pad(ends, (0, longest - 1), value=-torch.inf).unfold(1, longest, 1)  # (B, T, longest): ends from i on
    scores, places = (starts[..., None] + behind).flatten(1).max(1)  # (B,)
    found = []
    for score, place, its, p in zip(scores.tolist(), places.tolist(), rows, nothing, strict=True):
        first, further = divmod(place, longest)
        found.append((score, first - its.first, first + further - its.first, p))
    return found


def collate(rows: Sequence[ContextWindow], c: ModelConfig) -> Batch:
    """Windows side by side; segment 0 is the question with all before it, segment 1 the context (where there are two)."""
    inputs, mask = pad([list(row.ids) for row in rows], c.pad_id)
    segments = None
    if c.n_segments:
        second = min(1, c.n_segments - 1)
        numbers = [[0] * row.first + [second] * (len(row.ids) - row.first) for row in rows]
        segments, _ = pad(numbers, 0)
    targets = torch.tensor([row.target for row in rows])  # (B, 2)
    return Batch(inputs, mask, targets, segments=segments)


# --- how one is trained


def is_squad(path: Path) -> bool:
    """Whether a file is one in the layout of SQuAD, and no table."""
    return ending(path) == ".json"


def locate_answer(record: Record) -> Record | None:
    """The answer must be in the context, at its start or, where that is wrong, in one place alone; an empty one is none."""
    question, context, text, *given = record
    if not text:
        return question, context, "", "-1"
    offset = given[0] if given and given[0].isdecimal() else ""
    start = int(offset) if 0 < len(offset) < 12 else context.find(text)
    if start < 0 or not context.startswith(text, start):
        start = context.find(text) if context.count(text) == 1 else -1
    return (question, context, text, str(start)) if start >= 0 else None


def read_answers(paths: Sequence[Path], _: CorpusConfig) -> InMemorySource:
    if not is_squad(paths[0]):
        raise ConfigError(f"{paths[0]} is no .json file: {AnsweringTask.schema.accepts}")
    return InMemorySource(read_squad(paths[0]))


class AnsweringTask(Task):
    """Questions with the place of their answer, cross-entropy of its first and last token, F1 of the words of the answers."""

    name, noun, hub_tag, metric = "answering", "a reader that answers questions", "question-answering", "f1"
    unit = "places"
    schema = Schema("answering", ANSWERS, "give one .json file in the layout of SQuAD, or one table with question, context and answer",
                    read_answers, n_files=1, is_text=is_squad, from_row=locate_answer, reason="the answer is not in the context",
                    from_grammar=questions)  # fmt: skip

    @classmethod
    def possible(cls, recipe: Recipe) -> None:
        cls.needs(recipe, "encoder", "span")
        cls.fits(recipe)

    @classmethod
    def prepare(cls, recipe: Recipe, say: Say) -> Words:
        data = recipe.data
        assert data is not None
        corpora = [corpus(c, data, "train", cls.schema) for c in data.train]
        tokenizer = given_tokenizer(recipe) or learn_tokenizer(corpora, lambda record: record[:2], data, say)
        return Words(tokenizer, tokenizer)

    def __init__(self, recipe: Recipe, config: ModelConfig, words: Words):
        super().__init__(recipe, config, words)
        assert words.source is not None
        self.tokenizer = words.source
        self.cut = ContextCutter(config, self.tokenizer, self.data.max_length)
        self.batches = self.batched(training(self.data, self.schema), lambda window: len(window.ids))
        valid = corpus(self.data.valid, self.data, "valid", self.schema)
        self.valid = held_out(valid, "valid")
        self.left_out += valid.skipped
        self.unanswered = any(not record[2] for record in self.valid)
        """Whether there are questions without an answer."""

    # --- learning

    def examples(self, records: Sequence[Record]) -> list[ContextWindow | Unusable]:
        """All windows of each record, or why it has none."""
        places = [answer_span(*record[1:4]) for record in records]
        cuts = self.cut([(question, context) for question, context, *_ in records])
        found: list[ContextWindow | Unusable] = []
        for cut, place in zip(cuts, places, strict=True):
            found += [place] if isinstance(place, Unusable) else [self.example(window, place) for window in cut]
        return found

    @staticmethod
    def example(window: ContextWindow, place: tuple[int, int] | None) -> ContextWindow:
        """The window with the tokens of an answer that lies wholly within it."""
        ids = array("i", window.ids)
        if place is None or not window.offsets:
            return ContextWindow(ids, window.first, ())
        start, end = place
        inside = [i for i, (a, b) in enumerate(window.offsets) if a < end and b > start and a < b]
        whole = window.offsets[0][0] <= start and window.offsets[-1][1] >= end and bool(inside)
        target = (window.first + inside[0], window.first + inside[-1]) if whole else (0, 0)
        return ContextWindow(
            ids, window.first, (), target
        )  # offsets are for finding the text again: not while learning

    def collate(self, examples: list[Any]) -> Batch:
        return collate(examples, self.config)

    def objective(self, output: Output, batch: Batch) -> Loss:
        return span(output, batch)

    # --- asking

    def evaluate(self, network: nn.Module) -> dict[str, float]:
        """Exact matches and F1 in per cent, as SQuAD counts them."""
        found = self.answers(network, self.valid)
        return {score.name: score.value for score in scores(found, self.valid)}

    def answers(self, network: nn.Module, records: Sequence[Record]) -> list[AnswerSpan]:
        pairs = [(question, context) for question, context, *_ in records]
        return QuestionAnswerer(self.config, network, self.tokenizer, self.data.max_length).answers(
            pairs, self.unanswered
        )

    def test(self, network: nn.Module, folder: Path, say: Say) -> dict[str, Any] | None:
        """All questions of the test set, in a file with their answers and the model's."""
        if self.data.test is None:
            return None
        records, left_out = self.test_records(say)
        found = self.answers(network, records)
        lines = [{"question": record[0], "answers": right_answers(record), "found": one.text, "score": one.score, "start": one.start}
                 for record, one in zip(records, found, strict=True)]  # fmt: skip
        write_text(folder / ANSWERED, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
        return {"examples": len(records), "left_out": dict(left_out), "how": f"answers of up to {MOST_ANSWER} tokens",
                "scores": [score.to_json() for score in scores(found, records)]}  # fmt: skip

    # --- telling

    def use(self, folder: str) -> tuple[str, str]:
        maybe = (" --no-answer", ", no_answer=True") if self.unanswered else ("", "")
        return (f'qkv answer {folder} "Who?" --context FILE{maybe[0]}', f'model.answer("Who?", "A text."{maybe[1]})')


def answer_span(context: str, answer: str, start: str) -> tuple[int, int] | Unusable | None:
    """The characters of an answer, None where there is none, or what is wrong. Data sets have offsets that miss the answer;
    where it occurs exactly once there is no doubt which place is meant."""
    told = int(start) if start.isdecimal() else 0
    told, answer = told + len(answer) - len(answer.lstrip()), answer.strip()
    if not answer:
        return None
    if not context.startswith(answer, told):
        if context.count(answer) != 1:
            return Unusable("with an answer that is not where it should be in the context")
        told = context.index(answer)
    return told, told + len(answer)


def right_answers(record: Record) -> list[str]:
    """All right answers: the one that is learned, and those that others gave; [""] where there is none."""
    return [record[2], *record[4:]]


def scores(found: Sequence[AnswerSpan], records: Sequence[Record]) -> list[Score]:
    """In per cent, as SQuAD counts: of several right answers, the one that the model's is most like."""
    pairs = [(one.text, right_answers(record)) for one, record in zip(found, records, strict=True)]
    how = f"articles and punctuation left out|questions:{len(pairs)}"
    means = {name: 100 * sum(metric(*pair) for pair in pairs) / len(pairs) for name, metric in METRICS.items()}
    return [Score(name, value, f"metric:{name}|{how}") for name, value in means.items()]


METRICS = {"f1": answer_f1, "exact": exact_match}
