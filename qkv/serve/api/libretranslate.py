"""LibreTranslate's API: /translate, /languages, /detect, /frontend/settings; its clients and plug-ins work at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, ConfigDict, Field

from qkv.generate.alignment import Link
from qkv.generate.translate import Translation
from qkv.generate.translate import TranslationParams as Translating
from qkv.serve.api import sentences
from qkv.serve.api.languages import guess, name_of
from qkv.serve.api.markup import Markup, Run
from qkv.serve.http.errors import Refusal
from qkv.serve.http.middleware import listed
from qkv.serve.scheduling.limits import BoundedStr, Many
from qkv.serve.scheduling.registry import Service
from qkv.serve.scheduling.served_model import Served

Code = Annotated[str, Field(max_length=40)]


class Translate(BaseModel):
    model_config = ConfigDict(use_attribute_docstrings=True)

    q: BoundedStr | Many[BoundedStr]
    """One text or several."""
    source: Code = "auto"
    """Language code, or "auto"."""
    target: Code
    """Language code."""
    format: str = Field(default="text", pattern="^(text|html)$", max_length=10)
    """Of html only the prose is translated; inline tags go with their words."""
    alternatives: int = Field(default=0, ge=0, le=2**31)
    """So many further translations of each text."""
    api_key: str | None = Field(default=None, max_length=1000)


class Detect(BaseModel):
    q: BoundedStr | Many[BoundedStr]
    api_key: str | None = Field(default=None, max_length=1000)


def router(service: Service) -> APIRouter:
    routes = APIRouter(tags=["LibreTranslate"])

    async def asks_for_key(request: Request) -> None:
        """The key may be a field of the body: it is looked for there before anything else of it is checked."""
        service.keys.check(request, await key_in_body(request))

    @routes.post("/translate", dependencies=[Depends(asks_for_key)])
    async def translate(asked: Translate, request: Request) -> dict[str, Any]:
        """Translate a text, or several."""
        texts = something(asked.q)
        service.limits.texts_of(texts)
        service.limits.at_most("alternatives", asked.alternatives, "alternatives")
        known = [code for code in codes_of(service) if code == asked.target or code in sources_of(service)]
        auto = asked.source == "auto"
        guesses = await service.threaded(request, lambda: [guess(text, known) for text in texts]) if auto else []
        codes = [own[0][0] for own in guesses] if guesses else [asked.source] * len(texts)
        work = translated(service, texts, codes, asked)
        found = await service.attended(request, work)  # of each text its translation and the alternatives
        one = isinstance(asked.q, str)
        reply: dict[str, Any] = {"translatedText": found[0][0] if one else [best for best, *_ in found]}
        if asked.alternatives:
            reply["alternatives"] = found[0][1:] if one else [others for _, *others in found]
        if guesses:
            detected = [{"language": own[0][0], "confidence": round(own[0][1])} for own in guesses]
            reply["detectedLanguage"] = detected[0] if one else detected
        return reply

    @routes.get("/languages")
    async def languages() -> list[dict[str, Any]]:
        """What can be translated into what."""
        pairs = [one.pair for one in service.translators() if one.pair is not None]
        codes = dict.fromkeys(code for pair in pairs for code in pair)
        targets = {code: [target for source, target in pairs if source == code] for code in codes}
        return [{"code": code, "name": name_of(code), "targets": list(dict.fromkeys(targets[code]))} for code in codes]

    @routes.post("/detect", dependencies=[Depends(asks_for_key)])
    async def detect(asked: Detect, request: Request) -> list[dict[str, Any]]:
        """Which of the languages here a text is in, the likeliest first; where nothing speaks for any, one with confidence 0."""
        texts = something(asked.q)
        service.limits.texts_of(texts)
        first, *others = await service.threaded(request, guess, " ".join(texts), codes_of(service))
        found = [first, *(other for other in others if other[1])]
        return [{"language": code, "confidence": round(share)} for code, share in found]

    @routes.get("/frontend/settings")
    async def settings() -> dict[str, Any]:
        """What a page of LibreTranslate asks first."""
        pairs = [one.pair for one in service.translators() if one.pair is not None]
        first = pairs[0] if pairs else ("", "")
        side = lambda code: {"code": code, "name": name_of(code)}  # noqa: E731
        return {
            "apiKeys": bool(service.keys.digests), "keyRequired": bool(service.keys.digests),
            "charLimit": service.limits.characters, "batchLimit": service.limits.texts, "frontendTimeout": 500,
            "filesTranslation": False, "supportedFilesFormat": [], "suggestions": False,
            "language": {"source": side(first[0]), "target": side(first[1])},
        }  # fmt: skip

    return routes


async def key_in_body(request: Request) -> str | None:
    """The field api_key of a body that is an object in JSON; None where there is none."""
    try:
        body = await request.json()
    except ValueError:
        return None
    key = body.get("api_key") if isinstance(body, dict) else None
    return key if isinstance(key, str) else None


def something(q: str | list[str]) -> list[str]:
    if not q:
        raise Refusal(400, "Invalid request: missing q parameter")
    return listed(q)


def sources_of(service: Service) -> list[str]:
    """Languages that can be translated from."""
    found = list(dict.fromkeys(one.pair[0] for one in service.translators() if one.pair is not None))
    if not found:
        raise Refusal(404, "no model here translates: serve one that was trained for it")
    return found


def codes_of(service: Service) -> list[str]:
    """All languages here, those that can be translated from first: where nothing speaks for any, it is one of them."""
    targets = [one.pair[1] for one in service.translators() if one.pair is not None]
    return list(dict.fromkeys([*sources_of(service), *targets]))


def translator(service: Service, source: str, target: str) -> Served:
    """The model for a pair of languages."""
    pairs = {one.pair: one for one in reversed(service.translators())}
    if (source, target) in pairs:
        return pairs[source, target]
    known = ", ".join(f"{a}-{b}" for a, b in pairs if a and b) or "none"  # type: ignore[misc]
    raise Refusal(400, f"{source} to {target} is not supported; there is {known}")


async def translated(service: Service, texts: Sequence[str], codes: Sequence[str], asked: Translate) -> list[list[str]]:
    """Of each text its translations, the best one first; texts of one language are translated together, and what is in the
    target language already stays as it is."""
    found: dict[int, list[str]] = {}
    for code in dict.fromkeys(codes):
        numbers = [number for number, own in enumerate(codes) if own == code]
        if code == asked.target and code in codes_of(service):
            found |= {number: [texts[number]] for number in numbers}
            continue
        served = translator(service, code, asked.target)
        some = [texts[number] for number in numbers]
        way = of_html if asked.format == "html" else of_texts
        found.update(zip(numbers, await way(served, some, 1 + asked.alternatives), strict=True))
    return [found[number] for number in range(len(texts))]


class Way(NamedTuple):
    """One translation of a text."""

    text: str
    parts: list[tuple[str, Translation]]
    """Its sentences."""

    def whole(self) -> Translation:
        """As one translation: the tokens of all sentences, and the mean of their scores by length; of one sentence, itself."""
        own = [one for _, one in self.parts]
        if len(own) == 1:
            return own[0]
        problem = next((one.problem for one in own if one.problem), "")
        tokens, log_probs = [t for one in own for t in one.tokens], [p for one in own for p in one.token_log_probs]
        score = sum(one.score * len(one.tokens) for one in own) / max(len(tokens), 1)
        return Translation(self.text, score, sum(one.log_prob for one in own), tokens, log_probs, problem=problem)


async def of_texts(served: Served, texts: Sequence[str], count: int) -> list[list[str]]:
    """`count` translations of each text or fewer, the best one first."""
    found = await ways_of(served, texts, served.request(n_best=count))
    return [list(dict.fromkeys(way.text for way in own)) for own in found]


async def ways_of(served: Served, texts: Sequence[str], how: Translating) -> list[list[Way]]:
    """n_best translations of each text, sentence by sentence: the second one is made of second-best sentences. What has no
    letter in it ("42", "...") stays as it is: a model would invent a sentence."""
    if how.prefixes:  # the beginning of a translation is that of its first sentence alone: the text stays whole
        whole = zip(texts, await served.search(texts, how), strict=True)
        return [[Way(one.text, [(text, one)]) for one in bests(found)] for text, found in whole]
    split = await asyncio.to_thread(lambda: [sentences.split(text) for text in texts])
    parts = [part for own in split for part in own[::2]]
    served.limits.at_most("sentences", len(parts), "sentences")
    found = iter(await served.search(list(filter(sentences.worded, parts)), how))
    results = []
    for own in split:
        best = [bests(next(found)) if sentences.worded(part) else [Translation(part)] for part in own[::2]]
        chosen = [[each[min(n, len(each) - 1)] for each in best] for n in range(how.beam.n_best)]
        results.append([Way(sentences.joined(own, [one.text for one in some]), list(zip(own[::2], some, strict=True)))
                        for some in chosen])  # fmt: skip
    return results


def bests(one: Translation) -> list[Translation]:
    return one.n_best or [one]


# --- HTML


async def of_html(served: Served, pages: Sequence[str], count: int) -> list[list[str]]:
    """The same for what stands between tags."""
    markups = [await asyncio.to_thread(Markup, page) for page in pages]  # one at a time: between two it can be given up
    runs = [run for markup in markups for run in markup.runs()]
    found = await as_wholes(served, [run for run in runs if run.tagged], count)
    rest = [run for run in runs if run not in found]
    texts = iter(await of_texts(served, [text for run in rest for text in run.prose()], count))
    for run in rest:
        own = [next(texts) for _ in run.prose()]
        found[run] = [run.with_prose([each[min(n, len(each) - 1)] for each in own]) for n in range(count)]
    results = []
    for markup in markups:
        ways = [
            "".join(part if isinstance(part, str) else found[part][n] for part in markup.parts) for n in range(count)
        ]
        results.append(list(dict.fromkeys(ways)))
    return results


async def as_wholes(served: Served, runs: Sequence[Run], count: int) -> dict[Run, list[str]]:
    """Translations of runs with tags in them, as far as the tags find their places."""
    runs = await asyncio.to_thread(lambda: [run for run in runs if whole(served, run)])
    found: dict[Run, list[str]] = {}
    for run, ways in zip(
        runs, await ways_of(served, [run.text for run in runs], served.request(n_best=count)), strict=True
    ):
        tagged = [await asyncio.to_thread(run.with_text, way.text, await links_of(served, way)) for way in ways]
        if None not in tagged:
            found[run] = [one for one in tagged if one is not None]
    return found


def whole(served: Served, run: Run) -> bool:
    """Whether it can be translated as a whole: its tags close each other, and no sentence of it is too long."""
    if not served.aligns or run.elements() is None:
        return False
    most = served.config.max_length
    return all(len(served.translator.read(part)[0]) <= most for part in sentences.split(run.text)[::2])


async def links_of(served: Served, way: Way) -> list[Link]:
    """Which word of a text each word of its translation comes from, sentence by sentence."""
    pairs = [(sentence, one.tokens) for sentence, one in way.parts]
    links: list[Link] = []
    source = target = 0
    for (sentence, one), own in zip(way.parts, await served.caller.ask("align", served.align, pairs), strict=True):
        count = len(sentence.split())
        own = [(n, n) for n in range(count)] if one.text == sentence else own  # what stayed as it is
        links += [(source + a, target + b) for a, b in own]
        source, target = source + count, target + len(one.text.split())
    return links
