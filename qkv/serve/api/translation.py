"""Translation of whole texts and HTML pages, sentence by sentence, with word alignments."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from qkv.generate.alignment import Link
from qkv.generate.translate import Translation, TranslationParams
from qkv.serve.api import sentences
from qkv.serve.api.markup import Markup, ProseRun
from qkv.serve.scheduling.served_model import Prepared, ServedModel


class TextTranslation(NamedTuple):
    """One translation of a text."""

    text: str
    sentences: list[tuple[str, Translation]]
    """Each source sentence and its translation."""

    def merge(self) -> Translation:
        """Return one translation with the tokens of all sentences and the mean of their scores, weighted by length."""
        parts = [part for _, part in self.sentences]
        if len(parts) == 1:
            return parts[0]
        problem = next((part.problem for part in parts if part.problem), "")
        tokens = [token for part in parts for token in part.tokens]
        log_probs = [log_prob for part in parts for log_prob in part.token_log_probs]
        score = sum(part.score * len(part.tokens) for part in parts) / max(len(tokens), 1)
        return Translation(self.text, score, sum(part.log_prob for part in parts), tokens, log_probs, problem=problem)


async def translate_texts(
    served: ServedModel, texts: Sequence[str], how: TranslationParams
) -> list[list[TextTranslation]]:
    """Return `n_best` translations of each text, sentence by sentence: the second one consists of second-best sentences.

    A sentence without letters ("42", "...") stays as it is: a model would invent a translation.
    """
    if how.prefixes:  # only the first sentence starts with the prefix: the text is not split
        whole = zip(texts, await served.search(texts, how), strict=True)
        return [[TextTranslation(one.text, [(text, one)]) for one in best.n_best or [best]] for text, best in whole]
    split, prepared = await asyncio.to_thread(split_and_prepare, served, texts, how)
    found = iter(await served.run_searches(prepared))
    results = []
    for pieces in split:
        best = [next(found) if sentences.has_words(part) else Translation(part) for part in pieces[::2]]
        ways = [one.n_best or [one] for one in best]
        chosen = [[each[min(n, len(each) - 1)] for each in ways] for n in range(how.beam.n_best)]
        results.append([
            TextTranslation(sentences.join(pieces, [one.text for one in some]), list(zip(pieces[::2], some, strict=True)))
            for some in chosen
        ])  # fmt: skip
    return results


def split_and_prepare(
    served: ServedModel, texts: Sequence[str], how: TranslationParams
) -> tuple[list[list[str]], list[Prepared | None]]:
    """Split texts into sentences and tokenize those with words."""
    split = [sentences.split(text) for text in texts]
    parts = [part for pieces in split for part in pieces[::2]]
    served.limits.check("sentences", len(parts), "sentences")
    return split, [served.prepare(part, how) for part in parts if sentences.has_words(part)]


async def translate_plain(served: ServedModel, texts: Sequence[str], count: int) -> list[list[str]]:
    """Return up to `count` different translations of each text, the best one first."""
    results = await translate_texts(served, texts, served.request(n_best=count))
    return [list(dict.fromkeys(one.text for one in found)) for found in results]


# --- HTML


async def translate_html(served: ServedModel, pages: Sequence[str], count: int) -> list[list[str]]:
    """Translate the prose of pages; a run of prose whose tags cannot be placed is split at them."""
    markups = [await asyncio.to_thread(Markup, page) for page in pages]  # one by one, so that it can be cancelled
    runs = [run for markup in markups for run in markup.runs()]
    found = await translate_runs(served, [run for run in runs if run.tagged], count)
    rest = [run for run in runs if run not in found]
    texts = iter(await translate_plain(served, [text for run in rest for text in run.prose()], count))
    for run in rest:
        own = [next(texts) for _ in run.prose()]
        found[run] = [run.with_prose([each[min(n, len(each) - 1)] for each in own]) for n in range(count)]
    return [
        list(dict.fromkeys("".join(part if isinstance(part, str) else found[part][n] for part in markup.parts)
                           for n in range(count)))
        for markup in markups
    ]  # fmt: skip


async def translate_runs(served: ServedModel, runs: Sequence[ProseRun], count: int) -> dict[ProseRun, list[str]]:
    """Translate runs with inline tags as wholes; the result lacks those whose tags find no place."""
    runs = await asyncio.to_thread(lambda: [run for run in runs if can_align(served, run)])
    found: dict[ProseRun, list[str]] = {}
    results = await translate_texts(served, [run.text for run in runs], served.request(n_best=count))
    for run, ways in zip(runs, results, strict=True):
        tagged = [await asyncio.to_thread(run.with_text, way.text, await align_words(served, way)) for way in ways]
        if None not in tagged:
            found[run] = [one for one in tagged if one is not None]
    return found


def can_align(served: ServedModel, run: ProseRun) -> bool:
    """Return whether a run can be translated as a whole: its tags are nested, and none of its sentences is too long."""
    if not served.aligns or run.elements() is None:
        return False
    most = served.config.max_length
    return all(len(served.translator.read(part)[0]) <= most for part in sentences.split(run.text)[::2])


async def align_words(served: ServedModel, translation: TextTranslation) -> list[Link]:
    """Return (source word, target word) for each aligned pair, counted over all sentences."""
    pairs = [(sentence, one.tokens) for sentence, one in translation.sentences]
    links: list[Link] = []
    source = target = 0
    aligned = await served.batcher.submit("align", served.align, pairs)
    for (sentence, one), own in zip(translation.sentences, aligned, strict=True):
        count = len(sentence.split())
        own = [(n, n) for n in range(count)] if one.text == sentence else own  # it was not translated
        links += [(source + a, target + b) for a, b in own]
        source, target = source + count, target + len(one.text.split())
    return links
