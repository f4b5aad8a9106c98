"""Responses of OpenAI's API, at once or as a stream of events."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from typing import Any

from qkv.generate.sequence import GeneratedToken
from qkv.serve.api.logprobs import TokenFormatter, chat_logprobs, completion_logprobs
from qkv.serve.api.service import RequestContext
from qkv.serve.http.events import EventStream, event
from qkv.serve.scheduling.served_model import ServedModel
from qkv.serve.scheduling.streaming import GenerationOptions, Prompt, TextStream, error_of, start_streams


class ResponseFormat:
    """Formats choices: what completions and chat messages share."""

    kind, chunk, id_prefix = "text_completion", "text_completion", "cmpl"

    def __init__(self, asked: Any, served: ServedModel):
        self.asked, self.served = asked, served
        self.id, self.created = f"{self.id_prefix}-{uuid.uuid4().hex}", int(time.time())
        self.formatters: list[TokenFormatter] = []
        """One for each choice."""
        self.prompt_steps: list[list[GeneratedToken]] = []
        """The tokens of each prompt, if they are returned before the generated ones."""

    def envelope(self, choices: list[dict[str, Any]], streamed: bool = False, **more: Any) -> dict[str, Any]:
        kind = self.chunk if streamed else self.kind
        fields = {"id": self.id, "object": kind, "created": self.created, "model": self.served.name}
        return fields | {"choices": choices} | more

    async def prepare(self) -> None:
        """Compute what must be known before the first token."""

    def start(self, streams: Sequence[TextStream]) -> None:
        words = self.served.model.target_words()
        self.formatters = [TokenFormatter(words, [] if self.prompt_steps else one.context) for one in streams]


class CompletionFormat(ResponseFormat):
    """Choices as texts."""

    def __init__(self, asked: Any, served: ServedModel, prompts: Sequence[Prompt]):
        super().__init__(asked, served)
        self.prompts, self.choices_per_prompt = prompts, asked.n or 1
        self.echoed: list[str] = []

    async def prepare(self) -> None:
        """With echo, decode the prompts; with logprobs also compute those of the prompt."""
        if not self.asked.echo:
            return
        self.echoed = await asyncio.to_thread(self.prompt_texts)
        if self.asked.logprobs is not None and self.served.config.family == "decoder":
            for prompt in self.prompts:
                self.served.inputs_of(prompt.ids)  # an invalid prompt is rejected before it is computed
            top = self.asked.logprobs
            work = lambda items: [self.served.prompt_steps(ids, top) for ids in items]  # noqa: E731
            self.prompt_steps = await self.served.batcher.submit(("prompt", top), work, [p.ids for p in self.prompts])

    def prompt_texts(self) -> list[str]:
        """Return the prompts as they were sent, those given as token ids decoded."""
        given = self.asked.prompt
        if isinstance(given, str):
            return [given]
        if given and isinstance(given[0], str):
            return list(given)
        return [self.served.model.words().decode(prompt.ids) for prompt in self.prompts]

    def logprobs(self, index: int, steps: list[GeneratedToken]) -> dict[str, Any] | None:
        top = self.asked.logprobs
        return None if top is None else completion_logprobs(self.formatters[index], steps, top)

    def opening(self, index: int) -> list[dict[str, Any]]:
        """Return the choices that a stream sends before the first piece of text."""
        number = index // self.choices_per_prompt
        text = self.echoed[number] if self.echoed else ""
        choice = self.piece(index, text, self.prompt_steps[number] if self.prompt_steps else [], None)
        self.formatters[index].offset = len(text)  # of the prompt as it was sent, which its tokens may spell otherwise
        return [choice] if text else []

    def whole(self, index: int, stream: TextStream) -> dict[str, Any]:
        opening, choice = self.opening(index), self.piece(index, stream.text, stream.steps, stream.finish)
        for prompt in opening:
            choice["text"] = prompt["text"] + choice["text"]
            for name, column in (choice["logprobs"] or {}).items():
                choice["logprobs"][name] = None if column is None else prompt["logprobs"][name] + column
        return choice

    def piece(self, index: int, text: str, steps: list[GeneratedToken], finish: str | None) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": self.logprobs(index, steps), "finish_reason": finish}


class ChatFormat(ResponseFormat):
    """Choices as messages."""

    kind, chunk, id_prefix = "chat.completion", "chat.completion.chunk", "chatcmpl"

    def logprobs(self, index: int, steps: list[GeneratedToken]) -> dict[str, Any] | None:
        return chat_logprobs(self.formatters[index], steps) if self.asked.logprobs else None

    def opening(self, index: int) -> list[dict[str, Any]]:
        delta = {"role": "assistant", "content": ""}
        return [{"index": index, "delta": delta, "logprobs": None, "finish_reason": None}]

    def whole(self, index: int, stream: TextStream) -> dict[str, Any]:
        message = {"role": "assistant", "content": stream.text, "refusal": None}
        logprobs = self.logprobs(index, stream.steps)
        return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": stream.finish}

    def piece(self, index: int, text: str, steps: list[GeneratedToken], finish: str | None) -> dict[str, Any]:
        delta = {"content": text} if finish is None else {}
        return {"index": index, "delta": delta, "logprobs": self.logprobs(index, steps), "finish_reason": finish}


Format = CompletionFormat | ChatFormat


async def respond(
    context: RequestContext, asked: Any, prompts: Sequence[Prompt], options: GenerationOptions, formatter: Format
) -> Any:
    """Generate a text for each prompt and return them at once or as a stream."""
    await context.wait_for(formatter.prepare())
    streams = start_streams(formatter.served, prompts, options)
    formatter.start(streams)
    prompt_tokens = sum(len(prompt.ids) for prompt in prompts) // max(1, asked.n or 1)
    if asked.stream:
        with_usage = asked.stream_options is not None and asked.stream_options.include_usage
        return EventStream(stream_events(context, streams, formatter, prompt_tokens, with_usage))
    try:
        await context.wait_for(wait_for_all(streams))
    finally:
        for stream in streams:
            stream.close()
    choices = await context.to_thread(lambda: [formatter.whole(*each) for each in enumerate(streams)])
    return formatter.envelope(choices, usage=usage(prompt_tokens, streams))


async def wait_for_all(streams: Sequence[TextStream]) -> None:
    await asyncio.gather(*(stream.wait() for stream in streams))


def usage(prompt_tokens: int, streams: Sequence[TextStream]) -> dict[str, int]:
    generated = sum(len(stream.steps) for stream in streams)
    return {"prompt_tokens": prompt_tokens, "completion_tokens": generated, "total_tokens": prompt_tokens + generated}


async def stream_events(
    context: RequestContext, streams: Sequence[TextStream], formatter: Format, prompt_tokens: int, with_usage: bool
) -> AsyncIterator[str]:
    """Yield events of all choices as they come, one with the finish reason of each, and `[DONE]`."""
    more = {"usage": None} if with_usage else {}
    pieces: asyncio.Queue[dict[str, Any] | Exception | None] = asyncio.Queue()
    tasks = [asyncio.ensure_future(put_pieces(index, one, formatter, pieces)) for index, one in enumerate(streams)]
    left = len(tasks)
    try:
        async with asyncio.timeout(context.remaining()):
            while left:
                piece = await pieces.get()
                if isinstance(piece, Exception):
                    raise piece
                left -= piece is None
                if piece is not None:
                    yield event(formatter.envelope([piece], streamed=True, **more))
        if with_usage:
            yield event(formatter.envelope([], streamed=True, usage=usage(prompt_tokens, streams)))
    except Exception as error:
        yield event(error_of(error, formatter.served).body("/v1"))
    finally:
        for task, stream in zip(tasks, streams, strict=True):
            task.cancel()
            stream.close()
    yield "data: [DONE]\n\n"


async def put_pieces(index: int, stream: TextStream, formatter: Format, pieces: asyncio.Queue[Any]) -> None:
    """Put the pieces of one choice into the queue, and None at its end."""
    try:
        for opening in formatter.opening(index):
            pieces.put_nowait(opening)
        async for text, steps in stream.pieces():
            pieces.put_nowait(formatter.piece(index, text, steps, None))
        pieces.put_nowait(formatter.piece(index, "", [], stream.finish))
        pieces.put_nowait(None)
    except Exception as error:
        pieces.put_nowait(error)
