"""Inspection API: attention, logit lens, ablation, patching and attribution (look/) over HTTP.

One input per request. It is read by the plain network in the thread of the model's batcher, while its packed copy generates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from typing import Any

import torch
from fastapi import APIRouter, Depends

from qkv.look.attention import sites, to_index
from qkv.look.embedding_space import positions as position_table
from qkv.look.look import Look
from qkv.look.result import plain
from qkv.serve.api import inspection_requests as schemas
from qkv.serve.api.ablation import effect_target, generate_greedily, token_probabilities
from qkv.serve.api.images import decode_images
from qkv.serve.api.service import Context, RequestContext, require_key
from qkv.serve.http.errors import ApiError
from qkv.serve.scheduling.served_model import ServedModel

DIGITS = 8
"""Decimal places of all numbers: a sum of many of them is right to five digits."""
EXTRA_TOKENS = 20
"""Tokens that a translation may have beyond twice its source to be inspected."""
INTEGRALS = 16
"""Most predictions to explain by integrated gradients in one request: each takes up to 128 passes, not 2."""

routes = APIRouter(prefix="/api/look", tags=["Inspection"], dependencies=[Depends(require_key)])


# --- attention


@routes.post("/answers")
async def answers(asked: schemas.AnswersRequest, context: Context) -> Any:
    """Return the tokens, the model's prediction at one of them (if it predicts there), and its attention layers."""
    context.limits.check("top", asked.top_k, "answers")

    def work(look: Look) -> dict[str, Any]:
        layers = [{key: value for key, value in asdict(site).items() if key != "name"} for site in sites(look.network)]
        # a masked language model predicts at a gap only
        no_gap = look.config.head in ("masked", "masked-next") and look.place is None and asked.position is None
        predicts = look.config.head not in ("pooled", "none") and not no_gap
        found = look.answers(asked.position, asked.top_k) if predicts else None
        return {"tokens": look.tokens, "source": look.source, "sites": layers, "answers": found, "place": look.place}

    return await inspect(context, asked, work)


@routes.post("/attention")
async def attention(asked: schemas.AttentionRequest, context: Context) -> Any:
    """Return the exact attention weights of a layer: (heads, rows, columns)."""
    return await inspect(context, asked, lambda one: one.attention(asked.layer, asked.heads, asked.kind, asked.rows))


@routes.post("/walk")
async def walk(asked: schemas.WalkRequest, context: Context) -> Any:
    """Compute one head step by step: x, q, k, v, scores, mask, softmax, output.

    With rotary positions also `angles`, `rotated_query` and `rotated_key`. `bias` (tokens, tokens) is what positions add to the
    scores, `value_bias` (tokens, width) what they add to the mixed values, `residual` the stream to which the output is added.
    `shared` are the heads with the same keys and values."""
    return await inspect(context, asked, lambda one: one.walk(asked.layer, asked.head, asked.kind))


@routes.post("/heads")
async def heads(asked: schemas.AttentionKindRequest, context: Context) -> Any:
    """Return each head's mean attention to the previous token, the first, itself, and the token after an earlier occurrence."""
    return await inspect(context, asked, lambda one: one.heads(asked.kind))


@routes.post("/rollout")
async def rollout(asked: schemas.AttentionKindRequest, context: Context) -> Any:
    """Return the attention rollout: how much of each token is in each final vector, over all layers."""
    return await inspect(context, asked, lambda one: one.rollout(asked.kind))


# --- residual stream


@routes.post("/lens")
async def lens(asked: schemas.LensRequest, context: Context) -> Any:
    """Return the prediction after every sublayer (logit lens), at all tokens or at `columns`; `input_tokens` are all tokens."""
    context.limits.check("top", asked.top_k, "answers")
    work = lambda one: one.lens(asked.top_k, asked.columns).to_json() | {"input_tokens": one.tokens}  # noqa: E731
    return await inspect(context, asked, work)


