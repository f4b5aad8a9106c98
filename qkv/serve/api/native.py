"""Our own API: what each trained model does, under its name: /api/models, generate, translate, summarize, classify, tag,
fill, answer, describe, run."""

from __future__ import annotations

import asyncio
import base64
import io
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from pydantic import BaseModel, ConfigDict, Field, model_validator

from qkv.data.images import Pixels, open_picture, unpack
from qkv.errors import FileError
from qkv.generate.sampling import SamplingParams
from qkv.generate.translate import Translation
from qkv.serve.api import sentences
from qkv.serve.api.libretranslate import Way, links_of, ways_of
from qkv.serve.api.logprobs import number, token_records
from qkv.serve.http.errors import Refusal
from qkv.serve.http.middleware import listed
from qkv.serve.scheduling.limits import BoundedStr, Many
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

Name = Annotated[str | None, Field(max_length=200)]
Count = Annotated[int, Field(ge=1, le=2**31)]
Id = Annotated[int, Field(ge=0, le=2**31)]
TextOrPair = BoundedStr | Annotated[Many[BoundedStr], Field(min_length=2, max_length=2)]
FIELDS = 100
"""Fields of a request that are looked at."""


class Ask(BaseModel):
    """What all requests have: which model, where there are several. A field that is not known is an error."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    model: Name = None
    """Its name; without one, the first that can do it."""

    @model_validator(mode="before")
    @classmethod
    def few(cls, given: Any) -> Any:
        """Each unknown field is an error of its own: a request of nothing else would have as many."""
        if isinstance(given, dict) and len(given) > FIELDS:
            raise ValueError(f"{len(given):,} fields, but no request has more than {FIELDS}")
        return given


class Generate(Ask, Penalties):
    prompt: BoundedStr
    """What to go on from; of an encoder-decoder the source."""
    chat: bool = False
    """The prompt is a message to the assistant."""
    system: BoundedStr | None = None
    """A system message (implies chat)."""
    prefix: Many[Id] = []
    """Token ids that the answer begins with: those before an alternative, and the alternative."""
    max_tokens: Count = 100
    temperature: float = Field(default=0.0, ge=0, le=100, allow_inf_nan=False)
    top_k: int = Field(default=0, ge=0, le=2**31)
    top_p: float = Field(default=1.0, gt=0, le=1, allow_inf_nan=False)
    min_p: float = Field(default=0.0, ge=0, le=1, allow_inf_nan=False)
    seed: int | None = Field(default=None, ge=0, lt=2**62)
    stop: Many[BoundedStr] = []
    alternatives: int = Field(default=5, ge=0, le=2**31)
    """So many of the likeliest tokens are told at each step."""
    stream: bool = False


class Search(Ask):
    texts: BoundedStr | Many[BoundedStr]
    """One text or several."""
    beam: Count | None = None
    """Hypotheses per text; without it, as the model was scored."""
    n_best: Count = 1
    max_length: Count | None = None
    """Longest answer in tokens."""


class Translate(Search):
    prefix: str | None = Field(default=None, max_length=1000)
    """How every translation begins."""
    alignments: bool = False
    """Which source word the decoder attends to while it predicts each word."""


class Sentences(Ask):
    text: BoundedStr
    """What is split into sentences."""


class Texts(Ask):
    texts: BoundedStr | Many[BoundedStr]
    top_k: Count = 5


class Classify(Ask):
    texts: BoundedStr | Many[TextOrPair] | None = None
    """Texts, or pairs of texts."""
    images: Many[BoundedStr] | None = None
    """Pictures (PNG, JPEG ...) in base64, for a model that reads them."""
    top_k: Count | None = None


class Tag(Ask):
    texts: BoundedStr | Many[BoundedStr | Many[BoundedStr]]
    """Sentences, or lists of words."""


class Answer(Ask):
    question: BoundedStr
    context: BoundedStr
    no_answer: bool = False
    """Whether the model may say that there is none."""
    max_answer: Count = 30


class Describe(Ask):
    images: Many[BoundedStr]
    """Pictures (PNG, JPEG ...) in base64."""
    beam: Count | None = None
    n_best: Count = 1


class Embed(Ask):
    texts: BoundedStr | Many[BoundedStr]
    pooling: str = Field(default="mean", pattern="^(mean|cls|last)$", max_length=10)


def router(service: Service) -> APIRouter:
    routes = APIRouter(prefix="/api", tags=["qkv"], dependencies=[Depends(service.asks_for_key)])
    writing(routes, service)
    reading(routes, service)
    seeing(routes, service)

    @routes.get("/models")
    async def models() -> dict[str, Any]:
        """The models that are here: family, sizes, what they can do; and what the server allows."""
        return {"models": [one.about() for one in service.models], "limits": service.limits.model_dump(),
                "run": service.watch and service.watch.name, "run_model": service.run_model()}  # fmt: skip

    @routes.get("/run")
    def run(
        since: Annotated[int, Query(ge=0, le=2**62)] = 0, points: Annotated[int, Query(ge=1, le=100_000)] = 2000
    ) -> Any:
        """The log of the run that is watched (`qkv serve --run FOLDER`), after update `since`."""
        if service.watch is None:
            raise Refusal(404, "no run is watched: start the server with --run FOLDER")
        return service.watch.since(since, points)

    return routes


# --- models that write


def writing(routes: APIRouter, service: Service) -> None:
    @routes.post("/generate")
    async def generate(asked: Generate, request: Request) -> Any:
        """Go on from a prompt; every token with its probability and what could have stood there."""
        served = service.named(asked.model, "chat" if asked.chat or asked.system is not None else "generate")
        service.limits.texts_of([asked.prompt, asked.system or ""])
        service.limits.at_most("top", asked.alternatives, "alternatives")
        service.limits.at_most("tokens", max(asked.max_tokens, len(asked.prefix)), "tokens")
        ids = await service.threaded(request, served.prompt_ids, asked.prompt, asked.chat, asked.system)
        how = SamplingParams(asked.temperature, asked.top_k, asked.top_p, asked.min_p)
        stop = stops_of(service.limits, asked.stop)
        manner = Manner(asked.max_tokens, how, seed_of(asked.seed), asked.alternatives, stop, asked.rules())
        (one,) = begin(served, [Prompt(ids, asked.prefix)], manner)
        if asked.stream:
            return Stream(streamed(service, request, one))
        try:
            await service.attended(request, one.whole())
        finally:
            one.close()
        return said(one)

    @routes.post("/translate")
    async def translate(asked: Translate, request: Request) -> dict[str, Any]:
        """Translations with scores, tokens and their probabilities, n-best lists, word alignments. A text is translated sentence by
        sentence; with `prefix` as a whole."""
        served = service.named(asked.model, "translate")
        texts = checked(service, asked)
        how = served.request(
            asked.beam, asked.n_best, max_length=asked.max_length, prefixes=[asked.prefix] if asked.prefix else ()
        )
        ways = await service.attended(request, ways_of(served, texts, how))
        results = [shown(n_best(own)) for own in ways]
        if asked.alignments:
            links = [await service.attended(request, links_of(served, best)) for best, *_ in ways]
            results = [one | {"alignment": own} for one, own in zip(results, links, strict=True)]
        return {"model": served.name, "results": results}

    @routes.post("/sentences")
    async def split(asked: Sentences, request: Request) -> dict[str, Any]:
        """The sentences of a text, as they are translated: {"text", "translated": whether it has words, "space" behind it}."""
        service.limits.texts_of([asked.text])
        pieces = [*await service.threaded(request, sentences.split, asked.text), ""]
        records = [{"text": text, "translated": sentences.worded(text), "space": space}
                   for text, space in zip(pieces[::2], pieces[1::2], strict=True)]  # fmt: skip
        return {"sentences": records}

    @routes.post("/summarize")
    async def summarize(asked: Search, request: Request) -> dict[str, Any]:
        """A short text for each."""
        served = service.named(asked.model, "summarize")
        how = served.request(asked.beam, asked.n_best, max_length=asked.max_length)
        found = await service.attended(request, served.search(checked(service, asked), how))
        return {"model": served.name, "results": [shown(one) for one in found]}


def n_best(ways: Sequence[Way]) -> Translation:
    """The best translation of a text, with all others."""
    found = [way.whole() for way in ways]
    return replace(found[0], n_best=found if len(found) > 1 else [])


def checked(service: Service, asked: Search) -> list[str]:
    """The texts of a search, within the limits."""
    texts = listed(asked.texts)
    service.limits.texts_of(texts)
    service.limits.at_most("alternatives", asked.n_best - 1, "answers beside the first")
    service.limits.at_most("tokens", asked.max_length or 0, "tokens")
    return texts


def shown(one: Translation) -> dict[str, Any]:
    """A translation in JSON, with all others of its n-best list."""
    own = {"text": one.text, "score": number(one.score), "tokens": one.tokens,
           "log_probs": [number(each) for each in one.token_log_probs]}  # fmt: skip
    if one.problem:
        raise Refusal(400, one.problem)
    return own | ({"n_best": [shown(each) for each in one.n_best]} if len(one.n_best) > 1 else {})


def said(one: Writing) -> dict[str, Any]:
    return {"model": one.served.name, "text": one.text, "tokens": token_records(one.reader(), one.steps),
            "finish": one.finish, "prompt_tokens": len(one.prompt.ids)}  # fmt: skip


async def streamed(service: Service, request: Request, one: Writing) -> AsyncIterator[str]:
    """Events {"text", "tokens"}, at last {"finish"}."""
    reader = one.reader()
    try:
        async with asyncio.timeout(service.remaining(request)):
            async for text, steps in one.pieces():
                yield event({"text": text, "tokens": token_records(reader, steps)})
        yield event({"finish": one.finish})
    except Exception as error:
        yield event(refusal_of(error, one.served).content("/api"))
    finally:
        one.close()


# --- models that read


def reading(routes: APIRouter, service: Service) -> None:
    @routes.post("/classify")
    async def classify(asked: Classify, request: Request) -> dict[str, Any]:
        """The class of each text, pair or picture, with probabilities; of a model that was trained on numbers, its score."""
        served, limits = service.named(asked.model, "classify"), service.limits
        sees = served.config.image_size is not None
        if asked.texts is not None if sees else asked.images is not None:
            raise Refusal(
                400, "this model reads pictures: give images" if sees else "this model reads texts: give texts"
            )
        if sees:
            items: list[Any] = await service.attended(request, pictures(asked.images or [], served))
        else:
            items = [tuple(one) if isinstance(one, list) else one for one in listed(asked.texts or [])]
            limits.texts_of([text for one in items for text in ([one] if isinstance(one, str) else one)])
            for one in items:
                served.checked(1 if isinstance(one, str) else 2)
        something(items)
        work = lambda some: served.model.classify(some, asked.top_k)  # noqa: E731
        found = await service.attended(request, served.caller.ask(("classify", asked.top_k), work, items))
        return {"model": served.name, "results": [one.to_json() for one in found]}

    @routes.post("/tag")
    async def tag(asked: Tag, request: Request) -> dict[str, Any]:
        """A tag for every word."""
        served = service.named(asked.model, "tag")
        texts = something(listed(asked.texts))
        service.limits.texts_of([one if isinstance(one, str) else " ".join(one) for one in texts])
        found = await service.attended(request, served.caller.ask("tag", served.model.tag, texts))
        return {"model": served.name, "results": [[word._asdict() for word in own] for own in found]}

    @routes.post("/fill")
    async def fill(asked: Texts, request: Request) -> dict[str, Any]:
        """Words for the gaps, written [MASK] or <mask>."""
        served = service.named(asked.model, "fill")
        texts = read_texts(service, asked.texts)
        service.limits.at_most("top", asked.top_k, "words for a gap")
        work = lambda some: served.model.fill(some, asked.top_k)  # noqa: E731
        found = await service.attended(request, served.caller.ask(("fill", asked.top_k), work, texts))
        return {"model": served.name, "results": [one.to_json() for one in found]}

    @routes.post("/answer")
    async def answer(asked: Answer, request: Request) -> dict[str, Any]:
        """The words of a text that answer a question."""
        served = service.named(asked.model, "answer")
        service.limits.texts_of([asked.question, asked.context])
        how = (asked.no_answer, min(asked.max_answer, service.limits.tokens))

        def work(pairs: list[tuple[str, str]]) -> Any:
            return served.model.answer([question for question, _ in pairs], [context for _, context in pairs], *how)

        pair = (asked.question, asked.context)
        (found,) = await service.attended(request, served.caller.ask(("answer", how), work, [pair]))
        return {"model": served.name, **found._asdict()}


def seeing(routes: APIRouter, service: Service) -> None:
    @routes.post("/describe")
    async def describe(asked: Describe, request: Request) -> dict[str, Any]:
        """A sentence about each picture."""
        served = service.named(asked.model, "describe")
        beam = served.beam(asked.beam, asked.n_best).size
        items = something(await service.attended(request, pictures(asked.images, served)))
        work = lambda some: served.model.describe(some, beam, n_best=asked.n_best)  # noqa: E731
        found = await service.attended(request, served.caller.ask(("describe", beam, asked.n_best), work, items))
        return {"model": served.name, "results": [shown(one) for one in found]}

    @routes.post("/embed")
    async def embed(asked: Embed, request: Request) -> dict[str, Any]:
        """A vector for each text."""
        served = service.named(asked.model, "embed")
        texts = read_texts(service, asked.texts)
        work = lambda some: served.model.embed(some, asked.pooling, truncate=True).tolist()  # noqa: E731
        found = await service.attended(request, served.caller.ask(("embed", asked.pooling), work, texts))
        return {"model": served.name, "results": found}


def read_texts(service: Service, given: Any) -> list[Any]:
    """One or several texts, none of them empty, within the limits."""
    texts = something(listed(given))
    service.limits.texts_of(texts)
    return texts


def something(items: list[Any]) -> list[Any]:
    if not items or not all(items_given(items)):
        raise Refusal(400, "there is nothing to read: the list, or an entry of it, is empty")
    return items


def items_given(items: Sequence[Any]) -> list[bool]:
    return [not isinstance(one, str | list | tuple) or len(one) > 0 for one in items]


async def pictures(given: Sequence[str], served: Served) -> list[Pixels]:
    """Decode pictures from base64 in a thread, one at a time: between two of them the request can be given up."""
    served.limits.at_most("texts", len(given), "pictures")
    return [await asyncio.to_thread(picture, one, served) for one in given]


def picture(given: str, served: Served) -> Pixels:
    """Decode one picture; its size is checked before its pixels are unpacked."""
    try:
        data = base64.b64decode(given.partition(",")[2] if given.startswith("data:") else given, validate=True)
    except ValueError:
        raise Refusal(400, "the picture is not base64: send the bytes of a PNG, JPEG ... file in base64") from None
    try:
        image = open_picture(io.BytesIO(data), "the picture")
        served.limits.at_most("pixels", image.width * image.height, "pixels")
        return unpack(image, served.config.image_size or 0, served.config.n_channels, "the picture")
    except FileError:
        raise Refusal(400, "the picture cannot be read: send a PNG, JPEG ... file in base64") from None
