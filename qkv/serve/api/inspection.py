"""Looking: what look/ finds inside a model, over HTTP. One input a request; it is read by the plain network, in the thread of
the model's calls, while texts are written by its packed twin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any, Literal

import torch
from fastapi import APIRouter, Depends, Request
from pydantic import Field

from qkv.look.attention import sites, to_index
from qkv.look.look import Look
from qkv.look.result import plain
from qkv.serve.api.ablation import expected, measured, written
from qkv.serve.api.native import Ask, pictures
from qkv.serve.http.errors import Refusal
from qkv.serve.scheduling.limits import BoundedStr, Many
from qkv.serve.scheduling.registry import Service
from qkv.serve.scheduling.served_model import Served

Index = Annotated[int, Field(ge=-(2**31), le=2**31)]
Indices = Annotated[list[Index], Field(max_length=10_000, fail_fast=True)]
Head = Annotated[list[Index], Field(min_length=2, max_length=2, fail_fast=True)]
Kind = Literal["self", "encoder", "decoder", "cross"] | None
DIGITS = 8
"""Behind the point, of all numbers: what follows from them, recomputed, is right to five digits in a sum of many."""
WRITTEN = 20
"""Tokens that a translation may have beyond twice its source: more is not looked into, whatever it is made of."""
INTEGRALS = 16
"""Answers that one request may have explained by integrated gradients: each takes up to 128 rounds, not 2."""


class Looked(Ask):
    """What is looked at."""

    text: BoundedStr | None = None
    """What the model reads."""
    image: BoundedStr | None = None
    """A picture (PNG, JPEG ...) in base64, for a model that reads them."""
    target: BoundedStr | None = None
    """What an encoder-decoder (or a decoder that writes summaries) writes; without it, its own answer."""
    pair: BoundedStr | None = None
    """The second text of a model that compares two; the question about a text in which it is answered."""
    chat: bool = False
    """The text is a message to the assistant."""


class Answers(Looked):
    position: Index | None = None
    """The token at which it is asked; without one, the last."""
    top_k: int = Field(default=10, ge=1, le=2**31)


class Attention(Looked):
    layer: Index = -1
    heads: Indices | None = None
    """Without any, all of the layer."""
    kind: Kind = None
    rows: Indices | None = None
    """Without any, all tokens."""


class Walk(Looked):
    layer: Index = -1
    head: Index = 0
    kind: Kind = None


class OfKind(Looked):
    kind: Kind = None


class Effects(OfKind):
    position: Index | None = None
    """The token at whose answer heads are measured; without one, the last."""
    layer: Index | None = None
    """Measure the heads of this layer; without one, those of all."""


class Lens(Looked):
    top_k: int = Field(default=5, ge=1, le=2**31)
    columns: Indices | None = None
    """Tokens at which to look; without any, all."""


class Off(Looked):
    heads: Annotated[list[Head], Field(max_length=10_000, fail_fast=True)] = []
    """[layer, head] each: these are switched off."""
    layers: Indices = []
    """Whole layers that are switched off."""
    kind: Kind = None
    max_tokens: int = Field(default=20, ge=0, le=2**31)
    """Tokens to write; 0 = no text."""


class Ablation(Off):
    position: Index | None = None
    """The token at which it is asked; without one, the last, or the gap of a text with one."""
    top_k: int = Field(default=10, ge=1, le=2**31)


class Patch(Looked):
    other: BoundedStr | None = None
    """Another text of as many tokens, from which activations are taken."""
    other_image: BoundedStr | None = None
    """Of a model that reads pictures, the other picture, in base64."""
    other_target: BoundedStr | None = None
    what: Literal["stream", "attention", "cross", "feedforward", "heads"] = "stream"
    source: bool = False
    """Patch the reading half of an encoder-decoder."""


class Attribution(Looked):
    method: Literal["gradient", "integrated", "occlusion"] = "integrated"
    positions: Indices | None = None
    """Tokens whose answers are explained; without any, the last."""


class Positions(Ask):
    length: int = Field(default=64, ge=1, le=256)
    source: bool = False
    """Those of the reading half of an encoder-decoder."""


class Neighbours(Ask):
    word: str = Field(min_length=1, max_length=200)
    top_k: int = Field(default=10, ge=1, le=2**31)


class Contexts(Ask):
    word: str = Field(min_length=1, max_length=200)
    texts: Many[BoundedStr] = Field(min_length=1)
    layer: Index = -1


def router(service: Service) -> APIRouter:
    routes = APIRouter(prefix="/api/look", tags=["Looking inside"], dependencies=[Depends(service.asks_for_key)])
    for part in (maps, stream, ablations, changes, words):
        part(routes, service)
    return routes


# --- what is there


def maps(routes: APIRouter, service: Service) -> None:
    look = partial(looked, service)

    @routes.post("/answers")
    async def answers(asked: Answers, request: Request) -> Any:
        """The tokens, what the model answers at one of them (if it answers), and which attention there is to look at."""
        service.limits.at_most("top", asked.top_k, "answers")

        def work(one: Look) -> dict[str, Any]:
            there = [
                {key: value for key, value in asdict(site).items() if key != "name"} for site in sites(one.network)
            ]
            # a model that fills gaps is not asked where there is none
            gapless = one.config.head in ("masked", "masked-next") and one.place is None and asked.position is None
            answers = one.config.head not in ("pooled", "none") and not gapless
            found = one.answers(asked.position, asked.top_k).to_json() if answers else None
            return {"tokens": one.tokens, "source": one.source, "sites": there, "answers": found, "place": one.place}

        return await look(request, asked, work)

    @routes.post("/attention")
    async def attention(asked: Attention, request: Request) -> Any:
        """Exact attention weights of a layer: (heads, rows, columns)."""
        return await look(request, asked, lambda one: one.attention(asked.layer, asked.heads, asked.kind, asked.rows))

    @routes.post("/walk")
    async def through_a_head(asked: Walk, request: Request) -> Any:
        """One head step by step: x, q, k, v, where positions are rotary their rotation (`angles`, `rotated_query`,
        `rotated_key`), scores, mask, softmax, output; `bias` (tokens, tokens) is what positions add to the scores, `value_bias`
        (tokens, width) what they add to the mixed values, `residual` the stream that the output is added to. `shared` are the
        heads that have the same keys and values."""
        return await look(request, asked, lambda one: one.walk(asked.layer, asked.head, asked.kind))

    @routes.post("/heads")
    async def heads(asked: OfKind, request: Request) -> Any:
        """Where each head looks on average: at the previous token, the first, itself, what followed before."""
        return await look(request, asked, lambda one: one.heads(asked.kind))

    @routes.post("/rollout")
    async def rollout(asked: OfKind, request: Request) -> Any:
        """How much of each token is in each vector at the end, all layers together."""
        return await look(request, asked, lambda one: one.rollout(asked.kind))


def stream(routes: APIRouter, service: Service) -> None:
    look = partial(looked, service)

    @routes.post("/lens")
    async def lens(asked: Lens, request: Request) -> Any:
        """What would be answered after every sublayer (logit lens), at all tokens or at `columns`; `input_tokens` are all of them."""
        service.limits.at_most("top", asked.top_k, "answers")
        work = lambda one: one.lens(asked.top_k, asked.columns).to_json() | {"input_tokens": one.tokens}  # noqa: E731
        return await look(request, asked, work)

    @routes.post("/residual")
    async def residual(asked: Looked, request: Request) -> Any:
        """The stream itself: how long each token's vector is at each point, and how far each sublayer turns it."""
        return await look(request, asked, lambda one: one.residual())

    @routes.post("/taps")
    async def taps(asked: Looked, request: Request) -> Any:
        """Every tap, with the shape of what flows through it."""
        return await look(request, asked, lambda one: {"taps": one.taps()})