@routes.post("/residual")
async def residual(asked: schemas.InspectRequest, context: Context) -> Any:
    """Return the norms of the residual stream at each token and layer, and how far each sublayer turns it."""
    return await inspect(context, asked, lambda one: one.residual())


@routes.post("/taps")
async def taps(asked: schemas.InspectRequest, context: Context) -> Any:
    """List all taps with the shapes of their activations."""
    return await inspect(context, asked, lambda one: {"taps": one.taps()})


# --- interventions


@routes.post("/ablation")
async def ablation(asked: schemas.AblationRequest, context: Context) -> Any:
    """Ablate heads or layers; return the model's predictions and text before and after."""
    context.limits.check("top", asked.top_k, "answers")
    context.limits.check("tokens", asked.max_tokens, "tokens")
    served = context.find(asked.model, "look")

    def predict(look: Look) -> dict[str, Any]:
        with torch.no_grad():
            output = look.network(look.batch)
        found = look.answers(asked.position, asked.top_k, output)
        return {"answers": found, "expected": token_probabilities(served.model, look, output),
                "text": generate_greedily(served, look, asked.max_tokens)}  # fmt: skip

    def work(look: Look) -> dict[str, Any]:
        before = predict(look)
        with ablate(look, asked):
            after = predict(look) if asked.heads or asked.layers else before
        return {"tokens": look.tokens, "source": look.source, "before": before, "after": after}

    return await inspect(context, asked, work)


@routes.post("/generate")
async def generate(asked: schemas.AblatedRequest, context: Context) -> Any:
    """Generate greedily with heads and layers ablated; null for a model that does not generate."""
    context.limits.check("tokens", asked.max_tokens, "tokens")
    served = context.find(asked.model, "look")

    def work(look: Look) -> dict[str, Any]:
        with ablate(look, asked):
            return {"text": generate_greedily(served, look, asked.max_tokens)}

    return await inspect(context, asked, work)


@routes.post("/effects")
async def effects(asked: schemas.EffectsRequest, context: Context) -> Any:
    """Return the logit of a prediction with each head ablated.

    `word` is the measured prediction: the next token of the text, or at its end (and for models that do not generate) the model's
    own prediction."""

    def work(look: Look) -> Any:
        return look.effect_of_heads(effect_target(look, asked.position), asked.kind, asked.layer)

    return await inspect(context, asked, work)


@routes.post("/patch")
async def patch(asked: schemas.PatchRequest, context: Context) -> Any:
    """Replace activations by those of another text, one at a time; return how the prediction changes."""
    if asked.other is not None and context.find(asked.model, "look").config.image_size is not None:
        raise ApiError(400, "this model reads images: give the other one as other_image, in base64")
    second = schemas.InspectRequest(model=asked.model, text=asked.other, image=asked.other_image, target=asked.other_target,
                            pair=asked.pair, chat=asked.chat)  # fmt: skip
    other = await prepare_look(context, second)
    return await inspect(context, asked, lambda one: one.patch(other(), None, asked.what, asked.source))


@routes.post("/attribution")
async def attribution(asked: schemas.AttributionRequest, context: Context) -> Any:
    """Return how much each token contributed to a prediction."""

    def work(look: Look) -> Any:
        positions = asked.positions
        if positions is not None:  # each once
            positions = list(dict.fromkeys(to_index(positions, len(look.tokens), "token").tolist()))
        count = len(positions or ())
        if asked.method == "integrated" and count > INTEGRALS:
            raise ApiError(400, f"{count} predictions to explain by integrated gradients, but this server takes at most "
                           f"{INTEGRALS} at once: choose fewer positions or another method")  # fmt: skip
        return look.attribution(asked.method, positions)

    return await inspect(context, asked, work)


def ablate(look: Look, asked: schemas.AblatedRequest) -> AbstractContextManager[Look]:
    """Ablate the heads and layers of a request within a block."""
    return look.without([(layer, head) for layer, head in asked.heads], asked.layers, asked.kind)


