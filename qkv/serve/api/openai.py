"""OpenAI's API: /v1/models, /v1/completions, /v1/chat/completions, /v1/embeddings.

Fields that nobody here knows are ignored, as OpenAI's server does; those that would change the answer and are not
supported are refused by name.
"""

from __future__ import annotations

import asyncio
import base64
import struct
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Path, Request
from pydantic import BaseModel, ConfigDict, Field

from qkv.generate.sampling import SamplingParams
from qkv.generate.sequence import GeneratedToken
from qkv.serve.api.logprobs import Reader, chat_logprobs, completion_logprobs
from qkv.serve.http.errors import Refusal
from qkv.serve.http.middleware import listed
from qkv.serve.scheduling.limits import MOST_ITEMS, BoundedStr, Many
from qkv.serve.scheduling.registry import Service
from qkv.serve.scheduling.served_model import Served
from qkv.serve.scheduling.streaming import (
    Manner,
    Penalties,
    Prompt,
    Stream,
    Writing,
    begin,
    event,
    refusal_of,
    seed_of,
    stops_of,
)

Count = Annotated[int, Field(ge=0, le=2**31)]
Ids = Annotated[Many[Annotated[int, Field(ge=0, le=2**31)]], Field(min_length=1)]
Mapping = Annotated[dict[str, Any], Field(max_length=MOST_ITEMS)]
Texts = BoundedStr | Many[BoundedStr] | Ids | Many[Ids]


class StreamOptions(BaseModel):
    include_usage: bool = False


class Asked(Penalties):
    """What completions and chats share."""

    model: str = Field(max_length=200)
    """One of /v1/models."""
    temperature: float | None = Field(default=None, ge=0, le=100, allow_inf_nan=False)
    """0 = the likeliest token each time; otherwise logits are divided by it. Default 1."""
    top_p: float | None = Field(default=None, gt=0, le=1, allow_inf_nan=False)
    """Only the likeliest tokens that together have this probability."""
    top_k: int | None = Field(default=None, ge=-1, le=2**31)
    """Only so many of the likeliest; 0 or -1 = all. Like min_p no field of OpenAI's, but of many servers with its API."""
    min_p: float | None = Field(default=None, ge=0, le=1, allow_inf_nan=False)
    """Only tokens with at least this share of the likeliest one's probability."""
    n: int | None = Field(default=None, ge=1, le=2**31)
    """How many texts."""
    stop: BoundedStr | Many[BoundedStr] | None = None
    """Strings that end a text and are left out of it."""
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    """The same seed gives the same text."""
    stream: bool | None = None
    """Piece by piece, as server-sent events."""
    stream_options: StreamOptions | None = None
    user: BoundedStr | None = None
    logit_bias: Mapping | None = None

    def stops(self, service: Service) -> list[str]:
        return stops_of(service.limits, listed(self.stop or []))

    def sampling(self) -> SamplingParams:
        temperature = 1.0 if self.temperature is None else self.temperature
        return SamplingParams(
            temperature, max(0, self.top_k or 0), 1.0 if self.top_p is None else self.top_p, self.min_p or 0.0
        )

    def manner(self, service: Service, tokens: int, top: int) -> Manner:
        return Manner(tokens, self.sampling(), seed_of(self.seed), top, self.stops(service), self.rules())

    def unsupported(self, **others: Any) -> None:
        for name, value in {"logit_bias": self.logit_bias, **others}.items():
            if value:
                raise Refusal(400, f"{name} is not supported here: leave it out", "unsupported_parameter", name)


class Completion(Asked):
    prompt: Texts = ""
    """One or several texts to go on from, or their token ids."""
    max_tokens: Count | None = 16
    logprobs: Count | None = None
    """Log-probabilities of the tokens, and of so many that could have stood in their places."""
    echo: bool | None = None
    """Put the prompt before the answer."""
    suffix: BoundedStr | None = None
    best_of: Count | None = None


class Part(BaseModel):
    type: Literal["text"]
    text: BoundedStr


class Message(BaseModel):
    role: Literal["system", "developer", "user", "assistant"]
    content: BoundedStr | Many[Part]
    name: BoundedStr | None = None

    def plain(self) -> dict[str, str]:
        text = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return {"role": "system" if self.role == "developer" else self.role, "content": text}