# --- what if


def ablations(routes: APIRouter, service: Service) -> None:
    look = partial(looked, service)

    @routes.post("/ablation")
    async def ablation(asked: Ablation, request: Request) -> Any:
        """Switch heads or layers off: what the model answers and writes before and after."""
        service.limits.at_most("top", asked.top_k, "answers")
        service.limits.at_most("tokens", asked.max_tokens, "tokens")
        served = service.named(asked.model, "look")

        def work(one: Look) -> dict[str, Any]:
            def said() -> dict[str, Any]:
                with torch.no_grad():
                    output = one.network(one.batch)
                answers = one.answers(asked.position, asked.top_k, output).to_json()
                found = {"answers": answers, "expected": expected(served.model, one, output)}
                return {**found, "text": written(served, one, asked.max_tokens)}

            before = said()
            with switched_off(one, asked):
                after = said() if asked.heads or asked.layers else before
            return {"tokens": one.tokens, "source": one.source, "before": before, "after": after}

        return await look(request, asked, work)

    @routes.post("/generate")
    async def generate(asked: Off, request: Request) -> Any:
        """The text that the model writes, greedily, with these heads and layers switched off; null of one that does not write."""
        service.limits.at_most("tokens", asked.max_tokens, "tokens")
        served = service.named(asked.model, "look")

        def work(one: Look) -> dict[str, Any]:
            with switched_off(one, asked):
                return {"text": written(served, one, asked.max_tokens)}

        return await look(request, asked, work)


