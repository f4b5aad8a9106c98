"""Conversation: several turns with a chat model, within its context."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from qkv.config import ModelConfig
from qkv.errors import QkvError
from qkv.generate.detokenize import detokenize
from qkv.generate.logits_processor import NO_PROCESSING, LogitsProcessor
from qkv.generate.prefix_cache import PrefixCache
from qkv.generate.sampling import GREEDY, SamplingParams, make_generators
from qkv.generate.sequence import Sampler
from qkv.generate.speculative import SpeculativeDecoder
from qkv.text.tokenizer import Tokenizer

Message = dict[str, str]


class Conversation:
    """Messages so far, and the network's state after them: a turn reads only what is new since the last one.

    Where the next prompt would leave no room for an answer, the oldest turns are dropped, the system message never.
    """

    def __init__(self, c: ModelConfig, network: Any, tokenizer: Tokenizer, system: str | None = None,
                 max_new_tokens: int = 256, params: SamplingParams = GREEDY, seed: int | None = None,
                 processor: LogitsProcessor = NO_PROCESSING, speculative: SpeculativeDecoder | None = None):  # fmt: skip
        if c.family != "decoder":
            raise QkvError(f"a conversation needs a decoder with a chat template; this is of family {c.family!r}")
        self.config, self.tokenizer, self.params, self.processor = c, tokenizer, params, processor
        self.cache = PrefixCache(network) if speculative is None else speculative
        self.max_new_tokens = min(max_new_tokens, max(1, c.max_length // 2))
        """Longest answer: a prompt may always take half of the context."""
        self.generator = make_generators(int(torch.randint(2**31, (1,))) if seed is None else seed, 1)[0]
        self.system = system
        self.turns: list[Message] = []
        """All messages of user and assistant, in turn."""
        self.n_dropped = 0
        """How many of the first turns no longer fit into the context."""
        self.encode([{"role": "user", "content": "Hello"}])  # a model without a chat template is an error here

    @property
    def messages(self) -> list[Message]:
        return [*self.system_messages(), *self.turns]

    def system_messages(self) -> list[Message]:
        return [] if self.system is None else [{"role": "system", "content": self.system}]

    def encode(self, turns: list[Message]) -> list[int]:
        return self.tokenizer.chat([*self.system_messages(), *turns])

    def reset(self) -> None:
        """Drop all messages but the system message."""
        self.turns, self.n_dropped = [], 0

    def prompt(self, turns: list[Message]) -> list[int]:
        """Return the ids of as many of the last turns as leave room for an answer."""
        limit = self.config.max_length - self.max_new_tokens
        begin = self.n_dropped
        while len(ids := self.encode(turns[begin:])) > limit:
            if begin + 2 >= len(turns):
                raise QkvError(
                    f"this message takes {len(ids)} tokens of the model's {self.config.max_length}, of which "
                    f"{self.max_new_tokens} are for the answer: shorten it"
                )
            begin += 2
        self.n_dropped = begin
        return ids

    def ask(self, text: str) -> Iterator[str]:
        """Yield the answer, piece by piece. One that is interrupted is kept as far as it went."""
        turns = [*self.turns, {"role": "user", "content": text}]
        ids = self.prompt(turns)
        answer: list[str] = []
        try:
            for piece in detokenize(self.tokens(ids), self.tokenizer, ids):
                answer.append(piece)
                yield piece
        finally:
            self.turns = [*turns, {"role": "assistant", "content": "".join(answer).strip()}]

    def tokens(self, prompt: list[int]) -> Iterator[int]:
        processor = self.processor.for_prompt(prompt, self.config.eos_ids)
        sampler = Sampler(self.max_new_tokens, self.config.eos_ids, self.params, self.generator, processor=processor)
        return (token for token in self.cache.generate(prompt, sampler) if token not in self.config.eos_ids)
