"""LibreTranslate's API: /translate, /languages, /detect, /frontend/settings; works with its clients and plug-ins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, ConfigDict, Field

from qkv.serve.api.languages import detect_language, language_name
from qkv.serve.api.service import Context, RequestContext
from qkv.serve.api.translation import translate_html, translate_plain
from qkv.serve.http.auth import ApiKeys
from qkv.serve.http.errors import ApiError
from qkv.serve.http.limits import BoundedStr, Many

Code = Annotated[str, Field(max_length=40)]


class DetectRequest(BaseModel):
    model_config = ConfigDict(use_attribute_docstrings=True)

    q: BoundedStr | Many[BoundedStr]
    """One text or several."""
    api_key: str | None = Field(default=None, max_length=1000)


class TranslateRequest(DetectRequest):
    source: Code = "auto"
    """Language code, or "auto" to detect the language."""
    target: Code
    """Language code."""
    format: str = Field(default="text", pattern="^(text|html)$", max_length=10)
    """"html": only the prose is translated; inline tags stay around their words."""
    alternatives: int = Field(default=0, ge=0, le=2**31)
    """Number of additional translations of each text."""


async def require_key_or_field(request: Request) -> None:
    """Check the API key, which may be a field of the body, before anything else in the body is validated."""
    keys: ApiKeys = request.app.state.service.keys
    if not keys.digests:
        return
    try:
        body = await request.json()
    except ValueError:
        body = None
    key = body.get("api_key") if isinstance(body, dict) else None
    keys.check(request, key if isinstance(key, str) else None)


routes = APIRouter(tags=["LibreTranslate"])


@routes.post("/translate", dependencies=[Depends(require_key_or_field)])
async def translate(asked: TranslateRequest, context: Context) -> dict[str, Any]:
    """Translate one or several texts."""
    texts = check_query(context, asked.q)
    context.limits.check("alternatives", asked.alternatives, "alternatives")
    auto = asked.source == "auto"
    detected = await context.to_thread(detect, context, texts, asked.target) if auto else []
    codes = [best[0] for best in detected] if auto else [asked.source] * len(texts)
    found = await context.wait_for(translate_each(context, texts, codes, asked))
    one = isinstance(asked.q, str)
    reply: dict[str, Any] = {"translatedText": found[0][0] if one else [best for best, *_ in found]}
    if asked.alternatives:
        reply["alternatives"] = found[0][1:] if one else [others for _, *others in found]
    if auto:
        languages = [{"language": code, "confidence": round(score)} for code, score in detected]
        reply["detectedLanguage"] = languages[0] if one else languages
    return reply


@routes.get("/languages")
async def languages(context: Context) -> list[dict[str, Any]]:
    """List the languages, each with those into which it can be translated."""
    pairs = context.service.translators()
    codes = dict.fromkeys(code for pair in pairs for code in pair)
    targets = {code: [target for source, target in pairs if source == code] for code in codes}
    return [{"code": code, "name": language_name(code), "targets": targets[code]} for code in codes]


@routes.post("/detect", dependencies=[Depends(require_key_or_field)])
async def detect_route(asked: DetectRequest, context: Context) -> list[dict[str, Any]]:
    """Detect the language of a text among those of the served models, the most likely first."""
    texts = check_query(context, asked.q)
    first, *others = await context.to_thread(detect_language, " ".join(texts), all_languages(context))
    found = [first, *(other for other in others if other[1])]
    return [{"language": code, "confidence": round(score)} for code, score in found]


@routes.get("/frontend/settings")
async def frontend_settings(context: Context) -> dict[str, Any]:
    """Settings that LibreTranslate's web page reads at its start."""
    source, target = next(iter(context.service.translators()), ("", ""))
    needs_key = bool(context.service.keys.digests)
    return {
        "apiKeys": needs_key, "keyRequired": needs_key, "charLimit": context.limits.characters,
        "batchLimit": context.limits.texts, "frontendTimeout": 500,
        "filesTranslation": False, "supportedFilesFormat": [], "suggestions": False,
        "language": {"source": {"code": source, "name": language_name(source)},
                     "target": {"code": target, "name": language_name(target)}},
    }  # fmt: skip


# --- languages and models


def check_query(context: RequestContext, q: str | list[str]) -> list[str]:
    if not q:
        raise ApiError(400, "Invalid request: missing q parameter")
    texts = [q] if isinstance(q, str) else q
    context.limits.check_texts(texts)
    return texts


def all_languages(context: RequestContext) -> list[str]:
    """Return all languages, source languages first: without evidence the first one is detected."""
    pairs = context.service.translators()
    if not pairs:
        raise ApiError(404, "no model here translates: serve one that was trained for it")
    return list(dict.fromkeys([*(source for source, _ in pairs), *(target for _, target in pairs)]))


def detect(context: RequestContext, texts: Sequence[str], target: str) -> list[tuple[str, float]]:
    """Detect the language of each text among the source languages and the target."""
    sources = {source for source, _ in context.service.translators()}
    candidates = [code for code in all_languages(context) if code == target or code in sources]
    return [detect_language(text, candidates)[0] for text in texts]


async def translate_each(
    context: RequestContext, texts: Sequence[str], codes: Sequence[str], asked: TranslateRequest
) -> list[list[str]]:
    """Return the translations of each text, the best one first.

    Texts of one language are translated together; a text that is in the target language already stays as it is.
    """
    models, known, found = context.service.translators(), all_languages(context), dict[int, list[str]]()
    translate_all = translate_html if asked.format == "html" else translate_plain
    for code in dict.fromkeys(codes):
        numbers = [number for number, own in enumerate(codes) if own == code]
        if code == asked.target and code in known:
            found |= {number: [texts[number]] for number in numbers}
            continue
        if (code, asked.target) not in models:
            pairs = ", ".join(f"{source}-{target}" for source, target in models)
            raise ApiError(400, f"{code} to {asked.target} is not supported; available: {pairs}")
        served = models[code, asked.target]
        results = await translate_all(served, [texts[number] for number in numbers], 1 + asked.alternatives)
        found.update(zip(numbers, results, strict=True))
    return [found[number] for number in range(len(texts))]