# --- embeddings


@routes.post("/positions")
async def positions(asked: schemas.PositionsRequest, context: Context) -> Any:
    """Return the position embeddings and their similarities."""
    served = context.find(asked.model, "look")
    return await compute(context, served, lambda: position_table(served.model.network, asked.length, asked.source))


@routes.post("/neighbours")
async def neighbours(asked: schemas.NeighboursRequest, context: Context) -> Any:
    """Return the nearest words in embedding space."""
    served = context.find(asked.model, "embed")
    context.limits.check("top", asked.top_k, "words")
    return await compute(context, served, lambda: served.model.neighbours(asked.word, asked.top_k))


@routes.post("/contexts")
async def contexts(asked: schemas.ContextsRequest, context: Context) -> Any:
    """Return the similarities of one word's contextual vectors in several texts."""
    served = context.find(asked.model, "embed")
    context.limits.check_texts(asked.texts)
    await context.to_thread(check_tokens, served, asked.texts)
    return await compute(context, served, lambda: served.model.contexts(asked.word, asked.texts, asked.layer))


# --- helpers


async def inspect(context: RequestContext, asked: schemas.InspectRequest, work: Callable[[Look], Any]) -> Any:
    """Compute `work` on the input of a request."""
    look = await prepare_look(context, asked)
    served = context.find(asked.model, "look")
    return await compute(context, served, lambda: work(look()))


async def prepare_look(context: RequestContext, asked: schemas.InspectRequest) -> Callable[[], Look]:
    """Check an input; return a function that creates its Look, to be called in the thread that owns the network."""
    served = context.find(asked.model, "look")
    if served.config.image_size is not None:  # a text would be taken for the name of a file: it never gets there
        if asked.image is None or asked.pair is not None:
            raise ApiError(400, "this model reads images: give an image in base64")
        (image,) = await context.wait_for(decode_images([asked.image], served))
        await context.to_thread(check_tokens, served, [asked.target])
        return lambda: served.model.look(image, asked.target)
    if asked.text is None:
        raise ApiError(400, "there is nothing to inspect: give a text")
    served.check_pair(1 if asked.pair is None else 2)
    await context.to_thread(check_tokens, served, [asked.text, asked.pair, asked.target])
    given: Any = asked.text
    if asked.chat:
        context.find(asked.model, "chat")
        given = await context.to_thread(served.prompt_ids, asked.text, asked.chat)
        context.limits.check("looked", len(given), "tokens in a text to inspect")
    summary = served.task == "summary" and served.config.family == "decoder" and not asked.chat

    def look() -> Look:
        """Check the tokens that are really read: a task may add some, and a model its own output."""
        found = served.model.look(given, asked.target, asked.pair, summary)
        count, most = max(len(found.tokens), len(found.source)), 2 * context.limits.looked + EXTRA_TOKENS
        if count > most:
            raise ApiError(400, f"{count:,} tokens to inspect, but this server takes at most {most:,}", param="looked")
        return found

    return look


def check_tokens(served: ServedModel, texts: Sequence[str | None]) -> None:
    """Check the lengths of texts to inspect: results grow with the square of the number of tokens."""
    for text in filter(None, texts):
        served.limits.check("characters", len(text), "characters in a text")
        if (words := served.model.tokenizer) is not None:
            count = max(len(words.encode(text)), len(words.plain([text])[0]))  # some tasks read special tokens as text
            served.limits.check("looked", count, "tokens in a text to inspect")


async def compute(context: RequestContext, served: ServedModel, work: Callable[[], Any]) -> Any:
    """Run `work` in the thread that owns the network; numbers are rounded."""

    def run(items: list[Any]) -> list[Any]:
        with torch.enable_grad():
            found = work()
        return [plain(found, lambda value: round(value, DIGITS))]

    (result,) = await context.compute(served, object(), run, [None])
    return {"model": served.name, **result}
