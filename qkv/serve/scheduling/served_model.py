"""Served: one model behind the server, what it can do, and the threads that do it."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from qkv.api import Model, load
from qkv.config import ModelConfig
from qkv.convert.detect import find_run
from qkv.errors import QkvError
from qkv.generate.alignment import Link
from qkv.generate.beam import BeamParams, BeamSearch
from qkv.generate.logits_processor import NO_PROCESSING, LogitsProcessor
from qkv.generate.sequence import GeneratedToken, Generation, Hypothesis
from qkv.generate.translate import EncodedText, Translation, TranslationParams, Translator, with_n_best
from qkv.look.attention import sites
from qkv.models.inputs import carries
from qkv.serve.http.errors import Refusal
from qkv.serve.scheduling.batcher import Caller
from qkv.serve.scheduling.limits import Limits
from qkv.serve.scheduling.metrics import Metrics
from qkv.serve.scheduling.scheduler import Desk, Lane, Ticket
from qkv.tasks.summary import Summarizer

Pair = tuple[str, str]
"""Source language, target language."""
ALIGNED = TranslationParams(alignments=True)
MANY = 2000
"""Characters that are made into tokens without holding up other requests."""
CHUNK = 64
"""Tokens of a prompt whose logits are formed at once."""


@dataclass(eq=False)
class Served:
    """A loaded model. `start` begins its threads, `close` ends them when all that was asked is answered."""

    name: str
    model: Model
    task: str | None = None
    """What it was trained for, where a recipe says so."""
    pair: Pair | None = None
    """The languages of a translator."""
    pairs: bool | None = None
    """Whether its classes are of pairs of texts; None where no recipe says so: it reads both."""
    note: str | None = None
    """What its user should know, where it ships with qkv."""
    run: Path | None = None
    """Folder of the training run that it is the best model of."""
    batches: int = 0
    """Lanes; 0 = one for each of torch's threads."""
    limits: Limits = field(default_factory=Limits)
    metrics: Metrics = field(default_factory=Metrics)

    def start(self) -> None:
        on_cpu = self.model.device.type == "cpu"
        threads = torch.get_num_threads()
        lanes = (min(self.batches or threads, threads) if on_cpu else 1) if self.writes else 0
        lock = threading.Lock()
        # on a CPU texts are written by a packed twin; elsewhere whoever looks into the network has it for himself
        alone: Callable[[], AbstractContextManager[Any]] = nullcontext if on_cpu else lambda: lock
        self.desk = Desk(self.limits, lanes)
        # pictures are described in the thread of the calls, by a packed twin too
        asked = [self.model.network, *([self.model.packed()] if "describe" in self.can else [])]
        self.caller = Caller(self.name, asked, self.limits, self.metrics, alone)
        network = self.model.packed(fast=lanes > 0)
        self.lanes = [
            Lane(number, self.desk, network, self.pad_id, max(1, threads // lanes), self.name, self.metrics, alone)
            for number in range(lanes)
        ]
        self.metrics.watch(self.name, lambda: len(self.desk.waiting) + len(self.caller.waiting),
                           lambda: sum(len(lane.tickets) for lane in self.lanes))  # fmt: skip
        for thread in (*self.lanes, self.caller):
            thread.start()

    def close(self, seconds: float = 60.0) -> None:
        self.desk.close()
        self.caller.close()
        for thread in (*self.lanes, self.caller):
            thread.join(seconds)

    # --- what it is

    @property
    def config(self) -> ModelConfig:
        return self.model.config

    @property
    def pad_id(self) -> int:
        """One that both sides know: what stands at padding is never looked at."""
        return self.config.pad_id if self.config.pad_id < min(self.config.vocab_size, self.config.target_size) else 0

    @property
    def writes(self) -> bool:
        """Whether it writes from text."""
        c = self.config
        return (
            c.family != "encoder"
            and c.image_size is None
            and c.head == "vocabulary"
            and self.model.tokenizer is not None
        )

    @cached_property
    def can(self) -> tuple[str, ...]:
        """What may be asked of it."""
        c, words = self.config, self.model.tokenizer is not None
        template = self.model.tokenizer.chat_template if self.model.tokenizer is not None else None
        translates = c.family == "encoder-decoder" and (self.task == "translation" or self.pair is not None)
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
        """What /api/models says of it."""
        c, filler = self.config, self.model.looker().filler
        return {
            "name": self.name, "task": self.task, "can": list(self.can), "family": c.family, "head": c.head,
            "parameters": sum(p.numel() for p in self.model.network.parameters()), "layers": c.n_layers,
            "decoder_layers": c.decoder_layers if c.family == "encoder-decoder" else None, "heads": c.n_heads,
            "width": c.d_model, "head_width": c.head_width, "vocabulary": c.vocab_size, "target_vocabulary": c.target_size,
            "context": c.max_length, "position": c.position, "recurrent": c.recurrent, "mixer": list(c.mixer),
            "attention": list(dict.fromkeys(site.kind for site in sites(self.model.network) if site.weighs)),
            "mask": filler and filler.name, "pairs": "answer" in self.can or ("classify" in self.can and bool(self.pairs)),
            "scores": "classify" in self.can and c.n_classes == 1, "labels": list(c.labels[:1000]),
            "image_size": c.image_size, "channels": c.n_channels,
            "source": self.pair and self.pair[0], "target": self.pair and self.pair[1], "ends": list(c.eos_ids),
            "note": self.note, "data": self.model.usage.dataset, "examples": list(self.model.usage.examples),
        }  # fmt: skip

    def checked(self, texts: int) -> None:
        """An input of so many texts is refused by a classifier that reads another number of them."""
        if "classify" not in self.can or self.pairs is None or self.pairs == (texts == 2):
            return
        raise Refusal(400, f"{self.name} compares two texts: give a pair" if self.pairs else
                      f"{self.name} reads one text at a time: it was not trained on pairs")  # fmt: skip

    # --- writing

    def write_all(self, given: Sequence[tuple[list[int], list[int] | None, Generation]]) -> list[Ticket]:
        """Hand over some texts, all or none."""
        tickets = [Ticket(*one) for one in given]
        self.desk.put(tickets)
        return tickets

    def prompt_ids(self, prompt: str, chat: bool = False, system: str | None = None) -> list[int]:
        """A text in tokens: what is gone on from, a message to the assistant, or the source as a translator reads it; a decoder
        that writes summaries goes on from the text and the token that opens the summary."""
        if self.config.family == "encoder-decoder":
            return self.translator.read(prompt)[0]
        if self.task == "summary" and not chat and system is None:
            source, places = self.translator.read(prompt)
            return self.translator.prompt(EncodedText(0, source, places, [], []))[0]
        return self.model.prompt_ids(prompt, chat, system)

    def spelled(self, given: Any) -> list[str]:
        """One or several texts as they are, token ids as the text that they spell."""
        words, texts = self.model.words(), self.limits.several(given)
        if any(max(each) >= words.size for each in texts if isinstance(each, list)):
            raise Refusal(400, f"a token id is not in the vocabulary, which has {words.size} words", param="input")
        return [each if isinstance(each, str) else words.decode(each) for each in texts]

    @cached_property
    def rules(self) -> LogitsProcessor:
        """What a text that is drawn must obey; a translator writes neither padding nor the token that opens a target."""
        ruled = self.config.family == "encoder-decoder" or self.task == "summary"
        return replace(self.translator.processor(TranslationParams()), forced_first=()) if ruled else NO_PROCESSING

    def ruled(self, own: LogitsProcessor, prompt: Sequence[int]) -> LogitsProcessor:
        """The same with the penalties of a request; without any it is one object, by which texts are drawn together."""
        return (
            self.rules
            if own.is_identity
            else replace(own.for_prompt(prompt, self.config.eos_ids), suppressed=self.rules.suppressed)
        )

    def opened(self, ids: list[int], prefix: Sequence[int] = ()) -> tuple[list[int], list[int] | None, int]:
        """What a lane reads of a prompt and the beginning of its answer, and how many tokens can follow."""
        c = self.config
        known = [*ids] if c.family == "encoder-decoder" else [*ids, *prefix]
        most = math.inf if carries(c) else c.max_length
        if not known:
            raise QkvError("the prompt is empty, and this model has no token to begin with")
        for some, size in ((known, c.vocab_size), (prefix, c.target_size)):
            if some and not 0 <= min(some) <= max(some) < size:
                raise QkvError(f"a token id is not in the vocabulary, which has {size} words")
        if len(known) > most:
            raise Refusal(400, f"the prompt has {len(known):,} tokens, this model reads at most {most:,}",
                          code="context_length_exceeded", param="prompt")  # fmt: skip
        if c.family == "encoder-decoder":
            inputs = [*self.model.start_ids(), *prefix]
            return inputs, known, max(0, c.max_length - len(inputs) + 1)
        return known, None, int(min(self.limits.tokens, max(0, most - len(known) + 1)))

    @torch.no_grad()
    def read(self, ids: list[int], top: int) -> list[GeneratedToken]:
        """Each token of a prompt with what the model gives it after those before it; the first has nothing before it."""
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
        """What turns texts into tokens and hypotheses into texts; the network is asked by the lanes."""
        model: Any = self.model
        kind = Summarizer if self.task == "summary" else Translator
        return kind(self.config, model.network, model.words(), model.target_words())

    def beam(self, size: int | None = None, n_best: int = 1) -> BeamParams:
        """Return a beam of the given size, or of the model's default size; the rest of it is the model's default."""
        own = self.model.defaults.resolve(
            beam=(size, 4), length_penalty=(None, 1.0), length_formula=(None, "power"), early=(None, False)
        )
        size = max(own["beam"], n_best)
        self.limits.at_most("beam", size, "hypotheses")
        return BeamParams(size, own["length_penalty"], n_best, early=own["early"], length_formula=own["length_formula"])

    def request(
        self, beam: int | None = None, n_best: int = 1, max_length: int | None = None, **how: Any
    ) -> TranslationParams:
        """Return how to translate or summarise; what the client leaves open is the model's default."""
        usual = (64, 3) if self.task == "summary" else (None, 0)
        own = self.model.defaults.resolve(
            max_length=(max_length, usual[0]), min_length=(None, 0), no_repeat_ngram=(None, usual[1])
        )
        extra = self.model.defaults.extra_length if max_length is None else None
        return TranslationParams(self.beam(beam, n_best), extra_length=extra, **own, **how)

    async def search(self, texts: Sequence[str], how: TranslationParams) -> list[Translation]:
        """The translation (or summary) of each text; of an empty one it is empty."""
        begun = lambda: [self.begun(text, how) for text in texts]  # noqa: E731
        found = await asyncio.to_thread(begun) if sum(map(len, texts)) > MANY else begun()
        tickets = self.write_all([one for one in found if one is not None])
        try:
            done = iter([with_n_best(self.results(await ticket.written())) for ticket in tickets])
        finally:
            for ticket in tickets:
                ticket.gone = True
        return [Translation("") if one is None else next(done) for one in found]

    def begun(self, text: str, how: TranslationParams) -> tuple[list[int], list[int] | None, Generation] | None:
        """A text in tokens, and the beam that will search for its translation; None where there is nothing to do."""
        job = self.translator.encode(0, text, how)
        if job is None:
            return None
        inputs, source = self.translator.prompt(job)
        longest = min(self.translator.max_tokens(job.source, how), self.limits.tokens)
        processor = self.translator.processor(how, [job.prefix])
        return inputs, source, BeamSearch(how.beam, longest, self.config.eos_ids, job.phrases, processor)

    def results(self, text: Generation) -> list[Translation]:
        assert isinstance(text, BeamSearch)
        return [self.translator.decode(h) for h in text.results()]

    @cached_property
    def aligns(self) -> bool:
        """Whether it looks from what it writes at what it reads."""
        return self.config.family == "encoder-decoder" and any(
            site.kind == "cross" for site in sites(self.model.network)
        )

    def align(self, pairs: Sequence[tuple[str, list[str]]]) -> list[list[Link]]:
        """Texts and the tokens of their translations -> (source word, target word), from one pass of the plain network."""
        links: list[list[Link]] = []
        for text, tokens in pairs:
            job = self.translator.encode(0, text, ALIGNED)
            if job is None or not tokens:
                links.append([])
                continue
            ids = [self.translator.target.id_of(token) or 0 for token in tokens]
            written = Hypothesis(ids, [], ended=ids[-1] in self.config.eos_ids)
            batch = self.translator.make_batch([job]).to(self.model.device)
            links.append(self.translator.align([job], [[written]], batch, ALIGNED)[0][0] or [])
        return links


# --- opening


def load_for_serving(folder: Path, name: str = "", pair: Pair | None = None, device: str = "auto") -> Served:
    """Load a model to serve it; `pair` are the languages of a translator whose folder does not name them."""
    model = load(folder, device)
    if model.tokenizer is not None:
        model.tokenizer.literal  # noqa: B018  # made now, not by several threads at once
    usage = model.usage
    return Served(name or default_name(folder), model, usage.task, pair or usage.languages, usage.pairs, usage.note,
                  find_run(folder))  # fmt: skip


def default_name(folder: Path) -> str:
    """Return the name of a model that was given none: that of its folder, of best/ that of the run."""
    return (find_run(folder) or folder.resolve()).name.removesuffix(".gguf").removesuffix(".bin")
