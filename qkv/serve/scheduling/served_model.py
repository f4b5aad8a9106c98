"""A loaded model behind the server: its abilities, and the threads that compute its requests."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from qkv.api import Model, load
from qkv.config import ModelConfig
from qkv.convert.detect import find_run
from qkv.engine.quantize import parameter_count
from qkv.errors import QkvError
from qkv.generate.alignment import Link
from qkv.generate.beam import BeamParams, BeamSearch
from qkv.generate.logits_processor import NO_PROCESSING, LogitsProcessor
from qkv.generate.prefill import PromptCache
from qkv.generate.sequence import GeneratedToken, Generation, Hypothesis
from qkv.generate.translate import Translation, TranslationParams, Translator, with_n_best
from qkv.look.attention import sites
from qkv.models.inputs import carries
from qkv.serve.http.errors import ApiError
from qkv.serve.http.limits import Limits, SharedCount
from qkv.serve.http.metrics import Metrics
from qkv.serve.scheduling.batcher import Batcher, CallQueue
from qkv.serve.scheduling.queue import RequestQueue
from qkv.serve.scheduling.scheduled_text import ScheduledText
from qkv.serve.scheduling.scheduler import Scheduler
from qkv.tasks.summary import Summarizer

Pair = tuple[str, str]
"""Source language, target language."""
WITH_ALIGNMENTS = TranslationParams(alignments=True)
CHUNK = 64
"""Tokens of a prompt whose logits are computed at once."""
Prepared = tuple[list[int], list[int] | None, Generation]
"""A text to generate: the tokens that are known of it, the tokens of its source, and how it is searched or sampled."""


@dataclass(eq=False)
class ServedModel:
    """A loaded model. `start` starts its threads, `close` ends them when all requests are answered."""

    name: str
    model: Model
    task: str | None = None
    """The task that it was trained for, if known."""
    pair: Pair | None = None
    """The languages of a translator."""
    pairs: bool | None = None
    """Whether a classifier reads pairs of texts; None = unknown: it reads both."""
    note: str | None = None
    """A note for users, of a model that ships with qkv."""
    run: Path | None = None
    """Folder of the training run that it is the best model of."""
    batches: int = 0
    """Running batches, each with a scheduler thread; 0 = one for each of torch's threads."""
    limits: Limits = field(default_factory=Limits)
    metrics: Metrics = field(default_factory=Metrics)
    counts: tuple[SharedCount, SharedCount] | None = None
    """Texts that wait in the queue and in the batcher, shared by all worker processes."""

    def start(self) -> None:
        on_cpu = self.model.device.type == "cpu"
        threads = torch.get_num_threads()
        schedulers = (min(self.batches or threads, threads) if on_cpu else 1) if self.writes else 0
        # on a CPU a packed copy generates texts; elsewhere one network does everything, one thread at a time
        exclusive: AbstractContextManager[Any] = nullcontext() if on_cpu else threading.Lock()
        cells = [0, 0]
        queued, batched = self.counts or (SharedCount(cells, 0), SharedCount(cells, 1))
        self.queue = RequestQueue(self.limits, schedulers, queued)
        # the batcher inspects the plain network and computes single passes with the packed copy
        networks = list(dict.fromkeys([self.model.network, self.model.packed()]))
        self.batcher = Batcher(self.name, CallQueue(self.limits, batched), networks, self.metrics, exclusive)
        network = self.model.packed(fast=schedulers > 0)
        cache = PromptCache(self.limits.cached_tokens) if self.limits.cached_tokens else None
        self.schedulers = [
            Scheduler(number, self.queue, network, self.pad_id, max(1, threads // schedulers), self.name, self.metrics,
                      exclusive, cache)
            for number in range(schedulers)
        ]  # fmt: skip
        m = self.metrics
        m.sample(m.queued.labels(self.name), lambda: len(self.queue.waiting) + len(self.batcher.queue.waiting))
        m.sample(m.running.labels(self.name), lambda: sum(len(one.active) for one in self.schedulers))
        for thread in self.threads:
            thread.start()

    @property
    def threads(self) -> list[threading.Thread]:
        return [*self.schedulers, self.batcher]

    def close(self, seconds: float = 60.0) -> None:
        self.queue.close()
        self.batcher.queue.close()
        for thread in self.threads:
            thread.join(seconds)

    # --- properties

    @property
    def config(self) -> ModelConfig:
        return self.model.config

    @property
    def pad_id(self) -> int:
        """A token id of both vocabularies: padding is masked, so any will do."""
        return self.config.pad_id if self.config.pad_id < min(self.config.vocab_size, self.config.target_size) else 0

    @property
    def writes(self) -> bool:
        """Whether it generates text from text."""
        return can_generate(self.model) and self.config.image_size is None

    @cached_property
    def searches(self) -> bool:
        """Whether it was trained to write one text for another: a summary, a translation."""
        return self.task in ("summary", "translation")

    @cached_property
    def abilities(self) -> tuple[str, ...]:
        """The tasks that clients may request."""
        c, words = self.config, self.model.tokenizer is not None
        template = self.model.tokenizer.chat_template if self.model.tokenizer is not None else None
        translates = self.task == "translation" or (c.family == "encoder-decoder" and self.pair is not None)
        able = {
            "generate": self.writes,
            "chat": self.writes and c.family == "decoder" and template is not None,
            "translate": self.writes and translates,
            "summarize": self.writes and self.task == "summary",
            "classify": c.head in ("classes", "classes-words") and (words or c.image_size is not None),
            "tag": c.head == "tags" and words,
            "fill": c.head in ("masked", "masked-next") and words,
            "answer": c.head == "span" and words,
            "describe": c.image_size is not None and c.family == "encoder-decoder" and words,
            "embed": words and c.image_size is None,
            "look": words or c.image_size is not None,
        }
        return tuple(name for name, yes in able.items() if yes)

    def about(self) -> dict[str, Any]:
        """Describe it for /api/models."""
        c, filler = self.config, self.model.looker().filler
        return {
            "name": self.name, "task": self.task, "can": list(self.abilities), "family": c.family, "head": c.head,
            "parameters": parameter_count(self.model.network), "layers": c.n_layers,
            "decoder_layers": c.decoder_layers if c.family == "encoder-decoder" else None, "heads": c.n_heads,
            "width": c.d_model, "head_width": c.head_width, "vocabulary": c.vocab_size, "target_vocabulary": c.target_size,
            "context": c.max_length, "position": c.position, "recurrent": c.recurrent, "mixer": list(c.mixer),
            "attention": list(dict.fromkeys(site.kind for site in sites(self.model.network) if site.weighs)),
            "mask": filler and filler.name, "pairs": "answer" in self.abilities or ("classify" in self.abilities and bool(self.pairs)),
            "scores": "classify" in self.abilities and c.n_classes == 1, "labels": list(c.labels[:1000]),
            "image_size": c.image_size, "channels": c.n_channels,
            "source": self.pair and self.pair[0], "target": self.pair and self.pair[1], "ends": list(c.eos_ids),
            "note": self.note, "data": self.model.usage.dataset, "examples": list(self.model.usage.examples),
        }  # fmt: skip

    def check_pair(self, texts: int) -> None:
        """Raise an error if a classifier of pairs gets a single text, or one of single texts a pair."""
        if "classify" not in self.abilities or self.pairs is None or self.pairs == (texts == 2):
            return
        raise ApiError(400, f"{self.name} compares two texts: give a pair" if self.pairs else
                       f"{self.name} reads one text at a time: it was not trained on pairs")  # fmt: skip

    # --- generating

    def prompt_ids(self, prompt: str, chat: bool = False, system: str | None = None) -> list[int]:
        """Tokenize a prompt, a chat message, or the source of an encoder-decoder; a decoder trained on summaries or translations
        continues from the text and the token that starts its output."""
        if self.config.family == "encoder-decoder":
            return self.translator.read(prompt)[0]
        if self.searches and not chat and system is None:
            return self.translator.prompt(self.translator.read(prompt)[0])[0]
        return self.model.prompt_ids(prompt, chat, system)

    def as_texts(self, given: Any) -> list[str]:
        """Return one or several texts as a list; decode those that are given as token ids."""
        words, texts = self.model.words(), self.limits.check_inputs(given)
        if any(max(each) >= words.size for each in texts if isinstance(each, list)):
            raise ApiError(400, f"a token id is not in the vocabulary of {words.size:,} tokens", param="input")
        return [each if isinstance(each, str) else words.decode(each) for each in texts]

    @cached_property
    def processor(self) -> LogitsProcessor:
        """Constraints on sampled texts: a translator generates neither padding nor the start token."""
        searched = self.config.family == "encoder-decoder" or self.searches
        # the inputs already include the first token
        return replace(self.translator.processor(TranslationParams()), forced_first=()) if searched else NO_PROCESSING

    def with_penalties(self, penalties: LogitsProcessor, prompt: Sequence[int]) -> LogitsProcessor:
        """Add the penalties of a request to `processor`. Without any it is the same object, so that texts are sampled together."""
        if penalties.is_identity:
            return self.processor
        return replace(penalties.for_prompt(prompt, self.config.eos_ids), suppressed=self.processor.suppressed)

    def inputs_of(self, ids: list[int], prefix: Sequence[int] = ()) -> tuple[list[int], list[int] | None, int]:
        """Return the known tokens of a prompt and the start of its output, the source tokens, and how many tokens can follow."""
        c = self.config
        known = [*ids] if c.family == "encoder-decoder" else [*ids, *prefix]
        most = math.inf if carries(c) else c.max_length
        if not known:
            raise QkvError("the prompt is empty, and this model has no start token: send at least one token")
        for some, size in ((known, c.vocab_size), (prefix, c.target_size)):
            if some and not 0 <= min(some) <= max(some) < size:
                raise QkvError(f"a token id is not in the vocabulary of {size:,} tokens")
        if len(known) > most:
            raise ApiError(400, f"the prompt has {len(known):,} tokens, but this model reads at most {most:,}",
                           code="context_length_exceeded", param="prompt")  # fmt: skip
        if c.family == "encoder-decoder":
            inputs = [*self.model.start_ids(), *prefix]
            return inputs, known, max(0, c.max_length - len(inputs) + 1)
        return known, None, int(min(self.limits.tokens, max(0, most - len(known) + 1)))

    @torch.no_grad()
    def prompt_steps(self, ids: list[int], top: int) -> list[GeneratedToken]:
        """Return each token of a prompt with its log-probability given those before it; that of the first is NaN."""
        output = self.model.network(self.model.batch([ids]))
        steps = [GeneratedToken(ids[0], math.nan, [])]
        for at in range(0, len(ids) - 1, CHUNK):  # never the logits of a whole prompt
            some = ids[at + 1 : at + 1 + CHUNK]
            table = output.head(output.hidden[0, at : at + len(some)]).float().log_softmax(-1)  # (T, V)
            values, tokens = table.topk(min(top, table.size(1)), -1)
            for token, row, *best in zip(some, table, tokens.tolist(), values.tolist(), strict=True):
                steps.append(GeneratedToken(token, float(row[token]), list(zip(*best, strict=True))))
        return steps

    # --- translating

    @cached_property
    def translator(self) -> Translator:
        """Converts texts to tokens and hypotheses to texts; the schedulers run the network."""
        model: Any = self.model
        kind = Summarizer if self.task == "summary" else Translator
        return kind(self.config, model.network, model.words(), model.target_words())

    def beam(self, size: int | None = None, n_best: int = 1) -> BeamParams:
        """Return a beam of the given size, or of the model's default size; the rest of it is the model's default."""
        own = self.model.defaults.resolve(
            beam=(size, 4), length_penalty=(None, 1.0), length_formula=(None, "power"), early=(None, False)
        )
        size = max(own["beam"], n_best)
        self.limits.check("beam", size, "hypotheses")
        return BeamParams(size, own["length_penalty"], n_best, early=own["early"], length_formula=own["length_formula"])

    def request(
        self, beam: int | None = None, n_best: int = 1, max_length: int | None = None, **options: Any
    ) -> TranslationParams:
        """Return how to translate or summarize; what the client leaves open is the model's default."""
        usual = (64, 3) if self.task == "summary" else (None, 0)
        own = self.model.defaults.resolve(
            max_length=(max_length, usual[0]), min_length=(None, 0), no_repeat_ngram=(None, usual[1])
        )
        extra = self.model.defaults.extra_length if max_length is None else None
        return TranslationParams(self.beam(beam, n_best), extra_length=extra, **own, **options)

    def prepare(self, text: str, how: TranslationParams) -> Prepared | None:
        """Tokenize a text and set up its beam search; None for an empty text. Call it outside of the event loop."""
        encoded = self.translator.encode(0, text, how)
        if encoded is None:
            return None
        inputs, source = self.translator.prompt(encoded.source)
        longest = min(self.translator.max_tokens(encoded.source, how), self.limits.tokens)
        processor = self.translator.processor(how, [encoded.prefix])
        return inputs, source, BeamSearch(how.beam, longest, self.config.eos_ids, encoded.phrases, processor)

    async def search(self, texts: Sequence[str], how: TranslationParams) -> list[Translation]:
        """Translate or summarize each text; the result of an empty text is empty."""
        prepared = await asyncio.to_thread(lambda: [self.prepare(text, how) for text in texts])
        return await self.run_searches(prepared)

    async def run_searches(self, prepared: Sequence[Prepared | None]) -> list[Translation]:
        """Run prepared searches and decode their results outside of the event loop."""
        texts = [ScheduledText(*one) for one in prepared if one is not None]
        self.queue.put(texts)
        try:
            generations = [await text.wait() for text in texts]
        finally:
            for text in texts:
                text.cancelled = True
        results = iter(await asyncio.to_thread(self.decode, generations))
        return [Translation("") if one is None else next(results) for one in prepared]

    def decode(self, generations: Sequence[Generation]) -> list[Translation]:
        searches = [generation for generation in generations if isinstance(generation, BeamSearch)]
        return [with_n_best([self.translator.decode(h) for h in search.results()]) for search in searches]

    @cached_property
    def aligns(self) -> bool:
        """Whether it has cross-attention, from which words are aligned."""
        return self.config.family == "encoder-decoder" and bool(sites(self.model.network, "cross"))

    def align(self, pairs: Sequence[tuple[str, list[str]]]) -> list[list[Link]]:
        """Align texts with the tokens of their translations: (source word, target word), from one pass of the plain network."""
        links: list[list[Link]] = []
        for text, tokens in pairs:
            encoded = self.translator.encode(0, text, WITH_ALIGNMENTS)
            if encoded is None or not tokens:
                links.append([])
                continue
            ids = [self.translator.target.id_of(token) or 0 for token in tokens]
            hypothesis = Hypothesis(ids, [], ended=ids[-1] in self.config.eos_ids)
            batch = self.translator.make_batch([encoded]).to(self.model.device)
            links.append(self.translator.align([encoded], [[hypothesis]], batch, WITH_ALIGNMENTS)[0][0] or [])
        return links


def can_generate(model: Model) -> bool:
    """Return whether a model generates text, from a text or an image."""
    c = model.config
    return c.family != "encoder" and c.head == "vocabulary" and model.tokenizer is not None


# --- loading


def load_for_serving(folder: Path, name: str = "", pair: Pair | None = None, device: str = "auto",
                     precision: str | None = None) -> ServedModel:  # fmt: skip
    """Load a model to serve it; `pair` are the languages of a translator whose folder does not name them."""
    model = load(folder, device, precision)
    if model.tokenizer is not None:
        model.tokenizer.literal  # noqa: B018  # created now, not by several threads at once
    usage = model.usage
    return ServedModel(name or default_name(folder), model, usage.task, pair or usage.languages, usage.pairs, usage.note,
                       find_run(folder))  # fmt: skip


def default_name(folder: Path) -> str:
    """Name a model by its folder or file; one in a folder best/ by the folder around it."""
    path = find_run(folder) or folder.resolve()
    path = path.parent if path.name == "best" else path
    return path.name.removesuffix(".gguf").removesuffix(".bin")