class Chat(Asked):
    messages: Many[Message] = Field(min_length=1)
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Count | None = None
    tools: Many[Any] | None = None
    functions: Many[Any] | None = None
    response_format: Mapping | None = None


class Embedding(BaseModel):
    model_config = ConfigDict(use_attribute_docstrings=True)

    model: str = Field(max_length=200)
    input: Texts
    """One or several texts, or their token ids."""
    encoding_format: Literal["float", "base64"] | None = None
    """Numbers (the default), or the bytes of float32 numbers in base64."""
    dimensions: Count | None = None
    user: BoundedStr | None = None


def router(service: Service) -> APIRouter:
    routes = APIRouter(prefix="/v1", tags=["OpenAI"], dependencies=[Depends(service.asks_for_key)])
    listing(routes, service)
    writing(routes, service)
    embedding(routes, service)
    return routes


def listing(routes: APIRouter, service: Service) -> None:
    def card(one: Served) -> dict[str, Any]:
        return {"id": one.name, "object": "model", "created": service.created, "owned_by": "qkv"}

    @routes.get("/models")
    async def models() -> dict[str, Any]:
        """The models that are here."""
        return {"object": "list", "data": [card(one) for one in service.models]}

    @routes.get("/models/{name}")
    async def model(name: Annotated[str, Path(max_length=200)]) -> dict[str, Any]:
        """One of them."""
        found = next((one for one in service.models if one.name == name), None)
        if found is None:
            raise Refusal(404, f"there is no model {name[:100]!r} here", "model_not_found", "model")
        return card(found)


def writing(routes: APIRouter, service: Service) -> None:
    @routes.post("/completions")
    async def completions(asked: Completion, request: Request) -> Any:
        """Go on from a prompt; an encoder-decoder writes the target of it as a source."""
        asked.unsupported(suffix=asked.suffix, best_of=(asked.best_of or 1) > (asked.n or 1))
        served = service.named(asked.model, "generate")
        prompts = await service.threaded(request, prompts_of, asked, served)
        service.limits.at_most("top", asked.logprobs or 0, "logprobs")
        tokens = 16 if asked.max_tokens is None else asked.max_tokens
        manner = asked.manner(service, tokens, asked.logprobs or 0)
        said = Completed(asked, served, prompts)
        return await answered(service, request, asked, served, repeated(service, prompts, asked.n), manner, said)

    @routes.post("/chat/completions")
    async def chat(asked: Chat, request: Request) -> Any:
        """The assistant's next message."""
        form = asked.response_format or {}
        asked.unsupported(
            tools=asked.tools, functions=asked.functions, response_format=form.get("type", "text") != "text"
        )
        served = service.named(asked.model, "chat")
        messages = [message.plain() for message in asked.messages]
        service.limits.texts_of([message["content"] for message in messages], "messages")
        service.limits.at_most("top", asked.top_logprobs or 0, "top_logprobs")
        ids = await service.threaded(request, served.model.chat_ids, messages)
        wanted = asked.max_completion_tokens if asked.max_completion_tokens is not None else asked.max_tokens
        top = (asked.top_logprobs or 0) if asked.logprobs else 0
        tokens = service.limits.tokens if wanted is None else wanted
        manner = asked.manner(service, tokens, top)
        prompts = repeated(service, [Prompt(ids)], asked.n)
        return await answered(service, request, asked, served, prompts, manner, Chatted(asked, served))


def embedding(routes: APIRouter, service: Service) -> None:
    @routes.post("/embeddings")
    async def embeddings(asked: Embedding, request: Request) -> dict[str, Any]:
        """A vector for each text: the mean of its tokens' last vectors, of length 1."""
        served = service.named(asked.model, "embed")
        texts = await service.threaded(request, served.spelled, asked.input)
        if not texts or not all(texts):
            raise Refusal(400, "there is nothing to embed: an input is empty", param="input")
        if asked.dimensions not in (None, served.config.d_model):
            raise Refusal(400, f"this model's vectors have {served.config.d_model} numbers", param="dimensions")
        work = lambda items: served.model.embed(items, truncate=True).tolist()  # noqa: E731
        vectors = await service.attended(request, served.caller.ask("embed", work, texts))
        data = [
            {"object": "embedding", "index": index, "embedding": encoded(vector, asked.encoding_format)}
            for index, vector in enumerate(vectors)
        ]
        count = await service.threaded(request, lambda: sum(len(ids) for ids in served.model.words().plain(texts)))
        return {"object": "list", "model": served.name, "data": data,
                "usage": {"prompt_tokens": count, "total_tokens": count}}  # fmt: skip


