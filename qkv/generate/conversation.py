"""Conversation: several turns with a chat model, in a context that ends somewhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from qkv.config import ModelConfig
from qkv.errors import QkvError
from qkv.generate.detokenize import pieces
from qkv.generate.logits_processor import Rules
from qkv.generate.prefix_cache import Cursor
from qkv.generate.sampling import Sampling, seeded
from qkv.generate.search import FREE, GREEDY, next_token
from qkv.text.tokenizer import Tokenizer

Message = dict[str, str]


class Conversation:
    """Messages so far, and the network's state after them: a turn reads only what is new since the last one.

    Where the next prompt would leave no room for an answer, the oldest turns are forgotten, the system message never.
    """

    def __init__(self, c: ModelConfig, network: Any, tokenizer: Tokenizer, system: str | None = None,
                 max_new_tokens: int = 256, how: Sampling = GREEDY, seed: int | None = None, rules: Rules = FREE):  # fmt: skip
        if c.family != "decoder":
            raise QkvError(f"a conversation needs a decoder with a chat template; this is of family {c.family!r}")
        self.config, self.tokenizer, self.how, self.rules = c, tokenizer, how, rules
        self.cursor = Cursor(network)
        self.room = min(max_new_tokens, max(1, c.max_length // 2))
        """Longest answer: a prompt may always take half of the context."""
        self.streams = seeded(int(torch.randint(2**31, (1,))) if seed is None else seed, 1)
        self.system = system
        self.turns: list[Message] = []
        """All that was said, user and assistant in turn."""
        self.forgotten = 0
        """So many of the first turns no longer fit into the context."""
        self.ids([{"role": "user", "content": "Hello"}])  # a model without a template says so at once

    @property
    def messages(self) -> list[Message]:
        return self.opening() + self.turns

    def opening(self) -> list[Message]:
        return [] if self.system is None else [{"role": "system", "content": self.system}]

    def ids(self, turns: list[Message]) -> list[int]:
        return self.tokenizer.chat([*self.opening(), *turns])

    def reset(self) -> None:
        """Forget all but the system message."""
        self.turns, self.forgotten = [], 0

    def prompt(self, turns: list[Message]) -> list[int]:
        """Ids of as many of the last turns as leave room for an answer."""
        limit = self.config.max_length - self.room
        begin = self.forgotten
        while len(ids := self.ids(turns[begin:])) > limit:
            if begin + 2 >= len(turns):
                raise QkvError(
                    f"this message takes {len(ids)} tokens of the model's {self.config.max_length}, of which {self.room} are for "
                    "the answer: shorten it"
                )
            begin += 2
        self.forgotten = begin
        return ids

    def ask(self, text: str) -> Iterator[str]:
        """The answer, piece by piece. One that is broken off is kept as far as it went."""
        turns = [*self.turns, {"role": "user", "content": text}]
        ids = self.prompt(turns)
        said: list[str] = []
        try:
            for piece in pieces(self.tokens(ids), self.tokenizer, ids):
                said.append(piece)
                yield piece
        finally:
            self.turns = [*turns, {"role": "assistant", "content": "".join(said).strip()}]

    def tokens(self, prompt: list[int]) -> Iterator[int]:
        written: list[int] = []
        rules = self.rules.after(prompt, self.config.eos_ids)
        for _ in range(self.room):
            logits = self.cursor.next([*prompt, *written])
            token = int(next_token(logits, self.how, self.streams, rules, [written], [0]))
            if token in self.config.eos_ids:
                return
            written.append(token)
            yield token
