"""Native API of models that read in one pass: classify, tag, fill, answer, describe, embed."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends
from pydantic import Field

from qkv.serve.api.images import decode_images
from qkv.serve.api.native import Count, NativeRequest, format_translation
from qkv.serve.api.service import Context, RequestContext, require_key
from qkv.serve.http.errors import ApiError
from qkv.serve.http.forms import as_list
from qkv.serve.http.limits import BoundedStr, Many
from qkv.serve.scheduling.batcher import Work
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


@routes.post("/classify")
async def classify(asked: ClassifyRequest, context: Context) -> dict[str, Any]:
    """Classify each text, pair or image, with probabilities; a regression model returns a score."""
    served = context.find(asked.model, "classify")
    if served.config.image_size is None:
        items = classifier_inputs(served, asked)
    elif asked.texts is not None:
        raise ApiError(400, "this model reads images: send `images`")
    else:
        items = await context.wait_for(decode_images(asked.images or [], served))
    check_not_empty(items)
    work = lambda some: [one.to_json() for one in served.model.classify(some, asked.top_k)]  # noqa: E731
    return await results(context, served, ("classify", asked.top_k), work, items)


def classifier_inputs(served: ServedModel, asked: ClassifyRequest) -> list[Any]:
    """Return the texts and pairs of texts of a request after checking them."""
    if asked.images is not None:
        raise ApiError(400, "this model reads texts: send `texts`")
    items = [tuple(one) if isinstance(one, list) else one for one in as_list(asked.texts or [])]
    served.limits.check_texts([text for one in items for text in ([one] if isinstance(one, str) else one)])
    for one in items:
        served.check_pair(1 if isinstance(one, str) else 2)
    return items


@routes.post("/tag")
async def tag(asked: TagRequest, context: Context) -> dict[str, Any]:
    """Tag every word."""
    served = context.find(asked.model, "tag")
    texts = check_not_empty(as_list(asked.texts))
    context.limits.check_texts([one if isinstance(one, str) else " ".join(one) for one in texts])
    work = lambda some: [[word._asdict() for word in own] for own in served.model.tag(some)]  # noqa: E731
    return await results(context, served, "tag", work, texts)


@routes.post("/fill")
async def fill(asked: FillRequest, context: Context) -> dict[str, Any]:
    """Predict the words of gaps, written [MASK] or <mask>."""
    served = context.find(asked.model, "fill")
    texts = check_texts(context, asked.texts)
    context.limits.check("top", asked.top_k, "words for a gap")
    work = lambda some: [one.to_json() for one in served.model.fill(some, asked.top_k)]  # noqa: E731
    return await results(context, served, ("fill", asked.top_k), work, texts)


@routes.post("/answer")
async def answer(asked: AnswerRequest, context: Context) -> dict[str, Any]:
    """Find the words of a context that answer a question."""
    served = context.find(asked.model, "answer")
    context.limits.check_texts([asked.question, asked.context])
    options = (asked.no_answer, min(asked.max_answer, context.limits.tokens))

    def work(pairs: list[tuple[str, str]]) -> Any:
        questions, contexts = zip(*pairs, strict=True)
        return served.model.answer(list(questions), list(contexts), *options)

    (found,) = await context.compute(served, ("answer", options), work, [(asked.question, asked.context)])
    return {"model": served.name, **found._asdict()}


@routes.post("/describe")
async def describe(asked: DescribeRequest, context: Context) -> dict[str, Any]:
    """Describe each image in a sentence."""
    served = context.find(asked.model, "describe")
    beam = served.beam(asked.beam, asked.n_best).size
    items = check_not_empty(await context.wait_for(decode_images(asked.images, served)))
    work = lambda some: map(format_translation, served.model.describe(some, beam, n_best=asked.n_best))  # noqa: E731
    return await results(context, served, ("describe", beam, asked.n_best), work, items)


@routes.post("/embed")
async def embed(asked: EmbedRequest, context: Context) -> dict[str, Any]:
    """Return a vector for each text."""
    served = context.find(asked.model, "embed")
    texts = check_texts(context, asked.texts)
    work = lambda some: served.model.embed(some, asked.pooling, truncate=True).tolist()  # noqa: E731
    return await results(context, served, ("embed", asked.pooling), work, texts)


async def results(
    context: RequestContext, served: ServedModel, key: Hashable, work: Work, items: Sequence[Any]
) -> dict[str, Any]:
    """Compute items, together with others of the same key, and return the response with the result of each."""
    return {"model": served.name, "results": await context.compute(served, key, work, items)}


def check_texts(context: RequestContext, given: Any) -> list[Any]:
    """Return one or several texts as a list, after checking that none is empty or too long."""
    texts = check_not_empty(as_list(given))
    context.limits.check_texts(texts)
    return texts


def check_not_empty(items: list[Any]) -> list[Any]:
    if not items or any(isinstance(one, str | list | tuple) and not one for one in items):
        raise ApiError(400, "there is nothing to read: the list, or an entry of it, is empty")
    return items
