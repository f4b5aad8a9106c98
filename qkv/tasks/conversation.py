"""The conversation task: train a chat model on the assistant's answers only; the model folder stores the chat template.

A conversation is one sequence of tokens, as the chat template writes it:

    <s> <|user|> Where is Rome ? </s> <|assistant|> In Italy . </s> <|user|> ...
                                                    ---------------
                                                    targets: the answer and its end token
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from qkv.batch import IGNORED, Batch, Loss
from qkv.config import CorpusConfig, ModelConfig, Recipe
from qkv.convert.files import write_text
from qkv.data.batching import Unusable
from qkv.data.conversations import Message, answers_of, conversations_schema, messages_of
from qkv.data.corpora import corpus, training
from qkv.data.grammar_conversations import conversations
from qkv.data.sources import Record
from qkv.data.windows import Chunk, Row, Windows, collate, length
from qkv.engine.pack import pack
from qkv.errors import ConfigError, QkvError
from qkv.evaluate.metrics import perplexity
from qkv.generate.continuous_batching import make_batch
from qkv.generate.search import greedy
from qkv.models.inputs import packs
from qkv.models.output import Output
from qkv.objectives import cross_entropy
from qkv.tasks.base import Say, Task, Words, held_out, usable
from qkv.tasks.losses import token_losses
from qkv.tasks.predictions import ANSWERS
from qkv.tasks.vocabulary import given_tokenizer, learn_tokenizer
from qkv.tasks.windows import map_by_length
from qkv.text.chat import ROLE_TOKENS, TEMPLATE
from qkv.text.tokenizer import Tokenizer

ASKED = 500
"""About how many held-out answers are generated at each evaluation during training; the loss is of all of them."""
EVALUATED = 8192
"""Tokens per batch in evaluation."""
MARGIN = 10
"""An answer is generated up to so many tokens beyond the length of its reference: a longer one is wrong anyway."""


class Encoded(NamedTuple):
    """A conversation as ids."""

    ids: list[int]
    answers: list[slice]
    """Span of each answer to learn, its end token included."""
    places: list[int]
    """Index of the message that each answer is."""


class ConversationTask(Task):
    """Conversations, cross-entropy of the assistant's answers; loss and exact match of greedy answers on the held-out set."""

    name, noun, hub_tag = "conversation", "a chat model", "text-generation"
    schema = conversations_schema(conversations)
    metric, unit = "loss", "answer tokens"
    how = "answers generated greedily, each from the reference conversation before it"

    @classmethod
    def possible(cls, recipe: Recipe) -> None:
        cls.needs(recipe, "decoder", "vocabulary")
        cls.fits(recipe)

    @classmethod
    def prepare(cls, recipe: Recipe, say: Say) -> Words:
        """Train or load a tokenizer; one without a chat template gets TEMPLATE and its special tokens."""
        assert recipe.data is not None
        tokenizer = given_tokenizer(recipe)
        if tokenizer is None:
            corpora = [corpus(c, recipe.data, "train", cls.schema) for c in recipe.data.train]
            texts_of = lambda record: [message["content"] for message in messages_of(record)]  # noqa: E731
            tokenizer = learn_tokenizer(corpora, texts_of, recipe.data, say, ROLE_TOKENS, "messages")
        elif tokenizer.chat_template is None and (recipe.tune.lora_rank or recipe.tune.freeze):
            raise ConfigError(
                f"{recipe.tune.start} has no chat template, and the tokens of a new one need training: set tune.lora_rank and "
                "tune.freeze to 0"
            )
        if tokenizer.chat_template is None:
            add_template(tokenizer)
            say(f"chat template: {' '.join(ROLE_TOKENS)} before each message, the end token after it")
        return Words(tokenizer, tokenizer)

    @classmethod
    def fitted(cls, recipe: Recipe, words: Words) -> ModelConfig:
        c = super().fitted(recipe, words)
        assert words.source is not None
        return c if words.source.size <= c.vocab_size else c.changed(vocab_size=words.source.size)

    def __init__(self, recipe: Recipe, config: ModelConfig, words: Words):
        super().__init__(recipe, config, words)
        assert words.source is not None
        self.tokenizer = words.source
        check_template(self.tokenizer, config)
        data = self.data
        windows = Windows(
            training(data, self.schema), self.encode, length, data.batch_tokens, data.pool, recipe.train.seed
        )
        windows.size, windows.pack = data.max_length, packs(config)
        self.batches = windows
        self.valid = self.held_out(data.valid, "valid")

    # --- training

    def examples(self, records: Sequence[Record]) -> list[Chunk | Unusable]:
        """Return the ids of each conversation, cut to data.max_length; those that are no targets as their complements, ~id < 0."""
        found: list[Chunk | Unusable] = []
        for one in self.encoded(records):
            if isinstance(one, Encoded):
                ids = ~np.array(one.ids, dtype=np.int32)
                for answer in one.answers:
                    ids[answer] = ~ids[answer]
                found.append(Chunk(ids, more=False))
            else:
                found.append(one)
        return found

    def encoded(self, records: Sequence[Record]) -> list[Encoded | Unusable]:
        """Encode conversations and cut them to the tokens that fit: data.max_length inputs, and the last target."""
        size = self.data.max_length + 1
        found = [beginning(self.tokenizer, messages_of(record), size) for record in records]
        rows = encode_conversations(self.tokenizer, found, self.config.eos_ids)
        return [one if isinstance(one, Unusable) else cut(one, size) for one in rows]

    def collate(self, examples: list[Row]) -> Batch:
        """Make a batch; negative ids are the complements of tokens that are read but not predicted (see `examples`)."""
        batch = collate(examples, self.config.pad_id)
        assert batch.inputs is not None and batch.targets is not None
        inputs = torch.where(batch.inputs < 0, ~batch.inputs, batch.inputs)  # (B, T)
        return replace(batch, inputs=inputs, targets=batch.targets.masked_fill(batch.targets < 0, IGNORED))

    def objective(self, output: Output, batch: Batch) -> Loss:
        return cross_entropy(output, batch.targets, self.recipe.train.label_smoothing)

    # --- evaluation

    def held_out(self, c: CorpusConfig, name: str) -> list[tuple[Record, Encoded]]:
        """Return the conversations of a set that have an answer that fits; the others are counted in `left_out`."""
        source = corpus(c, self.data, name, self.schema)
        records = held_out(source, name)
        rows = self.encoded(records)
        _, dropped = usable(rows)
        self.left_out += source.skipped + dropped
        found = [(record, row) for record, row in zip(records, rows, strict=True) if isinstance(row, Encoded)]
        if not found:
            raise QkvError(f"no conversation of the {name} set can be used: {', '.join(dropped)}")
        return found

    def evaluate(self, network: nn.Module) -> dict[str, float]:
        """Return loss and perplexity of all answers, and exact match of about ASKED of them."""
        losses = [answer for row in self.answer_losses(network, [row for _, row in self.valid]) for answer in row]
        nats, tokens = math.fsum(n for n, _ in losses), sum(t for _, t in losses)
        some = self.valid[:: max(1, len(losses) // ASKED)]
        answers = self.greedy_answers(network, [row for _, row in some])
        right = [ok for (_, row), texts in zip(some, answers, strict=True) for ok in self.exact_matches(row, texts)]
        return {"loss": nats / tokens, "perplexity": perplexity(nats, tokens), "exact": 100 * sum(right) / len(right)}

    @torch.no_grad()
    def answer_losses(self, network: nn.Module, rows: Sequence[Encoded]) -> list[list[tuple[float, int]]]:
        """Return (-log p, tokens) of each answer of each conversation."""
        device = next(network.parameters()).device

        def compute(numbers: list[int]) -> list[list[tuple[float, int]]]:
            examples = [Chunk(np.array(rows[i].ids, dtype=np.int32), False) for i in numbers]
            batch = collate([[example.ids] for example in examples], self.config.pad_id)
            targets: Any = torch.full_like(batch.targets, IGNORED)  # type: ignore[arg-type]
            for row, i in enumerate(numbers):
                for answer in rows[i].answers:  # target t - 1 is token t
                    targets[row, answer.start - 1 : answer.stop - 1] = torch.tensor(rows[i].ids[answer])
            losses = token_losses(network(batch.to(device)), targets.to(device)).double()
            sizes = [a.stop - a.start for i in numbers for a in rows[i].answers]
            parts = iter(zip(losses.split(sizes), sizes, strict=True))
            return [
                [(float(part.sum()), size) for part, size in (next(parts) for _ in rows[i].answers)] for i in numbers
            ]

        return map_by_length(compute, [len(row.ids) for row in rows], EVALUATED)

    def greedy_answers(self, network: Any, rows: Sequence[Encoded]) -> list[list[str]]:
        """Generate every answer of some conversations, each after the reference conversation before it; "" if it does not end."""
        device, ends = next(network.parameters()).device, self.config.eos_ids
        fast = pack(network) if device.type == "cpu" else network
        asked = [(i, answer) for i, row in enumerate(rows) for answer in row.answers]

        def compute(numbers: list[int]) -> list[str]:
            prompts = [rows[asked[n][0]].ids[: asked[n][1].start] for n in numbers]
            limits = [min(asked[n][1].stop - asked[n][1].start + MARGIN, self.config.max_length - len(prompt) + 1)
                      for n, prompt in zip(numbers, prompts, strict=True)]  # fmt: skip
            rows_of_ids = greedy(fast, make_batch(prompts, pad_id=self.config.pad_id).to(device), limits, ends)
            return [self.decode(ids) if ids[-1] in ends else "" for ids in rows_of_ids]

        parts = iter(map_by_length(compute, [answer.start for _, answer in asked], EVALUATED))
        return [[next(parts) for _ in row.answers] for row in rows]

    def exact_matches(self, row: Encoded, texts: Sequence[str]) -> list[bool]:
        """Compare answers with the references as the tokenizer decodes them: it may lowercase, or lack some characters."""
        wanted = [self.decode(row.ids[answer]) for answer in row.answers]
        return [text != "" and text == reference for text, reference in zip(texts, wanted, strict=True)]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of an answer, without its end token."""
        return self.tokenizer.decode([i for i in ids if i not in self.config.eos_ids]).strip()

    def test(self, network: nn.Module, folder: Path, say: Say) -> dict[str, Any] | None:
        """Score all answers of the test set and write them to a file, one answer per line."""
        if self.data.test is None:
            return None
        found = self.held_out(self.data.test, "test")
        rows = [row for _, row in found]
        say(f"reading the test set: {len(rows):,} conversations, {sum(len(row.answers) for row in rows):,} answers")
        losses, answers = self.answer_losses(network, rows), self.greedy_answers(network, rows)
        lines = [
            {"messages": messages[:place], "reference": messages[place]["content"].strip(), "answer": answer, "exact": exact,
             "nats": nats, "tokens": tokens}
            for (record, row), texts, numbers in zip(found, answers, losses, strict=True)
            for messages in [messages_of(record)]
            for place, answer, exact, (nats, tokens) in
            zip(row.places, texts, self.exact_matches(row, texts), numbers, strict=True)
        ]  # fmt: skip
        write_text(folder / ANSWERS, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
        return {"examples": len(rows), "how": self.how, "scores": scores_of(lines)}

    # --- the model folder and its card

    def use(self, folder: str) -> tuple[str, str]:
        return f"qkv chat {folder}", 'model.chat([{"role": "user", "content": "Hello"}])'


def scores_of(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the scores of answers as results.json stores them."""
    nats, tokens = math.fsum(line["nats"] for line in lines), sum(line["tokens"] for line in lines)
    right = sum(line["exact"] for line in lines)
    scores = {"loss": (nats / tokens, "nats per token of an answer"), "perplexity": (perplexity(nats, tokens), "exp(loss)"),
              "exact": (100 * right / len(lines), "per cent of the answers")}  # fmt: skip
    return [{"name": name, "value": value, "signature": about} for name, (value, about) in scores.items()]


# --- from messages to ids


def add_template(tokenizer: Tokenizer) -> None:
    """Give a tokenizer TEMPLATE and those of its special tokens that it lacks."""
    named = tokenizer.special_names()
    for role, usual in (("bos_token", "[CLS]"), ("eos_token", "[SEP]")):
        if role not in named and tokenizer.id_of(usual) is not None:
            tokenizer.settings[role] = usual
    tokenizer.settings.setdefault("bos_token", "")
    tokenizer.add_special(ROLE_TOKENS)
    tokenizer.settings["chat_template"] = TEMPLATE


def check_template(tokenizer: Tokenizer, c: ModelConfig) -> None:
    """Raise a ConfigError unless the chat template ends an answer with an end token of the model."""
    if tokenizer.chat_template is None:
        raise ConfigError("this vocabulary has no chat template: let one be trained, or start from a chat model")
    probe: list[Message] = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "a"}]
    prompt, whole = tokenizer.chats([(probe[:1], True), (probe, False)])
    for found in (prompt, whole):
        if isinstance(found, QkvError):
            raise ConfigError(f"{found} (a message and its answer)")
    if not set(c.eos_ids) & {*whole[len(prompt) :]}:  # type: ignore[index,arg-type]
        raise ConfigError(
            f"the chat template ends an answer without the end token of the model (eos_id = {c.eos_id}), so it would never stop: "
            "set model.eos_id to the token with which the template ends a message"
        )


