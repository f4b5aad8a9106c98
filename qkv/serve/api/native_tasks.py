"""Native API of models that read in one pass: classify, tag, fill, answer, describe, embed."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from pydantic import Field

from qkv.serve.api.images import decode_images
from qkv.serve.api.native import Count, NativeRequest, format_translation
from qkv.serve.api.service import Service, require_key
from qkv.serve.http.errors import ApiError
from qkv.serve.http.forms import as_list
from qkv.serve.http.limits import BoundedStr, Many
from qkv.serve.scheduling.served_model import ServedModel

TextOrPair = BoundedStr | Annotated[Many[BoundedStr], Field(min_length=2, max_length=2)]


class FillRequest(NativeRequest):
    texts: BoundedStr | Many[BoundedStr]
    """Texts with gaps, written [MASK] or <mask>."""
    top_k: Count = 5


class ClassifyRequest(NativeRequest):
    texts: BoundedStr | Many[TextOrPair] | None = None
    """Texts, or pairs of texts."""
    images: Many[BoundedStr] | None = None
    """Images (PNG, JPEG ...) in base64, for an image classifier."""
    top_k: Count | None = None


class TagRequest(NativeRequest):
    texts: BoundedStr | Many[BoundedStr | Many[BoundedStr]]
    """Sentences, or lists of words."""


class AnswerRequest(NativeRequest):
    question: BoundedStr
    context: BoundedStr
    no_answer: bool = False
    """Allow the model to find no answer in the context."""
    max_answer: Count = 30


class DescribeRequest(NativeRequest):
    images: Many[BoundedStr]
    """Images (PNG, JPEG ...) in base64."""
    beam: Count | None = None
    n_best: Count = 1


class EmbedRequest(NativeRequest):
    texts: BoundedStr | Many[BoundedStr]
    pooling: str = Field(default="mean", pattern="^(mean|cls|last)$", max_length=10)


routes = APIRouter(prefix="/api", tags=["qkv"], dependencies=[Depends(require_key)])


async def compute(
    request: Request, served: ServedModel, key: Hashable, work: Callable[..., Any], items: Sequence[Any]
) -> list[Any]:
    """Compute items in the model's batcher, together with others of the same key."""
    service: Service = request.app.state.service
    return await service.wait_for(request, served.batcher.submit(key, work, items))


@routes.post("/classify")
async def classify(asked: ClassifyRequest, request: Request) -> dict[str, Any]:
    """Classify each text, pair or image, with probabilities; a regression model returns a score."""
    service: Service = request.app.state.service
    served = service.find(asked.model, "classify")
    if served.config.image_size is None:
        items = classifier_inputs(service, served, asked)
    elif asked.texts is not None:
        raise ApiError(400, "this model reads images: send `images`")
    else:
        items = await service.wait_for(request, decode_images(asked.images or [], served))
    check_not_empty(items)
    work = lambda some: served.model.classify(some, asked.top_k)  # noqa: E731
    found = await compute(request, served, ("classify", asked.top_k), work, items)
    return {"model": served.name, "results": [one.to_json() for one in found]}


def classifier_inputs(service: Service, served: ServedModel, asked: ClassifyRequest) -> list[Any]:
    """Return the texts and pairs of texts of a request after checking them."""
    if asked.images is not None:
        raise ApiError(400, "this model reads texts: send `texts`")
    items = [tuple(one) if isinstance(one, list) else one for one in as_list(asked.texts or [])]
    service.limits.check_texts([text for one in items for text in ([one] if isinstance(one, str) else one)])
    for one in items:
        served.check_pair(1 if isinstance(one, str) else 2)
    return items


@routes.post("/tag")
async def tag(asked: TagRequest, request: Request) -> dict[str, Any]:
    """Tag every word."""
    service: Service = request.app.state.service
    served = service.find(asked.model, "tag")
    texts = check_not_empty(as_list(asked.texts))
    service.limits.check_texts([one if isinstance(one, str) else " ".join(one) for one in texts])
    found = await compute(request, served, "tag", served.model.tag, texts)
    return {"model": served.name, "results": [[word._asdict() for word in own] for own in found]}


@routes.post("/fill")
async def fill(asked: FillRequest, request: Request) -> dict[str, Any]:
    """Predict the words of gaps, written [MASK] or <mask>."""
    service: Service = request.app.state.service
    served = service.find(asked.model, "fill")
    texts = check_texts(service, asked.texts)
    service.limits.check("top", asked.top_k, "words for a gap")
    work = lambda some: served.model.fill(some, asked.top_k)  # noqa: E731
    found = await compute(request, served, ("fill", asked.top_k), work, texts)
    return {"model": served.name, "results": [one.to_json() for one in found]}


@routes.post("/answer")
async def answer(asked: AnswerRequest, request: Request) -> dict[str, Any]:
    """Find the words of a context that answer a question."""
    service: Service = request.app.state.service
    served = service.find(asked.model, "answer")
    service.limits.check_texts([asked.question, asked.context])
    options = (asked.no_answer, min(asked.max_answer, service.limits.tokens))

    def work(pairs: list[tuple[str, str]]) -> Any:
        return served.model.answer([question for question, _ in pairs], [context for _, context in pairs], *options)

    (found,) = await compute(request, served, ("answer", options), work, [(asked.question, asked.context)])
    return {"model": served.name, **found._asdict()}


@routes.post("/describe")
async def describe(asked: DescribeRequest, request: Request) -> dict[str, Any]:
    """Describe each image in a sentence."""
    service: Service = request.app.state.service
    served = service.find(asked.model, "describe")
    beam = served.beam(asked.beam, asked.n_best).size
    items = check_not_empty(await service.wait_for(request, decode_images(asked.images, served)))
    work = lambda some: served.model.describe(some, beam, n_best=asked.n_best)  # noqa: E731
    found = await compute(request, served, ("describe", beam, asked.n_best), work, items)
    return {"model": served.name, "results": [format_translation(one) for one in found]}


@routes.post("/embed")
async def embed(asked: EmbedRequest, request: Request) -> dict[str, Any]:
    """Return a vector for each text."""
    service: Service = request.app.state.service
    served = service.find(asked.model, "embed")
    texts = check_texts(service, asked.texts)
    work = lambda some: served.model.embed(some, asked.pooling, truncate=True).tolist()  # noqa: E731
    found = await compute(request, served, ("embed", asked.pooling), work, texts)
    return {"model": served.name, "results": found}


def check_texts(service: Service, given: Any) -> list[Any]:
    """Return one or several texts as a list, after checking that none is empty or too long."""
    texts = check_not_empty(as_list(given))
    service.limits.check_texts(texts)
    return texts


def check_not_empty(items: list[Any]) -> list[Any]:
    if not items or any(isinstance(one, str | list | tuple) and not one for one in items):
        raise ApiError(400, "there is nothing to read: the list, or an entry of it, is empty")
    return items
