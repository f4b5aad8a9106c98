"""OpenAI's API: /v1/models, /v1/completions, /v1/chat/completions, /v1/embeddings.

Unknown fields are ignored, as by OpenAI's server; known ones that would change the answer and are not supported are rejected.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Path
from pydantic import BaseModel, ConfigDict, Field

from qkv.generate.sampling import SamplingParams
from qkv.serve.api.openai_format import ChatFormat, CompletionFormat, respond
from qkv.serve.api.sampling_options import PenaltyFields, check_stops, valid_seed
from qkv.serve.api.service import Context, RequestContext, require_key
from qkv.serve.http.errors import ApiError
from qkv.serve.http.forms import as_list
from qkv.serve.http.limits import MOST_ITEMS, BoundedStr, Many
from qkv.serve.scheduling.served_model import ServedModel
from qkv.serve.scheduling.streaming import GenerationOptions, Prompt

Natural = Annotated[int, Field(ge=0, le=2**31)]
TokenIds = Annotated[Many[Natural], Field(min_length=1)]
Mapping = Annotated[dict[str, Any], Field(max_length=MOST_ITEMS)]
Inputs = BoundedStr | Many[BoundedStr] | TokenIds | Many[TokenIds]


class StreamOptions(BaseModel):
    include_usage: bool = False


class SamplingRequest(PenaltyFields):
    """Fields that completions and chats share."""

    model: str = Field(max_length=200)
    """One of /v1/models."""
    temperature: float | None = Field(default=None, ge=0, le=100, allow_inf_nan=False)
    """0 = always the most likely token; otherwise logits are divided by it. Default 1."""
    top_p: float | None = Field(default=None, gt=0, le=1, allow_inf_nan=False)
    """Nucleus sampling: only the most likely tokens that together have this probability."""
    top_k: int | None = Field(default=None, ge=-1, le=2**31)
    """Only so many of the most likely tokens; 0 or -1 = all. Like min_p not OpenAI's, but supported by many servers."""
    min_p: float | None = Field(default=None, ge=0, le=1, allow_inf_nan=False)
    """Only tokens with at least this fraction of the most likely token's probability."""
    n: int | None = Field(default=None, ge=1, le=2**31)
    """Number of choices."""
    stop: BoundedStr | Many[BoundedStr] | None = None
    """Strings that end the text; they are not part of it."""
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    """The same seed gives the same text."""
    stream: bool | None = None
    """Send the text in pieces, as server-sent events."""
    stream_options: StreamOptions | None = None
    user: BoundedStr | None = None
    logit_bias: Mapping | None = None

    def options(self, context: RequestContext, max_tokens: int, top: int) -> GenerationOptions:
        temperature = 1.0 if self.temperature is None else self.temperature
        top_p = 1.0 if self.top_p is None else self.top_p
        sampling = SamplingParams(temperature, max(0, self.top_k or 0), top_p, self.min_p or 0.0)
        stop = check_stops(context.limits, as_list(self.stop or []))
        return GenerationOptions(max_tokens, sampling, valid_seed(self.seed), top, stop, self.penalties())

    def reject(self, **unsupported: Any) -> None:
        """Raise an error for a field that is set but not supported."""
        for name, value in {"logit_bias": self.logit_bias, **unsupported}.items():
            if value:
                raise ApiError(400, f"{name} is not supported here: leave it out", "unsupported_parameter", name)


class CompletionRequest(SamplingRequest):
    prompt: Inputs = ""
    """One or several texts to continue, or their token ids."""
    max_tokens: Natural | None = 16
    logprobs: Natural | None = None
    """Return log-probabilities of the tokens, and of so many alternatives."""
    echo: bool | None = None
    """Return the prompt before the completion."""
    suffix: BoundedStr | None = None
    best_of: Natural | None = None


class ContentPart(BaseModel):
    type: Literal["text"]
    text: BoundedStr


class ChatMessage(BaseModel):
    role: Literal["system", "developer", "user", "assistant"]
    content: BoundedStr | Many[ContentPart]
    name: BoundedStr | None = None

    def plain(self) -> dict[str, str]:
        text = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return {"role": "system" if self.role == "developer" else self.role, "content": text}


class ChatRequest(SamplingRequest):
    messages: Many[ChatMessage] = Field(min_length=1)
    max_tokens: Natural | None = None
    max_completion_tokens: Natural | None = None
    logprobs: bool | None = None
    top_logprobs: Natural | None = None
    tools: Many[Any] | None = None
    functions: Many[Any] | None = None
    response_format: Mapping | None = None