def beginning(tokenizer: Tokenizer, messages: Sequence[Message], size: int) -> Sequence[Message]:
    """Keep the first messages whose contents have at most `size` tokens: the others cannot fit.

    The template writes the whole prompt of every answer, which is quadratic in the length of a conversation.
    """
    lengths = map(len, tokenizer.plain([message["content"] for message in messages[:size]]))
    fits = [total <= size for total in accumulate(max(1, length) for length in lengths)]
    return messages[: sum(fits)]


def encode_conversations(
    tokenizer: Tokenizer, found: Sequence[Sequence[Message]], eos_ids: Sequence[int]
) -> list[Encoded | Unusable]:
    """Encode conversations and locate their answers: each begins where its prompt ends and ends with the first end token."""
    special = tokenizer.special_tokens()
    learned = [answers_of(one) for one in found]
    # for each conversation all of it, and its beginning up to each answer as a prompt
    jobs = [job for one, places in zip(found, learned, strict=True) if places
            for job in ((one, False), *((one[:place], True) for place in places))]  # fmt: skip
    rows = iter(tokenizer.chats(jobs) if jobs else [])
    encoded: list[Encoded | Unusable] = []
    for one, places in zip(found, learned, strict=True):
        whole, prompts = next(rows) if places else [], [next(rows) for _ in places]
        if any(name in message["content"] for message in one for name in special):
            encoded.append(Unusable("a special token in a message"))
        else:
            encoded.append(find_answers(whole, prompts, places, eos_ids))
    return encoded


def find_answers(whole: Any, prompts: Sequence[Any], places: list[int], eos_ids: Sequence[int]) -> Encoded | Unusable:
    """Locate the answers of one conversation, given the ids of all of it and of the prompt before each answer."""
    if any(isinstance(ids, QkvError) for ids in (whole, *prompts)):
        return Unusable("refused by the chat template")
    answers = []
    for prompt in prompts:
        begin = len(prompt)
        end = next((at for at in range(begin, len(whole)) if whole[at] in eos_ids), None)
        if whole[:begin] != prompt or end is None:
            return Unusable("other tokens before an answer than in its prompt")
        answers.append(slice(begin, end + 1))
    return Encoded(whole, answers, places)


def cut(one: Encoded, size: int) -> Encoded | Unusable:
    """Keep the first `size` tokens of a conversation and the answers that end within them."""
    whole = [(answer, place) for answer, place in zip(one.answers, one.places, strict=True) if answer.stop <= size]
    if not whole:
        return Unusable(f"no whole answer within {size - 1} tokens")
    answers, places = zip(*whole, strict=True)
    return Encoded(one.ids[: answers[-1].stop], list(answers), list(places))