def changes(routes: APIRouter, service: Service) -> None:
    look = partial(looked, service)

    @routes.post("/effects")
    async def effects(asked: Effects, request: Request) -> Any:
        """What each head does for the answer: its logit with that head switched off. `word` is the answer that is measured: of a
        text the token that stands there next, at its end (and of other models) what the model itself answers."""

        def work(one: Look) -> Any:
            return one.effect_of_heads(measured(one, asked.position), asked.kind, asked.layer)

        return await look(request, asked, work)

    @routes.post("/patch")
    async def patch(asked: Patch, request: Request) -> Any:
        """Put what the model thinks of another text into this one, a place at a time: what moves the answer over?"""
        if asked.other is not None and service.named(asked.model, "look").config.image_size is not None:
            raise Refusal(400, "this model reads pictures: give the other one as other_image, in base64")
        second = Looked(model=asked.model, text=asked.other, image=asked.other_image, target=asked.other_target,
                        pair=asked.pair, chat=asked.chat)  # fmt: skip
        other = await opened(service, request, second)
        return await look(request, asked, lambda one: one.patch(other(), None, asked.what, asked.source))

    @routes.post("/attribution")
    async def attribution(asked: Attribution, request: Request) -> Any:
        """How much each token did for an answer."""

        def work(one: Look) -> Any:
            positions = asked.positions
            if positions is not None:  # each once
                positions = list(dict.fromkeys(to_index(positions, len(one.tokens), "token").tolist()))
            if asked.method == "integrated" and len(positions or ()) > INTEGRALS:
                raise Refusal(400, f"{len(positions or ())} answers by integrated gradients, but this server explains at most "
                              f"{INTEGRALS} at once: ask for some of them, or take another method")  # fmt: skip
            return one.attribution(asked.method, positions)

        return await look(request, asked, work)


def switched_off(one: Look, asked: Off) -> AbstractContextManager[Look]:
    """Within the block the heads and layers of a request are off."""
    return one.without([(layer, head) for layer, head in asked.heads], asked.layers, asked.kind)


# --- words


