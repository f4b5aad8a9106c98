"""Writing: one text on its way to a client: tokens become pieces of text, up to a stop string or the end."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import StreamingResponse

from qkv.generate.detokenize import Detokenizer, StopStrings
from qkv.generate.logits_processor import NO_PROCESSING, LogitsProcessor
from qkv.generate.sampling import SamplingParams
from qkv.generate.sequence import GeneratedToken, Sampler
from qkv.serve.api.logprobs import Reader
from qkv.serve.http.errors import Refusal, busy
from qkv.serve.scheduling.limits import Limits
from qkv.serve.scheduling.scheduler import Ticket, failed
from qkv.serve.scheduling.served_model import Served

SEEDS = 2**62


@dataclass(frozen=True)
class Prompt:
    """What is to be gone on from."""

    ids: list[int]
    prefix: list[int] = field(default_factory=list)
    """Tokens of the answer that are given already."""


@dataclass(frozen=True)
class Manner:
    """How to go on."""

    tokens: int
    how: SamplingParams
    seed: int
    top: int = 0
    """Likeliest tokens that are told at each step."""
    stop: Sequence[str] = ()
    rules: LogitsProcessor = NO_PROCESSING
    """Penalties."""


class Penalties(BaseModel):
    """Fields of a request that writes: what repeats gets rarer. None = no penalty."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    presence_penalty: float | None = Field(default=None, ge=-2, le=2, allow_inf_nan=False)
    """Subtracted from the logits of generated tokens."""
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2, allow_inf_nan=False)
    """Subtracted from them for each time that they were generated."""
    repetition_penalty: float | None = Field(default=None, gt=0, le=100, allow_inf_nan=False)
    """Logits of tokens that occurred, in the prompt too, are divided by it where positive, multiplied where negative."""
    no_repeat_ngram: int | None = Field(default=None, ge=0, le=2**31)
    """Forbid repeated n-grams of this size, the prompt counted; 0 = allow them."""

    def rules(self) -> LogitsProcessor:
        given = {name: getattr(self, name) for name in Penalties.model_fields}
        return LogitsProcessor(**{name: value for name, value in given.items() if value is not None})


def seed_of(seed: int | None) -> int:
    """Any whole number will do; without one, another each time."""
    return random.randrange(SEEDS) if seed is None else seed % (SEEDS - 1000)


def stops_of(limits: Limits, given: Sequence[str]) -> list[str]:
    """Stop strings, within the limits; an empty one stops nothing."""
    limits.at_most("stops", len(given), "stop strings")
    limits.at_most("stop_characters", max(map(len, given), default=0), "characters in a stop string")
    return [each for each in given if each]


@dataclass
class Writing:
    """A text that a lane writes. Whoever stops listening frees its place."""

    served: Served
    prompt: Prompt
    ticket: Ticket | None
    """None where no token is wanted."""
    stop: Sequence[str] = ()
    text: str = ""
    steps: list[GeneratedToken] = field(default_factory=list)
    """Without the end token."""
    finish: str = "length"

    @property
    def before(self) -> list[int]:
        """The tokens behind which the text is written."""
        return [*(self.prompt.ids if self.served.config.family == "decoder" else ()), *self.prompt.prefix]

    def reader(self) -> Reader:
        """Who tells the tokens of the text."""
        return Reader(self.served.model.target_words(), self.before)

    async def pieces(self) -> AsyncIterator[tuple[str, list[GeneratedToken]]]:
        """Pieces of text, each with the tokens since the last one."""
        c, pending = self.served.config, list[GeneratedToken]()
        pieces, until = Detokenizer(self.served.model.target_words(), self.before), StopStrings(self.stop)
        if self.ticket is None:
            return
        try:
            async for some in self.ticket.steps():
                given = ""
                for step in some:
                    if step.token in c.eos_ids:
                        self.finish = "stop"
                        continue
                    pending.append(step)
                    given += until.add(pieces.add(step.token))
                    if until.found:
                        self.finish = "stop"
                        break
                if given or until.found:
                    yield self.gave(given, pending)
                    pending = []
                if until.found:
                    return
            rest = until.add(pieces.rest())
            rest += "" if until.found else until.held
            if rest or pending:
                yield self.gave(rest, pending)
        finally:
            self.ticket.gone = True

    def gave(self, text: str, steps: list[GeneratedToken]) -> tuple[str, list[GeneratedToken]]:
        self.text += text
        self.steps += steps
        return text, steps

    async def whole(self) -> Writing:
        async for _ in self.pieces():
            pass
        return self

    def close(self) -> None:
        if self.ticket is not None:
            self.ticket.gone = True


def begin(served: Served, prompts: Sequence[Prompt], manner: Manner) -> list[Writing]:
    """Hand all of them over, each with random numbers of its own, or none."""
    given, stop = list[Any](), manner.stop
    for number, prompt in enumerate(prompts):
        inputs, source, room = served.opened(prompt.ids, prompt.prefix)
        longest = min(manner.tokens, room, served.limits.tokens)
        ends, prefix = served.config.eos_ids, prompt.prefix
        rules = served.ruled(manner.rules, inputs[: len(inputs) - len(prefix)])
        seed = manner.seed + number
        text = Sampler(longest, ends, manner.how, seed, manner.top, rules, 0, prefix) if longest else None
        given.append(None if text is None else (inputs, source, text))
    tickets = iter(served.write_all([one for one in given if one is not None]))
    return [
        Writing(served, prompt, None if one is None else next(tickets), stop)
        for prompt, one in zip(prompts, given, strict=True)
    ]


class Stream(StreamingResponse):
    """Server-sent events. However it ends, the generator behind it is closed, and so frees its places."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[str]):
        super().__init__(events, headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self.body_iterator.aclose()  # type: ignore[attr-defined]


def refusal_of(error: Exception, served: Served) -> Refusal:
    """The error event that ends a stream; an internal error is logged and counted."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, TimeoutError):
        return busy(f"this took longer than {served.limits.seconds:g} s")
    return failed(error, served.name, served.metrics)


def event(content: Any) -> str:
    return f"data: {json.dumps(content, ensure_ascii=False, allow_nan=False)}\n\n"
