"""LibreTranslate's API: /translate, /languages, /detect, /frontend/settings; works with its clients and plug-ins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, ConfigDict, Field

from qkv.serve.api.languages import detect_language, language_name
from qkv.serve.api.service import Service
from qkv.serve.api.translation import translate_html, translate_plain
from qkv.serve.http.auth import ApiKeys
from qkv.serve.http.errors import ApiError
from qkv.serve.http.limits import BoundedStr, Many
from qkv.serve.scheduling.served_model import ServedModel

Code = Annotated[str, Field(max_length=40)]
NO_TRANSLATOR = "no model here translates: serve one that was trained for it"


class TranslateRequest(BaseModel):
    model_config = ConfigDict(use_attribute_docstrings=True)

    q: BoundedStr | Many[BoundedStr]
    """One text or several."""
    source: Code = "auto"
    """Language code, or "auto" to detect the language."""
    target: Code
    """Language code."""
    format: str = Field(default="text", pattern="^(text|html)$", max_length=10)
    """"html": only the prose is translated; inline tags stay around their words."""
    alternatives: int = Field(default=0, ge=0, le=2**31)
    """Number of additional translations of each text."""
    api_key: str | None = Field(default=None, max_length=1000)


class DetectRequest(BaseModel):
    q: BoundedStr | Many[BoundedStr]
    api_key: str | None = Field(default=None, max_length=1000)


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
async def translate(asked: TranslateRequest, request: Request) -> dict[str, Any]:
    """Translate one or several texts."""
    service: Service = request.app.state.service
    texts = check_query(service, asked.q)
    service.limits.check("alternatives", asked.alternatives, "alternatives")
    auto = asked.source == "auto"
    detected = await service.to_thread(request, detect, service, texts, asked.target) if auto else []
    codes = [best[0] for best in detected] if auto else [asked.source] * len(texts)
    found = await service.wait_for(request, translate_each(service, texts, codes, asked))
    one = isinstance(asked.q, str)
    reply: dict[str, Any] = {"translatedText": found[0][0] if one else [best for best, *_ in found]}
    if asked.alternatives:
        reply["alternatives"] = found[0][1:] if one else [others for _, *others in found]
    if auto:
        languages = [{"language": code, "confidence": round(score)} for code, score in detected]
        reply["detectedLanguage"] = languages[0] if one else languages
    return reply


@routes.get("/languages")
async def languages(request: Request) -> list[dict[str, Any]]:
    """List the languages, each with those into which it can be translated."""
    pairs = language_pairs(request.app.state.service)
    codes = dict.fromkeys(code for pair in pairs for code in pair)
    targets = {code: [target for source, target in pairs if source == code] for code in codes}
    return [
        {"code": code, "name": language_name(code), "targets": list(dict.fromkeys(targets[code]))} for code in codes
    ]


@routes.post("/detect", dependencies=[Depends(require_key_or_field)])
async def detect_route(asked: DetectRequest, request: Request) -> list[dict[str, Any]]:
    """Detect the language of a text among those of the served models, the most likely first."""
    service: Service = request.app.state.service
    texts = check_query(service, asked.q)
    first, *others = await service.to_thread(request, detect_language, " ".join(texts), all_languages(service))
    found = [first, *(other for other in others if other[1])]
    return [{"language": code, "confidence": round(score)} for code, score in found]


@routes.get("/frontend/settings")
async def frontend_settings(request: Request) -> dict[str, Any]:
    """Settings that LibreTranslate's web page reads at its start."""
    service: Service = request.app.state.service
    source, target = next(iter(language_pairs(service)), ("", ""))
    return {
        "apiKeys": bool(service.keys.digests), "keyRequired": bool(service.keys.digests),
        "charLimit": service.limits.characters, "batchLimit": service.limits.texts, "frontendTimeout": 500,
        "filesTranslation": False, "supportedFilesFormat": [], "suggestions": False,
        "language": {"source": {"code": source, "name": language_name(source)},
                     "target": {"code": target, "name": language_name(target)}},
    }  # fmt: skip


# --- languages and models


def check_query(service: Service, q: str | list[str]) -> list[str]:
    if not q:
        raise ApiError(400, "Invalid request: missing q parameter")
    texts = [q] if isinstance(q, str) else q
    service.limits.check_texts(texts)
    return texts


def language_pairs(service: Service) -> list[tuple[str, str]]:
    return [model.pair for model in service.registry.translators() if model.pair is not None]


def all_languages(service: Service) -> list[str]:
    """Return all languages, source languages first: without evidence the first one is detected."""
    pairs = language_pairs(service)
    if not pairs:
        raise ApiError(404, NO_TRANSLATOR)
    return list(dict.fromkeys([*(source for source, _ in pairs), *(target for _, target in pairs)]))


def detect(service: Service, texts: Sequence[str], target: str) -> list[tuple[str, float]]:
    """Detect the language of each text among the source languages and the target."""
    sources = {source for source, _ in language_pairs(service)}
    candidates = [code for code in all_languages(service) if code == target or code in sources]
    return [detect_language(text, candidates)[0] for text in texts]


def find_translator(service: Service, source: str, target: str) -> ServedModel:
    """Return the first model for a pair of languages."""
    for model in service.registry.translators():
        if model.pair == (source, target):
            return model
    pairs = dict.fromkeys(f"{a}-{b}" for a, b in language_pairs(service))
    if not pairs:
        raise ApiError(404, NO_TRANSLATOR)
    raise ApiError(400, f"{source} to {target} is not supported; available: {', '.join(pairs)}")


async def translate_each(
    service: Service, texts: Sequence[str], codes: Sequence[str], asked: TranslateRequest
) -> list[list[str]]:
    """Return the translations of each text, the best one first.

    Texts of one language are translated together; a text that is in the target language already stays as it is.
    """
    found: dict[int, list[str]] = {}
    translate_all = translate_html if asked.format == "html" else translate_plain
    for code in dict.fromkeys(codes):
        numbers = [number for number, own in enumerate(codes) if own == code]
        if code == asked.target and code in all_languages(service):
            found |= {number: [texts[number]] for number in numbers}
            continue
        served = find_translator(service, code, asked.target)
        results = await translate_all(served, [texts[number] for number in numbers], 1 + asked.alternatives)
        found.update(zip(numbers, results, strict=True))
    return [found[number] for number in range(len(texts))]