def encoded(vector: list[float], form: str | None) -> list[float] | str:
    """Numbers, or the bytes of float32 numbers in base64."""
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode() if form == "base64" else vector


def prompts_of(asked: Completion, served: Served) -> list[Prompt]:
    """The prompts in tokens."""
    given = served.limits.several(asked.prompt, "prompts")
    return [Prompt(served.prompt_ids(each) if isinstance(each, str) else each) for each in given]


def repeated(service: Service, prompts: Sequence[Prompt], n: int | None) -> list[Prompt]:
    """Each prompt n times."""
    service.limits.at_most("alternatives", (n or 1) - 1, "choices beside the first")
    service.limits.at_most("texts", len(prompts) * (n or 1), "texts (prompts times n)")
    return [prompt for prompt in prompts for _ in range(n or 1)]


# --- answers in OpenAI's shapes


class Said:
    """How a text is put into a completion; Chatted does it for a chat."""

    kind, chunk, prefix = "text_completion", "text_completion", "cmpl"

    def __init__(self, asked: Any, served: Served):
        self.asked, self.served = asked, served
        self.id, self.created = f"{self.prefix}-{uuid.uuid4().hex}", int(time.time())
        self.readers: list[Reader] = []
        """Who tells the tokens of each choice."""

    def frame(self, choices: list[dict[str, Any]], streamed: bool = False, **more: Any) -> dict[str, Any]:
        kind = self.chunk if streamed else self.kind
        same = {"id": self.id, "object": kind, "created": self.created, "model": self.served.name}
        return same | {"choices": choices} | more

    async def prepare(self) -> None:
        """What must be known before the first piece."""

    def began(self, writings: Sequence[Writing]) -> None:
        self.readers = [one.reader() for one in writings]

    def opening(self, index: int) -> list[dict[str, Any]]:
        """Choices that come before the first piece of a stream."""
        return []

    def whole(self, index: int, one: Writing) -> dict[str, Any]:
        raise NotImplementedError

    def piece(self, index: int, text: str, steps: list[GeneratedToken], finish: str | None) -> dict[str, Any]:
        raise NotImplementedError


class Completed(Said):
    def __init__(self, asked: Completion, served: Served, prompts: Sequence[Prompt]):
        super().__init__(asked, served)
        self.prompts, self.each = prompts, asked.n or 1
        self.read: list[list[GeneratedToken]] = []

    async def prepare(self) -> None:
        """With echo and logprobs, those of the prompt too."""
        if self.asked.echo and self.asked.logprobs is not None and self.served.config.family == "decoder":
            for prompt in self.prompts:
                self.served.opened(prompt.ids)  # what cannot be read is refused before it is
            work = lambda items: [self.served.read(ids, self.asked.logprobs) for ids in items]  # noqa: E731
            self.read = await self.served.caller.ask(("read", self.asked.logprobs), work, [p.ids for p in self.prompts])

    def echo(self, index: int) -> tuple[str, list[GeneratedToken]]:
        number = index // self.each
        if not self.asked.echo:
            return "", []
        prompt = self.asked.prompt
        given = prompt if isinstance(prompt, str) else prompt[number] if prompt and isinstance(prompt[0], str) else None
        text = given if isinstance(given, str) else self.served.model.words().decode(self.prompts[number].ids)
        return text, self.read[number] if self.read else []

    def began(self, writings: Sequence[Writing]) -> None:
        words = self.served.model.target_words()
        self.readers = [Reader(words) if self.read else one.reader() for one in writings]  # the prompt comes first

    def logprobs(self, index: int, steps: list[GeneratedToken]) -> dict[str, Any] | None:
        wanted = self.asked.logprobs
        return None if wanted is None else completion_logprobs(self.readers[index], steps, wanted)

    def opening(self, index: int) -> list[dict[str, Any]]:
        text, steps = self.echo(index)
        found = self.piece(index, text, steps, None)
        self.readers[index].offset = len(text)  # as the prompt was given, which its tokens may spell otherwise
        return [found] if text else []

    def whole(self, index: int, one: Writing) -> dict[str, Any]:
        opening, rest = self.opening(index), self.piece(index, one.text, one.steps, one.finish)
        for before in opening:
            rest["text"] = before["text"] + rest["text"]
            for name, column in (rest["logprobs"] or {}).items():
                rest["logprobs"][name] = None if column is None else before["logprobs"][name] + column
        return rest

    def piece(self, index: int, text: str, steps: list[GeneratedToken], finish: str | None) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": self.logprobs(index, steps), "finish_reason": finish}