class EmbeddingRequest(BaseModel):
    model_config = ConfigDict(use_attribute_docstrings=True)

    model: str = Field(max_length=200)
    input: Inputs
    """One or several texts, or their token ids."""
    encoding_format: Literal["float", "base64"] | None = None
    """Numbers (the default), or the bytes of float32 numbers in base64."""
    dimensions: Natural | None = None
    user: BoundedStr | None = None


routes = APIRouter(prefix="/v1", tags=["OpenAI"], dependencies=[Depends(require_key)])


@routes.get("/models")
async def models(context: Context) -> dict[str, Any]:
    """List the models."""
    return {"object": "list", "data": [model_card(context, model) for model in context.service.models]}


@routes.get("/models/{name}")
async def model(name: Annotated[str, Path(max_length=200)], context: Context) -> dict[str, Any]:
    """Describe one model."""
    return model_card(context, context.service.get(name))


def model_card(context: RequestContext, served: ServedModel) -> dict[str, Any]:
    return {"id": served.name, "object": "model", "created": context.service.created, "owned_by": "qkv"}


@routes.post("/completions")
async def completions(asked: CompletionRequest, context: Context) -> Any:
    """Continue a prompt; an encoder-decoder generates the target for it as a source."""
    asked.reject(suffix=asked.suffix, best_of=(asked.best_of or 1) > (asked.n or 1))
    served = context.find(asked.model, "generate")
    prompts = await context.to_thread(encode_prompts, asked, served)
    context.limits.check("top", asked.logprobs or 0, "logprobs")
    max_tokens = 16 if asked.max_tokens is None else asked.max_tokens
    options = asked.options(context, max_tokens, asked.logprobs or 0)
    formatter = CompletionFormat(asked, served, prompts)
    return await respond(context, asked, repeat_prompts(context, prompts, asked.n), options, formatter)


@routes.post("/chat/completions")
async def chat(asked: ChatRequest, context: Context) -> Any:
    """Generate the assistant's next message."""
    text_format = (asked.response_format or {}).get("type", "text") == "text"
    asked.reject(tools=asked.tools, functions=asked.functions, response_format=not text_format)
    served = context.find(asked.model, "chat")
    messages = [message.plain() for message in asked.messages]
    context.limits.check_texts([message["content"] for message in messages], "messages")
    context.limits.check("top", asked.top_logprobs or 0, "top_logprobs")
    ids = await context.to_thread(served.model.chat_ids, messages)
    wanted = asked.max_completion_tokens if asked.max_completion_tokens is not None else asked.max_tokens
    max_tokens = context.limits.tokens if wanted is None else wanted
    options = asked.options(context, max_tokens, (asked.top_logprobs or 0) if asked.logprobs else 0)
    prompts = repeat_prompts(context, [Prompt(ids)], asked.n)
    return await respond(context, asked, prompts, options, ChatFormat(asked, served))


@routes.post("/embeddings")
async def embeddings(asked: EmbeddingRequest, context: Context) -> dict[str, Any]:
    """Return a vector for each text: the mean of the last hidden vectors of its tokens, scaled to length 1."""
    served = context.find(asked.model, "embed")
    texts = await context.to_thread(served.as_texts, asked.input)
    if not texts or not all(texts):
        raise ApiError(400, "there is nothing to embed: an input is empty", param="input")
    if asked.dimensions not in (None, served.config.d_model):
        raise ApiError(400, f"the vectors of this model have {served.config.d_model} dimensions", param="dimensions")
    work = lambda items: served.model.embed(items, truncate=True).tolist()  # noqa: E731
    vectors = await context.compute(served, "embed", work, texts)
    data = [
        {"object": "embedding", "index": index, "embedding": encode_vector(vector, asked.encoding_format)}
        for index, vector in enumerate(vectors)
    ]
    count = await context.to_thread(lambda: sum(len(ids) for ids in served.model.words().plain(texts)))
    return {"object": "list", "model": served.name, "data": data,
            "usage": {"prompt_tokens": count, "total_tokens": count}}  # fmt: skip


def encode_vector(vector: list[float], form: str | None) -> list[float] | str:
    """Return the numbers, or the bytes of float32 numbers in base64."""
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode() if form == "base64" else vector


def encode_prompts(asked: CompletionRequest, served: ServedModel) -> list[Prompt]:
    """Tokenize the prompts of a request."""
    given = served.limits.check_inputs(asked.prompt, "prompts")
    return [Prompt(served.prompt_ids(each) if isinstance(each, str) else each) for each in given]


def repeat_prompts(context: RequestContext, prompts: Sequence[Prompt], n: int | None) -> list[Prompt]:
    """Return each prompt n times."""
    context.limits.check("alternatives", (n or 1) - 1, "choices beside the first")
    context.limits.check("texts", len(prompts) * (n or 1), "texts (prompts times n)")
    return [prompt for prompt in prompts for _ in range(n or 1)]