def words(routes: APIRouter, service: Service) -> None:
    @routes.post("/positions")
    async def positions(asked: Positions, request: Request) -> Any:
        """How the model tells order: the table of positions, and how alike they are."""
        from qkv.look.embedding_space import positions as table

        served = service.named(asked.model, "look")
        network = served.model.network
        return await called(service, request, served, lambda: table(network, asked.length, asked.source))

    @routes.post("/neighbours")
    async def neighbours(asked: Neighbours, request: Request) -> Any:
        """The words whose vectors are nearest to that of a word."""
        served = service.named(asked.model, "embed")
        service.limits.at_most("top", asked.top_k, "words")
        return await called(service, request, served, lambda: served.model.neighbours(asked.word, asked.top_k))

    @routes.post("/contexts")
    async def contexts(asked: Contexts, request: Request) -> Any:
        """How alike the vectors of one word are in several texts."""
        served = service.named(asked.model, "embed")
        service.limits.texts_of(asked.texts)
        await service.threaded(request, limited, service, served, asked.texts)
        return await called(
            service, request, served, lambda: served.model.contexts(asked.word, asked.texts, asked.layer)
        )


# --- how it is asked


async def looked(service: Service, request: Request, asked: Looked, work: Callable[[Look], Any]) -> Any:
    """One input, looked into."""
    look = await opened(service, request, asked)
    return await called(service, request, service.named(asked.model, "look"), lambda: work(look()))


async def opened(service: Service, request: Request, asked: Looked) -> Callable[[], Look]:
    """What is asked about, checked; the call, which belongs into the thread of the network, makes it a Look."""
    served = service.named(asked.model, "look")
    if served.config.image_size is not None:  # a text would be the name of a file to such a model: it never gets there
        if asked.image is None or asked.pair is not None:
            raise Refusal(400, "this model reads pictures: give an image in base64")
        (picture,) = await service.attended(request, pictures([asked.image], served))
        await service.threaded(request, limited, service, served, [asked.target])
        return lambda: served.model.look(picture, asked.target)
    if asked.text is None:
        raise Refusal(400, "there is nothing to look at: give a text")
    served.checked(1 if asked.pair is None else 2)
    await service.threaded(request, limited, service, served, [asked.text, asked.pair, asked.target])
    given: Any = asked.text
    if asked.chat:
        service.named(asked.model, "chat")
        given = await service.threaded(request, served.prompt_ids, asked.text, asked.chat)
        service.limits.at_most("looked", len(given), "tokens in a text to inspect")
    summary = served.task == "summary" and served.config.family == "decoder" and not asked.chat

    def look() -> Look:
        """What is really read: tasks read a text in ways of their own, and some models what they write themselves."""
        found = served.model.look(given, asked.target, asked.pair, summary)
        count, most = max(len(found.tokens), len(found.source)), 2 * service.limits.looked + WRITTEN
        if count > most:
            raise Refusal(400, f"{count:,} tokens to look into, but this server takes at most {most:,}", param="looked")
        return found

    return look


def limited(service: Service, served: Served, texts: Sequence[str | None]) -> None:
    """Texts that are looked into are shorter than those that are only read: tables grow with the square of their length."""
    for text in filter(None, texts):
        service.limits.at_most("characters", len(text), "characters in a text")
        if (words := served.model.tokenizer) is not None:
            count = max(len(words.encode(text)), len(words.plain([text])[0]))  # some tasks read names of tokens as text
            service.limits.at_most("looked", count, "tokens in a text to inspect")


async def called(service: Service, request: Request, served: Served, work: Callable[[], Any]) -> Any:
    """In the thread that has the network for itself; numbers are rounded."""

    def whole(items: list[Any]) -> list[Any]:
        with torch.enable_grad():
            found = work()
        return [rounded(found.to_json() if hasattr(found, "to_json") else plain(found))]

    (found,) = await service.attended(request, served.caller.ask(object(), whole, [None]))
    return {"model": served.name, **found}


def rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, DIGITS)
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    return [rounded(one) for one in value] if isinstance(value, list) else value