class Chatted(Said):
    kind, chunk, prefix = "chat.completion", "chat.completion.chunk", "chatcmpl"

    def logprobs(self, index: int, steps: list[GeneratedToken]) -> dict[str, Any] | None:
        return chat_logprobs(self.readers[index], steps) if self.asked.logprobs else None

    def opening(self, index: int) -> list[dict[str, Any]]:
        delta = {"role": "assistant", "content": ""}
        return [{"index": index, "delta": delta, "logprobs": None, "finish_reason": None}]

    def whole(self, index: int, one: Writing) -> dict[str, Any]:
        message = {"role": "assistant", "content": one.text, "refusal": None}
        told = self.logprobs(index, one.steps)
        return {"index": index, "message": message, "logprobs": told, "finish_reason": one.finish}

    def piece(self, index: int, text: str, steps: list[GeneratedToken], finish: str | None) -> dict[str, Any]:
        delta = {"content": text} if finish is None else {}
        return {"index": index, "delta": delta, "logprobs": self.logprobs(index, steps), "finish_reason": finish}


async def answered(service: Service, request: Request, asked: Asked, served: Served, prompts: Sequence[Prompt],
                   manner: Manner, said: Said) -> Any:  # fmt: skip
    """All at once, or as a stream."""
    await service.attended(request, said.prepare())
    writings = begin(served, prompts, manner)
    said.began(writings)
    read = sum(len(prompt.ids) for prompt in prompts) // max(1, asked.n or 1)
    if asked.stream:
        return Stream(streamed(service, request, asked, writings, said, read))
    try:
        await service.attended(request, together(writings))
    finally:
        for one in writings:
            one.close()
    return said.frame([said.whole(index, one) for index, one in enumerate(writings)], usage=usage(read, writings))


async def together(writings: Sequence[Writing]) -> None:
    await asyncio.gather(*(one.whole() for one in writings))


def usage(read: int, writings: Sequence[Writing]) -> dict[str, int]:
    written = sum(len(one.steps) for one in writings)
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}


async def streamed(service: Service, request: Request, asked: Asked, writings: Sequence[Writing], said: Said, read: int
                   ) -> AsyncIterator[str]:  # fmt: skip
    """Events of all choices as they come, one that says how each ended, `[DONE]`."""
    told = asked.stream_options is not None and asked.stream_options.include_usage
    more = {"usage": None} if told else {}
    pieces: asyncio.Queue[dict[str, Any] | Exception | None] = asyncio.Queue()
    tasks = [asyncio.ensure_future(follow(index, one, said, pieces)) for index, one in enumerate(writings)]
    left = len(tasks)
    try:
        async with asyncio.timeout(service.remaining(request)):
            while left:
                piece = await pieces.get()
                if isinstance(piece, Exception):
                    raise piece
                left -= piece is None
                if piece is not None:
                    yield event(said.frame([piece], streamed=True, **more))
        if told:
            yield event(said.frame([], streamed=True, usage=usage(read, writings)))
    except Exception as error:
        yield event(refusal_of(error, said.served).content("/v1"))
    finally:
        for task, one in zip(tasks, writings, strict=True):
            task.cancel()
            one.close()
    yield "data: [DONE]\n\n"


async def follow(index: int, one: Writing, said: Said, pieces: asyncio.Queue[Any]) -> None:
    """One choice of a stream."""
    try:
        for opening in said.opening(index):
            pieces.put_nowait(opening)
        async for text, steps in one.pieces():
            pieces.put_nowait(said.piece(index, text, steps, None))
        pieces.put_nowait(said.piece(index, "", [], one.finish))
        pieces.put_nowait(None)
    except Exception as error:
        pieces.put_nowait(error)
