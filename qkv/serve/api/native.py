"""Native API: list of models, log of a training run, and models that generate (generate, translate, summarize)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel, ConfigDict, Field, model_validator

from qkv.generate.sampling import SamplingParams
from qkv.generate.translate import Translation
from qkv.serve.api import sentences
from qkv.serve.api.logprobs import TokenFormatter, finite, token_records
from qkv.serve.api.sampling_options import PenaltyFields, check_stops, valid_seed
from qkv.serve.api.service import Context, RequestContext, require_key
from qkv.serve.api.translation import TextTranslation, align_words, translate_texts
from qkv.serve.http.errors import ApiError
from qkv.serve.http.events import EventStream, event
from qkv.serve.http.forms import as_list
from qkv.serve.http.limits import BoundedStr, Many
from qkv.serve.scheduling.streaming import GenerationOptions, Prompt, TextStream, error_of, start_streams

Name = Annotated[str | None, Field(max_length=200)]
Count = Annotated[int, Field(ge=1, le=2**31)]
TokenId = Annotated[int, Field(ge=0, le=2**31)]
Since = Annotated[int, Query(ge=0, le=2**62)]
Points = Annotated[int, Query(ge=1, le=100_000)]
FIELDS = 100
"""Most fields of a request."""


class NativeRequest(BaseModel):
    """Fields of all requests. An unknown field is an error."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    model: Name = None
    """Name of the model; default: the first that is able to do it."""

    @model_validator(mode="before")
    @classmethod
    def check_fields(cls, given: Any) -> Any:
        """Reject a request with very many fields: each unknown one would be a separate error."""
        if isinstance(given, dict) and len(given) > FIELDS:
            raise ValueError(f"{len(given):,} fields, but a request has at most {FIELDS}")
        return given


class GenerateRequest(NativeRequest, PenaltyFields):
    prompt: BoundedStr
    """Text to continue; the source of an encoder-decoder."""
    chat: bool = False
    """Treat the prompt as a user message and apply the chat template."""
    system: BoundedStr | None = None
    """System message (implies chat)."""
    prefix: Many[TokenId] = []
    """Token ids with which the output starts, for example to continue from an alternative."""
    max_tokens: Count = 100
    temperature: float = Field(default=0.0, ge=0, le=100, allow_inf_nan=False)
    top_k: int = Field(default=0, ge=0, le=2**31)
    top_p: float = Field(default=1.0, gt=0, le=1, allow_inf_nan=False)
    min_p: float = Field(default=0.0, ge=0, le=1, allow_inf_nan=False)
    seed: int | None = Field(default=None, ge=0, lt=2**62)
    stop: Many[BoundedStr] = []
    alternatives: int = Field(default=5, ge=0, le=2**31)
    """Number of most likely tokens to return for each step."""
    stream: bool = False

    def options(self, context: RequestContext) -> GenerationOptions:
        sampling = SamplingParams(self.temperature, self.top_k, self.top_p, self.min_p)
        seed, stop = valid_seed(self.seed), check_stops(context.limits, self.stop)
        return GenerationOptions(self.max_tokens, sampling, seed, self.alternatives, stop, self.penalties())


class BeamRequest(NativeRequest):
    texts: BoundedStr | Many[BoundedStr]
    """One text or several."""
    beam: Count | None = None
    """Beam size; default: the model's."""
    n_best: Count = 1
    """Number of results per text."""
    max_length: Count | None = None
    """Longest output in tokens."""

    def check(self, context: RequestContext) -> list[str]:
        """Return the texts after checking the limits."""
        texts = as_list(self.texts)
        context.limits.check_texts(texts)
        context.limits.check("alternatives", self.n_best - 1, "answers beside the first")
        context.limits.check("tokens", self.max_length or 0, "tokens")
        return texts


class NativeTranslateRequest(BeamRequest):
    prefix: str | None = Field(default=None, max_length=1000)
    """Text with which every translation starts."""
    alignments: bool = False
    """Return word alignments from the decoder's cross-attention."""


class SentencesRequest(NativeRequest):
    text: BoundedStr
    """Text to split into sentences."""


routes = APIRouter(prefix="/api", tags=["qkv"], dependencies=[Depends(require_key)])


@routes.get("/models")
async def models(context: Context) -> dict[str, Any]:
    """List the models with their sizes and abilities, and the limits of the server."""
    service = context.service
    return {"models": [model.about() for model in service.models], "limits": context.limits.model_dump(),
            "run": service.run_log and service.run_log.name, "run_model": service.run_model()}  # fmt: skip


