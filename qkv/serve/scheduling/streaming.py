"""Generated tokens as text: pieces of text as they become complete, up to a stop string or the end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from qkv.generate.detokenize import Detokenizer, StopStrings
from qkv.generate.logits_processor import NO_PROCESSING, LogitsProcessor
from qkv.generate.sampling import SamplingParams
from qkv.generate.sequence import GeneratedToken, Sampler
from qkv.serve.http.errors import ApiError, overload_error
from qkv.serve.scheduling.scheduled_text import ScheduledText
from qkv.serve.scheduling.scheduler import internal_error
from qkv.serve.scheduling.served_model import ServedModel


@dataclass(frozen=True)
class Prompt:
    """The tokens to continue from."""

    ids: list[int]
    prefix: list[int] = field(default_factory=list)
    """Tokens with which the output starts."""


@dataclass(frozen=True)
class GenerationOptions:
    """How to sample a text."""

    max_tokens: int
    sampling: SamplingParams
    seed: int
    top: int = 0
    """Most likely tokens to return for each step."""
    stop: Sequence[str] = ()
    penalties: LogitsProcessor = NO_PROCESSING


@dataclass
class TextStream:
    """A text that a scheduler generates. Ending the iteration, or `close`, frees its place in the batch."""

    served: ServedModel
    prompt: Prompt
    scheduled: ScheduledText | None
    """None if no token was requested."""
    stop: Sequence[str] = ()
    text: str = ""
    steps: list[GeneratedToken] = field(default_factory=list)
    """Generated tokens without the end token."""
    finish: str = "length"

    @property
    def context(self) -> list[int]:
        """The tokens before the generated text."""
        return [*(self.prompt.ids if self.served.config.family == "decoder" else ()), *self.prompt.prefix]

    async def pieces(self) -> AsyncIterator[tuple[str, list[GeneratedToken]]]:
        """Yield pieces of text, each with the tokens since the last one."""
        if self.scheduled is None:
            return
        end_ids, pending = self.served.config.eos_ids, list[GeneratedToken]()
        pieces, until = Detokenizer(self.served.model.target_words(), self.context), StopStrings(self.stop)
        try:
            async for steps in self.scheduled.steps():
                text = ""
                for step in steps:
                    if step.token in end_ids:
                        self.finish = "stop"
                        continue
                    pending.append(step)
                    text += until.add(pieces.add(step.token))
                    if until.found:
                        self.finish = "stop"
                        break
                if text or until.found:
                    yield self.add(text, pending)
                    pending = []
                if until.found:
                    return
            rest = until.add(pieces.rest())
            rest += "" if until.found else until.held
            if rest or pending:
                yield self.add(rest, pending)
        finally:
            self.close()

    def add(self, text: str, steps: list[GeneratedToken]) -> tuple[str, list[GeneratedToken]]:
        self.text += text
        self.steps += steps
        return text, steps

    async def wait(self) -> TextStream:
        """Return the stream when its text is complete."""
        async for _ in self.pieces():
            pass
        return self

    def close(self) -> None:
        if self.scheduled is not None:
            self.scheduled.cancelled = True


def start_streams(served: ServedModel, prompts: Sequence[Prompt], options: GenerationOptions) -> list[TextStream]:
    """Enqueue all prompts or none, each with its own random numbers."""
    texts: list[ScheduledText | None] = []
    for number, prompt in enumerate(prompts):
        inputs, source, room = served.inputs_of(prompt.ids, prompt.prefix)
        longest = min(options.max_tokens, room, served.limits.tokens)
        processor = served.with_penalties(options.penalties, inputs[: len(inputs) - len(prompt.prefix)])
        seed, ends = options.seed + number, served.config.eos_ids
        sampler = Sampler(longest, ends, options.sampling, seed, options.top, processor, 0, prompt.prefix)
        texts.append(ScheduledText(inputs, source, sampler) if longest else None)
    served.queue.put([text for text in texts if text is not None])
    return [TextStream(served, prompt, text, options.stop) for prompt, text in zip(prompts, texts, strict=True)]


def error_of(error: Exception, served: ServedModel) -> ApiError:
    """Convert an exception to the error event that ends a stream; an internal error is logged and counted."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, TimeoutError):
        return overload_error(f"this took longer than {served.limits.seconds:g} s")
    return internal_error(error, served.name, served.metrics)