@routes.get("/run")
def run(context: Context, since: Since = 0, points: Points = 2000) -> Any:
    """Return the log of the training run (`qkv serve --run FOLDER`) after update `since`."""
    if context.service.run_log is None:
        raise ApiError(404, "no run is shown: start the server with --run FOLDER")
    return context.service.run_log.since(since, points)


@routes.post("/generate")
async def generate(asked: GenerateRequest, context: Context) -> Any:
    """Continue a prompt; return every token with its probability and the most likely alternatives."""
    served = context.find(asked.model, "chat" if asked.chat or asked.system is not None else "generate")
    context.limits.check_texts([asked.prompt, asked.system or ""])
    context.limits.check("top", asked.alternatives, "alternatives")
    context.limits.check("tokens", max(asked.max_tokens, len(asked.prefix)), "tokens")
    options = asked.options(context)
    ids = await context.to_thread(served.prompt_ids, asked.prompt, asked.chat, asked.system)
    (stream,) = start_streams(served, [Prompt(ids, asked.prefix)], options)
    if asked.stream:
        return EventStream(stream_events(context, stream))
    with closing(stream):
        await context.wait_for(stream.wait())
    words = served.model.target_words()
    tokens = await context.to_thread(lambda: token_records(TokenFormatter(words, stream.context), stream.steps))
    return {"model": served.name, "text": stream.text, "tokens": tokens, "finish": stream.finish,
            "prompt_tokens": len(ids)}  # fmt: skip


async def stream_events(context: RequestContext, stream: TextStream) -> AsyncIterator[str]:
    """Yield events {"text", "tokens"}, at last {"finish"}."""
    formatter = TokenFormatter(stream.served.model.target_words(), stream.context)
    try:
        async with asyncio.timeout(context.remaining()):
            async for text, steps in stream.pieces():
                yield event({"text": text, "tokens": token_records(formatter, steps)})
        yield event({"finish": stream.finish})
    except Exception as error:
        yield event(error_of(error, stream.served).body("/api"))
    finally:
        stream.close()


@routes.post("/translate")
async def translate(asked: NativeTranslateRequest, context: Context) -> dict[str, Any]:
    """Translate texts sentence by sentence, or with `prefix` as a whole; return scores, tokens, n-best lists, alignments."""
    served = context.find(asked.model, "translate")
    texts = asked.check(context)
    prefixes = [asked.prefix] if asked.prefix else ()
    how = served.request(asked.beam, asked.n_best, max_length=asked.max_length, prefixes=prefixes)
    found = await context.wait_for(translate_texts(served, texts, how))
    results = [format_translation(merge(ways)) for ways in found]
    if asked.alignments:
        links = [await context.wait_for(align_words(served, best)) for best, *_ in found]
        results = [one | {"alignment": own} for one, own in zip(results, links, strict=True)]
    return {"model": served.name, "results": results}


def merge(ways: list[TextTranslation]) -> Translation:
    """Return the best translation of a text with all others as its n-best list."""
    translations = [way.merge() for way in ways]
    return replace(translations[0], n_best=translations if len(translations) > 1 else [])


def format_translation(one: Translation) -> dict[str, Any]:
    """Convert a translation and its n-best list to JSON."""
    if one.problem:
        raise ApiError(400, one.problem)
    fields = {"text": one.text, "score": finite(one.score), "tokens": one.tokens,
              "log_probs": [finite(each) for each in one.token_log_probs]}  # fmt: skip
    return fields | ({"n_best": [format_translation(each) for each in one.n_best]} if len(one.n_best) > 1 else {})


@routes.post("/sentences")
async def split_sentences(asked: SentencesRequest, context: Context) -> dict[str, Any]:
    """Split a text into the sentences that are translated: {"text", "translated": whether it has words, "space" after it}."""
    context.limits.check_texts([asked.text])
    pieces = [*await context.to_thread(sentences.split, asked.text), ""]
    records = [{"text": text, "translated": sentences.has_words(text), "space": space}
               for text, space in zip(pieces[::2], pieces[1::2], strict=True)]  # fmt: skip
    return {"sentences": records}


@routes.post("/summarize")
async def summarize(asked: BeamRequest, context: Context) -> dict[str, Any]:
    """Summarize each text."""
    served = context.find(asked.model, "summarize")
    how = served.request(asked.beam, asked.n_best, max_length=asked.max_length)
    found = await context.wait_for(served.search(asked.check(context), how))
    return {"model": served.name, "results": [format_translation(one) for one in found]}
